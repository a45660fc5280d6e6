"""The small values that everything else passes around. No I/O, no Spark, no Kafka client.

Runs everywhere: in the driver, in executor tasks, in the command line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType

from onceward.errors import ConfigurationError, InvalidTopicName

PipelineId = NewType("PipelineId", str)
"""The stable name of one query: its transactional id, its consumer group and its ledger key."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
# Kafka: org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH
_TOPIC_MAX_LENGTH = 249
_PIPELINE_MAX_LENGTH = 200

MAX_EPOCH = 32_767
"""Producer epochs have 16 bits, signed; at rollover the coordinator gives a new producer id."""

FAILING_SINCE = "ONCEWARD_FAILING_SINCE"
"""Environment variable of a job under ``onceward run``: the Unix time since when no process of it
has committed a batch, where the one before has failed.
"""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdentity(NamedTuple):
    """The identity by which brokers fence: producer id and epoch (KIP-98, KIP-360, KIP-890)."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"


class AttemptId(NamedTuple):
    """One attempt at a batch: its owner, and a number. No two attempts of a pipeline have the
    same.

    ``owner`` is what the ledger's store fences by, ``number`` counts: in Kafka the producer id and
    its epoch, elsewhere a takeover and the attempts since.
    """

    owner: int
    number: int

    def __str__(self) -> str:
        return f"attempt {self.owner}-{self.number}"


class BatchId(NamedTuple):
    """A micro-batch as Spark names it: the query's id, of the checkpoint, and a number."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of one Spark task, by its ``TaskContext``.

    ``partition_id`` names the task, ``task_attempt_id`` is unique and growing within a Spark
    application: of two attempts of a task, the one with the higher number was started later.
    ``attempt_number`` counts a task's attempts within one attempt of its stage.
    """

    partition_id: int
    attempt_number: int
    task_attempt_id: int

    def __str__(self) -> str:
        return (
            f"task {self.partition_id} attempt {self.attempt_number} (id {self.task_attempt_id})"
        )


class SourceRange(NamedTuple):
    """The part of one source that a batch has: Spark's offset JSON, parsed, before and after.

    ``start`` is None for a source that had no offset yet and cannot name its first one. The values
    are opaque but for Kafka's, which are ``{topic: {"partition": offset}}``. ``identity`` tells in
    the ledger which source it was (JSON; None: unknown): offsets of another one mean nothing.
    """

    start: Any
    end: Any
    identity: Any = None


def kafka_spans(source: SourceRange) -> tuple[Any, Any]:
    """Return where the batch starts and ends in Kafka, by topic and partition; else nothing."""
    starts = source.start if is_kafka_offset(source.start) else {}
    return starts, source.end if is_kafka_offset(source.end) else {}


def kafka_ranges(source: SourceRange) -> dict[TopicPartition, tuple[int, int]]:
    """Return what the batch reads of each partition: from, up to."""
    starts, ends = kafka_spans(source)
    return {
        TopicPartition(topic, int(number)): (int(start), int(end))
        for topic, partitions in ends.items()
        for number, end in partitions.items()
        if (start := starts.get(topic, {}).get(number, 0)) != end
    }


def is_kafka_offset(offset: Any) -> bool:
    """Return whether ``offset`` is Spark's ``KafkaSourceOffset``: ``{topic: {"0": 7}}``."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(parts, dict)
            and all(p.isdecimal() and isinstance(o, int) for p, o in parts.items())
            for parts in offset.values()
        )
    )


def partition_offsets(offset: Any) -> dict[TopicPartition, int]:
    """Return a ``KafkaSourceOffset`` by partition; empty if ``offset`` is none."""
    if not is_kafka_offset(offset):
        return {}
    return {
        TopicPartition(topic, int(partition)): position
        for topic, parts in offset.items()
        for partition, position in parts.items()
    }


def least_offsets(positions: Iterable[object]) -> dict[TopicPartition, int]:
    """Return the offsets of several sources by partition; where more than one reads it, the least.

    >>> least_offsets([{"t": {"0": 7, "1": 2}}, {"t": {"0": 5}}, "another source's"])
    {TopicPartition(topic='t', partition=0): 5, TopicPartition(topic='t', partition=1): 2}
    """
    offsets: dict[TopicPartition, int] = {}
    for position in positions:
        for where, offset in partition_offsets(position).items():
            offsets[where] = min(offset, offsets.get(where, offset))
    return offsets


def offsets_covered(source: SourceRange) -> int:
    """Return the number of Kafka offsets from start to end; 0 without a start: it is not known."""
    start, end = partition_offsets(source.start), partition_offsets(source.end)
    return sum(offset - start.get(where, 0) for where, offset in end.items()) if start else 0


def is_pipeline_id(value: object) -> bool:
    """Return whether ``value`` is 1 to 200 characters of ``a-z A-Z 0-9 . _ -``, for names of Kafka
    and folders."""
    return _is_legal(value, _PIPELINE_MAX_LENGTH)


def _is_legal(value: object, most: int) -> bool:
    legal = isinstance(value, str) and _LEGAL.fullmatch(value) and value not in (".", "..")
    return bool(legal) and len(str(value)) <= most


def pipeline_id(value: str) -> PipelineId:
    """Return ``value`` if it may name a pipeline."""
    if not is_pipeline_id(value):
        raise ConfigurationError(
            f"pipeline_id={value!r} is not a usable name",
            next_step=f"use 1 to {_PIPELINE_MAX_LENGTH} characters of a-z, A-Z, 0-9, '.', '_' and "
            "'-', the same at every start of this query",
        )
    return PipelineId(value)


def topic_name(value: str, setting: str = "") -> str:
    """Return ``value`` if it is a topic's name by Kafka's own rule (``Topic.validate``).

    :param setting: the parameter that has it, for the message.
    """
    if not _is_legal(value, _TOPIC_MAX_LENGTH):
        raise InvalidTopicName(
            f"{setting}={value!r} is not the name of a topic"
            if setting
            else f"topic name {value!r} is invalid",
            next_step=f"use 1 to {_TOPIC_MAX_LENGTH} characters of a-z, A-Z, 0-9, '.', '_' and "
            "'-', but not '.' or '..'",
        )
    return value


MARK_LENGTH = 8


def chain_mark(identity: str) -> str:
    """Return the mark of the chain with that identity, in names of what is prepared in it."""
    return hashlib.sha256(identity.encode()).hexdigest()[:MARK_LENGTH]


def chain_prefix(pipeline: PipelineId, mark: str) -> str:
    """Return how names of what is prepared in a chain begin. No pipeline's id has an ``@``."""
    return f"{pipeline}@{mark}-"
