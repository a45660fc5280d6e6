"""What others do to the database while a pipeline runs: locks, limits, servers that stand still,
refused commits.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pymysql
import pytest
from database_place import Place, standing_still
from test_prepared_transactions import Prepared

from onceward import patience
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    OncewardError,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
)
from onceward.spark.batch.job import JobInterrupted
from onceward.sql.ledger import database
from onceward.sql.ledger import table as ledger_table
from onceward.sql.mysql import staging as mysql_staging
from onceward.sql.postgresql import staging
from onceward.sql.postgresql.dialect import PostgreSQLDialect
from onceward.sql.sink import attempt, pieces
from onceward.sql.sink.sink import DatabaseTarget
from onceward_testing.sink_contract import batch
from support.mysql_client import transaction_at
from support.tasks_here import ArrowFrame, forget_all


def values(*numbers: int) -> pa.Table:
    return pa.table({"value": pa.array(numbers, pa.int64())})


class Running:
    """One run of a pipeline into the table ``t``: batch after batch."""

    def __init__(self, place: Place, **settings: Any) -> None:
        self.place = place
        self.target: DatabaseTarget = place.target("t", **settings)
        self._batches = MicroBatches(self.target, SinkPolicy(place.pipeline, batch_attempts=1))
        self.number = 0

    def write(self, rows: pa.Table) -> None:
        self._batches.process(
            [Write(ArrowFrame(rows), f"{self.place.schema}.t")], batch(self.number)
        )  # type: ignore[arg-type]
        self.number += 1


def stored(place: Place) -> list[int]:
    return sorted(value for (value,) in place.sql("SELECT value FROM {s}.t"))


@contextlib.contextmanager
def reading(place: Place, table: str) -> Iterator[None]:
    """Inside, somebody reads the table in a transaction that does not end, as a dump does."""
    if place.server.url.startswith("postgres"):
        with psycopg.connect(place.server.url) as connection:
            connection.execute(f"LOCK TABLE {place.schema}.{table} IN ACCESS SHARE MODE")
            yield
    else:
        with transaction_at(place.server.url, f"SELECT * FROM {place.schema}.{table}"):  # noqa: S608
            yield


def test_a_dump_that_reads_a_staging_table_holds_no_decision_up(
    anywhere: Place, before_the_move: Callable[[Callable[[], object]], None]
) -> None:
    """It may have the weakest lock there is, and keeps it to its end."""
    anywhere.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(anywhere)
    with contextlib.ExitStack() as dump:
        before_the_move(lambda: dump.enter_context(reading(anywhere, anywhere.staging()[0])))
        running.write(values(1, 2))
        assert len(anywhere.staging()) == 1
        running.write(values(3))
        assert len(anywhere.staging()) == 1
    assert stored(anywhere) == [1, 2, 3]
    running.target.run._drop_at = 0.0
    running.write(values(4))
    assert anywhere.staging() == []


def test_rows_are_counted_for_as_long_as_it_takes(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's limit on the ledger's statements is none on those that handle all rows of a
    batch.
    """
    monkeypatch.setattr(ledger_table, "_STATEMENT_MS", 1_000)
    place.sql("CREATE TABLE {s}.t (value bigint)")
    prepared = attempt.DatabaseAttempt.prepared

    def slowly(self: attempt.DatabaseAttempt) -> Any:
        held = psycopg.connect(place.server.url)
        held.execute(f"LOCK TABLE {place.schema}.{place.staging()[0]} IN ACCESS EXCLUSIVE MODE")
        timer = threading.Timer(2.5, held.close)
        timer.start()
        try:
            return prepared(self)
        finally:
            timer.join()

    monkeypatch.setattr(attempt.DatabaseAttempt, "prepared", slowly)
    place.write(None, pa.table({"value": [1], "table": [f"{place.schema}.t"]}))
    assert stored(place) == [1]


LOCKS = """
SELECT count(DISTINCT relation) FROM pg_locks JOIN pg_class c ON c.oid = relation
WHERE relname LIKE 'part%%' AND relkind = 'r' AND relnamespace = %s::regnamespace"""


