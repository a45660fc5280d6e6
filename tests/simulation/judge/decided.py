"""What a ledger has decided, wherever it is kept; and what must have come of it in a target that
tasks prepare for.

Of a ledger in a folder: one file an entry, by numbers, JSON; an entry with ``takeover`` tells of
no batch, and of an entry below the highest ``floor-<number>`` nothing counts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from typing import Any

from simulation.judge.chain import Chain, Record, judge_records, read_chain
from simulation.judge.facts import Facts
from simulation.judge.output import range_of
from simulation.judge.verdict import Row, Violation, differences

_SOURCE = "source"
_SUFFIX, _FLOOR = ".json", "floor-"
_LASTING = ("target:down", "fs:no space")  # they go on when they have happened


def read_folder(tree: Any, folder: str, pipeline: str) -> Chain:
    """The chain of ``pipeline`` in a folder of that disk."""
    chain = Chain()
    there = tree.at(f"{folder}/{pipeline}")
    entries = {} if there is None else there.entries
    floor = max(
        (int(name.removeprefix(_FLOOR)) for name in entries if name.startswith(_FLOOR)), default=0
    )
    numbers = [int(name.removesuffix(_SUFFIX)) for name in entries if name.endswith(_SUFFIX)]
    for number in sorted(number for number in numbers if number >= floor):
        name = f"{number:020}{_SUFFIX}"
        document = _document(entries[name].data)
        if "takeover" not in document:
            # Its place is who wrote it: no two entries have the same, and they rise.
            chain.written.append(Record(name, (number, 0), -1, document))
    judge_records(chain, compacted=floor > 0)
    return chain


@functools.lru_cache(maxsize=1_000)
def _document(data: bytes) -> dict[str, Any]:
    """Of a story that is over each entry is read by several who judge; nobody changes it."""
    document: dict[str, Any] = json.loads(data)
    return document


def read_ledger(world: Any, kept_in: str, place: str, pipeline: str) -> Chain:
    """:param kept_in: ``"folder"`` or ``"kafka"``; :param place: the folder, or the topic."""
    if kept_in == "folder":
        return read_folder(world.files.disk, place, pipeline)
    partitions = sorted(number for topic, number in world.cluster.partitions if topic == place)
    return read_chain(world.cluster, place, partitions, pipeline)


def judge_rows(
    facts: Facts, chain: Chain, found: Iterable[Row], where: str = ""
) -> list[Violation]:
    """All of what is decided is there, once, and nothing else. Of a batch that is decided and not
    finished, when a story ended before it was, any part may be there.
    """
    newest = chain.records[-1] if chain.records else None
    open_end = newest is not None and not facts.caught_up and newest.document["state"] == "decided"
    starts, ends = range_of(newest, _SOURCE) if newest is not None and open_end else ({}, {})
    expected = []
    rows = list(found)
    for partition, end in enumerate(facts.reach(chain.ends(), _SOURCE)):
        for offset in range(end):
            for branch in facts.world.expected(partition, offset):
                row = (branch, partition, offset)
                undecided = open_end and starts.get(partition, 0) <= offset < ends.get(
                    partition, 0
                )
                if not undecided or row in rows:
                    expected.append(row)
    return differences(expected, rows, where)


def judge_end_of_ledger(facts: Facts, chain: Chain) -> list[Violation]:
    """I8: who has caught up has told the ledger so, and everything is published."""
    if not facts.caught_up:
        return []
    ends, source = chain.ends(), facts.world.source
    said = [
        Violation("I8", f"the ledger ends at {ends.get((_SOURCE, str(partition)), 0)} of "
                        f"{_SOURCE}-{partition}, which "
                  f"has {source.produced(partition)} records")
        for partition in range(source.partitions)
        if ends.get((_SOURCE, str(partition)), 0) != source.produced(partition)
    ]  # fmt: skip
    if chain.records and chain.records[-1].document["state"] != "finished":
        said.append(Violation("I8", f"{chain.records[-1].said} was never finished"))
    return said


def judge_leftovers(
    facts: Facts, chain: Chain, prepared: Iterable[tuple[str, float]], where: str, promise: str
) -> list[Violation]:
    """Whatever was prepared before a start that was not disturbed and has decided a batch is
    published or dropped.

    Not until it had opened: what another copy prepares between its two looks, it leaves alone.

    :param prepared: what is still there, and since when (seconds).
    :param promise: the id under which the target promises it: I10, I15 or I17.
    """
    if not chain.records or facts.any_of(*_LASTING):
        return []
    run, faults = chain.records[-1].run_id, len(facts.world.lots.fired)
    undisturbed = facts.world.faults_before
    began = max((start.when for start in facts.world.starts
                  if start.query.run_id == run and undisturbed.get(start.process) == faults),
                  default=-1.0)  # fmt: skip
    left = sorted(name for name, since in prepared if since < began)
    return (
        [Violation(promise, f"left over in {where} by earlier starts: {', '.join(left[:4])}")]
        if left
        else []
    )
