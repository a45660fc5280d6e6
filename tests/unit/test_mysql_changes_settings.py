"""What is said to ``ow.mysql_changes`` before there is a server, and a server that takes a
connection, but no more.
"""

from __future__ import annotations

import ast
import json
import re
import socket
import sqlite3
import ssl
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pymysql
import pytest

import onceward as ow
from onceward.cli.doctor.mysql_changes import _warnings
from onceward.cli.doctor.targets import check_target
from onceward.errors import (
    AuthenticationFailed,
    ConfigurationError,
    FileUnreadable,
    LedgerUnreachable,
    OncewardError,
    SendFailed,
    ServerUnreachable,
    SourceReplaced,
    TargetUnreachable,
)
from onceward.ids import PipelineId
from onceward.mysql.binlog import event
from onceward.mysql.binlog.event import START_ANEW
from onceward.mysql.source.connection import Server
from onceward.mysql.source.position_search import check_has_transactions
from onceward.mysql.source.ranges import PlannedRange
from onceward.mysql.source.settings import ChangesSettings, Position, make_settings
from onceward.mysql.source.source import MySQLChanges
from onceward.sql.ledger.database_ledger import DatabaseLedger
from onceward.sql.ledger.mysql import MySQL, connected
from onceward.sql.mysql.refusals import refusal, translate_errors
from onceward.sql.sink.prepared import PreparedTransactions
from onceward_verify.findings import Unavailable
from onceward_verify.mysql import MySQLSnapshot
from support.errors import raises


def settings(**said: Any) -> ChangesSettings:
    usual: dict[str, Any] = {
        "url": "mysql://reader:hidden@host", "tables": ["Shop.Orders", "stock.*"],
        "starting": "latest",
        "max_bytes_per_batch": 1, "heartbeat_seconds": 60, "pass_over": (), "values": "text",
    }  # fmt: skip
    return make_settings(**{**usual, **said})


def test_a_server_that_takes_a_connection_and_says_nothing_is_waited_for_a_while():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with raises(ServerUnreachable):
            Server(settings(url=f"mysql://reader:hidden@127.0.0.1:{port}?connect_timeout=1"))


def test_a_driver_that_is_not_there_is_missed_by_the_source(monkeypatch: pytest.MonkeyPatch):
    """And not by a ledger, which may be elsewhere."""
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(ConfigurationError, match="changes of a MySQL or MariaDB server need"):
        Server(settings())


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ("gr%C3%BCn%25", "grün%".encode()), ("gr%E2%82%ACn", "gr€n".encode()),
        ("grün", "grün".encode()), ("gr%FCn", "grün".encode("latin-1")),
    ],
)  # fmt: skip
def test_a_password_is_sent_as_the_bytes_that_the_server_has(
    written: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
):
    passwords: list[bytes] = []

    def connect(*_: Any, **arguments: Any) -> Any:
        passwords.append(arguments["password"])
        raise pymysql.err.OperationalError(1045, "no")

    monkeypatch.setattr(pymysql, "connect", connect)
    url = f"mysql://reader:{written}@host"
    with pytest.raises(AuthenticationFailed):
        Server(settings(url=url))
    with pytest.raises(Unavailable):
        MySQLSnapshot(f"{url}/shop")
    assert passwords == [sent, sent]
    json.dumps(dict(settings(url=url).connect_args))  # the key of a session of tasks


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (1045, "correct the user and the password"), (1820, "a new password"),
        (1862, "a new password"),
        (3118, "ACCOUNT UNLOCK"), (3955, "ACCOUNT UNLOCK"), (4151, "ACCOUNT UNLOCK"),
        (4150, "FLUSH PRIVILEGES"),
        (1524, "caching_sha2_password"), (2059, "caching_sha2_password"),
        (2061, "caching_sha2_password"),
        (3159, "ssl_disabled=true"), (2026, "ssl_ca in the url"), (1698, "correct the user"),
        (1130, "for the host"), (1129, "TRUNCATE TABLE performance_schema.host_cache"),
    ],
)  # fmt: skip
def test_a_login_that_is_not_let_in_is_told_why(
    number: int, step: str, monkeypatch: pytest.MonkeyPatch
):
    def connect(*_: Any, **__: Any) -> Any:
        raise pymysql.err.OperationalError(number, "the server's words")

    monkeypatch.setattr(pymysql, "connect", connect)
    with pytest.raises(AuthenticationFailed, match=rf"\({number}\) the server's words") as refused:
        Server(settings())
    assert step in refused.value.next_step
    if number not in (1045, 1698):
        assert "correct the user" not in refused.value.next_step
    url = "mysql://u:pw@h/d"
    with pytest.raises(LedgerUnreachable) as of_ledger:
        DatabaseLedger(url).chain(PipelineId("p")).peek()
    sink = ow.DatabaseSink(url=url, table="t", xa=True, pipeline_id="p")
    prepared = PreparedTransactions(sink.settings)
    with pytest.raises(TargetUnreachable) as of_prepared:
        prepared.recover()
    (of_doctor,) = check_target(url, [])
    of_task = refusal(number, "no", "connecting")
    for told in (of_ledger.value, of_prepared.value, of_doctor, of_task):
        assert refused.value.next_step in told.next_step
    assert of_doctor.status == "fail"


