"""Cells of each type to values and texts, in both forms; what real servers write is in
test_rows.
"""

from __future__ import annotations

import base64
import json
import struct
from decimal import Context, Inexact, localcontext

import pyarrow as pa
import pytest
from made_tables import INT, TABLE_MAP, WRITE, Made, event, number, row, rows, table_map, text

from onceward.errors import BinlogCorrupted, ChangeUnreadable
from onceward.mysql.binlog import json_rows
from onceward.mysql.binlog.charsets import charset_by_collation, decoder_for, single_byte_table
from onceward.mysql.binlog.column_types import YEAR, ColumnKind, TableColumn, numeric_types
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.event import InvalidCell
from onceward.mysql.binlog.json_binary import DEEPEST, InvalidJson, double_text, json_text
from onceward.mysql.binlog.json_rows import escape, row_json
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import array_from_text
from support.errors import raises


def decoded(column: Made, *cells: bytes | None, values="text", **names: str):
    """The values of one column, as they stand in the JSON texts."""
    made = Decoder("mysql", lambda *_: True, values=values)
    made.feed(event(TABLE_MAP, table_map([INT, column], **names)))
    made.feed(event(WRITE, rows(2, *(row(number(1), cell) for cell in cells))))
    return [each[len('{"id":1,"v":') : -1] for each in made.flush()["after"].to_pylist()]


def moment(*parts: int, fraction: bytes = b"") -> bytes:
    year, month, day, hour, minute, second = parts
    whole = ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second
    return (whole + 0x8000000000).to_bytes(5, "big") + fraction


def clock(
    hours: int,
    minutes: int,
    seconds: int,
    fraction: int = 0,
    places: int = 0,
    *,
    negative: bool = False,
) -> bytes:
    packed = (hours << 12 | minutes << 6 | seconds) << 8 * places | fraction
    return ((0x800000 << 8 * places) + (-packed if negative else packed)).to_bytes(
        3 + places, "big"
    )


def day(year: int, month: int, of_month: int) -> bytes:
    return (year << 9 | month << 5 | of_month).to_bytes(3, "little")


DATE, TIME, DATETIME3 = (
    Made("v", 10, nullable=True),
    Made("v", 19, b"\0", nullable=True),
    Made("v", 18, b"\3", nullable=True),
)
DATETIME6, STAMP = Made("v", 18, b"\6", nullable=True), Made("v", 17, b"\2", nullable=True)
BITS, BIT = Made("v", 16, b"\5\1", nullable=True), Made("v", 16, b"\1\0", nullable=True)
DECIMAL, FLOAT = Made("v", 246, b"\4\2", nullable=True), Made("v", 5, b"\x08", nullable=True)
SHAPE, VECTOR = (
    Made("v", 255, b"\4", nullable=True),
    Made("v", 242, b"\4", nullable=True, collation=63),
)
POINT = struct.pack("<IBIdd", 4326, 1, 1, 1.0, 2.0)

