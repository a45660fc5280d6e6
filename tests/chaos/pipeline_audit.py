"""The verdict on a pipeline's run, by clients that share no code with what is judged (librdkafka, Kafka's own tools).

Reads everything there is: source, output and ledger, as ``read_committed`` and as ``read_uncommitted`` readers are
given them; then asserts what was promised. Ledger records are plain JSON here, not decoded by our own reader.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline_models import Row, expected
from pipeline_runs import Pipeline

from onceward.records.checksum import ContentChecksum
from onceward.testing.topic_reader import ReadRecord, end_offsets, read_topic
from onceward.testing.transaction_runs import TransactionRun, transaction_runs
from onceward.testing.verdict import exactly_once

LEDGER = "onceward-ledger"


@dataclass
class Audit:
    """All that was found; ``aborted`` are the output records of aborted attempts, which no reader is to see."""

    ledger: list[dict[str, Any]]
    source: list[ReadRecord]
    committed: list[ReadRecord] = field(default_factory=list)
    runs: dict[tuple[str, int], list[TransactionRun]] = field(default_factory=dict)

    @property
    def batches(self) -> int:
        return len(self.ledger)

    @property
    def aborted_records(self) -> int:
        return sum(run.count for runs in self.runs.values() for run in runs if not run.committed)

    @property
    def identities(self) -> list[tuple[int, int]]:
        """Producer id and epoch of each committed batch."""
        return [(record["producer_id"], record["producer_epoch"]) for record in self.ledger]


def audit(pipeline: Pipeline) -> Audit:
    """Everything that is promised of a run that has come to its end: I1 to I6 and I8.

    :returns: the facts, for what a test has to say beside.
    """
    servers = pipeline.kafka.bootstrap_servers
    _nothing_is_open(servers, *pipeline.outputs, LEDGER)  # I8
    source = read_topic(servers, pipeline.source)
    ledger = _ledger(servers, pipeline.pipeline_id)
    _one_chain(ledger)  # I6
    _ends_where_the_source_ends(ledger, end_offsets(servers, pipeline.source, "read_uncommitted"), pipeline.source)
    assert pipeline.lag() == 0  # I8

    found = Audit(ledger, source)
    model = expected(pipeline.settings.query, source, ledger, pipeline.source, pipeline.outputs)
    for topic in pipeline.outputs:
        committed = read_topic(servers, topic)
        uncommitted = read_topic(servers, topic, "read_uncommitted")
        verdict = exactly_once(model[topic], _rows(committed))
        assert verdict.holds, f"{topic}: {verdict}"  # I1, I2
        if pipeline.settings.query in ("copy", "fanout"):
            _order_is_kept(committed)  # I3
        runs = {
            partition: transaction_runs(_offsets(uncommitted, partition), _offsets(committed, partition))
            for partition in sorted({record.partition for record in uncommitted})
        }  # I4: raises when a part of a transaction is visible
        _each_batch_is_one_transaction(topic, ledger, committed, runs)  # I4, I5
        found.committed += committed
        found.runs |= {(topic, partition): parts for partition, parts in runs.items()}
    return found


def audit_epochs(pipeline: Pipeline, found: Audit) -> None:
    """Whose is what is visible? As ``kafka-dump-log`` reads it off the disk of a single node: I7.

    Every visible record batch carries the producer id and epoch of the ledger record that tells of it, and no record
    batch of an aborted attempt shares an identity with a committed one.
    """
    (node,) = pipeline.kafka.nodes
    logs = [str(log) for topic in pipeline.outputs for log in node.data_folder.glob(f"{topic}-*/*.log")]
    dumped = pipeline.kafka.kafka_tool("kafka-dump-log", "--files", ",".join(logs))
    committed_by = {
        (f"{topic}-{partition}", offset): (record["producer_id"], record["producer_epoch"])
        for record in found.ledger
        for topic, partitions in record["manifest"].items()
        for partition, (_, first, last, _) in partitions.items()
        for offset in range(first, last + 1)
    }
    aborted_by = set()
    batches = list(_dumped_batches(dumped))
    assert sum(batch["count"] for _, batch in batches) == len(found.committed) + found.aborted_records
    for partition, batch in batches:
        identity = (batch["producerId"], batch["producerEpoch"])
        owners = {committed_by.get((partition, o)) for o in range(batch["baseOffset"], batch["lastOffset"] + 1)}
        assert owners in ({None}, {identity}), f"{partition}: {batch} is told of as {owners}"
        if owners == {None}:
            aborted_by.add(identity)
    assert aborted_by.isdisjoint(found.identities)


def _dumped_batches(dumped: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Topic partition and fields of each data batch in what ``kafka-dump-log`` prints."""
    partition = ""
    for line in dumped.splitlines():
        if line.startswith("Dumping "):
            partition = line.split("/")[-2]
        elif line.startswith("baseOffset:") and "isControl: false" in line:
            fields = dict(re.findall(r"(\w+): (-?\d+)", line))
            yield partition, {name: int(value) for name, value in fields.items()}


