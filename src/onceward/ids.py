"""The small values that everything else passes around. No I/O, no Spark, no Kafka client.

Runs everywhere: in the driver, in executor tasks, in the command line.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NewType

from onceward.errors import ConfigurationError, InvalidTopicName

PipelineId = NewType("PipelineId", str)
"""The stable name of one query: its transactional id, its consumer group and its ledger key."""

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")
_TOPIC_MAX_LENGTH = 249  # Kafka: org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH
_PIPELINE_MAX_LENGTH = 200

MAX_EPOCH = 32_767
"""Producer epochs are signed 16-bit numbers; the coordinator hands out a new producer id at rollover."""


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class ProducerIdentity(NamedTuple):
    """What the broker fences by: the producer id and its epoch (KIP-98, KIP-360, KIP-890)."""

    producer_id: int
    epoch: int

    def __str__(self) -> str:
        return f"producer {self.producer_id} epoch {self.epoch}"


class BatchId(NamedTuple):
    """A micro-batch as Spark names it: the query's id (it lives in the checkpoint) and the batch's number."""

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"batch {self.batch_id} of query {self.query_id}"


class SourceRange(NamedTuple):
    """What one source gave to a batch: Spark's offset JSON, parsed, before and after.

    ``start`` is None for a source that had no offset yet and cannot name its first one.
    The values are opaque but for Kafka's, which are ``{topic: {"partition": offset}}``.
    """

    start: Any
    end: Any


def pipeline_id(value: str) -> PipelineId:
    """``value`` checked: 1 to 200 characters of ``a-z A-Z 0-9 . _ -``, for names of Kafka and of folders."""
    legal = isinstance(value, str) and _LEGAL.fullmatch(value) and value not in (".", "..")
    if not legal or len(value) > _PIPELINE_MAX_LENGTH:
        raise ConfigurationError(
            f"pipeline_id={value!r} is not a usable name",
            next_step=f"use 1 to {_PIPELINE_MAX_LENGTH} characters of a-z, A-Z, 0-9, '.', '_' and '-', "
            "the same at every start of this query",
        )
    return PipelineId(value)


def topic_name(value: str) -> str:
    """``value`` checked by Kafka's own rule for topic names (``Topic.validate``)."""
    legal = isinstance(value, str) and _LEGAL.fullmatch(value) and value not in (".", "..")
    if not legal or len(value) > _TOPIC_MAX_LENGTH:
        raise InvalidTopicName(
            f"topic name {value!r} is invalid",
            next_step=f"use 1 to {_TOPIC_MAX_LENGTH} characters of a-z, A-Z, 0-9, '.', '_' and '-', "
            "but not '.' or '..'",
        )
    return value
