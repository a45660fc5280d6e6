"""One column of a table as a table map has it: its name, its type, and how its cells lie in a row.
Pure values.

What each type becomes in Arrow stands in :mod:`onceward.mysql.binlog.values`. Source of the
numbers: MySQL's ``field_types.h`` and ``rows_event.h`` ("Table_column_type_to_number"), MariaDB's
``field_types.h`` for 140 and 141.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
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


TEMPORAL = frozenset({Kind.DATE, Kind.TIME, Kind.DATETIME, Kind.TIMESTAMP})
"""Held as MySQL's own text, which alone has a place for 0000-00-00 and its kin."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``width`` is the bytes of a cell, where all cells have as many; else
    ``length_bytes`` is how many bytes of length are before each of them, little-endian.
    """

    name: str
    kind: Kind
    width: int = 0
    length_bytes: int = 0
    nullable: bool = True
    unsigned: bool = False
    precision: int = 0
    """Of a decimal, its digits."""
    scale: int = 0
    """Of a decimal, those behind the point."""
    fsp: int = 0
    """Of a time, the digits of its fraction of a second."""
    bits: int = 0
    """Of a bit column."""
    size: int = 0
    """Of a CHAR or BINARY, its greatest length in bytes: BINARY has as many."""
    padded: bool = False
    """A BINARY, whose zeros at the end are not in the binlog."""
    charset: str = ""
    """By MySQL's name; of a text, an enum, a set."""
    labels: tuple[str, ...] = ()
    """Of an enum or a set."""
    packed: bool = False
    """One of MariaDB's COMPRESSED columns."""
    geometry: int = 0
    """Which of the geometry types, as the server counts them."""
    visible: bool = True

    @property
    def is_single_bit(self) -> bool:
        """``BIT(1)``, which is true or false."""
        return self.kind is Kind.BIT and self.bits == 1
