"""A contender: the loop of consume, produce and commit that a user of librdkafka writes for
exactly once, in Python. Run by its path, in a process of its own (:mod:`serving`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

_ANSWER_SECONDS = 60.0
_READ_AT_ONCE = 10_000
_LOOK_SECONDS = 0.02


class Job:
    """One process, one thread, one transaction every ``interval_ms``."""

    def __init__(self, interval_ms: str, _folder: str) -> None:
        self._interval_s = float(interval_ms) / 1e3
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def hello(self) -> dict[str, Any]:
        """Whom the owner talks to."""
        return {"pid": os.getpid(), "jvm_pid": 0}

    def close(self) -> None:
        """Nothing is left open."""

    def copy(self, **order: Any) -> dict[str, Any]:
        """Copy what a topic holds now; returns when all is committed."""
        self._run(order, to_the_end=True)
        return {"batch_s": []}

    def start(self, **order: Any) -> dict[str, Any]:
        """Copy whatever comes to a topic, until :meth:`stop`."""
        self._over.clear()
        self._thread = threading.Thread(target=self._run_noted, args=(order,), daemon=True)
        self._thread.start()
        return {}

    def stop(self) -> dict[str, Any]:
        """End what was started."""
        assert self._thread is not None  # noqa: S101 — it was started
        self._over.set()
        self._thread.join()
        if self._failed is not None:
            raise self._failed
        return {"batches": 0, "phases_ms": {}, "steps_ms": {}}

    def mark(self) -> dict[str, Any]:
        """Nothing is counted inside."""
        return {}

    def collect_garbage(self) -> dict[str, Any]:
        """Nothing is left."""
        return {}

    def _run_noted(self, order: dict[str, Any]) -> None:
        try:
            self._run(order, to_the_end=False)
        except BaseException as error:  # noqa: BLE001 — the main thread raises it
            self._failed = error

    def _run(self, order: dict[str, Any], *, to_the_end: bool) -> None:
        servers, source, output = order["bootstrap_servers"], order["source"], order["name"]
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": output,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": to_the_end,
                "auto.offset.reset": "earliest",
                # Its default of a second is for slow readers; this one has to be quick
                "fetch.queue.backoff.ms": 5,
            }
        )
        producer = Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": output,
                "partitioner": "murmur2_random",
                "compression.type": order.get("compression", "none"),
                "log_level": 3,
            }
        )
        producer.init_transactions(_ANSWER_SECONDS)
        partitions = consumer.list_topics(source, _ANSWER_SECONDS).topics[source].partitions
        consumer.assign([TopicPartition(source, number, 0) for number in partitions])
        left = set(partitions)
        try:
            while left and not self._over.is_set():
                left -= self._transaction(consumer, producer, output)
        finally:
            consumer.close()

    def _transaction(self, consumer: Consumer, producer: Producer, output: str) -> set[int]:
        """Copy for an interval and commit; returns the partitions that were at their end."""
        producer.begin_transaction()
        ended: set[int] = set()
        until = time.monotonic() + self._interval_s
        while time.monotonic() < until:
            for message in consumer.consume(_READ_AT_ONCE, _LOOK_SECONDS):
                error = message.error()
                if error is None:
                    _produce(producer, output, message.value(), message.key())
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition() or 0)
                else:
                    raise KafkaException(error)
            producer.poll(0)
        positions = [at for at in consumer.position(consumer.assignment()) if at.offset >= 0]
        producer.send_offsets_to_transaction(
            positions, consumer.consumer_group_metadata(), _ANSWER_SECONDS
        )
        producer.commit_transaction(_ANSWER_SECONDS)
        return ended


def _produce(producer: Producer, topic: str, value: Any, key: Any) -> None:
    while True:
        with contextlib.suppress(BufferError):
            return producer.produce(topic, value, key)
        producer.poll(0.05)
