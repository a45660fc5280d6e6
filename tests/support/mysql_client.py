"""A client of a MySQL or MariaDB beside the one that is tested: what it says is what is there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pymysql


def sql_at(
    url: str, statement: str, *parameters: Any, lock_seconds: int = 600
) -> list[tuple[Any, ...]]:
    """The rows that ``statement`` gives, in UTC.

    :param lock_seconds: how long it waits for a table that others use.
    """
    with _connected(url) as connection, connection.cursor() as cursor:
        limits = "lock_wait_timeout = %s, innodb_lock_wait_timeout = %s"
        cursor.execute(f"SET autocommit = 1, {limits}", (lock_seconds, lock_seconds))
        cursor.execute(statement, parameters or None)
        return list(cursor.fetchall())


@contextmanager
def transaction_at(url: str, statement: str) -> Iterator[None]:
    """Inside, a transaction that has carried ``statement`` out, and holds its locks."""
    with _connected(url) as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        yield
        connection.rollback()


def transact_at(url: str, *statements: tuple[Any, ...], commit: bool = True) -> None:
    """Carry out statements, each with its parameters behind it, in one transaction."""
    with _connected(url) as connection, connection.cursor() as cursor:
        for statement, *parameters in statements:
            cursor.execute(statement, parameters or None)
        connection.commit() if commit else connection.rollback()


def _connected(url: str) -> Any:
    said = urlsplit(url)
    return pymysql.connect(
        host=said.hostname, port=said.port or 3306, user=said.username,
        password=said.password or "",
        database=said.path.strip("/"), charset="utf8mb4", ssl_disabled=True,
        init_command="SET time_zone = '+00:00', sql_mode = '', sql_select_limit = DEFAULT, "
                     "completion_type = 0",
    )  # fmt: skip
