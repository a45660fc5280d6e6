"""I24: the contract of sources over ``ow.mysql_changes``, whose rows several tasks read."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from onceward.mysql.source.settings import make_settings
from onceward.mysql.source.source import MySQLChanges
from onceward_testing import LocalMySQL
from onceward_testing.source_contract import SourceContract, SourceKit
from support.mysql_client import sql_at


@pytest.mark.slow
class TestMySQLChanges(SourceContract):
    """A row a transaction: a batch is not smaller than one."""

    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path, binlog_mysql: LocalMySQL) -> SourceKit:
        schema = f"contract_{uuid.uuid4().hex[:10]}"
        sql_at(binlog_mysql.url, f"CREATE DATABASE {schema}")
        sql_at(binlog_mysql.url, f"CREATE TABLE {schema}.t (id int PRIMARY KEY)")
        file, position = sql_at(binlog_mysql.url, "SHOW MASTER STATUS")[0][:2]
        ids: list[int] = []

        def new_source() -> MySQLChanges:
            return MySQLChanges(
                make_settings(
                    url=binlog_mysql.url,
                    tables=f"{schema}.t",
                    starting={"file": file, "position": position},
                    max_bytes_per_batch=1 << 20,
                    heartbeat_seconds=60,
                    pass_over=(),
                    values="text",
                )
            )

        def add(count: int) -> None:
            for _ in range(count):
                ids.append(len(ids))
                sql_at(binlog_mysql.url, f"INSERT INTO {schema}.t VALUES ({ids[-1]})")

        return SourceKit(
            spark,
            tmp_path,
            new_source=new_source,
            add=add,
            wanted=lambda: [f'{{"id":{each}}}' for each in ids],
            key="key",
        )
