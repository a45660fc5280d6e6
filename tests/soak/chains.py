"""Do the ledgers tell one story each, and is it what the brokers' logs show? Batch by batch.
Called by ``verdict``.
"""

from __future__ import annotations

import json

from onceward_testing.topic_reader import read_topic

from .findings import Findings, Ledger, Visible
from .log_dump import LoggedTransaction
from .workload import LEDGER, OUTPUT_OF, SOURCE, SOURCE_PARTITIONS


def ledger_of(servers: str, pipeline: str) -> Ledger:
    records = [record for record in read_topic(servers, LEDGER) if record.key == pipeline.encode()]
    return [json.loads(record.value or b"") for record in records]


def check_chain(found: Findings, pipeline: str, ledger: Ledger, ends: list[int]) -> None:
    """I6: without gap, fork or step back, from the beginning of the source to its end."""
    if [record["sequence"] for record in ledger] != list(range(len(ledger))):
        found.violated("I6", f"{pipeline}: the sequence numbers are not 0 to {len(ledger) - 1}")
    reached = [0] * SOURCE_PARTITIONS
    for record in ledger:
        (span,) = record["sources"]
        start, end = (
            [span[side][SOURCE][str(p)] for p in range(SOURCE_PARTITIONS)]
            for side in ("start", "end")
        )
        if start != reached or any(map(int.__lt__, end, start)):
            found.violated(
                "I6", f"{pipeline} {record['sequence']}: from {start} to {end} after {reached}"
            )
        reached = end
    if reached != ends:
        found.violated("I6", f"{pipeline}: the ledger ends at {reached}, the source at {ends}")
    if len({tuple(record["attempt"]) for record in ledger}) != len(ledger):
        found.violated("I7", f"{pipeline}: two batches share an epoch")


def check_batches(
    found: Findings,
    pipeline: str,
    ledger: Ledger,
    logged: list[LoggedTransaction],
    visible: Visible,
) -> list[LoggedTransaction]:
    """I4, I5, I7: what is visible in the logs is what the ledger tells, batch by batch, epoch by
    epoch.

    :returns: what is not visible, because it was aborted.
    """
    topic = OUTPUT_OF[pipeline]
    told = {
        (tuple(record["attempt"]), int(partition)): (count, first, last)
        for record in ledger
        for partition, (count, first, last, _) in record["outputs"]["kafka"]["data"]
        .get(topic, {})
        .items()
    }
    there, unseen = {}, []
    for part in logged:
        shown = int(visible[part.partition][part.first_offset : part.last_offset + 1].sum())
        if not part.ended:
            found.violated("I8", f"{topic}: open in the log: {part}")
        elif shown == 0:
            unseen.append(part)
        elif shown != part.count:
            found.violated("I4", f"{topic}: {shown} records visible of {part}")
        elif (part.identity, part.partition) in there:
            found.violated("I7", f"{topic}-{part.partition}: {part.identity} committed twice")
        else:
            there[part.identity, part.partition] = (
                part.count,
                part.first_offset,
                part.last_offset,
            )
    for where in told.keys() | there.keys():
        if told.get(where) != there.get(where):
            found.violated(
                "I4", f"{topic} {where}: ledger {told.get(where)}, log {there.get(where)}"
            )
    if (records := sum(count for count, _, _ in there.values())) != (
        seen := sum(int(v.sum()) for v in visible.values())
    ):
        found.violated(
            "I5", f"{topic}: {seen} records visible, {records} in committed transactions"
        )
    if shared := {part.identity for part in unseen} & {identity for identity, _ in told}:
        found.violated(
            "I7", f"{topic}: epochs both aborted and committed: {sorted(shared)[:10]}", len(shared)
        )
    return unseen