def partitioned(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (value bigint) PARTITION BY LIST (value)")
    for number in range(5):
        place.sql(f"CREATE TABLE {{s}}.part{number} PARTITION OF {{s}}.t FOR VALUES IN ({number})")


def test_a_batch_locks_the_partitions_that_it_writes_to_and_no_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server has room for 64 locks a connection, and tables may have thousands of partitions."""
    partitioned(place)
    end_move, locked = PostgreSQLDialect.end_move, []

    def look(self: PostgreSQLDialect, connection: Any) -> None:
        end_move(self, connection)
        locked.extend(place.sql(LOCKS, place.schema))

    monkeypatch.setattr(PostgreSQLDialect, "end_move", look)
    place.write("t", values(3, 3))
    assert locked == [(1,)]


def test_a_prepared_transaction_locks_the_partitions_that_it_writes_to_and_no_others(
    place: Place,
) -> None:
    partitioned(place)
    found = Prepared(place)
    target = found.new_target()
    committed = target.committer.commit
    locked: list[Any] = []

    def look(name: str) -> Any:
        locked.extend(place.sql(LOCKS, place.schema))
        return committed(name)

    target.committer.commit = look  # type: ignore[method-assign]
    batches = MicroBatches(target, SinkPolicy(found.pipeline, batch_attempts=1))
    batches.process([Write(found.frame(values(3, 3)), None)], batch(0))
    target.close()
    assert locked == [(1,), (1,)]
    assert stored(place) == [3, 3]


# servers that stand still


@pytest.fixture
def standby_is_gone(place: Place) -> Iterator[Callable[[bool], None]]:
    """A COMMIT waits for a synchronous standby; False: no longer."""
    names = place.sql("SHOW synchronous_standby_names")[0][0]

    def gone(is_gone: bool) -> None:
        with psycopg.connect(place.server.url, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = local")
            connection.execute(
                f"ALTER SYSTEM SET synchronous_standby_names = '{'gone' if is_gone else names}'"
            )
            connection.execute("SELECT pg_reload_conf()")
            deadline = time.monotonic() + 30
            while (connection.execute("SHOW synchronous_standby_names").fetchone() or ("",))[
                0
            ] != ("gone" if is_gone else names):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            while is_gone and not _waits(place.server.url, connection):
                assert time.monotonic() < deadline

    yield gone
    gone(False)


def _waits(url: str, connection: psycopg.Connection) -> bool:
    """Return whether a COMMIT waits for a standby: the checkpointer says so, in its own time
    (SyncRepUpdateSyncStandbysDefined).
    """
    with psycopg.connect(url) as probe:
        probe.execute("SET synchronous_commit = on")
        probe.execute("SELECT pg_logical_emit_message(true, 'probe', '')")
        commit = threading.Thread(target=probe.commit)
        commit.start()
        pid = (probe.info.backend_pid,)
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        while commit.is_alive():
            if connection.execute(waiting, pid).fetchone() is not None:
                connection.execute("SELECT pg_cancel_backend(%s)", pid)
                commit.join()
                return True
        return False


def test_a_commit_that_waits_for_a_standby_that_is_gone_is_in_doubt(
    place: Place, standby_is_gone: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until there is an answer, nobody waits for it without end; and the ledger has it then."""
    place.sql("CREATE TABLE {s}.t (value bigint)")
    place.small = True
    running = Running(place)
    running.write(values(1))
    monkeypatch.setattr(database, "COMMIT_SECONDS", 1.0)
    monkeypatch.setattr(ledger_table, "_STATEMENT_MS", 1_000)
    standby_is_gone(True)
    with pytest.raises(CommitInDoubt, match="could not be found out"):
        running.write(values(2))
    standby_is_gone(False)
    next_start = Running(place)
    next_start.number = 1
    next_start.write(values(2))
    next_start.write(values(3))
    assert stored(place) == [1, 2, 3]


def test_a_query_that_is_stopped_waits_for_no_commit(
    place: Place, standby_is_gone: Callable[[bool], None]
) -> None:
    """And the next start asks the ledger what has become of it."""
    place.sql("CREATE TABLE {s}.t (value bigint)")
    place.small = True
    running = Running(place)
    running.write(values(1))
    standby_is_gone(True)
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'onceward%' AND "
        "wait_event = 'SyncRep'"
    )

    def stop() -> None:
        if place.sql(waiting) != [(0,)]:
            raise JobInterrupted("the query is being stopped")

    with patience.asking(stop), pytest.raises((JobInterrupted, CommitInDoubt)):
        running.write(values(2))
    standby_is_gone(False)
    next_start = Running(place)
    next_start.number = 1
    next_start.write(values(2))
    assert stored(place) == [1, 2]