def output_rows(pipeline: Pipeline) -> list[Row]:
    """What is visible now, in all outputs."""
    servers = pipeline.kafka.bootstrap_servers
    return [row for topic in pipeline.outputs for row in _rows(read_topic(servers, topic))]


# ── what must hold ──


def _one_chain(ledger: Sequence[dict[str, Any]]) -> None:
    assert [record["sequence"] for record in ledger] == list(range(len(ledger)))
    for before, after in itertools.pairwise(ledger):
        ends = [source["end"] for source in before["sources"]]
        assert [source["start"] for source in after["sources"]] == ends, f"a gap before sequence {after['sequence']}"
    for record in ledger:
        for source in record["sources"]:
            for topic, partitions in source["end"].items():
                back = {p: o for p, o in partitions.items() if o < source["start"][topic].get(p, 0)}
                assert not back, f"sequence {record['sequence']} goes back: {source}"
    assert len({(r["producer_id"], r["producer_epoch"]) for r in ledger}) == len(ledger), "two batches share an epoch"


def _ends_where_the_source_ends(ledger: Sequence[dict[str, Any]], ends: dict[int, int], topic: str) -> None:
    (source,) = ledger[-1]["sources"]
    assert {int(partition): offset for partition, offset in source["end"][topic].items()} == ends


def _nothing_is_open(servers: str, *topics: str) -> None:
    for topic in topics:
        assert end_offsets(servers, topic, "read_committed") == end_offsets(servers, topic, "read_uncommitted"), (
            f"a transaction is still open in {topic}"
        )


def _order_is_kept(committed: Sequence[ReadRecord]) -> None:
    reached: dict[tuple[int, int], int] = {}
    for record in committed:  # by output partition and offset
        source, offset = map(int, (record.value or b"").split(b":", 2)[:2])
        assert offset > reached.get((source, record.partition), -1), f"out of order: {record}"
        reached[source, record.partition] = offset


def _each_batch_is_one_transaction(
    topic: str,
    ledger: Sequence[dict[str, Any]],
    committed: Sequence[ReadRecord],
    runs: dict[int, list[TransactionRun]],
) -> None:
    """The manifests, recomputed from the log: every committed run is what one ledger record says, content included."""
    told = {
        (int(partition), first, last): (count, checksum)
        for record in ledger
        for partition, (count, first, last, checksum) in record["manifest"].get(topic, {}).items()
    }
    seen = {}
    for partition, parts in runs.items():
        visible = [record for record in committed if record.partition == partition]
        for run in parts:
            if run.committed:
                rows = [(r.key, r.value, None) for r in visible if run.first_offset <= r.offset <= run.last_offset]
                checksum = ContentChecksum.of_records(rows).hexdigest()
                seen[partition, run.first_offset, run.last_offset] = (run.count, checksum)
    assert seen == told


def _ledger(servers: str, pipeline_id: str) -> list[dict[str, Any]]:
    records = [record for record in read_topic(servers, LEDGER) if record.key == pipeline_id.encode()]
    return [json.loads(record.value or b"") for record in records]


def _rows(records: Sequence[ReadRecord]) -> list[Row]:
    return [(record.key, record.value) for record in records]


def _offsets(records: Sequence[ReadRecord], partition: int) -> list[int]:
    return [record.offset for record in records if record.partition == partition]
