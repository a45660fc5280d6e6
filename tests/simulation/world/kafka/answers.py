"""What brokers answer: light objects with the attributes that Onceward reads of kafka-python's
responses.
"""

from __future__ import annotations

from typing import Any


class Answer:
    """Attributes by name; for answers that are given seldom."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __repr__(self) -> str:
        return f"Answer({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


class Coded:
    """An answer that is an error code: ``AddOffsetsToTxn``, ``EndTxn`` up to version 4."""

    __slots__ = ("error_code", "throttle_time_ms")

    def __init__(self, error_code: int) -> None:
        self.error_code = error_code
        self.throttle_time_ms = 0


class Identified:
    """An answer with an identity: ``InitProducerId``, ``EndTxn`` from version 5 on."""

    __slots__ = ("error_code", "producer_epoch", "producer_id", "throttle_time_ms")

    def __init__(self, error_code: int, producer_id: int = -1, producer_epoch: int = -1) -> None:
        self.error_code = error_code
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.throttle_time_ms = 0


class Produced:
    """``PartitionProduceResponse``."""

    __slots__ = ("base_offset", "error_code", "index")
    error_message = None
    record_errors = ()

    def __init__(self, index: int, error_code: int, base_offset: int) -> None:
        self.index = index
        self.error_code = error_code
        self.base_offset = base_offset


class ProducedTopic:
    """``TopicProduceResponse``."""

    __slots__ = ("name", "partition_responses")

    def __init__(self, name: str, partition_responses: list[Produced]) -> None:
        self.name = name
        self.partition_responses = partition_responses


class ProduceAnswer:
    """``ProduceResponse``."""

    __slots__ = ("responses", "throttle_time_ms")

    def __init__(self, responses: list[ProducedTopic]) -> None:
        self.responses = responses
        self.throttle_time_ms = 0


class Fetched:
    """``FetchResponse.PartitionData``."""

    __slots__ = (
        "aborted_transactions", "error_code", "high_watermark", "last_stable_offset",
        "log_start_offset",
        "partition_index", "records",
    )  # fmt: skip

    def __init__(
        self, index: int, error_code: int, high_watermark: int = -1, last_stable_offset: int = -1
    ) -> None:
        self.partition_index = index
        self.error_code = error_code
        self.high_watermark = high_watermark
        self.last_stable_offset = last_stable_offset
        self.log_start_offset = -1
        self.aborted_transactions: list[AbortedTransaction] | None = None
        self.records = b""


class AbortedTransaction:
    """``FetchResponse.AbortedTransaction``."""

    __slots__ = ("first_offset", "producer_id")

    def __init__(self, producer_id: int, first_offset: int) -> None:
        self.producer_id = producer_id
        self.first_offset = first_offset


class FetchedTopic:
    """``FetchableTopicResponse``."""

    __slots__ = ("partitions", "topic")

    def __init__(self, topic: str, partitions: list[Fetched]) -> None:
        self.topic = topic
        self.partitions = partitions


class FetchAnswer:
    """``FetchResponse``."""

    __slots__ = ("error_code", "responses", "throttle_time_ms")

    def __init__(self, responses: list[FetchedTopic]) -> None:
        self.error_code = 0
        self.responses = responses
        self.throttle_time_ms = 0


class OfPartition:
    """A partition's part of an answer: an error code, and an offset for those that tell one."""

    __slots__ = (
        "committed_offset",
        "error_code",
        "metadata",
        "offset",
        "partition_error_code",
        "partition_index",
    )

    def __init__(self, index: int, error_code: int, offset: int = -1, metadata: str = "") -> None:
        self.partition_index = index
        self.error_code = self.partition_error_code = error_code
        self.offset = self.committed_offset = offset
        self.metadata = metadata


class OfTopic:
    """A topic's part of an answer."""

    __slots__ = ("name", "partitions")

    def __init__(self, name: str, partitions: list[OfPartition]) -> None:
        self.name = name
        self.partitions = partitions

    @property
    def results_by_partition(self) -> list[OfPartition]:
        """``AddPartitionsToTxnResponse`` names it so."""
        return self.partitions


class OfTopics:
    """An answer that goes by topics: ``TxnOffsetCommit``, ``ListOffsets``,
    ``AddPartitionsToTxn``.
    """

    __slots__ = ("throttle_time_ms", "topics")

    def __init__(self, topics: list[OfTopic]) -> None:
        self.topics = topics
        self.throttle_time_ms = 0

    @property
    def results_by_topic_v3_and_below(self) -> list[OfTopic]:
        """``AddPartitionsToTxnResponse`` names it so."""
        return self.topics
