"""What the server says of a table: :class:`onceward.sql.sink.dialect.Catalogue`. Driver only.

Which types of Spark fit which of MySQL and MariaDB. Pure.

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

Others (array, struct, map, variant, intervals) are refused by name: ``to_json`` makes ``json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.types import DataType, DecimalType

from onceward.errors import (
    AccessDenied,
    ContradictoryOptions,
    ServerMisconfigured,
    TableMissing,
)
from onceward.sql.ledger.database import Session, is_missing
from onceward.sql.ledger.table import BATCHES
from onceward.sql.sink.columns import (
    Column,
    Reference,
    Table,
    Written,
    generated_error,
    has_room,
    misfit_error,
    type_error,
)

TEXT = "longtext"
MOMENT = "timestamp(6)"
"""Staged as a ``datetime(6)`` in UTC, which has more years than the server's timestamps."""

_STAGED = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "boolean": "boolean",
    "string": TEXT,
    "binary": "longblob",
    "date": "date",
    "timestamp": MOMENT,
    "timestamp_ntz": "datetime(6)",
}
"""By the name of Spark's type."""
_BYTES = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "integer": 4, "bigint": 8}
# That a decimal needs for all values
_DIGITS = {"tinyint": (3, 0), "smallint": (5, 0), "int": (10, 0), "bigint": (19, 0)}
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
    if isinstance(kind, DecimalType) and kind.scale <= _MOST_SCALE:
        return f"decimal({kind.precision},{kind.scale})"
    if kind.typeName() not in _STAGED:
        raise type_error(name, kind, "json")
    return _STAGED[kind.typeName()]


def fitting(name: str, staged: str, column: Column, table: Table) -> Written:
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
        # What is binary has no exact decimal of a few digits
        digits = tuple(map(int, our_mods.split(","))) if ours == "decimal" else _DIGITS.get(ours)
        return digits is not None and has_room(map(int, mods.split(",")), digits)
    if ours == "decimal":
        precision, scale = map(int, our_mods.split(","))
        return scale == 0 and precision <= _HOLDS_DIGITS.get(base, -1)
    if base in ("float", "double") and mods:
        # rounded to so many digits
        return False
    if ours in ("timestamp", "datetime"):
        return f"{base}({mods})" == staged
    return base in _WIDER.get(ours, ())


def parsed(kind: str) -> tuple[str, str]:
    """Parse ``decimal(10,2) unsigned`` into ``("decimal", "10,2")``."""
    found = _TYPE.fullmatch(kind)
    return (found["name"], found["mods"] or "") if found else (kind, "")


_PART = r"\s*(?:`((?:[^`]|``)+)`|([0-9A-Za-z$_\u0080-\uffff]+))\s*"
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")
_RELATION = """
SELECT table_schema, table_name, table_type, engine, @@lower_case_table_names, DATABASE()
FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"""
_COLUMNS = """
SELECT column_name, column_type, is_nullable, column_default, extra,
    character_set_name, collation_name
FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
ORDER BY ordinal_position"""
_UNIQUE = """
SELECT index_name, column_name, sub_part
FROM information_schema.statistics
WHERE table_schema = %s AND table_name = %s AND non_unique = 0"""
_REFERENCES = """
SELECT unique_constraint_schema, referenced_table_name
FROM information_schema.referential_constraints WHERE constraint_schema = %s AND table_name = %s"""
_LEFT = (
    "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND "
    "LEFT(table_name, %s) = %s"
)
_DENIED = 1142
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
_ENGINE = "InnoDB"
# An alias that will mean another one
_SPELLED = {"utf8": "utf8mb3"}
# The character set in which every text has a place
_EVERYTHING = "utf8mb4"


class _Relation(NamedTuple):
    schema: str
    name: str

    @property
    def sql(self) -> str:
        return ".".join("`" + part.replace("`", "``") + "`" for part in self)


def locked(connection: Session, name: str, ledger: str) -> Table:
    """Take the metadata lock by reading no row: it lasts until the transaction ends."""
    # Quoted.
    relation = _relation(connection, name, ledger)
    connection.execute(f"SELECT 1 FROM {relation.sql} LIMIT 0")  # noqa: S608
    return table_named(connection, name, ledger)


def table_named(connection: Session, name: str, ledger: str) -> Table:
    relation = _relation(connection, name, ledger)
    columns = [_column(*row) for row in connection.execute(_COLUMNS, relation)]
    unique: dict[str, set[str]] = {}
    in_part = set()
    for index, column, part in connection.execute(_UNIQUE, relation):
        unique.setdefault(index, set()).add(column)
        # Of the first characters, or of an expression
        if part is not None or column is None:
            in_part.add(index)
    whole = tuple(frozenset(names) for index, names in unique.items() if index not in in_part)
    return Table(name, relation.sql, tuple(columns), whole, relation, quote="`")


