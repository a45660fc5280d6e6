"""I14: rows that tasks write into a table in prepared transactions, read by another client."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from database_place import Place
from test_rows_into_tables import LISTS, TYPES, expected

import onceward as ow
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    AccessDenied,
    ConfigurationError,
    InvalidColumn,
    OncewardError,
    PreparedDataLost,
    RowRefused,
    SendFailed,
    UnsupportedQuery,
)
from onceward.ids import TaskAttempt
from onceward.sql.ledger.mysql import MySQL
from onceward.sql.mysql import prepared as mysql_prepared
from onceward.sql.postgresql import prepared, staging
from onceward.sql.sink import sink as sink_module
from onceward.sql.sink.dialect import IDLE_SECONDS
from onceward.sql.sink.prepared import PreparedTransactions
from onceward.sql.sink.prepared_target import PreparedAttempt, PreparedTarget
from onceward_testing import LocalPostgres
from onceward_testing.sink_contract import Died, Process, batch
from support.mysql_client import sql_at
from support.tasks_here import ArrowFrame, forget_all

TABLE = "CREATE TABLE {s}.t (value varchar(20))"


class Prepared:
    """Of a place: processes of its pipeline whose tasks prepare. A kit for :class:`Process`."""

    def __init__(self, place: Place, table: str = "t") -> None:
        self.place, self.pipeline, self.table = place, place.pipeline, table
        self.targets: list[PreparedTarget] = []

    def sink(self, **settings: Any) -> ow.DatabaseSink:
        return self.place.sink(self.table, **{"xa": True, **settings})

    def new_target(self, **settings: Any) -> PreparedTarget:
        self.targets.append(PreparedTarget(self.sink(**settings).settings))
        return self.targets[-1]

    def frame(self, values: Any, tasks: int = 2) -> ArrowFrame:
        rows = (
            values
            if isinstance(values, pa.Table)
            else pa.table({"value": pa.array(values, pa.string())})
        )
        return ArrowFrame(rows, tasks=tasks)

    def write(
        self, values: Any, number: int = 0, attempts: int = 1, **settings: Any
    ) -> PreparedTarget:
        target = self.new_target(**settings)
        batches = MicroBatches(target, SinkPolicy(self.pipeline, batch_attempts=attempts))
        batches.process([Write(self.frame(values), None)], batch(number))
        return target

    def prepared(self) -> list[str]:
        return PreparedTransactions(self.sink().settings).recover()

    def values(self) -> list[Any]:
        return sorted(
            value
            for (value,) in self.place.sql(f"SELECT value FROM {{s}}.{self.table}")  # noqa: S608
        )


@pytest.fixture
def in_place(place: Place) -> Iterator[Prepared]:
    yield from _made(place)


MY_SERVERS = (
    pytest.param("newer_mysql_place", id="MySQL"),
    pytest.param("mariadb_place", id="MariaDB"),
)


@pytest.fixture(params=MY_SERVERS)
def in_my_place(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    yield from _made(request.getfixturevalue(request.param))


@pytest.fixture(params=[pytest.param("place", id="PostgreSQL"), *MY_SERVERS])
def in_any_place(request: pytest.FixtureRequest) -> Iterator[Prepared]:
    yield from _made(request.getfixturevalue(request.param))


def _made(place: Place) -> Iterator[Prepared]:
    made = Prepared(place)
    yield made
    for target in made.targets:
        target.close()
    left = PreparedTransactions(made.sink().settings)
    for name in left.recover():  # of a test that failed: nobody could drop its tables
        left.abort(name)
    left.close()


def names_of(record: Any) -> list[str]:
    (output,) = record.outputs.values()
    found: list[str] = output.data["committables"]
    return found


# what is decided, and what is not


@pytest.mark.fault("prepared-ended")
@pytest.mark.parametrize("somebody", ["commits", "rolls back"])
def test_what_somebody_has_ended_is_told_by_its_marker(
    in_any_place: Prepared, somebody: str
) -> None:
    """Decided, and then the driver died. One of the transactions is not there any more."""
    in_any_place.place.sql(TABLE)
    record = Process(in_any_place).open().decide(["a", "b"])
    transactions = PreparedTransactions(in_any_place.sink().settings)
    first, second = names_of(record)
    if somebody == "commits":
        assert transactions.commit(first) is ow.CommitResult.DONE
        Process(in_any_place).open()
        assert in_any_place.values() == ["a", "b"]
        assert transactions.commit(second) is ow.CommitResult.ALREADY_DONE
    else:
        transactions.abort(first)
        with pytest.raises(PreparedDataLost, match=first):
            Process(in_any_place).open()
        assert transactions.commit(first) is ow.CommitResult.LOST
        in_any_place.write(["c"], number=1, resume="skip_missing")
        assert in_any_place.values() == ["b", "c"]
    transactions.close()


def test_markers_are_kept_until_the_next_batch_is_finished(in_any_place: Prepared) -> None:
    in_any_place.place.sql(TABLE)
    process = Process(in_any_place).open()
    first = names_of(process.decide(["a", "b"]))

    def markers() -> set[str]:
        return {
            name for (name,) in in_any_place.place.sql("SELECT name FROM {s}.onceward_prepared")
        }

    assert markers() == set()
    process.finish()
    assert markers() == set(first)
    second = names_of(process.decide(["c", "d"]))
    assert markers() == set(first)
    process.finish()
    assert markers() == {*first, *second}
    process.decide([])
    process.finish()
    assert markers() == set(second)
    third = names_of(process.decide(["e"]))
    heir = Process(in_any_place).open()
    assert markers() == {*second, *third}
    fourth = names_of(heir.decide(["f"]))
    assert markers() == set(third)
    heir.finish()
    assert markers() == {*third, *fourth}


@contextmanager
def not_replicated() -> Iterator[None]:
    """Transactions stay prepared that the server says to have committed: as on a standby that is
    promoted before it hears of that.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PreparedTransactions, "commit", lambda *_: ow.CommitResult.DONE)
        yield


