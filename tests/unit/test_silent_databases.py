"""A database server that is there and says nothing: connecting to it ends, and so does whoever
waits in a task.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from onceward import patience
from onceward.errors import SendFailed
from onceward.sql.ledger import database
from onceward.sql.ledger.database import Overdue, Patience, seconds_for
from onceward.sql.ledger.mysql import MySQL, connected
from onceward.sql.mysql.dialect import MySQLDialect
from onceward.sql.mysql.refusals import translate_errors
from onceward.sql.postgresql import staging
from support.errors import raises


@pytest.fixture
def silent() -> Iterator[int]:
    """A port whose connections are taken, and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_mysql_that_says_nothing_is_no_server(silent: int) -> None:
    """(libpq has such a limit of its own.)"""
    parameters = MySQL(f"mysql://u:p@127.0.0.1:{silent}/d?connect_timeout=1").parameters
    with pytest.raises(SendFailed), translate_errors("connecting"):
        connected(parameters, "test")


class Stopped(Exception):
    """Nobody waits any longer."""


def test_a_task_does_not_wait_for_a_call_that_never_returns(
    silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_connection(("127.0.0.1", silent)) as sock:
        connection = object()
        with raises(Overdue):
            staging.in_time(connection, lambda: sock.recv(1), 0.5, "a COPY")

        def stop() -> None:
            raise Stopped

        with pytest.raises(Stopped), patience.asking(stop):
            staging.in_time(connection, lambda: sock.recv(1), 60, "a COPY")
        assert any(one is connection for one in staging._stuck)
        staging._give_up(connection)  # which has no close(): it is left alone
        sock.shutdown(socket.SHUT_RDWR)
    monkeypatch.setattr(staging, "_stuck", [])


def test_what_a_call_returns_or_raises_is_the_waiters() -> None:
    assert staging.in_time(None, lambda: 7, 60, "a question") == 7

    def fail() -> None:
        raise ValueError("its own")

    with pytest.raises(ValueError, match="its own"):
        staging.in_time(None, fail, 60, "a question")


def test_patience_ends_and_follows_the_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(database.surroundings, "monotonic", lambda: now[0])
    waiting = Patience("the database at h")
    with waiting.of(seconds_for(1_000_000), "the move"):
        waiting.begin()
        now[0] += 10_000
        waiting.look()
        now[0] += 1_000
        with raises(Overdue):
            waiting.look()
    waiting.begin()
    now[0] += database.STATEMENT_SECONDS + 1
    with raises(Overdue):
        waiting.look()


def test_a_drop_in_a_hurry_leaves_no_haste_in_the_session() -> None:
    """A dump locks all tables for some seconds, and the next batch waits for its end."""
    said: list[str] = []
    session: Any = SimpleNamespace(execute=lambda statement, *_: said.append(statement))
    MySQLDialect(MySQL("mysql://u@h/d")).drop_in_a_hurry(session, "`s`.`t`")
    hurried, dropped, calm = said
    assert dropped == "DROP TABLE IF EXISTS `s`.`t`"
    assert hurried == "SET SESSION lock_wait_timeout = 1"
    assert "lock_wait_timeout = 60" in calm
