"""What the wire tests share: small batches, a transaction with its producer, and a client that
loses messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pyarrow as pa

from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, encode_fragments, next_sequence
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.wire.appends.producer import Append, Appended, PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.error_table import _ANY, _SPECIFIC, Api, Rule, find_rule
from onceward.kafka.wire.options.settings import (
    ClientSettings,
    ProducerSettings,
    settings_from_options,
)
from onceward.kafka.wire.transactions.transaction import Transaction


def settings(bootstrap_servers: str, **options: Any) -> tuple[ClientSettings, ProducerSettings]:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return settings_from_options(bootstrap_servers, named, client_id="wire-test")


def fragments(
    values: Sequence[bytes],
    *,
    key: bytes | None = None,
    batch_bytes: int = 1_000_000,
    ahead_s: int = 0,
) -> list[Fragment]:
    columns = RecordColumns.of(
        pa.array(values, pa.binary()),
        key=None if key is None else pa.array([key] * len(values), pa.binary()),
    )
    return encode_fragments(
        columns,
        codec=Codec.NONE,
        batch_bytes=batch_bytes,
        now_ms=int((time.time() + ahead_s) * 1000),
    )


def appends_to(
    partition: TopicPartition, parts: Sequence[Fragment], sequence: int = 0
) -> list[Append]:
    appends = []
    for fragment in parts:
        appends.append(Append(partition, fragment, sequence))
        sequence = next_sequence(sequence, fragment.count)
    return appends


def one_by_one(
    partition: TopicPartition, values: Sequence[bytes], sequence: int = 0
) -> list[Append]:
    """Every value as a batch of its own."""
    return appends_to(partition, [fragments([value])[0] for value in values], sequence)


class Writer:
    """A pipeline's driver and its one task in a nutshell."""

    def __init__(
        self,
        client: KafkaClient,
        transactional_id: str,
        *,
        timeout_ms: int = 30_000,
        **patience: int,
    ) -> None:
        self.client = client
        self.transaction = Transaction(client, transactional_id, timeout_ms, **patience)
        self.producer_settings = ProducerSettings()

    def producer(
        self, identity: ProducerIdentity | None = None, client: KafkaClient | None = None
    ) -> PartitionProducer:
        return PartitionProducer(
            client or self.client,
            self.producer_settings,
            identity or self.transaction.identity,
            transactional_id=self.transaction.transactional_id,
            version=self.transaction.version,
        )

    def write(self, values: dict[TopicPartition, Sequence[bytes]]) -> list[Appended]:
        """Into the open transaction, from sequence 0 on."""
        self.transaction.add_partitions(values)
        appends = [
            a for partition, some in values.items() for a in appends_to(partition, fragments(some))
        ]
        return self.producer().send(appends)

    def commit(self, values: dict[TopicPartition, Sequence[bytes]]) -> None:
        self.transaction.begin()
        self.write(values)
        self.transaction.commit()

    def with_patience(self, delivery_timeout_ms: int) -> Writer:
        self.producer_settings = replace(
            self.producer_settings, delivery_timeout_ms=delivery_timeout_ms
        )
        return self


class LosingClient(KafkaClient):
    """Loses messages on purpose: requests before they are sent, or answers after they have come.

    ``lose(name, times, …)`` arms it for requests of that class name; :attr:`lost` counts what it
    did.
    """

    def __init__(self, settings: ClientSettings) -> None:
        super().__init__(settings)
        self._plans: dict[str, Callable[[int], str]] = {}
        self.seen: dict[str, int] = {}
        self.lost = 0

    def lose(self, request: str, fate: Callable[[int], str]) -> None:
        """``fate`` gets the number of the request (from 1) and answers "request", "answer" or ""
        (let it pass).
        """
        self._plans[request] = fate
        self.seen[request] = 0

    def send(
        self, request: Any, node_id: int | str, timeout_ms: float | None = None
    ) -> Future[Any]:
        name = type(request).__name__
        if name not in self._plans:
            return super().send(request, node_id, timeout_ms)
        self.seen[name] += 1
        fate = self._plans[name](self.seen[name])
        self.lost += bool(fate)
        outcome: Future[Any] = Future()
        if fate == "request":
            outcome.set_exception(ConnectionLost("lost on purpose: the request"))
            return outcome
        answer = super().send(request, node_id, timeout_ms)
        if not fate:
            return answer
        answer.add_done_callback(
            lambda _: outcome.set_exception(ConnectionLost("lost on purpose: the answer"))
        )
        return outcome


def first(times: int, fate: str) -> Callable[[int], str]:
    return lambda number: fate if number <= times else ""


def error_rules() -> list[tuple[Api, int, Rule]]:
    """Return every row of the error table that a request can meet."""
    return [
        (api, code, find_rule(api, code))
        for api in Api
        for code in sorted({*_ANY, *_SPECIFIC.get(api, {})})
    ]
