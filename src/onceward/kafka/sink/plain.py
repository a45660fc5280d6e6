"""Writing without a transaction: ``delivery="at_least_once"`` and ``"none"``. Driver and executor
tasks.

Called by :mod:`sink` instead of the nine steps. There is no ledger and no admission: what runs
again is written again, as with Spark's own sink. ``at_least_once`` sends as an idempotent
producer, so that resends within a task add nothing; ``none`` sends without a producer id. Jobs and
tasks are those of every sink. Brokers remember every producer id of a partition for a day
(``producer.id.expiration.ms``). So a worker process keeps the identity that a task has used for
the tasks after it (:class:`_Identity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark.sql import DataFrame

from onceward import events, surroundings
from onceward.engine import batch_log, spark_jobs
from onceward.engine.calls.gate import must_know_one_state, settle_state
from onceward.engine.calls.journal import CallMemory
from onceward.engine.ending import TimeLimit
from onceward.engine.micro_batch import as_often_as_it_takes, kafka_ends
from onceward.engine.target import Write, event_ids, unwritten
from onceward.engine.task_writer import TaskWriter, results
from onceward.errors import (
    ROWS_REFUSED,
    BatchNotWritten,
    OncewardError,
    RecordTooLarge,
    TopicMissing,
)
from onceward.ids import BatchId, ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.sink.columns import prepare
from onceward.kafka.sink.rows import HeldRows, partition_counts, pieces
from onceward.kafka.sink.run import GroupOffsets
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.sink.tasks import number
from onceward.kafka.sink.topics import (
    RetentionCheck,
    TopicLimits,
    check_topic,
    oldest_timestamps,
    refuse_own_topics,
)
from onceward.kafka.wire.appends.producer import Append, PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.transactions.coordinator import idempotent_identity
from onceward.spark.batch import job
from onceward.spark.batch.file_sources import logged_files, must_have_files
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Shuffles

_NO_PRODUCER = ProducerIdentity(-1, -1)
_NO_SEQUENCE = -1


class PlainBatches:
    """Writes batches as they come."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._by_topic: dict[str | None, KafkaSinkSettings] = {}
        self._limits = TopicLimits(settings)
        self._run_id = ""
        # In that run: the newest batch, and the first that lacks rows; whether a second call for
        # that one may have written them
        self._last: int | None = None
        self._failed: int | None = None
        self._is_refused = False
        self._group: GroupOffsets | None = None
        self._shuffles = Shuffles()
        self._retention = RetentionCheck(settings.policy.pipeline, self._topic_config)

    def process(self, writes: Sequence[Write], running: RunningBatch, memory: CallMemory) -> None:
        """Write the frames of a batch, one after the other; one that fails for a reason that may
        pass is written again, ``batch_attempts`` times in all for the batch.

        :param memory: of the run, also where a function builds a sink for each batch.
        :raises OncewardError: what a task ran into; part of the batch may be visible.
        :raises BatchNotWritten: see :meth:`_begin`.
        """
        began, pipeline = surroundings.monotonic(), self._settings.policy.pipeline
        ids = event_ids(pipeline, running)
        with events.batch(**ids) as under_way:
            # No ledger is opened. But whoever listens knows a run by it: metrics ask Spark then
            # for its trigger, and whether it is idle
            is_first = memory.committed is None
            with events.step(events.OPEN, **ids) if is_first else nullcontext():
                self._begin(writes, running)
            records, aside, attempt = 0, 0, 1
            jobs = [(partial(self._compute, frame), False) for frame in unwritten(writes, running)]
            jobs += [(partial(self._write, write, running), write.set_aside) for write in writes]
            for each, is_aside in jobs:
                written, attempt = as_often_as_it_takes(
                    self._settings.policy, running, each, "writing it again", attempt
                )
                records += written
                aside += written * is_aside
            settle_state(running)
            with events.step(events.FINISH, **ids) as values:
                values |= {
                    "records": records,
                    "set_aside": aside,
                    "attempts": attempt,
                    "sources": kafka_ends(running, running.sources),
                }
            took = surroundings.monotonic() - began
            batch_log.log_batch(pipeline, running.batch, values, under_way, took)
        if self._failed == running.batch.batch_id and not self._is_refused:
            self._failed = None
        memory.succeed(running.batch)

    def fail(self, run_id: str, batch_id: int, *, is_refused: bool) -> None:
        """Note that a call for the batch has failed, also one that did not get to
        :meth:`process`. :param is_refused: another call for it does not write its rows."""
        self._follow(run_id, batch_id)
        self._failed = batch_id if self._failed is None else self._failed
        self._is_refused |= is_refused

    def _follow(self, run_id: str, batch_id: int) -> int | None:
        """Note a call for the batch; return the newest batch of the run before it."""
        if run_id != self._run_id:
            self._run_id, self._last, self._failed = run_id, None, None
            self._is_refused = False
        last, self._last = self._last, max(batch_id, self._last or 0)
        return last

    def _refuse_own_topics(self, running: RunningBatch) -> None:
        if not running.kafka_sources:
            return
        settings = self._settings
        self._group = self._group or GroupOffsets(
            KafkaClient.shared(settings.client), settings.policy.pipeline, settings.ledger_topic
        )
        refuse_own_topics(settings, running, self._group.sources(running))

    def _begin(self, writes: Sequence[Write], running: RunningBatch) -> None:
        """Check the batch before its frames are written.

        :raises SourceFileMissing: Spark would leave out files that it has logged for the batch.
        :raises BatchNotWritten: the function has skipped batches of this run, and may not, or with
            them their dead letters; or it has kept a failure of ``at_least_once`` to itself. There
            is no ledger, so what an earlier run has skipped is not known.
        """
        last = self._follow(running.run_id, running.batch.batch_id)
        must_know_one_state(running)
        must_have_files(running, logged_files(running))
        # Ahead of what was skipped, which a start is told to go on behind
        self._refuse_behind_failure(running.batch)
        if last is None or running.batch.batch_id <= last:
            return
        may_skip = self._settings.policy.skipped_batches == "allow" and not any(
            write.set_aside for write in writes
        )
        if running.batch.batch_id > last + 1 and not may_skip:
            raise BatchNotWritten(
                f"{running.batch} was handed over, and the last before it was batch {last}: "
                "the foreachBatch function did not call the sink for every batch, and what in the "
                "others could not be read is missing from the dead letters, if there are any",
                next_step="call the sink for every batch, also for an empty one, and start again, "
                'which goes on behind what was skipped; delivery="exactly_once" keeps account of '
                "it; if leaving batches out is meant, and no format sets records aside, pass "
                'skipped_batches="allow"',
                details={ROWS_REFUSED: True, "batch_id": running.batch.batch_id},
            )

    def _refuse_behind_failure(self, batch: BatchId) -> None:
        """Raise BatchNotWritten where a batch was lost before this one, and may not be."""
        failed, may_lose = self._failed, self._settings.policy.delivery == "none"
        if failed is None or failed >= batch.batch_id or may_lose:
            return
        newest = batch.batch_id - 1
        raise BatchNotWritten(
            f"{batch} was handed over, and a call for batch {failed} had failed: the "
            "foreachBatch function kept the error to itself, so that Spark counts the batch as "
            f"done, and rows may be missing from batch {failed} on",
            next_step="let the sink's errors leave the function, and start again, which goes on "
            f"behind batch {newest}; write the rows from batch {failed} up to it with a query of "
            "its own",
            details={ROWS_REFUSED: True, "batch_id": failed},
        )

    def _compute(self, frame: DataFrame) -> int:
        spark_jobs.compute(frame, self._shuffles, TimeLimit(self._settings.policy))
        return 0

    def _write(self, write: Write, running: RunningBatch) -> int:
        """Write one frame, and return how many records it has; when it returns, every one is
        acknowledged (with ``acks=1`` by the leader alone). :raises BatchTimedOut:
        ``batch_timeout_s`` is over; it counts for each try of each frame."""
        limit = TimeLimit(self._settings.policy)
        self._refuse_own_topics(running)
        settings = self._settings_for(write.where)
        ids = event_ids(self._settings.policy.pipeline, running)
        with events.step(events.SEND, **ids) as values:
            prepared = prepare(write.frame, write.where, lineage=settings.lineage)
            frame = spark_jobs.plan_write(prepared.rows, partial(_PlainWriter, settings))
            try:
                with job.naming_the_loss(limit.passed):
                    rows, task_count = job.collect(frame, limit.passed)
                written = results(rows, task_count)
                values["records"] = sum(result.rows for result in written)
            except RecordTooLarge as refusal:
                raise self._refused(refusal) from refusal
            except TopicMissing:
                # It was deleted since, and may be one that is created here: look again
                self._by_topic.clear()
                raise
        seen = [result.committable for result in written]
        self._retention.check(oldest_timestamps(*(oldest_ms for _, oldest_ms in seen)))
        topics = sorted({topic for topics, _ in seen for topic in topics})
        self._limits.learn(self._topic_config, topics)
        return int(values["records"])

    def _refused(self, error: RecordTooLarge) -> OncewardError:
        """Return what a refusal comes to. A topic's limit may have been lowered: ask all again."""
        # not said by a broker
        if "records" not in error.details:
            return error
        self._by_topic.clear()
        with closing(KafkaClient(self._settings.client)) as client:
            return self._limits.refused(client, error)

    def _topic_config(self, topic: str, *, timeout_ms: int) -> dict[str, str | None]:
        with closing(KafkaClient(self._settings.client)) as client:
            return client.topic_config(topic, timeout_ms=timeout_ms)

    def _settings_for(self, topic: str | None) -> KafkaSinkSettings:
        """Return the settings with ``topic`` as the static one; looked at once for each topic."""
        if topic not in self._by_topic:
            with closing(KafkaClient(self._settings.client)) as client:
                check_topic(client, self._settings, topic)
                producer = self._limits.producer_settings(client, topic)
            # Of the sink's two topics this one may be the other: for the tasks there is one.
            self._by_topic[topic] = replace(
                self._settings, topic=topic, producer=producer, dead_letter_topic=None
            )
        return self._by_topic[topic]


