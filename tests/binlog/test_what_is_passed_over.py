"""``pass_over``: the advice of an error, followed to the letter, loses what it names and nothing
else. No server.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from made_events import GOLDEN, GOLDEN_FILES, dialect_of
from made_tables import (
    DELETE,
    INT,
    TABLE_MAP,
    UPDATE,
    WRITE,
    Made,
    event,
    number,
    row,
    rows,
    table_map,
)

from onceward.errors import ChangeUnreadable
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.decoder import Decoder, inner_events
from onceward.mysql.binlog.event import (
    GTID,
    NOTHING_SKIPPABLE,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    ROWS_EVENTS,
    TRANSACTION_PAYLOAD,
    BinlogEvent,
    Skippable,
)
from onceward.mysql.binlog.rows import describe_rows
from onceward.mysql.source.ranges import RangePlanner
from onceward.mysql.source.settings import Position, make_settings
from support.binlog_files import events_of_file
from support.errors import raises

ORDERS = table_map([INT, Made("d", 10, nullable=True)], table="orders", key=[0])
DAY, ZERO_DAY = ((2024 << 9) + (1 << 5) + 31).to_bytes(3, "little"), bytes(3)


def orders(*zero: int, count: int = 100) -> list[bytes]:
    """Rows, those of which have a date that Debezium's form has no place for."""
    return [row(number(each), ZERO_DAY if each in zero else DAY) for each in range(count)]


def changes(
    events: Iterable[BinlogEvent], passes: Skippable = NOTHING_SKIPPABLE, **said: Any
) -> list[dict[str, Any]]:
    decoder = Decoder(
        "mysql", lambda *_: True, **{"values": "debezium", "skippable": passes, **said}
    )
    for each in events:
        decoder.feed(each)
    found = []
    while decoder.has_changes:
        found += decoder.flush().to_pylist()
    return found


def refused(
    tried: Callable[[Skippable], Any], passes: Skippable
) -> tuple[Any, ChangeUnreadable | None]:
    try:
        return tried(passes), None
    except ChangeUnreadable as error:
        return None, error


def followed(tried: Callable[[Skippable], Any]) -> tuple[Any, list[ChangeUnreadable]]:
    """What comes once everything is passed over that errors name, and these errors."""
    names, errors = list[str](), list[ChangeUnreadable]()
    while True:
        found, error = refused(tried, Skippable(frozenset(names)))
        if error is None:
            return found, errors
        said = re.search(r"pass_over=\[(.*)\]$", error.next_step)
        assert said is not None
        fresh = re.findall(r'"([^"]*)"', said[1])
        assert fresh[0] == error.details["at"]
        assert not set(fresh) & set(names)
        assert make_settings(
            url="mysql://u:p@h", tables="d.*", starting="latest", max_bytes_per_batch=1,
            heartbeat_seconds=1,
            pass_over=fresh, values="text",
        ).skippable.names == set(fresh)  # fmt: skip
        names += fresh
        errors.append(error)


def test_one_value_that_has_no_place_is_one_row():
    log = [
        event(TABLE_MAP, ORDERS),
        event(WRITE, rows(2, *orders(7)), 99),
        event(WRITE, rows(2, *orders()), 999),
    ]
    found, (error,) = followed(lambda passes: changes(log, passes))
    assert "this one row" in error.next_step
    assert error.details["at"] == "binlog.000001:99/7"
    assert [(each["pos"], each["row"]) for each in found] == [
        (pos, each) for pos in (99, 999) for each in range(100) if (pos, each) != (99, 7)
    ]


def test_all_rows_of_a_piece_that_have_no_place_are_named_at_once():
    log = [event(TABLE_MAP, ORDERS), event(DELETE, rows(2, *orders(3, 50, 99)), 99)]
    found, (error,) = followed(lambda passes: changes(log, passes))
    assert "3 rows" in error.next_step
    assert sorted(set(range(100)) - {each["row"] for each in found}) == [3, 50, 99]


def test_an_update_is_left_out_with_both_of_its_rows_whichever_is_bad():
    for images in ((ZERO_DAY, DAY), (DAY, ZERO_DAY), (ZERO_DAY, ZERO_DAY)):
        pairs = [(DAY, DAY), images, (DAY, DAY)]
        data = [row(number(place), day) for place, pair in enumerate(pairs) for day in pair]
        log = [event(TABLE_MAP, ORDERS), event(UPDATE, rows(2, *data, kind=UPDATE), 99)]
        found, errors = followed(lambda passes, log=log: changes(log, passes))
        assert [each["key"] for each in found] == ['{"id":0}', '{"id":2}']
        assert len(errors) == 1


