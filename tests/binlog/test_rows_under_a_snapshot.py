"""Which changes pass while a snapshot is under way: by the places of their keys, without a
server.
"""

from __future__ import annotations

import itertools
import struct

import pyarrow as pa
import pytest
from made_tables import (
    INT,
    NAME,
    TABLE_MAP,
    UPDATE,
    WRITE,
    event,
    number,
    row,
    rows,
    table_map,
    text,
)

from onceward.mysql.binlog.column_types import ColumnKind
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.event import QUERY
from onceward.mysql.snapshot.filtering import filter_changes
from onceward.mysql.snapshot.keys import KeyColumn, is_behind
from onceward.mysql.snapshot.state import advance_snapshot

ID = KeyColumn("id", "int", ColumnKind.INTEGER)
STATE = {
    "left": [["d", "later"]],
    "table": ["d", "t"],
    "key": [ID.to_json()],
    "after": ["10"],
    "chunks": [{"a": "chunk"}],
}


def nobody(statement):
    raise AssertionError(f"the server was asked: {statement}")


def passed(*events, table="t"):
    decoder = Decoder("mysql", lambda *_: True)
    decoder.feed(event(TABLE_MAP, table_map([INT, NAME], key=[0], table=table)))
    for each in events:
        decoder.feed(each)
    found = filter_changes(STATE, nobody, decoder.blocks(), "text").to_pylist()
    return [
        (change["op"], change["key"], change["before"] is not None, change["after"] is not None)
        for change in found
    ]


def image(key, name=b"a"):
    return row(number(key), text(name))


def test_a_place_is_before_the_keys_that_the_server_has_behind_it():
    """The columns of a key count in its order, a number without a sign is one, and a key is not
    behind itself.
    """
    columns = (
        KeyColumn("a", "int", ColumnKind.INTEGER),
        KeyColumn("b", "bigint unsigned", ColumnKind.INTEGER),
        KeyColumn("c", "varbinary(9)", ColumnKind.BINARY),
    )  # fmt: skip
    values = ([-1, 0, 2], [0, 5, 1 << 63], [b"", b"\0", b"\xff"])
    all_keys = list(itertools.product(*values))
    types = (pa.int32(), pa.uint64(), pa.binary())
    arrays = [
        pa.array(column, kind)
        for column, kind in zip(zip(*all_keys, strict=True), types, strict=True)
    ]
    for place in all_keys:
        said = [str(place[0]), str(place[1]), place[2].hex()]
        assert is_behind(columns, said, arrays, nobody).tolist() == [
            key > place for key in all_keys
        ]


def test_the_last_row_of_a_chunk_is_done_and_the_next_is_not():
    assert passed(event(WRITE, rows(2, *map(image, (9, 10, 11))))) == [
        ("c", '{"id":9}', False, True),
        ("c", '{"id":10}', False, True),
    ]


def test_a_table_that_is_not_begun_has_no_changes_and_one_that_is_done_has_all():
    written = event(WRITE, rows(2, image(9), image(11)))
    assert passed(written, table="later") == []
    assert len(passed(written, table="done")) == 2


def test_a_truncate_passes_as_soon_as_a_table_is_begun():
    emptied = event(QUERY, struct.pack("<IIBHH", 1, 0, 1, 0, 0) + b"d\0TRUNCATE TABLE t")
    assert passed(emptied) == [("t", None, False, False)]
    assert passed(emptied._replace(buffer=bytes(emptied.buffer)[:-1] + b"u")) == [
        ("t", None, False, False)
    ]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        (1, 2, [("d", '{"id":1}', True, False), ("c", '{"id":2}', False, True)]),
        (1, 20, [("d", '{"id":1}', True, False)]),
        (20, 1, [("c", '{"id":1}', False, True)]),
        (20, 21, []),
    ],
)
def test_a_row_that_moves_over_the_border_goes_or_comes(old, new, wanted):
    assert passed(event(UPDATE, rows(2, image(old), image(new), kind=UPDATE))) == wanted


def test_changes_that_were_taken_apart_are_in_order_again():
    images = [image(key) for pair in ((1, 1), (20, 2), (3, 30), (4, 4)) for key in pair]
    found = passed(
        event(UPDATE, rows(2, *images, kind=UPDATE), 100), event(WRITE, rows(2, image(3)), 200)
    )
    assert [(op, key) for op, key, *_ in found] == [
        ("u", '{"id":1}'), ("c", '{"id":2}'), ("d", '{"id":3}'), ("u", '{"id":4}'),
        ("c", '{"id":3}'),
    ]  # fmt: skip


def test_a_batch_that_is_behind_brings_no_chunk_again():
    after = advance_snapshot(None, STATE, caught_up=False)
    assert after["chunks"] == []
    assert {**after, "chunks": STATE["chunks"]} == STATE
