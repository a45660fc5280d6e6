"""Values of every type, inserted by a client: what is decoded from the binlog is what another
client selects.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest
from database_place import MySQLPlace
from every_type import Form, Typed, tables_of

from onceward.errors import ChangeUnreadable
from onceward.mysql.binlog.blocks import snapshot_changes
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.event import BinlogEvent
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import columns_from_text, select_expression
from onceward_testing import LocalMySQL
from support.binlog_files import events_of_file

SESSION = "SET time_zone = '+00:00', character_set_results = NULL, sql_mode = ''"


class Logged(MySQLPlace):
    """A database whose changes are in a binlog with all that is needed to read them."""

    @property
    def binlog(self) -> Path:
        ((base,),) = self.sql("SELECT @@log_bin_basename")
        ((name, *_),) = self.sql("SHOW MASTER STATUS")
        return Path(base).with_name(name)

    def written(self, *statements: str) -> list[BinlogEvent]:
        """What the server writes for them."""
        self.sql("FLUSH BINARY LOGS")
        file = self.binlog
        with self.connected() as connection, connection.cursor() as cursor:
            cursor.execute("SET NAMES utf8mb4, sql_mode = '', time_zone = '+00:00'")
            for statement in statements:
                cursor.execute(statement.replace("{s}", self.schema))
        self.sql("FLUSH BINARY LOGS")
        return list(events_of_file(file.read_bytes(), self.dialect, file.name))

    @property
    def dialect(self) -> Any:
        assert isinstance(self.server, LocalMySQL)
        return self.server.kind

    def connected(self, **settings: Any) -> Any:
        url = urlsplit(self.server.url)
        return pymysql.connect(
            host=url.hostname, port=url.port or 0, user=url.username, password=url.password or "",
            autocommit=True,
            charset="utf8mb4", ssl_disabled=True, **settings,
        )  # fmt: skip

    def selected(self, map: TableMap) -> list[tuple[bytes | None, ...]]:
        """The bytes that a client gets, untouched."""
        listed = ", ".join(select_expression(column) for column in map.columns)
        with (
            self.connected(use_unicode=False, conv={}) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(SESSION)
            cursor.execute(f"SELECT {listed} FROM {self.schema}.{map.table} ORDER BY id")  # noqa: S608
            return list(cursor.fetchall())

    def shown(self, table: str) -> list[tuple[Any, ...]]:
        """As PyMySQL understands it, with texts for moments, numbers as they are written."""
        with self.connected(conv={}) as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
            cursor.execute(f"SELECT * FROM {self.schema}.{table} ORDER BY id")  # noqa: S608
            return list(cursor.fetchall())


MARIADB = pytest.param("binlog_mariadb", marks=pytest.mark.once_more)


@pytest.fixture(params=["binlog_mysql", MARIADB], ids=["MySQL", "MariaDB"])
def logged(request: pytest.FixtureRequest) -> Iterator[Logged]:
    place = Logged(request.getfixturevalue(request.param))
    yield place
    place.drop()


@dataclass
class Read:
    """A table, as it came out of a binlog and as clients see it."""

    map: TableMap
    changes: list[dict[str, Any]]
    snapshot: list[dict[str, Any]]
    shown: list[tuple[Any, ...]]


def read(place: Logged, typed: Typed, **settings: Any) -> Read:
    events = place.written(typed.definition, *typed.rows)
    decoder = Decoder(place.dialect, lambda database, _: database == place.schema, **settings)
    feed(decoder, events)
    (body,) = {bytes(event.body) for event in events if event.kind == 19}
    map = TableMap.parse(body, place.dialect)
    rows = columns_from_text(map, list(zip(*place.selected(map), strict=True)))
    values = settings.get("values", "text")
    snapshot = snapshot_changes(map, rows, values, ts_ms=0, file="binlog.000001", pos=4)
    found: list[dict[str, Any]] = []
    while decoder.has_changes:
        found += decoder.flush().to_pylist()
    return Read(map, found, snapshot.to_pylist(), place.shown(typed.table))


@pytest.mark.parametrize(
    "number", range(6), ids=["numbers", "moments", "texts", "charsets", "own", "mixed"]
)
def test_a_binlogs_row_is_what_a_client_selects(logged: Logged, number: int) -> None:
    typed = tables_of(logged.dialect)[number]
    found = read(logged, typed)
    assert [change["op"] for change in found.changes] == ["c"] * len(typed.rows)
    for change, row in zip(found.changes, found.shown, strict=True):
        values = json.loads(change["after"], parse_float=Decimal, parse_int=Decimal)
        for (form, kind, _), value, shown in zip(
            typed.types, list(values.values())[1:], row[1:], strict=True
        ):
            assert_same(form, kind, value, shown)
    # A snapshot's row is the same text, byte for byte, and has the same key.
    for way in ("key", "after"):
        assert [row[way] for row in found.snapshot] == [row[way] for row in found.changes]


def feed(decoder: Decoder, events: list[BinlogEvent]) -> None:
    for event in events:
        decoder.feed(event)


def assert_same(form: Form, kind: str, value: Any, shown: Any) -> None:
    """``value`` of a JSON text, and the text or bytes that a client of another make is shown."""
    if shown is None:
        assert value is None, kind
    elif form == "json":
        assert value == json.loads(
            text_of(shown).replace("\n", ""), parse_float=Decimal, parse_int=Decimal
        )
    elif kind == "float":
        assert float(format(float(value), ".6g")) == float(
            text_of(shown)
        )  # it is shown with six digits
    elif form == "number":
        assert value == Decimal(text_of(shown)), kind
    elif form == "bool":
        assert value is (bytes_of(shown) == b"\1")
    elif form == "geometry":
        assert value["srid"].to_integral_value() == int.from_bytes(bytes_of(shown)[:4], "little")
        assert base64.b64decode(value["wkb"]) == bytes_of(shown)[4:]
    elif kind in ("uuid", "inet6", "inet4"):
        assert base64.b64decode(value) == address_bytes(kind, text_of(shown)), kind
    elif form == "base64":
        assert base64.b64decode(value) == bytes_of(shown), kind
    else:
        assert value == text_of(shown), kind


def text_of(shown: Any) -> str:
    return shown.decode() if isinstance(shown, bytes) else str(shown)


def bytes_of(shown: Any) -> bytes:
    return shown if isinstance(shown, bytes) else str(shown).encode()


def address_bytes(kind: str, text: str) -> bytes:
    return uuid.UUID(text).bytes if kind == "uuid" else ipaddress.ip_address(text).packed


def test_labels_of_a_charset_that_the_server_does_not_say_are_a_stop(
    binlog_mysql: LocalMySQL,
) -> None:
    place = Logged(binlog_mysql)
    create = "CREATE TABLE {s}.t (id int PRIMARY KEY, size enum('größe') CHARACTER SET latin1)"
    events = place.written(create, "INSERT INTO {s}.t VALUES (1, 'größe')")
    decoder = Decoder("mysql", lambda *_: True)
    with pytest.raises(
        ChangeUnreadable, match=r"'size' of .*\.t has labels that are not ASCII"
    ) as stopped:
        feed(decoder, events)
    place.drop()
    assert stopped.value.details["reason"] == "row_metadata"


def test_updates_and_deletions_have_whole_rows(logged: Logged) -> None:
    events = logged.written(
        "CREATE TABLE {s}.t (b int, a varchar(9), v int, PRIMARY KEY (a, b))",
        "INSERT INTO {s}.t VALUES (1, 'x', 1), (2, 'x', 2), (3, 'x', NULL)",
        "UPDATE {s}.t SET v = 7, b = IF(b = 2, 9, b)",
        "DELETE FROM {s}.t WHERE b = 9",
        "TRUNCATE {s}.t",
    )
    decoder = Decoder(logged.dialect, lambda database, _: database == logged.schema)
    feed(decoder, events)
    found = decoder.flush().select(["op", "row", "key", "before", "after"]).to_pylist()
    row = '{{"b":{},"a":"x","v":{}}}'.format
    key = '{{"a":"x","b":{}}}'.format
    assert [tuple(change.values()) for change in found] == [
        ("c", 0, key(1), None, row(1, 1)),
        ("c", 1, key(2), None, row(2, 2)),
        ("c", 2, key(3), None, row(3, "null")),
        ("u", 1, key(1), row(1, 1), row(1, 7)),
        ("d", 2, key(2), row(2, 2), None),
        ("c", 3, key(9), None, row(9, 7)),
        ("u", 5, key(3), row(3, "null"), row(3, 7)),
        ("d", 0, key(9), row(9, 7), None),
        ("t", 0, None, None, None),
    ]
