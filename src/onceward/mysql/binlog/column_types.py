"""The types of a table map's columns with their metadata: how each is stored. Pure; called by
:mod:`table_map`.

Source: MySQL ``sql/field.cc`` (``do_save_field_metadata`` of each class) and
``sql/rpl_utility.cc`` (``table_def::calc_field_size``), MariaDB's of the same names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.packed_bytes import PackedBytes
from onceward.mysql.binlog.refusals import damaged, unreadable

_NUMERIC = frozenset({1, 2, 3, 4, 5, 8, 9, 246})
NUMERIC = {"mysql": _NUMERIC, "mariadb": _NUMERIC | {13}}
"""Those that have a sign bit in the metadata: MariaDB gives one to a YEAR, too."""
_CHARACTER = frozenset({15, 140, 141, 242, 252, 253, 254})
CHARACTER = {"mysql": _CHARACTER, "mariadb": _CHARACTER | {255}}
"""Those that have a collation there: MariaDB gives one to a geometry, too. 254 with what it hides
(enum, set) has been replaced by that.
"""
LABELLED = frozenset({247, 248})

_FIXED = {1: 1, 2: 2, 9: 3, 3: 4, 8: 8}
_NAMES = {
    0: "DECIMAL of "
       "before MySQL 5.0", 7: "TIMESTAMP of before MySQL 5.6", 11: "TIME of before MySQL 5.6",
    12: "DATETIME of before MySQL 5.6", 6: "NULL", 20: "an array", 243: "an invalid type",
}  # fmt: skip
_OLD_TIMES = {7, 11, 12}
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
MOST_DIGITS = 65
MOST_SCALE = 38
"""MariaDB's; MySQL has 30."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A column by its type alone, ``number`` being what the type really is."""

    number: int
    column: Column

    @property
    def is_fixed_string(self) -> bool:
        """CHAR or BINARY, whose end is not in the binlog where it is padding."""
        return self.number == 254


def stored_types(types: bytes, metadata: bytes, names: Sequence[str], table: str) -> list[Stored]:
    """:raises ChangeUnreadable: one has no place here."""
    data = PackedBytes(metadata, f"the table map of {table}")
    found = []
    for name, number in zip(names, types, strict=True):
        found.append(_stored(name, number, data, table))
    if data.left:
        raise damaged(f"the table map of {table} has metadata for more columns than it has")
    return found


def decimal_bytes(digits: int) -> int:
    """How many bytes the digits on one side of the point take."""
    return digits // 9 * 4 + _DIGIT_BYTES[digits % 9]


def _stored(name: str, number: int, data: PackedBytes, table: str) -> Stored:
    if number in _FIXED:
        return Stored(number, Column(name, Kind.INTEGER, _FIXED[number]))
    if number in (4, 5):
        if (width := data.byte()) != 4 * (number - 3):
            raise damaged(f"the table map of {table} has a float of {width} bytes")
        return Stored(number, Column(name, Kind.FLOAT, width))
    if number == 13:
        return Stored(number, Column(name, Kind.YEAR, 1))
    if number in (10, 14):
        return Stored(number, Column(name, Kind.DATE, 3))
    if number in (17, 18, 19):
        return Stored(number, _moment(name, number, data.byte(), table))
    if number == 246:
        return Stored(number, _decimal(name, data.byte(), data.byte(), table))
    if number == 16:
        odd, whole = data.byte(), data.byte()
        return Stored(number, Column(name, Kind.BIT, whole + (odd > 0), bits=whole * 8 + odd))
    if number in (15, 253, 141):
        size = int.from_bytes(data.take(2), "little")
        # Of a compressed one the length has two bytes as soon as its byte of method may reach
        # beyond 255.
        return Stored(
            number, Column(name, Kind.TEXT, 0, 1 + (size > 255), size=size, packed=number == 141)
        )
    if number in (252, 140, 245, 255, 242):
        kind = {245: Kind.JSON, 255: Kind.GEOMETRY, 242: Kind.VECTOR}.get(number, Kind.TEXT)
        return Stored(
            number, Column(name, kind, 0, _length_bytes(data.byte(), table), packed=number == 140)
        )
    if number == 254:
        return _string(name, data.byte(), data.byte(), table)
    raise _no_place(name, number, table)


def _length_bytes(number: int, table: str) -> int:
    if not 1 <= number <= 4:
        raise damaged(f"the table map of {table} has a length of {number} bytes")
    return number


def _moment(name: str, number: int, fsp: int, table: str) -> Column:
    if fsp > 6:
        raise damaged(f"the table map of {table} has {fsp} digits of a second")
    kind, whole = {17: (Kind.TIMESTAMP, 4), 18: (Kind.DATETIME, 5), 19: (Kind.TIME, 3)}[number]
    return Column(name, kind, whole + (fsp + 1) // 2, fsp=fsp)


def _decimal(name: str, precision: int, scale: int, table: str) -> Column:
    if not (1 <= precision <= MOST_DIGITS and scale <= min(precision, MOST_SCALE)):
        raise damaged(
            f"the table map of {table} has a decimal of {precision} digits, {scale} behind the "
            f"point"
        )
    width = decimal_bytes(precision - scale) + decimal_bytes(scale)
    return Column(name, Kind.DECIMAL, width, precision=precision, scale=scale)


def _string(name: str, first: int, second: int, table: str) -> Stored:
    """Its first byte of metadata is the real type, with two bits of the length in it, turned
    over.
    """
    real, size = first, second
    if first & 0x30 != 0x30:
        real, size = first | 0x30, second | (first & 0x30 ^ 0x30) << 4
    if real in (247, 248):
        if not 1 <= second <= (2 if real == 247 else 8):
            raise damaged(f"the table map of {table} has labels in {second} bytes")
        return Stored(real, Column(name, Kind.ENUM if real == 247 else Kind.SET, second))
    if real != 254:
        raise damaged(f"the table map of {table} has a CHAR of type {real}")
    return Stored(real, Column(name, Kind.TEXT, 0, 1 + (size > 255), size=size))


def _no_place(name: str, number: int, table: str) -> Exception:
    called = _NAMES.get(number, "one that is not known")
    step = (
        f"ALTER TABLE {table} FORCE writes the column anew in today's form; start from a position "
        f"after that"
        if number in _OLD_TIMES
        else f"leave {table} out of the wanted tables, or change the column's type and start from "
        f"a position after that"
    )
    return unreadable(
        "column_type", f"column {name!r} of {table} has the type {number} ({called})", step
    )
