"""The Kafka sink's side of a micro-batch: one transaction, written by all tasks. Driver only.

Called by ``engine.micro_batch`` in the order of the methods. What is kept from batch to batch: connections, the
transaction's identity, the sequencer's port. Everything else belongs to one attempt.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, Row

from onceward import events
from onceward.engine.target import AtomicTarget, Write, Written
from onceward.errors import (
    BatchTimedOut,
    Fenced,
    LedgerOutdated,
    OncewardError,
    TransactionTimedOut,
    TransactionTimeoutTooShort,
    from_json,
)
from onceward.ids import BatchId, ProducerIdentity, TopicPartition
from onceward.ledger.record import LedgerRecord
from onceward.ledger.topic import Ledger
from onceward.secrecy import unlogged_calls
from onceward.sinks.kafka import preflight
from onceward.sinks.kafka.columns import prepare
from onceward.sinks.kafka.driver_task import DriverTurn, bounded, send, within
from onceward.sinks.kafka.home_sources import HomeSources
from onceward.sinks.kafka.report import Output, TaskReport, check, joined, manifest_of, payload_bytes
from onceward.sinks.kafka.rows import HeldRows, partition_counts
from onceward.sinks.kafka.sequencer.book import EpochBook
from onceward.sinks.kafka.sequencer.server import Sequencer
from onceward.sinks.kafka.sequencer.ticket import EpochTicket
from onceward.sinks.kafka.settings import KafkaSinkSettings
from onceward.sinks.kafka.tasks import REPORT_SCHEMA, TaskSpec, writer
from onceward.spark import job
from onceward.spark.persisted import Readers
from onceward.spark.query import RunningBatch
from onceward.spark.shuffles import Shuffles
from onceward.wire.appends.producer import Append, PartitionProducer
from onceward.wire.client import KafkaClient
from onceward.wire.options.settings import ProducerSettings
from onceward.wire.transactions.states import State
from onceward.wire.transactions.transaction import LONGER_OR_SMALLER, Transaction

log = logging.getLogger(__name__)


class KafkaTarget(AtomicTarget):
    """One run's transaction with Kafka."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._client = KafkaClient(settings.client)
        self._ledger = Ledger(self._client, settings.ledger_topic, settings.policy.pipeline)
        timeout_ms = settings.producer.transaction_timeout_ms
        self._overdue: BatchId | None = None  # the last batch that did not end within the transaction's time
        self._transaction = Transaction(self._client, settings.policy.pipeline, timeout_ms, outdated=self._outdated)
        self._staged = self._committed = -1  # sequences of ledger records
        self._confirmed = False  # is what was last read from the ledger known to be the newest?
        self._sources = HomeSources(self._client, settings.policy.pipeline, settings.ledger_topic)
        self._fitting: dict[str | None, ProducerSettings] = {}
        self._sequences: dict[TopicPartition, int] = {}  # where the open transaction's partitions go on
        self._sequencer: Sequencer | None = None
        self._shuffles = Shuffles()
        self._driver_turn = DriverTurn(settings.driver_records, settings.driver_bytes)

    # 1. Admit

    def glance(self) -> LedgerRecord | None:
        return self._ledger.glance()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        preflight.check_topic(self._client, self._settings, self._settings.topic)
        self._ledger.ensure_topic()
        # The order matters: after take_over no earlier owner can commit, so what the ledger says then is final.
        self._transaction.take_over()
        newest = self.newest()
        self._doubt_a_strange_writer(newest)
        self._sources.begin(running, newest, self._settings.policy.resume)
        return newest

    def _doubt_a_strange_writer(self, newest: LedgerRecord | None) -> None:
        """A transactional id keeps its producer id until it expires (then it begins at epoch 0) or its epochs run out.

        So this can be right, and nobody can tell any more: the coordinator does not know what an id had before.
        """
        ours = self._transaction.identity
        if newest is None or newest.producer.producer_id == ours.producer_id or ours.epoch == 0:
            return
        log.warning(
            "the newest ledger record of %s in %s, %s (sequence %d), was written by %s, and the coordinator has %s for "
            "the pipeline: its epochs ran out, or its first run after transactional.id.expiration.ms committed "
            "nothing, or somebody else wrote that record",
            self._settings.policy.pipeline,
            self._settings.ledger_topic,
            newest.batch,
            newest.sequence,
            newest.producer,
            ours,
        )

    def begin(self) -> ProducerIdentity:
        if self._transaction.state in (State.IN_DOUBT, State.TIMED_OUT):
            # An abort without an answer. Never a commit: while that is in doubt, the engine ends the query.
            self._transaction.recover()
        self._sequences = {}
        return self._transaction.begin()

    def newest(self) -> LedgerRecord | None:
        newest = self._ledger.newest()
        self._committed = -1 if newest is None else newest.sequence
        self._confirmed = False
        return newest

    def _outdated(self) -> bool:
        """Is there a record that is neither known nor, after a commit in doubt, of our own attempt?"""
        glimpsed = self._ledger.glance()
        ours = glimpsed is not None and glimpsed.producer == self._transaction.identity
        return glimpsed is not None and glimpsed.sequence > self._committed and not ours

    # 2 to 6. One Spark job for each frame

    def write(self, writes: Sequence[Write], running: RunningBatch) -> Written:
        if not writes:
            return Written({}, ())
        whole: Output = {}
        records: list[int] = []
        readers = Readers(writes[0].frame.sparkSession.sparkContext)
        for write in writes:
            output = self._write_one(write, running, readers)
            records.append(sum(part.count for part in output.values()))
            whole = joined(whole, output)
        readers.must_have_seen_the_same()
        return Written(manifest_of(whole), tuple(records), payload_bytes(whole))

    def _write_one(self, write: Write, running: RunningBatch, readers: Readers) -> Output:
        if self._driver_turn.takes(running):
            output = self._through_driver(write, running, readers)
            if output is not None:
                return output
        return self._through_tasks(write, running, readers)

    def _through_driver(self, write: Write, running: RunningBatch, readers: Readers) -> Output | None:
        """As :meth:`_through_tasks`, for a small batch; None when it is not that small, and then nothing was sent."""
        ids = self._ids(running)
        topic = write.where or self._settings.topic
        deadline = self._deadline()
        with events.step(events.PLAN, **ids):
            bound = self._driver_turn.bound(running)
            frame = bounded(prepare(write.frame, topic, lineage=self._settings.lineage), bound)

        def lost() -> OncewardError | None:
            return self._out_of_time() if deadline is not None and time.monotonic() > deadline else None

        def should_stop() -> None:
            if (error := lost() or self._late(running)) is not None:
                raise error

        with events.step(events.SEND, **ids):
            with self._shuffles.read_once(frame):
                everything, tasks = job.to_arrow(frame, lost)
                table = within(everything, bound)
                if table is not None:
                    readers.add(frame)
            self._driver_turn.saw(table, tasks)
            if table is None:
                return None
            rows = HeldRows(topic, self._counts(topic), self._producer_settings(topic), first=running.batch.batch_id)
            for part in table.to_batches():
                rows.add(part)
            producer = self._driver_producer(self._producer_settings(topic))
            try:
                report, turns = send(rows, producer, self._sequences, self._transaction.add_partitions, should_stop)
            except Fenced as refusal:  # a takeover, or the transaction timeout: only the coordinator knows
                raise self._transaction.explain(refusal) from refusal
        with events.step(events.CHECK, **ids):
            output = check([report], turns, 1, self._sequences)
        self._sequences |= {turn.partition: turn.next_sequence for turn in turns}
        return output

    def _through_tasks(self, write: Write, running: RunningBatch, readers: Readers) -> Output:
        ids = self._ids(running)
        with events.step(events.PLAN, **ids):
            job_frame = self._plan(write, running)
        with events.step(events.SEND, **ids), self._shuffles.read_once(job_frame):
            rows, task_count, book = self._run(job_frame, running)
            readers.add(job_frame)
        with events.step(events.CHECK, **ids):
            output = check([_report(row) for row in rows], book.turns, task_count, self._sequences)
        self._sequences = dict(book.next_sequences)
        return output

    def _plan(self, write: Write, running: RunningBatch) -> DataFrame:
        topic = write.where or self._settings.topic
        prepared = prepare(write.frame, topic, lineage=self._settings.lineage)
        spec = TaskSpec(
            client=self._settings.client,
            producer=self._producer_settings(topic),
            topic=topic,
            topics={} if topic is None else {topic: len(self._partitions(topic))},
            ledger_topic=self._settings.ledger_topic,
            held_bytes=self._settings.held_bytes,
            ticket=self._open_epoch(write.frame),
            transactional_id=self._settings.policy.pipeline,
            transaction_version=self._transaction.version,
            connect_timeout_s=self._settings.client.connect_timeout_ms / 1000,
        )
        with unlogged_calls():  # the function holds the spec, with passwords and the sequencer's token
            return prepared.mapInArrow(writer(spec), REPORT_SCHEMA)

    def _counts(self, topic: str | None) -> Callable[[str], int]:
        known = {} if topic is None else {topic: len(self._partitions(topic))}
        return partition_counts(self._client, known, self._settings.ledger_topic)

    def _producer_settings(self, topic: str | None) -> ProducerSettings:
        """With record batches no larger than the topic takes; asked once for each topic of a run."""
        if topic not in self._fitting:
            self._fitting[topic] = preflight.fitting(self._client, self._settings, topic)
        return self._fitting[topic]

    def _partitions(self, topic: str) -> dict[int, int]:
        """Partitions of ``topic`` as of now, so that one added since the last batch is written to."""
        return self._client.topic_partitions([topic])[topic]

    def _open_epoch(self, frame: DataFrame) -> EpochTicket:
        if self._sequencer is None:
            bind, advertised = preflight.sequencer_hosts(frame.sparkSession.sparkContext, self._settings)
            self._sequencer = Sequencer(bind, advertised, self._settings.sequencer_port)
        producer = self._settings.producer
        limit_ms = min(producer.delivery_timeout_ms, self._transaction.timeout_ms)
        return self._sequencer.open_epoch(
            self._transaction.identity,
            lease_limit_seconds=limit_ms / 1000,
            on_first_lease=self._transaction.add_partitions,
            first_sequences=self._sequences,
        )

    def _run(self, job_frame: DataFrame, running: RunningBatch) -> tuple[list[Row], int, EpochBook]:
        """Run the job; a typed error of a task or of the sequencer comes before Spark's text of it."""
        sequencer = self._sequencer
        assert sequencer is not None  # noqa: S101 — opened in _plan
        deadline = self._deadline()

        def lost() -> OncewardError | None:
            if deadline is not None and time.monotonic() > deadline and sequencer.failure is None:
                sequencer.poison(self._out_of_time())
            if sequencer.failure is None and (late := self._late(running)) is not None:
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
            book = self._close_epoch()
        if (failure := self._failure(sequencer)) is not None:
            raise failure
        assert book is not None  # noqa: S101 — was open
        return rows, task_count, book

    def _failure(self, sequencer: Sequencer) -> OncewardError | None:
        """Why the attempt is lost. A task cannot tell fencing from a transaction that timed out; the driver can."""
        failure = sequencer.failure
        return self._transaction.explain(failure) if isinstance(failure, Fenced) else failure

    def _late(self, running: RunningBatch) -> OncewardError | None:
        """The error of a transaction whose time is over: the coordinator aborts it, and tells whoever sends next; but
        that may be minutes from now."""
        if self._transaction.open_for_ms <= self._transaction.timeout_ms:
            return None
        # Once is bad luck (a broker, an executor); twice it is the batch, and a third time would be no better.
        again, self._overdue = self._overdue == running.batch, running.batch
        size = "" if running.input_records is None else f" of {running.input_records:,} source records"
        what = (
            f"{running.batch}{size} was not sent within transaction.timeout.ms={self._transaction.timeout_ms}, counted "
            "from its first record"
        )
        if again:
            return TransactionTimeoutTooShort(f"{what}, and not when it was tried again", next_step=LONGER_OR_SMALLER)
        return TransactionTimedOut(what, next_step=f"the batch runs again; if it repeats, {LONGER_OR_SMALLER}")

    def _deadline(self) -> float | None:
        limit = self._settings.policy.batch_timeout_s
        return None if limit is None else time.monotonic() + limit

    def _out_of_time(self) -> OncewardError:
        return BatchTimedOut(
            f"the batch ran longer than batch_timeout_s={self._settings.policy.batch_timeout_s}",
            next_step="raise batch_timeout_s, or make batches smaller (maxOffsetsPerTrigger)",
        )

    # 7. Offsets and ledger

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        ids = self._ids(running)
        offsets = self._sources.offsets(running)
        if offsets:
            with events.step(events.OFFSETS, **ids):
                record = replace(record, topic_ids=self._sources.topic_ids(running))
                group, note = self._settings.policy.pipeline, self._sources.note(running)
                self._transaction.commit_offsets(group, offsets, metadata=note)
        with events.step(events.LEDGER, **ids):
            # Last, so that the partition that all pipelines share is held up for milliseconds only.
            partition = self._ledger.partition()
            self._transaction.add_partitions([partition])
            self._staged = record.sequence
            try:
                (appended,) = self._driver_producer().send(
                    [Append(partition, self._ledger.record_to_append(record), 0)]
                )
            except Fenced as refusal:  # a takeover, or the transaction timeout: only the coordinator knows
                raise self._transaction.explain(refusal) from refusal
            if not self._confirmed:
                self._confirm(record, appended.base_offset)

    def _confirm(self, record: LedgerRecord, offset: int) -> None:
        """Was the batch admitted by the newest record that there is? Asked once after each read of the ledger.

        Brokers do not ask each other before they answer a read. One that is cut off from the controllers but not from
        us goes on as the ledger's leader, with an end that does not move: a batch that was committed meanwhile would be
        admitted as the next one, and be written twice. Our own append, which that broker cannot acknowledge, shows
        what lies before it. Nobody else can commit between that append and our ``EndTxn``, nor, after it, without
        fencing us first: so one look is enough until the ledger is read anew.

        :raises LedgerOutdated: it was not.
        """
        newest = self._ledger.newest_before(offset, self._transaction.identity)
        known, found = record.sequence - 1, -1 if newest is None else newest.sequence
        if found != known:
            raise LedgerOutdated(
                f"the ledger topic {self._ledger.topic} was read from a broker that no longer led it: {record.batch} "
                f"was taken for the one after sequence {known}, and the newest committed record has sequence {found}",
                next_step="start the query again: it reads the ledger anew; nothing of this attempt is visible. If it "
                "repeats, look for a broker that is cut off from the controllers",
                details={"pipeline": self._settings.policy.pipeline, "admitted_after": known, "newest": found},
            )
        self._confirmed = True

    def _driver_producer(self, settings: ProducerSettings | None = None) -> PartitionProducer:
        return PartitionProducer(
            self._client,
            settings or self._settings.producer,
            self._transaction.identity,
            transactional_id=self._settings.policy.pipeline,
            version=self._transaction.version,
        )

    # 8. Commit, and its other endings

    def commit(self) -> None:
        self._transaction.commit()
        self._committed = self._staged

    def settle(self) -> LedgerRecord | None:
        if self._transaction.state in (State.IN_DOUBT, State.TIMED_OUT):
            self._transaction.recover()
        else:
            self._transaction.abort()  # EndTxn was never sent, or it was answered: then nothing is open
        return self.newest()

    def abort(self) -> None:
        self._close_epoch()  # first: no task may get another lease
        self._transaction.abort()

    def _close_epoch(self) -> EpochBook | None:
        return None if self._sequencer is None else self._sequencer.close_epoch()

    def close(self) -> None:
        for part in (self._sequencer, self._client):
            if part is not None:
                try:
                    part.close()
                except (OncewardError, OSError) as error:
                    log.debug("closing: %s", error)
        self._sequencer = None

    def _ids(self, running: RunningBatch) -> dict[str, object]:
        return {
            "pipeline": self._settings.policy.pipeline,
            "query_id": running.batch.query_id,
            "batch_id": running.batch.batch_id,
            "epoch": self._transaction.identity.epoch,
        }


def _report(row: Row) -> TaskReport:
    if row.error is not None:
        raise from_json(row.error)
    return TaskReport.from_json(row.report)
