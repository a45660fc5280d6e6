"""The checker's arithmetic: its checksum against the writer's, its sets of offsets and its tallies
against sets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from onceward_verify.ledger import OutputPart
from onceward_verify.partition_log import Offsets, PartitionLog, RunningChecksum, varint
from support.plain_checksum import checksum_of

BYTES = st.none() | st.binary(max_size=40)
HEADERS = st.none() | st.lists(st.tuples(st.text(max_size=5), BYTES), max_size=3)
RECORDS = st.lists(st.tuples(BYTES, BYTES, HEADERS), max_size=30)


@dataclass
class Message:
    """What librdkafka hands out."""

    number: int

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"%d" % self.number

    def headers(self) -> None:
        return None


@given(RECORDS, st.data())
def test_the_checksum_is_the_writers_however_the_records_come_in(records, data):
    running = RunningChecksum()
    rest = records
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        running.feed(*map(list, zip(*rest[:size], strict=True)))
        rest = rest[size:]
    assert running.hexdigest() == checksum_of(records).hexdigest()
    assert running.count == len(records)


@given(st.integers(-(2**31), 2**31 - 1))
def test_a_varint_reads_back(number: int):
    zigzag = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(varint(number)))
    assert (zigzag >> 1) ^ -(zigzag & 1) == number


@given(
    st.lists(st.sets(st.integers(0, 200), max_size=30), max_size=4),
    st.integers(0, 210),
    st.integers(0, 60),
)
def test_offsets_are_a_set(chunks: list[set[int]], first: int, length: int):
    offsets, plain = Offsets(), set()
    for index, chunk in enumerate(chunks):
        shifted = sorted(offset + 201 * index for offset in chunk)
        offsets.add(np.array(shifted, np.int64))
        plain |= set(shifted)
    last = first + length
    wanted = set(range(first, last + 1))
    assert offsets.count == len(plain)
    assert flat(offsets.intervals) == plain
    assert flat(offsets.within(first, last)) == plain & wanted
    assert flat(offsets.missing(first, last)) == wanted - plain
    assert offsets.count_within(first, last) == len(plain & wanted)
    assert (first in offsets) == (first in plain)
    around = offsets.around(first)
    assert (around is not None) == (first in plain)
    if around:
        assert {around[0] - 1, around[1] + 1}.isdisjoint(plain)
        assert set(range(around[0], around[1] + 1)) <= plain


@given(
    st.sets(st.integers(0, 60), max_size=40),
    st.lists(st.integers(1, 8), max_size=8),
    st.integers(1, 7),
)
def test_every_record_is_tallied_for_the_batch_it_lies_in_or_accounted_for_nowhere(
    visible: set[int], lengths: list[int], chunk: int
):
    parts, position = [], 3
    for sequence, length in enumerate(lengths):
        parts.append(OutputPart(sequence, "out", 0, length, position, position + length - 1, ""))
        position += length + sequence % 3
    log = PartitionLog(parts, accounted_from=2, accounted_to=50)
    ordered = sorted(visible)
    for start in range(0, len(ordered), chunk):
        some = ordered[start : start + chunk]
        log.feed([Message(offset) for offset in some], np.array(some, np.int64))
    owned = set()
    for part, tally in zip(parts, log.tallies, strict=True):
        mine = [offset for offset in ordered if part.first <= offset <= part.last]
        owned |= set(mine)
        assert tally.count == len(mine)
        assert (
            tally.hexdigest() == checksum_of([(b"k", b"%d" % o, None) for o in mine]).hexdigest()
        )
    assert flat(log.unaccounted.intervals) == {
        offset for offset in visible - owned if 2 <= offset < 50
    }
    assert flat(log.visible.intervals) == visible
    for offset in ordered:
        part = log.part_at(offset)
        assert (part is not None) == (offset in owned)
        assert part is None or part.first <= offset <= part.last


def flat(intervals) -> set[int]:
    return {offset for first, last in intervals for offset in range(first, last + 1)}
