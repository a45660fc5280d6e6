"""``onceward.KafkaSink``: what the user builds and hands to ``foreachBatch``. Driver only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from onceward.engine.calls import runs
from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import Checkpointing, Delivery, SinkPolicy, names
from onceward.engine.target import AtomicTarget, Target, Write
from onceward.errors import (
    ROWS_REFUSED,
    ContradictoryOptions,
    LedgerBehind,
    OncewardError,
    TransactionTimeoutTooLarge,
    UnsupportedQuery,
)
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.ids import topic_name
from onceward.kafka.ledger.chain import topic_place
from onceward.kafka.ledger.topic import DEFAULT_TOPIC
from onceward.kafka.sink import columns, dead_letters
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.columns import OrderWithin
from onceward.kafka.sink.plain import PlainBatches
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.settings import (
    KafkaSinkSettings,
    OnError,
    TokensAsBuilt,
    name_checkpointing,
    with_checkpointing,
)
from onceward.kafka.sink.topics import check_topic, refuse_own_topics
from onceward.kafka.wire.options.security import TokenProvider
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.spark.batch.query import RunningBatch, failed_call


class KafkaTarget(AtomicTarget):
    """One run's transactions with Kafka."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self.run = KafkaRun(settings)
        self.chain = self.run.chain
        self.client_for = self.run.group.client_for

    def peek(self) -> LedgerRecord | None:
        return self.run.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        settings = self.run.settings
        for topic in (settings.topic, settings.dead_letter_topic):
            check_topic(self.run.client, settings, topic)
        try:
            self._refuse_own_topics(running)
        except ContradictoryOptions:
            newest = self.peek()
            # One that is committed is not written, but replayed
            if newest is None or newest.batch != running.batch:
                raise
        # The order matters: once the chain is taken no earlier owner can commit, so what is read
        # then is final. It is confirmed before the first commit; unless something is done on the
        # strength of it before.
        try:
            newest = self.run.chain.take(confirm=self.is_relied_on)
        except TransactionTimeoutTooLarge as too_large:
            name_checkpointing(too_large, settings.policy.checkpointing)
            raise
        try:
            self.run.group.refuse_ledger_behind(running, newest, settings.policy.resume)
        except LedgerBehind:
            # An heir moves both. Who has stood still between the two reads is replaced, and
            # nothing is lost.
            self.run.chain.refuse_what_a_newer_owner_wrote(newest)
            self.confirm()
            raise
        self.run.replaced.begin(newest)
        return newest

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> KafkaAttempt:
        # Again: a pattern may have found one since
        self._refuse_own_topics(running)
        return KafkaAttempt(self.run, self.run.chain.begin(newest))

    def _refuse_own_topics(self, running: RunningBatch) -> None:
        refuse_own_topics(self.run.settings, running, self.run.group.sources(running))

    def confirm(self) -> None:
        self.run.chain.confirm()

    def settle(self) -> LedgerRecord | None:
        return self.run.chain.settle(confirm=self.is_relied_on)

    def close(self) -> None:
        self.run.close()


