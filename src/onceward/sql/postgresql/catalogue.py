"""What the server says of a table: :class:`onceward.sql.sink.dialect.Catalogue`. Driver only; one
question for the columns, one for the keys.

Of a partitioned table nothing is asked or locked in a way that locks each of its partitions
(``LOCK TABLE`` without ``ONLY`` does, and ``pg_partition_tree``): there may be thousands, and a
server has room for 64 locks a connection.

Which types of Spark fit which of PostgreSQL. Pure.

What depends on the value and is not refused by the server is looked at here: a `numeric` is
rounded, a `timestamp` of lower precision too, an explicit cast to `varchar(3)` cuts, and a plain
one cuts spaces. A `time` takes any text of a moment and drops its date and zone, and takes 'now'.

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
                                                 name), citext; json, jsonb (which keeps of a name
                                                 that is there twice the last value), uuid, xml,
                                                 inet, cidr, macaddr, enums; interval, in
                                                 microseconds; time, of a text that is nothing but
                                                 one
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
from collections.abc import Sequence
from typing import NamedTuple

from pyspark.sql.types import ArrayType, DataType, DecimalType

from onceward.errors import ContradictoryOptions, ServerMisconfigured, TableMissing
from onceward.sql.ledger.database import Session
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

_STAGED = {
    "byte": "smallint",
    "short": "smallint",
    "integer": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double precision",
    "boolean": "boolean",
    "string": "text",
    "binary": "bytea",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
}
"""By the name of Spark's type."""
# That a numeric needs for all values
_DIGITS = {"smallint": (5, 0), "integer": (10, 0), "bigint": (19, 0)}
_HOLDS_DIGITS = {"smallint": 4, "integer": 9, "bigint": 18}  # that all fit
_WIDER = {
    "smallint": ("integer", "bigint", "real", "double precision"),
    "integer": ("bigint", "double precision"),
    "real": ("double precision",),
    "date": ("timestamp without time zone",),
}
_TEXTS = ("text", "character varying", "citext")
_TIME = "time without time zone"
_PARSED = (
    "json", "jsonb", "uuid", "xml", "inet", "cidr", "macaddr", "macaddr8", "interval", _TIME,
)  # fmt: skip
_TIME_OF_DAY = "^[0-9]{1,2}:[0-9]{2}(:[0-5][0-9]([.][0-9]{1,6}0*)?)?$"
"""The server makes the next minute of a second 60, and rounds behind microseconds."""
_TYPE = re.compile(
    r"(?P<name>[^(\[]*?)\s*(?:\((?P<mods>[\d,-]+)\)(?P<rest>[^\[]*))?(?P<array>(?:\[\])*)"
)


def staged(name: str, kind: DataType) -> str:
    if isinstance(kind, DecimalType):
        return f"numeric({kind.precision},{kind.scale})"
    if isinstance(kind, ArrayType) and not isinstance(kind.elementType, ArrayType):
        return f"{staged(name, kind.elementType)}[]"
    if kind.typeName() not in _STAGED:
        raise type_error(name, kind, "jsonb")
    return _STAGED[kind.typeName()]


def fitting(name: str, staged: str, column: Column, table: Table) -> Written:
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
        # What is binary has no exact decimal of a few digits
        digits = our_mods if ours == "numeric" else _DIGITS.get(ours)
        fits = digits is not None and (not mods or has_room((*mods, 0)[:2], digits))
    elif ours == "numeric":
        precision, scale = our_mods
        fits = scale == 0 and precision <= _HOLDS_DIGITS.get(base, -1)
    else:
        fits = (base == ours or base in _WIDER.get(ours, ())) and (not mods or mods == (6,))
    if not fits:
        raise misfit_error(table.name, name, staged, column.type)
    return Written(name, cast, longest, pattern=_TIME_OF_DAY if cast and base == _TIME else "")


def parsed(kind: str) -> tuple[str, tuple[int, ...], str]:
    """Parse ``timestamp(3) with time zone[]``: ``("timestamp with time zone", (3,), "[]")``."""
    found = _TYPE.fullmatch(kind)
    if found is None:
        return kind, (), ""
    mods = tuple(int(part) for part in found["mods"].split(",")) if found["mods"] else ()
    return found["name"] + (found["rest"] or ""), mods, found["array"]


