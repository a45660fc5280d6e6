"""The Kafka sink's settings, checked when the sink is built. Driver only; made by :mod:`sink`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from onceward.engine.policy import Checkpointing, SinkPolicy, check_choice, whole_number
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    InvalidTopicName,
    TransactionTimeoutTooLarge,
)
from onceward.ids import topic_name
from onceward.kafka.sink.columns import OrderWithin
from onceward.kafka.wire.options.security import TokenProvider, provider_extensions
from onceward.kafka.wire.options.settings import ClientSettings, ProducerSettings
from onceward.spark.batch.carried import pickled_again, restore

OnError = Literal["stop", "dead_letter"]

_LEAST_HELD_BYTES = 1 << 20
# a worker needs four times as much
_MOST_HELD_BYTES = 16 << 30
_MOST_DRIVER_RECORDS = 1_000_000
_MOST_DRIVER_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class KafkaSinkSettings:
    """What :class:`onceward.KafkaSink` was built with; see there for meanings, units and defaults.
    :raises ConfigurationError: naming the setting and what it takes."""

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
    dead_letter_topic: str | None = None
    on_error: OnError = "stop"
    order_by: tuple[str, ...] = ()
    order_within: OrderWithin = "key"

    def __post_init__(self) -> None:
        check_choice("lineage", self.lineage, (True, False))
        whole_number("driver_records", self.driver_records, 0, _MOST_DRIVER_RECORDS)
        whole_number("driver_bytes", self.driver_bytes, 0, _MOST_DRIVER_BYTES)
        whole_number("held_bytes", self.held_bytes, _LEAST_HELD_BYTES, _MOST_HELD_BYTES)
        whole_number("sequencer_port", self.sequencer_port, 0, 65_535)
        if self.create_topic_partitions is not None:
            whole_number("create_topic_partitions", self.create_topic_partitions, 1)
        topic_name(self.ledger_topic, "ledger_topic")
        if self.topic is not None:
            _refuse_several(self.topic)
            topic_name(self.topic, "topic")
        if self.sequencer_host is not None and not (
            isinstance(self.sequencer_host, str) and self.sequencer_host
        ):
            raise ConfigurationError(
                f"sequencer_host={self.sequencer_host!r} is not the name or address of a host",
                next_step="pass the one under which executors reach the driver, or leave it out",
            )
        if self.topic == self.ledger_topic:
            raise ContradictoryOptions(
                f"topic and ledger_topic are both {self.topic!r}",
                next_step="write records to a topic of their own",
            )
        check_choice("on_error", self.on_error, get_args(OnError))
        self._check_dead_letters()
        self._check_order()

    def _check_order(self) -> None:
        check_choice("order_within", self.order_within, get_args(OrderWithin))
        if self.order_within != "key" and not self.order_by:
            raise ContradictoryOptions(
                f"order_within={self.order_within!r} and no order_by=",
                next_step="pass order_by=, a column or several that grow from record to record, "
                "or leave it out",
            )
        if self.order_by and not self.policy.has_ledger:
            raise ContradictoryOptions(
                f"order_by= with delivery={self.policy.delivery!r}: what is sent once more would "
                "come behind what came after it",
                next_step='use delivery="exactly_once", or leave order_by= out',
            )

    def _check_dead_letters(self) -> None:
        if self.dead_letter_topic is None:
            if self.on_error == "dead_letter":
                raise ContradictoryOptions(
                    'on_error="dead_letter" and no dead_letter_topic',
                    next_step="pass dead_letter_topic= as well",
                )
            return
        if topic_name(self.dead_letter_topic, "dead_letter_topic") in (
            self.ledger_topic,
            self.topic,
        ):
            raise ContradictoryOptions(
                f"dead_letter_topic={self.dead_letter_topic!r} is the sink's own topic, or its "
                "ledger topic",
                next_step="give dead letters a topic of their own",
            )
        if self.on_error == "dead_letter" and not self.policy.has_ledger:
            raise ContradictoryOptions(
                f'on_error="dead_letter" with delivery={self.policy.delivery!r}',
                next_step='use delivery="exactly_once", or leave on_error= out',
            )
        if self.on_error == "dead_letter" and self.topic is None:
            raise ContradictoryOptions(
                'on_error="dead_letter" without topic=: what is too large depends on the topic, '
                "and the rows name theirs",
                next_step="pass topic=, or leave on_error= out (dead_letter_topic= by itself "
                "takes what a format cannot read)",
            )


def with_checkpointing(
    producer: ProducerSettings, checkpointing: Checkpointing | None
) -> ProducerSettings:
    """Return the settings with the transaction timeout that the checkpoint settings ask for.
    :raises ContradictoryOptions: ``transaction.timeout.ms`` is set, and shorter."""
    timeout_ms = producer.transaction_timeout_ms
    if checkpointing is None:
        return producer
    if timeout_ms is None:
        return replace(producer, transaction_timeout_ms=checkpointing.transaction_timeout_ms)
    if timeout_ms < checkpointing.timeout_s * 1000:
        raise ContradictoryOptions(
            f"transaction.timeout.ms={timeout_ms} is below "
            f"timeout={checkpointing.timeout_s:g} s of ow.checkpointing: the coordinator would "
            "abort a batch that may still run",
            next_step="leave transaction.timeout.ms out of options=: it is derived from timeout",
        )
    return producer


def name_checkpointing(
    too_large: TransactionTimeoutTooLarge, checkpointing: Checkpointing | None
) -> None:
    """Name in the error of a refused transaction timeout the setting that it was derived from."""
    if checkpointing is not None:
        timeout = f"timeout={checkpointing.timeout_s:g} s of ow.checkpointing"
        too_large.message += f"; it was derived from {timeout}, and a minute to commit in"
        too_large.next_step = (
            "lower timeout= of ow.checkpointing to at least a minute below "
            "transaction.max.timeout.ms, or raise that on the brokers; nothing has to be undone"
        )


def _refuse_several(topic: object) -> None:
    """Refuse ``topic="a,b"``, as sources take it."""
    several = topic.split(",") if isinstance(topic, str) else topic
    if isinstance(several, list | tuple | set) and len(several) > 1:
        raise InvalidTopicName(
            f"topic={topic!r} names {len(several)} topics, and a sink writes to one, or to those "
            "that the rows name",
            next_step="leave topic= out and give the frame a column 'topic', or pass one name",
        )


class TokensAsBuilt:
    """Asks the user's provider for tokens; goes to the tasks as the provider is, or, once it has
    opened in the driver what cannot be sent, as it last could be. Two are equal whose providers
    are, or were when they were built: a sink may be built anew for each batch.

    :raises ConfigurationError: the provider cannot be sent to the tasks.
    """

    def __init__(self, provider: TokenProvider) -> None:
        self._provider = provider
        self._pickled: bytes | None = None
        self._first = self._build()

    def _build(self) -> bytes:
        self._pickled = pickled_again(
            self._provider,
            "open what oauth_token_provider= needs in token(), and not before; or leave the "
            "attribute out by __getstate__()",
            self._pickled,
        )
        return self._pickled

    def token(self) -> str:
        """Return a token that is valid now."""
        return self._provider.token()

    def extensions(self) -> dict[str, str]:
        """Return what goes to the server beside the token."""
        return provider_extensions(self._provider)

    def __reduce__(self) -> Any:
        return restore, (self._build(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokensAsBuilt) and (
            self._provider == other._provider or self._first == other._first
        )

    def __hash__(self) -> int:
        return hash(type(self._provider))
