"""The state of a snapshot, and its next chunks. JSON values; beside the driver.

::

    {"left": [[database, table], …],    # not begun
     "table": [database, table],        # under way, or null
     "key": […], "after": […],          # its primary key, and the place behind which rows are left
     "chunks": [                        # what the batch brings that ends with this state
        {"table": …, "key": …, "after": … or null, "up_to": … or null, "ts_ms": …}, …]}

A chunk is the rows behind ``after`` and not behind ``up_to``. The last one of a table has no end:
rows that come there later are the stream's. A table that is neither left nor under way is done,
also one that was created later: its first row comes from the stream.
"""

from __future__ import annotations

import time
from typing import Any

from onceward.errors import ChangeUnreadable, OncewardError, ServerMisconfigured
from onceward.mysql.binlog.event import SET_GTIDS, START_ANEW, Dialect
from onceward.mysql.binlog.sql_tables import quote_table
from onceward.mysql.snapshot.catalogue import (
    TableDescription,
    describe_table,
    list_selected_tables,
)
from onceward.mysql.snapshot.keys import Key, KeyColumn, KeyPlace, Query, range_condition
from onceward.mysql.source.connection import Server, error_number
from onceward.mysql.source.settings import ChangesSettings, Position

State = dict[str, Any]
Chunk = dict[str, Any]

CHUNK_BYTES = 16 << 20
"""As the server counts them; as JSON a few times as many."""
MOST = 200_000
"""Rows of a chunk."""
_ROWS_UNKNOWN = 1_000
_SMALL = 1 / 16
"""Part of a whole chunk that the last one of a table counts: most tables are small."""
# ER_NO_SUCH_TABLE, ER_BAD_DB_ERROR
_MISSING = (1146, 1049)
CHUNKS = 8
"""In a batch: so many tasks have something to read."""


def begin_snapshot(server: Server, settings: ChangesSettings, start: Position) -> State:
    """Return the state for ``start.snapshot``. Called beside the driver, once ``start``, the
    beginning of the stream, is known: a table that is created between the two is in both, and one
    that is listed before would be in neither.

    :raises ServerMisconfigured: there can be no snapshot of a selected table, or of this server.
    :raises AccessDenied: a table may not be read, or not all columns of it.
    """
    _must_have_gtids(server, settings, start)
    return new_state(server, list_selected_tables(server, settings))


def change_tables(
    server: Server, settings: ChangesSettings, before: ChangesSettings, at: Position
) -> State | None:
    """Return the state for ``at.snapshot`` where ``before`` was selected up to there: tables that
    are new join it, and those that are not selected any more leave it. None: nothing is left.

    :raises ServerMisconfigured, AccessDenied: as :func:`begin_snapshot`, of tables that are new.
    """
    tables = [one for one in list_selected_tables(server, settings) if not before.selects(*one)]
    if tables:
        _must_have_gtids(server, settings, at)
    state = new_state(server, tables)
    if at.snapshot is not None:
        kept = [one for one in at.snapshot["left"] if settings.selects(*one)]
        under_way = at.snapshot["table"]
        if under_way is not None and settings.selects(*under_way):
            state |= {name: at.snapshot[name] for name in ("table", "key", "after")}
        state["left"] = kept + state["left"]
    return None if is_over(state) else state


def _must_have_gtids(server: Server, settings: ChangesSettings, start: Position) -> None:
    if server.dialect == "mysql" and (
        start.gtids is None or server.variables("gtid_mode")["gtid_mode"] != "ON"
    ):
        raise ServerMisconfigured(
            f"{settings.where} has not given each transaction a GTID, so nobody can say which of "
            "them its tables have",
            next_step=f"{SET_GTIDS}, and FLUSH BINARY LOGS; or use another start than initial",
        )