@pytest.mark.fault("prepared-failover")
@pytest.mark.parametrize(
    "goes_on", ["by a start", "by the run", "by a start, an empty batch later"]
)
def test_what_a_promoted_standby_has_only_prepared_is_committed_again(
    in_any_place: Prepared,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    goes_on: str,
) -> None:
    """The ledger, which is elsewhere, says that the batch is published: it was rolled back."""
    in_any_place.place.sql(TABLE)
    ledger = ow.FolderLedger(tmp_path / "ledger")
    target = in_any_place.new_target(ledger=ledger)
    run = MicroBatches(target, SinkPolicy(in_any_place.pipeline))
    run.process([Write(in_any_place.frame(["z"]), None)], batch(0))
    with not_replicated():
        for number, values in enumerate([["a", "b"], []][: 1 + ("empty" in goes_on)], start=1):
            run.process([Write(in_any_place.frame(values), None)], batch(number))
    assert in_any_place.values() == ["z"]
    next_one = number + 1
    if goes_on == "by the run":
        target.transactions.close()
        run.process([Write(in_any_place.frame(["c"]), None)], batch(next_one))
    else:
        in_any_place.write(["c"], number=next_one, ledger=ledger)
    assert in_any_place.values() == ["a", "b", "c", "z"]
    assert in_any_place.prepared() == []
    assert "they are committed once more" in caplog.text