BOTH_FORMS = [
    (DATE, day(2024, 1, 31), '"2024-01-31"', "19753"),
    (DATE, day(1969, 12, 31), '"1969-12-31"', "-1"),
    (DATE, day(0, 1, 1), '"0000-01-01"', "-719528"),
    (TIME, clock(12, 34, 56), '"12:34:56"', "45296000000"),
    (TIME, clock(838, 59, 59, negative=True), '"-838:59:59"', "-3020399000000"),
    (Made("v", 19, b"\2", nullable=True), clock(0, 0, 1, 50, 1, negative=True), '"-00:00:01.50"',
    "-1500000"),
    (Made("v", 19, b"\6", nullable=True), clock(100, 0, 0, 7, 3), '"100:00:00.000007"',
    "360000000007"),
    (DATETIME3, moment(2024, 1, 31, 10, 0, 0, fraction=b"\x04\xce"), '"2024-01-31 '
                                                                     '10:00:00.123"',
                                                                     "1706695200123"),
    (DATETIME6, moment(1969, 12, 31, 23, 59, 59, fraction=b"\x0f\x42\x3f"), '"1969-12-31 '
                                                                            '23:59:59.999999"',
                                                                            "-1"),
    (STAMP, (1).to_bytes(4, "big") + b"\x0c", '"1970-01-01 '
                                              '00:00:01.12"', '"1970-01-01T00:00:01.12Z"'),
    (STAMP, bytes(4) + b"\x0c", '"1970-01-01 00:00:00.12"', '"1970-01-01T00:00:00.12Z"'),
    (STAMP, (2**32 - 1).to_bytes(4, "big") + b"\0", '"2106-02-07 '
                                                    '06:28:15.00"', '"2106-02-07T06:28:15.00Z"'),
    (BITS, b"\x10\x01", '"EAE="', '"ARA="'),
    (BIT, b"\1", "true", "true"),
    (BIT, b"\0", "false", "false"),
    (DECIMAL, b"\x8c\x05", "12.05", '"12.05"'),
    (DECIMAL, b"\x7f\xfa", "-0.05", '"-0.05"'),
    (FLOAT, struct.pack("<d", 1e20), "1e20", "1e20"),
    (Made("v", 13, nullable=True), b"\x7c", "2024", "2024"),
    (Made("v", 13, nullable=True), b"\0", "0", "0"),
    (Made("v", 8, nullable=True, unsigned=True), b"\xff" * 8, str(2**64 - 1), str(2**64 - 1)),
    (Made("v", 9, nullable=True), b"\xff\xff\x7f", "8388607", "8388607"),
    (Made("v", 9, nullable=True), b"\0\0\x80", "-8388608", "-8388608"),
    (Made("v", 245, b"\4", nullable=True), b"\3\0\0\0\x0c\1a", '"a"', r'"\"a\""'),
    (SHAPE, len(POINT).to_bytes(4, "little") + POINT,
     '{"srid":4326,"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA"}',
     '{"wkb":"AQEAAAAAAAAAAADwPwAAAAAAAABA","srid":4326}'),
    (VECTOR, b"\x08\0\0\0" + struct.pack("<ff", 0.1, -2), "[0.1,-2]", "[0.1,-2]"),
    (Made("v", 254, b"\xf8\1", nullable=True, labels=(b"x", b"y", b"z")), b"\5", '"x,z"', '"x,z"'),
    (Made("v", 254, b"\xf7\1", nullable=True, labels=(b'"x"',)), b"\1", r'"\"x\""', r'"\"x\""'),
    (Made("v", 254, b"\xf7\1", nullable=True, labels=(b"x",)), b"\0", '""', '""'),
    (Made("v", 254, b"\xfe\4", nullable=True, collation=63), text(b"ab"), '"YWIAAA=="',
    '"YWIAAA=="'),
    (Made("v", 15, b"\x10\0", nullable=True, collation=8), text(b"\xe4\x80\x81"), '"ä€\x81"',
    '"ä€\x81"'),
]  # fmt: skip


@pytest.mark.parametrize(("column", "cell", "in_text", "in_debezium"), BOTH_FORMS)
def test_a_value_in_both_forms(column, cell, in_text, in_debezium):
    # Between nulls, and often enough to go the way of many.
    for values, wanted in (("text", in_text), ("debezium", in_debezium)):
        assert decoded(column, cell, None, cell, values=values) == [wanted, "null", wanted]
        json.loads(wanted)


@pytest.mark.parametrize(
    ("dialect", "place", "shown"),
    [
        ("mariadb", 0, '"id":1'),
        ("mariadb", 1, '"DB_ROW_HASH_1":7,"id":1'),
        ("mysql", 0, '"id":1,"DB_ROW_HASH_1":7,"DB_ROW_HASH_12":null'),
    ],
    ids=["behind all others", "before another", "of MySQL"],
)
def test_what_mariadb_hides_behind_the_last_column_is_in_no_row(dialect, place, shown):
    names = ("DB_ROW_HASH_1", "DB_ROW_HASH_12")
    columns = [Made(name, 8, nullable=True, unsigned=True) for name in names]
    cells = [(7).to_bytes(8, "little"), None]
    columns.insert(place, INT)
    cells.insert(place, number(1))
    made = Decoder(dialect, lambda *_: True)
    made.feed(event(TABLE_MAP, table_map(columns)))
    made.feed(event(WRITE, rows(3, row(*cells))))
    assert made.flush()["after"].to_pylist() == [f"{{{shown}}}"]


