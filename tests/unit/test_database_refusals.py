"""What a server's errors mean for a batch: what may pass lets it run again, what the rows are to
blame for does not.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pymysql
import pytest
from psycopg.conninfo import conninfo_to_dict

import onceward as ow
from onceward.engine.ending import settle_doubt
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    CommitInDoubt,
    ConfigurationError,
    ForeignKeyViolation,
    InvalidColumn,
    LedgerUnreachable,
    LibraryMissing,
    OncewardError,
    Recovery,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    ServerUnreachable,
    TableMissing,
    from_json,
    to_json,
)
from onceward.ids import BatchId, PipelineId, TaskAttempt
from onceward.mysql.source.connection import _driver_error
from onceward.operate.restart import may_pass
from onceward.sql.ledger.database import LOGIN_STEPS, Database, Overdue, Patience, server_step
from onceward.sql.ledger.mysql import MySQL, connected
from onceward.sql.ledger.postgresql import PostgreSQL
from onceward.sql.ledger.table import TableChain
from onceward.sql.mysql import catalogue
from onceward.sql.mysql import refusals as mysql
from onceward.sql.mysql.staging import lines
from onceward.sql.postgresql import refusals as postgresql
from onceward.sql.postgresql import staging
from onceward.sql.postgresql.dialect import connection_words
from onceward.sql.sink.merging import not_all
from support.errors import raises

MY, PG = MySQL("mysql://u@h/d"), PostgreSQL("postgresql://u@h/d")

PASSES_IN_MYSQL = {
    1021: "disk full", 1030: "engine", 1040: "Too many "
                                             "connections", 1041: "out of resources",
                                             1045: "Access denied",
    1047: "WSREP has not yet "
          "prepared node for application use", 1053: "shutdown", 1105: "unknown",
          1114: "table full",
    1129: "host is blocked", 1130: "host may "
                                   "not connect", 1180: "error during COMMIT",
                                   1181: "during ROLLBACK",
    1203: "max_user_connections", 1205: "lock wait timeout", 1206: "lock table", 1213: "deadlock",
    1226: "a limit",
    1290: "read only", 1317: "interrupted", 1399: "XAER_RMFAIL", 1402: "XA_RBROLLBACK",
    1613: "XA_RBTIMEOUT",
    1614: "XA_RBDEADLOCK", 1836: "read only", 1862: "password expired", 1927: "killed",
    1969: "max_statement_time",
    1999: "nobody knows", 2003: "cannot connect", 2006: "gone away", 2013: "lost",
    3024: "max_execution_time",
    3100: "hook before_commit", 3101: "told to roll back", 3118: "account locked",
    3169: "session killed",
    3572: "NOWAIT", 4031: "idle", 0: "no answer", 9999: "nobody knows",
}  # fmt: skip
REFUSED_IN_MYSQL = (
    1048,
    1062,
    1264,
    1292,
    1366,
    1406,
    1451,
    1452,
    1644,
    1761,
    1762,
    3037,
    3140,
    3699,
    3751,
    3752,
    3819,
    3905,
    3907,
    3908,
    4025,
    30001,
    -15536,
    1978,
)
OF_TABLES_IN_MYSQL = (1064, 1305, 1442, 1449, 1526, 3098, 1197)
PASSES_IN_POSTGRESQL = (
    None, "08006", "08P01", "25006", "25P02", "25P03", "26000", "28000", "28P01", "3D000", "40001",
    "40003", "40P01",
    "53000", "53100", "53200", "53300", "53400", "55000", "55006", "55P03", "57014", "57P01",
    "57P02", "57P03", "58000",
    "58030", "72000", "F0000", "HV000", "XX000", "XX001",
)  # fmt: skip
REFUSED_IN_POSTGRESQL = (
    "21000",
    "22001",
    "22003",
    "22P02",
    "23502",
    "23503",
    "23505",
    "23514",
    "44000",
    "P0001",
    "20000",
    "27000",
    "38000",
    "45000",
    "MY001",
    "ZZ999",
    "54000",
)
OF_TABLES_IN_POSTGRESQL = ("38001", "39P01", "42883", "42704", "0A000")


@pytest.mark.parametrize("number", PASSES_IN_MYSQL)
def test_what_is_not_known_to_be_about_rows_may_pass_in_mysql(number: int) -> None:
    error = mysql.refusal(number, PASSES_IN_MYSQL[number], "moving rows")
    assert isinstance(error, SendFailed)
    assert f"({number}) {PASSES_IN_MYSQL[number]}" in error.message
    assert "runs again" in error.next_step


@pytest.mark.parametrize("number", sorted(PASSES_IN_MYSQL.keys() - LOGIN_STEPS.keys()))
def test_what_may_pass_for_a_sink_may_pass_for_a_source_of_changes(number: int) -> None:
    error = _driver_error(number, f"h says: ({number}) words", "h")
    assert isinstance(error, ServerUnreachable)
    assert may_pass(error, worked_before=False)
    if number in (1021, 1047, 1290):
        assert server_step(pymysql.OperationalError(number), "") in error.next_step


@pytest.mark.parametrize("number", [1049, 1064, 1146, 1193, 1231, 1235, 1273, 1305])
def test_what_a_server_does_not_have_no_source_of_changes_waits_for(number: int) -> None:
    assert isinstance(_driver_error(number, "h says: words", "h"), ServerMisconfigured)


@pytest.mark.parametrize("state", PASSES_IN_POSTGRESQL)
def test_what_is_not_known_to_be_about_rows_may_pass_in_postgresql(state: str | None) -> None:
    error = postgresql.refusal(state, "the server's words", "moving rows")
    assert isinstance(error, SendFailed)
    assert (state or "") in error.message
    assert "the server's words" in error.message
    assert "runs again" in error.next_step


@pytest.mark.parametrize("number", REFUSED_IN_MYSQL)
def test_rows_and_tables_are_to_blame_for_what_they_violate_in_mysql(number: int) -> None:
    assert isinstance(mysql.refusal(number, "words", "moving rows"), RowRefused)


@pytest.mark.parametrize("state", REFUSED_IN_POSTGRESQL)
def test_rows_and_tables_are_to_blame_for_what_they_violate_in_postgresql(state: str) -> None:
    assert isinstance(postgresql.refusal(state, "words", "moving rows"), RowRefused)


@pytest.mark.parametrize("number", OF_TABLES_IN_MYSQL)
def test_a_table_or_a_server_may_be_put_right_in_mysql(number: int) -> None:
    assert isinstance(mysql.refusal(number, "words", "moving rows"), ServerMisconfigured)


@pytest.mark.parametrize("state", OF_TABLES_IN_POSTGRESQL)
def test_a_table_or_a_server_may_be_put_right_in_postgresql(state: str) -> None:
    assert isinstance(postgresql.refusal(state, "words", "moving rows"), ServerMisconfigured)


def test_a_row_that_a_foreign_key_leads_to_may_come_later() -> None:
    for error in (
        mysql.refusal(1452, "words", "moving rows"),
        mysql.refusal(1451, "words", "moving rows"),
        postgresql.refusal("23503", "words", "moving rows"),
        postgresql.refusal("23001", "words", "moving rows"),
    ):
        assert type(error) is ForeignKeyViolation
        assert error.recovery is Recovery.RESTART_IF_WORKED


def test_rights_and_settings_are_told_by_their_names() -> None:
    assert isinstance(mysql.refusal(1142, "INSERT command denied", "moving rows"), AccessDenied)
    assert isinstance(
        postgresql.refusal("42501", "permission denied", "moving rows"), AccessDenied
    )
    assert isinstance(
        mysql.refusal(3948, "Loading local data is disabled", "loading rows"), ConfigurationError
    )


@pytest.mark.parametrize(
    ("number", "text", "step"),
    [
        (1105, "prohibits use of DML command on a table (shop.orders) without an explicit primary "
         "key with pxc_strict_mode = ENFORCING or MASTER", "ADD PRIMARY KEY"),
        (1047, "Unsupported 'LOAD DATA LOCAL INFILE' command", "the server itself"),
    ],
)  # fmt: skip
def test_what_a_cluster_or_a_proxy_never_does_is_told(number: int, text: str, step: str) -> None:
    """Numbers that by themselves are of what passes."""
    error = mysql.refusal(number, text, "bringing rows from the driver")
    assert isinstance(error, ServerMisconfigured)
    assert step in error.next_step


@pytest.mark.parametrize(
    ("number", "text", "kind"),
    [
        (1105, "Percona-XtraDB-Cluster prohibits use of GET_LOCK with pxc_strict_mode = ENFORCING",
         ServerMisconfigured),
        (1235, "This version of MariaDB doesn't yet support 'GET_LOCK in cluster (WSREP_ON=ON)'",
         ServerMisconfigured),
        (2013, "lost", pymysql.OperationalError),
    ],
)  # fmt: skip
def test_a_cluster_that_has_no_locks_by_name_is_told_so(
    number: int, text: str, kind: type[Exception]
) -> None:
    class Refusing:
        def execute(self, statement: str, values: Any = None) -> None:
            if "GET_LOCK" in statement:
                raise pymysql.OperationalError(number, text)

    session: Any = Refusing()
    with pytest.raises(kind) as found:
        MY.hold(session, "onceward_ledger", "p")
    assert (kind is not ServerMisconfigured) or "= MASTER" in found.value.next_step


def test_a_limit_is_named_with_the_way_to_raise_it() -> None:
    full = postgresql.refusal("53400", "temporary file size exceeds temp_file_limit", "moving")
    assert "ALTER ROLE … SET …" in full.next_step
    ended = mysql.refusal(1467, "Failed to read auto-increment value", "moving")
    assert "AUTO_INCREMENT" in ended.next_step


@pytest.mark.parametrize("warned", [False, True])
def test_a_default_that_strict_sessions_have_not_is_named(warned: bool) -> None:
    """As a warning it comes from a load."""
    text = "Incorrect default value '0000-00-00' for column 'day'"
    with raises(RowRefused, "SET DEFAULT"):
        raise mysql.refusal(1978, text, "writing to table app.t", warned)


def test_a_word_of_a_row_is_no_word_of_the_server() -> None:
    """A value in an error's text does not choose what becomes of it."""
    forged = (
        "Duplicate entry 'Transaction of size 9 exceeds specified limit 1' for key "
        "'onceward_staging'"
    )
    assert "max_offsets_per_trigger" not in mysql.refusal(1062, forged, "moving rows").next_step
    assert isinstance(
        postgresql.refusal("23505", "onceward_staging 53300", "moving rows"), RowRefused
    )


