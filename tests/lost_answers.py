"""Commits and aborts of a Kafka transaction that get no answer. For tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from onceward.ledger.kafka_chain import KafkaChain
from onceward.wire.connections import ConnectionLost


@contextmanager
def lost_end_txn(chain: KafkaChain, *, carried_out: bool) -> Iterator[None]:
    """Inside, no ``EndTxn`` of ``chain`` gets an answer, whether it is carried out or never leaves."""
    client, transaction = chain._client, chain.transaction
    send, patience_ms = client.send, transaction.patience_ms

    def losing(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("EndTxn"):
            return send(request, node_id, timeout_ms)
        outcome: Future[Any] = Future()
        lost = ConnectionLost("lost on purpose")
        if carried_out:
            send(request, node_id, timeout_ms).add_done_callback(lambda _: outcome.set_exception(lost))
        else:
            outcome.set_exception(lost)
        return outcome

    client.send = losing  # type: ignore[method-assign]
    transaction.patience_ms = 2_000
    try:
        yield
    finally:
        client.send = send  # type: ignore[method-assign]
        transaction.patience_ms = patience_ms
