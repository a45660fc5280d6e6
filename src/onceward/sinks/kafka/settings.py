"""The Kafka sink's settings, all of them, checked when the sink is built. Driver only; made by :mod:`sink`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.ids import PipelineId, pipeline_id, topic_name
from onceward.ledger.admission import RESUME_CHOICES, Resume
from onceward.wire.security import TokenProvider
from onceward.wire.settings import ClientSettings, ProducerSettings, settings_from_options

Delivery = Literal["exactly_once", "at_least_once", "none"]


@dataclass(frozen=True, slots=True)
class KafkaSinkSettings:
    """What :class:`onceward.KafkaSink` was built with; see there for meanings, units and defaults."""

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
    single_task_records: int
    held_bytes: int
    sequencer_host: str | None
    sequencer_port: int


def kafka_sink_settings(
    *,
    bootstrap_servers: str | Sequence[str],
    pipeline: str,
    topic: str | None,
    delivery: str,
    resume: str,
    options: Mapping[str, Any] | None,
    oauth_token_provider: TokenProvider | None,
    ledger_topic: str,
    create_topic_partitions: int | None,
    batch_attempts: int,
    batch_timeout_s: float | None,
    single_task_records: int,
    held_bytes: int,
    sequencer_host: str | None,
    sequencer_port: int,
) -> KafkaSinkSettings:
    """All settings, each checked, and against each other.

    :raises ConfigurationError: naming the setting and what it takes.
    """
    _one_of("delivery", delivery, get_args(Delivery))
    _one_of("resume", resume, RESUME_CHOICES)
    if delivery != "exactly_once" and resume != "checkpoint":
        raise ContradictoryOptions(
            f"resume={resume!r} with delivery={delivery!r}: without exactly-once there is no ledger to resume from",
            next_step='use delivery="exactly_once", or leave resume out',
        )
    _at_least("batch_attempts", batch_attempts, 1)
    _at_least("single_task_records", single_task_records, 0)
    _at_least("held_bytes", held_bytes, 1 << 20)
    if create_topic_partitions is not None:
        _at_least("create_topic_partitions", create_topic_partitions, 1)
    if batch_timeout_s is not None and not batch_timeout_s > 0:
        raise ConfigurationError(
            f"batch_timeout_s={batch_timeout_s!r} is not a positive number of seconds",
            next_step="pass seconds, or None for no limit",
        )
    if not isinstance(sequencer_port, int) or not 0 <= sequencer_port <= 65_535:
        raise ConfigurationError(
            f"sequencer_port={sequencer_port!r} is not a port", next_step="pass 1 to 65535, or 0 for any free port"
        )
    name = pipeline_id(pipeline)
    client, producer = settings_from_options(
        bootstrap_servers,
        options or {},
        client_id=f"onceward-{name}",
        oauth_token_provider=oauth_token_provider,
        delivery=delivery,
    )
    if topic is not None and topic_name(topic) == topic_name(ledger_topic):
        raise ContradictoryOptions(
            f"topic and ledger_topic are both {topic!r}", next_step="write records to a topic of their own"
        )
    return KafkaSinkSettings(
        pipeline=name,
        topic=topic,
        client=client,
        producer=producer,
        delivery=delivery,  # type: ignore[arg-type]  # checked above
        resume=resume,  # type: ignore[arg-type]
        ledger_topic=topic_name(ledger_topic),
        create_topic_partitions=create_topic_partitions,
        batch_attempts=batch_attempts,
        batch_timeout_s=batch_timeout_s,
        single_task_records=single_task_records,
        held_bytes=held_bytes,
        sequencer_host=sequencer_host,
        sequencer_port=sequencer_port,
    )


def _one_of(name: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigurationError(f"{name}={value!r} is unknown", next_step=f"use one of {', '.join(choices)}")


def _at_least(name: str, value: object, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigurationError(
            f"{name}={value!r} is not a whole number of at least {least}", next_step=f"correct {name}"
        )
