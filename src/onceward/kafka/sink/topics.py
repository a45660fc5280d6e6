"""The settings of topics that matter to the sink: do they exist, how large may a batch be, how
long are records kept.

Driver only; called by :mod:`sink` and :mod:`run`, and by :mod:`plain`. A setting may be changed
while a query runs. The transaction timeout is not here: the coordinator checks it against
``transaction.max.timeout.ms`` when the producer id is taken
(``kafka.wire.transactions.transaction``), and the ledger topic looks after itself
(``ledger.topic``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from onceward import durable, surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    ContradictoryOptions,
    LimitLowered,
    OncewardError,
    RecordTooLarge,
    SendFailed,
    TopicMissing,
    UnsupportedBroker,
)
from onceward.ids import TopicPartition
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.sink.task_reports import KIND, Written
from onceward.kafka.source.topics_and_positions import source_topics
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.spark.batch.checkpoint_files import remove_planned
from onceward.spark.batch.query import KafkaSource, RunningBatch

log = logging.getLogger(__name__)

_SHRINK_FACTOR = 10
"""Where no limit may be seen: record batches become so many times smaller than the refused one."""
_LEAST_BYTES = 1_000
"""And no smaller than this, as ``batch.size``."""

_largest: dict[str, int] = {}
"""The largest limit seen, by topic and servers: that one was lowered outlasts a restart."""

_REPLICAS = 3
_DAY_MS = 86_400_000
_YOUNG_MS = _DAY_MS // 24
"""The brokers are not asked about records that are younger, which next to no topic deletes."""
_MOST_QUESTIONS = 10
"""After one batch: a ``topic`` column may name thousands."""
_PATIENCE_MS = 5_000
"""So long a question may take: the log can do without the answer."""


def check_topic(client: KafkaClient, settings: KafkaSinkSettings, topic: str | None) -> None:
    """Check that ``topic`` exists; create it if it is one of the sink's own and the sink was told
    to. None: the rows will say.

    :raises TopicMissing: naming the topic and both ways to get it.
    :raises BrokerUnreachable, AuthenticationFailed, AccessDenied: naming servers, mechanism or
        resource.
    """
    if topic is None:
        return
    try:
        client.topic_partitions([topic])
    except TopicMissing:
        own = (settings.topic, settings.dead_letter_topic)
        if settings.create_topic_partitions is None or topic not in own:
            raise TopicMissing(
                f"topic {topic!r} does not exist on "
                f"{', '.join(settings.client.bootstrap_servers)}",
                next_step="create it (kafka-topics --create)"
                + (", or build the sink with create_topic_partitions=N" if topic in own else ""),
                details={"topic": topic},
            ) from None
        log.debug("creating topic %s with %d partitions", topic, settings.create_topic_partitions)
        client.create_topic(topic, settings.create_topic_partitions)
        _warn_if_thin(client, topic)


def _warn_if_thin(client: KafkaClient, topic: str) -> None:
    # Of a broker or two, to try things out, no more can be had
    if len(client.brokers()) < _REPLICAS:
        return
    # Not every broker may have heard of the topic yet
    with suppress(OncewardError):
        if (replicas := client.replication_factor(topic)) < _REPLICAS:
            log.warning(
                "topic %s was created with replication factor %d, the brokers' default: the loss "
                "of one broker can stop the pipeline or lose what it has committed. Next: give it "
                "three replicas (kafka-reassign-partitions) and min.insync.replicas=2, or set "
                "default.replication.factor=3 on the brokers",
                topic,
                replicas,
            )


def refuse_own_topics(
    settings: KafkaSinkSettings, running: RunningBatch, sources: Sequence[KafkaSource]
) -> None:
    """Check that a query reads none of the topics that its sink is set to write to: what a batch
    writes would be the next one's input, without end. Rows may name such a topic.

    :param sources: those on the sink's cluster.
    :raises ContradictoryOptions: naming the topic and the setting.
    """
    own = {settings.dead_letter_topic: "dead_letter_topic", settings.topic: "topic"}
    if settings.policy.has_ledger:
        own[settings.ledger_topic] = "ledger_topic"
    read = {
        topic
        for source in sources
        for topic in source_topics(running.sources[source.index]) & own.keys()
    }
    # Where its sources begin Spark has logged already: with the checkpoint, and with each batch
    begun = {topic for source in sources for topic in running.sources[source.index].start or ()}
    name = min(read, default=None)
    if name is None:
        return
    anew = "start with another checkpointLocation (nothing of the batch is written)"
    if running.batch.batch_id:
        anew = f"{remove_planned(running.batch.batch_id)}, so that it is planned anew"
        if name in begun:
            anew += '; start once with kafka_source(spark_options={"failOnDataLoss": False}), as '
            anew += "this query has read the topic before"
    otherwise = "give the sink another one"
    if own[name] == "topic":
        otherwise = (
            "if the query tells its own records from others, leave topic= out of the sink and "
            "name the topic in the frame's column topic"
        )
    raise ContradictoryOptions(
        f"the query reads topic {name!r}, to which its sink writes ({own[name]}=): what a batch "
        "writes would be the next one's input, without end",
        next_step="leave it out of the source: of topic=, or of topic_pattern= by "
        f'"(?!{re.escape(name)}$)…"; and {anew}; or, {otherwise}',
        details={"topic": name},
    )


class TopicLimits:
    """How large record batches may be for the topics of one run: asked when it first writes there,
    and again when a topic refuses one."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._fitting: dict[str | None, ProducerSettings] = {}
        # By topic, what record batches may have since one was refused
        self._refused: dict[str, int] = {}
        self._asked: set[str] = set()

    def producer_settings(self, client: KafkaClient, topic: str | None) -> ProducerSettings:
        """Return settings with record batches no larger than ``topic`` takes; it is asked once,
        until it refuses one. Without the right to describe the topic's settings, or with a
        ``topic`` column, ``batch.size`` stays as it is until a topic refuses a batch."""
        if topic not in self._fitting:
            if topic is not None:
                self._asked.add(topic)
            limits = [] if topic is None else [self._limit(topic, self._config(client, topic))]
            refused = self._refused.values() if topic is None else [self._refused.get(topic)]
            smallest = min(
                (limit for limit in (*limits, *refused) if limit is not None), default=None
            )
            producer = self._settings.producer
            if smallest is not None and smallest < producer.batch_bytes:
                taken_by = topic or "of a row"
                log.debug("batch.size lowered to %d, which topic %s takes", smallest, taken_by)
                producer = replace(producer, batch_bytes=smallest)
            self._fitting[topic] = producer
        return self._fitting[topic]

    def learn(
        self, topic_config: Callable[..., Mapping[str, str | None]], topics: Iterable[str]
    ) -> None:
        """Ask topics of a ``topic`` column that were written to what they take, in case they take
        less later; each once. Never raises an error of ours. :param topic_config:
        :meth:`KafkaClient.topic_config`, or what calls it."""
        new = [topic for topic in topics if topic not in self._asked]
        for topic in new[:_MOST_QUESTIONS]:
            self._asked.add(topic)
            try:
                self._limit(topic, topic_config(topic, timeout_ms=_PATIENCE_MS))
            except OncewardError as error:
                log.debug("what topic %s takes is not known: %s", topic, error)
                # Brokers that are in trouble are not asked for the others, too
                if not isinstance(error, AccessDenied):
                    return

    def refused(self, client: KafkaClient, error: RecordTooLarge) -> OncewardError:
        """Ask the topic again after a refusal by a broker, and return the error that the refusal
        comes to.

        :returns: :class:`SendFailed` where smaller record batches will do, or the limit was raised
            meanwhile; :class:`LimitLowered` where the topic would have taken the record before, or
            another of its settings is to blame; else ``error``.
        """
        topic, size, records = (
            str(error.details["topic"]),
            int(error.details["bytes"]),
            int(error.details["records"]),
        )
        config = self._config(client, topic)
        limit = self._limit(topic, config)
        self._fitting.clear()
        # A limit that is no smaller than the batch was not the reason, or was raised meanwhile
        shrunk = max(_LEAST_BYTES, size // _SHRINK_FACTOR)
        fits = limit if limit is not None and limit < size else shrunk
        if records > 1 and fits < size:
            self._refused[topic] = fits
            return SendFailed(
                error.message,
                next_step=f"nothing: the batch runs again in record batches of at most {fits} "
                "bytes; if it repeats, lower batch.size",
                details=error.details,
            )
        before = self._largest(topic)
        if limit is not None and limit < size <= before:
            return LimitLowered(
                f"{error.message}; it was {before} before, which would do",
                next_step=f"set max.message.bytes of topic {topic} back to {before}, and the "
                "query goes on",
                details={**error.details, "before": before, "now": limit},
            )
        fits = limit is not None and size <= limit
        return self._refused_for_another_setting(error, topic, config) if fits else error

    def _refused_for_another_setting(
        self, error: RecordTooLarge, topic: str, config: Mapping[str, str | None]
    ) -> OncewardError:
        """Return the error for a record that ``max.message.bytes`` has room for."""
        size, compression = int(error.details["bytes"]), config.get("compression.type")
        if int(config.get("segment.bytes") or size) < size:
            next_step = f"raise segment.bytes of topic {topic} above {size}"
        elif compression not in (None, "producer", self._settings.producer.compression):
            next_step = (
                f"set compression.type of topic {topic} back to producer, or raise its "
                f"max.message.bytes: with {compression} brokers compress anew what they are sent, "
                "and it becomes larger"
            )
        else:
            return SendFailed(
                error.message,
                next_step="nothing: the topic has room for it by now, and the batch runs again",
                details=error.details,
            )
        return LimitLowered(
            f"{error.message}; max.message.bytes has room for it, and another setting has not",
            next_step=f"{next_step}; then the query goes on",
            details=error.details,
        )

    def _config(self, client: KafkaClient, topic: str) -> Mapping[str, str | None]:
        """Ask for the topic's settings; empty when they may not be seen, or the service has no
        such request (DescribeConfigs)."""
        try:
            return client.topic_config(topic)
        except (AccessDenied, UnsupportedBroker) as denied:
            log.debug("max.message.bytes of %s is not known: %s", topic, denied)
            return {}

    def _limit(self, topic: str, config: Mapping[str, str | None]) -> int | None:
        """Return ``max.message.bytes``, and remember the largest; None: not known."""
        value = config.get("max.message.bytes")
        if value is None:
            return None
        if int(value) > self._largest(topic):
            _largest[self._key(topic)] = int(value)
            durable.keep(self._key(topic), value)
        return int(value)

    def _largest(self, topic: str) -> int:
        """Return the largest limit that this process, or one before (``onceward run``), saw."""
        key = self._key(topic)
        return _largest.get(key) or int(durable.kept(key) or 0)

    def _key(self, topic: str) -> str:
        return (
            f"max.message.bytes of {topic} on {','.join(self._settings.client.bootstrap_servers)}"
        )


class RetentionCheck:
    """A warning about records that their topic's retention may delete as soon as they are written.

    Retention goes by the records' own timestamps where the topic has
    ``message.timestamp.type=CreateTime`` (the default): a segment is deleted when its newest
    timestamp is older than ``retention.ms`` (``UnifiedLog.deleteRetentionMsBreachedSegments``).
    And the marker of the first commit, which has the time of now, begins a new segment behind
    records that are older than ``segment.ms`` (``LogSegment.shouldRoll``). So what was committed
    exactly once is gone at the broker's next look, minutes later, and neither reader nor writer is
    told. Each topic of a run is asked once, and named once.

    :param config_of: ``KafkaClient.topic_config``.
    """

    def __init__(self, pipeline: str, config_of: Callable[..., Mapping[str, str | None]]) -> None:
        self._pipeline = pipeline
        self._config_of = config_of
        self._retention_ms: dict[str, int | None] = {}
        self._warned: set[str] = set()
        self._silent = False

    def check(self, oldest_ms: Mapping[str, int]) -> None:
        """Warn of topics that may delete what was just sent, by the oldest timestamps, in ms since
        1970. Never raises an error of ours."""
        now_ms = surroundings.wall_clock_ns() // 1_000_000
        ages = {
            topic: now_ms - oldest
            for topic, oldest in oldest_ms.items()
            if now_ms - oldest >= _YOUNG_MS
        }
        self._ask([topic for topic in ages if topic not in self._retention_ms][:_MOST_QUESTIONS])
        for topic, age_ms in ages.items():
            limit_ms = self._retention_ms.get(topic)
            if limit_ms is None or limit_ms >= age_ms or topic in self._warned:
                continue
            self._warned.add(topic)
            log.warning(
                "%s: topic %s was sent records that are %.1f days old by their timestamps, and "
                "keeps records for %.1f days (retention.ms=%d): its brokers may delete them as "
                "soon as they are written. Next: set retention.ms of the topic to -1 or to more "
                "than they are old, or leave the column `timestamp` out, which is then the time "
                "of writing",
                self._pipeline,
                topic,
                age_ms / _DAY_MS,
                limit_ms / _DAY_MS,
                limit_ms,
            )

    def _ask(self, topics: Sequence[str]) -> None:
        for topic in topics:
            if self._silent:
                return
            # Asked once, whatever comes of it
            self._retention_ms[topic] = None
            try:
                self._retention_ms[topic] = retention_ms(
                    self._config_of(topic, timeout_ms=_PATIENCE_MS)
                )
            except OncewardError as error:
                text = "%s: whether %s deletes old records is not known: %s"
                log.debug(text, self._pipeline, topic, error)
                # Brokers that are in trouble are not asked for the others, too.
                self._silent = not isinstance(error, AccessDenied)


class ReplacedTopics:
    """A warning about topics that lack what earlier batches have written. Offsets of a partition
    only grow: also where records are deleted or compacted. One that begins anew is of a topic that
    was deleted and created again, or has lost its end to an unclean leader election. What was
    committed before is gone then, and neither reader nor writer is told."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._last: dict[TopicPartition, int] = {}

    def begin(self, newest: LedgerRecord | None) -> None:
        """Go on from where the newest record ends."""
        output = None if newest is None else newest.outputs.get(KIND)
        for topic, partitions in ({} if output is None else output.data).items():
            for partition, (_, _, last_offset, _) in partitions.items():
                self._last[TopicPartition(topic, int(partition))] = last_offset

    def check(self, written: Written) -> None:
        """Warn, once each time, of topics in which what was written is not behind the last."""
        behind = {
            at: part for at, part in written.items() if part.first_offset <= self._last.get(at, -1)
        }
        for topic in sorted({at.topic for at in behind}):
            at = min(one for one in behind if one.topic == topic)
            log.warning(
                "%s: topic %s lacks what earlier batches have written: partition %d goes on at "
                "offset %d, and had %d before. It was deleted and created again, or an unclean "
                "leader election has cut it off. Next: `onceward verify` names the batches that "
                "are gone; to have their records again, read the source once more from before "
                "them, with another pipeline_id, into another topic",
                self._pipeline,
                topic,
                at.partition,
                behind[at].first_offset,
                self._last[at],
            )
            # Its other partitions begin anew as well
            for other in [other for other in self._last if other.topic == topic]:
                del self._last[other]
        self._last.update({at: part.last_offset for at, part in written.items()})


def retention_ms(config: Mapping[str, str | None]) -> int | None:
    """Return for how long a topic with these settings keeps a record, counted from its own
    timestamp; None: for ever, or counted from its writing, or not known."""
    by_their_own = config.get("message.timestamp.type") == "CreateTime"
    deletes = "delete" in (config.get("cleanup.policy") or "")
    found = int(config.get("retention.ms") or -1)
    return found if by_their_own and deletes and found >= 0 else None


def oldest_timestamps(*several: Mapping[str, int]) -> dict[str, int]:
    """Return the oldest timestamp of each topic."""
    oldest: dict[str, int] = {}
    for one in several:
        for topic, timestamp_ms in one.items():
            oldest[topic] = min(timestamp_ms, oldest.get(topic, timestamp_ms))
    return oldest
