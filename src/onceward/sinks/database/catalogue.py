"""What the server says of a table. Driver only; one question for the columns, one for the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from onceward.errors import TableMissing
from onceward.sinks.database.columns import Column, Table

if TYPE_CHECKING:
    import psycopg

_RELATION = """
SELECT c.oid, format('%%I.%%I', n.nspname, c.relname), c.relkind::text
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"""
_COLUMNS = """
SELECT a.attname,
    CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
         ELSE format_type(a.atttypid, a.atttypmod) END,
    a.attnotnull OR t.typnotnull,
    a.atthasdef OR t.typdefault IS NOT NULL OR a.attidentity <> '',
    a.attgenerated <> '' OR a.attidentity = 'a',
    CASE WHEN t.typtype = 'd' THEN base.typtype ELSE t.typtype END = 'e'
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid LEFT JOIN pg_type base ON base.oid = t.typbasetype
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""
_TABLES = ("r", "p")  # relkind: also partitioned ones


def table_named(connection: psycopg.Connection[Any], name: str) -> Table:
    """The table that ``name`` means to the server (``table`` or ``schema.table``, quoted where SQL wants it).

    :raises TableMissing: there is none, or it is a view or the like.
    """
    found = connection.execute(_RELATION, (name,)).fetchone()
    if found is None or found[2] not in _TABLES:
        what = "does not exist" if found is None else "is no table, but a view or the like"
        raise TableMissing(
            f"table {name} {what} in the database of the sink's url",
            next_step="create it, with the columns of the frame; or correct table=, which is spelled as in SQL: "
            'schema.table, and names with capital letters as "Name"',
        )
    oid, sql, _ = found
    columns = [
        Column(
            column, kind, required=not_null and not default and not generated, not_null=not_null, generated=generated,
            enum=enum,
        )
        for column, kind, not_null, default, generated, enum in connection.execute(_COLUMNS, (oid,))
    ]  # fmt: skip
    unique = [frozenset(keys) for (keys,) in connection.execute(_UNIQUE, (oid,))]
    return Table(name, sql, tuple(columns), tuple(unique))


def schema_of(connection: psycopg.Connection[Any], table: str) -> str:
    """The schema that has a table, quoted."""
    found = connection.execute(
        "SELECT quote_ident(n.nspname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.oid = to_regclass(%s)",
        (table,),
    ).fetchone()
    if found is None:
        raise TableMissing(f"table {table} is gone", next_step="start the query again")
    return str(found[0])
