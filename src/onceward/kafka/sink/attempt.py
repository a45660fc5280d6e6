"""One batch as one Kafka transaction, under one epoch. Driver only; made by :mod:`sink`. Each
frame is prepared once and goes one of two paths: the driver sends it itself where it is small
(:mod:`driver_path`), else the tasks of a Spark job do (:mod:`tasks_path`). Then source offsets and
the ledger record join the transaction, and it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onceward import events, patience
from onceward.engine.ending import TimeLimit
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import Attempt, Prepared, Write, event_ids
from onceward.ids import AttemptId, ProducerIdentity, TopicPartition
from onceward.kafka.sink import driver_path
from onceward.kafka.sink.columns import RecordFrame, prepare
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.task_reports import (
    KIND,
    Sent,
    Written,
    joined,
    kafka_output,
    payload_bytes,
)
from onceward.kafka.sink.tasks_path import TasksPath
from onceward.kafka.sink.topics import oldest_timestamps
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation


class KafkaAttempt(Attempt):
    """One transaction. ``run`` outlives the batch; all else here belongs to this attempt."""

    def __init__(self, run: KafkaRun, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._run = run
        self._settings = run.settings
        self._transaction = run.chain.transaction
        self._computation = Computation(run.shuffles)
        limit = TimeLimit(run.settings.policy)
        self._limit, self._tasks = limit, TasksPath(run, limit)
        self._written: Written = {}
        # Records that the topic does not take, as dead letters
        self._too_large = 0
        # Timestamps that were sent, by topic
        self._oldest_ms: dict[str, int] = {}
        # Where the transaction's partitions go on
        self._sequences: Mapping[TopicPartition, int] = {}

    @property
    def ids(self) -> dict[str, Any]:
        return {"producer_id": self.id.owner, "epoch": self.id.number}

    # 2 to 6. One Spark job for each frame

    def write(self, write: Write, running: RunningBatch) -> int:
        sent = self._send(write, running)
        self._written = joined(self._written, sent.written)
        self._sequences = sent.next_sequences
        self._oldest_ms = oldest_timestamps(self._oldest_ms, sent.oldest_ms)
        aside = self._settings.dead_letter_topic
        if not write.set_aside and (write.where or self._settings.topic) != aside:
            self._too_large += sum(
                part.count for where, part in sent.written.items() if where.topic == aside
            )
        return sum(part.count for part in sent.written.values())

    def _send(self, write: Write, running: RunningBatch) -> Sent:
        ids = self._ids(running)
        frame: RecordFrame | None = None
        if self._run.driver_turn.takes(running):
            with events.step(events.PLAN, **ids) as values:
                values["timeout_ms"] = self._transaction.timeout_ms
                frame = self._prepare(write)
            sent = driver_path.write(
                self._run, self._limit, frame, self._sequences, running, self._computation, ids
            )
            if sent is not None:
                return sent
        with events.step(events.PLAN, **ids) as values:
            values["timeout_ms"] = self._transaction.timeout_ms
            planned = self._tasks.plan(
                self._prepare(write) if frame is None else frame, self._sequences
            )
        return self._tasks.write(planned, self._sequences, running, self._computation, ids)

    def _prepare(self, write: Write) -> RecordFrame:
        topic = write.where or self._settings.topic
        return prepare(
            write.frame,
            topic,
            lineage=self._settings.lineage,
            oversized=self._run.dead_letter_route(topic),
            order_by=()
            if write.set_aside
            else self._settings.order_by,  # dead letters have no such columns
        )

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        if self._too_large:
            self._run.must_be_too_large_still()
        summary = f"{len(self._written)} partitions as {ProducerIdentity(*self.id)}"
        values = {"bytes": payload_bytes(self._written), "too_large": self._too_large}
        return Prepared({KIND: kafka_output(self._written)}, summary, values=values)

    # 7. Offsets and ledger

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        ids = self._ids(running)
        offsets = self._run.group.end_offsets(running)
        with patience.within(
            max(self._transaction.patience_ms, self._settings.producer.delivery_timeout_ms)
        ):
            if offsets:
                with events.step(events.OFFSETS, **ids):
                    metadata = self._run.group.metadata(running)
                    self._transaction.commit_offsets(
                        self._settings.policy.pipeline, offsets, metadata=metadata
                    )
            with events.step(events.LEDGER, **ids) as values:
                self._run.chain.put(record)
                values["open_ms"] = int(self._transaction.open_for_ms)
        super().stage(record, running)

    # 8. Commit, or not

    def commit(self) -> None:
        self._run.chain.commit()
        # now, when no transaction is open that could grow too old
        self._run.retention.check(self._oldest_ms)
        self._run.replaced.check(self._written)
        topics = sorted({at.topic for at in self._written})
        self._run.limits.learn(self._run.client.topic_config, topics)

    def abort(self) -> None:
        # First: no task may get another lease
        self._run.close_epoch()
        self._run.chain.abort()

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {**event_ids(self._settings.policy.pipeline, running), "epoch": self.id.number}
