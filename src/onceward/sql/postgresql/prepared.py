"""Prepared transactions in PostgreSQL: how the driver ends them, and what it tells tasks. Driver
only.

Sources: PREPARE TRANSACTION, COMMIT PREPARED and ``pg_prepared_xacts`` in PostgreSQL's manual. A
name has fewer than 200 bytes, and is one for the whole server; only who has prepared it may end
it, in the same database. What is prepared outlasts session and server, synchronous_commit or not.
COMMIT PREPARED shows the rows before it forgets the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.errors import ConfigurationError
from onceward.ids import MARK_LENGTH
from onceward.sql.ledger.database import Session
from onceward.sql.postgresql.preparing import Landing
from onceward.sql.postgresql.types import parsed
from onceward.sql.sink.columns import Table, Written
from onceward.sql.sink.dialect import Beside

_MOST_BYTES = 199
_BEHIND_THE_MARK = 91
"""Of a name: owner, attempt, frame, partition, task attempt, the transaction's number, as large as
they may be.
"""

longest_pipeline = _MOST_BYTES - 1 - MARK_LENGTH - _BEHIND_THE_MARK

create_markers = """
CREATE TABLE IF NOT EXISTS {table} (
    pipeline text NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (pipeline, name)
)"""

_UNKNOWN = "42704"
_NAME = re.compile(r"[A-Za-z0-9._@-]+")

_SENT_AS = {
    ("smallint", "integer"): "int32",
    ("smallint", "bigint"): "int64",
    ("integer", "bigint"): "int64",
    ("smallint", "real"): "float32",
    ("smallint", "double precision"): "float64",
    ("integer", "double precision"): "float64",
    ("real", "double precision"): "float64",
}
"""By the frame's type and the table's, where Arrow can widen every value to what the table has."""

_SHAPE = """
WITH RECURSIVE tree(oid) AS (
    SELECT {}::oid UNION ALL SELECT inhrelid FROM pg_inherits JOIN tree ON inhparent = tree.oid)
SELECT n.nspname::text, c.relname::text,
    md5(concat_ws('/', c.oid, c.relkind, c.relpersistence, c.relhasrules,
        row_security_active(c.oid),
        (SELECT string_agg(
            concat_ws(',', attname, atttypid, atttypmod, attnotnull, attgenerated, attidentity), ';'
                           ORDER BY attnum)
         FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped),
        (SELECT string_agg(oid::text, ',' ORDER BY oid) FROM tree),
        (SELECT string_agg(concat(t.oid, t.tgenabled), ',' ORDER BY t.oid) FROM pg_trigger t
         WHERE NOT t.tgisinternal AND t.tgrelid IN (SELECT oid FROM tree)))),
    NOT (c.relhasrules OR row_security_active(c.oid) OR EXISTS (
        SELECT 1 FROM pg_trigger t
        WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 7 = 7
        AND t.tgrelid IN (SELECT oid FROM tree)))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = {}"""
"""Schema and name; all that has to stay as it is until rows are written; and whether COPY would do
as INSERT does: it leaves rules aside, and does not say how many rows a trigger BEFORE each row (of
tgtype bits 1, 2 and 4) left out.
"""


def each_by_itself(session: Any) -> None:
    """Switch the session to autocommit: COMMIT PREPARED must run outside a transaction."""
    session.each_by_itself = True


def must_keep(session: Session) -> None:
    """Check that the server keeps prepared transactions.

    :raises ConfigurationError: by its settings it keeps none.
    """
    (most,) = session.execute(
        "SELECT current_setting('max_prepared_transactions')::int"
    ).fetchone()
    if most < 1:
        raise ConfigurationError(
            f"the server has max_prepared_transactions = {most}, and with xa=True each task of a "
            "batch prepares one",
            next_step="set it to at least the number of tasks of a batch, for all pipelines "
            "together (ALTER SYSTEM SET max_prepared_transactions = 100; it holds from the "
            "server's next start on), or leave xa= out",
        )


def listed(session: Session, beginning: str) -> list[str]:
    """List the names of transactions prepared in this database that begin with ``beginning``."""
    found = session.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND "
        "starts_with(gid, %s)",
        (beginning,),
    )
    return [str(name) for (name,) in found]


def commit(session: Session, name: str) -> bool:
    """Commit a prepared transaction; return False if the server has none of that name."""
    return _ended(session, "COMMIT", name)


def roll_back(session: Session, name: str) -> bool:
    """Roll back a prepared transaction; return False if the server has none of that name that this
    session may end.
    """
    return _ended(session, "ROLLBACK", name)


def _ended(session: Session, how: str, name: str) -> bool:
    import psycopg

    assert _NAME.fullmatch(name), name  # noqa: S101 — made by transaction_names
    try:
        session.execute(f"{how} PREPARED '{name}'")
    except psycopg.Error as error:
        if error.sqlstate == _UNKNOWN:
            return False
        raise
    return True


def landing(
    session: Session,
    connection: str,
    beside: Beside,
    staged: Mapping[str, str],
    table: Table,
    written: Sequence[Written],
) -> Landing:
    """Return what tasks need to write and prepare.

    :param connection: what libpq needs to connect.
    :raises ConfigurationError: the table has rules.
    """
    literal = table.sql.replace("'", "''")
    if session.execute(
        f"SELECT 1 FROM pg_rewrite WHERE ev_class = '{literal}'::regclass"  # noqa: S608
    ).fetchone():
        raise ConfigurationError(
            f"table {table.name} has rules, and with xa=True tasks write in a way that rules do "
            "not take part in, or that PostgreSQL does not carry out beside them",
            next_step="drop the rules (a trigger may do what they do), or leave xa= out",
        )
    asked = _SHAPE.replace("{}", f"'{literal}'::regclass")
    schema, name, shape, copies = session.execute(asked).fetchone()
    kinds = {column.name: column.type for column in table.columns}
    sent = {column.name: sent_as(staged[column.name], kinds[column.name]) for column in written}
    straight = {name: kind for name, kind in sent.items() if kind is not None}
    return Landing(
        connection, table, schema, name, asked, shape, staged, tuple(written), beside.markers,
        beside.mark,
        straight=straight if copies and len(straight) == len(sent) else None, home=beside.home,
    )  # fmt: skip


def sent_as(ours: str, theirs: str) -> str | None:
    """Return the Arrow type by which a column goes straight into the table by a binary COPY, which
    converts nothing: "" for its own type, None where only the server can convert it.
    """
    base, _, array = parsed(ours)
    their_base, _, their_array = parsed(theirs)
    if array != their_array:
        return None
    if base == their_base or (base, their_base) == ("text", "character varying"):
        return ""
    return None if array else _SENT_AS.get((base, their_base))
