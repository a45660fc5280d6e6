"""Whoever does what an error of databases and of MySQL's changes says is done: each row has what
was wrong, the words of the next step, and what is done with them. None of them touches a server.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql import types as t

import onceward as ow
from onceward.errors import OncewardError
from onceward.mysql.binlog.event import (
    SET_FULL_METADATA,
    BinlogEvent,
    Skippable,
    add_event,
    damaged_event,
    unreadable_change,
    unreadable_event,
)
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.sql_effects import _unsupported_versioning
from onceward.mysql.snapshot import catalogue
from onceward.mysql.source import requirements
from onceward.mysql.source.grants import grant_target
from onceward.mysql.source.requirements import Requirement
from onceward.mysql.source.settings import ChangesSettings, Position, make_settings
from onceward.sql.mysql import catalogue as mysql_types
from onceward.sql.mysql import refusals as mysql_refusals
from onceward.sql.postgresql import catalogue as postgresql_types
from onceward.sql.postgresql import refusals as postgresql_refusals
from onceward.sql.sink import columns
from onceward.sql.sink.columns import Column, Table, Written
from support.next_steps import Row, Wrong, advice, case_name


def words(offered: str) -> list[str]:
    return re.split(r", (?:or )?| or ", offered)


SETTINGS: dict[str, Any] = {
    "url": "mysql://u:p@h:3306", "tables": "shop.*", "starting": "initial", "pass_over": (),
    "max_bytes_per_batch": 64 << 20, "heartbeat_seconds": 60.0, "values": "text",
}  # fmt: skip


def changes(**settings: Any) -> ChangesSettings:
    return make_settings(**{**SETTINGS, **settings})


def wrong(**settings: Any) -> Wrong:
    return functools.partial(changes, **settings)


def starts(place: str) -> None:
    """Start at each place that is offered, as it is written."""
    for word in re.findall(r'"(\w+)",', place.partition("{")[0]):
        assert changes(starting=word).starting == word
    assert {*re.findall(r'\{"(\w+)":', place)} == {"timestamp", "gtid", "file"}
    changes(starting={"timestamp": A_TIME})
    changes(starting={"gtid": "0-1-27"})
    ((name, position),) = re.findall(r'\{"file": "(.+?)", "position": (\d+)\}', place)
    changes(starting={"file": name, "position": int(position)})


def with_options(address: str, names: str, *, database: bool) -> object:
    """Pass the address that is offered, with each of the options that may be behind it."""
    given = {
        "ssl_ca": "/ca.pem",
        "ssl_cert": "/c.pem",
        "ssl_key": "/k.pem",
        "connect_timeout": "5",
    }
    for name in names.split(", "):
        url = f"{address.replace('port', '3306')}?{name}={given.get(name, 'true')}"
        if name == "ssl_key":
            url += "&ssl_cert=/c.pem"
        ow.DatabaseLedger(url) if database else changes(url=url)
    return names


UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
A_POSITION = Position("mysql", "a", 0, "binlog.000007", 4, None, None)
A_TIME = datetime(2030, 1, 31, tzinfo=timezone.utc)


def names_as_errors_do(event: str, row: str, cascade: str) -> None:
    settings = changes(pass_over=[event, row, "0-1-27", f"{UUID}:1-7", cascade])
    assert settings.skippable == Skippable(frozenset([event, row]))
    assert settings.skippable_gtids == ("0-1-27", f"{UUID}:1-7")
    assert settings.allows_cascade(*cascade.removeprefix("cascade:").split("."))


def sets_of_transactions(mysql: str, mariadb: str) -> None:
    read = Gtids.parse("mysql", mysql.replace("source", UUID))
    assert read.covers(Gtids.parse("mysql", f"{UUID}:7"))
    assert Gtids.parse("mariadb", mariadb).covers(Gtids.parse("mariadb", "0-1-27"))


SOURCES: list[Row] = [
    (
        wrong(url="mysql://h?charset=utf8"),
        r"pass (mysql://\S+); in a password write % as (%25), .+ behind \? there may be (.+)",
        lambda address, percent, names: (
            with_options(address, names, database=False),
            changes(url=f"mysql://u:p{percent}w@h"),
        ),
    ),
    (
        wrong(tables="orders"),
        r'name each as "(\S+)"; \* stands for any text: "(\S+)"',
        lambda one, several: changes(tables=[one, several]),
    ),
    (wrong(tables=[]), r'name one at least: "(\S+)"', lambda one: changes(tables=one)),
    (wrong(tables="mysql.user"), r".+; name tables of yours", lambda: changes(tables="shop.a")),
    (wrong(starting="newest"), r"use (.+)", starts),
    (
        wrong(starting={"timestamp": "now"}),
        "use a datetime with a time zone, or milliseconds since 1970",
        lambda: [changes(starting={"timestamp": each}) for each in (A_TIME, 1_900_000_000_000)],
    ),
    (
        wrong(starting={"timestamp": datetime(2030, 1, 31)}),
        r"use datetime\(…, tzinfo=timezone\.utc\), for example",
        lambda: changes(starting={"timestamp": A_TIME}),
    ),
    (
        wrong(starting={"file": "binlog", "position": 4}),
        "use what SHOW BINARY LOGS says",
        lambda: changes(starting={"file": "binlog.000003", "position": 4}),
    ),
    (
        wrong(max_bytes_per_batch=0),
        r"use a whole number of bytes, for example (\d+) << (\d+)",
        lambda one, by: changes(max_bytes_per_batch=int(one) << int(by)),
    ),
    (
        wrong(heartbeat_seconds=0),
        "use seconds, more than 0 and at most a day",
        lambda: [changes(heartbeat_seconds=each) for each in (0.1, 86_400)],
    ),
    (
        wrong(values="json"),
        r"use one of (.+)",
        lambda offered: [changes(values=each) for each in words(offered)],
    ),
    (
        wrong(pass_over="events"),
        r'name single events and rows as .+, "(\S+)" or "(\S+)"; transactions by their GTIDs; or '
        r'"(\S+)"',
        names_as_errors_do,
    ),
    (
        wrong(tables="shop.items", pass_over="cascade:shop.item"),
        "name one table, without a pattern, that tables= has",
        lambda: changes(tables="shop.items", pass_over="cascade:shop.items"),
    ),
    (
        wrong(tables="shop.*", pass_over="cascade:shop.*"),
        "name one table, without a pattern, that tables= has",
        lambda: changes(tables="shop.*", pass_over="cascade:shop.items"),
    ),
    (
        lambda: Gtids.parse("mysql", "all"),
        r"write it as the server does: .+ \((.+)\), MariaDB's .+ \((.+)\)",
        sets_of_transactions,
    ),
    (
        lambda: Position.from_json({"kafka": 1}),
        "start this query with a checkpoint of its own, .+",
        lambda: Position.from_json(A_POSITION.to_json()),
    ),
]


EVENT = BinlogEvent(b"", 0, 0, 2, 0, 0, 1, "binlog.000003", 1234)
ROWS = ("binlog.000003:1234/5", "binlog.000003:1234/6")


@pytest.mark.parametrize(
    ("error", "is_left_out"),
    [
        (
            unreadable_event(EVENT, "statement", "a statement", "compare the tables"),
            lambda skippable: skippable.has_event(EVENT),
        ),
        (
            add_event(unreadable_change("name", "no names", SET_FULL_METADATA), EVENT, None),
            lambda skippable: skippable.has_event(EVENT),
        ),
        (
            add_event(unreadable_change("text", "no text", "…"), EVENT, "0-1-2", rows=ROWS),
            lambda skippable: all(skippable.has_row(EVENT, row) for row in (5, 6)),
        ),
    ],
    ids=["event", "described", "rows"],
)
def test_what_cannot_be_read_is_left_out_as_it_is_offered(
    error: OncewardError, is_left_out: Callable[[Skippable], bool]
):
    (offered,) = re.findall(r"pass_over=\[(.+)\]", error.next_step)
    assert is_left_out(changes(pass_over=re.findall(r'"(.+?)"', offered)).skippable)


def test_damage_offers_no_way_to_leave_rows_out():
    step = damaged_event(EVENT, "nonsense").next_step
    assert "mysqlbinlog --verify-binlog-checksum" in step
    assert "pass_over" not in step


class FakeServer:
    """A server that has variables, and does what ``SET`` says."""

    where = "h:3306"

    def __init__(self, dialect: str, **variables: str) -> None:
        self.dialect = dialect
        self.settings = {
            "binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL",
            "binlog_row_value_options": "", "gtid_mode": "ON", **variables,
        }  # fmt: skip

    def unmet(self) -> list[Requirement]:
        server: Any = self
        found = requirements._check_variables(server, self.settings)
        return [one for one in found if not one.is_met]

    def obeys(self, statement: str) -> None:
        found = re.match(r"SET (PERSIST|GLOBAL) (\w+) = '(\w*)', ", statement)
        assert found, statement
        assert found[1] == ("PERSIST" if self.dialect == "mysql" else "GLOBAL")
        self.settings[found[2]] = found[3]


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("binlog_format", "MIXED"), ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"), ("binlog_row_value_options", "PARTIAL_JSON"),
    ],
)  # fmt: skip
def test_a_variable_of_the_server_as_the_statement_sets_it(dialect: str, name: str, value: str):
    server = FakeServer(dialect, **{name: value})
    (unmet,) = server.unmet()
    server.obeys(unmet.fix)
    assert server.unmet() == []


def test_a_grant_names_the_tables_of_the_pattern():
    assert grant_target("sh_p", "orders") == "`sh_p`.`orders`"
    assert grant_target("sh_p", "*") == r"`sh\_p`.*"
    assert grant_target("sh_p*", "orders") == r"`sh\_p%`.*"
    assert grant_target("sh_p", "*", is_literal=True) == "`sh_p`.*"
    assert grant_target("sh_p*", "orders", is_literal=True) == "*.*"


def described(data_type: str) -> object:
    return catalogue._describe_column(
        "mysql", "shop.a", "x", data_type, data_type, "YES", None, None, None, None
    )


def test_a_column_of_another_type_can_be_in_a_snapshot():
    step = advice(lambda: described("wonder"))
    assert step == "leave the table out of tables, or change the column's type"
    assert described("bigint") is not None
    assert not changes(tables=["shop.b"]).selects("shop", "a")


def test_statements_name_tables_whatever_they_are_called():
    def asked(_: str) -> list[tuple[str, str, int]]:
        return [("BASE TABLE", "MyISAM", 0)]

    step = advice(lambda: catalogue._describe_row_bytes(asked, "", "shop-eu", "a`b"))
    assert "ALTER TABLE `shop-eu`.`a``b` ENGINE = InnoDB" in step
    versions = _unsupported_versioning(("shop-eu", "a`b"))
    assert "ALTER TABLE `shop-eu`.`a``b` DROP SYSTEM VERSIONING" in versions.next_step


def addresses(offered: Iterable[str], table: str = "onceward_ledger") -> None:
    for url in offered:
        ow.DatabaseLedger(url.replace("port", "1234").rstrip("…") or url, table)


def fit(kinds: Any, theirs: Table, staged: Mapping[str, str], *key: str) -> tuple[Written, ...]:
    return columns.fit(staged, theirs, (), (), key, kinds.fitting)


def table(*given: Column, unique: str = "", **more: Any) -> Table:
    quote = "`"
    return Table(
        "t", "`s`.`t`", given, (frozenset(unique.split()),) if unique else (), quote=quote, **more
    )


ID = Column("id", "bigint", not_null=True)
X = Column("x", "varchar(3)")
FRAME = {"id": "bigint"}
fits = functools.partial(fit, mysql_types)


def frame(*fields: tuple[str, t.DataType]) -> t.StructType:
    return t.StructType([t.StructField(*field) for field in fields])


def staged(kinds: Any, *fields: tuple[str, t.DataType]) -> dict[str, str]:
    return columns.staged_columns(frame(*fields), kinds.staged)


A_MAP = t.MapType(t.StringType(), t.LongType())
OFFERED = r"make a string of it with to_json\(…\), for a column of type (\w+)(?:, or .+)?; or .+"


def as_text_of(kinds: Any, offered: str) -> None:
    (text,) = staged(kinds, ("x", t.StringType())).values()
    fit(kinds, table(Column("x", offered)), {"x": text})


def renamed(offered: str) -> None:
    fits(table(ID), {offered: "bigint"})


SCHEMES = ("postgresql:", "mysql:")
DATABASES: list[Row] = [
    (
        lambda: ow.DatabaseLedger("sqlite:///x"),
        r"pass (postgresql\S+), (mysql\S+) or (mariadb://)…; in a password write % as (%25), .+",
        lambda one, two, three, percent: addresses(
            [one, two, f"{three}h/d", *(f"{url}//u:p{percent}@h/d" for url in SCHEMES)]
        ),
    ),
    (
        lambda: ow.DatabaseLedger("postgresql://h/d?no_such_option=1"),
        r"pass (\S+); in a password write % as %25, .+",
        lambda one: addresses([one]),
    ),
    (
        lambda: ow.DatabaseLedger("mysql://h"),
        r"pass (\S+); .+ behind \? there may be (.+)",
        lambda address, names: with_options(address, names, database=True),
    ),
    (
        lambda: ow.DatabaseLedger("mysql://h/d", "A"),
        "use up to 55 lower case letters, digits and '(_)', .+ and a schema and '(.)' before it .+",
        lambda line, dot: addresses(["mysql://h/d"], f"s1{dot}a{line}1"),
    ),
    (
        lambda: staged(mysql_types, ("x", A_MAP)),
        OFFERED,
        functools.partial(as_text_of, mysql_types),
    ),
    (
        lambda: staged(postgresql_types, ("x", A_MAP)),
        OFFERED,
        functools.partial(as_text_of, postgresql_types),
    ),
    (
        lambda: staged(mysql_types, ("x", t.LongType()), ("x", t.LongType())),
        r"rename it \(withColumnRenamed\)",
        lambda: staged(mysql_types, ("x", t.LongType()), ("y", t.LongType())),
    ),
    (
        lambda: fits(table(ID, replace(X, generated=True)), {**FRAME, "x": "longtext"}),
        r"leave it out with drop\('x'\)",
        lambda: fits(table(ID, replace(X, generated=True)), FRAME),
    ),
    (
        lambda: fit(
            postgresql_types, table(ID, replace(X, generated=True)), {**FRAME, "x": "text"}
        ),
        r"leave it out with drop\('x'\)",
        lambda: fit(postgresql_types, table(ID, replace(X, generated=True)), FRAME),
    ),
    (
        lambda: fits(table(Column("id", "int")), FRAME),
        "cast it in the frame to a type that fits, .+; or change the table's",
        lambda: (fits(table(Column("id", "int")), {"id": "int"}), fits(table(ID), FRAME)),
    ),
    (
        lambda: fit(postgresql_types, table(Column("id", "integer")), FRAME),
        "cast it in the frame to a type that fits, .+; or change the table's",
        lambda: [
            fit(postgresql_types, table(Column("id", kind)), {"id": kind})
            for kind in ("integer", "bigint")
        ],
    ),
    (
        lambda: fits(table(ID), FRAME, "day"),
        "add it; the frame has 'id'",
        lambda: fits(table(ID, unique="id"), FRAME, "id"),
    ),
    (
        lambda: fits(table(ID), {**FRAME, "y": "bigint"}),
        r"add it to the table, or leave it out with drop\('y'\)",
        lambda: (
            fits(table(ID, Column("y", "bigint")), {**FRAME, "y": "bigint"}),
            fits(table(ID), FRAME),
        ),
    ),
    (
        lambda: fits(table(Column("Id", "bigint")), FRAME),
        "rename it to '(Id)', as the table spells it",
        lambda name: fits(table(Column("Id", "bigint")), {name: "bigint"}),
    ),
    (
        lambda: fits(table(ID), {}),
        "add the columns that are to be written",
        lambda: fits(table(ID), FRAME),
    ),
    (
        lambda: fits(table(ID, replace(X, required=True)), FRAME),
        "add it to the frame, or give it a default in the table",
        lambda: (
            fits(table(ID, replace(X, required=True)), {**FRAME, "x": "longtext"}),
            fits(table(ID, X), FRAME),
        ),
    ),
    (
        lambda: fits(table(ID), FRAME, "id"),
        r"ALTER TABLE `s`.`t` ADD UNIQUE \(`(\w+)`\); or pass the columns of an index that it has",
        lambda name: fits(table(ID, unique=name), FRAME, "id"),
    ),
    (
        lambda: fits(table(ID, unique="id", has_children=True), FRAME, "id"),
        "use a partitioned table, or one that stands alone; a hypertable of TimescaleDB, from "
        'which its chunks inherit, takes rows with mode="append" alone',
        lambda: fits(table(ID, unique="id"), FRAME, "id"),
    ),
    (
        lambda: fits(table(replace(ID, own_equality=True), unique="id"), FRAME, "id"),
        "use a column of type text or varchar with a deterministic collation as the key, .+",
        lambda: fits(table(ID, unique="id"), FRAME, "id"),
    ),
    (
        lambda: fits(table(replace(ID, not_null=False), unique="id"), FRAME, "id"),
        "declare it NOT NULL, by an ALTER TABLE `s`.`t`",
        lambda: fits(table(ID, unique="id"), FRAME, "id"),
    ),
    (
        lambda: columns.must_show_all(table(ID, hides_rows=True)),
        r"ALTER ROLE … BYPASSRLS for the login .+; or CREATE POLICY … USING \(true\) for it",
        lambda: columns.must_show_all(table(ID, hides_rows=False)),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "does"), [*SOURCES, *DATABASES], ids=case_name)
def test_what_the_next_step_says_ends_well(wrong: Wrong, says: str, does: Callable[..., object]):
    found = re.fullmatch(says, advice(wrong))
    assert found, advice(wrong)
    does(*found.groups())


@pytest.mark.parametrize("kind", ["varchar(9)", "varbinary(9)", "decimal(9,2)", "date", "bigint"])
def test_a_key_of_the_types_that_are_offered(kind: str):
    def column(kind: str) -> Column:
        return mysql_types._column("id", kind, "NO", None, "", None, None)

    step = advice(lambda: fits(table(column("float"), unique="id"), {"id": "float"}, "id"))
    assert kind.partition("(")[0].replace("bigint", "integers") in step
    assert not column(kind).no_key


@pytest.mark.parametrize(
    ("error", "restarts", "words"),
    [
        (mysql_refusals.refusal(1142, "denied", "writing"), False, "grant it to the login"),
        (mysql_refusals.refusal(1205, "Lock wait", "writing"), True, "SHOW PROCESSLIST"),
        (mysql_refusals.refusal(1040, "too many", "writing"), True, "raise max_connections"),
        (mysql_refusals.refusal(1146, "no a.t", "writing"), False, "was dropped or changed"),
        (mysql_refusals.refusal(1406, "too long", "writing"), False, "mend or filter such rows"),
        (mysql_refusals.refusal(2013, "lost", "writing"), True, "see that the database answers"),
        (postgresql_refusals.refusal("42501", "denied", "writing"), False, "grant it to the"),
        (postgresql_refusals.refusal("55P03", "lock", "writing"), True, "pg_stat_activity"),
        (postgresql_refusals.refusal("42P01", "no t", "writing"), False, "was dropped or changed"),
        (
            postgresql_refusals.refusal("22001", "too long", "writing"),
            False,
            "mend or filter such rows",
        ),
        (postgresql_refusals.refusal("53300", "too many", "w"), True, "raise max_connections"),
        (postgresql_refusals.refusal(None, "lost", "w"), True, "see that the database answers"),
        (postgresql_refusals.refusal(None, "lost", "w"), True, "and the password of the sink's"),
    ],
    ids=str,
)
def test_a_step_that_says_that_the_batch_runs_again_is_of_an_error_that_lets_it(
    error: OncewardError, restarts: bool, words: str
):
    assert words in error.next_step
    assert error.recovery.needs_a_change is not restarts
    assert ("the batch runs again" in error.next_step) is restarts