def test_a_staging_table_that_is_gone_is_not_the_users() -> None:
    """A newer copy has dropped it: the batch runs again, and then it is Fenced that stops this
    one.
    """
    gone = 'relation "public.onceward_staging_1f63d77f_1_5_0" does not exist'
    assert isinstance(
        postgresql.refusal("42P01", gone, "copying rows to the staging table"), SendFailed
    )
    assert isinstance(
        mysql.refusal(1146, "Table 'app.onceward_staging_1' doesn't exist", "loading rows"),
        SendFailed,
    )
    for name in ("orders", "onceward_staging.orders", "onceward_staging_eu.orders"):
        gone = f'relation "{name}" does not exist'
        assert isinstance(postgresql.refusal("42P01", gone, "looking"), TableMissing)
        gone = f"Table '{name}' doesn't exist"
        assert isinstance(mysql.refusal(1146, gone, "looking"), TableMissing)
    gone = "Table 'onceward_staging_shop-eu.orders' doesn't exist"
    assert isinstance(mysql.refusal(1146, gone, "looking"), TableMissing)
    for name in ("onceward_staging", "onceward_staging_eu"):
        gone = f"Unknown database '{name}'"
        assert isinstance(mysql.refusal(1049, gone, "looking"), TableMissing)
        gone = f'schema "{name}" does not exist'
        assert isinstance(postgresql.refusal("3F000", gone, "looking"), TableMissing)


