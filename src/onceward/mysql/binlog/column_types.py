"""Types of columns, as a TABLE_MAP event has them: what the values are, and how cells lie. Pure.

Source: as of :mod:`onceward.mysql.binlog.table_map`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from onceward.mysql.binlog.event import Dialect, damaged_data, unreadable_change
from onceward.mysql.binlog.fields import MetadataFields
from onceward.mysql.binlog.sql_tables import TableName, quote_table


class ColumnKind(Enum):
    """What a column's values are, whatever type they are stored in."""

    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    BIT = "bit"
    YEAR = "year"
    DATE = "date"
    TIME = "time"
    DATETIME = "datetime"
    TIMESTAMP = "timestamp"
    ENUM = "enum"
    SET = "set"
    TEXT = "text"
    BINARY = "binary"
    JSON = "json"
    """MySQL's own; MariaDB's is a text."""
    GEOMETRY = "geometry"
    VECTOR = "vector"


TEMPORAL = frozenset({ColumnKind.DATE, ColumnKind.TIME, ColumnKind.DATETIME, ColumnKind.TIMESTAMP})
"""Held as MySQL's own text, which alone can hold 0000-00-00 and the like."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column. ``width`` is the bytes of a cell, where all cells have as many; else
    ``length_bytes`` is how many bytes of length, little-endian, are before each of them.
    """

    name: str
    kind: ColumnKind
    width: int = 0
    length_bytes: int = 0
    nullable: bool = True
    unsigned: bool = False
    precision: int = 0
    """Digits of a decimal."""
    scale: int = 0
    """Digits of a decimal behind the point."""
    fsp: int = 0
    """Fractional seconds precision of a temporal type."""
    bits: int = 0
    size: int = 0
    """Greatest length of a CHAR or BINARY in bytes: BINARY has as many."""
    is_padded: bool = False
    """A BINARY, whose zeros at the end are not in the binlog."""
    charset: str = ""
    """MySQL's name, of a text, an enum, a set."""
    labels: tuple[str, ...] = ()
    is_compressed: bool = False
    """One of MariaDB's COMPRESSED columns."""


_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 246})
YEAR = 13
_WITHOUT_YEAR, _WITH_YEAR = (8, 0, 20), (8, 0, 23)


def numeric_types(dialect: Dialect, writer: tuple[int, ...] | None) -> frozenset[int] | None:
    """Return the types with a sign bit in the metadata; None: not known of ``YEAR``.

    MariaDB gives one to a ``YEAR``, too, and so does MySQL since
    ``has_signedess_information_type`` (``sql/field_common_properties.h``), a file of 2020; 8.0.12
    does not, 8.0.33 does.

    :param writer: version of the server that wrote the binlog; None: not known.
    """
    if dialect == "mysql" and writer is None:
        return None
    if dialect == "mariadb" or (writer or ()) >= _WITH_YEAR:
        return _NUMERIC | {YEAR}
    return _NUMERIC if (writer or ()) < _WITHOUT_YEAR else None


_CHARACTER = frozenset({15, 140, 141, 242, 252, 253, 254})
CHARACTER_TYPES = {"mysql": _CHARACTER, "mariadb": _CHARACTER | {255}}
"""Types with a collation there: MariaDB gives one to a geometry, too. An enum or set, which 254
hides, has its own number by then.
"""
LABEL_TYPES = frozenset({247, 248})

