"""A database server that is there and says nothing: connecting to it ends, and so does whoever
waits in a task.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pymysql
import pytest
from typer.testing import CliRunner

import onceward as ow
from onceward import patience
from onceward.cli import app
from onceward.dashboard.watch import Watcher
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.errors import LedgerUnreachable, SendFailed
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.operate.status import open_ledger
from onceward.sql.ledger import database, postgresql
from onceward.sql.ledger.database import Overdue, Patience, seconds_for
from onceward.sql.ledger.mysql import MySQL, connected
from onceward.sql.ledger.table import TableChain
from onceward.sql.mysql.dialect import MySQLDialect
from onceward.sql.mysql.refusals import translate_errors
from onceward.sql.postgresql import staging
from onceward.sql.sink.prepared import PreparedTransactions
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


# what a proxy is silent about


@pytest.mark.parametrize(
    ("options", "pinned"), [("", True), ("-c lock_timeout=5", True), ("-csearch_path=a", False)]
)
def test_a_name_is_of_the_table_that_the_login_means(
    options: str, pinned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not of that of a tenant, whose program had the pooler's session before."""
    said: list[str] = []
    info = SimpleNamespace(options=options, server_version=170_000)
    connection = SimpleNamespace(info=info, execute=lambda statement, *_: said.append(statement))
    monkeypatch.setattr(postgresql, "_connected", lambda _: connection)
    session = postgresql.PostgreSQL("postgresql://u@h/d").connect("p", 1_000, 1_000)
    session.execute("SELECT 1")
    assert said[0].startswith("BEGIN ")
    assert ("SET LOCAL search_path = DEFAULT" in said[0].split("; ")) is pinned


RECORD = LedgerRecord(
    pipeline=PipelineId("p"), sequence=0, batch=BatchId("q", 0), sources=(),
    attempt=AttemptId(7, 1), outputs={}, committed_at_ms=0, state=RecordState.FINISHED,
    run_id="r", frames=(), supplement=False,
)  # fmt: skip


class Split:
    """A session behind a proxy that sends each SELECT outside of transactions to a replica, which
    has seen nothing yet. autocommit = 0 is no transaction to it.
    """

    is_usable, mark = True, "m"

    def __init__(self, answers: dict[str, list[tuple[Any, ...]]]) -> None:
        self.patience = Patience("the proxy")
        self.begun = False
        self.answers = answers
        self.said: list[str] = []

    def execute(self, statement: str, parameters: Any = None, /) -> SimpleNamespace:
        statement = " ".join(statement.split())
        if not statement.startswith(("SELECT", "SET")):
            self.begun = True
        elif statement.startswith("SELECT"):
            assert self.begun, f"a replica is asked: {statement}"
        self.said.append(statement)
        rows = next(
            (rows for begins, rows in self.answers.items() if statement.startswith(begins)), []
        )
        first = rows[0] if rows else None
        return SimpleNamespace(rowcount=1, fetchone=lambda: first, fetchall=lambda: rows)

    def commit(self) -> None:
        self.begun = False

    rollback = close = commit


@pytest.fixture
def split(monkeypatch: pytest.MonkeyPatch) -> Split:
    session = Split(
        {
            "SELECT @onceward_session": [("m",)],
            "SELECT engine": [("InnoDB",)],
            "SELECT owner": [(7, -1, None, "")],
            "SELECT identity": [("i",)],
            "SELECT pipeline": [("p",)],
            "SELECT GET_LOCK": [(1,)],
            "SELECT name": [("one",)],
        }
    )
    monkeypatch.setattr(MySQL, "connect", lambda *_: session)
    return session


def test_no_look_at_the_ledger_goes_to_a_replica(split: Split) -> None:
    chain = TableChain(MySQL("mysql://u:p@proxy/d"), "onceward_ledger", PipelineId("p"))
    assert chain.peek() is None
    chain.take()
    assert chain.begin(None) == AttemptId(7, 1)
    assert chain.newest() is None
    assert chain.identity() == "i"
    with chain.owned() as session:
        session.execute("CREATE TABLE t (x int)")
        session.commit()  # as CREATE TABLE does by itself
    assert not split.begun
    with chain.session() as session:
        session.execute("SELECT count(*) FROM t")
    assert chain.pipelines() == ["p"]
    assert list(chain.history()) == []
    split.said.clear()
    chain.put(RECORD)
    assert [said for said in split.said if "SET sequence" in said]
    chain.settle()


