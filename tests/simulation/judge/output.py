"""Every input record's effect, once, in order, in whole batches, and nothing else: the output
topics (I1 to I5, I7).

Compared with the source, which nobody in between has a say in; only up to where it must have come
is asked of the ledger, and of Spark's commit log. Each record batch must then be one that a ledger
record tells of: that is what makes a batch whole, and its manifest true.
"""

from __future__ import annotations

from collections.abc import Iterable
from marshal import loads
from typing import Any

from crc32c import crc32c

from simulation.judge import logs
from simulation.judge.chain import Chain, Record
from simulation.judge.facts import Facts
from simulation.judge.logs import Identity, Reading, Written, identity_text
from simulation.judge.verdict import Row, Violation, differences

Where = tuple[str, int]
Part = tuple[int, int, int, int]
"""Of one partition: how many records, the first offset, the last, CRC-32C of their bytes in that
order.
"""
_KIND = "kafka"
ANYWHERE = "*"
"""In the place of a branch: the row must be there once, in whichever topic."""


class _Told:
    """What a ledger record tells, and what was found of it."""

    __slots__ = ("ends", "found", "manifest", "record", "starts")

    def __init__(self, record: Record, starts: dict[int, int], ends: dict[int, int]) -> None:
        self.record = record
        self.starts = starts
        self.ends = ends
        self.manifest: dict[Where, Part] = {}
        for output in record.document["outputs"].values():
            if output["kind"] == _KIND:
                for topic, partitions in output["data"].items():
                    for partition, (count, first, last, checksum) in partitions.items():
                        self.manifest[topic, int(partition)] = (
                            count,
                            first,
                            last,
                            int(checksum[:8], 16),
                        )
        self.found: dict[Where, Part] = {}


def judge_output(
    facts: Facts,
    chain: Chain,
    partitions: Iterable[Where],
    source: str,
    expected: list[Row] | None = None,
) -> list[Violation]:
    """All output partitions against the source and the ledger.

    :param source: the name of the source's topic, in the ledger's offsets.
    :param expected: the rows that must be there; None: what ``world.expected`` says of each record
        up to the reach.
    """
    said: list[Violation] = []
    told = _told(chain, source)
    rows: list[Row] = []
    hidden: set[Identity] = set(chain.hidden)
    for where in partitions:
        reading = logs.read(facts.world.cluster, *where)
        said += reading.violations
        hidden.update(written.identity for written in reading.hidden)
        _partition(facts, where, reading, told, rows, said)
    for identity in sorted(hidden & told.keys()):
        sentence = (
            f"{told[identity].record.said} is committed, and some of what its identity "
            f"wrote is aborted"
        )
        said.append(Violation("I5", sentence))
    for each in told.values():
        _manifest(each, said)
    if expected is None:
        expected = _expected(facts, chain, source)
        if expected and expected[0][0] == ANYWHERE:
            rows = [(ANYWHERE, partition, offset) for _, partition, offset in rows]
    else:
        _all_told(facts, chain, source, said)
    if len(rows) != len(expected) or set(rows) != set(expected):
        said += differences(expected, rows)
    return said


def _told(chain: Chain, source: str) -> dict[Identity, _Told]:
    told: dict[Identity, _Told] = {}
    ended, ends = None, {}
    for record in chain.records:
        begins = record.starts[0]
        starts = ends if begins == ended else _by_partition(begins, source)
        ended = record.ends[0]
        ends = _by_partition(ended, source)
        told[record.identity] = _Told(record, starts, ends)
    return told


def _partition(
    facts: Facts,
    where: Where,
    reading: Reading,
    told: dict[Identity, _Told],
    rows: list[Row],
    said: list[Violation],
) -> None:
    """One output partition, in the order of its log."""
    in_order, names_records = not facts.world.plan.shuffle, not facts.world.plan.stateful
    branch = where[0]
    newest: dict[int, int] = {}
    before: _Told | None = None
    for written in reading.visible:
        batch_id, _, part = loads(written.body)  # noqa: S302 — what the simulation itself has written
        each = told.get(written.identity)
        if each is None:
            _unaccounted(reading.where, written, batch_id, said)
            rows += part
            continue
        if each is not before:
            if before is not None and each.record.sequence < before.record.sequence:
                sentence = (
                    f"{reading.where}@{written.base} of {each.record.said} comes after "
                    f"{before.record.said}"
                )
                said.append(Violation("I3", sentence))
            if where in each.found:
                sentence = (
                    f"{reading.where}@{written.base}: other batches lie within {each.record.said}"
                )
                said.append(Violation("I4", sentence))
            before = each
        _found(each, where, reading.where, written, said)
        if batch_id != each.record.batch_id:
            sentence = (
                f"{reading.where}@{written.base} has rows of batch {batch_id} within "
                f"{each.record.said}"
            )
            said.append(Violation("I4", sentence))
        starts, ends = each.starts, each.ends
        for row in part:
            found_branch, partition, offset = row
            if found_branch != branch:
                said.append(
                    Violation("I2", f"{reading.where}@{written.base} has a row of {found_branch}")
                )
            if names_records and not starts.get(partition, 0) <= offset < ends.get(partition, 0):
                sentence = (
                    f"{reading.where}@{written.base} has source-{partition}@{offset}, not "
                    f"of {each.record.said}"
                )
                said.append(Violation("I4", sentence))
            if in_order:
                if offset <= newest.get(partition, -1):
                    sentence = (
                        f"{reading.where}@{written.base}: source-{partition}@{offset} comes after "
                        f"source-{partition}@{newest[partition]}"
                    )
                    said.append(Violation("I3", sentence))
                newest[partition] = offset
        rows += part


