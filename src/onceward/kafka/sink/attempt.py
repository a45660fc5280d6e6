"""One batch as one Kafka transaction, written by all tasks under one epoch. Driver only; made by
:mod:`target`.

In reading order: each frame is written by one Spark job, by the driver itself where it is small
(:meth:`KafkaAttempt._through_driver`) and else by tasks (:meth:`KafkaAttempt._through_tasks`);
then source offsets and the ledger record join the transaction, and it is committed.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, Row

from onceward import events, patience, surroundings
from onceward.engine import driver_rows, task_job
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import Attempt, Prepared, Write, ids_of
from onceward.engine.task_writer import results
from onceward.engine.time_limit import TimeLimit
from onceward.errors import Fenced, OncewardError, RecordTooLarge, SequencerUnreachable
from onceward.ids import AttemptId, ProducerIdentity, TopicPartition
from onceward.kafka.sink import ordering
from onceward.kafka.sink.columns import prepare
from onceward.kafka.sink.driver_task import row_bytes, send
from onceward.kafka.sink.old_timestamps import oldest_of
from onceward.kafka.sink.rows import HeldRows
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.sequencer.book import EpochBook
from onceward.kafka.sink.sequencer.server import Sequencer
from onceward.kafka.sink.sequencer.ticket import EpochTicket
from onceward.kafka.sink.task_reports import (
    KIND,
    TaskReport,
    Written,
    check,
    joined,
    output_of,
    payload_bytes,
)
from onceward.kafka.sink.tasks import OpenKafkaWriter, TaskSpec
from onceward.spark.batch import job
from onceward.spark.batch.computation import Computation
from onceward.spark.batch.query import RunningBatch


class KafkaAttempt(Attempt):
    """See the module. ``kept`` outlives the batch; all else here belongs to this attempt."""

    def __init__(self, kept: KafkaRun, attempt_id: AttemptId) -> None:
        self.id = attempt_id
        self._kept = kept
        self._settings = kept.settings
        self._transaction = kept.chain.transaction
        self._limit = TimeLimit(kept.settings.policy)
        self._computation = Computation(kept.shuffles)
        self._written: Written = {}
        self._oldest_ms: dict[str, int] = {}  # timestamps that were sent, by topic
        self._sequences: dict[TopicPartition, int] = {}  # where the transaction's partitions go on

    @property
    def ids(self) -> dict[str, Any]:
        return {"producer_id": self.id.owner, "epoch": self.id.number}

    # 2 to 6. One Spark job for each frame

    def write(self, write: Write, running: RunningBatch) -> int:
        written = (
            self._through_driver(write, running) if self._kept.driver_turn.takes(running) else None
        )
        if written is None:
            written = self._through_tasks(write, running)
        self._written = joined(self._written, written)
        return sum(part.count for part in written.values())

    def _through_driver(self, write: Write, running: RunningBatch) -> Written | None:
        """As :meth:`_through_tasks`, for a small batch; None when it is not that small, and then
        nothing was sent.
        """
        ids = self._ids(running)
        topic = write.where or self._settings.topic
        with events.step(events.PLAN, **ids):
            frame, static = self._prepared(write, topic)

        sending_since = surroundings.monotonic()

        def should_stop() -> None:
            unacknowledged_s = surroundings.monotonic() - sending_since
            if (
                error := self._limit.passed() or self._kept.late(running, unacknowledged_s)
            ) is not None:
                raise error

        with events.step(events.SEND, **ids):
            turn, size = (
                self._kept.driver_turn,
                row_bytes(frame.columns) + ordering.row_bytes(frame.columns),
            )
            table = driver_rows.fetch(
                frame, size, running, turn, self._computation, self._limit.passed
            )
            if table is None:
                return None
            producer_settings = self._kept.producer_settings(topic)
            rows = HeldRows(
                static, self._kept.counts(static), producer_settings, first=running.batch.batch_id
            )
            for part in ordering.by_driver(table).to_batches():
                rows.add(part)
            producer = self._kept.chain.producer(producer_settings)
            sending_since = surroundings.monotonic()
            try:
                report, turns = send(
                    rows, producer, self._sequences, self._transaction.add_partitions, should_stop
                )
            except (Fenced, RecordTooLarge) as refusal:
                raise self._kept.explain(refusal) from refusal
        with events.step(events.CHECK, **ids):
            written = check([report], turns, 1, self._sequences)
            self._oldest_ms = oldest_of(self._oldest_ms, report.oldest_ms)
        self._sequences |= {turn.partition: turn.next_sequence for turn in turns}
        return written

    def _through_tasks(self, write: Write, running: RunningBatch) -> Written:
        ids = self._ids(running)
        with events.step(events.PLAN, **ids):
            sequencer = self._kept.sequencer(write.frame)
            job_frame = self._plan(write, sequencer)
        with events.step(events.SEND, **ids), self._computation.read_once(job_frame):
            rows, task_count, book = self._run(job_frame, sequencer, running)
            self._computation.counts(job_frame)
        with events.step(events.CHECK, **ids):
            reports = [
                TaskReport.from_json(result.committable) for result in results(rows, task_count)
            ]
            written = check(reports, book.turns, task_count, self._sequences)
            self._oldest_ms = oldest_of(self._oldest_ms, *(report.oldest_ms for report in reports))
        self._sequences = dict(book.next_sequences)
        return written

    def _plan(self, write: Write, sequencer: Sequencer) -> DataFrame:
        topic = write.where or self._settings.topic
        prepared, static = self._prepared(write, topic)
        prepared = ordering.by_tasks(prepared, self._settings.order_within)
        spec = TaskSpec(
            client=self._settings.client,
            producer=self._kept.producer_settings(topic),
            topic=static,
            topics={} if static is None else {static: self._kept.partition_count(static)},
            ledger_topic=self._settings.ledger_topic,
            held_bytes=self._settings.held_bytes,
            ticket=self._open_epoch(sequencer),
            transactional_id=self._settings.policy.pipeline,
            transaction_version=self._transaction.version,
            connect_timeout_s=self._settings.client.connect_timeout_ms / 1000,
        )
        # A task that cannot reach the sequencer has nobody else to tell; all else the sequencer
        # hears of first.
        return task_job.planned(
            prepared, OpenKafkaWriter(spec), brought_back=(SequencerUnreachable,)
        )

    def _prepared(self, write: Write, topic: str | None) -> tuple[DataFrame, str | None]:
        """The columns that are written, those that rows are sorted by, and the topic of all rows;
        None: the rows say.
        """
        aside = self._kept.set_aside(topic)
        order_by = (
            () if write.set_aside else self._settings.order_by
        )  # dead letters have no such columns
        prepared = prepare(
            write.frame, topic, lineage=self._settings.lineage, set_aside=aside, order_by=order_by
        )
        return prepared, topic if aside is None else None

    def _open_epoch(self, sequencer: Sequencer) -> EpochTicket:
        limit_ms = min(self._settings.producer.delivery_timeout_ms, self._transaction.timeout_ms)
        return sequencer.open_epoch(
            self._transaction.identity,
            lease_limit_seconds=limit_ms / 1000,
            on_first_lease=patience.carried(self._transaction.add_partitions),
            first_sequences=self._sequences,
        )

    def _run(
        self, job_frame: DataFrame, sequencer: Sequencer, running: RunningBatch
    ) -> tuple[list[Row], int, EpochBook]:
        """Run the job; a typed error of a task or of the sequencer comes before Spark's text of
        it.
        """

        def lost() -> OncewardError | None:
            if sequencer.failure is None:
                late = self._limit.passed() or self._kept.late(running, sequencer.longest_held())
                if late is not None:
                    sequencer.poison(late)
            return sequencer.failure

        try:
            rows, task_count = job.collect(job_frame, lost)
        except job.JobInterrupted:
            raise  # its tasks were killed, which poisons the epoch; that is no reason to try again
        except Exception as spark_error:
            if (failure := self._failure(sequencer)) is not None:
                raise failure from spark_error
            raise
        finally:
            book = self._kept.close_epoch()
        if (failure := self._failure(sequencer)) is not None:
            raise failure
        assert book is not None  # noqa: S101 — was open
        return rows, task_count, book

    def _failure(self, sequencer: Sequencer) -> OncewardError | None:
        """Why the attempt is lost."""
        return None if sequencer.failure is None else self._kept.explain(sequencer.failure)

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        said = (
            f"{payload_bytes(self._written)} bytes in {len(self._written)} partitions as "
            f"{ProducerIdentity(*self.id)}"
        )
        return Prepared({KIND: output_of(self._written)}, said)

    # 7. Offsets and ledger

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        ids = self._ids(running)
        offsets = self._kept.group.of(running)
        with patience.within(
            max(self._transaction.patience_ms, self._settings.producer.delivery_timeout_ms)
        ):
            if offsets:
                with events.step(events.OFFSETS, **ids):
                    note = self._kept.group.note(running)
                    self._transaction.commit_offsets(
                        self._settings.policy.pipeline, offsets, metadata=note
                    )
            with events.step(events.LEDGER, **ids):
                self._kept.chain.put(record)
        super().stage(record, running)

    # 8. Commit, or not

    def commit(self) -> None:
        self._kept.chain.commit()
        self._kept.old_timestamps.look_at(
            self._oldest_ms
        )  # now, when no transaction is open that could grow too old

    def abort(self) -> None:
        self._kept.close_epoch()  # first: no task may get another lease
        self._kept.chain.abort()

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {**ids_of(self._settings.policy.pipeline, running), "epoch": self.id.number}
