"""A contender: Quix Streams, another engine in Python, exactly once. Run by its path, in a process
and an environment of its own (:mod:`serving`, :mod:`peers`).
"""

from __future__ import annotations

import os
import threading
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from quixstreams import Application

_ANSWER_SECONDS = 60.0


class _Unsignalled(Application):  # type: ignore[misc]
    """Runs in any thread; it is stopped by a call."""

    def _setup_signal_handlers(self) -> None:
        """Leave signals to the process."""


class Job:
    """One process, one thread, one transaction every ``interval_ms``."""

    def __init__(self, interval_ms: str, folder: str) -> None:
        self._interval_s, self._folder = float(interval_ms) / 1e3, folder
        self._running: Application | None = None
        self._thread: threading.Thread | None = None
        self._failed: BaseException | None = None

    def hello(self) -> dict[str, Any]:
        """Whom the owner talks to."""
        return {"pid": os.getpid(), "jvm_pid": 0}

    def close(self) -> None:
        """Nothing is left open."""

    def copy(self, **order: Any) -> dict[str, Any]:
        """Copy what a topic holds now; returns when all is committed."""
        count = _records(order["bootstrap_servers"], order["source"])
        self._application(order).run(count=count, collect=False)
        return {"batch_s": []}

    def start(self, **order: Any) -> dict[str, Any]:
        """Copy whatever comes to a topic, until :meth:`stop`."""
        self._running = self._application(order)
        self._thread = threading.Thread(target=self._run_noted, daemon=True)
        self._thread.start()
        return {}

    def stop(self) -> dict[str, Any]:
        """End what was started."""
        assert self._running is not None and self._thread is not None  # noqa: S101, PT018
        self._running.stop()
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

    def _run_noted(self) -> None:
        assert self._running is not None  # noqa: S101 — it was made
        try:
            self._running.run()
        except BaseException as error:  # noqa: BLE001 — the main thread raises it
            self._failed = error

    def _application(self, order: dict[str, Any]) -> Application:
        application = _Unsignalled(
            broker_address=order["bootstrap_servers"],
            consumer_group=order["name"],
            auto_offset_reset="earliest",
            processing_guarantee="exactly-once",
            commit_interval=self._interval_s,
            # Its default of a second is for idle topics; this one has to be quick
            consumer_poll_timeout=0.02,
            producer_extra_config={
                "partitioner": "murmur2_random",
                "compression.type": order.get("compression", "none"),
            },
            auto_create_topics=False,
            state_dir=self._folder,
            loglevel="WARNING",
        )
        source = application.topic(
            order["source"], key_deserializer="bytes", value_deserializer="bytes"
        )
        output = application.topic(order["name"], key_serializer="bytes", value_serializer="bytes")
        application.dataframe(source).to_topic(output)
        return application


def _records(servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "count"})
    try:
        partitions = consumer.list_topics(topic, _ANSWER_SECONDS).topics[topic].partitions
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), _ANSWER_SECONDS)
            for number in partitions
        ]
    finally:
        consumer.close()
    return sum(end - begin for begin, end in ends)