def test_a_trigger_that_leaves_out_what_changes_nothing_is_named() -> None:
    """Such rows come again and again, and no query can know them."""
    connection: Any = SimpleNamespace(execute=lambda *_: SimpleNamespace(fetchone=lambda: (2,)))
    statements: Any = SimpleNamespace(count=lambda _: ("SELECT …", ()))
    part: Any = SimpleNamespace(rows=None, expected=2, table=SimpleNamespace(name="t"))
    error = not_all(statements, part, 2, 1, connection)
    assert isinstance(error, RowRefused)
    assert "suppress_redundant_updates_trigger, DROP TRIGGER" in error.next_step


@pytest.mark.parametrize("state", ["0A000", "42601", "42602"])
def test_what_is_no_name_of_a_table_is_told_as_by_mysql(state: str) -> None:
    """As of Debezium's topics, which records choose their table by."""
    error = postgresql.refusal(state, "words", "looking at table dbserver1.public.orders")
    assert isinstance(error, TableMissing)
    assert "schema.table" in error.next_step
    assert isinstance(postgresql.refusal(state, "words", "writing to t"), ServerMisconfigured)


# Of a COMMIT: whatever the server says, the ledger is asked.

P = PipelineId("p")


class Committing:
    """A session and what it knows of the ledger's row, which it has or has not when its COMMIT
    fails.
    """

    is_usable = True

    def __init__(self, row: dict[str, Any], fails: list[Exception], carried_out: bool) -> None:
        self.patience = Patience("the database")
        self._row, self._new = row, dict(row)
        self._fails, self._carried_out = fails, carried_out

    def execute(self, statement: str, values: Any = None) -> Any:
        found: Any = (1,)
        if "SET owner" in statement:
            self._new["owner"] += 1
        elif "SET sequence" in statement:
            self._new |= dict(zip(("sequence", "state", "record"), values, strict=False))
        elif statement.startswith("SELECT owner"):
            found = tuple(self._new[name] for name in ("owner", "sequence", "record", "state"))
        elif "information_schema" in statement or "pg_class" in statement:
            found = ("InnoDB",) if "information_schema" in statement else ("p",)
        return SimpleNamespace(rowcount=1, fetchone=lambda: found)

    def commit(self) -> None:
        error = self._fails.pop() if self._fails and self._new["sequence"] >= 0 else None
        if error is None or self._carried_out:
            self._row.update(self._new)
        if error is not None:
            raise error

    def rollback(self) -> None:
        self._new = dict(self._row)

    def close(self) -> None: ...


