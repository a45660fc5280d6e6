"""What became of everything that went in: safety and liveness, each by itself.

Read with librdkafka and Kafka's own tools; the client that is judged is not used. Memory and time grow with a few
bytes and a microsecond or two per record, so that a day's soak can be judged as well.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned
from confluent_kafka.admin import AdminClient

from onceward.testing import LocalKafka
from onceward.testing.topic_reader import end_offsets, read_topic, reader_settings

from .log_dump import LoggedTransaction, logged_transactions
from .workload import (
    COPIES,
    COPY_PIPELINE,
    COUNT_PIPELINE,
    COUNTS,
    KEYS,
    LEDGER,
    OUTPUT_OF,
    PIPELINES,
    SOURCE,
    SOURCE_PARTITIONS,
    key_index,
    key_of,
    number_in,
    value_of,
)

_SHOWN = 20
_SILENCE_SECONDS = 60.0
_STILL_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")

Ledger = list[dict[str, Any]]
Visible = dict[int, np.ndarray]
"""By partition: which offsets a reader of committed records was given."""


@dataclass
class Findings:
    """Violations, at most a few of each kind in words and all of them in number; and the facts beside."""

    violations: list[str] = field(default_factory=list)
    how_many: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)

    def violated(self, promise: str, what: str, times: int = 1) -> None:
        if self.how_many[promise] < _SHOWN:
            self.violations.append(f"{promise}: {what}")
        self.how_many[promise] += times

    @property
    def holds(self) -> bool:
        return not self.violations


def safety(kafka: LocalKafka, account: Path) -> Findings:
    """I1 to I7 and I9, over everything that was written since the soak began."""
    found = Findings()
    servers = kafka.bootstrap_servers
    numbers = _source(found, servers, account)
    ledgers = {pipeline: _ledger(servers, pipeline) for pipeline in PIPELINES}
    for pipeline, ledger in ledgers.items():
        _one_chain(found, pipeline, ledger, [len(part) for part in numbers])
    visible = {
        COPY_PIPELINE: _copies(found, servers, numbers),
        COUNT_PIPELINE: _counts(found, servers, numbers, ledgers[COUNT_PIPELINE]),
    }
    committed = aborted = aborted_records = 0
    for pipeline, ledger in ledgers.items():
        logged = logged_transactions(kafka, OUTPUT_OF[pipeline])
        unseen = _whole_batches(found, pipeline, ledger, logged, visible[pipeline])
        committed += len(ledger)
        aborted += len({part.identity for part in unseen})
        aborted_records += sum(part.count for part in unseen)
    found.facts["transactions committed"] = committed
    found.facts["transactions aborted"] = aborted
    found.facts["aborted records"] = aborted_records
    return found


def liveness(kafka: LocalKafka, standstill: str | None) -> Findings:
    """I8: it came to the end by itself, with nothing left to do and nothing left open."""
    found = Findings()
    if standstill is not None:
        found.violated("I8", standstill)
    lag = lag_of(kafka.bootstrap_servers)
    found.facts["lag"] = lag
    if lag:
        found.violated("I8", f"{lag} records of the source are not passed")
    open_ones = open_transactions(kafka)
    found.facts["open transactions"] = len(open_ones)
    for line in open_ones:
        found.violated("I8", f"open transaction: {line}")
    return found


def lag_of(servers: str) -> int:
    """Records of the source that the consumer groups of the pipelines have not passed, together."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    ends = end_offsets(servers, SOURCE, "read_uncommitted", timeout_s=60)
    lag = 0
    for pipeline in PIPELINES:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(pipeline)])
        known = answer[pipeline].result(60).topic_partitions
        passed = {tp.partition: tp.offset for tp in known if tp.topic == SOURCE}
        lag += sum(end - max(0, passed.get(partition, 0)) for partition, end in ends.items())
    return lag


def open_transactions(kafka: LocalKafka) -> list[str]:
    """What the coordinators list as open, and partitions whose last stable offset is not their end."""
    listed = kafka.kafka_tool("kafka-transactions", "list").splitlines()
    found = [line for line in listed if any(state in line.split() for state in _STILL_OPEN)]
    for topic in (COPIES, COUNTS, LEDGER):
        stable = end_offsets(kafka.bootstrap_servers, topic, "read_committed", timeout_s=60)
        ends = end_offsets(kafka.bootstrap_servers, topic, "read_uncommitted", timeout_s=60)
        found += [f"{topic}-{p}: stable to {stable[p]} of {end}" for p, end in ends.items() if stable[p] != end]
    return found


