"""The accounting behind ``--conserves``, against a model that keeps every record in a
dictionary.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_verify.chain import Skipped
from onceward_verify.conservation import InputName, Lineage, parse_lineage
from onceward_verify.findings import WrongUsage
from onceward_verify.ledger import LedgerBatch, Span
from onceward_verify.tally import BatchGroup, Source, Tally, WindowResult, group_batches, windows
from support.errors import raises

SOURCES = [("in", 0), ("in", 1)]
END = 30

Offsets = set[tuple[Source, int]]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[BatchGroup], list[Skipped]]:
    """Batches that join, some of them skipped, over two source partitions."""
    cuts = {
        source: sorted(draw(st.lists(st.integers(0, END), min_size=1, max_size=6)))
        for source in SOURCES
    }
    groups, skipped = [], []
    for number in range(max(map(len, cuts.values())) - 1):
        spans = {
            source: (c[number], c[number + 1]) for source, c in cuts.items() if number + 1 < len(c)
        }
        if draw(st.integers(0, 3)) == 0:
            ranges = tuple(
                (source, start, end - 1) for source, (start, end) in spans.items() if start < end
            )
            skipped.append(Skipped("q", number, number, ranges))
        else:
            groups.append(BatchGroup(number, (number,), spans))
    return groups, skipped


offsets = st.tuples(st.sampled_from(SOURCES), st.integers(0, END + 2))


def counted(
    groups: list[BatchGroup],
    skipped: list[Skipped],
    cells: int,
    records: Offsets,
    named: list[tuple[int, int, Source, int]],
    judged: frozenset[int],
    known: dict[Source, tuple[int, int]],
    compacted: frozenset[Source],
) -> tuple[list[WindowResult], Counter[tuple[int, Source, int]]]:
    """By the real thing, in windows of ``cells``: their outcomes, and what groups named and had
    not read.
    """
    outcomes: list[WindowResult] = []
    foreign: Counter[tuple[int, Source, int]] = Counter()
    for window in windows(groups, skipped, cells):
        tally = Tally(window, groups, 2)
        assert sum(high - low for low, high in tally.extents.values()) <= cells
        for source, (low, high) in tally.extents.items():
            there = [o for s, o in sorted(records) if s == source and low <= o < high]
            tally.add_records(source, np.array(there, np.int64))
        for count, group, source, offset in named:
            if group in window.groups:
                outside, _ = tally.add_names(count, group, source, np.array([offset], np.int64))
                if outside[0]:
                    foreign[group, source, offset] += 1
        outcomes.append(tally.summarize(judged, known, compacted))
    return outcomes, foreign


def spread(stretches: list[tuple[Any, ...]]) -> Counter[Any]:
    return Counter(
        (*before, offset)
        for *before, first, last in stretches
        for offset in range(first, last + 1)
    )


@given(
    histories(),
    st.integers(1, 80),
    st.sets(offsets),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 4), offsets), max_size=40),
    st.frozensets(st.integers(0, 4)),
    st.tuples(st.integers(0, END), st.integers(0, END + 2)),
    st.booleans(),
)
def test_counting_agrees_with_a_plain_model(
    history: tuple[list[BatchGroup], list[Skipped]],
    cells: int,
    records: Offsets,
    telling: list[tuple[int, int, tuple[Source, int]]],
    judged: frozenset[int],
    held: tuple[int, int],
    is_compacted: bool,
):
    groups, skipped = history
    known = {("in", 0): held, ("in", 1): (0, END + 3)}
    records = {(s, o) for s, o in records if known[s][0] <= o < known[s][1]}
    compacted = frozenset(SOURCES[1:]) if is_compacted else frozenset()
    named = [(count, group, *at) for count, group, at in telling if group < len(groups)]
    outcomes, foreign = counted(groups, skipped, cells, records, named, judged, known, compacted)

    read_by = {
        (source, o): number
        for number, group in enumerate(groups)
        for source, span in group.spans.items()
        for o in range(*span)
    }
    skips = {
        (source, o)
        for s in skipped
        for source, first, last in s.ranges
        for o in range(first, last + 1)
    }
    own = Counter(
        (count, source, o)
        for count, group, source, o in named
        if read_by.get((source, o)) == group
    )
    assert foreign == Counter(
        (group, s, o) for _, group, s, o in named if read_by.get((s, o)) != group
    )
    inputs = records & read_by.keys()
    assert sum(outcome.inputs for outcome in outcomes) == len(inputs)
    assert sum(outcome.skipped for outcome in outcomes) == len(records & skips)
    for count in (0, 1):
        unnamed = {at for at in inputs if not own[(count, *at)]}
        lost = {at for at in unnamed if read_by[at] in judged}
        assert sum(outcome.named[count] for outcome in outcomes) == len(inputs - unnamed)
        assert sum(outcome.never[count] for outcome in outcomes) == len(lost)
        assert sum(outcome.unjudged[count] for outcome in outcomes) == len(unnamed - lost)
        told = spread(
            [tuple(run[1:]) for outcome in outcomes for run in outcome.lost if run[0] == count]
        )
        assert told == Counter(lost)
        again = spread(
            [run[1:4] for outcome in outcomes for run in outcome.repeated if run[0] == count]
        )
        assert again == Counter((s, o) for c, s, o in own if c == count and own[c, s, o] > 1)
        assert sum(outcome.again[count] for outcome in outcomes) == len(again)
    some = {(s, o) for _, s, o in own}
    within = {(s, o) for s, o in read_by if known[s][0] <= o < known[s][1]}
    strangers = {at for at in some - records if at in within and at[0] not in compacted}
    assert spread([run for outcome in outcomes for run in outcome.strangers]) == Counter(strangers)
    unknown = {at for at in read_by if at[0] not in compacted and at not in within}
    unknown |= {at for at in read_by if at[0] in compacted and at not in records | some}
    assert spread([run for outcome in outcomes for run in outcome.unknown]) == Counter(unknown)


def test_names_that_come_again_are_pointed_at():
    groups = [BatchGroup(0, (0,), {("in", 0): (0, 10)})]
    (window,) = windows(groups, [], 100)
    tally = Tally(window, groups, 1)
    _, again = tally.add_names(0, 0, ("in", 0), np.array([1, 2, 2, 11]))
    assert again.tolist() == [False, True, True, False]
    outside, again = tally.add_names(0, 0, ("in", 0), np.array([12, 1]))
    assert (outside.tolist(), again.tolist()) == ([True, False], [False, True])
    for _ in range(300):  # a byte a cell, which does not come round to zero
        tally.add_names(0, 0, ("in", 0), np.array([5]))
    tally.add_records(("in", 0), np.arange(10))
    outcome = tally.summarize(frozenset([0]), {("in", 0): (0, 10)}, frozenset())
    assert [(first, last, most) for _, _, first, last, most in outcome.repeated] == [
        (1, 2, 2),
        (5, 5, 255),
    ]


def batch(sequence: int, *spans: tuple[Any, Any], **more: Any) -> LedgerBatch:
    told = {"batch_id": sequence, **more}
    return LedgerBatch(
        sequence,
        "q",
        told.pop("batch_id"),
        tuple(Span(*s) for s in spans),
        (),
        (1, sequence),
        "l",
        0,
        0,
        **told,
    )


def test_a_supplement_joins_its_batch():
    span = ({"in": {"0": 2}}, {"in": {"0": 5, "1": 3}})
    first, added, alone = (
        batch(4, span),
        batch(5, span, batch_id=4, supplement=True),
        batch(9, span, supplement=True),
    )
    (group,) = group_batches([first, added])
    assert (group.sequences, group.spans) == ((4, 5), {("in", 0): (2, 5), ("in", 1): (0, 3)})
    assert [g.supplements_alone for g in group_batches([alone])] == [True]
    assert group_batches([batch(0, ({"logOffset": 1}, {"logOffset": 2}))])[0].spans == {}


def test_a_partition_read_twice_is_refused():
    span = ({"in": {"0": 2}}, {"in": {"0": 5}})
    with pytest.raises(ValueError, match="in-0"):
        group_batches([batch(0, span, span)])


class Message:
    def __init__(
        self, value: bytes | None = None, headers: list[tuple[str, bytes | None]] | None = None
    ) -> None:
        self._value, self._headers = value, headers

    def value(self) -> bytes | None:
        return self._value

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        return self._headers


def headers(
    topic: bytes | None, partition: bytes | None, offset: bytes | None
) -> list[tuple[str, bytes | None]]:
    return [
        ("onceward.topic", topic),
        ("onceward.partition", partition),
        ("onceward.offset", offset),
    ]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (headers(b"in", b"3", b"17"), InputName("in", 3, 17)),
        ([*headers(b"before", b"0", b"1"), *headers(b"in", b"3", b"17")], InputName("in", 3, 17)),
        (headers(b"in", b"3", None), None),
        (headers(None, b"3", b"17"), None),
        (headers(b"in", b"3", b"-1"), None),
        (headers(b"in", b"3", b"9" * 19), None),
        (headers(b"in", "٣".encode(), b"17"), None),
        ([("trace", b"1")], None),
        (None, None),
    ],
)
def test_headers_name_an_input(given: Any, named: InputName | None):
    assert Lineage().read(Message(headers=given)) == named


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (b'{"t": "in", "meta": {"p": 3, "o": 17}}', InputName("in", 3, 17)),
        (b'{"t": "in", "meta.p": "3", "meta.o": "17"}', InputName("in", 3, 17)),
        (b'{"t": "in", "meta": {"p": 3, "o": 1.5}}', None),
        (b'{"t": "in", "meta": {"p": true, "o": 17}}', None),
        (b'{"t": 5, "meta": {"p": 3, "o": 17}}', None),
        (b'{"t": "in", "meta": [3, 17]}', None),
        (b"[]", None),
        (b"no json", None),
        (b"\xff", None),
        (None, None),
    ],
)
def test_json_fields_name_an_input(value: bytes | None, named: InputName | None):
    lineage = parse_lineage("json", "topic=t, partition=meta.p, offset=meta.o")
    assert lineage.read(Message(value)) == named


def test_the_topic_may_be_left_out():
    assert parse_lineage("json", "partition=p,offset=o").read(
        Message(b'{"p": 0, "o": 5}')
    ) == InputName(None, 0, 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "offset=o",
        "partition=p,offset=",
        "partition=p,offset=o,x=y",
        "partition=p,partition=q,offset=o",
    ],
)
def test_a_lineage_that_says_too_little(text: str):
    with raises(WrongUsage, "--lineage-headers") as refused:
        parse_lineage("headers", text)
    assert "topic=NAME,partition=NAME,offset=NAME" in refused.value.next_step


def test_what_lies_between_two_slices_is_counted_by_its_own_window():
    """A skipped batch between two that were read, where the window with these two has no room for
    it.
    """
    one, other = ("in", 0), ("in", 1)
    groups = [BatchGroup(1, (1,), {other: (0, 1)}), BatchGroup(3, (3,), {other: (2, 3)})]
    skipped = [Skipped("q", 0, 0, ((one, 0, 0),)), Skipped("q", 2, 2, ((other, 1, 1),))]
    known = {one: (0, 0), other: (0, 5)}
    outcomes, _ = counted(groups, skipped, 3, {(other, 1)}, [], frozenset(), known, frozenset())
    assert sum(outcome.skipped for outcome in outcomes) == 1
