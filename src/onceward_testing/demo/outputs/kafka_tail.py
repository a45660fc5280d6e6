"""Follows the output topics while the demo runs and counts what a ``read_committed`` reader sees.
Progress only: the verdict is read afterwards, from the beginning, by another reader.
"""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from onceward_testing.demo.outputs.output import Tail
from onceward_testing.demo.settings import OUTPUT_TOPIC, PARTITIONS
from onceward_testing.topic_reader import reader_settings


class KafkaTail(Tail):
    """Counts from the beginning of each."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str] = (OUTPUT_TOPIC,)) -> None:
        super().__init__()
        self._topics = topics
        settings = reader_settings(bootstrap_servers, "read_committed") | {
            "fetch.wait.max.ms": 100
        }
        self._consumer = Consumer(settings)

    def _follow(self) -> None:
        parts = [(topic, number) for topic in self._topics for number in range(PARTITIONS)]
        self._consumer.assign(
            [TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in parts]
        )
        try:
            while not self._stop.is_set():
                messages = self._consumer.consume(5_000, 0.05)
                self.visible += sum(message.error() is None for message in messages)
        finally:
            self._consumer.close()