@pytest.mark.fault("prepared-failover")
@pytest.mark.parametrize("by", ["a start", "the run"])
def test_a_batch_that_a_promoted_standby_lacks_is_named(
    in_any_place: Prepared, tmp_path: Path, by: str
) -> None:
    in_any_place.place.sql(TABLE)
    ledger = ow.FolderLedger(tmp_path / "ledger")
    target = in_any_place.new_target(ledger=ledger)
    run = MicroBatches(target, SinkPolicy(in_any_place.pipeline))
    with not_replicated():
        run.process([Write(in_any_place.frame(["a", "b"]), None)], batch(0))
    for name in in_any_place.prepared():
        target.transactions.abort(name)
    target.transactions.close()
    if by == "a start":
        run = MicroBatches(
            in_any_place.new_target(ledger=ledger), SinkPolicy(in_any_place.pipeline)
        )
    with pytest.raises(PreparedDataLost, match="is gone from the target") as lost:
        run.process([Write(in_any_place.frame(["c"]), None)], batch(1))
    assert 'resume="skip_missing"' in lost.value.next_step
    assert in_any_place.values() == []
    in_any_place.write(["c"], number=1, ledger=ledger, resume="skip_missing")
    in_any_place.write(["d"], number=2, ledger=ledger)
    assert in_any_place.values() == ["c", "d"]


