"""``ow.mysql_changes`` on Spark: killed between two of its steps, and what nobody may see of
it.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward.errors import ChangeUnreadable
from onceward_testing import LocalMySQL
from support.mysql_client import sql_at


@pytest.fixture
def schema(binlog_mysql: LocalMySQL) -> str:
    name = f"spark_{uuid.uuid4().hex[:10]}"
    sql_at(binlog_mysql.url, f"CREATE DATABASE {name}")
    sql_at(binlog_mysql.url, f"CREATE TABLE {name}.t (id int PRIMARY KEY, v varchar(20))")
    return name


@pytest.mark.lengthy("chaos")
def test_a_query_goes_on_from_its_checkpoint(
    spark: Any,
    binlog_mysql: LocalMySQL,
    schema: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
):
    password = binlog_mysql.url.split(":")[2].split("@")[0]
    seen: list[Any] = []

    def run(pass_over: tuple[str, ...] = ()) -> Any:
        """To the end of what there is; the error that ended the query, if one did."""
        frame = ow.mysql_changes(
            spark, url=binlog_mysql.url, tables=f"{schema}.*", pass_over=pass_over, poll_seconds=0
        )
        assert password not in frame._jdf.queryExecution().toString()
        writer = frame.writeStream.foreachBatch(lambda batch, _: seen.extend(batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        with suppress(StreamingQueryException):
            query.processAllAvailable()
        query.stop()
        assert password not in f"{query.exception()} {query.recentProgress}"
        return ow.error_of(query)

    def came() -> list[tuple[str, str]]:
        found = [
            (one.op, one.after or one.before)
            for one in sorted(seen, key=lambda one: str(one.position))
        ]
        seen.clear()
        return found

    with caplog.at_level(logging.DEBUG):
        sql_at(binlog_mysql.url, f"INSERT INTO {schema}.t VALUES (1, 'a')")
        assert run() is None
        assert came() == [("r", '{"id":1,"v":"a"}')]
        sql_at(binlog_mysql.url, f"UPDATE {schema}.t SET v = 'b'")
        assert run() is None
        assert came() == [("u", '{"id":1,"v":"b"}')]
        sql_at(binlog_mysql.url, f"INSERT INTO {schema}.t VALUES (2, 'c')")
        sql_at(binlog_mysql.url, f"DROP TABLE {schema}.t")
        error = run()
        assert isinstance(error, ChangeUnreadable)
        assert came() == [("c", '{"id":2,"v":"c"}')]
        assert run(pass_over=(error.details["at"],)) is None
        assert came() == []
    assert password not in caplog.text


@pytest.mark.slow
def test_a_query_stops_while_its_server_stands_still(
    spark: Any, binlog_mysql: LocalMySQL, schema: str, tmp_path: Path
):
    """It waits for an answer that does not come, for minutes if need be; whoever stops it does
    not.
    """
    frame = ow.mysql_changes(
        spark, url=binlog_mysql.url, tables=f"{schema}.*", starting="latest", poll_seconds=0
    )
    writer = frame.writeStream.foreachBatch(lambda batch, _: None)
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    query.processAllAvailable()
    assert binlog_mysql.pid is not None
    os.kill(binlog_mysql.pid, signal.SIGSTOP)
    try:
        time.sleep(1)  # now it asks: a hundred times a second it did
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(30)
        assert not stopping.is_alive()
    finally:
        os.kill(binlog_mysql.pid, signal.SIGCONT)