def _unaccounted(where: str, written: Written, batch_id: int, said: list[Violation]) -> None:
    """Visible, and no ledger record tells of it: somebody's who may not write any more, or a half
    of a batch.
    """
    sentence = (
        f"{where}@{written.base} of batch {batch_id} by {identity_text(written.identity)} "
        f"is visible, and no "
    )
    said.append(Violation("I7", f"{sentence}ledger record tells of that identity"))


def _found(each: _Told, where: Where, name: str, written: Written, said: list[Violation]) -> None:
    """Sequences are one chain from 0 within a transaction, offsets one run without gap: a marker
    takes one (KIP-98).
    """
    count = written.last - written.base + 1
    known = each.found.get(where)
    if known is None:
        expected, first, crc = 0, written.base, 0
    else:
        expected, first, _, crc = known
        if written.base != known[2] + 1:
            sentence = (
                f"{name}@{written.base} of {each.record.said} does not lie beside its "
                f"records before"
            )
            said.append(Violation("I4", sentence))
    if written.sequence != expected & 0x7FFFFFFF:
        sentence = (
            f"{name}@{written.base} has sequence {written.sequence}, {expected} would be next"
        )
        said.append(Violation("I4", f"{sentence} in {each.record.said}"))
    each.found[where] = (expected + count, first, written.last, crc32c(written.body, crc))


def _manifest(each: _Told, said: list[Violation]) -> None:
    record = each.record
    if each.found != each.manifest:
        places = sorted(each.found.keys() | each.manifest.keys())
        for topic, partition in places:
            found, manifest = (
                each.found.get((topic, partition)),
                each.manifest.get((topic, partition)),
            )
            if found != manifest:
                sentence = (
                    f"{record.said} tells of {_part_text(manifest)} in {topic}-{partition}, "
                    f"visible are "
                    f"{_part_text(found)}"
                )
                said.append(Violation("I4", sentence))
    total = sum(part[0] for part in each.manifest.values())
    document = record.document
    writes = document.get("writes")
    if document["records"] != total:
        said.append(
            Violation(
                "I4",
                f"{record.said} tells of {document['records']} records, its manifest of {total}",
            )
        )
    if writes is not None and not record.supplement and sum(count for _, count in writes) != total:
        sentence = (
            f"{record.said}: {sum(count for _, count in writes)} records were handed over, "
            f"its manifest has {total}"
        )
        said.append(Violation("I4", sentence))


def _part_text(part: Part | None) -> str:
    if part is None:
        return "no records"
    return f"{part[0]} records at {part[1]} to {part[2]} with checksum {part[3]:08x}"


def _expected(facts: Facts, chain: Chain, source: str) -> list[Row]:
    """What must be visible: of the newest batch perhaps some branches only, where its function was
    stopped by name.
    """
    world = facts.world
    branches_of = world.expected
    reach = facts.reach(chain.ends(), source)
    missing = not_handed_over(facts, chain)
    rows: list[Row] = []
    starts = _by_partition(chain.records[-1].starts[0], source) if missing else {}
    for partition, end in enumerate(reach):
        some_from = starts.get(partition, end)
        for offset in range(end):
            branches = branches_of(partition, offset)
            rows += [
                (one, partition, offset)
                for one in branches
                if offset < some_from or one not in missing
            ]
    return rows


def _all_told(facts: Facts, chain: Chain, source: str, said: list[Violation]) -> None:
    """Rows that no longer name single records: then the ledger must reach as far as Spark has
    come.
    """
    ends = chain.ends()
    for partition, reached in enumerate(facts.reach(ends, source)):
        end = ends.get((source, str(partition)), 0)
        if any(facts.world.plan_branches(partition, offset) for offset in range(end, reached)):
            said.append(
                Violation(
                    "I1",
                    f"source-{partition} was read up to {reached}, and the ledger ends at {end}",
                )
            )


def not_handed_over(facts: Facts, chain: Chain) -> frozenset[str]:
    """Topics of which the newest batch has no frame, because the query has ended before the
    function came to them.

    A function that calls the sink once for each topic commits the first call, and is refused by
    name in the second; one that keeps this to itself is refused the next batch, and the last one
    has none.
    """
    kept_back = facts.user_is("shrugs") and facts.swallowed
    if (facts.caught_up and not kept_back) or not (
        kept_back or facts.user_is("twice", "two sinks", "unites")
    ):
        return frozenset()
    if not chain.records:
        return frozenset()
    writes = chain.records[-1].document.get("writes")
    if writes is None or any(topic is None for topic, _ in writes):
        return frozenset()
    topics = facts.world.pipeline.topics(facts.setting)
    return frozenset(topics) - {topic for topic, _ in writes}


def range_of(record: Record, source: str) -> tuple[dict[int, int], dict[int, int]]:
    """Where the record's batch begins and ends, by source partition."""
    return _by_partition(record.starts[0], source), _by_partition(record.ends[0], source)


def _by_partition(offsets: Any, source: str) -> dict[int, int]:
    return {
        int(partition): offset for partition, offset in (offsets or {}).get(source, {}).items()
    }