@pytest.mark.fault("prepared-failover")
def test_a_release_that_removed_markers_sooner_has_lost_nothing(
    in_any_place: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_any_place.place.sql(TABLE)
    ledger = ow.FolderLedger(tmp_path / "ledger")
    with monkeypatch.context() as patch:
        told = {"table": in_any_place.table}
        patch.setattr(PreparedAttempt, "_extra_data", lambda _: told)
        before = in_any_place.write(["a", "b"], ledger=ledger)
    before.transactions.remove_markers(names_of(before.chain.newest()))
    in_any_place.write(["c"], number=1, ledger=ledger)
    assert in_any_place.values() == ["a", "b", "c"]


@pytest.mark.fault("prepared-failover")
@pytest.mark.parametrize("by", ["a start", "the run"])
def test_two_in_a_fan_out_are_failed_over_together(
    in_any_place: Prepared, tmp_path: Path, by: str
) -> None:
    """Neither drops what the other one has to commit again."""
    in_any_place.place.sql(TABLE)
    in_any_place.place.sql("CREATE TABLE {s}.u (value varchar(20))")
    other = Prepared(in_any_place.place, "u")
    ledger = ow.FolderLedger(tmp_path / "ledger")

    def target() -> Any:
        sinks = {"t": in_any_place.sink(ledger=ledger), "u": other.sink(ledger=ledger)}
        return ow.FanOut(sinks).new_target()

    def write(number: int, *values: str) -> None:
        writes = [Write(in_any_place.frame(list(values)), name) for name in ("@t", "@u")]
        run.process(writes, batch(number))

    first = target()
    run = MicroBatches(first, SinkPolicy(in_any_place.pipeline))
    write(0, "z")
    with not_replicated():
        write(1, "a", "b")
    if by == "a start":
        first.close()
        run = MicroBatches(target(), SinkPolicy(in_any_place.pipeline))
    else:
        for branch in first._branches.values():
            branch.target.transactions.close()
    write(2, "c")
    assert in_any_place.values() == other.values() == ["a", "b", "c", "z"]
    assert in_any_place.prepared() == []


@pytest.mark.fault("prepared-late")
def test_what_a_task_prepares_late_is_rolled_back(in_any_place: Prepared) -> None:
    """By a task that was given up: it is in no report, its attempt is aborted or decided without
    it.
    """
    in_any_place.place.sql(TABLE)
    process = Process(in_any_place).open()
    process.commit(["a", "b"])

    def late() -> None:
        attempt = process.attempt
        opening = attempt._opening(Write(in_any_place.frame(["late"])), batch(9), 7)  # type: ignore[attr-defined]
        writer = opening(_task(3))
        writer.write(pa.record_batch({"value": ["late"]}))
        assert in_any_place.prepared() == []
        writer.pre_commit()
        writer.close()
        assert len(in_any_place.prepared()) == 1

    process.stage(in_any_place.frame(["c"]))
    process.attempt.abort()
    late()
    process.commit(["d"])  # the next attempt
    late()
    Process(in_any_place).open().begin()  # the next start
    assert in_any_place.prepared() == []
    heir = Process(in_any_place).open()
    heir.stage(in_any_place.frame(["e", "f"]))
    assert len(in_any_place.prepared()) == 2
    heir.attempt._results = []  # type: ignore[attr-defined]
    heir.attempt.abort()  # of none of which it has been told
    assert in_any_place.prepared() == []
    assert in_any_place.values() == ["a", "b", "d"]


def _task(number: int) -> TaskAttempt:
    return TaskAttempt(number, 0, 1_000 + number)


def test_another_ledgers_transactions_are_left_alone(
    in_any_place: Prepared, caplog: pytest.LogCaptureFixture
) -> None:
    in_any_place.place.sql(TABLE)
    Process(in_any_place).open().stage(in_any_place.frame(["theirs"]))
    theirs = in_any_place.prepared()
    assert theirs
    other = f"{in_any_place.place.schema}.other"
    with caplog.at_level(logging.WARNING, "onceward"):
        target = PreparedTarget(
            ow.DatabaseSink(
                url=in_any_place.place.server.url, pipeline_id=in_any_place.pipeline, xa=True,
                ledger_table=other,
                table=f"{in_any_place.place.schema}.t",
            ).settings
        )  # fmt: skip
        in_any_place.targets.append(target)
        MicroBatches(target, SinkPolicy(in_any_place.pipeline)).process(
            [Write(in_any_place.frame(["a"]))], batch(0)
        )
    assert in_any_place.prepared() == theirs
    assert "by that of another ledger" in caplog.text
    Process(in_any_place).open().begin()
    assert in_any_place.prepared() == []
    assert in_any_place.values() == ["a"]


def test_a_task_that_was_left_shares_no_transaction(in_any_place: Prepared) -> None:
    """Neither closed nor ended: in a worker that goes on with another task."""
    in_any_place.place.sql(TABLE)
    process = Process(in_any_place).open()
    process.begin()
    opening = process.attempt._opening(Write(in_any_place.frame(["x"])), batch(0), 0)  # type: ignore[attr-defined]
    left, next_one = opening(_task(1)), opening(_task(2))
    left._writer._send([pa.record_batch({"value": ["left"]})])  # type: ignore[attr-defined]
    next_one.write(pa.record_batch({"value": ["next"]}))
    name = next_one.pre_commit()
    left.close()
    PreparedTransactions(in_any_place.sink().settings).commit(name)
    assert in_any_place.values() == ["next"]


@pytest.mark.fault("prepared-waiting")
def test_a_frozen_task_holds_its_locks_for_as_long_as_its_session_may_idle(
    in_any_place: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine may be gone without a word, too. The batch runs again, with the same keys."""
    in_any_place.place.sql("CREATE TABLE {s}.t (value varchar(20) PRIMARY KEY)")
    long = str(IDLE_SECONDS)
    in_postgresql = tuple(each.replace(long, "2") for each in prepared._SETTINGS)
    monkeypatch.setattr(prepared, "_SETTINGS", in_postgresql)
    monkeypatch.setattr(mysql_prepared, "IDLE_SECONDS", 2)
    process = Process(in_any_place).open()
    process.begin()
    opening = process.attempt._opening(Write(in_any_place.frame(["x"])), batch(0), 0)  # type: ignore[attr-defined]
    frozen = opening(_task(1))
    frozen._writer._send([pa.record_batch({"value": ["same"]})])  # type: ignore[attr-defined]
    process.attempt.abort()
    in_any_place.write(["same", "other"], attempts=2)
    assert in_any_place.values() == ["other", "same"]
    with pytest.raises(SendFailed):
        frozen.pre_commit()
    assert in_any_place.prepared() == []


def test_no_limit_of_the_servers_ends_a_transaction_of_mariadb_that_pauses(
    mariadb_place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has three, of which the more exact one holds; of tasks, and of the driver's session."""
    limits = ("transaction", "write_transaction", "readonly_transaction")
    names = [f"@@idle_{limit}_timeout" for limit in limits]
    mariadb_place.sql("CREATE TABLE {s}.t (value varchar(20))")
    sessions: list[Any] = []
    asked = f"SELECT {', '.join(names)}"
    straight = mysql_prepared.load_straight

    def load(session: Any, *rest: Any) -> Any:
        sessions.append(session.execute(asked).fetchone())
        return straight(session, *rest)

    monkeypatch.setattr(mysql_prepared, "load_straight", load)
    for name in names:
        mariadb_place.sql(f"SET GLOBAL {name[2:]} = 1")
    try:
        Prepared(mariadb_place).write(["x"])
        driver = MySQL(mariadb_place.url).connect("onceward-idle", 7_000, 60_000)
        of_driver = driver.execute(asked).fetchone()
        driver.close()
    finally:
        for name in names:
            mariadb_place.sql(f"SET GLOBAL {name[2:]} = 0")
    assert set(sessions) == {(IDLE_SECONDS,) * 3}
    assert of_driver == (7, 7, 7)


@pytest.mark.fault("prepared-waiting")
def test_of_tasks_that_wait_for_each_other_one_gives_up(
    in_any_place: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One key in two tasks: the second waits for the first, which is prepared and waits for the
    decision.
    """
    in_any_place.place.sql("CREATE TABLE {s}.t (value varchar(20) PRIMARY KEY)")
    monkeypatch.setattr(prepared, "_SETTINGS", ("SET LOCAL lock_timeout = '300ms'",))
    session = mysql_prepared._SESSION.replace(
        "innodb_lock_wait_timeout = 60", "innodb_lock_wait_timeout = 1"
    )
    monkeypatch.setattr(mysql_prepared, "_SESSION", session)
    with pytest.raises((SendFailed, RowRefused)):
        in_any_place.write(["same", "same"])
    assert in_any_place.prepared() == []
    in_any_place.write(["same", "other"])
    assert in_any_place.values() == ["other", "same"]


def test_a_table_that_changes_after_the_look_is_looked_at_again(
    in_any_place: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same width: a copy would store other numbers, without a word."""
    in_any_place.place.sql("CREATE TABLE {s}.t (value bigint)")
    landing, changed = PreparedTransactions.landing, []

    def and_then_it_changes(self: PreparedTransactions, *said: Any) -> Any:
        found = landing(self, *said)
        if not changed:
            changed.append(True)
            modify = (
                "MODIFY value"
                if in_any_place.place.server.url[:2] in ("my", "ma")
                else "ALTER value TYPE"
            )
            in_any_place.place.sql(f"ALTER TABLE {{s}}.t {modify} double precision")
        return found

    monkeypatch.setattr(PreparedTransactions, "landing", and_then_it_changes)
    rows = pa.table({"value": pa.array([5, 6], pa.int64())})
    with pytest.raises(SendFailed, match="was changed"):
        in_any_place.write(rows)
    with pytest.raises(InvalidColumn, match="'value' does not fit"):
        in_any_place.write(rows)
    assert in_any_place.prepared() == []
    assert in_any_place.values() == []


@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE {s}.t",
        "DROP TABLE {s}.t",
        "RENAME TABLE {s}.t TO {s}.before",
        "ALTER TABLE {s}.t ADD COLUMN note int",
    ],
    ids=lambda change: change.split()[0],
)
def test_nobody_changes_a_table_while_its_rows_are_prepared(
    in_my_place: Prepared, change: str
) -> None:
    """Also when the sessions that prepared them are gone."""
    place = in_my_place.place
    place.sql(TABLE)
    Process(in_my_place).open().decide(["b", "c"])
    with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
        sql_at(place.server.url, change.replace("{s}", place.schema), lock_seconds=2)
    Process(in_my_place).open()
    assert in_my_place.values() == ["b", "c"]


def test_a_server_that_lets_tables_go_from_under_prepared_rows_is_refused(
    mysql_place: Place,
) -> None:
    """MySQL 8.0.12 lets anybody drop them, and says of XA COMMIT that it has committed."""
    mysql_place.sql(TABLE)
    with pytest.raises(ConfigurationError, match=r"8\.0\.12.*8\.0\.30 or later"):
        Prepared(mysql_place).write(["a"])
    assert mysql_place.sql("SELECT * FROM {s}.t") == []


# beside others


@pytest.mark.parametrize("died", ["before the second has published", "before anything is noted"])
def test_two_in_a_fan_out_leave_each_others_alone(
    in_place: Prepared, tmp_path: Path, died: str
) -> None:
    """They prepare in one attempt of one pipeline, and each lists what the other has prepared."""
    in_place.place.sql(TABLE)
    in_place.place.sql("CREATE TABLE {s}.u (value varchar(20))")
    other = Prepared(in_place.place, "u")
    ledger = ow.FolderLedger(tmp_path / "ledger")

    def target() -> Any:
        return ow.FanOut(
            {"t": in_place.sink(ledger=ledger), "u": other.sink(ledger=ledger)}
        ).new_target()

    def write(number: int, target: Any, *values: str) -> None:
        writes = [Write(in_place.frame(list(values)), name) for name in ("@t", "@u")]
        MicroBatches(target, SinkPolicy(in_place.pipeline)).process(writes, batch(number))
        target.close()

    write(0, target(), "a", "b")
    dying = target()
    publisher = dying._branches["@u"].target
    finish = publisher.finish

    def dies(record: Any) -> Any:
        if died == "before anything is noted":
            finish(record)
        raise Died

    publisher.finish = dies
    with pytest.raises(Died):
        write(1, dying, "c", "d")
    assert in_place.values() == ["a", "b", "c", "d"]
    write(2, target(), "e")
    for each in (in_place, other):
        assert each.values() == ["a", "b", "c", "d", "e"]
    assert in_place.prepared() == []


def test_a_frame_goes_to_the_sinks_own_table(
    in_place: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_module, "must_be_a_frame", lambda frame: None)
    sink, frame = in_place.sink(), in_place.frame(["a"])
    assert sink._checked(frame, None) == sink._checked(frame, sink.settings.table)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedQuery, match="writes to its own table"):
        sink._checked(frame, "other")  # type: ignore[arg-type]


