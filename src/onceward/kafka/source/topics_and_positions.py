"""Topics that a Kafka source reads, and where it starts in them. Driver only; called by
:mod:`onceward.kafka.source.source`.

Start positions are JSON with an offset for every partition of every topic. Spark refuses
``startingOffsets`` that leave a partition out (``KafkaOffsetReader.fetchSpecificOffsets``), so
what nobody knows is filled in here, on purpose and by name. Topics are read by name, or all whose
names match a pattern. What differs is what Spark is told, which topics there are, and what a topic
is that nobody has a position of: of named ones it was added to the list, under a pattern it is
new. At the end, for :mod:`onceward.kafka.source.identity`, the errors for topics that are gone or
others, batches planned with them, and positions that a log does not have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from pyspark.sql import SparkSession

from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import must_be_a_ledger
from onceward.errors import (
    AccessDenied,
    BrokerUnreachable,
    ConfigurationError,
    ContradictoryOptions,
    OncewardError,
    PartitionsAdded,
    SourceDataLost,
    SourceTopicReplaced,
    TopicMissing,
)
from onceward.ids import (
    PipelineId,
    SourceRange,
    TopicPartition,
    is_kafka_offset,
    kafka_spans,
    partition_offsets,
    topic_name,
)
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.offsets import committed_offsets
from onceward.spark.batch.checkpoint_files import PLAN_ANEW, remove_planned
from onceward.spark.batch.failures import AT_THE_NEW_END
from onceward.spark.batch.kafka_reader import matching, whole_names
from onceward.spark.batch.query import KafkaSource, RunningBatch


class NamedTopics:
    """``subscribe``: topics by name. ``option`` is Spark's, with its value; ``names`` are known
    without a broker; ``short_name`` is for the brokers' logs; ``new_topics`` is where an unknown
    topic begins if others are known (None: where the caller says). As text the topics are as
    messages name them."""

    new_topics: Literal["earliest"] | None = None

    def __init__(self, names: Collection[str]) -> None:
        self.names = [topic_name(name) for name in names]
        if not self.names:
            raise ConfigurationError(
                "topic=[] names no topic", next_step="name at least one topic"
            )
        self.option = ("subscribe", ",".join(self.names))
        self.short_name = self.names[0]

    def there(self, client: KafkaClient) -> list[str]:
        """Return the topics of the cluster that are read, as of now."""
        return self.names

    def among(self, names: Collection[str]) -> list[str]:
        """Return those of ``names`` that are read, whether or not they exist."""
        return [name for name in self.names if name in names]

    def __str__(self) -> str:
        return ", ".join(self.names)


class TopicsByPattern:
    """``subscribePattern``: Spark lists the cluster's topics before each batch, and reads new ones
    from the earliest offset. Otherwise as :class:`NamedTopics`."""

    new_topics: Literal["earliest"] | None = "earliest"
    names: Sequence[str] = ()
    short_name = "pattern"

    def __init__(self, spark: SparkSession, pattern: str) -> None:
        self._spark, self._pattern = spark, pattern
        self._anchored = whole_names(spark, pattern)
        self.option = ("subscribePattern", self._anchored)

    def there(self, client: KafkaClient) -> list[str]:
        return self.among(client.topic_names())

    def among(self, names: Collection[str]) -> list[str]:
        return matching(self._spark, self._anchored, names)

    def __str__(self) -> str:
        return f"topics that match {self._pattern}"


TopicsRead = NamedTopics | TopicsByPattern


def topics_read(
    spark: SparkSession, topic: str | Sequence[str] | None, pattern: str | None
) -> TopicsRead:
    """Take ``topic=`` or ``topic_pattern=`` of ``kafka_source``, whichever is given.

    :raises ContradictoryOptions: both.
    :raises ConfigurationError: neither, or what cannot be.
    """
    if pattern is not None and topic is not None:
        raise ContradictoryOptions(
            f"topic={topic!r} and topic_pattern={pattern!r}: a source reads topics by name or by "
            "pattern",
            next_step="remove one of the two; a pattern takes names, too: "
            "topic_pattern='people|orders-.*'",
        )
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigurationError(
                f"topic_pattern={pattern!r} is no pattern",
                next_step="pass a regular expression, such as 'orders-.*'",
            )
        return TopicsByPattern(spark, pattern)
    if topic is None:
        raise ConfigurationError(
            "kafka_source was given neither topic= nor topic_pattern=",
            next_step="name the topic, several as a list, or all of a kind by "
            "topic_pattern='orders-.*'",
        )
    names = [topic] if isinstance(topic, str) else topic
    if not isinstance(names, Collection):
        raise ConfigurationError(
            f"topic={topic!r} is no name", next_step="pass the topic's name, or a list of names"
        )
    if any(isinstance(name, str) and "," in name for name in names):
        parts = [part.strip() for name in names for part in str(name).split(",")]
        several = [part for part in parts if part]
        raise ConfigurationError(
            f"topic={topic!r} names several topics in one string",
            next_step=f"pass a list: topic={several!r}" if several else "name the topic",
        )
    return NamedTopics(names)


Otherwise = Literal["earliest", "latest", "error"]

_LONGEST_TEXT = 600
# Spark: KafkaOffsetRangeLimit.EARLIEST and LATEST
SPECIAL = {"earliest": -2, "latest": -1}


def committed_positions(
    client: KafkaClient, group: str, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    """Return what consumer group ``group`` has committed for these partitions, or is about to
    commit in a transaction."""
    wanted = {
        TopicPartition(topic, number)
        for topic, numbers in partitions.items()
        for number in numbers
    }
    return committed_offsets(client, group, partitions=wanted) if wanted else {}


def topics_in(record: LedgerRecord | None) -> set[str]:
    """Return the topics that ``record`` ends in, over all its Kafka sources."""
    ends = (
        [source.end for source in record.sources if is_kafka_offset(source.end)] if record else []
    )
    return {topic for end in ends for topic in end}


def ledger_positions(
    record: LedgerRecord | None, pipeline: PipelineId, topics: Collection[str], wanted: str
) -> dict[TopicPartition, int]:
    """Return where ``record``, the newest of ``pipeline``, ends in the sources that read
    ``topics``; empty when there is none.

    :param wanted: what the query reads, for the error.
    :raises ConfigurationError: the record is of other topics, or its sources that read these end
        at different offsets.
    """
    if record is None:
        return {}
    every = [source.end for source in record.sources if is_kafka_offset(source.end)]
    some = [end for end in every if set(end) & set(topics)]
    ends = [end for end in some if set(end) == set(topics)] or some
    if not ends:
        raise ConfigurationError(
            f"the ledger of {pipeline} knows no source that reads {wanted}; its read "
            f"{[sorted(end) for end in every]}",
            next_step="name the topics of one of these sources, or start at another position",
        )
    if len(distinct(ends)) > 1:
        raise ConfigurationError(
            f"the ledger of {pipeline} knows several sources that read {wanted}, and which of "
            f"their ends this one goes on at is not known: {json.dumps(ends)[:_LONGEST_TEXT]}",
            next_step='read with spark.readStream.format("kafka"), the option '
            "kafka.isolation.level=read_committed and, in the order of the query's sources, one "
            "of these ends each as startingOffsets; or restore the checkpoint",
            details={"ends": ends},
        )
    return partition_offsets(ends[0])


def distinct(ends: Sequence[Any]) -> list[Any]:
    """Return where sources end, each place once: of two that end alike either goes on."""
    return [end for index, end in enumerate(ends) if end not in ends[:index]]


def newest_in(ledger: Ledger, pipeline: PipelineId) -> LedgerRecord | None:
    """Return the newest record of ``pipeline``; None where there is none. Disturbs nobody."""
    must_be_a_ledger(ledger)
    chain = ledger.chain(pipeline)
    try:
        return next(chain.history(1), None)
    finally:
        chain.close()


def starting_json(
    partitions: Mapping[str, Sequence[int]],
    known: Mapping[TopicPartition, int],
    otherwise: Otherwise,
    *,
    where: str,
    new_partitions: Literal["earliest"] | None = None,
    new_topics: Literal["earliest"] | None = None,
) -> str:
    """Return ``startingOffsets`` for all ``partitions``: ``known`` ones, else ``otherwise``.

    :param where: who knows, for the error.
    :param new_partitions: what a partition takes whose topic is known but which is not: it was
        added since.
    :param new_topics: what every unknown partition takes if any is known: a pattern has found more
        since.
    :raises ConfigurationError: ``otherwise`` is "error" and a partition is unknown.
    """
    if new_topics and known:
        otherwise = new_topics
    elif new_topics and otherwise != "error":
        # for whatever the pattern finds once the query begins
        return otherwise
    known_topics = {partition.topic for partition in known}
    starts: dict[str, dict[str, int]] = {}
    for topic, numbers in partitions.items():
        fallback: str = new_partitions if new_partitions and topic in known_topics else otherwise
        for number in numbers:
            offset = known.get(TopicPartition(topic, number))
            if offset is None:
                if fallback == "error":
                    raise ConfigurationError(
                        f"{where} has no offset of {topic}-{number}",
                        next_step='choose another starting=, or otherwise="earliest" or "latest"',
                    )
                offset = SPECIAL[fallback]
            starts.setdefault(topic, {})[str(number)] = offset
    return json.dumps(starts)


def no_leader(partition: TopicPartition, running: RunningBatch, why: str) -> BrokerUnreachable:
    """Return the error for a log of which nobody can be asked."""
    return BrokerUnreachable(
        f"the leader of {partition} cannot be asked what it has of {running.batch}: {why}",
        next_step="nothing; the batch runs again. If it repeats, see that the partition has a "
        "leader",
    )


def not_heard_of(lost: OncewardError, running: RunningBatch) -> BrokerUnreachable:
    """Return the error for partitions that Spark found, and asked a broker for that is behind."""
    return BrokerUnreachable(
        f"Spark asked a broker that had not yet heard of partitions that are new in {running}: "
        f"{lost.message}",
        next_step="nothing; the batch runs again. If it repeats, look for a broker that is cut "
        "off from the controllers",
    )


def goes_back(
    partition: TopicPartition, running: RunningBatch, offsets: tuple[int, int, int]
) -> SourceDataLost:
    """Return the error for a batch that ends before it starts. :param offsets: of its start, its
    end, and the log's end."""
    start, end, latest = offsets
    return SourceDataLost(
        f"{running.batch} goes back in {partition}, from offset {start} to {end}, and its leader "
        f"has records up to {latest}. Either a broker that no longer leads it, or one of another "
        "cluster (bootstrap_servers=), has told Spark an end: then records would be written "
        "again. Or its end was lost, by an unclean leader "
        "election, and the log has grown since",
        next_step="look for an unclean election in the brokers' logs. Without one, "
        f"{remove_planned(running.batch.batch_id)}, and start the query again: Spark asks for the "
        f"end anew. After one, {AT_THE_NEW_END}",
    )