_RELATION = """
SELECT c.oid, format('%%I.%%I', n.nspname, c.relname), c.relkind::text, c.relname::text,
    c.relpersistence::text,
    c.relkind = 'r' AND EXISTS (SELECT 1 FROM pg_inherits WHERE inhparent = c.oid),
    EXISTS (SELECT 1 FROM pg_rewrite WHERE ev_class = c.oid AND is_instead),
    c.relkind = 'p' AND EXISTS (
        WITH RECURSIVE part(oid) AS (
            SELECT inhrelid FROM pg_inherits WHERE inhparent = c.oid
            UNION ALL SELECT inhrelid FROM pg_inherits JOIN part ON inhparent = part.oid)
        SELECT 1 FROM part JOIN pg_class is_part ON is_part.oid = part.oid
        WHERE is_part.relpersistence <> 'p' OR is_part.relkind = 'f'),
    c.oid IN (to_regclass(%s), to_regclass(%s)),
    current_setting('server_encoding'),
    row_security_active(c.oid) AND NOT (
        SELECT bool_or(polpermissive AND polcmd IN ('*', 'r') AND is_open)
            AND bool_or(polpermissive AND polcmd IN ('*', 'd') AND is_open)
            AND bool_and(polpermissive OR polcmd NOT IN ('*', 'r', 'd') OR is_open)
        FROM (SELECT *, coalesce(pg_get_expr(polqual, polrelid) = 'true', false) AS is_open
            FROM pg_policy
              WHERE polrelid = c.oid AND EXISTS (
                  SELECT 1 FROM unnest(polroles) AS role
                  WHERE CASE WHEN role = 0 THEN true ELSE pg_has_role(role, 'USAGE') END)) AS ours
    ) IS TRUE
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)"""
_COLUMNS = """
SELECT a.attname,
    CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
         ELSE format_type(a.atttypid, a.atttypmod) END,
    a.attnotnull OR t.typnotnull,
    a.atthasdef OR t.typdefault IS NOT NULL OR a.attidentity <> '',
    a.attgenerated <> '' OR a.attidentity = 'a',
    CASE WHEN t.typtype = 'd' THEN base.typtype ELSE t.typtype END = 'e',
    coalesce(base.typname, t.typname) IN ('bpchar', 'citext', 'interval', 'jsonb')
        OR NOT coalesce((SELECT collisdeterministic FROM pg_collation k
            WHERE k.oid = a.attcollation), true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
    LEFT JOIN pg_type base ON base.oid = t.typbasetype
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE = """
SELECT array_agg(a.attname::text)
FROM pg_index i JOIN pg_attribute a
    ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND NOT EXISTS (
    SELECT 1 FROM pg_collation k WHERE k.oid = ANY(i.indcollation) AND NOT k.collisdeterministic)
AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid"""
_LEFT = "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
_LEFT += "WHERE n.nspname = %s AND relkind = 'r' AND relname LIKE %s"
_REFERENCES = """
SELECT DISTINCT conrelid, confrelid, condeferrable FROM pg_constraint
WHERE contype = 'f' AND conrelid = ANY(%s) AND confrelid = ANY(%s)"""
# relkind: also partitioned ones
_TABLES = ("r", "p")


def locked(connection: Session, name: str, ledger: str) -> Table:
    """Take a lock that lasts until the transaction ends: not between reading and writing."""
    connection.execute(
        f"LOCK TABLE ONLY {_relation(connection, name, ledger).sql} IN ROW EXCLUSIVE MODE"
    )
    return table_named(connection, name, ledger)


def table_named(connection: Session, name: str, ledger: str) -> Table:
    relation = _relation(connection, name, ledger)
    rows = connection.execute(_COLUMNS, (relation.oid,))
    columns = [
        Column(
            column, kind, required=not_null and not default and not generated, not_null=not_null,
            generated=generated,
            enum=enum, own_equality=own_equality,
        )
        for column, kind, not_null, default, generated, enum, own_equality in rows
    ]  # fmt: skip
    unique = [frozenset(keys) for (keys,) in connection.execute(_UNIQUE, (relation.oid,))]
    return Table(
        name, relation.sql, tuple(columns), tuple(unique), relation.oid, relation.has_children,
        hides_rows=relation.hides_rows,
    )  # fmt: skip


class _Relation(NamedTuple):
    oid: int
    sql: str
    has_children: bool
    hides_rows: bool


def _relation(connection: Session, name: str, ledger: str) -> _Relation:
    found = connection.execute(_RELATION, (ledger, ledger + BATCHES, name)).fetchone()
    if found is None or found[2] not in _TABLES:
        what = "does not exist" if found is None else "is no table, but a view or the like"
        raise TableMissing(
            f"table {name} {what} in the database of the sink's url",
            next_step="create it, with the columns of the frame; or correct table=, which is "
            'spelled as in SQL: schema.table, and names with capital letters as "Name"',
        )
    oid, sql, _, own_name, persistence, has_children, instead, *others = found
    frail_part, is_ledger, encoding, hides_rows = others
    if is_ledger or own_name.startswith("onceward_"):
        raise ContradictoryOptions(
            f"table {name} is the sink's own",
            next_step="write rows to tables with names of their own",
        )
    why = (
        "is not logged, or has a partition that is not or that lies elsewhere: a crash may take "
        "what is decided"
        if persistence != "p" or frail_part
        else "has a rule that does something INSTEAD, so that what is written may not be "
             "there" if instead
        else "is in a database without an encoding (SQL_ASCII), so that texts are but "
             "bytes" if encoding == "SQL_ASCII"
        else ""
    )  # fmt: skip
    if why:
        raise ServerMisconfigured(
            f"table {name} {why}", next_step="write to another table, or change this one"
        )
    return _Relation(oid, sql, has_children, hides_rows)


def references(connection: Session, tables: Sequence[Table]) -> list[Reference]:
    oids = [table.oid for table in tables]
    return [Reference(*found) for found in connection.execute(_REFERENCES, (oids, oids))]


def find_schema(connection: Session, table: str) -> tuple[str, int]:
    found = connection.execute(
        "SELECT n.nspname::text, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = "
        "c.relnamespace WHERE c.oid = to_regclass(%s)",
        (table,),
    ).fetchone()
    if found is None:
        raise TableMissing(f"table {table} is gone", next_step="start the query again")
    return str(found[0]), int(found[1])


def staging_left(connection: Session, schema: str, prefix: str) -> list[str]:
    escaped = prefix.replace("_", r"\_")
    return [str(name) for (name,) in connection.execute(_LEFT, (schema, f"{escaped}%"))]
