"""Catalogs, and storages of tables, that take a question and never answer. No JVM: its objects are
stood in for; what Spark itself does with them, tests/contract asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from onceward import patience
from onceward.errors import (
    OncewardError,
    ServerMisconfigured,
    TableMissing,
    TargetUnreachable,
)
from onceward.spark.batch.causes import Thrown
from onceward.spark.batch.job import asked_apart
from onceward.spark.tables import delta_table, iceberg_table
from onceward.spark.tables.delta_table import DeltaTable, DeltaTransaction, table_location
from onceward.spark.tables.iceberg_table import IcebergTable
from support.errors import raises

PATIENCE_SECONDS = 30


@pytest.fixture
def silent() -> Iterator[Callable[..., None]]:
    """What it is asked, nobody answers before the test is over."""
    over = threading.Event()
    yield lambda *_: over.wait(PATIENCE_SECONDS)
    over.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_table, "_ANSWER_SECONDS", 0.2)


def without_a_session() -> Any:
    jvm = MagicMock()
    jvm.org.apache.spark.sql.classic.SparkSession.getActiveSession().isDefined.return_value = False
    return jvm


def table(log: Any = None) -> DeltaTable:
    made: Any = object.__new__(DeltaTable)
    made._jvm, made._log, made.path = without_a_session(), log, "/data/visits"
    made._session = MagicMock()
    return made


def iceberg(of_iceberg: Any) -> IcebergTable:
    made: Any = object.__new__(IcebergTable)
    made._jvm, made._table, made.name = without_a_session(), of_iceberg, "lake.shop.visits"
    return made  # type: ignore[no-any-return]


def transaction(of_delta: Any) -> DeltaTransaction:
    return DeltaTransaction(table(), of_delta)


def test_a_metastore_that_hangs_is_waited_for_in_bounds(silent: Callable[..., None]) -> None:
    session: Any = SimpleNamespace(
        sql=silent, sparkContext=SimpleNamespace(_jvm=without_a_session())
    )
    with raises(TargetUnreachable, "shop.visits"):
        table_location(session, "shop.visits")


ADD = '{"add": {"path": "part-0"}}'


each_question = pytest.mark.parametrize(
    "ask",
    [
        lambda silent: table(SimpleNamespace(startTransaction=silent)).begin(),
        lambda silent: table(
            MagicMock(**{"startTransaction.return_value.metadata": silent})
        ).begin(),
        lambda silent: table(MagicMock(protocolWrite=silent)).begin(),
        lambda silent: transaction(SimpleNamespace(txnVersion=silent)).newest("a"),
        lambda silent: transaction(
            MagicMock(**{"snapshot.return_value.setTransactions": silent})
        ).writers(),
        lambda silent: transaction(MagicMock(commit=silent)).commit([ADD], "a", 1, "b"),
    ],
)


@each_question
def test_a_storage_that_hangs_is_waited_for_in_bounds(
    silent: Callable[..., None], ask: Callable[[Any], None]
) -> None:
    with raises(TargetUnreachable, "/data/visits"):
        ask(silent)


class Failed(Exception):
    """As py4j raises it."""


@each_question
@pytest.mark.parametrize("fails", [True, False], ids=["storage", "Delta"])
def test_a_storage_that_fails_is_told_from_what_delta_says_of_the_table(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], None], fails: bool
) -> None:
    """A commit that was too late is no outage."""
    chain = [Thrown("io.delta.exceptions.ConcurrentTransactionException", "txn")]
    if fails:
        wrapped = "com.google.common.util.concurrent.UncheckedExecutionException"
        chain = [Thrown(wrapped, "…"), Thrown("java.net.ConnectException", "to nn1")]
    monkeypatch.setattr(
        delta_table, "thrown_by", lambda error: chain if isinstance(error, Failed) else ()
    )

    def fail(*_: Any) -> None:
        raise Failed

    with raises(TargetUnreachable, "/data/visits", "nn1") if fails else pytest.raises(Failed):
        ask(fail)


@each_question
@pytest.mark.parametrize(
    "thrown",
    [
        # Delta 4.0, at DeltaLog.forTable
        Thrown(
            "java.lang.IllegalStateException",
            "Path based access is not supported for Catalog-Owned table: file:/data/visits",
            thrown_in="org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedTableUtils$",
        ),
        Thrown(
            "org.apache.spark.sql.delta.DeltaUnsupportedTableFeatureException",
            "requires reader table feature(s): catalogManaged",
            "DELTA_UNSUPPORTED_FEATURES_FOR_READ",
        ),
        Thrown(
            "org.apache.spark.sql.delta.DeltaIllegalStateException",
            "Path-based access is not allowed",
            "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED",
        ),
    ],
    ids=["4.0", "unknown", "blocked"],
)
def test_a_table_that_delta_does_not_take_by_its_path_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], None], thrown: Thrown
) -> None:
    """Delta says so as it reads the log, before anybody can ask for the table's features."""
    monkeypatch.setattr(delta_table, "thrown_by", lambda _: (thrown,))

    def fail(*_: Any) -> None:
        raise Failed

    with raises(ServerMisconfigured, "/data/visits"):
        ask(fail)


