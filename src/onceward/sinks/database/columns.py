"""Does a frame fit a table? Pure: values in, values out, and errors that name the column.

A column fits if *every* value of its type can be stored in the table's and read back the same. Whatever depends on the
value is left to the server where it refuses what does not fit, and looked at here where it would not: a `numeric` is
rounded, a `timestamp` of lower precision too, an explicit cast to `varchar(3)` cuts, and a plain one cuts spaces.

===================  ==========================  ===================================================================
column of the frame  staged as                   may become
===================  ==========================  ===================================================================
byte, short          smallint                    any integer type, numeric with room, real, double precision
int                  integer                     integer, bigint, numeric with room, double precision
bigint               bigint                      bigint, numeric with room
decimal(p,s)         numeric(p,s)                numeric with room; integers of enough digits where s = 0
float                real                        real, double precision
double               double precision            double precision
boolean              boolean                     boolean
string               text                        text, varchar (too long a value is refused by name), citext; json,
                                                 jsonb, uuid, xml, inet, cidr, macaddr, enums; interval and time, in
                                                 microseconds
binary               bytea                       bytea
date                 date                        date, timestamp
timestamp            timestamp with time zone    the same, in microseconds
timestamp_ntz        timestamp without time zone the same, in microseconds
array of one of      …[]                         an array of just that type
these
===================  ==========================  ===================================================================

Others (struct, map, variant, intervals) are refused by name: ``to_json`` makes a string of them, for ``jsonb``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceward.errors import BadColumn

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
_DIGITS = {"smallint": 5, "integer": 10, "bigint": 19}  # that a numeric needs for all values
_HOLDS_DIGITS = {"smallint": 4, "integer": 9, "bigint": 18}  # that all fit
_WIDER = {
    "smallint": ("integer", "bigint", "real", "double precision"),
    "integer": ("bigint", "double precision"),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
}
_TEXTS = ("text", "character varying", "citext")
_PARSED = (
    "json", "jsonb", "uuid", "xml", "inet", "cidr", "macaddr", "macaddr8", "interval", "time without time zone",
)  # fmt: skip
_TYPE = re.compile(r"(?P<name>[^(\[]*?)\s*(?:\((?P<mods>[\d,-]+)\)(?P<rest>[^\[]*))?(?P<array>(?:\[\])*)")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as the server tells it (a domain as what it stands for)."""

    name: str
    type: str
    """By ``format_type``: ``numeric(10,2)``, ``character varying(3)``, ``timestamp with time zone`` …"""
    required: bool = False
    """Rows without it are refused: neither nullable nor with a default."""
    not_null: bool = False
    generated: bool = False
    """The server writes it, and refuses whoever else does."""
    own_equality: bool = False
    """Values that differ may be the same to the table: another case, or a collation that is not deterministic."""
    enum: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the database."""

    name: str
    """As the user calls it."""
    sql: str
    """Schema and name, quoted."""
    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...] = ()
    """The columns of each unique index on which a conflict can be found."""
    oid: int = 0
    """What it is to the server, however it is spelled."""
    has_children: bool = False
    """Other tables inherit from it, and no unique index holds for all of them."""


@dataclass(frozen=True, slots=True)
class Written:
    """A column of the frame on its way into a table."""

    name: str
    cast: str | None = None
    """To what the staged value is cast, where assigning it does not do."""
    longest: int | None = None
    """How many characters the table's column takes; None: any number."""


