"""A pipeline's place in a database, without Spark: its schema, and its batches by one new process
after the other.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg
import pyarrow as pa
import pymysql

import onceward as ow
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.ids import pipeline_id
from onceward.sql.sink.sink import DatabaseTarget
from onceward_testing import LocalMySQL, LocalPostgres
from onceward_testing.sink_contract import batch
from support.mysql_client import sql_at
from support.tasks_here import ArrowFrame


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """A stopped process, for the block: its threads stop one after the other, and one that has not
    yet may answer."""
    os.kill(pid, signal.SIGSTOP)
    try:
        while any(
            psutil.Process(thread.id).status() != psutil.STATUS_STOPPED
            for thread in psutil.Process(pid).threads()
        ):
            time.sleep(0.01)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def three_batches(place: Place) -> Place:
    """In the table ``t``: one by tasks, one by the driver, one empty."""
    place.sql("CREATE TABLE {s}.t (value bigint)")
    for small, frames in ((False, ([1, 2, 3], [4])), (True, ([5, 5],)), (True, ([],))):
        place.small = small
        place.write("t", *(pa.table({"value": pa.array(values, pa.int64())}) for values in frames))
    return place


class Place:
    """A schema of the test's own."""

    def __init__(self, server: LocalPostgres | LocalMySQL) -> None:
        self.server = server
        self.url = server.url
        """The pipeline's."""
        self.schema = f"test_{uuid.uuid4().hex[:10]}"
        self.pipeline = pipeline_id(f"p-{self.schema}")
        self.small = False
        """Do rows go from the driver?"""
        self._targets: list[DatabaseTarget] = []
        self._batch = 0
        self.sql(f"CREATE SCHEMA {self.schema}")

    @property
    def postgres(self) -> LocalPostgres:
        assert isinstance(self.server, LocalPostgres)
        return self.server

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(
            self.server.url, autocommit=True, options="-c TimeZone=UTC"
        ) as connection:
            cursor = connection.execute(statement.replace("{s}", self.schema), parameters or None)
            return cursor.fetchall() if cursor.description else []

    def sink(self, table: str | None, **settings: Any) -> ow.DatabaseSink:
        return ow.DatabaseSink(
            url=self.url,
            pipeline_id=self.pipeline,
            table=None if table is None else f"{self.schema}.{table}",
            ledger_table=f"{self.schema}.ledger",
            **settings,
        )

    def new_target(self) -> DatabaseTarget:
        """For :class:`onceward_testing.sink_contract.Process`: of the table ``t``."""
        return self.target("t")

    def target(self, table: str | None, **settings: Any) -> DatabaseTarget:
        self._targets.append(DatabaseTarget(self.sink(table, **settings).settings))
        return self._targets[-1]

    def write(
        self, table: str | None, *frames: ArrowFrame | pa.Table, attempts: int = 1, **settings: Any
    ) -> LedgerRecord:
        """The pipeline's next batch, by a new process of it."""
        target = self.target(table, **settings)
        name = target.run.settings.table
        writes = [Write(f if isinstance(f, ArrowFrame) else ArrowFrame(f), name) for f in frames]  # type: ignore[arg-type]
        MicroBatches(target, SinkPolicy(self.pipeline, batch_attempts=attempts)).process(
            writes, batch(self._batch)
        )
        self._batch += 1
        found = target.peek()
        assert found is not None
        return found

    def end_idle_sessions(self) -> None:
        """As the server does once they have idled for too long."""
        self.sql(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE state = 'idle' AND application_name LIKE 'onceward%'"
        )

    def staging(self) -> list[str]:
        names = self.sql(
            "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace", self.schema
        )
        return [name for (name,) in names if name.startswith("onceward_staging")]

    def close(self) -> None:
        for target in self._targets:
            target.close()
        self.drop()

    def drop(self) -> None:
        self.sql("DROP SCHEMA {s} CASCADE")


class MySQLPlace(Place):
    """A database of the test's own."""

    def sql(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return sql_at(self.server.url, statement.replace("{s}", self.schema), *parameters)

    def end_idle_sessions(self) -> None:
        idle = (
            "SELECT id FROM information_schema.processlist WHERE command = 'Sleep' AND user = %s"
        )
        user = urlsplit(self.url).username
        # Again and again: what had just been answered is idle only a moment later
        while sessions := self.sql(idle, user):
            for (number,) in sessions:
                with suppress(pymysql.MySQLError):  # it has gone by itself
                    self.sql(f"KILL CONNECTION {number}")

    def staging(self) -> list[str]:
        names = self.sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", self.schema
        )
        return [name for (name,) in names if name.startswith("onceward_staging")]

    def drop(self) -> None:
        self.sql("DROP DATABASE {s}")
