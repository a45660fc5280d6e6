"""Parents before their children, whatever order rows come in."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import pytest

from onceward.sql.sink.columns import Reference, Table, circle, parents_first


class Part(NamedTuple):
    table: Table
    number: int = 0


def part(name: str, number: int = 0) -> Part:
    return Part(Table(name, name, (), oid=name), number)


def refer(pairs: str) -> list[Reference]:
    return [Reference(*pair) for pair in pairs.split()]


def order(names: str, references: list[Reference]) -> str:
    return "".join(
        found.table.name for found in parents_first([part(name) for name in names], references)
    )


@pytest.mark.parametrize("names", ["".join(names) for names in itertools.permutations("abcd")])
def test_whatever_a_table_refers_to_comes_before_it(names: str) -> None:
    references: list[Reference] = refer("ab bc ac dd a?")
    found = order(names, references)
    assert found.index("c") < found.index("b") < found.index("a")
    assert sorted(found) == list("abcd")


def test_tables_without_references_stay_as_they_come() -> None:
    assert order("dbca", []) == "dbca"
    parts = [part("a", 1), part("b", 2), part("a", 3)]
    assert [one.number for one in parents_first(parts, refer("ab"))] == [2, 1, 3]


def test_any_graph_without_a_circle_is_ordered() -> None:
    seed = random.randrange(10**6)
    rng = random.Random(seed)
    for _ in range(200):
        names = "abcdefgh"
        rank = rng.sample(names, len(names))
        references: list[Reference] = [
            Reference(rank[child], rank[parent])
            for child in range(len(rank))
            for parent in range(child)
            if rng.random() < 0.3
        ]
        found = order("".join(rng.sample(names, len(names))), references)
        assert all(
            found.index(str(parent)) < found.index(str(child)) for child, parent, _ in references
        ), seed
        assert not circle(references), seed


def test_a_circle_is_seen_and_every_table_is_still_written_once() -> None:
    references: list[Reference] = refer("ab bc ca da")
    assert sorted(order("dcba", references)) == list("abcd")
    assert circle(references)
    assert not circle(refer("aa"))


def test_a_key_that_waits_for_the_end_of_the_transaction_keeps_nobody_waiting() -> None:
    references = [*refer("ab bc"), Reference("c", "a", waits=True)]
    assert order("abc", references) == "cba"
    assert not circle(references)


def test_a_long_chain_of_references_is_no_trouble() -> None:
    names = [str(number) for number in range(5_000)]
    references: list[Reference] = [Reference(*pair) for pair in itertools.pairwise(names)]
    found = [one.table.name for one in parents_first([part(name) for name in names], references)]
    assert found == names[::-1]