# PostgreSQL


@pytest.mark.parametrize("straight", [True, False], ids=["straight", "cast by the server"])
def test_every_type_comes_back_as_it_was(in_place: Prepared, straight: bool) -> None:
    place = in_place.place
    place.sql("CREATE TYPE {s}.mood AS ENUM ('glad', 'sad')")
    place.sql("CREATE DOMAIN {s}.money_amount AS numeric(12,2) CHECK (value > 0)")
    same = (
        "large_numeric",
        "wide_price",
        "count_price",
        "day_time",
        "document",
        "text_document",
        "id",
        "address",
        "at",
        "mood",
    )
    told = [one for one in (*TYPES, *LISTS) if not straight or one[0] not in same]
    place.sql(
        f"CREATE TABLE {{s}}.t (number int DEFAULT 7, "
        f"{', '.join(f'{one[0]} {one[2]}' for one in told[::-1])})"
    )
    target = in_place.new_target()
    landing = _landing(
        target, rows := pa.table({name: pa.array(values, kind) for name, kind, _, values in told})
    )
    assert (landing.straight is not None) is straight
    in_place.write(rows)
    columns = ", ".join(one[0] for one in told)
    found = place.sql(f"SELECT {columns} FROM {{s}}.t")  # noqa: S608
    wanted = list(
        zip(
            *([expected(kind, value) for value in values] for _, _, kind, values in told),
            strict=True,
        )
    )
    assert [row for row in found if row not in wanted] == []
    assert [row for row in wanted if row not in found] == []
    assert len(found) == len(wanted)
    names = place.sql(
        "SELECT relname FROM pg_class WHERE relname LIKE 'onceward\\_rows\\_%%' AND true = %s",
        True,
    )
    assert names == []


