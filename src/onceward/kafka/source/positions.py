"""Start positions as Spark's Kafka source wants them: JSON with an offset for every partition of
every topic.

Called by :mod:`onceward.kafka.source.source`; runs in the driver. Spark refuses
``startingOffsets`` that leave a partition out (``KafkaOffsetReader.fetchSpecificOffsets``), so
what nobody knows is filled in here, on purpose and by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import ConfigurationError
from onceward.ids import PipelineId, TopicPartition, is_kafka_offset, partition_offsets
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.offsets import committed_offsets

Otherwise = Literal["earliest", "latest", "error"]

_LONGEST_TEXT = 600
# Spark: KafkaOffsetRangeLimit.EARLIEST and LATEST
_SPECIAL = {"earliest": -2, "latest": -1}


def committed_positions(
    client: KafkaClient, group: str, partitions: Mapping[str, Sequence[int]]
) -> dict[TopicPartition, int]:
    """Return what consumer group ``group`` has committed for these partitions, or is about to
    commit in a transaction.
    """
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
    """Return ``startingOffsets`` for all ``partitions``: ``known`` ones, and ``otherwise`` for the
    rest.

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
                offset = _SPECIAL[fallback]
            starts.setdefault(topic, {})[str(number)] = offset
    return json.dumps(starts)