class KafkaSink(ForeachBatchSink):
    """Writes each micro-batch as one Kafka transaction: records, source offsets and progress in
    one atomic step.

    Columns: ``value`` (binary or string; null is a tombstone), and optionally ``key``, ``topic``,
    ``partition``, ``headers``, ``timestamp``: those of Spark's own Kafka sink, see
    :mod:`onceward.kafka.sink.columns`. Keys land where Kafka's default partitioner puts them.

    Guarantee (``delivery="exactly_once"``): after any crash, readers with
    ``isolation.level=read_committed`` see the output of every micro-batch exactly once, all of a
    batch or nothing. Readers with ``read_uncommitted`` see aborted attempts as well.

    :param bootstrap_servers: ``host:port``, comma-separated or a list.
    :param topic: where records go; leave it out to follow the column ``topic``.
    :param pipeline_id: the stable name of this query: its transactional id, its consumer group
        (source offsets are committed there for lag monitoring) and its ledger key. One running
        query per id; a second one takes over.
    :param delivery: ``"exactly_once"``; ``"at_least_once"``: idempotent producing without a
        transaction, duplicates after a crash; ``"none"``: no producer id either, so that resends
        may repeat and reorder records; only here ``acks=1`` is allowed, which may lose them.
    :param resume: ``"checkpoint"``: the query's checkpoint and the ledger must tell the same
        story. ``"ledger"``: a query with a new checkpoint may continue where the ledger ends (for
        queries without state, with ``kafka_source(starting="ledger")``). ``"adopt"``: begin a
        chain on a checkpoint that has run before (migration from another sink), only while the
        pipeline has no ledger record. ``"write_missing"`` and
        ``"skip_missing"``, after
        :class:`~onceward.errors.BatchChanged` or :class:`~onceward.errors.BatchNotWritten`: write
        the frames that a committed batch lacks, or go on without what an earlier run did not
        write. These three are for one start: once a batch was committed, later runs of this sink
        go by the checkpoint.
    :param skipped_batches: ``"refuse"``: the sink is called for every batch, also for an empty
        one; a gap in the batch numbers is :class:`~onceward.errors.BatchNotWritten`. ``"allow"``:
        which batches are handed over is the decision of your function. Then a ledger that has lost
        its end looks like a function that skips, and is found only where offsets contradict; and a
        batch of which a format sets records aside may not be skipped.
    :param options: Kafka client settings by Kafka's own names, such as ``security.protocol``,
        ``compression.type``, ``batch.size``, ``transaction.timeout.ms`` (default: 15 minutes, or
        what the brokers allow if that is less). Unknown or contradictory ones are refused here.
    :param oauth_token_provider: for ``sasl.mechanism=OAUTHBEARER``: an object with
        ``token() -> str``. It goes to the tasks as it is now: what it opens later stays in the
        driver.
    :param ledger_topic: compacted topic of the ledger, created when missing (16 partitions).
    :param create_topic_partitions: create ``topic`` with that many partitions when it is missing;
        None: refuse.
    :param batch_attempts: how often one batch is tried, each time under a new epoch, before the
        query fails. With the weaker deliveries each try may leave records.
    :param batch_timeout_s: abort an attempt that runs longer, in seconds; None: no limit.
    :param checkpointing: what :func:`onceward.checkpointing` returns; sets ``batch_attempts`` and
        ``batch_timeout_s``, the pause between batches, and ``transaction.timeout.ms``.
    :param driver_records: a batch of a query without state that spans at most so many source
        records is sent by the driver, without Python workers, which saves their start; the plan
        itself runs in its tasks as ever. 0: never.
    :param driver_bytes: the driver goes on to send batches as long as they have at most so many
        payload bytes. One that turns out to have more rows than ``driver_records`` (of up to 50
        source records more than 100, of up to 500 more than 1,000) or far larger ones goes to
        tasks after all, and so do the next ones for a while. A plan that makes far more than it
        was given can bring about 64 times ``driver_bytes`` into the driver, or ``driver_records``
        kilobytes a task of the plan where that is more (with the defaults from some 27 tasks on).
        0: never.
    :param held_bytes: payload bytes that a task holds back before it sends, so that the
        transaction is open only while bytes move. A Python worker needs about 4 times as much
        beside some 140 MB for itself: 240 to 305 MB at the default of 32 MiB (measured with
        records of 16 B to 900 kB). Spark counts that to ``spark.executor.memoryOverhead``
        (default: a tenth of the heap, at least 384 MiB), once for each of the executor's cores.
    :param sequencer_host: host name under which executors reach the driver; None:
        ``spark.driver.host``.
    :param sequencer_port: port of the driver's sequencer; 0: any free one.
    :param lineage: each record names the source record that it was made of, in headers of its own
        (``onceward.topic``, ``onceward.partition``, ``onceward.offset``), so that ``onceward
        verify --conserves`` can account for the input. Frames must then have the columns that
        :func:`onceward.lineage` gives.
    :param dead_letter_topic: where records go that a format of the query cannot read
        (``ow.avro.decode(…, on_error="dead_letter")``), in the same transaction as the rest of the
        batch; see :mod:`.dead_letters` for their headers. Created like ``topic`` when it is
        missing.
    :param on_error: ``"stop"``: a record that is too large for ``topic`` fails the batch.
        ``"dead_letter"``: it goes to ``dead_letter_topic``, if its size before compression is
        above ``max.message.bytes`` of ``topic``.
    :param order_by: columns that grow from record to record of one key (the first counts most;
        nulls come first): records of a batch with one key are appended in their order, by one
        task. Equal ones come in any order. The columns are not written. Batches follow each other
        without it. Records without a key keep their order in each partition that they are put to,
        and one task writes all of them.
    :param order_within: ``"key"``; ``"topic"``: all records of a topic that a batch has are
        written by one task, so that each partition has them in order, whatever their keys.
    :raises ConfigurationError: any of these is wrong. Nothing is connected before the first batch.
    """

    place_word = "topic"
    is_atomic = True

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str],
        pipeline_id: str,
        topic: str | None = None,
        delivery: Delivery = "exactly_once",
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        options: Mapping[str, Any] | None = None,
        oauth_token_provider: TokenProvider | None = None,
        ledger_topic: str = DEFAULT_TOPIC,
        create_topic_partitions: int | None = None,
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        driver_records: int = 10_000,
        driver_bytes: int = 4 << 20,
        held_bytes: int = 32 << 20,
        sequencer_host: str | None = None,
        sequencer_port: int = 0,
        lineage: bool = False,
        dead_letter_topic: str | None = None,
        on_error: OnError = "stop",
        order_by: str | Sequence[str] | None = None,
        order_within: OrderWithin = "key",
    ) -> None:
        name = checked_pipeline_id(pipeline_id)
        client, producer = settings_from_options(
            bootstrap_servers,
            {} if options is None else options,
            client_id=f"onceward-{name}",
            oauth_token_provider=oauth_token_provider,
            delivery=delivery,
        )
        if oauth_token_provider is not None:
            client = replace(client, oauth_token_provider=TokensAsBuilt(oauth_token_provider))
        self.settings = KafkaSinkSettings(
            policy=SinkPolicy(
                name,
                delivery,
                resume,
                batch_attempts,
                batch_timeout_s,
                skipped_batches,
                checkpointing,
            ),
            topic=topic,
            client=client,
            producer=with_checkpointing(producer, checkpointing),
            ledger_topic=ledger_topic,
            create_topic_partitions=create_topic_partitions,
            driver_records=driver_records,
            driver_bytes=driver_bytes,
            held_bytes=held_bytes,
            sequencer_host=sequencer_host,
            sequencer_port=sequencer_port,
            lineage=lineage,
            dead_letter_topic=dead_letter_topic,
            on_error=on_error,
            order_by=names("order_by", order_by),
            order_within=order_within,
        )
        super().__init__(
            self.settings.policy,
            ledger=topic_place(client.bootstrap_servers, ledger_topic),
            settings=self.settings,
        )
        self._plain = None if self.settings.policy.has_ledger else PlainBatches(self.settings)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        topic = self.settings.topic if where is None else topic_name(where)
        if topic == self.settings.ledger_topic:
            raise ContradictoryOptions(
                f"topic={topic!r} is the ledger topic",
                next_step="write records to a topic of their own",
            )
        if where is not None and topic == self.settings.dead_letter_topic:
            raise ContradictoryOptions(
                f"topic={topic!r} is the dead-letter topic",
                next_step="write rows of your own to another topic",
            )
        must_be_a_frame(frame, " with a column 'value'")
        columns.check(frame, topic, lineage=self.settings.lineage, order_by=self.settings.order_by)
        # What is too large for the topic goes elsewhere: the ledger must not say that all of the
        # frame went there.
        rows_say = self.settings.on_error == "dead_letter" and topic == self.settings.topic
        return Write(frame, None if rows_say else topic)

    def _dead_letters(self, frame: DataFrame) -> Write:
        settings = self.settings
        if settings.dead_letter_topic is None:
            raise UnsupportedQuery(
                "the query sets records aside that it cannot read, and "
                f"KafkaSink({settings.policy.pipeline!r}) has no topic for them",
                next_step='pass dead_letter_topic="…" to KafkaSink, or on_error="stop" to '
                "decode(…)",
            )
        records = dead_letters.source_letters(
            frame, settings.policy.pipeline, lineage=settings.lineage
        )
        return Write(records, settings.dead_letter_topic, set_aside=True)

    def _process(self, frame: DataFrame, writes: Sequence[Write], running: RunningBatch) -> None:
        if self._plain is None:
            super()._process(frame, writes, running)
            return
        # Apart from that of a sink with a ledger, which may be called beside it
        memory = runs.memory(runs.RunKey(running.run_id, (self._where, "plain")))
        self._plain.process(writes, running, memory)

    def _record_failure(
        self,
        frame: DataFrame,
        batch_id: int,
        error: BaseException,
        writes: Sequence[Write] | None,
        run_id: str,
    ) -> None:
        if self._plain is None:
            super()._record_failure(frame, batch_id, error, writes, run_id)
        elif (call := failed_call(frame, batch_id)) is not None:
            number, in_thread = call
            refused = isinstance(error, OncewardError) and bool(error.details.get(ROWS_REFUSED))
            self._plain.fail(run_id, number, is_refused=refused or in_thread)

    def _new_target(self, policy: SinkPolicy) -> Target:
        return KafkaTarget(replace(self.settings, policy=policy))

    def __repr__(self) -> str:
        where = self.settings.topic or "column 'topic'"
        policy = self.settings.policy
        return (
            f"KafkaSink(pipeline_id={policy.pipeline!r}, topic={where}, "
            f"delivery={policy.delivery!r})"
        )