_INTEGER_BYTES = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}
_TYPE_NAMES = {
    0: "DECIMAL of before MySQL 5.0", 7: "TIMESTAMP of before MySQL 5.6",
    11: "TIME of before MySQL 5.6",
    12: "DATETIME of before MySQL 5.6", 6: "NULL", 20: "an array", 243: "an invalid type",
}  # fmt: skip
FIXED_STRING = 254
"""CHAR or BINARY, whose padding at the end is not in the binlog."""
_TEMPORAL_TYPES = {
    17: (ColumnKind.TIMESTAMP, 4), 18: (ColumnKind.DATETIME, 5), 19: (ColumnKind.TIME, 3),
}  # fmt: skip
_BLOB_KINDS = {245: ColumnKind.JSON, 255: ColumnKind.GEOMETRY, 242: ColumnKind.VECTOR}
_OLD_TEMPORALS = {7, 11, 12}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MOST_DIGITS = 65
MOST_SCALE = 38
"""MariaDB's; MySQL has 30."""


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column by its type alone; ``number`` is the real type."""

    number: int
    column: TableColumn


def parse_types(
    types: bytes, metadata: bytes, names: Sequence[str], table: TableName
) -> list[StoredColumn]:
    """Parse the types with their metadata.

    :raises ChangeUnreadable: a type is not supported.
    """
    data = MetadataFields(metadata, f"the table map of {table}")
    found = []
    for name, number in zip(names, types, strict=True):
        if number == FIXED_STRING:
            found.append(_string_column(name, data.take_byte(), data.take_byte(), table))
        else:
            found.append(StoredColumn(number, _parse_type(name, number, data, table)))
    if data.remaining:
        raise damaged_data(f"the table map of {table} has metadata for more columns than it has")
    return found


def decimal_bytes(digits: int) -> int:
    """Return how many bytes the digits on one side of the point take."""
    return digits // 9 * 4 + _DIGIT_BYTES[digits % 9]


def _parse_type(name: str, number: int, data: MetadataFields, table: TableName) -> TableColumn:
    if number in _INTEGER_BYTES:
        return TableColumn(name, ColumnKind.INTEGER, _INTEGER_BYTES[number])
    if number in (4, 5):
        if (width := data.take_byte()) != 4 * (number - 3):
            raise damaged_data(f"the table map of {table} has a float of {width} bytes")
        return TableColumn(name, ColumnKind.FLOAT, width)
    if number == 13:
        return TableColumn(name, ColumnKind.YEAR, 1)
    if number in (10, 14):
        return TableColumn(name, ColumnKind.DATE, 3)
    if number in _TEMPORAL_TYPES:
        if (fsp := data.take_byte()) > 6:
            raise damaged_data(f"the table map of {table} has {fsp} digits of a second")
        kind, whole = _TEMPORAL_TYPES[number]
        return TableColumn(name, kind, whole + (fsp + 1) // 2, fsp=fsp)
    if number == 246:
        return _decimal_column(name, data.take_byte(), data.take_byte(), table)
    if number == 16:
        odd, whole = data.take_byte(), data.take_byte()
        return TableColumn(name, ColumnKind.BIT, whole + (odd > 0), bits=whole * 8 + odd)
    if number in (15, 253, 141):
        size = int.from_bytes(data.take(2), "little")
        # Of a compressed one the length has two bytes as soon as its byte of method may reach
        # beyond 255.
        length_bytes, is_compressed = 1 + (size > 255), number == 141
        return TableColumn(
            name, ColumnKind.TEXT, 0, length_bytes, size=size, is_compressed=is_compressed
        )
    if number in (252, 140, *_BLOB_KINDS):
        kind = _BLOB_KINDS.get(number, ColumnKind.TEXT)
        if not 1 <= (length_bytes := data.take_byte()) <= 4:
            raise damaged_data(f"the table map of {table} has a length of {length_bytes} bytes")
        return TableColumn(name, kind, 0, length_bytes, is_compressed=number == 140)
    raise _unsupported_type(name, number, table)


def _decimal_column(name: str, precision: int, scale: int, table: TableName) -> TableColumn:
    if not (1 <= precision <= MOST_DIGITS and scale <= min(precision, MOST_SCALE)):
        raise damaged_data(
            f"the table map of {table} has a decimal of {precision} digits, {scale} behind the "
            "point"
        )
    width = decimal_bytes(precision - scale) + decimal_bytes(scale)
    return TableColumn(name, ColumnKind.DECIMAL, width, precision=precision, scale=scale)


def _string_column(name: str, first: int, second: int, table: TableName) -> StoredColumn:
    """Parse type 254: the real type, with two inverted bits of the length in it."""
    real, size = first, second
    if first & 0x30 != 0x30:
        real, size = first | 0x30, second | (first & 0x30 ^ 0x30) << 4
    if real in (247, 248):
        if not 1 <= second <= (2 if real == 247 else 8):
            raise damaged_data(f"the table map of {table} has labels in {second} bytes")
        return StoredColumn(
            real, TableColumn(name, ColumnKind.ENUM if real == 247 else ColumnKind.SET, second)
        )
    if real != FIXED_STRING:
        raise damaged_data(f"the table map of {table} has a CHAR of type {real}")
    return StoredColumn(real, TableColumn(name, ColumnKind.TEXT, 0, 1 + (size > 255), size=size))


def _unsupported_type(name: str, number: int, table: TableName) -> Exception:
    type_name = _TYPE_NAMES.get(number, "one that is not known")
    step = f"leave {table} out of the wanted tables, or change the column's type and"
    if number in _OLD_TEMPORALS:
        step = f"ALTER TABLE {quote_table(*table)} FORCE writes the column anew in today's form;"
    return unreadable_change(
        "column_type",
        f"column {name!r} of {table} has the type {number} ({type_name})",
        f"{step} start from a position after that",
    )