def test_a_server_that_hangs_up_over_a_large_record_may_be_told_to_take_it(split: Split) -> None:
    """So do MySQL and MariaDB above max_allowed_packet: a batch of thousands of Delta's files."""
    chain = TableChain(MySQL("mysql://u:p@proxy/d"), "onceward_ledger", PipelineId("p"))
    chain.take()
    execute = split.execute

    def hang_up(statement: str, parameters: Any = None, /) -> SimpleNamespace:
        if "SET sequence" in statement:
            raise pymysql.err.OperationalError(2006, "MySQL server has gone away")
        return execute(statement, parameters)

    split.execute = hang_up  # type: ignore[method-assign]
    for size, named in ((1000, False), (2_000_000, True)):
        output = Output("delta", 1, 1, {"committables": ["x" * size]})
        with pytest.raises(LedgerUnreachable) as refused:
            chain.put(replace(RECORD, outputs={"delta": output}))
        assert ("max_allowed_packet" in str(refused.value)) is named


def test_a_look_at_many_pipelines_is_one_login(
    split: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next look another: the server may have become a replica meanwhile."""
    names = [f"p{number}" for number in range(50)]
    split.answers["SELECT pipeline"] = [(name,) for name in names]
    logins: list[str] = []
    closed: list[int] = []
    monkeypatch.setattr(MySQL, "connect", lambda _, name, *__: (logins.append(name), split)[1])
    monkeypatch.setattr(split, "close", lambda: closed.append(len(logins)))
    where = ("--ledger-url", "mysql://u:p@proxy/d")
    done = CliRunner().invoke(app, ["status", "--all", *where, "--json"], catch_exceptions=False)
    assert [each["pipeline_id"] for each in json.loads(done.stdout)] == names
    assert (len(logins), closed) == (1, [1])
    watcher = Watcher([open_ledger(url=where[1])], 60.0)
    for look in (2, 3):
        watcher.look()
        assert sorted(watcher.snapshot.pipelines) == sorted(names)
        assert (len(logins), closed[-1]) == (look, look)


def test_no_look_for_markers_goes_to_a_replica(split: Split) -> None:
    settings = ow.DatabaseSink(
        url="mysql://u:p@proxy/d", table="t", pipeline_id="p", xa=True
    ).settings
    prepared = PreparedTransactions(settings)
    prepared._session = split  # type: ignore[assignment]
    assert prepared.unmarked(["one", "two"]) == ["two"]
    assert prepared._marked(split, ["one"]) == {"one"}
    assert not split.begun


# while a connection is being made


@pytest.mark.parametrize("scheme", ["mysql", "postgresql"])
def test_who_is_to_stop_does_not_wait_for_a_connection(silent: int, scheme: str) -> None:
    def stop() -> None:
        raise Stopped

    ledger = ow.DatabaseLedger(f"{scheme}://u:p@127.0.0.1:{silent}/d?connect_timeout=8")
    # Who waits for the connection hears of its limit instead
    with pytest.raises(Stopped), patience.asking(stop):
        ledger.chain(PipelineId("p")).peek()


def test_a_mysql_that_greets_a_byte_at_a_time_is_no_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            client, _ = server.accept()
            with client, suppress(OSError):
                client.sendall(b"\xff\xff\xff\x00\x0a")
                while True:
                    client.sendall(b"x")
                    time.sleep(0.2)

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        parameters = MySQL(f"mysql://u:p@127.0.0.1:{port}/d?connect_timeout=1").parameters
        said = "has not let this client in for 2 s"
        with pytest.raises(SendFailed, match=said), translate_errors("x"):
            connected(parameters, "test")
        thread.join(5)
        assert not thread.is_alive()