def cut_off(
    partition: TopicPartition, running: RunningBatch, offsets: tuple[int, int, int]
) -> SourceDataLost:
    """Return the error for a log that ends before the batch does. :param offsets: as above."""
    start, end, latest = offsets
    return SourceDataLost(
        f"the log of {partition} ends at offset {latest}, and ended at {end} or behind when "
        f"{running.batch} was planned: its end was lost (an unclean leader election, or a topic "
        "created again), or brokers of another cluster (bootstrap_servers=) have told it",
        next_step="find out what the replicas that are left have lost, and prevent it "
        "(unclean.leader.election.enable=false, replication); then "
        f"{remove_planned(running.batch.batch_id)}, and start the query again: it goes on with "
        "what the log has now"
        + (
            ""
            if latest >= start
            else ', started once with kafka_source(spark_options={"failOnDataLoss": False}), as '
            f"this ends before offset {start}, from which the batch was to read: do so at once, "
            "for what comes below that offset before is skipped"
        ),
        details={"partition": str(partition), "ended": end, "ends": latest},
    )


def missing_topic(missing: TopicMissing) -> str:
    """Return the name of the topic that is missing."""
    return str(missing.details.get("subject")).removeprefix("topic ")


def committed_with(missing: TopicMissing, running: RunningBatch) -> SourceDataLost:
    """Return the error for a topic that is gone, of a committed batch that is computed again."""
    return SourceDataLost(
        f"{running.batch} is committed, and topic {missing_topic(missing)}, which it has read, "
        "does not exist any more: what Spark has not noted of the batch cannot be computed again",
        next_step="where bootstrap_servers= leads to another cluster now, correct it; else begin "
        "anew with another pipeline_id and checkpoint, without the topic",
        details=missing.details,
    )


