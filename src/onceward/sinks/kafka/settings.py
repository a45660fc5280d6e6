"""The Kafka sink's settings, checked when the sink is built. Driver only; made by :mod:`sink`."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.engine.policy import SinkPolicy, one_of, whole_number
from onceward.errors import ContradictoryOptions
from onceward.ids import topic_name
from onceward.wire.options.settings import ClientSettings, ProducerSettings

_LEAST_HELD_BYTES = 1 << 20
_MOST_DRIVER_RECORDS = 1_000_000
_MOST_DRIVER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KafkaSinkSettings:
    """What :class:`onceward.KafkaSink` was built with; see there for meanings, units and defaults.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    topic: str | None
    client: ClientSettings
    producer: ProducerSettings
    ledger_topic: str
    create_topic_partitions: int | None
    driver_records: int
    driver_bytes: int
    held_bytes: int
    sequencer_host: str | None
    sequencer_port: int
    lineage: bool = False

    def __post_init__(self) -> None:
        one_of("lineage", self.lineage, (True, False))
        whole_number("driver_records", self.driver_records, 0, _MOST_DRIVER_RECORDS)
        whole_number("driver_bytes", self.driver_bytes, 0, _MOST_DRIVER_BYTES)
        whole_number("held_bytes", self.held_bytes, _LEAST_HELD_BYTES)
        whole_number("sequencer_port", self.sequencer_port, 0, 65_535)
        if self.create_topic_partitions is not None:
            whole_number("create_topic_partitions", self.create_topic_partitions, 1)
        topic_name(self.ledger_topic)
        if self.topic is not None and topic_name(self.topic) == self.ledger_topic:
            raise ContradictoryOptions(
                f"topic and ledger_topic are both {self.topic!r}", next_step="write records to a topic of their own"
            )