def advance_snapshot(
    server: Server,
    state: State,
    *,
    caught_up: bool,
    chunks: int = CHUNKS,
    rows: int | None = None,
) -> State | None:
    """Return the state of the end of a batch that starts with ``state``, or None if the snapshot
    is over, and this batch and all that follow are of the stream alone. Called beside the driver;
    may take seconds.

    :param caught_up: the batch's end is where the binlog ended just now; else it brings no chunks.
    :param chunks: that it brings, or so: the ends of tables count less.
    :param rows: of a chunk; None: by the size of a table's rows.
    :raises ServerMisconfigured: a table has changed, so that there can be no snapshot of it.
    :raises ChangeUnreadable: the primary key of the table under way is another one.
    """
    if is_over(state):
        return None
    if not caught_up:
        return {**state, "chunks": []}
    left, table, key, after = list(state["left"]), state["table"], state["key"], state["after"]
    found: list[Chunk] = []
    now, room, table_now = time.time_ns() // 1_000_000, float(chunks), None
    while room > 0 and (table is not None or left):
        if table is None:
            table, table_now, key, after = left.pop(0), None, None, None
        if table_now is None:
            table_now = describe_if_there(server.query, server.dialect, table, key)
            # Its DROP or RENAME is in the stream, which stops there by name
            if table_now is None:
                table = None
                continue
            key = [column.to_json() for column in table_now.key]
        end = _find_chunk_end(server.query, table_now, after, rows or rows_per_chunk(table_now))
        found.append({"table": table, "key": key, "after": after, "up_to": end, "ts_ms": now})
        room -= _SMALL if end is None else 1
        if end is None:
            table, key = None, None
        after = end
    return {"left": left, "table": table, "key": key, "after": after, "chunks": found}


def new_state(server: Server, tables: list[tuple[str, str]]) -> State:
    """Return a state in which nothing is done yet.

    :param tables: all selected ones that were there at some moment after the start of the stream.
    :raises ServerMisconfigured: there can be no snapshot of one of them.
    :raises AccessDenied: of one not all columns may be read.
    """
    for database, table in tables:
        describe_table(server.query, server.dialect, database, table)
        # This takes a privilege on all columns.
        server.query(f"SELECT * FROM {quote_table(database, table)} LIMIT 0")  # noqa: S608
    left = [list(each) for each in tables]
    return {"left": left, "table": None, "key": None, "after": None, "chunks": []}


def is_over(state: State) -> bool:
    """Check whether there are no more chunks than those in the state."""
    return not state["left"] and state["table"] is None


def parse_key(key: list[dict[str, str]]) -> Key:
    """Parse the key of a state or a chunk."""
    return tuple(KeyColumn.from_json(each) for each in key)


def check_same_key(before: Key, now: Key, database: str, table: str) -> None:
    """Check the primary key.

    :raises ChangeUnreadable: it was altered while the snapshot was under way.
    """
    if [column.meaning for column in before] != [column.meaning for column in now]:
        raise key_changed_error(database, table)


def key_changed_error(database: str, table: str) -> OncewardError:
    """Return the error of an altered primary key."""
    return ChangeUnreadable(
        f"the primary key of {database}.{table} was altered while a snapshot of it was under way",
        next_step=START_ANEW,
        details={"reason": "ddl", "table": f"{database}.{table}"},
    )


def is_missing(error: BaseException) -> bool:
    """Check whether the server says that there is no such table; not that it may not be seen."""
    return error_number(error) in _MISSING


def describe_if_there(
    query: Query, dialect: Dialect, table: list[str], key: Any
) -> TableDescription | None:
    """Describe a table whose primary key is still ``key``, if that is known; None without it."""
    name = quote_table(*table)
    try:
        query(f"SELECT * FROM {name} LIMIT 0")  # noqa: S608 — quoted
    except Exception as error:
        if is_missing(error):
            return None
        raise
    found = describe_table(query, dialect, *table)
    if key is not None:
        check_same_key(parse_key(key), found.key, *table)
    return found


def _find_chunk_end(
    query: Query, table: TableDescription, after: KeyPlace | None, rows: int
) -> KeyPlace | None:
    """Return the place of a chunk's last row; None where the table ends before."""
    columns = ", ".join(column.expression for column in table.key)
    order = ", ".join(column.quoted for column in table.key)
    found = query(
        f"SELECT {columns} FROM {table.quoted} FORCE INDEX (PRIMARY) WHERE "  # noqa: S608
        f"{range_condition(table.key, after, None)} ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"
    )
    if found:
        return [column.place(answer) for column, answer in zip(table.key, found[0], strict=True)]
    return None


def rows_per_chunk(table: TableDescription) -> int:
    """Return how many rows come to :data:`CHUNK_BYTES`."""
    if table.row_bytes:
        return min(MOST, max(1, CHUNK_BYTES // table.row_bytes))
    return _ROWS_UNKNOWN