def _column(
    name: str,
    kind: str,
    nullable: str,
    default: str | None,
    extra: str,
    charset: str | None,
    collation: str | None,
) -> Column:
    # Not the labels of an enum.
    words, quote, labels = kind.partition("'")
    kind, extra, not_null = words.lower() + quote + labels, extra.lower(), nullable == "NO"
    generated = "virtual" in extra or "stored" in extra or "persistent" in extra
    counts, base = "auto_increment" in extra, parsed(kind)[0]
    return Column(
        name,
        kind,
        required=not_null and default is None and not counts and not generated,
        not_null=not_null,
        generated=generated,
        # A null becomes the next number, or with some settings this moment.
        replaces_null=counts or (not_null and base == "timestamp"),
        collation=collation,
        charset=None if charset == _EVERYTHING else _SPELLED.get(charset or "", charset),
        no_key=f"is of type {base}, whose values are compared in a way of their own"
        if base in _NO_KEYS
        else "",
    )


def _relation(connection: Session, name: str, ledger: str) -> _Relation:
    schema, own_name = _parts(name)
    found = [
        row
        for row in connection.execute(_RELATION, (schema, own_name))
        if row[4] != 0 or row[1] == own_name
    ]
    if not found:
        _must_not_be_hidden(connection, name, schema, own_name)
    if not found or found[0][2] not in _TABLES:
        what = "is no plain table, but a view or the like" if found else "does not exist"
        raise TableMissing(
            f"table {name} {what} in the database of the sink's url",
            next_step="create it, with the columns of the frame; or correct table=, which is "
            "spelled as in SQL: database.table, and odd names as `Name`",
        )
    schema, own_name, _, engine, _, here = found[0]
    ledger_schema, ledger_name = _parts(ledger)
    if own_name.lower().startswith("onceward_") or (
        own_name in (ledger_name, ledger_name + BATCHES) and schema == (ledger_schema or here)
    ):
        raise ContradictoryOptions(
            f"table {name} is the sink's own",
            next_step="write rows to tables with names of their own",
        )
    if engine != _ENGINE:
        raise ServerMisconfigured(
            f"table {name} is kept by the engine {engine}, and only what {_ENGINE} keeps goes "
            "with a transaction",
            next_step=f"ALTER TABLE … ENGINE = {_ENGINE}; or write to another table",
        )
    return _Relation(str(schema), str(own_name))


def _must_not_be_hidden(connection: Session, name: str, *parts: str | None) -> None:
    """Let the server say what it has against a table that ``information_schema`` leaves out: "only
    the rows that correspond to objects for which the user has the proper access privileges"
    (MySQL's manual).
    """
    sql = ".".join("`" + part.replace("`", "``") + "`" for part in parts if part is not None)
    try:
        connection.execute(f"SELECT 1 FROM {sql} LIMIT 0")  # noqa: S608 — quoted
    except Exception as error:
        if is_missing(error):
            return
        if error.args[:1] != (_DENIED,):
            raise
        # Whoever has no right is told so also of a table that is not there
        raise AccessDenied(
            f"the login of the sink's url has no right on table {name}: {error.args[1]}",
            next_step="grant it SELECT and INSERT on the table (UPDATE and DELETE, too, unless "
            'mode="append"); or, if there is no such table, which the server does not tell that '
            "login, create it, or correct table=; then start the query again",
        ) from error


def _parts(name: str) -> tuple[str | None, str]:
    found = _NAME.fullmatch(name)
    if found is None:
        raise TableMissing(
            f"table {name} does not exist: that is no name of a table",
            next_step="spell it as in SQL: table, database.table, and odd names as `Name`",
        )
    quoted_schema, schema, quoted, plain = found.groups()
    within = (quoted_schema.replace("``", "`") if quoted_schema else schema) or None
    return within, quoted.replace("``", "`") if quoted else plain


def references(connection: Session, tables: Sequence[Table]) -> list[Reference]:
    relations = {table.oid for table in tables if isinstance(table.oid, _Relation)}
    rows = [
        (oid, _Relation(*name))
        for oid in relations
        for name in connection.execute(_REFERENCES, oid)
    ]
    return [Reference(child, parent) for child, parent in rows if parent in relations]


def find_schema(connection: Session, table: str) -> tuple[str, str]:
    schema, name = _parts(table)
    found = connection.execute(_RELATION, (schema, name)).fetchone()
    if found is None:
        raise TableMissing(f"table {table} is gone", next_step="start the query again")
    return str(found[0]), f"{found[0]}.{found[1]}"


def staging_left(connection: Session, schema: str, prefix: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(_LEFT, (schema, len(prefix), prefix))]
