"""Which changes of the stream are let through while a snapshot is under way: those of rows whose
chunk has come. Tasks.

What if an update moves a row from where the snapshot was to where it was not, or back? It is two
changes anyway, and each is let through, or not, by its own key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from onceward.mysql.binlog.blocks import CHANGES, Block, in_order
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.texts import Values
from onceward.mysql.snapshot.keys import Ask, Key, Mask, behind
from onceward.mysql.snapshot.state import State, key_changed, key_of

Choice = Callable[[TableMap, Sequence[pa.Array]], Mask]
"""Of keys, one column of them each, those that are taken."""


class Passing:
    """Of the state at which a batch starts.

    :param ask: whom to ask for the order of texts; called only if a key has one.
    """

    def __init__(self, state: State, ask: Ask) -> None:
        self._left = {tuple(each) for each in state["left"]}
        self._under_way = None if state["table"] is None else tuple(state["table"])
        self._key: Key = key_of(state["key"] or [])
        self._after = state["after"]
        self._ask = ask

    def changes(self, blocks: Iterable[Block], values: Values) -> pa.Table:
        """What passes of ``blocks``, all of which are of one file, in its order: :data:`CHANGES`.

        :raises ChangeUnreadable: the primary key of the table under way is another one, or see
            ``in_order``.
        """
        passed: list[Block] = []
        chosen: list[Block] = []
        for block in blocks:
            name = (block.map.db, block.map.table)
            if name in self._left:
                continue
            if name != self._under_way or block.kind == "truncate":
                passed.append(block)
            else:
                chosen.append(block)
        return taken(chosen, self._done, values, passed)

    def _done(self, table: TableMap, keys: Sequence[pa.Array]) -> Mask:
        must_have_key(table, self._key)
        return ~_behind(self._key, self._after, table, keys, self._ask)


def within(key: Key, after: list[str] | None, up_to: list[str] | None, ask: Ask) -> Choice:
    """The keys behind ``after`` and not behind ``up_to``."""

    def choice(table: TableMap, keys: Sequence[pa.Array]) -> Mask:
        must_have_key(table, key)
        found = np.ones(len(keys[0]), np.bool_)
        if after is not None:
            found &= _behind(key, after, table, keys, ask)
        if up_to is not None:
            found &= ~_behind(key, up_to, table, keys, ask)
        return found

    return choice


def must_have_key(table: TableMap, key: Key) -> None:
    """:raises ChangeUnreadable: the binlog says that the table's primary key is another one."""
    columns = [table.columns[place] for place in table.key]
    if [(column.name, column.kind) for column in columns] != [
        (column.name, column.kind) for column in key
    ]:
        raise key_changed(table.db, table.table)


def taken(
    blocks: Iterable[Block], choice: Choice, values: Values, others: Sequence[Block] = ()
) -> pa.Table:
    """The changes of those rows of ``blocks`` that ``choice`` takes by their keys, and all of
    ``others``; of one file, in its order.
    """
    parts = [part for block in blocks for part in _parts(block, choice)]
    changes = in_order([*parts, *others], values)
    # Blocks are put in order by events, and the two halves of an update here are in different
    # ones.
    return (
        changes.sort_by([(name, "ascending") for name in ("pos", "inner", "row")])
        if parts
        else changes
    )


def _parts(block: Block, choice: Choice) -> list[Block]:
    if not block.images.num_rows:
        return []
    took = choice(block.map, [block.images.column(place) for place in block.map.key])
    if block.kind != "update":
        return _some(block, block.kind, took)
    old, new = took[0::2], took[1::2]
    both = np.repeat(old & new, 2)
    gone, come = np.zeros(len(took), np.bool_), np.zeros(len(took), np.bool_)
    gone[0::2], come[1::2] = old & ~new, new & ~old
    return [
        *_some(block, "update", both),
        *_some(block, "delete", gone),
        *_some(block, "insert", come),
    ]


def _some(block: Block, kind: str, rows: Mask) -> list[Block]:
    if not rows.any():
        return []
    return [replace(block if rows.all() else block.only(rows), kind=kind)]  # type: ignore[arg-type]


def _behind(
    key: Key, place: list[str], table: TableMap, keys: Sequence[pa.Array], ask: Ask
) -> Mask:
    try:
        return behind(key, place, keys, ask)
    except pa.ArrowException:  # a place that the column's type does not have any more
        raise key_changed(table.db, table.table) from None


__all__ = ["CHANGES", "Passing", "taken", "within"]