@pytest.mark.parametrize(
    ("column", "cell", "shown"),
    [
        (DATE, day(0, 0, 0), "0000-00-00"),
        (DATE, day(2024, 2, 30), "2024-02-30"),
        (DATETIME3, moment(2024, 0, 1, 1, 2, 3, fraction=b"\0\0"), "2024-00-01 01:02:03.000"),
        (STAMP, bytes(5), "0000-00-00 00:00:00.00"),
    ],
)
def test_a_day_that_no_calendar_has_is_a_text_and_no_number(column, cell, shown):
    assert decoded(column, cell) == [f'"{shown}"']
    with pytest.raises(
        ChangeUnreadable, match=f"has '{shown}', which is no day of the calendar"
    ) as stopped:
        decoded(column, cell, values="debezium")
    assert 'values="text"' in stopped.value.next_step
    assert stopped.value.details["reason"] == "column_type"


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        (DATE, b"\xff\xff\xff"), (DATETIME3, bytes(7)), (DATETIME3, b"\xff" * 7),
        (TIME, b"\xff" * 3),
        (STAMP, b"\0\0\0\1\xff"), (FLOAT, struct.pack("<d", float("nan"))), (DECIMAL, b"\xff\x05"),
        (Made("v", 254, b"\xf7\1", nullable=True, labels=(b"x",)), b"\2"),
        (Made("v", 254, b"\xf8\1", nullable=True, labels=(b"x",)), b"\2"),
        (Made("v", 254, b"\xfe\4", nullable=True, collation=63), text(b"abcde")),
        (SHAPE, b"\1\0\0\0a"), (VECTOR, b"\5\0\0\0abcde"),
        (Made("v", 245, b"\1", nullable=True), b"\2\x0c\x7f"),
        (Made("v", 140, b"\2", nullable=True, collation=63), b"\x05\0\x84\xff\xff\xff\xff"),
        (Made("v", 140, b"\2", nullable=True, collation=63), b"\x06\0\x81\x05abcd"),
    ],
)  # fmt: skip
def test_a_value_that_no_server_writes_is_damage(column, cell):
    with pytest.raises(BinlogCorrupted, match=r"at binlog\.000001:4 of the binlog"):
        decoded(column, cell)


@pytest.mark.parametrize(
    ("charset", "collation", "raw"),
    [("utf8mb4", 255, b"\xff"), ("ascii", 11, b"\xe4"), ("sjis", 13, b"\x81")],
)
def test_bytes_that_are_no_text_are_a_stop(charset, collation, raw):
    with pytest.raises(ChangeUnreadable, match=f"bytes that are no text of its charset {charset}"):
        decoded(
            Made("v", 15, b"\x10\0", nullable=True, collation=collation), text(b"ok"), text(raw)
        )


def test_a_charset_that_nobody_reads_is_a_stop():
    with raises(ChangeUnreadable, reason="column_type"):
        decoded(Made("v", 15, b"\x10\0", nullable=True, collation=97), text(b"x"))
    with raises(ChangeUnreadable, reason="column_type"):
        decoded(Made("v", 15, b"\x10\0", nullable=True, collation=4711), text(b"x"))


@pytest.mark.parametrize("kind", [b"\xf7\1", b"\xf8\1"], ids=["enum", "set"])
@pytest.mark.parametrize(
    ("charset", "collation", "label"),
    [
        ("binary", 63, "é".encode()), ("eucjpms", 97, b"\xc6\xfc"), ("ascii", 11, b"\xe4"),
        ("collation 4711", 4711, b"\xe4"),
    ],
)  # fmt: skip
def test_labels_that_nobody_reads_are_a_stop(kind, charset, collation, label):
    """No damage, for which the query would be started for ever."""
    column = Made("v", 254, kind, nullable=True, collation=collation, labels=(b"x", label))
    with pytest.raises(ChangeUnreadable, match=rf"'v' of d\.t .* charset {charset}") as stopped:
        decoded(column, b"\1")
    assert stopped.value.details["reason"] == "column_type"
    assert 'pass_over=["binlog.000001:4"]' in stopped.value.next_step
    read = Made("v", 254, kind, nullable=True, collation=collation, labels=(b"x", b"y"))
    assert decoded(read, b"\1") == ['"x"']


@pytest.mark.parametrize(
    ("column", "cell", "statement"),
    [
        (Made("v", 12), b"", "FORCE"),
        (Made("v", 15, b"\x10\0", collation=97), text(b"x"), "CONVERT TO CHARACTER SET utf8mb4"),
        (Made("v", 254, b"\xf7\1", collation=11, labels=(b"\xe4",)), b"\1", "MODIFY"),
        (Made("v", 140, b"\2", collation=63), b"\x02\0\x71a", "to have it without COMPRESSED"),
    ],
)
def test_a_statement_in_a_next_step_has_its_names_quoted(
    column: Made, cell: bytes, statement: str
):
    with pytest.raises(ChangeUnreadable) as stopped:
        decoded(column, cell, db="a-b", table="c`d")
    assert "of a-b.c`d" in stopped.value.message
    assert f"ALTER TABLE `a-b`.`c``d` {statement}" in stopped.value.next_step