def _landing(target: PreparedTarget, rows: pa.Table) -> Any:
    target.transactions.make_markers()
    return target.transactions.landing(ArrowFrame(rows).schema, "m")


def test_spaces_beyond_the_column_are_not_cut(in_place: Prepared) -> None:
    in_place.place.sql("CREATE TABLE {s}.t (value varchar(3))")
    with pytest.raises(RowRefused, match="'value' has 4 characters"):
        in_place.write(["abc", "abc "])
    in_place.write(["abc", "ab "])
    assert in_place.values() == ["ab ", "abc"]


def test_a_table_with_rules_is_refused_by_name(in_place: Prepared) -> None:
    in_place.place.sql(TABLE)
    in_place.place.sql("CREATE TABLE {s}.log (value text)")
    in_place.place.sql(
        "CREATE RULE log AS ON INSERT TO {s}.t DO ALSO INSERT INTO {s}.log VALUES (NEW.value)"
    )
    with pytest.raises(ConfigurationError, match="has rules"):
        in_place.write(["a"])
    in_place.place.sql("DROP RULE log ON {s}.t")
    in_place.write(["a"])
    assert in_place.values() == ["a"]


def test_a_trigger_that_leaves_rows_out_is_not_believed(in_place: Prepared) -> None:
    place = in_place.place
    place.sql(TABLE)
    place.sql(
        "CREATE FUNCTION {s}.skip() RETURNS trigger AS 'BEGIN RETURN NULL; END' LANGUAGE plpgsql"
    )
    place.sql(
        "CREATE TRIGGER skip BEFORE INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.skip()"
    )
    with pytest.raises(RowRefused, match="the server took 0"):
        in_place.write(["a", "b"])
    assert in_place.prepared() == []


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Place]]:
    servers: list[LocalPostgres] = []

    def start(most: str) -> Place:
        servers.append(LocalPostgres({"max_prepared_transactions": most}).__enter__())
        return Place(servers[-1])

    yield start
    for server in servers:
        server.__exit__(None, None, None)


