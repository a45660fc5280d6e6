"""A contender: Quix Streams, another engine in Python, exactly once. Run by its path, in a process
and an environment of its own (:mod:`serving`, :mod:`peers`).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from quixstreams import Application

sys.path.append(str(Path(__file__).resolve().parents[1]))
from benchmarks import loop

_ANSWER_SECONDS = 60.0


class _Unsignalled(Application):  # type: ignore[misc]
    """Runs in any thread; it is stopped by a call."""

    def _setup_signal_handlers(self) -> None:
        """Leave signals to the process."""


class Job(loop.Job):
    """As the loop's, one transaction every ``interval_ms``."""

    def __init__(self, interval_ms: str, folder: str) -> None:
        super().__init__(interval_ms, folder)
        self._folder = folder
        self._running: Application | None = None

    def start(self, **order: Any) -> dict[str, Any]:
        """Copy whatever comes to a topic, until :meth:`stop`."""
        self._running = self._application(order)
        return super().start(**order)

    def stop(self) -> dict[str, Any]:
        """End what was started."""
        if self._running is not None:
            self._running.stop()
        return super().stop()

    def _run(self, order: dict[str, Any], *, to_the_end: bool) -> None:
        if to_the_end:
            count = _records(order["bootstrap_servers"], order["source"])
            self._application(order).run(count=count, collect=False)
        elif self._running is not None:
            self._running.run()

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
