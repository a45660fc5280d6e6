"""The state that one run of a query keeps from batch to batch, for its attempts. Driver only; made
by :mod:`sink`. Connections, the chain in the ledger with the transactional id, the consumer
group of the sources, the sequencer's port, and what was learned of topics."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from functools import partial

from pyspark import SparkContext

from onceward.engine.driver_rows import DriverTurn
from onceward.engine.ledger.admission import Resume
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    BrokerUnreachable,
    ConfigurationError,
    Fenced,
    LedgerBehind,
    OncewardError,
    RecordTooLarge,
    SendFailed,
    TransactionTimedOut,
    TransactionTimeoutTooShort,
    UnsupportedBroker,
)
from onceward.ids import BatchId, PipelineId, SourceRange, TopicPartition, least_offsets
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.sink.columns import DeadLetterRoute
from onceward.kafka.sink.rows import partition_counts
from onceward.kafka.sink.sequencer.leases import EpochLeases
from onceward.kafka.sink.sequencer.listener import Sequencer
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.sink.topics import ReplacedTopics, RetentionCheck, TopicLimits
from onceward.kafka.source.identity import has_the_same, remember_sink
from onceward.kafka.source.topics_and_positions import source_topics
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.error_table import PENDING_OFFSETS
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.kafka.wire.reads.offsets import committed_offsets
from onceward.kafka.wire.transactions.fencing import LONGER_OR_SMALLER, both_limits
from onceward.spark.batch.query import KafkaSource, RunningBatch
from onceward.spark.batch.shuffles import Shuffles

log = logging.getLogger(__name__)

_KAFKAS_MESSAGE_BYTES = 1_048_588
"""``max.message.bytes`` where nobody has set it."""
_PENDING_MS = 10_000
_METADATA_PREFIX = "batch "
"""Begins our offsets' metadata: those that somebody moved have none, and prove nothing."""