def test_charsets_have_the_servers_characters():
    """The differences to Python's codecs, each of which a server has shown."""
    shown = [
        ("latin1", b"\x80\x81\xa4", "€\x81¤"), ("cp866", b"\xfc\xfd", "ⁿ²"),
        ("koi8u", b"\x95", "•"),
        ("greek", b"\xa1\xa2", "ʽʼ"), ("hebrew", b"\xaf", "‾"),
        ("swe7", b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü"),
        ("gb18030", b"\xa8\xbc\x81\x35\xf4\x37", "\u1e3f\ue7c7"), ("euckr", b"\x81\x41", "갂"),
        ("dec8", b"\xa8\xd7", "¤Œ"),
        ("keybcs2", b"\x80\xb0\xe0", "Č░α"), ("geostd8", b"\xc0\xfd", "ა№"),
        ("armscii8", b"\xb2\xb3", "Աա"),
    ]  # fmt: skip
    for charset, raw, wanted in shown:
        assert decoder_for(charset)(raw) == wanted, charset
    with pytest.raises(UnicodeDecodeError):
        decoder_for("big5")(b"a\xa2\xce")
    assert (
        len(single_byte_table("armscii8"))
        == len(single_byte_table("geostd8"))
        == len(single_byte_table("keybcs2"))
        == 256
    )
    assert [charset_by_collation(number) for number in (8, 33, 45, 63, 255, 323, 2304)] == [
        "latin1", "utf8mb3", "utf8mb4", "binary", "utf8mb4", "utf8mb4", "utf8mb4",
    ]  # fmt: skip


TABLE = TableMap("d", "t", (), (), "mysql")


def test_texts_that_arrow_cannot_hold_are_a_stop(monkeypatch):
    monkeypatch.setattr(json_rows, "MOST_BYTES", 20)
    assert escape(pa.array(['"'] * 3), TABLE).to_pylist() == [r"\""] * 3
    with pytest.raises(InvalidCell) as stopped:
        escape(pa.array(['"'] * 4), TABLE)
    assert "more than 2 GiB" in stopped.value.error.message


def test_all_that_a_text_may_hold_comes_back():
    held = ["".join(map(chr, range(0x80))), 'a"b\\c', "\x7fä\u2028😀", "", '\\"', "\\\\u0000"]
    found = escape(pa.array([None, *held, None])[1:-1], TABLE)
    assert [json.loads(f'"{each}"') for each in found.to_pylist()] == held


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0.0, "0"), (-0.0, "-0"), (1.0, "1"), (-2.5, "-2.5"), (1e14, "100000000000000"),
        (1e15, "1e15"), (1e16, "1e16"),
        (123456789012345.0, "123456789012345"), (1234567890123456.0, "1.234567890123456e15"),
        (1e-15, "0.000000000000001"),
        (1e-16, "1e-16"), (5e-324, "5e-324"), (1.7976931348623157e308, "1.7976931348623157e308"),
        (0.1, "0.1"),
        (0.30000000000000004, "0.30000000000000004"), (1e22, "1e22"),
        (1234567890123456.7, "1234567890123456.8"),
        (1.5e-5, "0.000015"),
    ],
)  # fmt: skip
def test_a_double_is_written_as_mysql_does(number, shown):
    assert double_text(number) == shown
    assert float(shown) == number
    # As a function of the user's, which Spark has called in this process, may have left it
    with localcontext(Context(prec=3, traps=[Inexact])):
        assert double_text(number) == shown


def decimals(scale: int, *values: str):
    column = TableColumn("v", ColumnKind.DECIMAL, precision=38, scale=scale)
    table = TableMap("d", "t", (column,), (), "mysql")
    array = pa.array(values, pa.string()).cast(pa.decimal128(38, scale))
    return [
        each[5:-1]
        for each in row_json(table, pa.RecordBatch.from_arrays([array], names=["v"])).to_pylist()
    ]


def test_a_small_decimal_has_no_exponent():
    assert decimals(10, "0.0000000001", "0", "-1.5", "-0.0000002") == [
        "0.0000000001",
        "0.0000000000",
        "-1.5000000000",
        "-0.0000002000",
    ]


def nested(levels: int) -> bytes:
    """Arrays in arrays, of which each says that the next begins where it is."""
    data = b""
    for level in range(levels):
        size = 7 + len(data)
        data = struct.pack("<HHBH", 1, size, 2, 7) + data if level else struct.pack("<HH", 0, 4)
    return b"\2" + data