@pytest.mark.parametrize(
    ("number", "step"),
    [
        (1040, "raise max_connections"), (1203, "max_user_connections"), (1226, "ALTER USER"),
        (1041, "whether it runs"), (1042, "whether it runs"), (1043, "whether it runs"),
        (1135, "whether it runs"),
    ],
)  # fmt: skip
def test_a_server_that_lets_nobody_in_is_waited_for(
    number: int, step: str, monkeypatch: pytest.MonkeyPatch
):
    """No room for another session, and names or handshakes that did not come through."""
    monkeypatch.setattr(pymysql, "connect", Mock(side_effect=pymysql.OperationalError(number, "")))
    with pytest.raises(ServerUnreachable) as unreachable:
        Server(settings())
    assert step in unreachable.value.next_step


def refused_logins(
    monkeypatch: pytest.MonkeyPatch, scheme: str, error: Exception
) -> tuple[OncewardError, SendFailed]:
    """Return what a source and a sink raise where PyMySQL ends their logins with ``error``."""

    def connect(*_: Any) -> None:
        raise error

    monkeypatch.setattr(pymysql.connections.Connection, "connect", connect)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"{scheme}://reader:hidden@127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(OncewardError) as source:
            Server(settings(url=url))
        with pytest.raises(SendFailed) as sink, translate_errors("connecting"):
            connected(MySQL(f"{url}/shop").parameters, "test")
    return source.value, sink.value


def test_a_package_that_a_logins_plugin_needs_is_told_by_name(monkeypatch: pytest.MonkeyPatch):
    """PyMySQL raises no error of its own: ed25519, without PyNaCl."""
    error = RuntimeError("'pynacl' package is required for ed25519_password auth method")
    source, sink = refused_logins(monkeypatch, "mariadb", error)
    assert isinstance(source, AuthenticationFailed)
    assert "(2059) 'pynacl'" in str(source)
    assert "install the package that the error names" in source.next_step
    assert "pynacl" in str(sink)


def test_a_domain_that_was_deleted_is_thought_of():
    """What is missing may be that: MariaDB forgets a domain when it is told to."""
    at = Position("mariadb", "s", 0, "binlog.000004", 400, None, "0-1-9,5-1-7")
    server: Any = SimpleNamespace(
        dialect="mariadb",
        identity="s",
        where="h:3306",
        executed_gtids=lambda: "0-1-9",
        variables=lambda *_: {"gtid_strict_mode": "ON"},
    )
    server.is_member, server.is_replica = (lambda: False), (lambda: True)
    for read, error in (("s", SourceReplaced), ("another", ServerUnreachable)):
        with pytest.raises(error, match=r"lacks transactions .*: 5-1-7\.") as lost:
            check_has_transactions(settings(), server, replace(at, server=read))
        assert "DELETE_DOMAIN_ID" in lost.value.next_step
    page = Path(__file__).parents[2] / "docs" / "how-to" / "mysql.md"
    assert "`FLUSH BINARY LOGS DELETE_DOMAIN_ID = (5)`" in page.read_text()
    # What the page lets a person commit
    server.executed_gtids = lambda: "0-1-9,5-1-8"
    check_has_transactions(settings(), server, at)


def no_host(met: Exception) -> pymysql.err.OperationalError:
    """Return PyMySQL's error of a connection that it could not make, whatever was in the way."""
    error = pymysql.err.OperationalError(2003, f"Can't connect to MySQL server on 'h' ({met})")
    error.original_exception = met
    return error


def test_a_certificate_that_is_not_trusted_is_no_server_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
):
    """PyMySQL has the number 2003 for it, as for one that does not answer: that may pass."""
    error = no_host(ssl.SSLCertVerificationError(1, "certificate verify failed"))
    source, sink = refused_logins(monkeypatch, "mysql", error)
    assert isinstance(source, AuthenticationFailed)
    assert re.search(r"\(2026\).*verify failed", str(source))
    assert "ssl_ca in the url" in source.next_step
    assert "ssl_ca in the url" in str(sink)


