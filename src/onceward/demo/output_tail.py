"""Follows the output topic while the demo runs and counts what a ``read_committed`` reader sees. Progress only: the
verdict is read afterwards, from the beginning, by another reader."""

from __future__ import annotations

import threading

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from onceward.demo.settings import OUTPUT_TOPIC, PARTITIONS
from onceward.testing.topic_reader import reader_settings


class OutputTail:
    """Counts in a thread of its own, from :meth:`start` to :meth:`stop`."""

    def __init__(self, bootstrap_servers: str) -> None:
        settings = reader_settings(bootstrap_servers, "read_committed") | {"fetch.wait.max.ms": 100}
        self._consumer = Consumer(settings)
        self._stop = threading.Event()
        self._visible = 0
        self._thread = threading.Thread(target=self._follow, name="output-tail", daemon=True)

    @property
    def visible(self) -> int:
        """Records seen so far."""
        return self._visible

    def start(self) -> None:
        """Begin at the topic's beginning."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        self._consumer.assign([TopicPartition(OUTPUT_TOPIC, number, OFFSET_BEGINNING) for number in range(PARTITIONS)])
        try:
            while not self._stop.is_set():
                messages = self._consumer.consume(5_000, 0.05)
                self._visible += sum(message.error() is None for message in messages)
        finally:
            self._consumer.close()