def test_a_document_has_no_more_levels_than_the_server_allows():
    assert json_text(nested(DEEPEST)) == "[" * DEEPEST + "]" * DEEPEST
    with raises(InvalidJson):
        json_text(nested(DEEPEST + 1))


def test_a_document_whose_offsets_meet_is_not_written_out_again_and_again():
    """Each of its arrays has the next one fifty times: a few KB that would become 50⁴⁰ values."""
    levels, many = 40, 50
    size = 4 + 3 * many
    data = b"".join(
        struct.pack("<HH", many, size) + struct.pack("<BH", 2, size) * many for _ in range(levels)
    )  # fmt: skip
    with pytest.raises(InvalidJson):
        json_text(b"\2" + data)
    long = (
        struct.pack("<HH", 200, 700 + 5000)
        + struct.pack("<BH", 12, 604) * 200
        + b"\x88\x27"
        + b"x" * 5000
    )
    with pytest.raises(InvalidJson):
        json_text(b"\2" + long)


def test_numbers_stand_in_the_place_of_offsets_in_large_documents():
    """Of four bytes there, whatever their own width."""
    numbers = [
        (5, -5),
        (5, 5),
        (6, 65535),
        (7, -40000),
        (7, 40000),
        (8, 4_000_000_000),
        (4, 0),
        (4, 1),
        (4, 2),
    ]
    entries = b"".join(
        struct.pack("<Bi" if value < 1 << 31 else "<BI", kind, value) for kind, value in numbers
    )
    document = b"\3" + struct.pack("<II", len(numbers), 8 + len(entries)) + entries
    assert json_text(document) == "[-5, 5, 65535, -40000, 40000, 4000000000, null, true, false]"
    small = b"\2" + struct.pack("<HH", 3, 13) + struct.pack("<BhBhBH", 5, -5, 5, 5, 6, 65535)
    assert json_text(small) == "[-5, 5, 65535]"


@pytest.mark.parametrize("kind", [15, 16, 250, 252, 253, 254])
@pytest.mark.parametrize(("raw", "shown"), [(b"\0\xff", "AP8="), (b"ab", "YWI=")])
def test_bytes_in_a_document_are_base64_whatever_their_type(kind: int, raw: bytes, shown: str):
    """A server has five types that are none: a decimal and four of moments. 253 is MySQL 5.7's for
    the bytes of a function.
    """
    assert json_text(bytes([15, kind, len(raw)]) + raw) == f'"base64:type{kind}:{shown}"'


@pytest.mark.parametrize(
    ("writer", "has_sign"),
    [(None, None), ((8, 0, 12), False), ((8, 0, 19), False), ((8, 0, 20), None), ((8, 0, 22), None),
     ((8, 0, 23), True), ((8, 0, 33), True), ((9, 7, 0), True)],
)  # fmt: skip
def test_whether_a_year_has_a_sign_is_a_matter_of_the_servers_version(
    writer: tuple[int, ...] | None, has_sign: bool | None
) -> None:
    types = numeric_types("mysql", writer)
    assert (None if types is None else YEAR in types) is has_sign
    assert YEAR in (numeric_types("mariadb", writer) or ())


BYTES = base64.b64encode(b"\xff" * 200).decode()
IN_LINES = [BYTES[at : at + 76] for at in range(0, len(BYTES), 76)]
PROSE = [
    r'["a\nb", "base64:type15:\nAP8="]',
    rf'["of \"base64:type15:{IN_LINES[0]}\n{IN_LINES[1]}\n{IN_LINES[2]}"]',
]


@pytest.mark.parametrize("line_break", ["\n", r"\n"], ids=["MySQL 8.0.12", "MySQL 8.0.33"])
def test_bytes_in_a_document_are_the_same_whichever_way_they_come(line_break: str):
    """A server says them in lines, and a binlog has none."""
    opaque = b"\x0f\x0f\xc8\x01" + b"\xff" * 200
    streamed = json_text(opaque)
    selected = f'"base64:type15:{line_break.join(IN_LINES)}"'
    column = TableColumn("v", ColumnKind.JSON)
    texts = [f"[1, {selected}, {selected}]", *PROSE, None]
    found = array_from_text(TABLE, column, [text and text.encode() for text in texts])
    assert found.to_pylist() == [f"[1, {streamed}, {streamed}]", *PROSE, None]