class KafkaRun:
    """One run of a query against one Kafka cluster."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        pipeline = settings.policy.pipeline
        self.settings = settings
        self.client = KafkaClient(settings.client)
        self.chain = KafkaChain(
            self.client, settings.ledger_topic, pipeline, settings.producer, owns_client=False
        )
        self.group = GroupOffsets(self.client, pipeline, settings.ledger_topic)
        self.shuffles = Shuffles()
        self.driver_turn = DriverTurn(settings.driver_records, settings.driver_bytes)
        self.retention = RetentionCheck(pipeline, self.client.topic_config)
        self.replaced = ReplacedTopics(pipeline)
        self._sequencer: Sequencer | None = None
        self.limits = TopicLimits(settings)
        self._dead_letter_route: DeadLetterRoute | None = None
        # the last batch that needed more than the transaction's time by itself
        self._overdue: BatchId | None = None
        # the last batch whose epoch was poisoned, and how often
        self._poisoned: tuple[BatchId | None, int] = (None, 0)

    def sequencer(self, context: SparkContext) -> Sequencer:
        """Return the sequencer of this run, on its port."""
        if self._sequencer is None:
            bind, advertised = sequencer_hosts(context, self.settings)
            self._sequencer = Sequencer(bind, advertised, self.settings.sequencer_port)
        return self._sequencer

    def close_epoch(self) -> EpochLeases | None:
        """End the epoch: no task gets another lease. Return what was booked, if there was one."""
        return None if self._sequencer is None else self._sequencer.close_epoch()

    def partition_counts(self, topic: str | None) -> Callable[[str], int]:
        """Return a function from topics to partition counts; ``topic`` has that of now."""
        counts = {} if topic is None else {topic: self.partition_count(topic)}
        return partition_counts(self.client, counts, self.settings.ledger_topic)

    def partition_count(self, topic: str) -> int:
        """Ask how many partitions ``topic`` has now."""
        return len(self.client.topic_partitions([topic])[topic])

    def producer_settings(self, topic: str | None) -> ProducerSettings:
        """Return settings whose record batches the topic takes, as far as is known."""
        return self.limits.producer_settings(self.client, topic)

    def explain(self, error: OncewardError) -> OncewardError:
        """Return the error that a task's error comes to. What was learned of a topic that refuses
        a record is forgotten. A task, or the producer, cannot tell fencing from a transaction that
        timed out, nor a limit that was lowered from a record that never fitted; the driver can."""
        if isinstance(error, Fenced):
            return self.chain.transaction.explain(error)
        # not said by a broker
        if not isinstance(error, RecordTooLarge) or "records" not in error.details:
            return error
        route, self._dead_letter_route = self._dead_letter_route, None
        found = self.limits.refused(self.client, error)
        if (
            found is error
            and route is not None
            and int(error.details["bytes"]) < route.limit_bytes
        ):
            return SendFailed(
                error.message,
                next_step=f"nothing: the batch runs again, and such records go to {route.topic}",
                details=error.details,
            )
        return found

    def dead_letter_route(self, topic: str | None) -> DeadLetterRoute | None:
        """Return where records go that ``topic`` would not take; None: they fail the batch.
        :raises AccessDenied: its ``max.message.bytes`` may not be seen."""
        settings = self.settings
        if (
            settings.on_error != "dead_letter"
            or topic != settings.topic
            or settings.dead_letter_topic is None
        ):
            return None
        if self._dead_letter_route is None:
            self._dead_letter_route = DeadLetterRoute(
                settings.dead_letter_topic, settings.policy.pipeline, self._message_bytes(topic)
            )
        return self._dead_letter_route

    def must_be_too_large_still(self) -> None:
        """Raise SendFailed if the limit by which records became dead letters was raised since."""
        route, topic = self._dead_letter_route, self.settings.topic
        if route is None or (now := self._message_bytes(topic)) <= route.limit_bytes:
            return
        self._dead_letter_route = None
        raise SendFailed(
            f"max.message.bytes of topic {topic} was raised from {route.limit_bytes} to {now}, "
            "and the batch has records that were too large before",
            next_step=f"nothing: the batch runs again, and what fits goes to {topic}",
        )

    def _message_bytes(self, topic: str | None) -> int:
        try:
            found = self.client.topic_config(str(topic)).get("max.message.bytes")
        except UnsupportedBroker as error:
            raise ConfigurationError(
                f"which records topic {topic} takes is not known, and on_error='dead_letter' sets "
                f"aside larger ones: {error.message}",
                next_step="leave out on_error=, with which a record that is too large stops the "
                "query",
            ) from error
        return int(found or _KAFKAS_MESSAGE_BYTES)

    def is_poisoned_again(self, batch: BatchId) -> bool:
        """Count one more poisoned epoch of ``batch``; return whether that is the second, or the
        first of a batch that has no second attempt."""
        known, times = self._poisoned
        self._poisoned = batch, times + 1 if known == batch else 1
        return self._poisoned[1] == min(2, self.settings.policy.batch_attempts)

    def timeout_error(
        self, running: RunningBatch, unacknowledged_s: float
    ) -> OncewardError | None:
        """Return the error of a transaction whose time is over: the coordinator aborts it, and
        tells whoever sends next; but that may be minutes from now. :param unacknowledged_s: for
        how long the oldest records on their way have been waiting for brokers."""
        transaction = self.chain.transaction
        open_for_ms = transaction.open_for_ms
        if open_for_ms <= transaction.timeout_ms:
            return None
        size = (
            ""
            if running.input_records is None
            else f" of {running.input_records:,} source records"
        )
        what = (
            f"{running.batch}{size} was not sent in time: its transaction has been open for "
            f"{open_for_ms:.0f} ms, counted from its first record"
        )
        patient_ms = min(transaction.timeout_ms, self.settings.producer.delivery_timeout_ms) / 2
        if unacknowledged_s * 1000 > patient_ms:
            # They are not asked for their limit: tasks wait for this.
            return TransactionTimedOut(
                f"{what} (transaction.timeout.ms={transaction.timeout_ms}); for the last "
                f"{unacknowledged_s:.0f} s brokers have not acknowledged records that were sent",
                next_step="see that the brokers take records (leaders, min.insync.replicas, the "
                "network); the batch runs again",
            )
        what = f"{what} ({both_limits(self.client, transaction.timeout_ms)})"
        # Once is bad luck (an executor that died); twice it is the batch, and a third time would
        # be no better.
        again, self._overdue = self._overdue == running.batch, running.batch
        if again:
            return TransactionTimeoutTooShort(
                f"{what}, and not when it was tried again", next_step=LONGER_OR_SMALLER
            )
        return TransactionTimedOut(
            what, next_step=f"the batch runs again; if it repeats, {LONGER_OR_SMALLER}"
        )

    def close(self) -> None:
        """Give back connections and threads. Never raises."""
        for part in (self._sequencer, self.client):
            if part is not None:
                try:
                    part.close()
                except (OncewardError, OSError) as error:
                    log.debug("closing: %s", error)
        self._sequencer = None


class GroupOffsets:
    """The pipeline's consumer group, for the Kafka sources that lie on the cluster which the sink
    writes to. Their offsets are committed within the transaction, for consumer group
    ``pipeline_id``; and they betray a ledger that has lost records: offsets and ledger record
    commit together, so that the group never is ahead of the ledger."""

    def __init__(self, client: KafkaClient, pipeline: PipelineId, ledger_topic: str) -> None:
        self._client = client
        self._pipeline = pipeline
        self._ledger_topic = ledger_topic
        self._same_cluster: set[frozenset[str]] = set()
        self._others: set[frozenset[str]] = set()

    def client_for(self, source: KafkaSource) -> KafkaClient | None:
        """Return the sink's own client for a source on the same cluster. Once found there it stays
        so: a broker that is down is not among the cluster's addresses."""
        servers = source.bootstrap_servers
        if servers not in self._same_cluster and self._client.is_served_by(servers):
            self._remember(servers)
        return self._client if servers in self._same_cluster else None

    def _remember(self, servers: frozenset[str]) -> None:
        self._same_cluster.add(servers)
        remember_sink(servers, self._client.settings)

    def _look_for(self, source: KafkaSource, topics: set[str]) -> None:
        """Find out whether a source is on the same cluster by another name of its brokers."""
        servers = source.bootstrap_servers
        if not topics or servers in self._others or self.client_for(source) is not None:
            return
        if has_the_same(topics, source, self._client):
            self._remember(servers)
            return
        self._others.add(servers)
        log.info(
            "%s: %s is not known as the sink's cluster: offsets of its sources are not committed "
            "for group %s",
            self._pipeline,
            ",".join(sorted(servers)),
            self._pipeline,
        )

    def end_offsets(self, running: RunningBatch) -> dict[TopicPartition, int]:
        """Return where the batch ends, for the group; without another cluster's offsets."""
        return least_offsets(source.end for source in self._sources(running).values())

    def metadata(self, running: RunningBatch) -> str:
        """Return the metadata that go with :meth:`end_offsets`."""
        return f"{_METADATA_PREFIX}{running.batch.batch_id}"

    def refuse_ledger_behind(
        self, running: RunningBatch, newest: LedgerRecord | None, resume: Resume
    ) -> None:
        """Check at the start of a run, when nobody else can commit any more, that the group fits
        the ledger. Of the ledger's sources only those on this cluster count: another one may have
        topics of the same names.

        :raises LedgerBehind: the group has been committed further than the ledger goes.
        """
        local = self._sources(running)
        if not local:
            return
        committed = self._committed()
        if newest is not None:
            expected = least_offsets(
                source.end for index, source in enumerate(newest.sources) if index in local
            )
        elif resume in ("adopt", "skip_missing"):
            # A chain is begun on purpose; admission says whether it may be
            expected = least_offsets(source.start for source in local.values())
        else:
            # no chain has begun, so nothing can be committed
            expected = dict.fromkeys(committed, -1)
        ahead = {
            p: offset for p, offset in committed.items() if p in expected and offset > expected[p]
        }
        if ahead:
            raise LedgerBehind(
                f"consumer group {self._pipeline} was committed by this pipeline up to "
                f"{_text(ahead)}, but "
                f"{'the ledger ends before' if newest else 'there is no ledger record'}: the "
                f"ledger topic {self._ledger_topic} was deleted, truncated or restored from an "
                "older copy, or the pipeline's is another one",
                next_step="if ledger_topic= was changed, set it back; else restore the ledger "
                "topic; or, if the checkpoint's next batch begins at "
                "the group's offsets (kafka-consumer-groups --describe --group "
                f'{self._pipeline}), start once with resume="adopt" while the ledger is empty; '
                "or, to begin anew on purpose, use a new pipeline_id",
                details={
                    "group": self._pipeline,
                    "committed": {str(p): o for p, o in ahead.items()},
                },
            )

    def _committed(self) -> dict[TopicPartition, int]:
        ask = partial(committed_offsets, self._client, self._pipeline, note=_METADATA_PREFIX)
        try:
            return ask(timeout_ms=_PENDING_MS)
        except BrokerUnreachable as pending:
            if pending.details.get("reason") != PENDING_OFFSETS:
                raise
            # The last transaction is complete, but Kafka 4.3 may have written no marker for the
            # group (KAFKA-20734): then the next batch's is the first that comes. What is pending
            # is the ledger's newest batch, so that what stands before it shows as much.
            log.warning("%s: read without what is pending: %s", self._pipeline, pending.message)
            return ask(require_stable=False)

    def _sources(self, running: RunningBatch) -> dict[int, SourceRange]:
        return {source.index: running.sources[source.index] for source in self.sources(running)}

    def sources(self, running: RunningBatch) -> list[KafkaSource]:
        """Return the batch's sources on this cluster."""
        for each in running.kafka_sources:
            self._look_for(each, source_topics(running.sources[each.index]))
        return [each for each in running.kafka_sources if self.client_for(each) is not None]


