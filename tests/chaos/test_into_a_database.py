"""A job that writes to a table of a real database, killed before, in and after the transaction that decides."""

from __future__ import annotations

import signal
import uuid
from collections import Counter
from pathlib import Path

import psycopg
import pytest
from text_file_jobs import TextFileJob

import onceward as ow
from onceward.ids import pipeline_id
from onceward.testing import LocalPostgres

BATCHES = 4


@pytest.mark.fault("database-driver-killed")
@pytest.mark.parametrize(
    "fault", ["ledger:finished:2:kill", "send:finished:2:kill", "commit:finished:2:kill", "open:finished:1:kill"]
)
def test_killed_around_the_transaction(tmp_path: Path, postgres: LocalPostgres, fault: str):
    table = f"out_{uuid.uuid4().hex[:10]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {table} (value text NOT NULL)")
        job = TextFileJob(Path(__file__).with_name("database_job.py"), tmp_path, postgres.url, table)
        wanted = job.write_input(BATCHES)
        killed = job.live(fault)
        assert killed.status == -signal.SIGKILL, killed.log_tail()
        ended = job.live()
        assert ended.status == 0, ended.log_tail()
        assert Counter(value for (value,) in connection.execute(f"TABLE {table}")) == Counter(wanted)
        left = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'onceward\\_staging%'").fetchall()
        assert left == []
    newest = ow.DatabaseLedger(postgres.url).chain(pipeline_id(table)).peek()
    assert newest is not None
    assert newest.sequence == BATCHES - 1
