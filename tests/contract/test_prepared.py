"""I14: the contract over prepared transactions, in each database and with a ledger elsewhere."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import onceward as ow
from onceward.engine import spark_jobs
from onceward.engine.ledger.chain import Ledger
from onceward.engine.target import Target
from onceward.ids import pipeline_id
from onceward.sql.ledger import table
from onceward.sql.postgresql import staging
from onceward.sql.sink.prepared import PreparedTransactions
from onceward.sql.sink.prepared_target import PreparedTarget
from onceward_testing import LocalMySQL, LocalPostgres
from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit, batch, lost_append
from support.lost_answers import lost_commit
from support.mysql_client import sql_at
from support.tasks_here import ArrowFrame, TasksHere, forget_all


class PreparedKit(TwoPhaseKit):
    """A table of one column. In the place of the class to subclass it has what ends a sink's
    transactions.
    """

    table_type = "text NOT NULL"

    def __init__(
        self,
        server: LocalPostgres | LocalMySQL,
        spark: SparkSession | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        self.forgets = False
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self.schema = f"contract_{uuid.uuid4().hex[:10]}"
        self._spark = spark
        self._server = server
        self._ledger = ledger
        self._targets: list[Target] = []
        self.sql(f"CREATE SCHEMA {self.schema}")
        self.sql(f"CREATE TABLE {self.schema}.written (value {self.table_type})")

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def database_sink(self) -> ow.DatabaseSink:
        return ow.DatabaseSink(
            url=self._server.url,
            pipeline_id=self.pipeline,
            table=f"{self.schema}.written",
            ledger_table=f"{self.schema}.ledger",
            ledger=self._ledger,
            xa=True,
        )

    def new_target(self) -> PreparedTarget:
        self._targets.append(PreparedTarget(self.database_sink().settings))
        return self._targets[-1]

    def sink(self) -> PreparedTransactions:
        transactions = PreparedTransactions(self.database_sink().settings)
        transactions.make_markers()
        self._targets.append(transactions)
        return transactions

    def target_for(self, sink: PreparedTransactions) -> PreparedTarget:
        target = self.new_target()
        target.committer = sink
        return target

    def frame(self, values: Sequence[str], tasks: int = 2) -> Any:
        if self._spark is not None:
            return super().frame(values, tasks)
        return ArrowFrame(
            pa.table({"value": list(values)}, pa.schema([("value", pa.string())])), tasks=tasks
        )

    def failing(self, values: Sequence[str]) -> Any:
        if self._spark is not None:
            return super().failing(values)
        frame = self.frame(values)
        frame.error = ValueError("this plan hurts")
        return frame

    def visible(self) -> Counter[str]:
        return Counter(value for (value,) in self.sql(f"SELECT value FROM {self.schema}.written"))  # noqa: S608

    def markers(self) -> int:
        ((count,),) = self.sql(f"SELECT COUNT(*) FROM {self.schema}.onceward_prepared")  # noqa: S608
        return int(count)

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, PreparedTarget)
        if self._ledger is not None:
            return lost_append(target.chain, carried_out=carried_out)
        return lost_commit(target.chain, carried_out)


class MySQLPreparedKit(PreparedKit):
    """The same in MySQL or MariaDB."""

    table_type = "text CHARACTER SET utf8mb4 NOT NULL"

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return sql_at(self._server.url, statement, *parameters)


class PreparedContract(TwoPhaseContract):
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A zombie that stands still with the row's lock is ended by the server."""
        monkeypatch.setattr(table, "_IDLE_MS", 2_000)

    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, kit: PreparedKit, _closed: None) -> Iterator[None]:
        """Whatever was prepared is ended by the next start, and of markers those of the newest
        batch are left.
        """
        yield
        target = kit.new_target()
        newest = target.open(batch(0))
        if newest is not None and newest.state.value == "decided":
            newest = target.finish(newest)
        target.begin(newest, batch(0)).abort()
        assert kit.sink().recover() == []
        assert kit.markers() == len(target._published or [])
        target.close()


class WithoutSpark(PreparedContract):
    @pytest.fixture(autouse=True)
    def _tasks_here(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
        yield
        forget_all(staging.sessions)


class TestInPostgreSQL(WithoutSpark):
    @pytest.fixture
    def kit(self, postgres: LocalPostgres) -> PreparedKit:
        return PreparedKit(postgres)


@pytest.mark.once_more
class TestOnSpark(PreparedContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, postgres: LocalPostgres) -> PreparedKit:
        return PreparedKit(postgres, spark)


@pytest.mark.once_more
class TestDecidedElsewhere(WithoutSpark):
    @pytest.fixture
    def kit(self, postgres: LocalPostgres, tmp_path: Path) -> PreparedKit:
        return PreparedKit(postgres, ledger=ow.FolderLedger(tmp_path / "ledger"))


@pytest.mark.once_more
class TestInMySQL(WithoutSpark):
    @pytest.fixture
    def kit(self, newer_mysql: LocalMySQL) -> PreparedKit:
        return MySQLPreparedKit(newer_mysql)


@pytest.mark.once_more
class TestInMariaDB(WithoutSpark):
    @pytest.fixture
    def kit(self, mariadb: LocalMySQL) -> PreparedKit:
        return MySQLPreparedKit(mariadb)
