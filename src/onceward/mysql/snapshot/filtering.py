"""Filters the stream's changes while a snapshot is under way: only rows whose chunk has come pass.
Tasks.

An update that moves a row from the read part of a table to the unread one, or back, is two changes
anyway, and each passes, or does not, by its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from onceward.mysql.binlog.blocks import RowBlock, merge_changes
from onceward.mysql.binlog.decoder import Decoder
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.snapshot.keys import Key, Mask, Query, is_behind
from onceward.mysql.snapshot.state import State, key_changed_error, parse_key
from onceward.mysql.source.connection import Server
from onceward.mysql.source.settings import ChangesSettings

KeyFilter = Callable[[TableMap, Sequence[pa.Array]], Mask]
"""Returns a mask of keys, one column of them each."""


def filter_changes(
    state: State, query: Query, blocks: Iterable[RowBlock], values: ValueForm
) -> pa.Table:
    """Return the changes of ``blocks`` that pass in a batch that starts with ``state``; all are of
    one file, in its order: :data:`CHANGES`.

    :param query: compares texts on the server; called only if a key has one.
    :raises ChangeUnreadable: the primary key of the table under way is another one, or as
        ``merge_changes``.
    """
    left = {tuple(each) for each in state["left"]}
    under_way = None if state["table"] is None else tuple(state["table"])
    whole_blocks: list[RowBlock] = []
    filtered_blocks: list[RowBlock] = []
    for block in blocks:
        name = (block.map.db, block.map.table)
        if name in left:
            continue
        if name != under_way or block.kind == "truncate":
            whole_blocks.append(block)
        else:
            filtered_blocks.append(block)
    is_done = range_filter(parse_key(state["key"] or []), None, state["after"], query)
    return select_changes(filtered_blocks, is_done, values, whole_blocks)


def range_filter(
    key: Key, after: list[str] | None, up_to: list[str] | None, query: Query
) -> KeyFilter:
    """Return the filter of keys behind ``after`` and not behind ``up_to``."""

    def choice(table: TableMap, keys: Sequence[pa.Array]) -> Mask:
        check_binlog_key(table, key)
        found = np.ones(len(keys[0]), np.bool_)
        if after is not None:
            found &= _compare(key, after, table, keys, query)
        if up_to is not None:
            found &= ~_compare(key, up_to, table, keys, query)
        return found

    return choice


def check_binlog_key(table: TableMap, key: Key) -> None:
    """Check the primary key.

    :raises ChangeUnreadable: the binlog says that the table has another one.
    """
    columns = [table.columns[place] for place in table.key]
    if [(column.name, column.kind) for column in columns] != [
        (column.name, column.kind) for column in key
    ]:
        raise key_changed_error(table.db, table.table)


def select_changes(
    blocks: Iterable[RowBlock],
    choice: KeyFilter,
    values: ValueForm,
    others: Sequence[RowBlock] = (),
) -> pa.Table:
    """Return the changes of those rows of ``blocks`` that ``choice`` takes by their keys, and all
    of ``others``; of one file, in its order.
    """
    parts = [part for block in blocks for part in _split_block(block, choice)]
    changes = merge_changes([*parts, *others], values)
    # Blocks are put in order by events, and the two halves of an update here are in different
    # ones.
    if parts:
        return changes.sort_by([(name, "ascending") for name in ("pos", "inner", "row")])
    return changes


def _split_block(block: RowBlock, choice: KeyFilter) -> list[RowBlock]:
    if not block.images.num_rows:
        return []
    mask = choice(block.map, [block.images.column(place) for place in block.map.key])
    if block.kind != "update":
        return _select_rows(block, block.kind, mask)
    old, new = mask[0::2], mask[1::2]
    both = np.repeat(old & new, 2)
    deleted, inserted = np.zeros(len(mask), np.bool_), np.zeros(len(mask), np.bool_)
    deleted[0::2], inserted[1::2] = old & ~new, new & ~old
    return [
        *_select_rows(block, "update", both),
        *_select_rows(block, "delete", deleted),
        *_select_rows(block, "insert", inserted),
    ]


def _select_rows(block: RowBlock, kind: str, rows: Mask) -> list[RowBlock]:
    if not rows.any():
        return []
    selected = block if rows.all() else block.select(rows)
    return [replace(selected, kind=kind)]  # type: ignore[arg-type]


def _compare(
    key: Key, place: list[str], table: TableMap, keys: Sequence[pa.Array], query: Query
) -> Mask:
    try:
        return is_behind(key, place, keys, query)
    except pa.ArrowException:
        # A place that the column's type does not have any more
        raise key_changed_error(table.db, table.table) from None


@contextmanager
def snapshot_filter(
    settings: ChangesSettings, state: State
) -> Iterator[Callable[[Decoder], pa.Table]]:
    """Return, for a task's ``with`` block, a function in the place of ``Decoder.flush`` for a
    batch that starts with ``state``: it returns only changes of rows whose chunk has come.
    Everything that a decoder was fed between two calls must be of one file.
    """
    sessions: list[Server] = []

    def query(statement: str) -> Sequence[tuple[Any, ...]]:
        if not sessions:
            sessions.append(Server(settings))
        return sessions[0].query(statement)

    try:
        yield lambda decoder: filter_changes(state, query, decoder.blocks(), settings.values)
    finally:
        for server in sessions:
            server.close()
