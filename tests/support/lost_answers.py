"""Commits that get no answer: of a Kafka transaction, of one of a database. For tests."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from onceward.engine.ledger.chain import Chain
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.wire.connections import ConnectionLost
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.table import TableChain


@contextmanager
def lost_end_txn(chain: KafkaChain, *, carried_out: bool) -> Iterator[None]:
    """Inside, no ``EndTxn`` of ``chain`` gets an answer, whether it is carried out or never
    leaves.
    """
    client, transaction = chain._client, chain.transaction
    send, patience_ms = client.send, transaction.patience_ms

    def losing(request: Any, node_id: int | str, timeout_ms: float | None = None) -> Future[Any]:
        if not type(request).__name__.startswith("EndTxn"):
            return send(request, node_id, timeout_ms)
        outcome: Future[Any] = Future()
        lost = ConnectionLost("lost on purpose")
        if carried_out:
            send(request, node_id, timeout_ms).add_done_callback(
                lambda _: outcome.set_exception(lost)
            )
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


@contextmanager
def lost_commit(
    chain: Chain, carried_out: bool, under_way: list[Session] | None = None
) -> Iterator[None]:
    """The COMMIT gets no answer: it was carried out, or waits somewhere, or never left."""
    assert isinstance(chain, TableChain)
    connection = chain._connected()

    class Losing:
        """The connection, but for its commit."""

        closed = False
        appending = chain._put is not None

        def __getattr__(self, name: str) -> Any:
            return getattr(connection, name)

        def execute(self, statement: str, *parameters: Any) -> Any:
            self.appending = self.appending or "SET sequence" in statement
            return connection.execute(statement, *parameters)

        def commit(self) -> None:
            appending, self.appending = self.appending, False
            if carried_out or not appending:
                connection.commit()
            if appending:
                raise chain._database.errors[0]("lost on purpose")

        def close(self) -> None:
            if under_way is None:
                connection.close()
            else:
                under_way.append(connection)

    chain._connection = Losing()  # type: ignore[assignment]
    yield