@each_question
@pytest.mark.parametrize(
    "thrown",
    [
        Thrown(
            "org.apache.spark.sql.delta.DeltaUnsupportedTableFeatureException",
            "requires writer table feature(s): fromTomorrow",
            "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE",
        ),
        Thrown(
            "org.apache.spark.sql.delta.DeltaUnsupportedTableFeatureException",
            "requires reader table feature(s): fromTomorrow",
            "DELTA_UNSUPPORTED_FEATURES_FOR_READ",
        ),
        Thrown(
            "org.apache.spark.sql.delta.InvalidProtocolVersionException",
            "requires reader version 4 and writer version 8",
            "DELTA_INVALID_PROTOCOL_VERSION",
        ),
    ],
    ids=["writers", "readers", "versions"],
)
def test_a_table_that_needs_a_newer_delta_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], None], thrown: Thrown
) -> None:
    """When a batch begins: at its commit it would be decided, and could not be published."""
    monkeypatch.setattr(delta_table, "thrown_by", lambda _: (thrown,))

    def fail(*_: Any) -> None:
        raise Failed

    with raises(ServerMisconfigured, "/data/visits", "DROP FEATURE"):
        ask(fail)


@pytest.mark.parametrize("ask", [DeltaTable.missing, DeltaTable.remove])
def test_files_of_a_storage_that_hangs_are_waited_for_in_bounds(
    silent: Callable[..., None], ask: Callable[..., Any]
) -> None:
    made: Any = table()
    made._system = lambda: SimpleNamespace(exists=silent, delete=silent)
    with raises(TargetUnreachable, "/data/visits"):
        ask(made, [ADD])


def test_a_catalog_of_iceberg_that_hangs_is_waited_for_in_bounds(
    silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_table, "_ANSWER_SECONDS", 0.2)
    with raises(TargetUnreachable, "lake.shop.visits"):
        iceberg(SimpleNamespace(refresh=silent)).properties()


def test_a_commit_to_iceberg_looks_at_the_table_once(
    silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction begins with a look of its own (``Transactions.newTransaction``)."""
    monkeypatch.setattr(iceberg_table, "_ANSWER_SECONDS", 0.2)
    of_iceberg = MagicMock()
    made: Any = iceberg(of_iceberg)
    made._session = MagicMock()
    made.publish([1], {"name": "value"})
    of_iceberg.refresh.assert_not_called()
    of_iceberg.newTransaction.return_value.commitTransaction.assert_called_once_with()
    of_iceberg.newTransaction = silent
    with raises(TargetUnreachable, "lake.shop.visits"):
        made.publish([1], {})


@pytest.mark.parametrize(
    ("kind", "error"),
    [("NoSuchTableException", TableMissing), ("ServiceFailureException", TargetUnreachable)],
)
def test_a_catalog_that_fails_as_a_commit_begins_is_named(
    monkeypatch: pytest.MonkeyPatch, kind: str, error: type[OncewardError]
) -> None:
    chain = (Thrown(f"org.apache.iceberg.exceptions.{kind}", "table"),)
    monkeypatch.setattr(iceberg_table, "thrown_by", lambda _: chain)
    with raises(error, "lake.shop.visits"):
        iceberg(MagicMock(**{"newTransaction.side_effect": Failed})).publish([1], {})


def missing_in_delta(exists: Callable[[Any], bool]) -> list[str]:
    made: Any = table()
    made._system = lambda: SimpleNamespace(exists=exists)
    return made.missing([ADD] * 15)  # type: ignore[no-any-return]


def missing_in_iceberg(exists: Callable[[Any], bool]) -> list[str]:
    of_iceberg = MagicMock()
    of_iceberg.snapshot.return_value.addedDataFiles.return_value = [MagicMock()] * 15
    of_iceberg.io.return_value.newInputFile = lambda file: SimpleNamespace(
        exists=lambda: exists(file)
    )
    return iceberg(of_iceberg).missing([1])


@pytest.mark.parametrize("missing", [missing_in_delta, missing_in_iceberg])
def test_files_of_a_large_batch_are_looked_for_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch, missing: Callable[[Callable[[Any], bool]], list[str]]
) -> None:
    """Else a decided batch of tens of thousands of files could not be published, at any try."""
    for module, limit in ((delta_table, "_ANSWER_SECONDS"), (iceberg_table, "_COMMIT_SECONDS")):
        monkeypatch.setattr(module, "_AT_ONCE", 2)
        monkeypatch.setattr(module, limit, 1.0)
    looked = list[Any]()

    def exists(path: Any) -> bool:
        time.sleep(0.1)
        looked.append(path)
        return len(looked) != 15

    assert len(missing(exists)) == 1
    assert len(looked) == 15


def test_a_query_that_is_stopped_waits_for_no_storage(
    silent: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(Exception):
        pass

    def stop() -> None:
        raise Stopped

    monkeypatch.setattr(delta_table, "_ANSWER_SECONDS", 3_600.0)
    with patience.asking(stop), pytest.raises(Stopped):
        table(SimpleNamespace(startTransaction=silent)).begin()


def test_whoever_is_asked_sees_the_session_of_the_batch_and_its_jobs_are_of_the_query() -> None:
    jvm, told = MagicMock(), list[tuple[Any, Any, int]]()
    sessions = jvm.org.apache.spark.sql.classic.SparkSession
    session = sessions.getActiveSession().get()
    context = session.sparkContext()
    sessions.setActiveSession.side_effect = lambda one: told.append(
        ("session", one, threading.get_ident())
    )
    context.setLocalProperties.side_effect = lambda one: told.append(
        ("properties", one, threading.get_ident())
    )
    late = TargetUnreachable("late", next_step="none")
    there = asked_apart(jvm, threading.get_ident, PATIENCE_SECONDS, late)
    assert there != threading.get_ident()
    assert told == [
        ("session", session, there),
        ("properties", context.getLocalProperties().clone(), there),
    ]
