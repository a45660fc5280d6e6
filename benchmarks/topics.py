"""The benchmark's topics: filled and read with librdkafka, which has no code in common with what
is measured.

Called by :mod:`rounds` and :mod:`latency`, never while something is measured.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from benchmarks.records import NUMBER_BYTES, blocks, numbers_of
from onceward.errors import BrokerUnreachable, OncewardError

VALUE_BYTES = 112
_ANSWER_SECONDS = 30.0
# all of which librdkafka waits where fewer records than asked for come: at the end of every read
_POLL_SECONDS = 0.02
_FLUSH_SECONDS = 120.0
_CREATE_SECONDS = 180.0
_LOOK_SECONDS = 0.2
_READ_AT_ONCE = 20_000


class OutputWrong(OncewardError):
    """A contender did not write what it read: whatever it cost does not count."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a reader with ``read_committed`` missed of the records that a topic should hold, and
    what it saw beside.
    """

    records: int
    lost: int
    repeated: int
    unknown: int

    def at_least_once(self) -> Audit:
        """Return what counts where records may be repeated."""
        return replace(self, repeated=0)

    def require(self, topic: str) -> None:
        """Returns when each record was there once.

        :raises OutputWrong: otherwise.
        """
        if self.lost or self.repeated or self.unknown:
            raise OutputWrong(
                f"topic {topic} should hold {self.records} records: {self.lost} are lost, "
                f"{self.repeated} are "
                f"repeated, {self.unknown} are none of them",
                next_step="do not believe this run's figures, and report it",
            )


class Topics:
    """Topics of one local broker."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._admin = self._connect()

    def create(self, name: str, partitions: int) -> None:
        """Make an empty topic, and wait until each partition has a leader that answers: a broker
        makes a thousand of them one by one.

        :raises BrokerUnreachable: one has none after minutes.
        """
        # Deleted segments go at once: a benchmark must not fill the disk for the minute that is
        # the default.
        topic = NewTopic(name, partitions, 1, config={"file.delete.delay.ms": "0"})
        self._admin.create_topics([topic])[name].result(_ANSWER_SECONDS)
        until = time.monotonic() + _CREATE_SECONDS
        while True:
            with contextlib.suppress(KafkaException):
                self.visible(name, partitions)
                return
            if time.monotonic() > until:
                raise BrokerUnreachable(
                    f"topic {name} has partitions without a leader after {_CREATE_SECONDS:.0f} s",
                    next_step="look at the broker",
                )
            time.sleep(_LOOK_SECONDS)
            # One that has once been told that there is no leader does not ask again
            self._admin = self._connect()

    def _connect(self) -> AdminClient:
        # Without a log: it outlives the broker
        return AdminClient({"bootstrap.servers": self._bootstrap_servers, "log_level": 0})

    def delete(self, name: str) -> None:
        """Remove a topic and its data."""
        self._admin.delete_topics([name])[name].result(_ANSWER_SECONDS)

    def visible(self, name: str, partitions: int) -> int:
        """Return how many offsets a reader with ``read_committed`` may pass."""
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted = {TopicPartition(name, number): latest for number in range(partitions)}
        found = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_ANSWER_SECONDS
        )
        return sum(each.result(_ANSWER_SECONDS).offset for each in found.values())

    def fill(
        self,
        name: str,
        records: int,
        *,
        first: int = 0,
        value_bytes: int = VALUE_BYTES,
        hot_share: float = 0.0,
    ) -> None:
        """Write ``records`` records, numbered from ``first`` on, of which ``hot_share`` have one
        key.

        :raises BrokerUnreachable: not all were acknowledged.
        """
        producer = self._producer()
        for keys, values in blocks(records, value_bytes, first=first, hot_share=hot_share):
            for key, value in zip(keys, values, strict=True):
                _produce(producer, name, value, key)
            producer.poll(0)
        self._flush(producer, name)

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "linger.ms": 50,
                "log_level": 3,  # a coordinator that is still loading is no news on a fresh broker
                "batch.size": 1_000_000,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1_000_000,
            }
        )

    def _flush(self, producer: Producer, name: str) -> None:
        if left := producer.flush(_FLUSH_SECONDS):
            raise BrokerUnreachable(
                f"{left} records of topic {name} unacknowledged", next_step="look at the broker"
            )

    def fill_in_turn(self, name: str, values: Sequence[bytes], partitions: int) -> None:
        """Write ``values`` without keys, to one partition after the other.

        :raises BrokerUnreachable: not all were acknowledged.
        """
        producer = self._producer()
        for number, value in enumerate(values):
            _produce(producer, name, value, None, number % partitions)
        self._flush(producer, name)

    def values(self, name: str, partitions: int) -> Iterator[bytes]:
        """Return what a reader with ``read_committed`` finds in a topic that nobody writes any
        more.
        """
        return (value for some in self._values(name, partitions) for value in some)

    def audit(self, name: str, partitions: int, records: int) -> Audit:
        """Read ``name`` with ``read_committed`` from end to end, where records 0 to ``records`` -
        1 should be.
        """
        seen = np.zeros(records, np.int32)
        unknown = 0
        for values in self._values(name, partitions):
            numbers = numbers_of(values)
            known = numbers[(numbers >= 0) & (numbers < records)]
            unknown += len(numbers) - len(known)
            np.add.at(seen, known, 1)
        return Audit(records, int((seen == 0).sum()), int(np.maximum(seen - 1, 0).sum()), unknown)

    def audit_counts(self, name: str, partitions: int, records: int) -> None:
        """Read the counts that :mod:`stateful` makes of ``records`` records: the highest of each
        number add up to them.

        :raises OutputWrong: otherwise.
        """
        highest = np.zeros(records, np.int64)
        for values in self._values(name, partitions):
            pairs = np.frombuffer(b"".join(values), ">i8").reshape(-1, 2)
            np.maximum.at(highest, pairs[:, 0], pairs[:, 1])
        if (found := int(highest.sum())) != records:
            raise OutputWrong(
                f"the counts in topic {name} add up to {found} records instead of {records}",
                next_step="do not believe this run's figures, and report it",
            )

    def _values(self, name: str, partitions: int) -> Iterator[list[bytes]]:
        """All values of a topic that nobody writes any more, a portion at a time."""
        with contextlib.closing(self._consumer()) as consumer:
            consumer.assign(
                [TopicPartition(name, partition, 0) for partition in range(partitions)]
            )
            unfinished = set(range(partitions))
            heard = time.monotonic()
            while unfinished:
                messages = consumer.consume(_READ_AT_ONCE, _POLL_SECONDS)
                if messages:
                    heard = time.monotonic()
                elif time.monotonic() - heard > _ANSWER_SECONDS:
                    raise BrokerUnreachable(
                        f"topic {name} has given nothing for {_ANSWER_SECONDS:.0f} s",
                        next_step="look at the broker",
                    )
                unfinished -= {message.partition() for message in messages if _at_end(message)}
                yield [
                    message.value() or bytes(2 * NUMBER_BYTES)
                    for message in messages
                    if message.error() is None
                ]

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "group.id": "onceward-bench-check",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.queue.backoff.ms": 5,
                "queued.max.messages.kbytes": 200_000,
            }
        )


def _produce(
    producer: Producer, topic: str, value: bytes, key: bytes | None, partition: int = -1
) -> None:
    while True:
        with contextlib.suppress(BufferError):
            return producer.produce(topic, value, key, partition)
        producer.poll(0.1)


def _at_end(message: Message) -> bool:
    """Whether ``message`` says that a partition has no more; raises for any other error."""
    error = message.error()
    if error is None:
        return False
    if error.code() != KafkaError._PARTITION_EOF:
        raise KafkaException(error)
    return True
