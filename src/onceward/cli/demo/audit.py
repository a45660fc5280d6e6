"""What the demo finds after the run, read from the broker by clients that are not ours, and judged.

Gathering (:func:`gather`) and judging (:func:`violations`) are apart: the judgement is a pure function of the facts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.cli.demo.settings import OUTPUT_TOPIC, PIPELINE_ID
from onceward.ledger.record import LedgerRecord, decode
from onceward.ledger.topic import DEFAULT_TOPIC
from onceward.testing.local_kafka import LocalKafka
from onceward.testing.topic_reader import ReadRecord, end_offsets, read_topic
from onceward.testing.transaction_runs import TransactionRun, transaction_runs
from onceward.testing.verdict import Verdict, exactly_once


@dataclass(frozen=True)
class Readings:
    """All of one topic, as the two kinds of reader are given it."""

    committed: Sequence[ReadRecord]
    uncommitted: Sequence[ReadRecord]

    @property
    def partitions(self) -> list[int]:
        """Partitions with at least one record, committed or not."""
        return sorted({record.partition for record in self.uncommitted})

    def runs(self, partition: int) -> list[TransactionRun]:
        """The transactions of ``partition``. :raises ValueError: the two readings contradict each other."""
        return transaction_runs(_offsets(self.uncommitted, partition), _offsets(self.committed, partition))


@dataclass(frozen=True)
class OutputFacts:
    """The output topic: what a ``read_committed`` reader sees against the model, and what it is not shown."""

    verdict: Verdict[str]
    readings: Readings
    open_partitions: Sequence[int]  # partitions whose last stable offset is below the high watermark

    @property
    def aborted_records_hidden(self) -> int:
        """Records of aborted attempts: on the broker, and never shown."""
        return len(self.readings.uncommitted) - len(self.readings.committed)


@dataclass(frozen=True)
class TransactionFacts:
    """The pipeline's transactions, seen from its ledger records, the offsets of its ledger partition and of the
    output, and Kafka's own tools."""

    ledger: Sequence[LedgerRecord]
    ledger_readings: Readings
    output: Readings
    group_lag: int | None
    transactional_ids: Sequence[str]

    @property
    def commits(self) -> int:
        """Committed transactions, counted by commit markers behind ledger records."""
        readings = self.ledger_readings
        return sum(run.committed for partition in readings.partitions for run in readings.runs(partition))


def gather_output(kafka: LocalKafka, expected: set[str]) -> OutputFacts:
    """Read the output topic twice, committed and uncommitted."""
    servers = kafka.bootstrap_servers
    stable = end_offsets(servers, OUTPUT_TOPIC, "read_committed")
    high = end_offsets(servers, OUTPUT_TOPIC, "read_uncommitted")
    readings = _read_both(servers, OUTPUT_TOPIC)
    return OutputFacts(
        verdict=exactly_once(expected, [(record.key or b"").decode() for record in readings.committed]),
        readings=readings,
        open_partitions=[partition for partition in high if stable[partition] != high[partition]],
    )


def gather_transactions(kafka: LocalKafka, output: OutputFacts) -> TransactionFacts:
    """Read the ledger, and ask Kafka's tools for the group and the transactional ids."""
    readings = _read_both(kafka.bootstrap_servers, DEFAULT_TOPIC)
    records = [record for record in readings.committed if record.key == PIPELINE_ID.encode()]
    return TransactionFacts(
        ledger=[decode(record.value or b"", where=f"{DEFAULT_TOPIC}-{record.partition}") for record in records],
        ledger_readings=readings,
        output=output.readings,
        group_lag=group_lag(kafka.kafka_tool("kafka-consumer-groups", "--describe", "--group", PIPELINE_ID)),
        transactional_ids=transactional_ids(kafka.kafka_tool("kafka-transactions", "list")),
    )


def output_violations(facts: OutputFacts) -> list[str]:
    """What is wrong with the output; empty when every number is there exactly once."""
    found = [] if facts.verdict.holds else [str(facts.verdict)]
    if facts.open_partitions:
        found.append(f"a transaction is still open in output partitions {list(facts.open_partitions)}")
    return found


def transaction_violations(facts: TransactionFacts) -> list[str]:
    """What is wrong with the pipeline's transactions: each batch must be one, and the ledger must tell of all."""
    found = _chain_violations(facts.ledger)
    try:
        if facts.commits != len(facts.ledger):
            found.append(f"{facts.commits} committed transactions, {len(facts.ledger)} ledger records")
        for partition in facts.output.partitions:
            found += _partition_violations(facts, partition)
    except ValueError as torn:
        found.append(f"a transaction is visible in part: {torn}")
    if facts.group_lag != 0:
        found.append(f"group {PIPELINE_ID} has lag {facts.group_lag}")
    if list(facts.transactional_ids) != [PIPELINE_ID]:
        found.append(f"transactional ids {list(facts.transactional_ids)} instead of [{PIPELINE_ID!r}]")
    return found


def _partition_violations(facts: TransactionFacts, partition: int) -> list[str]:
    """One commit marker per batch that the partition took part in, behind exactly the records the ledger names."""
    runs = facts.output.runs(partition)
    seen = [(run.count, run.first_offset, run.last_offset) for run in runs if run.committed]
    told = _told_by_ledger(facts.ledger, partition)
    if seen == told:
        return []
    return [f"output partition {partition}: {len(seen)} commit markers for {len(told)} batches, or other offsets"]


def group_lag(described: str) -> int | None:
    """The lag summed over partitions, from what ``kafka-consumer-groups --describe`` prints; None if it is unknown."""
    rows = [line.split() for line in described.splitlines() if line.strip()]
    heads = [index for index, row in enumerate(rows) if "LAG" in row]
    if not heads:
        return None
    column = rows[heads[0]].index("LAG")
    lags = [row[column] for row in rows[heads[0] + 1 :]]
    return sum(map(int, lags)) if lags and all(lag.isdecimal() for lag in lags) else None


def transactional_ids(listed: str) -> list[str]:
    """The ids in what ``kafka-transactions list`` prints."""
    rows = [line.split() for line in listed.splitlines() if line.strip()]
    heads = [index for index, row in enumerate(rows) if row[0] == "TransactionalId"]
    return [row[0] for row in rows[heads[0] + 1 :]] if heads else []


def _read_both(servers: str, topic: str) -> Readings:
    return Readings(read_topic(servers, topic, "read_committed"), read_topic(servers, topic, "read_uncommitted"))


def _offsets(records: Sequence[ReadRecord], partition: int) -> list[int]:
    return [record.offset for record in records if record.partition == partition]


def _told_by_ledger(ledger: Sequence[LedgerRecord], partition: int) -> list[tuple[int, int, int]]:
    return [
        (part.count, part.first_offset, part.last_offset)
        for record in ledger
        for where, part in record.manifest.items()
        if (where.topic, where.partition) == (OUTPUT_TOPIC, partition)
    ]


def _chain_violations(ledger: Sequence[LedgerRecord]) -> list[str]:
    found = []
    if [record.sequence for record in ledger] != list(range(len(ledger))):
        found.append(f"ledger sequence numbers are {[record.sequence for record in ledger]}")
    for before, after in itertools.pairwise(ledger):
        for left, right in zip(before.sources, after.sources, strict=True):
            if left.end != right.start:
                found.append(f"ledger record {after.sequence} does not begin where {before.sequence} ends")
    return found
