"""Which types of Spark fit which of PostgreSQL. Pure.

What depends on the value and is not refused by the server is looked at here: a `numeric` is
rounded, a `timestamp` of lower precision too, an explicit cast to `varchar(3)` cuts, and a plain
one cuts spaces.

===================  ==========================  ==================================================
column of the frame  staged as                   may become
===================  ==========================  ==================================================
byte, short          smallint                    any integer type, numeric with room, real, double
                                                 precision
int                  integer                     integer, bigint, numeric with room, double
                                                 precision
bigint               bigint                      bigint, numeric with room
decimal(p,s)         numeric(p,s)                numeric with room; integers of enough digits where
                                                 s = 0
float                real                        real, double precision
double               double precision            double precision
boolean              boolean                     boolean
string               text                        text, varchar (too long a value is refused by
                                                 name), citext; json, jsonb, uuid, xml, inet, cidr,
                                                 macaddr, enums; interval and time, in microseconds
binary               bytea                       bytea
date                 date                        date, timestamp
timestamp            timestamp with time zone    the same, in microseconds
timestamp_ntz        timestamp without time zone the same, in microseconds
array of one of      …[]                         an array of just that type
these
===================  ==========================  ==================================================

Others (struct, map, variant, intervals) are refused by name: ``to_json`` makes a string of them,
for ``jsonb``.
"""

from __future__ import annotations

import re

from pyspark.sql.types import (
    ArrayType,
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

_STAGED: dict[type[DataType], str] = {
    ByteType: "smallint",
    ShortType: "smallint",
    IntegerType: "integer",
    LongType: "bigint",
    FloatType: "real",
    DoubleType: "double precision",
    BooleanType: "boolean",
    StringType: "text",
    BinaryType: "bytea",
    DateType: "date",
    TimestampType: "timestamp with time zone",
    TimestampNTZType: "timestamp without time zone",
}
# That a numeric needs for all values
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}
_HOLDS_DIGITS = {"smallint": 4, "integer": 9, "bigint": 18}  # that all fit
_WIDER = {
    "smallint": ("integer", "bigint", "real", "double precision"),
    "integer": ("bigint", "double precision"),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
}
_TEXTS = ("text", "character varying", "citext")
_PARSED = (
    "json", "jsonb", "uuid", "xml", "inet", "cidr", "macaddr", "macaddr8", "interval",
    "time without time zone",
)  # fmt: skip
_TYPE = re.compile(
    r"(?P<name>[^(\[]*?)\s*(?:\((?P<mods>[\d,-]+)\)(?P<rest>[^\[]*))?(?P<array>(?:\[\])*)"
)


def staged(name: str, kind: DataType) -> str:
    """Return the type by which a column of a frame is staged."""
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType) and not isinstance(kind.elementType, ArrayType):
        return f"{staged(name, kind.elementType)}[]"
    for spark_type, found in _STAGED.items():
        if isinstance(kind, spark_type):
            return found
    raise type_error(name, kind, "jsonb")


def fitting(name: str, staged: str, column: Column, table: Table) -> Written:
    """See :data:`onceward.sql.sink.columns.Fitting`."""
    if column.generated:
        raise generated_error(table.name, name)
    base, mods, array = parsed(column.type)
    ours, our_mods, our_array = parsed(staged)
    fits, cast = False, None
    longest = mods[0] if mods and base in _TEXTS else None
    if array or our_array:
        fits = array == our_array and base == ours and not mods
    elif ours == "text" and (base in _PARSED or column.enum) and not mods:
        fits, cast = True, column.type
    elif ours == "text":
        fits = base in _TEXTS
    elif base == "numeric":
        fits = _has_room(ours, our_mods, mods)
    elif ours == "numeric":
        precision, scale = our_mods
        fits = scale == 0 and precision <= _HOLDS_DIGITS.get(base, -1)
    else:
        fits = (base == ours or base in _WIDER.get(ours, ())) and (not mods or mods == (6,))
    if not fits:
        raise misfit_error(table.name, name, staged, column.type)
    return Written(name, cast, longest)


def _has_room(ours: str, our_mods: tuple[int, ...], mods: tuple[int, ...]) -> bool:
    if ours == "numeric":
        precision, scale = our_mods
    elif ours in _DIGITS:
        precision, scale = _DIGITS[ours], 0
    else:
        # What is binary has no exact decimal of a few digits
        return False
    if not mods:
        return True
    theirs, their_scale = (*mods, 0)[:2]
    return their_scale >= scale and theirs - their_scale >= precision - scale


def parsed(kind: str) -> tuple[str, tuple[int, ...], str]:
    """Parse ``timestamp(3) with time zone[]`` into ``("timestamp with time zone", (3,),
    "[]")``.
    """
    found = _TYPE.fullmatch(kind)
    if found is None:
        return kind, (), ""
    mods = tuple(int(part) for part in found["mods"].split(",")) if found["mods"] else ()
    return found["name"] + (found["rest"] or ""), mods, found["array"]
