"""What the server says of a table: :class:`onceward.sql.sink.dialect.Catalogue`. Driver only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from onceward.errors import ConfigurationError, ContradictoryOptions, TableMissing
from onceward.sql.ledger.database import Session
from onceward.sql.ledger.table import BATCHES
from onceward.sql.mysql.types import parsed, why_no_key
from onceward.sql.sink.columns import Column, Table
from onceward.sql.sink.order import Reference

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
    counts = "auto_increment" in extra
    return Column(
        name,
        kind,
        required=not_null and default is None and not counts and not generated,
        not_null=not_null,
        generated=generated,
        # A null becomes the next number, or with some settings this moment.
        replaces_null=counts or (not_null and parsed(kind)[0] == "timestamp"),
        collation=collation,
        charset=None if charset == _EVERYTHING else _SPELLED.get(charset or "", charset),
        no_key=why_no_key(kind),
    )


def _relation(connection: Session, name: str, ledger: str) -> _Relation:
    schema, own_name = _parts(name)
    found = [
        row
        for row in connection.execute(_RELATION, (schema, own_name))
        if row[4] != 0 or row[1] == own_name
    ]
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
        raise ConfigurationError(
            f"table {name} is kept by the engine {engine}, and only what {_ENGINE} keeps goes "
            "with a transaction",
            next_step=f"ALTER TABLE … ENGINE = {_ENGINE}; or write to another table",
        )
    return _Relation(str(schema), str(own_name))


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
    """Return the foreign keys between these tables, those of a table to itself included."""
    relations = {table.oid for table in tables if isinstance(table.oid, _Relation)}
    rows = [
        (oid, _Relation(*name))
        for oid in relations
        for name in connection.execute(_REFERENCES, oid)
    ]
    return [Reference(child, parent) for child, parent in rows if parent in relations]


def find_schema(connection: Session, table: str) -> tuple[str, str]:
    """Return the database of a table, and the table's identity at the server."""
    schema, name = _parts(table)
    found = connection.execute(_RELATION, (schema, name)).fetchone()
    if found is None:
        raise TableMissing(f"table {table} is gone", next_step="start the query again")
    return str(found[0]), f"{found[0]}.{found[1]}"


def staging_left(connection: Session, schema: str, prefix: str) -> list[str]:
    """List the tables of a database whose names begin with ``prefix``."""
    return [str(name) for (name,) in connection.execute(_LEFT, (schema, len(prefix), prefix))]