@dataclass(slots=True)
class _Identity:
    """A producer id, and where each partition goes on. One task at a time has it."""

    producer: ProducerIdentity
    sequences: dict[TopicPartition, int] = field(default_factory=dict)


_idle: WeakKeyDictionary[KafkaClient, list[_Identity]] = WeakKeyDictionary()
"""By client, identities of this process of which every record is acknowledged."""


def taken(client: KafkaClient) -> _Identity:
    """Return an identity that nobody uses, of an earlier task where there is one."""
    idle = _idle.setdefault(client, [])
    return idle.pop() if idle else _Identity(idempotent_identity(client))


class _PlainWriter(TaskWriter):
    """Sends as it goes. Prepares its topics, and the oldest timestamp of each, ms since 1970."""

    def __init__(self, settings: KafkaSinkSettings, task: TaskAttempt) -> None:
        self._client = KafkaClient.shared(settings.client)
        self._settings = settings
        counts = partition_counts(self._client, {}, settings.ledger_topic)
        self._rows = HeldRows(settings.topic, counts, settings.producer, first=task.partition_id)
        self._identity: _Identity | None = None

    def write(self, rows: pa.RecordBatch) -> None:
        for piece in pieces(rows):
            self._rows.add(piece)
            if self._rows.held_bytes >= self._settings.held_bytes:
                self._send_all()

    def pre_commit(self) -> tuple[list[str], dict[str, int]]:
        self._send_all()
        # Kept for the next task; not after a failure: brokers may have more than it knows of
        if self._identity is not None:
            _idle.setdefault(self._client, []).append(self._identity)
        return sorted(self._rows.topics), self._rows.oldest_ms

    def _send_all(self) -> None:
        fragments = self._rows.encode()
        if not fragments:
            return
        producer = _NO_PRODUCER
        appends = [
            Append(partition, fragment, _NO_SEQUENCE)
            for partition, parts in fragments.items()
            for fragment in parts
        ]
        if self._settings.policy.delivery == "at_least_once":
            identity = self._identity = self._identity or taken(self._client)
            first = {partition: identity.sequences.get(partition, 0) for partition in fragments}
            appends, following = number(fragments, first)
            identity.sequences.update(following)
            producer = identity.producer
        sending = PartitionProducer(
            self._client, self._settings.producer, producer, transactional_id=None, version=1
        )
        sending.send(appends, should_stop=None)