def test_a_value_that_no_form_has_is_one_row():
    """A text whose bytes are none: found while rows are decoded, before they are written as
    text.
    """
    map = table_map([INT, Made("v", 15, b"\x28\0", collation=255)], key=[0])
    data = [row(number(each), b"\1\xff" if each in (2, 5) else b"\1a") for each in range(8)]
    log = [event(TABLE_MAP, map), event(WRITE, rows(2, *data), 99)]
    found, (error,) = followed(lambda passes: changes(log, passes, values="text"))
    assert [each["row"] for each in found] == [0, 1, 3, 4, 6, 7]
    assert error.details["at"] == "binlog.000001:99/2"


def test_what_can_be_read_is_read_although_it_is_named():
    """A name is asked for where a reader would stop: an event with a hundred rows is no place for
    one of them.
    """
    log = [event(TABLE_MAP, ORDERS), event(WRITE, rows(2, *orders()), 99)]
    assert (
        len(changes(log, Skippable(frozenset({"binlog.000001:99", "binlog.000001:99/7"})))) == 100
    )
    with pytest.raises(ChangeUnreadable):
        changes(
            [log[0], event(WRITE, rows(2, *orders(7)), 99)],
            Skippable(frozenset({"binlog.000001:99"})),
        )


def payload(*inner: tuple[int, bytes]) -> bytes:
    """A transaction's events in one, not compressed."""
    events = b"".join(
        struct.pack("<IBIIIH", 1, kind, 1, 19 + len(body), 0, 0) + body for kind, body in inner
    )
    size = b"\xfd" + len(events).to_bytes(3, "little")
    return b"\2\3\xfc\xff\0" + b"\1\4" + size + b"\0" + events


def test_a_row_in_a_compressed_transaction_has_a_name_of_its_own():
    payments = table_map([INT], number=78, table="payments", key=[0])
    body = payload(
        (TABLE_MAP, payments), (WRITE, rows(1, *[row(number(each)) for each in range(3)],
        number=78)),
        (TABLE_MAP, ORDERS), (WRITE, rows(2, *orders(7))), (WRITE, rows(2, *orders())),
    )  # fmt: skip
    log = [event(TRANSACTION_PAYLOAD, body, 99)]
    found, (error,) = followed(lambda passes: changes(log, passes))
    assert error.details["at"] == "binlog.000001:99#4/7"
    assert len(found) == 3 + 99 + 100
    with pytest.raises(
        ChangeUnreadable
    ):  # what an older version advised: it was the whole transaction
        changes(log, Skippable(frozenset({"binlog.000001:99"})))


def test_a_statement_in_a_compressed_transaction_is_passed_over_alone():
    statement = struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0INSERT INTO orders VALUES (1)"
    body = payload((QUERY, statement), (TABLE_MAP, ORDERS), (WRITE, rows(2, *orders())))
    data = struct.pack("<IBIIIH", 1, TRANSACTION_PAYLOAD, 1, 23 + len(body), 0, 0) + body
    begin = (
        struct.pack("<IBIIIH", 1, GTID, 1, 48, 0, 0)
        + bytes(1)
        + b"\x11" * 16
        + (1).to_bytes(8, "little")
    )
    log = [
        BinlogEvent(one, 0, len(one), one[4], 0, 1, 1, "binlog.000001", pos) for pos,
        one in ((4, begin), (52, data))
    ]  # fmt: skip

    def cut(passes: Skippable) -> int:
        settings = make_settings(
            url="mysql://u:p@h", tables="d.*", starting="latest", max_bytes_per_batch=1,
            heartbeat_seconds=1,
            pass_over=sorted(passes.names), values="text",
        )  # fmt: skip
        cutter = RangePlanner(settings, Position("mysql", "s", 0, "binlog.000001", 4, None, None))
        cutter.feed(log)
        if cutter.error is not None:
            raise cutter.error
        return cutter.range().changes

    found, (error,) = followed(cut)
    assert (found, error.details["at"]) == (1, "binlog.000001:52#1")


@pytest.mark.parametrize("name", ["mysql-8.0.33-minimal-image", "mysql-8.0.33-minimal-metadata"])
def test_events_that_have_no_rows_to_be_read_say_how_many_they_leave_out(name: str):
    """Each is one event, and all of them together are what the server wrote so."""
    file = GOLDEN / f"{name}.binlog"
    log = list(events_of_file(file.read_bytes(), dialect_of(file)))
    found, errors = followed(lambda passes: changes(log, passes, values="text"))
    left = [
        re.search(r"without (\d+) rows? of (\S+), all of this one event by", error.next_step)
        for error in errors
    ]
    assert all(left)
    events = sum(inner.kind in ROWS_EVENTS for each in log for inner in decompress(each))
    assert len(errors) == events - len({(each["pos"], each["inner"]) for each in found})


