"""A contender's own process: the loop of consume, produce and commit that a user of librdkafka
writes for exactly once, in Python. A script, run by its path; takes the orders of
:mod:`job`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

_ANSWER_SECONDS = 60.0
_READ_AT_ONCE = 10_000
_LOOK_SECONDS = 0.02


class Loop:
    """One process, one thread, one transaction every ``interval_s``."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

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


def main(interval_ms: str, _folder: str) -> None:
    """Serve orders until there are no more."""
    loop = Loop(float(interval_ms) / 1e3)
    orders = {
        method.__name__: method
        for method in (loop.copy, loop.collect_garbage, loop.start, loop.mark, loop.stop)
    }
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    answers.write(json.dumps({"pid": os.getpid(), "jvm_pid": 0}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = orders[order.pop("do")](**order)
        except Exception as error:  # noqa: BLE001 — the owner raises it, whatever it is
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