@pytest.mark.parametrize(
    "met",
    [
        TimeoutError("timed out"),
        ssl.SSLEOFError(8, "EOF occurred in violation of protocol"),
        ssl.SSLZeroReturnError(6, "TLS/SSL connection has been closed (EOF)"),
        ssl.SSLSyscallError(5, "Some I/O error occurred"),
    ],
)
def test_a_server_that_goes_away_during_a_login_may_come_back(
    met: Exception, monkeypatch: pytest.MonkeyPatch
):
    """Also in the middle of TLS: a restart is no refusal."""
    source, sink = refused_logins(monkeypatch, "mysql", no_host(met))
    assert isinstance(source, ServerUnreachable)
    assert "(2003)" in str(source)
    assert "ssl_ca" not in str(sink)


@pytest.mark.parametrize("content", [None, "no PEM"])
def test_a_file_for_tls_that_cannot_be_read_is_told_so(content: str | None, tmp_path: Path):
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(FileUnreadable, match=r"ssl_ca.* of the url names cannot be read"):
        Server(settings(url=f"mysql://reader:hidden@host?ssl_ca={path}"))
    with pytest.raises(FileUnreadable):
        connected(MySQL(f"mysql://reader:hidden@host/shop?ssl_ca={path}").parameters, "test")


class ServerOfTables(Server):
    """One that shows these tables of its ``information_schema``, by columns of theirs."""

    def __init__(self, cascades_are_logged: bool, **tables: dict[str, str]) -> None:
        self.cascades_are_logged = cascades_are_logged
        self._shown = sqlite3.connect(":memory:")
        self._shown.execute("ATTACH ':memory:' AS information_schema")
        for name, row in tables.items():
            self._shown.execute(f"CREATE TABLE information_schema.{name} ({', '.join(row)})")
            some = ", ".join("?" * len(row))
            self._shown.execute(
                f"INSERT INTO information_schema.{name} VALUES ({some})", (*row.values(),)
            )

    def query(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        found = self._shown.execute(statement.replace("%s", "?"), parameters or ())
        return found.fetchall()


@pytest.mark.parametrize(
    ("on_delete", "on_update", "logged", "reaches"),
    [
        ("CASCADE", "NO ACTION", True, True), ("RESTRICT", "SET NULL", True, True),
        ("RESTRICT", "NO ACTION", True, False), ("CASCADE", "CASCADE", False, False),
    ],
)  # fmt: skip
def test_a_statement_on_a_table_may_change_rows_of_another(
    on_delete: str, on_update: str, logged: bool, reaches: bool
):
    """Where changes by foreign keys are logged, there are none behind a statement."""
    server = ServerOfTables(
        logged,
        VIEWS={"TABLE_SCHEMA": "shop", "TABLE_NAME": "view"},
        TRIGGERS={"EVENT_OBJECT_SCHEMA": "shop", "EVENT_OBJECT_TABLE": "triggers"},
        REFERENTIAL_CONSTRAINTS={
            "CONSTRAINT_SCHEMA": "shop", "TABLE_NAME": "orders", "DELETE_RULE": on_delete,
            "UPDATE_RULE": on_update,
            "UNIQUE_CONSTRAINT_SCHEMA": "far", "REFERENCED_TABLE_NAME": "customers",
        },
    )  # fmt: skip
    assert server.reaches_others("shop", "view")
    assert server.reaches_others("shop", "triggers")
    assert not server.reaches_others("shop", "orders")
    assert not server.reaches_others("shop", "customers")
    assert server.reaches_others("far", "customers") is reaches
    assert server.is_view("shop", "view")
    assert not server.is_view("shop", "triggers")


class ServerOfTransactions(Server):
    """One that has these transactions, and has removed the binlogs of some."""

    where, version, held = "host:3306", (9, 7), None

    def __init__(self, identity: str, executed: str, purged: str = "") -> None:
        self.identity, self._executed, self._purged = identity, executed, purged
        self.dialect = "mysql" if ":" in executed else "mariadb"
        self.asked: list[str] = []

    def query(
        self, statement: str, parameters: Sequence[Any] | None = None
    ) -> list[tuple[Any, ...]]:
        if "GTID_SUBTRACT" not in statement:
            return []
        wanted, passed = parameters or ("", "")
        missing = numbers(wanted) - numbers(passed)
        self.asked.append(",\n".join(sorted(missing - numbers(self._executed))))
        return [(0 if "WAIT_FOR" in statement else self.asked[-1],)]

    def variables(self, *names: str) -> dict[str, str]:
        return {"gtid_strict_mode": "ON"}

    def executed_gtids(self) -> str:
        return self._executed

    def purged_gtids(self) -> str:
        return self._purged

    def binlogs(self) -> dict[str, int]:
        return {"binlog.000001": 1000}

    def is_member(self) -> bool:
        return False

    def is_replica(self) -> bool:
        return self.identity == REPLICA


def numbers(gtids: str) -> set[str]:
    """Return each transaction of MySQL's set by itself."""
    found = set()
    for part in filter(None, gtids.split(",")):
        ((source, first, last),) = re.findall(r"^\s*(.+):(\d+)-?(\d*)$", part)
        found |= {f"{source}:{number}" for number in range(int(first), int(last or first) + 1)}
    return found


PRIMARY, OWN, REPLICA = (f"{each * 8}-0000-0000-0000-000000000000" for each in "abc")


def test_to_begin_anew_is_said_once_with_all_that_it_takes():
    """Rows that were deleted meanwhile stay in a target that is there, without a word; and under
    the old name the ledger would lead back to the position that is gone.
    """
    for word in ("pipeline_id", "with a snapshot, into an empty target"):
        assert word in START_ANEW
    said = [
        (module.name, node.value)
        for module in Path(event.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if re.search(
            "from a new checkpoint|with a snapshot|(?s:^start.*new checkpoint)", node.value
        )
    ]
    assert sorted({name for name, _ in said}) == ["event.py"]


class QuietSource(MySQLChanges):
    """One whose tables stay as they are, while the binlog goes on to ``end``."""

    end: Position

    def _server(self, read: Position | None) -> Any:
        return SimpleNamespace(identity=PRIMARY, end=lambda: self.end.place)

    def _find_current(self, server: Server, current: Position) -> Position:
        return current

    def _read(self, begin: Position, planner_for: Any) -> Any:
        read = 1000 if begin.gtids != self.end.gtids else 0
        return begin, SimpleNamespace(
            unchecked_at=None, range=lambda: PlannedRange(self.end, [], 0, read, False, None)
        )


def test_each_short_run_over_quiet_tables_moves_the_position_once():
    """Or the server removes the binlog where it stands, though all of it was read."""
    said = settings()
    at = Position(
        "mysql", PRIMARY, 0, "binlog.000001", 500, 1, f"{PRIMARY}:1", tables=said.patterns
    )
    position = at.to_json()
    for day in range(1, 4):
        run = QuietSource(said)
        run.end = replace(at, pos=500 + day, gtids=f"{PRIMARY}:1-{day + 1}")
        position, before = run.advance(position, 1), position
        assert position == run.end.to_json() != before
        assert run.partitions(before, position) == []
        run.end = replace(run.end, pos=900, gtids=f"{PRIMARY}:1-9")
        assert run.advance(position, 1) == position
    for nothing in (at, replace(at, pos=600)):
        run = QuietSource(said)
        run.end = nothing
        assert run.advance(at.to_json(), 1) == at.to_json()


@pytest.mark.parametrize(
    ("wsrep", "mode", "warned"),
    [("ON", "OFF", True), ("ON", "ON", False), ("OFF", "OFF", False)],
)
def test_doctor_warns_of_nodes_that_number_transactions_by_themselves(
    wsrep: str, mode: str, warned: bool
):
    variables = {"wsrep_on": wsrep, "wsrep_gtid_mode": mode}
    server: Any = SimpleNamespace(
        dialect="mariadb",
        variables=lambda *names: {name: variables[name] for name in names if name in variables},
    )
    found = {name: result.status for name, result in _warnings(server)}
    assert found.get("wsrep_gtid_mode") == ("warn" if warned else None)


@pytest.mark.parametrize(
    ("names", "database", "table", "passed"),
    [
        (0, "Shop", "Orders", True), (0, "shop", "orders", False), (0, "stock", "parts", False),
        (1, "shop", "orders", True), (2, "SHOP", "ORDERS", True),
    ],
)  # fmt: skip
def test_a_cascade_is_passed_for_a_table_as_the_server_compares_names(
    names: int, database: str, table: str, passed: bool
):
    said = settings(pass_over=["cascade:Shop.Orders"]).for_server(names)
    assert said.allows_cascade(database, table) is passed
    assert said.selects(database, table) is (passed or database == "stock")
    assert said == settings(pass_over=["cascade:Shop.Orders"]).for_server(
        1 - bool(names)
    ).for_server(names)


@pytest.mark.parametrize("name", ["shop.orders", "Stock.Parts", "STOCK.x"])
def test_a_cascade_may_be_of_any_table_that_is_read_on_some_server(name: str):
    assert settings(pass_over=[f"cascade:{name}"]).allowed_cascades == {name}


@pytest.mark.parametrize("name", ["shop.order", "stocks.parts"])
def test_a_cascade_of_a_table_that_is_never_read_is_refused(name: str):
    with pytest.raises(ConfigurationError, match=f"cascade:{name}"):
        settings(pass_over=[f"cascade:{name}"])