AT_COMMITS: list[tuple[Database, Exception, type[Exception]]] = [
    (MY, pymysql.err.OperationalError(3100, "hook 'before_commit'"), SendFailed),
    (MY, pymysql.err.OperationalError(1180, "Got error 6 during COMMIT"), SendFailed),
    (MY, pymysql.err.OperationalError(1197, "max_binlog_cache_size"), ServerMisconfigured),
    (MY, pymysql.err.OperationalError(2013, "lost"), SendFailed),
    (MY, pymysql.err.InterfaceError(0, ""), SendFailed),
    (MY, Overdue("no answer"), SendFailed),
    (PG, psycopg.errors.ForeignKeyViolation("words"), ForeignKeyViolation),
    (PG, psycopg.errors.RaiseException("words"), RowRefused),
    (PG, psycopg.errors.SerializationFailure("words"), SendFailed),
    (PG, psycopg.errors.AdminShutdown("words"), SendFailed),
    (PG, psycopg.OperationalError("closed"), SendFailed),
    (PG, Overdue("no answer"), SendFailed),
]


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried out", "rolled back"])
@pytest.mark.parametrize(
    ("server", "error", "kind"), AT_COMMITS, ids=[f"{at[0].kind}-{at[1]!r}" for at in AT_COMMITS]
)
def test_after_any_error_of_a_commit_the_ledger_decides(
    server: Database,
    error: Exception,
    kind: type[OncewardError],
    carried_out: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A member of a group that the others have cut off names an error, and they have the batch.
    Only of one that is not there the error is told, as what it is.
    """
    row = {"owner": 0, "sequence": -1, "record": None, "state": ""}
    fails = [error]
    monkeypatch.setattr(server, "connect", lambda *_: Committing(row, fails, carried_out))
    monkeypatch.setattr(server, "must_be_one_session", lambda _: None)
    chain = TableChain(server, "onceward_ledger", P)
    begun = chain.begin(chain.take())
    written = LedgerRecord(P, 0, BatchId("q", 0), (), begun, {}, 0)
    typed_error = (mysql if server is MY else postgresql).typed_error
    chain.put(written, refusal=typed_error)
    with pytest.raises(CommitInDoubt) as doubt:
        chain.commit()
    target: Any = SimpleNamespace(settle=chain.settle)
    attempt: Any = SimpleNamespace(abort=lambda: None)
    if carried_out:
        assert settle_doubt(target, attempt, written, doubt.value) == written
        chain.begin(written)
    else:
        with pytest.raises(kind, match="committing batch 0"):
            settle_doubt(target, attempt, written, doubt.value)
        chain.begin(None)


def test_a_delete_that_a_publication_does_not_allow_is_no_passing_state() -> None:
    words = 'cannot delete from table "t" because it does not have a replica identity'
    error = postgresql.refusal("55000", words, "writing to t", by="CheckCmdReplicaIdentity")
    assert isinstance(error, ServerMisconfigured)
    assert "REPLICA IDENTITY" in error.next_step


@pytest.mark.parametrize(
    ("missing", "ask"),
    [
        ("adbc_driver_postgresql", lambda: staging.connect("host=h")),
        ("pymysql", lambda: connected({"host": "h", "password": ""}, "onceward")),
    ],
)
def test_an_executor_that_lacks_the_client_may_be_set_up_later(
    monkeypatch: pytest.MonkeyPatch, missing: str, ask: Callable[[], Any]
) -> None:
    """A node that has just come, whose bootstrap is not through: what has worked may again."""
    for name in [missing, *(each for each in sys.modules if each.startswith(f"{missing}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(LibraryMissing, match=missing) as caught:
        ask()
    error = from_json(to_json(caught.value))
    assert type(error) is LibraryMissing
    assert not may_pass(error, worked_before=False)
    assert may_pass(error, worked_before=True)


def test_a_client_that_stores_other_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = pa.record_batch({"x": pa.array([["a"], ["b", None], None])})
    for release, refuses_all, refuses_nulls in (
        ("1.9.0", True, True),
        ("1.11.0", True, True),
        ("1.12.0", False, True),
        ("1.13.0", False, False),
        ("2.0", False, False),
    ):
        monkeypatch.setattr("adbc_driver_postgresql.__version__", release)
        with raises(LibraryMissing, release) if refuses_all else nullcontext():
            staging.errors()
        with raises(ConfigurationError, release) if refuses_nulls else nullcontext():
            staging.storable(arrays)
        staging.storable(arrays.slice(0, 1))


def test_tasks_are_told_all_but_files_and_what_an_older_libpq_does_not_know() -> None:
    """What was found in the files is among the words."""

    def option(word: str, compiled: str | None, value: str | None) -> SimpleNamespace:
        texts = (None if one is None else one.encode() for one in (word, compiled, value))
        return SimpleNamespace(**dict(zip(("keyword", "compiled", "val"), texts, strict=True)))

    options = [
        option("host", None, "database"),
        option("sslmode", "prefer", "require"),
        option("port", "5432", "5432"),
        option("sslnegotiation", "postgres", "postgres"),
        option("options", "", ""),
        option("service", None, "shop"),
        option("servicefile", None, "/etc/pg_service.conf"),
        option("passfile", None, "/etc/pgpass"),
    ]
    pgconn = SimpleNamespace(info=options, password=b"secret")
    words = connection_words(SimpleNamespace(connection=SimpleNamespace(pgconn=pgconn)))
    assert conninfo_to_dict(words) == {
        "host": "database", "sslmode": "require", "port": "5432", "password": "secret",
        "application_name": "onceward",
    }  # fmt: skip


def test_a_staging_table_of_too_many_texts_blames_no_row() -> None:
    words = "Row size too large (> 8126). Changing some columns to TEXT or BLOB may help."
    for what in ("creating the staging table x", "bringing rows from the driver"):
        assert isinstance(mysql.refusal(1118, words, what), ConfigurationError)
    assert isinstance(mysql.refusal(1118, words, "writing to table t"), RowRefused)


@pytest.mark.parametrize(
    "what",
    ["creating the staging table x", "dropping the staging table x", "numbering the rows of …"],
)
def test_an_event_trigger_that_refuses_a_table_of_the_sinks_blames_no_row(what: str) -> None:
    """As in a freeze of migrations, which passes."""
    error = postgresql.refusal("P0001", "no DDL while the release is out", what)
    assert isinstance(error, ServerMisconfigured)
    assert error.recovery is Recovery.RESTART_IF_WORKED
    assert "event trigger" in error.next_step
    assert isinstance(postgresql.refusal("53100", "disk full", what), SendFailed)


def test_a_sequence_that_has_come_to_its_end_is_no_rows_fault() -> None:
    words = 'nextval: reached maximum value of sequence "t_id_seq" (2147483647)'
    for error in (
        postgresql.refusal("2200H", words, "writing to table t"),
        mysql.refusal(4084, "Sequence 'app.s' has run out", "writing to table t"),
    ):
        assert isinstance(error, ServerMisconfigured)
        assert error.next_step.startswith("ALTER SEQUENCE")


DAYS = pa.array([-2_500_000, 2_932_897], pa.int32()).cast(pa.date32())


@pytest.mark.parametrize(
    ("url", "values"),
    [
        ("mysql://u:p@h/d", pa.array([math.nan])),
        ("mysql://u:p@h/d", DAYS[1:]),
        ("postgresql://u:p@h/d", pa.array(["a\0b"])),
        ("postgresql://u:p@h/d", DAYS[:1]),
    ],
    ids=["NaN", "year 10000", "NUL", "5000 BC"],
)
def test_beside_the_key_of_a_delete_may_stand_what_the_server_has_not(
    url: str, values: pa.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row may be one that was never written. By tasks, and by the driver."""

    def as_sent(rows: pa.Table) -> None:
        if url.startswith("mysql"):
            lines(rows)
        else:
            staging.must_be_storable(rows)

    def rows(op: str) -> pa.RecordBatch:
        columns: dict[str, Any] = {"id": [1], "at": [7], "x": values, "op": [op], "table": ["t"]}
        return pa.RecordBatch.from_pydict(
            {name: pa.array(column) for name, column in columns.items()}
        )

    monkeypatch.setattr("onceward.sql.postgresql.dialect.connection_words", lambda _: "")
    settings = ow.DatabaseSink(
        url=url, pipeline_id="p", mode="changes", key="id", order_by="at"
    ).settings
    opening = settings.dialect.open_staging(None, "s", "t", settings.bare)  # type: ignore[arg-type]
    writer: Any = opening(TaskAttempt(0, 0, 7))
    for op in ("d", "delete", "u"):
        writer.write(rows(op))
    kept = [{"id": 1, "at": 7, "x": None, "op": op, "table": "t"} for op in ("d", "delete")]
    for part in (
        pa.Table.from_batches(writer._rows),
        settings.bare(pa.Table.from_batches([rows("d"), rows("delete"), rows("u")])),
    ):
        as_sent(part.slice(0, 2))
        assert part.slice(0, 2).to_pylist() == kept
        with pytest.raises(RowRefused, match="'x'"):
            as_sent(part.slice(2))


def test_what_says_nothing_of_deletes_stays_as_it_is() -> None:
    """A column that is missing, or that is no text, is the sink's to refuse."""
    settings = ow.DatabaseSink(
        url="mysql://u:p@h/d", pipeline_id="p", mode="changes", key="id", order_by="at"
    ).settings
    for rows in (pa.table({"id": [1]}), pa.table({"id": [1], "x": [1], "op": [1]})):
        assert settings.bare(rows) is rows


class Refusing(Exception):
    """What a server says: psycopg tells of it which of the server's functions has raised it, ADBC
    some details.
    """

    def __init__(self, state: str, words: str, function: str | None, **details: str) -> None:
        super().__init__(words)
        self.sqlstate = state
        if function is None:
            self.details = [(name, text.encode()) for name, text in details.items()]
        else:
            self.diag = SimpleNamespace(source_function=function)


@pytest.mark.parametrize(
    ("state", "words", "function", "kind", "step"),
    [
        ("23514", "no partition of relation", "ExecFindPartition", ServerMisconfigured, "DEFAULT"),
        ("23514", "violates partition constraint", "ExecPartitionCheckEmitError", RowRefused, ""),
        ("23514", "violates check constraint", "ExecConstraints", RowRefused, "mend or filter"),
        ("42501", "row-level security", "ExecWithCheckOptions", RowRefused, "policy of the table"),
        ("42501", "permission denied", "aclcheck_error", AccessDenied, "grant it"),
        ("55000", "as arbiters", "ExecCheckIndexConstraints", ServerMisconfigured, "DEFERRABLE"),
        ("55000", "something else", "another", SendFailed, "the batch runs again"),
    ],
)
def test_one_code_of_several_things_is_told_by_the_function_that_raises_it(
    state: str, words: str, function: str, kind: type[Exception], step: str
) -> None:
    """So in any language."""
    error = postgresql.typed_error(Refusing(state, words, function), "writing to table t")
    assert isinstance(error, kind)
    assert step in error.next_step


def test_where_no_function_is_told_a_lack_of_a_partition_has_a_table_and_no_name() -> None:
    name, table = {"PG_DIAG_CONSTRAINT_NAME": "positive"}, {"PG_DIAG_TABLE_NAME": "t"}
    for details, kind in (
        (table, ServerMisconfigured),
        (table | name, RowRefused),
        ({}, RowRefused),
    ):
        error = Refusing("23514", "the server's words", None, **details)
        assert isinstance(postgresql.typed_error(error, "writing to table t"), kind)
    words = 'new row violates row-level security policy for table "t"'
    error = Refusing("42501", words, None)
    assert isinstance(postgresql.typed_error(error, "writing to table t"), RowRefused)


def test_names_of_columns_that_no_table_can_have_are_the_frames_fault() -> None:
    """The sink's own table is the first to have them, where rows name theirs."""
    making = "creating the staging table onceward_staging_1"
    for number in (1059, 1060, 1117, 1166):
        for what in (making, "bringing rows from the driver"):
            assert isinstance(mysql.refusal(number, "words", what), InvalidColumn)
        assert isinstance(mysql.refusal(number, "words", "writing to table t"), SendFailed)
    for state in ("42701", "54011"):
        error = postgresql.refusal(state, "words", making)
        assert isinstance(error, InvalidColumn)
        assert "withColumnRenamed" in error.next_step
        assert not isinstance(postgresql.refusal(state, "words", "writing"), InvalidColumn)


class HidesTables:
    """A session of a MySQL whose login sees no table; ``number``: what it says of one."""

    is_usable = True

    def __init__(self, number: int, text: str) -> None:
        self.patience, self.error = Patience("h"), pymysql.ProgrammingError(number, text)
        self.asked: list[str] = []

    def execute(self, statement: str, parameters: Any = None) -> Any:
        self.asked.append(statement)
        if "LIMIT 0" in statement:
            raise self.error
        return SimpleNamespace(fetchone=lambda: None, __iter__=lambda: iter(()))

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


class Listed(HidesTables):
    def execute(self, statement: str, parameters: Any = None) -> Any:
        super().execute(statement, parameters)
        return []


DENIED = (1142, "SELECT command denied to user 'w'@'h' for table 'orders'")
GONE = (1146, "Table 'shop.orders' doesn't exist")


@pytest.mark.parametrize("name", ["shop.orders", "orders", "`shop`.`or``ders`"])
def test_a_target_on_which_the_login_has_no_right_is_not_said_to_be_missing(name: str) -> None:
    """information_schema has no row of it."""
    session: Any = Listed(*DENIED)
    with raises(AccessDenied), mysql.translate_errors(f"looking at table {name}"):
        catalogue.table_named(session, name, "onceward.ledger")
    quoted = {"orders": "`orders`", "shop.orders": "`shop`.`orders`"}.get(name, name)
    assert session.asked[-1].split()[3] == quoted
    gone: Any = Listed(*GONE)
    with raises(TableMissing) as met, mysql.translate_errors(f"looking at table {name}"):
        catalogue.table_named(gone, name, "onceward.ledger")
    assert met.value.next_step.startswith("create it")


def test_a_ledger_on_which_the_login_has_no_right_is_not_an_empty_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pipeline would seem to be a new one."""
    database = MySQL("mysql://u@h/d")
    said: list[Any] = []
    monkeypatch.setattr(database, "connect", lambda *_: said[-1])
    chain = TableChain(database, "onceward.ledger", PipelineId("p"))
    said.append(HidesTables(*DENIED))
    for look in (chain.peek, chain.pipelines, lambda: list(chain.history())):
        with raises(LedgerUnreachable, "1142", "may SELECT there"):
            look()
    for number in (1146, 1049):
        said.append(HidesTables(number, "no such thing"))
        assert (chain.peek(), chain.pipelines(), list(chain.history())) == (None, [], [])
        chain.close()
