"""A table of a MySQL that is started for the demo."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pymysql

from onceward_testing.demo.outputs.database import DatabaseOutput
from onceward_testing.local_mysql import LocalMySQL


class MySQLOutput(DatabaseOutput):
    """See the module."""

    instant = "timestamp(6)"

    def __init__(self, servers: str) -> None:
        super().__init__(servers, LocalMySQL())

    def _connected(self) -> Any:
        said = urlsplit(self.address)
        return pymysql.connect(
            host=said.hostname, port=said.port or 0, user=said.username,
            password=said.password or "",
            database=said.path.strip("/"), charset="utf8mb4", ssl_disabled=True, autocommit=True,
        )  # fmt: skip
