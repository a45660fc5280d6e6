"""Under which subject a schema is registered: Confluent's strategies, as functions of names.
Called in the driver.

Source: Confluent, *Formats, Serializers, and Deserializers*, "Subject name strategy"; the classes
of these names in ``io.confluent.kafka.serializers.subject``.
"""

from __future__ import annotations

from typing import Literal, get_args

from onceward.errors import ConfigurationError, SchemaUnfit

Strategy = Literal["TopicNameStrategy", "RecordNameStrategy", "TopicRecordNameStrategy"]
Side = Literal["key", "value"]

STRATEGIES: tuple[str, ...] = get_args(Strategy)

_PACKAGE = "io.confluent.kafka.serializers.subject."


def context_of(subject: str) -> str:
    """Return the context that a subject names, ``.eu`` of ``:.eu:orders-value``; "" is the default
    one (Confluent, *Schema Contexts*).
    """
    if not isinstance(subject, str) or not subject.startswith(":."):
        return ""
    context, colon, _ = subject[1:].partition(":")
    return context if colon and context != "." else ""


def topic_name(topic: str, side: Side) -> str:
    """Return the subject of ``TopicNameStrategy``: ``orders-key`` or ``orders-value``."""
    return f"{topic}-{side}"


def record_name(record: str) -> str:
    """Return the subject of ``RecordNameStrategy``: the record's full name, whatever the topic."""
    return record


def topic_record_name(topic: str, record: str) -> str:
    """Return the subject of ``TopicRecordNameStrategy``: ``orders-com.example.Order``."""
    return f"{topic}-{record}"


def strategy_named(name: str) -> Strategy:
    """Return a strategy by its name, or by that of Confluent's class with its package.

    :raises ConfigurationError: there is no such strategy.
    """
    short = name.removeprefix(_PACKAGE)
    for known in get_args(Strategy):
        if short == known:
            strategy: Strategy = known
            return strategy
    raise ConfigurationError(
        f"subject name strategy {name!r} is not known",
        next_step=f"use one of {', '.join(STRATEGIES)}",
    )


def subject_of(strategy: str, *, topic: str, side: Side, record: str | None = None) -> str:
    """Return the subject of a schema.

    :param record: its full name; None where it has none, as ``"string"`` and unions have not.
    :raises SchemaUnfit: the strategy needs a name, and there is none.
    :raises ConfigurationError: there is no such strategy.
    """
    named = strategy_named(strategy)
    if named == "TopicNameStrategy":
        return topic_name(topic, side)
    if not record:
        raise SchemaUnfit(
            f"{named} needs the name of a record, and the {side} schema of topic {topic} has none",
            next_step="make it a record, an enum or a fixed, or use TopicNameStrategy",
        )
    return (
        record_name(record) if named == "RecordNameStrategy" else topic_record_name(topic, record)
    )
