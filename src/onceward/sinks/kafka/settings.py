"""The Kafka sink's settings, checked when the sink is built. Driver only; made by :mod:`sink`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.ids import PipelineId, topic_name
from onceward.ledger.admission import RESUME_CHOICES, Resume
from onceward.wire.options.settings import ClientSettings, ProducerSettings

Delivery = Literal["exactly_once", "at_least_once", "none"]

_LEAST_HELD_BYTES = 1 << 20
_MOST_DRIVER_RECORDS = 1_000_000
_MOST_DRIVER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KafkaSinkSettings:
    """What :class:`onceward.KafkaSink` was built with; see there for meanings, units and defaults.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    pipeline: PipelineId
    topic: str | None
    client: ClientSettings
    producer: ProducerSettings
    delivery: Delivery
    resume: Resume
    ledger_topic: str
    create_topic_partitions: int | None
    batch_attempts: int
    batch_timeout_s: float | None
    driver_records: int
    driver_bytes: int
    held_bytes: int
    sequencer_host: str | None
    sequencer_port: int
    lineage: bool = False

    def __post_init__(self) -> None:
        _one_of("delivery", self.delivery, get_args(Delivery))
        _one_of("resume", self.resume, RESUME_CHOICES)
        _one_of("lineage", self.lineage, (True, False))
        _whole_number("batch_attempts", self.batch_attempts, 1)
        _whole_number("driver_records", self.driver_records, 0, _MOST_DRIVER_RECORDS)
        _whole_number("driver_bytes", self.driver_bytes, 0, _MOST_DRIVER_BYTES)
        _whole_number("held_bytes", self.held_bytes, _LEAST_HELD_BYTES)
        _whole_number("sequencer_port", self.sequencer_port, 0, 65_535)
        if self.create_topic_partitions is not None:
            _whole_number("create_topic_partitions", self.create_topic_partitions, 1)
        if self.batch_timeout_s is not None and not self.batch_timeout_s > 0:
            raise ConfigurationError(
                f"batch_timeout_s={self.batch_timeout_s!r} is not a positive number of seconds",
                next_step="pass seconds, or None for no limit",
            )
        if self.delivery != "exactly_once" and self.resume != "checkpoint":
            raise ContradictoryOptions(
                f"resume={self.resume!r} with delivery={self.delivery!r}: without exactly-once there is no ledger to "
                "resume from",
                next_step='use delivery="exactly_once", or leave resume out',
            )
        topic_name(self.ledger_topic)
        if self.topic is not None and topic_name(self.topic) == self.ledger_topic:
            raise ContradictoryOptions(
                f"topic and ledger_topic are both {self.topic!r}", next_step="write records to a topic of their own"
            )


def _one_of(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r} is unknown", next_step=f"use one of {', '.join(map(str, choices))}")


def _whole_number(name: str, value: object, least: int, most: int | None = None) -> None:
    wanted = f"of at least {least}" if most is None else f"from {least} to {most}"
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value < least or (most is not None and value > most):  # type: ignore[operator]
        raise ConfigurationError(f"{name}={value!r} is not a whole number {wanted}", next_step=f"correct {name}")
