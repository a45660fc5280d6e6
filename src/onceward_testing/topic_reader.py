"""Reads whole topics with librdkafka: the independent witness that a verdict needs. Shares no code
with our writer.

Needs ``confluent-kafka`` (``pip install "onceward[demo]"``). Runs wherever tests run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from onceward.errors import BrokerUnreachable, TopicMissing

Isolation = Literal["read_committed", "read_uncommitted"]

_POLL_RECORDS = 10_000
# All of which librdkafka waits where fewer records than asked for come: at the end of every read.
_POLL_SECONDS = 0.02
_ERRORS = 3  # as in syslog; librdkafka warns of what it then retries by itself


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """One record as a consumer is given it. ``value`` None is a tombstone."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def end_offsets(
    bootstrap_servers: str, topic: str, isolation: Isolation, timeout_s: float = 30
) -> dict[int, int]:
    """Return the end of each partition: its high watermark, or for ``read_committed`` its last
    stable offset.

    The two are equal exactly when no transaction is open in the partition (KIP-98).

    :raises TopicMissing: there is no such topic.
    """
    from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
    from confluent_kafka import admin as kafka_admin

    level = (
        IsolationLevel.READ_COMMITTED
        if isolation == "read_committed"
        else IsolationLevel.READ_UNCOMMITTED
    )
    admin = kafka_admin.AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": _ERRORS})
    described = admin.list_topics(topic, timeout=timeout_s).topics[topic]
    if described.error is not None:
        raise TopicMissing(f"topic {topic!r}: {described.error.str()}", next_step="check its name")
    latest: Any = kafka_admin.OffsetSpec.latest()  # type: ignore[attr-defined, no-untyped-call]
    query = {
        TopicPartition(topic, partition): latest for partition in sorted(described.partitions)
    }
    leader_moves = (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE)
    until = time.monotonic() + timeout_s
    while True:
        answers = admin.list_offsets(query, isolation_level=level, request_timeout=timeout_s)
        try:
            return {
                partition.partition: each.result().offset for partition, each in answers.items()
            }
        except KafkaException as error:  # such as a partition that was made a moment ago
            if error.args[0].code() not in leader_moves or time.monotonic() > until:
                raise
            time.sleep(0.2)


def read_topic(
    bootstrap_servers: str,
    topic: str,
    isolation: Isolation = "read_committed",
    *,
    patience_s: float = 60,
) -> list[ReadRecord]:
    """Read every record of ``topic`` from its beginning to its end as of now, by partition and
    offset.

    :param patience_s: how long to wait for the next record, in seconds.
    :raises BrokerUnreachable: nothing came for that long, and the end is not reached.
    """
    ends = end_offsets(bootstrap_servers, topic, isolation)
    records = list(_read(bootstrap_servers, topic, isolation, ends, patience_s))
    return sorted(records, key=lambda record: (record.partition, record.offset))


def _read(
    bootstrap_servers: str,
    topic: str,
    isolation: Isolation,
    ends: dict[int, int],
    patience_s: float,
) -> Iterator[ReadRecord]:
    from confluent_kafka import (
        OFFSET_BEGINNING,
        Consumer,
        KafkaError,
        KafkaException,
        TopicPartition,
    )

    consumer = Consumer(reader_settings(bootstrap_servers, isolation))
    try:
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in ends])
        unread = {partition for partition, end in ends.items() if end > 0}
        silent_s = 0.0
        while unread:
            messages = consumer.consume(_POLL_RECORDS, _POLL_SECONDS)
            silent_s = 0.0 if messages else silent_s + _POLL_SECONDS
            if silent_s > patience_s:
                raise BrokerUnreachable(
                    f"no more records of {topic!r} for {patience_s:g} s; unread: {sorted(unread)}",
                    next_step="check the brokers",
                )
            for message in messages:
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                partition, offset = _position(message)
                before_end = offset < ends[partition]
                if error is None and before_end:
                    yield _record(message)
                elif not before_end:
                    unread.discard(
                        partition
                    )  # the end, or a record written since: either way all of ours is read
    finally:
        consumer.close()


def reader_settings(bootstrap_servers: str, isolation: Isolation) -> dict[str, Any]:
    """Return librdkafka's settings of a reader that belongs to no group and commits nothing."""
    return {
        "bootstrap.servers": bootstrap_servers,
        # Librdkafka wants one; nothing is ever committed to it.
        "group.id": "onceward-independent-reader",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",  # a reader that silently starts elsewhere proves nothing
        "check.crcs": True,
        "log_level": _ERRORS,
        "fetch.queue.backoff.ms": 5,  # the default of one second makes bulk reads slow
        # The end of a partition is an empty answer, for which the broker waits so long.
        "fetch.wait.max.ms": 50,
    }


def _position(message: Any) -> tuple[int, int]:
    return message.partition(), message.offset()


def _record(message: Any) -> ReadRecord:
    _, timestamp_ms = message.timestamp()
    return ReadRecord(
        message.partition(), message.offset(), timestamp_ms, message.key(), message.value()
    )