def verified(kafka: LocalKafka, pipeline: str, answer_file: Path) -> dict[str, Any] | None:
    """What ``onceward verify`` says of the pipeline's whole topic, in a process of its own; None without it."""
    if importlib.util.find_spec("onceward.verify") is None:
        return None
    command = [sys.executable, "-m", "onceward.verify", "--bootstrap-servers", kafka.bootstrap_servers]
    command += ["--pipeline-id", pipeline, "--expect-caught-up", "--output", "json"]
    command += ["--log-dirs", str(kafka.nodes[0].data_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1_800)
    answer_file.write_text(done.stdout + done.stderr)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"verdict": "inconclusive", "anomalies": [], "said": (done.stdout + done.stderr)[-2_000:]}
    return answer


# ── what went in ──


def _source(found: Findings, servers: str, account: Path) -> list[np.ndarray]:
    """The number of each record by partition and offset; they must count from 0, as the feeder sent them."""
    ends = end_offsets(servers, SOURCE, "read_uncommitted")
    numbers = [np.full(ends[partition], -1, dtype=np.int64) for partition in range(SOURCE_PARTITIONS)]
    for message in _messages(servers, SOURCE, ends):
        number = number_in(message.value())
        numbers[message.partition()][message.offset()] = number
        if message.key() != key_of(number):
            found.violated("input", f"key {message.key()!r} of record {number}")
    acknowledged = json.loads(account.read_text())["acknowledged"]
    for partition, there in enumerate(numbers):
        if not np.array_equal(there, np.arange(len(there))):
            found.violated("input", f"partition {partition} does not count from 0 without gap or repetition")
        if len(there) < acknowledged[partition]:
            found.violated(
                "input", f"partition {partition}: {acknowledged[partition]} acknowledged, {len(there)} there"
            )
    found.facts["records in"] = sum(map(len, numbers))
    return numbers


# ── what came out ──


def _copies(found: Findings, servers: str, numbers: list[np.ndarray]) -> Visible:
    """W1: each record once (I1, I2), as it was (content), in order (I3)."""
    seen = [np.zeros(len(part), dtype=np.uint8) for part in numbers]
    reached: dict[tuple[int, int], int] = {}
    out = 0
    ends = end_offsets(servers, COPIES, "read_uncommitted")
    visible = _nothing_yet(ends)
    for message in _messages(servers, COPIES, ends):
        out += 1
        visible[message.partition()][message.offset()] = True
        value = message.value()
        partition_text, offset_text, original = value.split(b":", 2)
        partition, offset = int(partition_text), int(offset_text)
        if not (0 <= partition < len(seen) and 0 <= offset < len(seen[partition])):
            found.violated("I2", f"a copy of nothing: {value!r}")
            continue
        number = int(numbers[partition][offset])
        seen[partition][offset] = min(250, seen[partition][offset] + 1)
        if message.key() != key_of(number) or original != value_of(partition, number):
            found.violated("I1", f"a copy that differs: {message.key()!r} {value!r}")
        way = (partition, message.partition())
        if offset <= reached.get(way, -1):
            found.violated("I3", f"{value!r} after offset {reached[way]} in partition {message.partition()}")
        reached[way] = offset
    for partition, counted in enumerate(seen):
        for promise, what, wrong in (("I1", "missing", counted == 0), ("I2", "repeated", counted > 1)):
            offsets = np.flatnonzero(wrong)
            if len(offsets):
                shown = ", ".join(map(str, offsets[:10]))
                found.violated(promise, f"{len(offsets)} of partition {partition} {what}: {shown}", len(offsets))
    found.facts["records out"] = found.facts.get("records out", 0) + out
    return visible