def test_a_server_process_that_stands_still_is_left_for_another(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its kernel answers keepalives all the while."""
    monkeypatch.setattr(database, "READ_SECONDS", 1.0)
    place.sql("CREATE TABLE {s}.t (value bigint)")
    place.small = True
    running = Running(place)
    running.write(values(1))
    ((pid,),) = place.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s",
        f"onceward-{place.pipeline}"[:63],
    )
    with standing_still(pid):
        running.write(values(2))
    assert stored(place) == [1, 2]


def test_a_tasks_session_whose_server_process_stands_still_is_replaced(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(place)
    running.write(values(1))
    monkeypatch.setattr(staging, "STATEMENT_SECONDS", 1.0)
    # Earlier tests of this worker may have left sessions; the task's is the one that was used
    # last.
    ((pid,),) = place.sql(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'onceward' AND state = 'idle'"
        " ORDER BY state_change DESC LIMIT 1"
    )
    with standing_still(pid):
        running.write(values(2))  # what does not answer is not taken for a session any more
    assert stored(place) == [1, 2]


class _Slow(ArrowFrame):
    """Two pieces a task; after each the server ends all sessions of ours that are idle."""

    place: Place

    def part(self, number: int) -> Iterator[pa.RecordBatch]:
        for _ in range(2):
            yield from super().part(number)
            self.place.end_idle_sessions()


def test_sessions_that_end_while_tasks_work_are_replaced(
    anywhere: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """idle_session_timeout, wait_timeout, or a proxy's: shorter than a batch takes to be staged,
    or a task from one piece of rows to the next.
    """
    monkeypatch.setattr(pieces, "_PIECE_BYTES", 1)
    anywhere.sql("CREATE TABLE {s}.t (value bigint)")
    frame = _Slow(values(1, 2))
    frame.place = anywhere
    anywhere.write("t", frame, frame)
    assert stored(anywhere) == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_commit_that_waits_for_a_backups_lock_is_in_doubt(
    my_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUSH TABLES WITH READ LOCK, as backups take it."""
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    my_place.small = True
    monkeypatch.setattr(database, "COMMIT_SECONDS", 1.0)
    monkeypatch.setattr(ledger_table, "_STATEMENT_MS", 1_000)
    running = Running(my_place)
    running.write(values(1))
    commit = running.target.run.chain.commit
    with contextlib.ExitStack() as backup:

        def under_the_lock() -> None:
            backup.enter_context(
                transaction_at(my_place.server.url, "FLUSH TABLES WITH READ LOCK")
            )
            commit()

        monkeypatch.setattr(running.target.run.chain, "commit", under_the_lock)
        with pytest.raises(CommitInDoubt):
            running.write(values(2))
    next_start = Running(my_place)
    next_start.number = 1
    next_start.write(values(2))
    assert stored(my_place) == [1, 2]


# commits that the server refuses


def my_refusal(number: int, text: str) -> Exception:
    return pymysql.err.OperationalError(number, text)


TOO_LARGE = "Transaction of size 300000000 exceeds specified limit 150000000."


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (
            my_refusal(
                3100,
                f"Error on observer while running replication hook 'before_commit'. {TOO_LARGE}",
            ),
            ServerMisconfigured,
        ),
        (
            my_refusal(1180, "Got error 5 'Maximum writeset size exceeded' during COMMIT"),
            ServerMisconfigured,
        ),
        (
            my_refusal(
                1197,
                "Multi-statement transaction required more than 'max_binlog_cache_size' bytes",
            ),
            ServerMisconfigured,
        ),
        (
            my_refusal(3101, "Plugin instructed the server to rollback the current transaction."),
            SendFailed,
        ),
        (
            my_refusal(1213, "Deadlock found when trying to get lock; try restarting transaction"),
            SendFailed,
        ),
        (my_refusal(1290, "The MySQL server is running with the --read-only option"), SendFailed),
    ],
    ids=lambda value: str(value.args[0]) if isinstance(value, Exception) else "",
)
def test_a_commit_that_mysql_refuses_is_told_in_its_words(
    mysql_place: Place,
    monkeypatch: pytest.MonkeyPatch,
    refused: Exception,
    expected: type[OncewardError],
) -> None:
    _a_refused_commit(mysql_place, monkeypatch, refused, expected)


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (
            psycopg.errors.ForeignKeyViolation(
                "insert or update on table t violates a foreign key"
            ),
            RowRefused,
        ),
        (
            psycopg.errors.SerializationFailure(
                "could not serialize access due to concurrent update"
            ),
            SendFailed,
        ),
        (psycopg.errors.DiskFull("could not extend file"), SendFailed),
    ],
    ids=lambda value: str(getattr(value, "sqlstate", "")),
)
def test_a_commit_that_postgresql_refuses_is_told_in_its_words(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    refused: Exception,
    expected: type[OncewardError],
) -> None:
    _a_refused_commit(place, monkeypatch, refused, expected)


