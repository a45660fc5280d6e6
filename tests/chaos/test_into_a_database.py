"""I13, I14: a job into a real database, killed before, in and after the deciding transaction."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id
from onceward.sql.sink.prepared import PreparedTransactions
from support.mysql_client import sql_at

BATCHES = 4


def _postgresql(url: str, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


@pytest.mark.fault("database-driver-killed")
@pytest.mark.parametrize(
    "fault",
    [
        "ledger:finished:2:kill",
        "commit:finished:2:kill",
        "send:finished:2:kill",
        "open:finished:1:kill",
    ],
)
@pytest.mark.parametrize(
    "server",
    [
        "postgres",
        *(pytest.param(other, marks=pytest.mark.once_more) for other in ("mysql", "mariadb")),
    ],
)
def test_killed_around_the_transaction(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, fault: str
):
    url = request.getfixturevalue(server).url
    sql = _postgresql if server == "postgres" else sql_at
    table = f"out_{uuid.uuid4().hex[:10]}"
    sql(url, f"CREATE TABLE {table} (value varchar(200) NOT NULL)")
    job = TextFileJob(Path(__file__).with_name("database_job.py"), tmp_path, url, table)
    wanted = job.write_input(BATCHES)
    killed = job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    ended = job.live()
    assert ended.status == 0, ended.log_tail()
    assert Counter(value for (value,) in sql(url, f"SELECT value FROM {table}")) == Counter(wanted)  # noqa: S608
    names = [name for (name,) in sql(url, "SELECT table_name FROM information_schema.tables")]
    assert [name for name in names if name.startswith("onceward_staging")] == []
    newest = ow.DatabaseLedger(url).chain(pipeline_id(table)).peek()
    assert newest is not None
    assert newest.sequence == BATCHES - 1


@pytest.mark.fault("prepared-driver-killed")
@pytest.mark.parametrize(
    "fault", ["publish:started:2:kill", "send:finished:2:kill", "publish:finished:2:kill"]
)
@pytest.mark.parametrize(
    "server",
    [
        "postgres",
        *(
            pytest.param(other, marks=pytest.mark.once_more)
            for other in ("newer_mysql", "mariadb")
        ),
    ],
)
def test_killed_between_the_decision_and_the_commits(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, fault: str
):
    """Of transactions that tasks have prepared: what is decided is committed, what is not is
    rolled back.
    """
    url = request.getfixturevalue(server).url
    sql = _postgresql if server == "postgres" else sql_at
    table = f"out_{uuid.uuid4().hex[:10]}"
    sql(url, f"CREATE TABLE {table} (value varchar(200) NOT NULL)")
    job = TextFileJob(Path(__file__).with_name("database_job.py"), tmp_path, url, table, "xa")
    wanted = job.write_input(BATCHES)
    transactions = PreparedTransactions(
        ow.DatabaseSink(url=url, table=table, pipeline_id=table, xa=True).settings
    )
    killed = job.live(fault)
    assert killed.status == -signal.SIGKILL, killed.log_tail()
    assert len(transactions.recover()) == (0 if fault.startswith("publish:finished") else 2)
    ended = job.live()
    assert ended.status == 0, ended.log_tail()
    assert Counter(value for (value,) in sql(url, f"SELECT value FROM {table}")) == Counter(wanted)  # noqa: S608
    assert transactions.recover() == []
    transactions.close()
    newest = ow.DatabaseLedger(url).chain(pipeline_id(table)).peek()
    assert newest is not None
    assert (newest.sequence, newest.state.value) == (BATCHES - 1, "finished")
    markers = sql(url, f"SELECT name FROM onceward_prepared WHERE pipeline = '{table}'")  # noqa: S608
    assert len(markers) == 4  # of the newest two batches