def _text(offsets: Mapping[TopicPartition, int], limit: int = 20) -> str:
    excerpt = dict(
        sorted((str(partition), offset) for partition, offset in offsets.items())[:limit]
    )
    return json.dumps(excerpt) + (" …" if len(offsets) > limit else "")


_LOOPBACK = "127.0.0.1"


def sequencer_hosts(context: SparkContext, settings: KafkaSinkSettings) -> tuple[str, str]:
    """Return where the sequencer listens, and the name under which executors reach it.

    Like Spark's own driver ports: it listens on ``spark.driver.bindAddress`` (default:
    ``spark.driver.host``), and executors connect to ``spark.driver.host`` unless
    ``sequencer_host`` says otherwise. In local mode everything is in one machine, and its loopback
    interface is enough, unless ``sequencer_host`` is on another one.
    """
    given, driver, bind = settings.sequencer_host, _LOOPBACK, None
    if (context.master or "").startswith("local[") or context.master == "local":
        if given is None or given == "localhost" or given.startswith("127."):
            return _LOOPBACK, given or _LOOPBACK
    else:
        conf = context.getConf()
        driver = conf.get("spark.driver.host") or driver
        bind = conf.get("spark.driver.bindAddress")
    if given is not None:
        # The name given is not ours to bind; every connection must show the token.
        return bind or ("::" if ":" in driver + given else "0.0.0.0"), given  # noqa: S104
    return bind or driver, driver
