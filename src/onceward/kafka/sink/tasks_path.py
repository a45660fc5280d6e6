"""The tasks' path of a frame: one Spark job whose tasks write it under one epoch. Driver only;
called by :mod:`attempt`.

What runs in the tasks is :mod:`tasks`. The sequencer (:mod:`sequencer`) leases them the partitions
meanwhile, and what they report is checked against what it has leased.

Order (``order_by=``): tasks lease partitions from each other in any order, so that of two rows of
one key in two tasks either may be appended first. So rows of one key are brought into one task,
and sorted there; a task appends its rows in the order in which it has them, and of its attempts
one writes. Batches come one after the other by themselves, and so do the frames of one. Records
without a key have no order among the partitions that they are spread over; in each of them they
keep theirs, because all of a topic's come through one task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, Row

from onceward import events, patience
from onceward.engine import spark_jobs
from onceward.engine.ending import TimeLimit
from onceward.engine.task_writer import results
from onceward.errors import EpochPoisoned, OncewardError, SequencerUnreachable
from onceward.ids import TopicPartition
from onceward.kafka.sink.columns import OrderWithin, RecordFrame, sort_columns
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.sequencer.frames import EpochCredentials
from onceward.kafka.sink.sequencer.leases import EpochLeases
from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.kafka.sink.task_reports import Sent, TaskReport, check
from onceward.kafka.sink.tasks import DroppingWriter, TaskSpec, open_kafka_writer
from onceward.kafka.sink.topics import oldest_timestamps
from onceward.spark.batch import job
from onceward.spark.batch.causes import thrown_by
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Computation
from onceward.spark.session.settings import is_on

_LATER_MS = 5_000
_ADAPTIVE, _SHUFFLE_PARTITIONS = "spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions"


class PlannedJob(NamedTuple):
    """A frame that its tasks write when computed, its ``rows``, and their sequencer."""

    frame: DataFrame
    rows: DataFrame
    sequencer: Sequencer


class TasksPath:
    """Writes the frames of one batch attempt by Spark jobs."""

    def __init__(self, run: KafkaRun, limit: TimeLimit) -> None:
        self._run = run
        self._limit = limit

    def plan(
        self, frame: RecordFrame, first_sequences: Mapping[TopicPartition, int]
    ) -> PlannedJob:
        """Take step 2: open an epoch of the sequencer, whose partitions go on at
        ``first_sequences``, or begin at 0; and plan the job."""
        run, settings = self._run, self._run.settings
        sequencer = run.sequencer(frame.rows.sparkSession.sparkContext)
        rows = gather_and_sort(frame.rows, settings.order_within)
        topic = frame.only_topic
        spec = TaskSpec(
            client=settings.client,
            producer=run.producer_settings(frame.topic),
            topic=topic,
            topics={} if topic is None else {topic: run.partition_count(topic)},
            ledger_topic=settings.ledger_topic,
            held_bytes=settings.held_bytes,
            credentials=self._open_epoch(sequencer, first_sequences),
            transactional_id=settings.policy.pipeline,
            transaction_version=run.chain.transaction.version,
            connect_timeout_s=settings.client.connect_timeout_ms / 1000,
        )
        # A task that cannot reach the sequencer has nobody else to tell; all else the sequencer
        # hears of first.
        planned = spark_jobs.plan_write(
            rows, partial(open_kafka_writer, spec), returned_errors=(SequencerUnreachable,)
        )
        return PlannedJob(planned, rows, sequencer)

    def _open_epoch(
        self, sequencer: Sequencer, first_sequences: Mapping[TopicPartition, int]
    ) -> EpochCredentials:
        transaction = self._run.chain.transaction
        # Of a transaction whose time is over its own error speaks, which names the cause: leases
        # that hang on it are given up behind that.
        # And of one whose records nobody acknowledges, its task's.
        producer_ms = self._run.settings.producer.delivery_timeout_ms
        sent_ms = producer_ms + min(producer_ms, transaction.patience_ms)
        limit_ms = min(sent_ms, transaction.timeout_ms) + _LATER_MS
        return sequencer.open_epoch(
            transaction.identity,
            lease_limit_seconds=limit_ms / 1000,
            on_first_lease=patience.carried(transaction.add_partitions),
            first_sequences=first_sequences,
        )

    def write(
        self,
        planned: PlannedJob,
        first_sequences: Mapping[TopicPartition, int],
        running: RunningBatch,
        computation: Computation,
        ids: Mapping[str, Any],
    ) -> Sent:
        """Take steps 3 to 6: run the job, check its reports. ``ids``: of the attempt's events."""
        with events.step(events.SEND, **ids) as values, computation.read_once(planned.frame):
            rows, task_count, leases = self._run_job(planned, running)
            computation.counts(planned.frame)
            values |= {"path": "tasks", "tasks": task_count}
        with events.step(events.CHECK, **ids) as values:
            reports = [
                TaskReport.from_json(result.committable) for result in results(rows, task_count)
            ]
            written = check(reports, leases.returned, task_count, first_sequences)
            values["records"] = sum(part.count for part in written.values())
            oldest_ms = oldest_timestamps(*(report.oldest_ms for report in reports))
        return Sent(written, dict(leases.next_sequences), oldest_ms)

    def _run_job(
        self, planned: PlannedJob, running: RunningBatch
    ) -> tuple[list[Row], int, EpochLeases]:
        """Run the job; a typed error of a task or the sequencer comes before Spark's text."""
        sequencer = planned.sequencer

        def lost() -> OncewardError | None:
            if sequencer.failure is None:
                late = self._limit.passed() or self._run.timeout_error(
                    running, sequencer.longest_held()
                )
                if late is not None:
                    sequencer.poison(late)
            return sequencer.failure

        try:
            rows, task_count = job.collect(planned.frame, lost)
        except job.JobInterrupted:
            # its tasks were killed, which poisons the epoch; that is no reason to try again
            raise
        except Exception as spark_error:
            if (failure := self._failure(sequencer)) is None:
                raise
            if type(failure) is EpochPoisoned:
                if isinstance(spark_error, OncewardError) and type(spark_error) is not type(
                    failure
                ):
                    raise
                self._must_be_computable(planned.rows, running)
            raise failure from spark_error
        finally:
            leases = sequencer.close_epoch()
        if (failure := self._failure(sequencer)) is not None:
            raise failure
        assert leases is not None  # noqa: S101 — was open
        return rows, task_count, leases

    def _must_be_computable(self, rows: DataFrame, running: RunningBatch) -> None:
        """Raise what fails the plan of ``rows`` itself.

        1. A task has sent records, and then the plan refuses a row; 2. Spark tries the task again,
        and that attempt poisons the epoch, which cancels the job; 3. Spark never comes to say what
        failed it. So the plan is computed alone, once a batch, when that is its second attempt or
        its last.
        """

        def late() -> OncewardError | None:
            return self._limit.passed() or self._run.timeout_error(running, 0.0)

        if not self._run.is_poisoned_again(running.batch):
            return
        try:
            job.collect(spark_jobs.plan_write(rows, DroppingWriter), late)
        except job.JobInterrupted:
            raise
        except Exception as error:
            is_the_plans = isinstance(error, OncewardError) or any(
                each.condition or each.is_a("PythonException") for each in thrown_by(error)
            )
            # Else another executor is lost, say
            if is_the_plans and late() is None:
                raise

    def _failure(self, sequencer: Sequencer) -> OncewardError | None:
        return None if sequencer.failure is None else self._run.explain(sequencer.failure)


def gather_and_sort(rows: DataFrame, within: OrderWithin) -> DataFrame:
    """Return ``rows`` without the columns that they are sorted by: each key's (or each topic's) in
    one task, in order, nulls first. A frame that is not sorted is returned as it is."""
    names = sort_columns(rows.columns)
    if not names:
        return rows
    together = [
        name for name in ("topic", "key")[: 1 if within == "topic" else 2] if name in rows.columns
    ]
    return _gathered(rows, together).sortWithinPartitions(*names).drop(*names)


def _gathered(rows: DataFrame, together: Sequence[str]) -> DataFrame:
    # Without a key, and of one topic, there is nothing by which tasks could share.
    if not together:
        return rows.repartition(1)
    session = rows.sparkSession
    # Adaptive execution merges what is small; without it each batch has 200 tasks by default, and
    # a task takes its time whatever it has. Twice the cores: where executors come with the tasks
    # that wait for them, there are some to wait.
    if is_on(session, _ADAPTIVE):
        return rows.repartition(*together)
    most = int(str(session.conf.get(_SHUFFLE_PARTITIONS)))
    return rows.repartition(min(most, 2 * session.sparkContext.defaultParallelism), *together)