def _a_refused_commit(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    refused: Exception,
    expected: type[OncewardError],
) -> None:
    place.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(place)
    chain = running.target.run.chain
    commit = chain.commit

    def refusing() -> None:
        session = chain._connected()

        def refuse() -> None:
            session.rollback()
            raise refused

        session.commit = refuse  # type: ignore[method-assign]
        commit()

    with monkeypatch.context() as patch:
        patch.setattr(chain, "commit", refusing)
        with pytest.raises(expected) as found:
            running.write(values(1))
    assert str(refused.args[-1]) in str(found.value)
    assert stored(place) == []
    running.write(values(1))
    assert stored(place) == [1]


def test_a_batch_larger_than_a_transaction_may_be_is_written_once_the_limit_is_raised(
    mysql_place: Place,
) -> None:
    mysql_place.sql("CREATE TABLE {s}.t (value bigint)")
    ((limit,),) = mysql_place.sql("SELECT @@max_binlog_cache_size")
    mysql_place.sql("SET GLOBAL max_binlog_cache_size = 4096")
    rows = values(*range(50_000))
    try:
        with pytest.raises(ServerMisconfigured, match=r"\(1197\).*larger than the") as found:
            Running(mysql_place).write(rows)
        assert "max_binlog_cache_size" in found.value.next_step
    finally:
        mysql_place.sql("SET GLOBAL max_binlog_cache_size = %s", limit)
        forget_all(mysql_staging.sessions)  # sessions keep the limit that they began with
    Running(mysql_place).write(rows)
    assert len(stored(mysql_place)) == 50_000


def test_a_trigger_that_raises_stops_the_query_until_it_is_changed(place: Place) -> None:
    place.sql("CREATE TABLE {s}.t (value bigint)")
    place.sql(
        "CREATE FUNCTION {s}.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not on a "
        "Sunday'; END $$; "
        "CREATE TRIGGER no BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.no()"
    )
    running = Running(place)
    with pytest.raises(RowRefused, match=r"\(P0001\).*not on a Sunday") as found:
        running.write(values(1))
    assert "change the table or its trigger" in found.value.next_step
    place.sql("DROP TRIGGER no ON {s}.t")
    running.write(values(1))
    assert stored(place) == [1]


@pytest.mark.parametrize("moment", ["made", "opened", "counted"])
def test_a_session_that_ends_before_the_decision_lets_the_batch_run_again(
    anywhere: Place, moment: str
) -> None:
    """Killed while a staging table is made, behind that, or while rows are counted."""
    anywhere.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(anywhere)
    running.write(values(1))
    run = running.target.run
    owner, name = {
        "made": (run.dialect.statements, "staging_table"),
        "opened": (type(run.dialect), "open_staging"),
        "counted": (attempt.DatabaseAttempt, "_counted"),
    }[moment]
    go_on = getattr(owner, name)

    def killed(*arguments: Any) -> Any:
        session: Any = run.chain._connection
        if anywhere.server.url.startswith("postgres"):
            anywhere.sql(
                f"SELECT pg_terminate_backend({session.connection.info.backend_pid}, 5000)"
            )
        else:
            anywhere.sql(f"KILL CONNECTION {session.connection.thread_id()}")
        return go_on(*arguments)

    with pytest.MonkeyPatch.context() as once:
        once.setattr(owner, name, killed)
        with pytest.raises(SendFailed):
            running.write(values(2))
    running.write(values(2))
    assert stored(anywhere) == [1, 2]


# limits, logins, and a server that is another one now


@pytest.fixture
def login(my_place: Place) -> Iterator[str]:
    """A user with all rights to the place's database, who may do nothing else."""
    name = f"u_{my_place.schema[-10:]}"
    my_place.sql(f"CREATE USER {name} IDENTIFIED BY 'w'")
    my_place.sql(f"GRANT ALL ON {{s}}.* TO {name}")
    yield name
    my_place.sql(f"DROP USER {name}")


