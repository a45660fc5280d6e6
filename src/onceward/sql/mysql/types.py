"""Which types of Spark fit which of MySQL and MariaDB. Pure.

Without a word, whatever the strict mode, these servers pad a `char(n)` and a `binary(n)`, round a
`datetime(3)`, a `float(7,4)` and a `time(0)`, take '1' for the first label of an `enum`, and make
an empty `tinytext` of 256 bytes (it is copied from another kind of text, and its length in one
byte is 0): such types are refused, or looked at before.

===================  ==========================  ==================================================
column of the frame  staged as                   may become
===================  ==========================  ==================================================
byte, short, int,    tinyint, smallint, int,     any integer type of at least so many bytes (a
                                                 negative number is
bigint               bigint                      refused by an unsigned one); decimal with room;
                                                 byte and short also float, byte to int double
decimal(p,s)         decimal(p,s), s up to 30    decimal with room; integers of enough digits where
                                                 s = 0
float, double        float, double               the same or wider; infinity and NaN are refused by
                                                 name
boolean              boolean                     boolean, tinyint
string               longtext                    varchar, the four kinds of text (too long a value
                                                 is refused by name), enum; json (which keeps
                                                 numbers as doubles, and of a name that is there
                                                 twice the last value)
binary               longblob                    varbinary, the four kinds of blob
date                 date                        date, datetime
timestamp            datetime(6), in UTC         timestamp(6)
timestamp_ntz        datetime(6)                 datetime(6)
===================  ==========================  ==================================================

Others (array, struct, map, variant, intervals) are refused by name: ``to_json`` makes a string of
them, for ``json``.
"""

from __future__ import annotations

import re

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from onceward.sql.sink.columns import (
    Column,
    Table,
    Written,
    generated_error,
    misfit_error,
    type_error,
)

TEXT = "longtext"
MOMENT = "timestamp(6)"
"""Staged as a ``datetime(6)`` in UTC, which has more years than the server's timestamps."""

_STAGED: dict[type[DataType], str] = {
    ByteType: "tinyint",
    ShortType: "smallint",
    IntegerType: "int",
    LongType: "bigint",
    FloatType: "float",
    DoubleType: "double",
    BooleanType: "boolean",
    StringType: TEXT,
    BinaryType: "longblob",
    DateType: "date",
    TimestampType: MOMENT,
    TimestampNTZType: "datetime(6)",
}
_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
# That a decimal needs for all values
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
# That all fit
_HOLDS_DIGITS = {"tinyint": 2, "smallint": 4, "mediumint": 6, "int": 9, "bigint": 18}
_WIDER = {
    "tinyint": ("float", "double"),
    "smallint": ("float", "double"),
    "int": ("double",),
    "float": ("float", "double"),
    "double": ("double",),
    "boolean": ("tinyint",),
    TEXT: ("varchar", "tinytext", "text", "mediumtext", "longtext", "json"),
    "longblob": ("varbinary", "tinyblob", "blob", "mediumblob", "longblob"),
    "date": ("date", "datetime"),
}
_MOST_BYTES = {
    "tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1,
    "tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1,
}  # fmt: skip
# of a server's decimal
_MOST_SCALE = 30
_TYPE = re.compile(r"(?P<name>[a-z]+)(?:\((?P<mods>.*)\))?(?P<rest>[^)]*)", re.DOTALL)
_LABEL = re.compile(r"'((?:[^']|'')*)'")
_ESCAPED = re.compile(r"''|\\.", re.DOTALL)
_MEANT = {r"\n": "\n", r"\r": "\r", r"\0": "\0"}
_NO_KEYS = ("float", "double", "enum", "json")


def staged(name: str, kind: DataType) -> str:
    """Return the type by which a column of a frame is staged."""
    if isinstance(kind, DecimalType) and kind.scale <= _MOST_SCALE:
        return f"decimal({kind.precision},{kind.scale})"
    for spark_type, found in _STAGED.items():
        if isinstance(kind, spark_type):
            return found
    raise type_error(name, kind, "json")


def fitting(name: str, staged: str, column: Column, table: Table) -> Written:
    """See :data:`onceward.sql.sink.columns.Fitting`."""
    if column.generated:
        raise generated_error(table.name, name)
    base, mods = parsed(column.type)
    if staged == TEXT and base == "enum":
        return Written(name, labels=tuple(map(_unescaped, _LABEL.findall(mods))))
    if not _fits(staged, base, mods):
        raise misfit_error(table.name, name, staged, column.type)
    longest = int(mods) if base == "varchar" else None
    most_bytes = int(mods) if base == "varbinary" else _MOST_BYTES.get(base)
    return Written(
        name, None, longest, most_bytes, (), column.replaces_null, column.collation, column.charset
    )


def _unescaped(label: str) -> str:
    r"""Return a label of an enum as it is: servers list it with ``''``, ``\\``, ``\n``, ``\r``
    and ``\0`` (``append_unescaped`` in MySQL's sources).
    """
    return _ESCAPED.sub(lambda found: _MEANT.get(found[0], found[0][1:]), label)


def _fits(staged: str, base: str, mods: str) -> bool:
    ours, our_mods = parsed(staged)
    if ours in _BYTES and base in _BYTES:
        return _BYTES[base] >= _BYTES[ours]
    if base == "decimal":
        return _has_room(ours, our_mods, mods)
    if ours == "decimal":
        precision, scale = map(int, our_mods.split(","))
        return scale == 0 and precision <= _HOLDS_DIGITS.get(base, -1)
    if base in ("float", "double") and mods:
        # rounded to so many digits
        return False
    return (
        f"{base}({mods})" == staged
        if ours in ("timestamp", "datetime")
        else base in _WIDER.get(ours, ())
    )


def _has_room(ours: str, our_mods: str, mods: str) -> bool:
    if ours == "decimal":
        precision, scale = map(int, our_mods.split(","))
    elif ours in _DIGITS:
        precision, scale = _DIGITS[ours], 0
    else:
        # What is binary has no exact decimal of a few digits
        return False
    theirs, their_scale = map(int, mods.split(","))
    return their_scale >= scale and theirs - their_scale >= precision - scale


def parsed(kind: str) -> tuple[str, str]:
    """Parse ``decimal(10,2) unsigned`` into ``("decimal", "10,2")``."""
    found = _TYPE.fullmatch(kind)
    return (found["name"], found["mods"] or "") if found else (kind, "")


def why_no_key(kind: str) -> str:
    """Return why a column of that type cannot be part of a key; empty if it can."""
    base, _ = parsed(kind)
    if base in _NO_KEYS:
        return f"is of type {base}, whose values are compared in a way of their own"
    return ""