def _counts(found: Findings, servers: str, numbers: list[np.ndarray], ledger: Ledger) -> Visible:
    """W3: the fold over the batches as the ledger bounds them, value by value (I9)."""
    keys = [np.array([key_index(int(number)) for number in part], dtype=np.int64) for part in numbers]
    totals = np.zeros(KEYS, dtype=np.int64)
    expected: Counter[tuple[int, int]] = Counter()
    for record in ledger:
        (span,) = record["sources"]
        batch = np.zeros(KEYS, dtype=np.int64)
        for partition, part in enumerate(keys):
            start, end = (int(span[side][SOURCE][str(partition)]) for side in ("start", "end"))
            chosen = part[start:end]
            batch += np.bincount(chosen[chosen >= 0], minlength=KEYS)
        totals += batch
        for index in np.flatnonzero(batch):
            expected[int(index), int(totals[index])] += 1
    emitted: Counter[tuple[int, int]] = Counter()
    ends = end_offsets(servers, COUNTS, "read_uncommitted")
    visible = _nothing_yet(ends)
    for message in _messages(servers, COUNTS, ends):
        visible[message.partition()][message.offset()] = True
        emitted[int(message.key()[4:]), int(message.value())] += 1
    for (key, count), times in (expected - emitted).items():
        found.violated("I9", f"key {key}: count {count} is missing", times)
    for (key, count), times in (emitted - expected).items():
        found.violated("I9", f"key {key}: count {count} should not be there", times)
    found.facts["records out"] = found.facts.get("records out", 0) + emitted.total()
    return visible


def _nothing_yet(ends: dict[int, int]) -> Visible:
    return {partition: np.zeros(end, dtype=np.bool_) for partition, end in ends.items()}


# ── the ledger, and the transactions in the brokers' logs ──


def _ledger(servers: str, pipeline: str) -> Ledger:
    records = [record for record in read_topic(servers, LEDGER) if record.key == pipeline.encode()]
    return [json.loads(record.value or b"") for record in records]


def _one_chain(found: Findings, pipeline: str, ledger: Ledger, ends: list[int]) -> None:
    """I6: without gap, fork or step back, from the beginning of the source to its end."""
    if [record["sequence"] for record in ledger] != list(range(len(ledger))):
        found.violated("I6", f"{pipeline}: the sequence numbers are not 0 to {len(ledger) - 1}")
    reached = [0] * SOURCE_PARTITIONS
    for record in ledger:
        (span,) = record["sources"]
        start, end = ([span[side][SOURCE][str(p)] for p in range(SOURCE_PARTITIONS)] for side in ("start", "end"))
        if start != reached or any(map(int.__lt__, end, start)):
            found.violated("I6", f"{pipeline} {record['sequence']}: from {start} to {end} after {reached}")
        reached = end
    if reached != ends:
        found.violated("I6", f"{pipeline}: the ledger ends at {reached}, the source at {ends}")
    if len({(record["producer_id"], record["producer_epoch"]) for record in ledger}) != len(ledger):
        found.violated("I7", f"{pipeline}: two batches share an epoch")


def _whole_batches(
    found: Findings, pipeline: str, ledger: Ledger, logged: list[LoggedTransaction], visible: Visible
) -> list[LoggedTransaction]:
    """I4, I5, I7: what is visible in the logs is what the ledger tells, batch by batch, epoch by epoch.

    :returns: what is not visible, because it was aborted.
    """
    topic = OUTPUT_OF[pipeline]
    told = {
        ((record["producer_id"], record["producer_epoch"]), int(partition)): (count, first, last)
        for record in ledger
        for partition, (count, first, last, _) in record["manifest"].get(topic, {}).items()
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
            there[part.identity, part.partition] = (part.count, part.first_offset, part.last_offset)
    for where in told.keys() | there.keys():
        if told.get(where) != there.get(where):
            found.violated("I4", f"{topic} {where}: ledger {told.get(where)}, log {there.get(where)}")
    if (records := sum(count for count, _, _ in there.values())) != (
        seen := sum(int(v.sum()) for v in visible.values())
    ):
        found.violated("I5", f"{topic}: {seen} records visible, {records} in committed transactions")
    if shared := {part.identity for part in unseen} & {identity for identity, _ in told}:
        found.violated("I7", f"{topic}: epochs both aborted and committed: {sorted(shared)[:10]}", len(shared))
    return unseen


def _messages(servers: str, topic: str, ends: dict[int, int]) -> Iterator[Any]:
    """Every visible message up to ``ends``, partition by partition in order."""
    consumer = Consumer({**reader_settings(servers, "read_committed"), "queued.max.messages.kbytes": 65_536})
    try:
        consumer.assign([Assigned(topic, partition, OFFSET_BEGINNING) for partition in ends])
        unread = {partition for partition, end in ends.items() if end > 0}
        silent = 0.0
        while unread:
            messages = consumer.consume(10_000, 1.0)
            silent = 0.0 if messages else silent + 1.0
            if silent > _SILENCE_SECONDS:
                raise RuntimeError(f"{topic}: nothing more comes, with partitions {sorted(unread)} unread")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