def as_login(place: Place, name: str) -> str:
    said = urlsplit(place.server.url)
    return f"mysql://{name}:w@{said.hostname}:{said.port}/{place.schema}"


def test_a_task_that_finds_no_connection_left_tries_again(
    my_place: Place, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    my_place.sql(f"ALTER USER {login} WITH MAX_USER_CONNECTIONS 1")
    my_place.url = as_login(my_place, login)
    running = Running(my_place)
    with pytest.raises(SendFailed, match=r"\(1226\).*max_user_connections"):
        running.write(values(1))  # the driver has the one
    my_place.sql(f"ALTER USER {login} WITH MAX_USER_CONNECTIONS 0")
    running.write(values(1))
    running.target.close()
    forget_all(mysql_staging.sessions)
    assert stored(my_place) == [1]


def test_a_server_that_takes_no_writes_any_more_is_left_for_another(
    my_place: Place, login: str
) -> None:
    """After a failover the old session may lead to what is a standby now, and a new one to the new
    primary.
    """
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    my_place.url = as_login(my_place, login)
    my_place.small = True
    running = Running(my_place)
    running.write(values(1))
    chain = running.target.run.chain
    before = chain.connections
    my_place.sql("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(SendFailed, match=r"1290.*read.only"):
            running.write(values(2))
    finally:
        my_place.sql("SET GLOBAL read_only = OFF")
    running.write(values(2))
    assert chain.connections > before
    running.target.close()
    assert stored(my_place) == [1, 2]


def test_another_server_is_looked_at_before_it_is_used(my_place: Place) -> None:
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    my_place.small = True
    running = Running(my_place)
    running.write(values(1))
    my_place.sql("SET GLOBAL local_infile = OFF")
    try:
        running.target.run.chain._forget_connection()
        with pytest.raises(ConfigurationError, match="local_infile = OFF") as found:
            running.write(values(2))
        assert "SET GLOBAL local_infile = ON" in found.value.next_step
    finally:
        my_place.sql("SET GLOBAL local_infile = ON")
    running.write(values(2))
    assert stored(my_place) == [1, 2]


def test_a_ledger_that_a_crash_would_empty_now_is_refused_by_the_next_session(
    place: Place,
) -> None:
    place.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(place)
    running.write(values(1))
    place.sql("ALTER TABLE {s}.ledger SET UNLOGGED")
    running.target.run.chain._forget_connection()
    with pytest.raises(ConfigurationError, match="not logged") as found:
        running.write(values(2))
    assert "SET LOGGED" in found.value.next_step
    place.sql("ALTER TABLE {s}.ledger SET LOGGED")
    running.write(values(2))
    assert stored(place) == [1, 2]


# sessions that others get next

OF_THE_SESSION = "SELECT name FROM pg_settings WHERE source = 'session'"


def test_nothing_is_set_for_longer_than_a_transaction(place: Place) -> None:
    """A pooler for transactions gives each transaction to a session of its own, which other
    programs get next.
    """
    place.sql("CREATE TABLE {s}.t (value interval)")
    running = Running(place)
    spans = pa.table({"value": ["1 day", "2 days"]})
    running.write(spans)
    place.small = True
    running.write(spans)
    session = running.target.run.chain._connected()
    assert session.connection.execute(OF_THE_SESSION).fetchall() == []  # type: ignore[attr-defined]
    prepared = Prepared(place)
    prepared.write(spans, number=2)
    assert len(staging.sessions.cached) == 1
    for kept in staging.sessions.cached.values():
        with kept.cursor() as cursor:
            cursor.execute(OF_THE_SESSION)
            assert cursor.fetchall() == []
    prepared.targets[0].close()


def test_a_proxy_that_shares_the_servers_sessions_is_refused_by_name(my_place: Place) -> None:
    """What was set for the session is not there: it is another one."""
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    running = Running(my_place)
    running.write(values(1))
    running.target.run.chain._connected().execute("SET @onceward_session = 'of another'")
    with pytest.raises(ConfigurationError, match="several of the server's"):
        running.write(values(2))
    running.target.run.chain._forget_connection()  # as its next step has it, to the server itself
    running.write(values(2))
    assert stored(my_place) == [1, 2]
