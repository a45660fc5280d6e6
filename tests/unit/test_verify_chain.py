"""The checker's judgement of a ledger: which records make one chain, and what is wrong with those
that do not.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_verify.chain import Skipped, build_chain, disjoint_parts
from onceward_verify.findings import CannotTell, Findings, WrongUsage
from onceward_verify.ledger import (
    FilesPart,
    FrameWrite,
    LedgerBatch,
    OutputPart,
    Span,
    TablePart,
    kafka_position,
    parse_batch,
    parse_since,
    select,
)
from support.errors import raises

LATER = (9, 0)
"""Of another owner than all batches here."""


def batch(sequence: int, start: Any, end: Any, **more: Any) -> LedgerBatch:
    told = {
        "query_id": "q",
        "batch_id": sequence,
        "parts": (),
        "identity": (7, sequence),
        "ledger_topic": "ledger",
        "ledger_partition": 0,
        "ledger_offset": sequence * 2,
        **more,
    }
    return LedgerBatch(sequence=sequence, spans=(Span(start, end),), **told)


def at(**offsets: int) -> dict[str, dict[str, int]]:
    return {"in": {partition.removeprefix("p"): offset for partition, offset in offsets.items()}}


def judged(*batches: LedgerBatch) -> Findings:
    findings = Findings()
    build_chain(batches, findings)
    return findings


def names(*batches: LedgerBatch) -> list[str]:
    return [anomaly.name for anomaly in judged(*batches).anomalies]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20))
def test_batches_that_join_are_one_chain(steps: list[tuple[int, int]]):
    batches, left, right = [], 0, 0
    for sequence, (more_left, more_right) in enumerate(steps):
        end = at(p0=left + more_left, p1=right + more_right)
        batches.append(batch(sequence, at(p0=left, p1=right), end))
        left, right = left + more_left, right + more_right
    findings = Findings()
    chain = build_chain(batches, findings)
    assert (findings.verdict, chain.from_the_beginning) == ("exactly_once", True)
    assert list(chain.covered) == batches


@given(st.sets(st.integers(0, 30), min_size=2, max_size=12))
def test_a_chain_has_as_many_gaps_as_there_are_holes_in_its_numbers(sequences: set[int]):
    ordered = sorted(sequences)
    findings = judged(
        *(batch(sequence, at(p0=sequence), at(p0=sequence + 1)) for sequence in ordered)
    )
    holes = sum(after > before + 1 for before, after in itertools.pairwise(ordered))
    assert findings.counts == ({"ledger-gap": holes} if holes else {})
    assert bool(findings.not_covered) == (ordered[0] > 0)


def test_a_number_told_twice_is_a_fork():
    assert names(batch(0, at(p0=0), at(p0=5)), batch(0, at(p0=0), at(p0=5), ledger_offset=9)) == [
        "ledger-fork"
    ]


def test_numbers_that_come_in_another_order_are_not_monotonic():
    swapped = [batch(1, at(p0=5), at(p0=9)), batch(0, at(p0=0), at(p0=5))]
    assert "non-monotonic" in names(*swapped)


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (at(p0=7), "ledger-gap"),
        (at(p0=3), "non-monotonic"),
        (at(p1=0), "ledger-gap"),
        (None, "ledger-gap"),
    ],
)
def test_a_batch_that_does_not_begin_where_the_last_one_ended(start: Any, name: str):
    assert set(names(batch(0, at(p0=0), at(p0=5)), batch(1, start, at(p0=9)))) == {name}


def test_a_source_partition_may_be_new_and_begin_at_its_beginning():
    joined = judged(
        batch(0, at(p0=0), at(p0=5)),
        batch(1, at(p0=5), at(p0=9, p1=3)),
        batch(2, at(p0=9, p1=3), at(p0=9, p1=4)),
    )
    assert joined.verdict == "exactly_once"
    added = judged(batch(0, at(p0=0), at(p0=5)), batch(1, at(p0=5, p1=8), at(p0=9, p1=9)))
    assert added.not_covered == ["in-1 before offset 8: new in the middle"]


def test_positions_of_other_sources_must_be_equal_to_join():
    assert names(batch(0, None, {"file": 3}), batch(1, {"file": 3}, {"file": 4})) == []
    assert names(batch(0, None, {"file": 3}), batch(1, {"file": 4}, {"file": 5})) == ["ledger-gap"]


def test_a_batch_that_ends_before_it_begins_goes_back():
    assert names(batch(0, at(p0=5), at(p0=3))) == ["non-monotonic"]


def test_one_epoch_serves_one_batch_and_never_falls():
    first = batch(0, at(p0=0), at(p0=5), identity=(7, 3))
    assert names(first, batch(1, at(p0=5), at(p0=9), identity=(7, 3))) == ["zombie-write"]
    assert names(first, batch(1, at(p0=5), at(p0=9), identity=(7, 2))) == ["zombie-write"]
    assert names(first, batch(1, at(p0=5), at(p0=9), identity=(8, 0))) == []


def test_a_key_that_moved_to_another_ledger_partition_may_have_been_compacted_in_between():
    findings = Findings()
    old, new = batch(3, at(p0=0), at(p0=5)), batch(8, at(p0=20), at(p0=25), ledger_partition=1)
    chain = build_chain([old, new], findings)
    assert (findings.anomalies, chain.covered, chain.from_the_beginning) == ([], (new,), False)
    assert "sequence 4 to 7" in findings.not_covered[0]


def test_a_ledger_that_was_adopted_says_nothing_of_what_came_before():
    findings = Findings()
    assert not build_chain(
        [batch(0, at(p0=50), at(p0=60), batch_id=12)], findings
    ).from_the_beginning
    assert findings.verdict == "inconclusive"


def test_output_that_is_told_to_lie_before_earlier_output_goes_back_and_is_counted_once():
    def part(sequence: int, first: int, last: int) -> OutputPart:
        return OutputPart(sequence, "out", 0, last - first + 1, first, last, "")

    one = batch(0, at(p0=0), at(p0=5), parts=(part(0, 10, 19),))
    two = batch(1, at(p0=5), at(p0=9), parts=(part(1, 15, 24),))
    assert names(one, two) == ["non-monotonic"]
    assert disjoint_parts([one, two]) == {("out", 0): [part(0, 10, 19)]}


@pytest.mark.parametrize(
    "value", [b"", b"[]", b"{}", b'{"version": 2}', b'{"version": 1, "sequence": "x"}', b"\xff"]
)
def test_what_is_no_ledger_record_is_no_verdict(value: bytes):
    with raises(CannotTell, "ledger-3@5"):
        parse_batch(value, "ledger", 3, 5)


def test_only_what_looks_like_kafkas_position_is_one():
    assert kafka_position({"in": {"0": 5}}) == {("in", 0): 5}
    assert [
        kafka_position(other)
        for other in (None, 5, {"logOffset": 5}, {"in": {"0": None}}, {"in": {"x": 1}})
    ] == [None] * 5


def test_skipped_batches_are_no_gap():
    findings = Findings()
    skips = [
        batch(0, at(p0=0), at(p0=5)),
        batch(1, at(p0=5), at(p0=9), batch_id=3),
        batch(2, at(p0=12), at(p0=15), batch_id=5),
    ]
    chain = build_chain(skips, findings)
    assert findings.verdict == "exactly_once"
    assert chain.skipped == (Skipped("q", 1, 2, ()), Skipped("q", 4, 4, ((("in", 0), 9, 11),)))


@pytest.mark.parametrize("more", [{"batch_id": 1}, {"batch_id": 5, "query_id": "another"}])
def test_offsets_left_out_without_a_skip(more: dict[str, Any]):
    assert names(batch(0, at(p0=0), at(p0=5)), batch(1, at(p0=7), at(p0=9), **more)) == [
        "ledger-gap"
    ]


def test_a_skip_never_goes_back():
    assert names(batch(0, at(p0=0), at(p0=5)), batch(1, at(p0=3), at(p0=9), batch_id=4)) == [
        "non-monotonic"
    ]


def test_a_supplement_repeats_its_batch():
    start, end = at(p0=0), at(p0=5)
    more = {"supplement": True, "batch_id": 0}
    chain = [batch(0, start, end), batch(1, start, end, **more), batch(2, start, end, **more)]
    assert names(*chain, batch(3, end, at(p0=9), batch_id=1)) == []


@pytest.mark.parametrize(
    "wrong",
    [{"batch_id": 1}, {"query_id": "another"}, {"spans": (Span(at(p0=0), at(p0=6)),)}],
    ids=str,
)
def test_a_supplement_of_another_batch(wrong: dict[str, Any]):
    added = replace(batch(1, at(p0=0), at(p0=5), batch_id=0, supplement=True), **wrong)
    assert names(batch(0, at(p0=0), at(p0=5)), added) == ["ledger-fork"]


def test_a_batch_told_twice_is_a_fork():
    """An empty one, which no offset would show."""
    assert names(batch(0, at(p0=5), at(p0=5)), batch(1, at(p0=5), at(p0=5), batch_id=0)) == [
        "ledger-fork"
    ]
    assert names(batch(0, at(p0=5), at(p0=5), batch_id=3), batch(1, at(p0=5), at(p0=5))) == [
        "non-monotonic"
    ]


def test_a_run_that_comes_back_is_a_zombie():
    """Its epochs rise, for it has fenced its heir."""
    runs = [
        batch(n, at(p0=n), at(p0=n + 1), run_id=run)
        for n, run in enumerate(["a", "a", "b", "", "b", "a"])
    ]
    assert names(*runs[:-1]) == []
    (found,) = judged(*runs).anomalies
    assert (found.name, "sequence 1 " in found.detail) == ("zombie-write", True)


def writing(parts: dict[str, int], *writes: tuple[str | None, int], **more: Any) -> LedgerBatch:
    told = tuple(
        OutputPart(0, topic, 0, count, 0, count - 1, "") for topic, count in parts.items()
    )
    return batch(
        0,
        at(p0=0),
        at(p0=5),
        parts=told,
        writes=tuple(FrameWrite(*write) for write in writes),
        **more,
    )


@pytest.mark.parametrize(
    ("wrote", "name"),
    [
        (writing({"a": 3, "b": 2}, ("a", 3), ("b", 2)), None),
        (writing({"a": 3, "b": 2}, ("a", 1), (None, 4)), None),
        (writing({}), None),
        (writing({"a": 3}, ("a", 3), ("b", 2)), "lost-write"),
        (writing({"a": 3}, (None, 3), ("a", 1)), "lost-write"),
        (writing({"a": 3, "b": 2}, ("a", 3)), "unaccounted-write"),
    ],
)
def test_what_is_handed_over_is_told(wrote: LedgerBatch, name: str | None):
    assert set(names(wrote)) == ({name} if name else set())


@pytest.mark.parametrize(("added", "name"), [(2, set()), (1, {"lost-write"})])
def test_a_supplement_tells_of_every_frame(added: int, name: set[str]):
    whole = writing({"a": 3}, ("a", 3))
    parts = (OutputPart(1, "b", 0, added, 0, added - 1, ""),)
    more = replace(
        whole,
        sequence=1,
        identity=(7, 9),
        supplement=True,
        parts=parts,
        writes=(FrameWrite("a", 3), FrameWrite("b", 2)),
    )
    assert set(names(whole, more)) == name


CHAIN = [
    batch(n, at(p0=n), at(p0=n + 1), query_id=query, batch_id=number, committed_at_ms=1_000 * n)
    for n, (query, number) in enumerate([("q", 7), ("q", 8), ("r", 0), ("r", 1), ("r", 4)])
]


@pytest.mark.parametrize(
    ("text", "first", "complete"),
    [
        ("1", 3, True),
        ("batch:0", 2, True),
        ("2", 4, True),  # 2 and 3 were skipped
        ("sequence:1", 1, True),
        ("sequence:0", 0, True),
        ("1970-01-01T00:00:01.500Z", 2, True),
        ("1970-01-01T00:00:02.000001Z", 3, True),
        ("1970-01-01T00:00:00+00:00", 0, True),
    ],
)
def test_since_begins_with_the_batch_asked_for(text: str, first: int, complete: bool):
    selected = select(CHAIN, parse_since(text))
    assert ([b.sequence for b in selected.batches], selected.complete) == (
        list(range(first, 5)),
        complete,
    )
    findings = Findings()
    build_chain(selected.batches, findings, complete=selected.complete)
    assert findings.verdict == "exactly_once"


def test_since_does_not_hide_what_compaction_took():
    selected = select(CHAIN[3:], parse_since("sequence:1"))
    findings = Findings()
    build_chain(selected.batches, findings, complete=selected.complete)
    assert (selected.complete, findings.verdict) == (False, "inconclusive")


def test_since_a_batch_that_is_not_there_yet():
    with raises(CannotTell) as refused:
        select(CHAIN, parse_since("5"))
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    "text", ["", "-1", "yesterday", "batch:x", "2030-01-31T06:00", "query:3", "²"]
)
def test_since_takes_nothing_else(text: str):
    with raises(WrongUsage) as refused:
        parse_since(text)
    assert refused.value.exit_status == 64


def test_what_is_optional_in_a_record_is_read():
    told = {
        "version": 2,
        "sequence": 0,
        "query_id": "q",
        "batch_id": 0,
        "sources": [],
        "outputs": {},
    }
    told |= {"attempt": [1, 2]}
    plain = parse_batch(json.dumps(told).encode(), "ledger", 0, 0)
    assert (plain.run_id, plain.writes, plain.supplement) == ("", None, False)
    more = told | {
        "run_id": "r",
        "writes": [["a", 3], [None, 4]],
        "supplement": True,
        "committed_at_ms": 5,
    }
    full = parse_batch(json.dumps(more).encode(), "ledger", 0, 0)
    assert (full.run_id, full.writes, full.supplement) == (
        "r",
        (FrameWrite("a", 3), FrameWrite(None, 4)),
        True,
    )
    assert full.committed_at_ms == 5


def test_a_record_that_is_written_again_once_others_have_published_is_no_fork():
    decided = batch(0, at(p0=0), at(p0=5), finished=False, identity=(7, 1))
    again = replace(decided, finished=True, writer=(7, 2), ledger_offset=1)
    findings = Findings()
    (told,) = build_chain((decided, again), findings).batches
    assert findings.verdict == "exactly_once"
    assert told == replace(decided, finished=True)


@pytest.mark.parametrize(
    "other",
    [
        {"batch_id": 1},
        {"query_id": "r"},
        {"run_id": "another"},
        {"identity": (8, 0)},
        {"committed_at_ms": 1},
        {"parts": (OutputPart(0, "out", 0, 1, 0, 0, "x"),)},
        {"files": FilesPart("file:/out", "flat", "parquet", 1, {"a": 1})},
    ],
)
def test_a_record_that_is_written_again_says_the_same(other: dict[str, Any]):
    decided = batch(0, at(p0=0), at(p0=5), finished=False)
    again = replace(decided, finished=True, writer=LATER)
    assert names(decided, again) == []
    assert "ledger-fork" in names(decided, replace(again, **other))
    assert "ledger-fork" in names(replace(decided, finished=True), again)


@pytest.mark.parametrize("writer", [None, (7, 3), (7, 2)])
def test_a_decision_that_is_there_twice_or_written_by_an_older_owner_is_no_progress(
    writer: tuple[int, int] | None,
):
    """As where the append of a decision is repeated."""
    decided = batch(0, at(p0=0), at(p0=5), finished=False, identity=(7, 3))
    for finished in (False, True):
        again = replace(decided, finished=finished, writer=writer, ledger_offset=1)
        assert names(decided, again) == ["ledger-fork"]
    on_and_on = [replace(decided, finished=n == 6, writer=(7, n)) for n in (4, 5, 6)]
    assert names(decided, *on_and_on) == []


def test_what_is_committed_when_a_record_is_written_again_is_no_difference():
    rows = TablePart("orders", 3, "append", (5,), published=False)
    decided = batch(0, at(p0=0), at(p0=5), finished=False, tables=(rows,))
    committed = replace(decided, finished=True, tables=(rows._replace(published=True),))
    again = replace(committed, writer=LATER)
    findings = Findings()
    (told,) = build_chain((decided, again), findings).batches
    assert (findings.verdict, told) == ("exactly_once", committed)
    more = replace(again, tables=(rows._replace(rows=4),))
    assert "ledger-fork" in names(decided, more)


def test_what_is_decided_is_finished_before_anything_else_is():
    decided = batch(0, at(p0=0), at(p0=5), finished=False)
    assert names(decided) == []
    assert names(decided, batch(1, at(p0=5), at(p0=6))) == ["ledger-gap"]


def test_the_identity_is_that_of_the_decision():
    told = {
        "version": 2, "sequence": 0, "query_id": "q", "batch_id": 0, "sources": [],
        "attempt": [8, 1],
        "decided": [7, 3], "outputs": {},
    }  # fmt: skip
    found = parse_batch(json.dumps(told).encode(), "ledger", 0, 0)
    assert (found.identity, found.writer) == ((7, 3), (8, 1))
