"""What of a snapshot is done, under way and left, and which chunks come next. JSON values; beside
the driver.

::

    {"left": [[database, table], …],    # not begun
     "table": [database, table],        # under way, or null
     "key": […], "after": […],          # of that: its primary key, and the place behind which rows are left
     "chunks": [                        # what the batch brings at whose end this state is
        {"table": …, "key": …, "after": … or null, "up_to": … or null, "ts_ms": …}, …]}

A chunk is the rows behind ``after`` and not behind ``up_to``. The last one of a table has no end:
rows that come there later are the stream's. A table that is neither left nor under way is done,
also one that was made later: its first row comes from the stream.
"""

from __future__ import annotations

import time
from typing import Any

from onceward.errors import ChangeUnreadable, OncewardError
from onceward.mysql.binlog.kinds import Dialect
from onceward.mysql.snapshot.catalogue import Described, described, quoted_table
from onceward.mysql.snapshot.keys import Ask, Key, KeyColumn, Place, within
from onceward.mysql.source.connection import said_number

State = dict[str, Any]
Chunk = dict[str, Any]

CHUNK_BYTES = 16 << 20
"""As the server counts them; as texts of JSON a few times as many."""
FEWEST, MOST = 1_000, 200_000
"""Rows of a chunk."""
_ROWS_UNKNOWN = 20_000
_SMALL = 1 / 16
"""Of a whole chunk, what the last one of a table counts: most tables are small."""
MISSING = (1146, 1049)  # ER_NO_SUCH_TABLE, ER_BAD_DB_ERROR


def begun(ask: Ask, dialect: Dialect, tables: list[tuple[str, str]]) -> State:
    """Nothing is done yet.

    :param tables: all that are wanted and were there at some moment after the start of the stream.
    :raises ServerUnfit: there can be no snapshot of one of them.
    :raises AccessDenied: of one not all columns may be read.
    """
    for database, table in tables:
        described(ask, dialect, database, table)
        ask(f"SELECT * FROM {quoted_table(database, table)} LIMIT 0")  # noqa: S608 — quoted; a right for all columns
    return {
        "left": [list(each) for each in tables],
        "table": None,
        "key": None,
        "after": None,
        "chunks": [],
    }


def is_over(state: State) -> bool:
    """There are no more chunks than those in it."""
    return not state["left"] and state["table"] is None


def waiting(state: State) -> State:
    """The same, of a batch without chunks."""
    return {**state, "chunks": []}


def further(
    ask: Ask, dialect: Dialect, state: State, chunks: int, rows: int | None = None
) -> State:
    """Behind the next ``chunks`` chunks, or so: the ends of tables count less.

    :param rows: of a chunk; None: by the size of a table's rows.
    :raises ServerUnfit: a table is not as it was, so that there can be no snapshot of it.
    :raises ChangeUnreadable: the primary key of the table under way is another one.
    """
    left, table, key, after = list(state["left"]), state["table"], state["key"], state["after"]
    found: list[Chunk] = []
    now, room, known = time.time_ns() // 1_000_000, float(chunks), None
    while room > 0 and (table is not None or left):
        if table is None:
            table, known, key, after = left.pop(0), None, None, None
        if known is None:
            known = _still_there(ask, dialect, table, key)
            if known is None:  # its DROP or RENAME is in the stream, which stops there by name
                table = None
                continue
            key = [column.to_json() for column in known.key]
        end = _end(ask, known, after, rows or _rows_of(known))
        found.append({"table": table, "key": key, "after": after, "up_to": end, "ts_ms": now})
        room -= _SMALL if end is None else 1
        if end is None:
            table, key = None, None
        after = end
    return {"left": left, "table": table, "key": key, "after": after, "chunks": found}


def key_of(said: list[dict[str, str]]) -> Key:
    """From a state or a chunk."""
    return tuple(KeyColumn.from_json(each) for each in said)


def must_be_same(known: Key, now: Key, database: str, table: str) -> None:
    """:raises ChangeUnreadable: the primary key was altered while the snapshot was under way."""
    if known != now:
        raise key_changed(database, table)


def key_changed(database: str, table: str) -> OncewardError:
    return ChangeUnreadable(
        f"the primary key of {database}.{table} was altered while a snapshot of it was under way",
        next_step="start the query with a new checkpoint",
        details={"reason": "ddl", "table": f"{database}.{table}"},
    )


def is_missing(error: BaseException) -> bool:
    """Does the server say that there is no such table? Not that it may not be seen."""
    return said_number(error) in MISSING


def _still_there(ask: Ask, dialect: Dialect, table: list[str], key: Any) -> Described | None:
    name = quoted_table(*table)
    try:
        ask(f"SELECT * FROM {name} LIMIT 0")  # noqa: S608 — quoted
    except Exception as error:
        if is_missing(error):
            return None
        raise
    found = described(ask, dialect, *table)
    if key is not None:
        must_be_same(key_of(key), found.key, *table)
    return found


def _end(ask: Ask, table: Described, after: Place | None, rows: int) -> Place | None:
    """Of a chunk: the place of its last row; None where the table ends before."""
    said = ", ".join(column.said for column in table.key)
    order = ", ".join(column.quoted for column in table.key)
    found = ask(
        f"SELECT {said} FROM {table.quoted} FORCE INDEX (PRIMARY) WHERE "  # noqa: S608
        f"{within(table.key, after, None)} "
        f"ORDER BY {order} LIMIT 1 OFFSET {rows - 1}"
    )
    return (
        [column.place(answer) for column, answer in zip(table.key, found[0], strict=True)]
        if found
        else None
    )


def _rows_of(table: Described) -> int:
    return (
        min(MOST, max(FEWEST, CHUNK_BYTES // table.row_bytes))
        if table.row_bytes
        else _ROWS_UNKNOWN
    )


__all__ = [
    "Chunk", "State", "begun", "further", "is_missing", "is_over", "key_changed", "key_of",
    "must_be_same", "waiting",
]  # fmt: skip
