"""How long a task may hold a lease, beside the transaction that it is of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from onceward.kafka.sink.tasks_path import TasksPath


@pytest.mark.parametrize(
    ("delivery_ms", "transaction_ms", "at_least", "at_most"),
    [
        # The transaction's own error names the cause: no lease is given up at the same moment
        (120_000, 4_000, 6, 120),
        # Nor before a task gives up what nobody acknowledges, behind what its lease prepares
        (3_000, 60_000, 6, 12),
        (120_000, 660_000, 190, 200),
    ],
)
def test_a_transaction_that_is_over_speaks_before_its_leases(
    delivery_ms: int, transaction_ms: int, at_least: float, at_most: float
) -> None:
    opened: dict[str, Any] = {}
    transaction = SimpleNamespace(
        identity=(1, 0),
        timeout_ms=transaction_ms,
        patience_ms=70_000,
        add_partitions=lambda partitions: None,
    )
    path = object.__new__(TasksPath)
    path._run = SimpleNamespace(  # type: ignore[assignment]
        settings=SimpleNamespace(producer=SimpleNamespace(delivery_timeout_ms=delivery_ms)),
        chain=SimpleNamespace(transaction=transaction),
    )
    path._open_epoch(SimpleNamespace(open_epoch=lambda identity, **how: opened.update(how)), {})  # type: ignore[arg-type]
    assert at_least <= opened["lease_limit_seconds"] <= at_most