def source_topics(source: SourceRange) -> set[str]:
    """Return the topics that the batch has offsets of."""
    return set(source.end) if is_kafka_offset(source.end) else set()


def unwanted(source: KafkaSource, running: RunningBatch) -> set[str]:
    """Return the topics that are new in the batch, and no longer in the source's list: of them
    nothing is written, and Spark would end the batch behind what it cannot read."""
    starts, ends = kafka_spans(running.sources[source.index])
    return ends.keys() - starts.keys() - source.names if source.names else set()


def planned_otherwise(
    less: Sequence[str], more: Sequence[str], running: RunningBatch
) -> PartitionsAdded:
    """Return the error for a batch planned without topics that it should have, or with others."""
    number = running.batch.batch_id
    without = f" without topic {', '.join(less)}, or a part of it, which earlier batches have read"
    how = [f"{without} and which is there"] if less else []
    how += [f" with topic {', '.join(more)}, which is new and not in topic= now"] if more else []
    return PartitionsAdded(
        f"{running.batch} was planned{', and'.join(how)}: topic= or topic_pattern= was another "
        "one then, the principal lacked the right to describe a topic, or a broker lagged behind",
        next_step=_plan_anew(number),
        details={"topics": [*less, *more], PLAN_ANEW: number},
    )


def in_another_order(
    topics: Sequence[str],
    source: KafkaSource,
    running: RunningBatch,
    *,
    is_committed: bool = False,
) -> SourceTopicReplaced:
    """Return the error for sources that have changed places since the checkpoint."""
    moved = (
        "or, where a topic is to move to another source, leave it out of both for one start with "
        'kafka_source(spark_options={"failOnDataLoss": False}) (it is then read there from its '
        "first record), "
    )
    return SourceTopicReplaced(
        f"the sources of the query have changed places, as topic {', '.join(topics)} of source "
        f"{source.index} shows: they are in another order in the program than in the checkpoint, "
        "or bootstrap_servers= of one leads to the cluster of another. Spark tells them apart by "
        "their places alone, and would read each from where another one has ended",
        next_step="put them back in their order (in a union or join, say), "
        + ("" if is_committed else f"{moved}{remove_planned(running.batch.batch_id)}, ")
        + "and start the query again",
        details={"topics": list(topics)},
    )


