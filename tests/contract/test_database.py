"""I13: the contract over tables of a database, inserted by the driver or staged by tasks."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import onceward as ow
from onceward.engine.driver_rows import DriverTurn
from onceward.engine.target import Target
from onceward.ids import pipeline_id
from onceward.spark.batch.query import RunningBatch
from onceward.sql.ledger import table
from onceward.sql.sink.sink import DatabaseTarget
from onceward_testing import LocalMySQL, LocalPostgres
from onceward_testing.sink_contract import SinkContract, SinkKit, batch
from support.lost_answers import lost_commit
from support.mysql_client import sql_at


class _Always(DriverTurn):
    """The contract's batches do not tell how many records they have."""

    def takes(self, running: RunningBatch) -> bool:
        return True


class DatabaseKit(SinkKit):
    """A table of one column in PostgreSQL, read by a client of its own."""

    table_type = "text NOT NULL"

    def __init__(
        self, spark: SparkSession, server: LocalPostgres | LocalMySQL, *, driver_records: int
    ) -> None:
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self._spark = spark
        self._server = server
        self._driver_records = driver_records
        self.schema = f"contract_{uuid.uuid4().hex[:10]}"
        self._targets: list[DatabaseTarget] = []
        self.sql(f"CREATE SCHEMA {self.schema}")
        self.sql(f"CREATE TABLE {self.schema}.written (value {self.table_type})")

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def new_target(self) -> DatabaseTarget:
        sink = ow.DatabaseSink(
            url=self._server.url,
            pipeline_id=self.pipeline,
            table=f"{self.schema}.written",
            ledger_table=f"{self.schema}.ledger",
            driver_records=self._driver_records,
        )
        self._targets.append(DatabaseTarget(sink.settings))
        if self._driver_records:
            self._targets[-1].run.driver_turn = _Always(self._driver_records, 4 << 20)
        return self._targets[-1]

    def frame(self, values: Sequence[str], tasks: int = 2) -> DataFrame:
        return self._spark.createDataFrame(
            [(value,) for value in values], "value string"
        ).repartition(tasks)

    def visible(self) -> Counter[str]:
        return Counter(value for (value,) in self.sql(f"SELECT value FROM {self.schema}.written"))  # noqa: S608

    def staging(self) -> list[str]:
        found = self.sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", self.schema
        )
        return [name for (name,) in found if name not in ("written", "ledger", "ledger_batches")]

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, DatabaseTarget)
        return lost_commit(target.run.chain, carried_out)

    def close(self) -> None:
        for target in self._targets:
            target.close()


class MySQLKit(DatabaseKit):
    """The same in MySQL or MariaDB."""

    table_type = "text CHARACTER SET utf8mb4 NOT NULL"

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return sql_at(self._server.url, statement, *parameters)


class DatabaseContract(SinkContract):
    @pytest.fixture(autouse=True)
    def _soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A zombie that stands still with the row's lock is ended by the server."""
        monkeypatch.setattr(table, "_IDLE_MS", 2_000)

    @pytest.fixture(autouse=True)
    def _nothing_is_left(self, kit: DatabaseKit, _closed: None) -> Iterator[None]:
        """Staging tables go with their attempts; what a dead process left, with the next start."""
        yield
        kit.new_target().open(batch(0))
        assert kit.staging() == []


class TestThroughTheDriver(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, postgres: LocalPostgres) -> DatabaseKit:
        return DatabaseKit(spark, postgres, driver_records=10_000)


class TestThroughTasks(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, postgres: LocalPostgres) -> DatabaseKit:
        return DatabaseKit(spark, postgres, driver_records=0)


@pytest.mark.once_more
class TestThroughTasksIntoMySQL(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, mysql: LocalMySQL) -> DatabaseKit:
        return MySQLKit(spark, mysql, driver_records=0)


@pytest.mark.once_more
class TestThroughTheDriverIntoMySQL(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, mysql: LocalMySQL) -> DatabaseKit:
        return MySQLKit(spark, mysql, driver_records=10_000)


@pytest.mark.once_more
class TestThroughTasksIntoMariaDB(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, mariadb: LocalMySQL) -> DatabaseKit:
        return MySQLKit(spark, mariadb, driver_records=0)


@pytest.mark.once_more
class TestThroughTheDriverIntoMariaDB(DatabaseContract):
    @pytest.fixture
    def kit(self, spark: SparkSession, mariadb: LocalMySQL) -> DatabaseKit:
        return MySQLKit(spark, mariadb, driver_records=10_000)
