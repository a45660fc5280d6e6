"""The database for tests: it starts, crashes and comes back."""

from __future__ import annotations

import psutil
import psycopg
import pytest

from onceward_testing import LocalPostgres


@pytest.mark.lengthy("chaos")
def test_it_recovers_from_a_crash_and_is_gone_with_the_block():
    with LocalPostgres({"max_connections": "7"}) as postgres:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            assert connection.execute("SHOW max_connections").fetchone() == ("7",)
            connection.execute("CREATE TABLE kept (n int)")
        first = postgres.pid
        postgres.kill()
        postgres.start()
        with psycopg.connect(postgres.url) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
        second, folder = postgres.pid, postgres.folder
    assert first != second
    assert not psutil.pid_exists(second)
    assert second is not None
    assert not folder.exists()