@pytest.mark.fault("prepared-none-kept")
def test_a_server_that_keeps_none_is_refused_before_anybody_is_fenced(
    place: Place, own_server: Callable[[str], Place]
) -> None:
    found = Prepared(own_server("0"))
    found.place.sql(TABLE)
    with pytest.raises(
        ConfigurationError, match=r"max_prepared_transactions = 0.*ALTER SYSTEM SET"
    ):
        found.write(["a"])
    assert (
        found.place.sql(
            "SELECT relname FROM pg_class WHERE relname LIKE '%%ledger%%' AND true = %s", True
        )
        == []
    )


def test_a_crash_of_the_server_takes_nothing_and_its_room_is_named(
    place: Place, own_server: Callable[[str], Place]
) -> None:
    found = Prepared(own_server("2"))
    found.place.sql(TABLE)
    target = found.new_target()
    batches = MicroBatches(target, SinkPolicy(found.pipeline, batch_attempts=1))
    with pytest.raises(
        SendFailed, match=r"maximum number of prepared transactions .*max_prepared_transactions"
    ):
        batches.process([Write(found.frame(["a", "b", "c"], tasks=3), None)], batch(0))
    assert found.prepared() == []
    target.close()
    process = Process(found).open()
    process.decide(["a", "b"])
    found.place.server.kill()
    found.place.server.start()
    forget_all(staging.sessions)
    Process(found).open()
    assert found.values() == ["a", "b"]
    for one in found.targets:
        one.close()


# MySQL and MariaDB


def test_texts_of_every_kind_come_back_as_they_were(in_my_place: Prepared) -> None:
    in_my_place.place.sql(
        "CREATE TABLE {s}.t (number int NOT NULL AUTO_INCREMENT PRIMARY KEY, value varchar(20) "
        "CHARACTER SET utf8mb4, "
        "raw varbinary(4), document json, mood enum('glad','1') CHARACTER SET utf8mb4, day "
        "datetime)"
    )
    rows = pa.table(
        {
            "value": ["Übermaß 😀 \\N \t\n", None],
            "raw": pa.array([b"\0\xff\n", None], pa.binary()),
            "document": ['{"ü": 1}', None],
            "mood": ["1", None],
        }
    )
    in_my_place.write(rows)
    found = in_my_place.place.sql("SELECT value, raw, document, mood FROM {s}.t ORDER BY raw")
    assert found[0] == (None, None, None, None)
    assert found[1][:2] == ("Übermaß 😀 \\N \t\n", b"\0\xff\n")
    assert found[1][2].replace(" ", "") == '{"ü":1}'
    assert found[1][3] == "1"