def test_rows_without_some_columns_are_counted_by_those_that_they_have():
    short = row(number(1)), row(DAY)
    body = rows(2, *short * 3, kind=UPDATE).replace(b"\3\3", b"\1\2", 1)
    with raises(ChangeUnreadable, reason="row_image") as stopped:
        changes([event(TABLE_MAP, ORDERS), event(UPDATE, body, 99)])
    assert "without 3 rows of d.orders, all of this one event" in stopped.value.next_step


@pytest.mark.parametrize(
    "file",
    [file for file in GOLDEN_FILES if "minimal" not in file.name],
    ids=lambda file: file.stem,
)
def test_rows_that_are_not_read_are_counted_as_they_would_be(file: Path):
    maps: dict[bytes, BinlogEvent] = {}
    counted = 0
    for each in events_of_file(file.read_bytes(), dialect_of(file)):
        for inner in decompress(each):
            if inner.kind == TABLE_MAP:
                maps[bytes(inner.body[:6])] = inner
            elif inner.kind in ROWS_EVENTS:
                map = maps[bytes(inner.body[:6])]
                decoder = Decoder(dialect_of(file), lambda *_: True)
                decoder.feed(map)
                decoder.feed(inner)
                images = sum(block.images.num_rows for block in decoder.blocks())
                many = images // (2 if ROWS_EVENTS[inner.kind] == "update" else 1)
                assert describe_rows(inner, bytes(map.body)).startswith(f"{many} row")
                counted += many
    assert counted or "statement" in file.name or "partial" in file.name


def test_parts_of_json_values_are_counted_too():
    file = GOLDEN / "mysql-8.0.33-partial-json.binlog"
    maps, said = {}, []
    for each in events_of_file(file.read_bytes(), "mysql"):
        if each.kind == TABLE_MAP:
            maps[bytes(each.body[:6])] = bytes(each.body)
        elif each.kind == PARTIAL_UPDATE_ROWS:
            said.append(describe_rows(each, maps[bytes(each.body[:6])]))
    assert said
    assert all(re.match(r"[1-9]\d* rows? of", one) for one in said), said


def test_rows_of_a_table_with_system_versions_are_refused_where_the_columns_tell():
    """MariaDB adds two, and the second one to the key: a DELETE is an update of it."""
    moment = b"\x06"
    versioned = [INT, Made("row_start", 17, moment), Made("row_end", 17, moment)]
    data = row(number(1), bytes(7), bytes(7))
    for columns, key, refused in (
        (versioned, [0, 2], True),
        (versioned, [0], False),
        ([INT, Made("row_begin", 17, moment), versioned[2]], [0, 2], False),
    ):
        decoder = Decoder("mariadb", lambda *_: True)
        decoder.feed(event(TABLE_MAP, table_map(columns, key=key)))
        if not refused:
            decoder.feed(event(WRITE, rows(3, data), 99))
            assert decoder.flush().num_rows == 1
            continue
        with pytest.raises(ChangeUnreadable) as stopped:
            decoder.feed(event(WRITE, rows(3, data, data), 99))
        assert stopped.value.details["reason"] == "system_versioned"
        assert "without 2 rows of d.t, all of this one event" in stopped.value.next_step


def test_a_transaction_that_is_packed_in_an_unknown_way_is_left_out_whole_and_says_so():
    log = [event(TRANSACTION_PAYLOAD, b"\2\1\7\1\1\3\0abc", 99), event(TABLE_MAP, ORDERS)]
    found, (error,) = followed(lambda passes: changes(log, passes))
    assert found == []
    assert "without the whole transaction" in error.next_step
    assert list(inner_events(log[0], Skippable(frozenset({"binlog.000001:99"})))) == []


def test_rows_left_out_are_not_in_the_table_of_arrow():
    log = [event(TABLE_MAP, ORDERS), event(WRITE, rows(2, *orders(0, count=1)), 99)]
    decoder = Decoder(
        "mysql",
        lambda *_: True,
        values="debezium",
        skippable=Skippable(frozenset({"binlog.000001:99/0"})),
    )
    for each in log:
        decoder.feed(each)
    assert isinstance(found := decoder.flush(), pa.Table)
    assert found.num_rows == 0
