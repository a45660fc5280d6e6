"""Which topics a Kafka source reads: some by name, or all whose names match a pattern. Driver
only.

Made by :mod:`onceward.kafka.source.source`. What differs is what Spark is told, which topics there
are, and what a topic is that nobody has a position of: of named ones it was added to the list,
under a pattern it is new.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Literal

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.ids import topic_name
from onceward.kafka.wire.client import KafkaClient
from onceward.spark.batch.kafka_reader import matching, whole_names


class TopicsRead(ABC):
    """See the module. ``option`` is Spark's, with its value; ``short_name`` is for the brokers'
    logs; ``new_topics`` is where an unknown topic begins if others are known (None: where the
    caller says).
    """

    option: tuple[str, str]
    short_name: str
    new_topics: Literal["earliest"] | None = None

    @abstractmethod
    def there(self, client: KafkaClient) -> list[str]:
        """Return the topics of the cluster that are read, as of now."""

    @abstractmethod
    def among(self, names: Collection[str]) -> list[str]:
        """Return those of ``names`` that are read, whether or not they exist."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the topics as messages name them."""


class NamedTopics(TopicsRead):
    """``subscribe``."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = [topic_name(name) for name in names]
        if not self._names:
            raise ConfigurationError(
                "topic=[] names no topic", next_step="name at least one topic"
            )
        self.option = ("subscribe", ",".join(self._names))
        self.short_name = self._names[0]

    def there(self, client: KafkaClient) -> list[str]:
        return self._names

    def among(self, names: Collection[str]) -> list[str]:
        return [name for name in self._names if name in names]

    def __str__(self) -> str:
        return ", ".join(self._names)


class TopicsByPattern(TopicsRead):
    """``subscribePattern``: Spark lists the cluster's topics before each batch, and reads new ones
    from the earliest offset.
    """

    new_topics = "earliest"
    short_name = "pattern"

    def __init__(self, spark: SparkSession, pattern: str) -> None:
        self._spark, self._pattern = spark, pattern
        self._anchored = whole_names(spark, pattern)
        self.option = ("subscribePattern", self._anchored)

    def there(self, client: KafkaClient) -> list[str]:
        return self.among(client.topic_names())

    def among(self, names: Collection[str]) -> list[str]:
        return matching(self._spark, self._anchored, names)

    def __str__(self) -> str:
        return f"topics that match {self._pattern}"


def topics_read(
    spark: SparkSession, topic: str | Sequence[str] | None, pattern: str | None
) -> TopicsRead:
    """Take ``topic=`` or ``topic_pattern=`` of ``kafka_source``, whichever is given.

    :raises ContradictoryOptions: both.
    :raises ConfigurationError: neither, or what cannot be.
    """
    if pattern is not None and topic is not None:
        raise ContradictoryOptions(
            f"topic={topic!r} and topic_pattern={pattern!r}: a source reads topics by name or by "
            "pattern",
            next_step="remove one of the two; a pattern takes names, too: "
            "topic_pattern='people|orders-.*'",
        )
    if pattern is not None:
        if not isinstance(pattern, str) or not pattern:
            raise ConfigurationError(
                f"topic_pattern={pattern!r} is no pattern",
                next_step="pass a regular expression, such as 'orders-.*'",
            )
        return TopicsByPattern(spark, pattern)
    if topic is None:
        raise ConfigurationError(
            "kafka_source was given neither topic= nor topic_pattern=",
            next_step="name the topic, several as a list, or all of a kind by "
            "topic_pattern='orders-.*'",
        )
    names = [topic] if isinstance(topic, str) else topic
    if not isinstance(names, Collection):
        raise ConfigurationError(
            f"topic={topic!r} is no name", next_step="pass the topic's name, or a list of names"
        )
    if any(isinstance(name, str) and "," in name for name in names):
        parts = [part.strip() for name in names for part in str(name).split(",")]
        several = [part for part in parts if part]
        raise ConfigurationError(
            f"topic={topic!r} names several topics in one string",
            next_step=f"pass a list: topic={several!r}" if several else "name the topic",
        )
    return NamedTopics(names)
