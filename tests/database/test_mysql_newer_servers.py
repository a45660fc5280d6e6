"""``ow.mysql_changes`` on newer MySQLs than the tests share: 8.0.33, and the newest that Debian
has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from changes_place import ChangesPlace

from onceward.errors import ServerMisconfigured
from onceward.mysql.snapshot import state as snapshot_state
from onceward_testing import LocalMySQL
from support import newest_mysql
from support.mysql_client import sql_at

pytestmark = pytest.mark.slow


@pytest.fixture(params=["8.0.33", "newest"])
def place(request: pytest.FixtureRequest) -> Iterator[ChangesPlace]:
    """Its transactions are compressed."""
    chosen: dict[str, Any] = {"version": request.param}
    if request.param == "newest":
        chosen = {
            "home": newest_mysql.home() or pytest.skip("no MySQL of Debian's for this machine")
        }
    settings = {"binlog-transaction-compression": "ON", "max-allowed-packet": "128M"}
    with LocalMySQL(settings=settings, binlog=True, **chosen) as server:
        yield ChangesPlace(server)


def test_a_snapshot_and_changes_come_to_what_the_table_has(place: ChangesPlace):
    """Single rows, many, keys that change, one event of more than 16 MB, and a GTID with a tag
    where there are some.
    """
    place.sql(
        "CREATE TABLE {s}.big (id int PRIMARY KEY, v longtext)",
        "INSERT INTO {s}.t VALUES (1, 'a'), (2, NULL)",
    )
    place.begin(starting="initial", tables=f"{place.schema}.*")
    state = applied({}, place.batch())
    tagged = sql_at(place.url, "SELECT VERSION() >= '8.3' AND VERSION() NOT LIKE '8.0%'") == [(1,)]
    name = "AUTOMATIC:mine" if tagged else "AUTOMATIC"
    numbers = ", ".join(f"({number}, '{'x' * (number % 40)}')" for number in range(10, 3000))
    place.sql(
        f"INSERT INTO {{s}}.t VALUES {numbers}",  # noqa: S608
        "UPDATE {s}.t SET v = CONCAT(id, '!') WHERE id % 3 = 0",
        "UPDATE {s}.t SET id = -id WHERE id % 100 = 7",
        "DELETE FROM {s}.t WHERE id % 5 = 0",
        "INSERT INTO {s}.big VALUES (1, REPEAT('0123456789abcdef', 1200000)), (2, 'small')",
        "UPDATE {s}.big SET v = CONCAT(v, 'z')",
    )
    with_tag(place, name)
    while rows := place.batch():
        state = applied(state, rows)
    for table in ("t", "big"):
        wanted = {row[0]: row[1] for row in place.sql(f"SELECT id, v FROM {{s}}.{table}")}  # noqa: S608
        assert {key: row["v"] for (of, key), row in state.items() if of == table} == wanted


def test_a_document_is_the_same_whichever_way_it_comes(place: ChangesPlace):
    """Its bytes, too, which the server says in lines."""
    place.sql("CREATE TABLE {s}.j (id int PRIMARY KEY, v json)")
    place.begin(starting="latest", tables=f"{place.schema}.j")
    for number, value in enumerate(
        (
            "JSON_ARRAY(REPEAT(x'ff', 200), 'a\\nb', REPEAT(x'00', 57))",
            "JSON_OBJECT('b', REPEAT(x'01', 115), 'c', CAST(REPEAT('d', 58) AS BINARY))",
            "CAST(REPEAT(x'7f', 58) AS JSON)",
        )
    ):
        place.sql(f"INSERT INTO {{s}}.j VALUES ({number}, {value})")  # noqa: S608
    streamed = {row["key"]: row["after"] for row in place.all()}
    snapshot = place.begin(starting="initial").all()
    assert {row["key"]: row["after"] for row in snapshot} == streamed
    assert len(streamed) == 3


@pytest.mark.parametrize("kind", ["date", "datetime", "timestamp"])
def test_keys_that_no_calendar_has_are_snapshot_in_chunks(
    place: ChangesPlace, kind: str, monkeypatch: pytest.MonkeyPatch
):
    """From 8.0.16 on a strict server takes no such literal, not even to compare."""
    monkeypatch.setattr(snapshot_state, "MOST", 1)
    dates = ["0000-00-00", "2024-01-31"] + ["2024-00-00"] * (kind != "timestamp")
    keys = [(each, number) for each in dates for number in range(5)]
    values = ", ".join(f"('{at}', {n}, 1)" for at, n in keys)
    place.sql(
        "SET GLOBAL sql_mode = ''",
        f"CREATE TABLE {{s}}.z (at {kind} NOT NULL, n int, v int, PRIMARY KEY (at, n))",
        f"INSERT INTO {{s}}.z VALUES {values}",  # noqa: S608
    )
    rows = place.begin(starting="initial", tables=f"{place.schema}.z").batch()
    assert len(rows) < len(keys)
    place.sql("UPDATE {s}.z SET v = 2")
    table = applied({}, rows + place.all())
    assert sorted((row["at"][:10], row["n"], row["v"]) for row in table.values()) == sorted(
        (at, number, 2) for at, number in keys
    )


def test_a_key_of_the_servers_own_may_be_hidden(place: ChangesPlace):
    names = (
        "sql_generate_invisible_primary_key",
        "show_gipk_in_create_table_and_information_schema",
    )
    root = place.url
    sql_at(root, f"SET GLOBAL {names[0]} = ON, GLOBAL {names[1]} = OFF")
    try:
        place.sql("CREATE TABLE {s}.k (a int)", "INSERT INTO {s}.k VALUES (7)")
        rows = place.begin(starting="initial", tables=f"{place.schema}.k").all()
    finally:
        sql_at(root, f"SET GLOBAL {names[0]} = OFF, GLOBAL {names[1]} = ON")
    assert [row["key"] for row in rows] == ['{"my_row_id":1}']


def test_a_database_that_is_revoked_from_a_right_to_all_is_named():
    """MySQL's partial revokes: such a database is in no list."""
    with LocalMySQL(version="8.0.33", settings={"partial_revokes": "ON"}, binlog=True) as server:
        place = ChangesPlace(server, starting="initial", tables="shop_*.orders")
        for database in ("shop_a", "shop_b"):
            place.sql(
                f"CREATE DATABASE {database}",
                f"CREATE TABLE {database}.orders (id int PRIMARY KEY)",
                f"INSERT INTO {database}.orders VALUES (1)",  # noqa: S608
            )
        place.sql(
            "CREATE USER cdc IDENTIFIED WITH mysql_native_password BY 'pw'",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO cdc",
            "CREATE ROLE reader",
            "GRANT SELECT ON *.* TO reader",
            "REVOKE SELECT ON shop_b.* FROM reader",
            "GRANT reader TO cdc",
        )
        root, place.url = place.url, f"mysql://cdc:pw@127.0.0.1:{server.port}?ssl_disabled=true"

        def refusal_that_is_mended(name: str) -> None:
            with pytest.raises(ServerMisconfigured) as unfit:
                place.begin()
            assert unfit.value.details["unfit"][0] == f"SELECT on {name}"
            offered = re.split(r", or | and ", unfit.value.next_step)
            for fix in (one for one in offered if one.startswith("GRANT SELECT ON ")):
                sql_at(root, fix.replace("the login", "cdc"))

        # No grant has wildcards there
        sql_at(root, "GRANT SELECT ON `shop\\_%`.* TO cdc")
        refusal_that_is_mended("shop_*.orders")
        sql_at(root, "REVOKE SELECT ON shop_b.* FROM cdc")
        refusal_that_is_mended("shop_b.orders")
        sql_at(root, "REVOKE SELECT ON *.* FROM cdc")
        sql_at(root, "SET DEFAULT ROLE reader TO cdc")
        refusal_that_is_mended("shop_b.orders")
        rows = [(one["op"], one["db"]) for one in place.begin().all()]
        assert rows == [("r", "shop_a"), ("r", "shop_b")]


def with_tag(place: ChangesPlace, name: str) -> None:
    """One transaction more, under a GTID of that kind."""
    url = urlsplit(place.url)
    connection = pymysql.connect(
        host=url.hostname, port=url.port or 0, user=url.username, password=url.password or "",
        autocommit=True,
        ssl_disabled=True,
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute(f"SET SESSION gtid_next = '{name}'")
        cursor.execute(f"INSERT INTO {place.schema}.t VALUES (5000, 'tagged')")  # noqa: S608


def applied(state: dict[Any, Any], rows: list[dict[str, Any]]) -> dict[Any, Any]:
    """As a target would have it; each change has to fit to what is there."""
    now = dict(state)
    for row in sorted(rows, key=lambda row: str(row["position"])):
        key = (row["table"], json.loads(row["key"]).get("id", row["key"]))
        before = None if row["before"] is None else json.loads(row["before"])
        assert now.get(key) == before, row["op"]
        after = None if row["after"] is None else json.loads(row["after"])
        now.pop(key, None)
        if after is not None:
            now[key] = after
    return now
