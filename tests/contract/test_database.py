"""The contract over tables of a PostgreSQL database: rows that the driver inserts, and rows that tasks stage."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession

import onceward as ow
from lost_answers import lost_commit
from onceward.engine.driver_rows import DriverTurn
from onceward.engine.target import Target
from onceward.ids import pipeline_id
from onceward.ledger import table
from onceward.sinks.database.target import DatabaseTarget
from onceward.spark.query import RunningBatch
from onceward.testing import LocalPostgres
from onceward.testing.sink_contract import SinkContract, SinkKit, batch


class _Always(DriverTurn):
    """The contract's batches do not tell how many records they have."""

    def takes(self, running: RunningBatch) -> bool:
        return True


class DatabaseKit(SinkKit):
    """A table of one column, read by a client of its own."""

    def __init__(self, spark: SparkSession, postgres: LocalPostgres, *, driver_records: int) -> None:
        self.pipeline = pipeline_id(f"contract-{uuid.uuid4().hex[:10]}")
        self._spark = spark
        self._postgres = postgres
        self._driver_records = driver_records
        self.schema = f"contract_{uuid.uuid4().hex[:10]}"
        self._targets: list[DatabaseTarget] = []
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}")
            connection.execute(f"CREATE TABLE {self.schema}.values (value text NOT NULL)")

    def new_target(self) -> DatabaseTarget:
        sink = ow.DatabaseSink(
            url=self._postgres.url,
            pipeline_id=self.pipeline,
            table=f"{self.schema}.values",
            ledger_table=f"{self.schema}.ledger",
            driver_records=self._driver_records,
        )
        self._targets.append(DatabaseTarget(sink.settings))
        if self._driver_records:
            self._targets[-1].run.driver_turn = _Always(self._driver_records, 4 << 20)
        return self._targets[-1]

    def frame(self, values: Sequence[str], tasks: int = 2) -> DataFrame:
        return self._spark.createDataFrame([(value,) for value in values], "value string").repartition(tasks)

    def visible(self) -> Counter[str]:
        with psycopg.connect(self._postgres.url) as connection:
            return Counter(value for (value,) in connection.execute(f"TABLE {self.schema}.values"))

    def staging(self) -> list[str]:
        with psycopg.connect(self._postgres.url) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (self.schema,))
            return [name for (name,) in found if name not in ("values", "ledger")]

    def unanswered(self, target: Target, *, carried_out: bool) -> AbstractContextManager[None]:
        assert isinstance(target, DatabaseTarget)
        return lost_commit(target.run.chain, carried_out)

    def close(self) -> None:
        for target in self._targets:
            target.close()


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
