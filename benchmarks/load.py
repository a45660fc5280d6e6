"""A steady load, and when its records become visible: librdkafka on both ends. Called by
:mod:`latency`.

A record's value begins with its number and the time of its sending, eight bytes each, big-endian;
the time is this process's monotonic clock.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from benchmarks.topics import VALUE_BYTES
from onceward.errors import BrokerUnreachable

_HEAD = struct.Struct(">qq")
_FILLER = b"x" * (VALUE_BYTES - _HEAD.size)
_DISTINCT_KEYS = 100_000
_TICK_SECONDS = 0.005
_FLUSH_SECONDS = 30.0
_READ_AT_ONCE = 10_000


class Sender:
    """Sends records 0, 1, 2 … to ``topic`` in a thread of its own, ``rate`` a second; ``rate`` may
    be changed.
    """

    def __init__(self, bootstrap_servers: str, topic: str, rate: float) -> None:
        self.rate = rate
        self.sent = 0
        self.late_s = 0.0
        self._topic = topic
        self._failed: KafkaError | None = None
        self._over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 3,
            }
        )
        self._thread = threading.Thread(
            target=self._send_on_schedule, name="onceward-bench-load", daemon=True
        )
        self._thread.start()

    def finish(self) -> int:
        """Stop; returns how many records there are, all of them acknowledged.

        :raises BrokerUnreachable: not all were.
        """
        self._over.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_SECONDS)
        if left or self._failed is not None:
            raise BrokerUnreachable(
                f"the load on topic {self._topic} was not all acknowledged ({left} left, "
                f"{self._failed})",
                next_step="look at the broker",
            )
        return self.sent

    def _send_on_schedule(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            now = time.monotonic()
            while due <= now:
                self._send()
                self.late_s = max(self.late_s, now - due)
                due += 1 / self.rate
            self._producer.poll(0)
            self._over.wait(max(_TICK_SECONDS, due - time.monotonic()))

    def _send(self) -> None:
        value = _HEAD.pack(self.sent, time.monotonic_ns()) + _FILLER
        key = b"key-%05d" % (self.sent % _DISTINCT_KEYS)
        self._producer.produce(self._topic, value, key, on_delivery=self._delivered)
        self.sent += 1

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        self._failed = self._failed or error


class Arrivals:
    """What has come to a topic so far, with ``read_committed``: ``latency_ms`` by record number,
    at first sight.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.latency_ms: dict[int, float] = {}
        self._consumer = consumer

    def look(self, wait_s: float) -> None:
        """Take in what is there; returns when it is in, or after ``wait_s`` without anything."""
        # One message first: asking for many at once would wait for them all, or for the whole
        # time.
        first = self._consumer.poll(wait_s)
        if first is None:
            return
        self._take([first])
        self._take(self._consumer.consume(_READ_AT_ONCE, 0))

    def _take(self, messages: list[Message]) -> None:
        now_ns = time.monotonic_ns()
        for message in messages:
            error = message.error()
            if error is not None:
                if not error.retriable():
                    raise KafkaException(error)
                continue
            number, sent_ns = _HEAD.unpack_from(message.value() or bytes(_HEAD.size))
            self.latency_ms.setdefault(number, (now_ns - sent_ns) / 1e6)


@contextmanager
def arrivals(bootstrap_servers: str, topic: str, partitions: int) -> Iterator[Arrivals]:
    """Read ``topic`` from its beginning on, for a ``with`` block."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "onceward-bench-arrivals",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        yield Arrivals(consumer)
    finally:
        consumer.close()
