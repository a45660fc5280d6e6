"""What a server's errors mean for a batch: what may pass lets it run again, what the rows are to blame for does not."""

from __future__ import annotations

import pytest

from onceward.errors import RowRefused, SendFailed, TableMissing
from onceward.sinks.database.mysql import refusals as mysql
from onceward.sinks.database.postgresql import refusals as postgresql


@pytest.mark.parametrize("number", [1021, 1114, 1213, 1290, 1836, 4031])
def test_the_servers_own_trouble_passes_in_mysql(number: int) -> None:
    assert isinstance(mysql.refusal(number, "The MySQL server is running with --read-only", "moving rows"), SendFailed)


@pytest.mark.parametrize("state", ["25006", "40P01", "53100", "57P01"])
def test_the_servers_own_trouble_passes_in_postgresql(state: str) -> None:
    assert isinstance(postgresql.refusal(state, "read-only transaction", "moving rows"), SendFailed)


def test_rows_are_to_blame_for_what_they_violate() -> None:
    assert isinstance(mysql.refusal(1062, "Duplicate entry", "moving rows"), RowRefused)
    assert isinstance(postgresql.refusal("23505", "duplicate key", "moving rows"), RowRefused)


def test_a_staging_table_that_is_gone_is_not_the_users() -> None:
    """A newer copy has dropped it: the batch runs again, and then it is Fenced that stops this one."""
    gone = 'relation "public.onceward_staging_1f63d77f_1_5_0" does not exist'
    assert isinstance(postgresql.refusal("42P01", gone, "copying rows to the staging table"), SendFailed)
    assert isinstance(mysql.refusal(1146, "Table 'app.onceward_staging_1' doesn't exist", "loading rows"), SendFailed)
    assert isinstance(postgresql.refusal("42P01", 'relation "orders" does not exist', "looking"), TableMissing)