def replaced(
    topics: Sequence[str], ids: Sequence[str], running: RunningBatch, *, is_committed: bool
) -> SourceTopicReplaced:
    """Return the error for topics that were created again; ``ids`` of now and of the ledger."""
    number = running.batch.batch_id
    counted = f" and a function that only counts batch {number}, being committed (frame.count())"
    return SourceTopicReplaced(
        f"source topic {', '.join(topics)} was deleted and created again, or bootstrap_servers= "
        f"leads to another cluster: its id is {ids[0]}, and the ledger ends in {ids[1]}; the "
        "checkpoint's offsets name other records",
        next_step="where it is another cluster by mistake, correct bootstrap_servers=, "
        + ("" if is_committed else f"{remove_planned(number)}, ")
        + "and start the query again; to read the new topic from its beginning, start with a "
        'new pipeline_id, a new checkpoint and kafka_source(starting="earliest"); if it holds the '
        "old records at their old offsets, start with a new pipeline_id on this checkpoint, once "
        'with resume="adopt"' + (counted if is_committed else ""),
        details={"topics": list(topics)},
    )


def planned_with(missing: TopicMissing, running: RunningBatch) -> TopicMissing | PartitionsAdded:
    """Return the error for a batch of a topic that is gone: Spark reads what it has logged, and
    only a new plan leaves the topic out."""
    topic, number = missing_topic(missing), running.batch.batch_id
    read_by = [
        (each.may_lose and each.finds(topic)) or topic in unwanted(each, running)
        for each in running.kafka_sources
        if topic in source_topics(running.sources[each.index])
    ]
    message = (
        f"{running.batch} was planned with topic {topic}, which does not exist any more, and "
        "Spark would look for it at each start"
    )
    if read_by and all(read_by):
        step = _plan_anew(number, "without the topic")
        return PartitionsAdded(message, next_step=step, details={PLAN_ANEW: number})
    return TopicMissing(
        message,
        next_step="where bootstrap_servers= leads to another cluster now, correct it; else do "
        "not create it anew: its records would be others. To go on without it, and "
        f"without its records that were not read, {remove_planned(number)}, take it out of topic= "
        "where that names it, and start once with "
        'kafka_source(spark_options={"failOnDataLoss": False})',
        details=missing.details,
    )


def hidden(topic: str, running: RunningBatch, denied: AccessDenied) -> AccessDenied:
    """Return the error for a topic that the principal may not describe."""
    return AccessDenied(
        f"{running.batch} was planned without topic {topic}, which earlier batches have read: "
        "brokers, asked for all topics (topic_pattern), leave out without a word what the "
        f"principal may not describe. Asked for it by name: {denied.message}",
        next_step=f"grant Read on topic {topic} (kafka-acls --add), also where it was deleted; "
        f"then {_plan_anew(running.batch.batch_id)}",
        details=denied.details,
    )


def _plan_anew(number: int, how: str = "with the topics of now") -> str:
    return (
        f"{remove_planned(number)}, and start the query again: it is planned anew, {how}; "
        "ow.supervise does both by itself"
    )