@pytest.mark.parametrize(
    ("column", "value", "named"),
    [
        ("varchar(3) CHARACTER SET utf8mb4", "abc ", "'value' has 4 characters"),
        ("tinytext CHARACTER SET utf8mb4", "ü" * 128, "'value' has 256 bytes"),
        ("varchar(20) CHARACTER SET latin1", "a😀", "writing to table"),
        ("tinytext CHARACTER SET latin1", "ü" * 256, "writing to table"),
        ("tinytext CHARACTER SET utf16", "a" * 128, "writing to table"),
        ("enum('one','two') CHARACTER SET utf8mb4", "1", "none of its labels"),
        ("varchar(3) CHARACTER SET utf8mb4 NOT NULL", None, "value"),
        ("varchar(3) CHARACTER SET utf8mb4 CHECK (value > 'b')", "a", "writing to table"),
    ],
)
def test_what_a_load_would_change_is_refused(
    in_my_place: Prepared, column: str, value: str | None, named: str
) -> None:
    if "CHECK" in column and in_my_place.place.server.url.startswith("mysql"):
        pytest.skip("8.0.12 has no checks")
    in_my_place.place.sql(f"CREATE TABLE {{s}}.t (value {column})")
    with pytest.raises(RowRefused, match=named):
        in_my_place.write([value])
    assert in_my_place.prepared() == []
    assert in_my_place.values() == []


def test_texts_in_another_character_set_are_the_same_texts(in_my_place: Prepared) -> None:
    in_my_place.place.sql("CREATE TABLE {s}.t (value tinytext CHARACTER SET latin1)")
    in_my_place.write(["ü" * 255, "\\N\t"])
    assert in_my_place.values() == ["\\N\t", "ü" * 255]


@pytest.mark.parametrize("charset", ["latin1", "utf16", "utf8mb3", "utf8mb4"])
def test_labels_in_any_character_set_are_the_same_labels(
    in_my_place: Prepared, charset: str
) -> None:
    labels = "'ä','it''s','1'"
    in_my_place.place.sql(f"CREATE TABLE {{s}}.t (value enum({labels}) CHARACTER SET {charset})")
    in_my_place.write(["ä", "1", None, "it's"])
    found = in_my_place.place.sql("SELECT value FROM {s}.t ORDER BY value + 0")
    assert found == [(None,), ("ä",), ("it's",), ("1",)]


def test_a_login_that_may_not_list_is_refused_before_anybody_is_fenced(
    newer_mysql_place: Place,
) -> None:
    newer_mysql_place.sql(TABLE)
    login = newer_mysql_place.schema[-10:]
    newer_mysql_place.sql(f"CREATE USER '{login}'@'%' IDENTIFIED BY 'pw'")
    newer_mysql_place.sql(f"GRANT ALL ON {{s}}.* TO '{login}'@'%'")
    url = f"mysql://{login}:pw@127.0.0.1:{newer_mysql_place.server.port}/{newer_mysql_place.schema}?ssl_disabled=true"
    sink = ow.DatabaseSink(url=url, table="t", pipeline_id=newer_mysql_place.pipeline, xa=True)
    target = PreparedTarget(sink.settings)
    with pytest.raises(AccessDenied, match="XA_RECOVER_ADMIN"):
        target.open(batch(0))
    with pytest.raises(OncewardError):
        target.chain.newest()
    newer_mysql_place.sql(f"GRANT XA_RECOVER_ADMIN ON *.* TO '{login}'@'%'")
    MicroBatches(target, SinkPolicy(newer_mysql_place.pipeline)).process(
        [Write(ArrowFrame(pa.table({"value": ["a"]})))], batch(0)
    )
    target.close()
    assert newer_mysql_place.sql("SELECT value FROM {s}.t") == [("a",)]