def staged_columns(schema: StructType) -> dict[str, str]:
    """The columns of a frame, and the types that they are staged with.

    :raises BadColumn: a type that cannot be staged, a name that comes twice or that is ours.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        if field.name in found or field.name.startswith("onceward_"):
            raise BadColumn(
                f"column {field.name!r} cannot be written: "
                + (
                    "there are two of that name" if field.name in found else "names with 'onceward_' are the sink's own"
                ),
                next_step="rename it (withColumnRenamed)",
            )
        found[field.name] = _staged(field.name, field.dataType)
    return found


def _staged(name: str, kind: DataType) -> str:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType) and not isinstance(kind.elementType, ArrayType):
        return f"{_staged(name, kind.elementType)}[]"
    for known, staged in _STAGED.items():
        if isinstance(kind, known):
            return staged
    raise BadColumn(
        f"column {name!r} has the type {kind.simpleString()}, which no column of a table can hold without loss",
        next_step="make a string of it with to_json(…), for a column of type jsonb; or leave it out with drop(…)",
    )


def fit(
    staged: Mapping[str, str], table: Table, control: Sequence[str], ordering: Sequence[str], key: Sequence[str]
) -> tuple[Written, ...]:
    """What of a frame goes into ``table``, and how.

    :param staged: as :func:`staged_columns` gives them.
    :param control: columns that are never written.
    :param ordering: columns that are written where the table has them.
    :raises BadColumn: naming the column that does not fit, or is missing on either side.
    """
    theirs = {column.name: column for column in table.columns}
    for name in (*control, *ordering, *key):
        if name not in staged:
            raise BadColumn(
                f"the frame has no column {name!r}", next_step=f"add it; the frame has {', '.join(map(repr, staged))}"
            )
    written = []
    for name, kind in staged.items():
        if name in control or (name in ordering and name not in theirs and name not in key):
            continue
        if name not in theirs:
            raise BadColumn(
                f"table {table.name} has no column {name!r}",
                next_step=_alike(name, theirs) or f"add it to the table, or leave it out with drop({name!r})",
            )
        written.append(_fitting(name, kind, theirs[name], table))
    if not written:
        raise BadColumn(
            f"the frame has no column for table {table.name}", next_step="add the columns that are to be written"
        )
    for column in table.columns:
        if column.required and column.name not in {one.name for one in written}:
            raise BadColumn(
                f"the frame has no column {column.name!r}, which table {table.name} requires",
                next_step="add it to the frame, or give it a default in the table",
            )
    must_be_a_key(key, table)
    return tuple(written)


def _alike(name: str, theirs: Mapping[str, Column]) -> str | None:
    near = next((other for other in theirs if other.lower() == name.lower()), None)
    return near and f"rename it to {near!r}, as the table spells it"


def must_be_a_key(key: Sequence[str], table: Table) -> None:
    """:raises BadColumn: rows of ``table`` cannot be told apart by ``key``."""
    if not key:
        return
    if frozenset(key) not in table.unique:
        named = ", ".join(f'"{name}"' for name in key)
        raise BadColumn(
            f"table {table.name} has no unique index on just the columns of key=({named}), by which the server could "
            "tell that a row is there",
            next_step=f"CREATE UNIQUE INDEX ON {table.sql} ({named}); or pass the columns of an index that it has",
        )
    if table.has_children:
        raise BadColumn(
            f"other tables inherit from table {table.name}, and no unique index holds over all of them",
            next_step="use a partitioned table, or one that stands alone",
        )
    for column in table.columns:
        if column.name in key and column.own_equality:
            raise BadColumn(
                f"column {column.name!r} of table {table.name} is part of the key, and to its type or collation values "
                "that differ are the same",
                next_step="use a column of type text or varchar with a deterministic collation as the key, such as a "
                "lower-cased copy",
            )
        if column.name in key and not column.not_null:
            raise BadColumn(
                f"column {column.name!r} of table {table.name} is part of the key and may be null, and a null is "
                "never the same as another",
                next_step=f'ALTER TABLE {table.sql} ALTER COLUMN "{column.name}" SET NOT NULL',
            )


def _fitting(name: str, staged: str, column: Column, table: Table) -> Written:
    if column.generated:
        raise BadColumn(
            f"column {name!r} of table {table.name} is generated by the server",
            next_step=f"leave it out with drop({name!r})",
        )
    base, mods, array = _parsed(column.type)
    ours, our_mods, our_array = _parsed(staged)
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
        raise BadColumn(
            f"column {name!r} does not fit: the frame's becomes {staged}, and table {table.name} has {column.type}, "
            "which cannot hold all of its values as they are",
            next_step="cast it in the frame to a type that fits, so that what to do with the others is said there; or "
            "change the table's",
        )
    return Written(name, cast, longest)


def _has_room(ours: str, our_mods: tuple[int, ...], mods: tuple[int, ...]) -> bool:
    if ours == "numeric":
        precision, scale = our_mods
    elif ours in _DIGITS:
        precision, scale = _DIGITS[ours], 0
    else:
        return False  # what is binary has no exact decimal of a few digits
    if not mods:
        return True
    theirs, their_scale = (*mods, 0)[:2]
    return their_scale >= scale and theirs - their_scale >= precision - scale


def _parsed(kind: str) -> tuple[str, tuple[int, ...], str]:
    """``timestamp(3) with time zone[]`` → ``("timestamp with time zone", (3,), "[]")``."""
    found = _TYPE.fullmatch(kind)
    if found is None:
        return kind, (), ""
    mods = tuple(int(part) for part in found["mods"].split(",")) if found["mods"] else ()
    return found["name"] + (found["rest"] or ""), mods, found["array"]
