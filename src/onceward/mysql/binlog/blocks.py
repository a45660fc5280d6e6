"""Decoded rows of a table, and the changes that they are. Pure; called by the decoder, and
:func:`snapshot_changes` by the snapshot.

A change is one row of :data:`CHANGES`. An update that gives a row another primary key is two: the
row with the old key is deleted, and one with the new key is created, so that a target that works
by key sees both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import ChangeUnreadable, OncewardError
from onceward.mysql.binlog.event import (
    NOTHING_SKIPPABLE,
    BinlogEvent,
    InvalidCell,
    Skippable,
    add_event,
    damaged_data,
    row_id,
)
from onceward.mysql.binlog.gtids import gtid_text
from onceward.mysql.binlog.json_rows import ValueForm, key_json, row_json
from onceward.mysql.binlog.rows import Mask, Numbers, RowCells, RowData, RowLayout
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import decode_columns

CHANGES = pa.schema([
    # c, u, d; t: the table was truncated; r: the row was there when a snapshot read it
    ("op", pa.string()),
    ("db", pa.string()),
    ("table", pa.string()),
    ("key", pa.string()),
    ("before", pa.string()),
    ("after", pa.string()),
    ("ts_ms", pa.int64()),
    ("gtid", pa.string()),
    ("file", pa.string()),
    ("pos", pa.int64()),
    ("inner", pa.int32()),
    ("row", pa.int32()),
    ("server_id", pa.int64()),
])  # fmt: skip
"""Schema of changes. ``pos``, ``inner`` and ``row`` are the order within a file; of an update the
row before has an even number and the one after the next.
"""

_MOST_NAMED = 100
"""Rows in one error."""
BlockKind = Literal["insert", "update", "delete", "truncate"]
_OPS = {"insert": "c", "delete": "d"}


@dataclass
class SourceEvents:
    """The events that rows are from."""

    events: list[BinlogEvent] = field(default_factory=list)
    gtids: list[BinlogEvent | str | None] = field(default_factory=list)
    """Of each, the first event of its transaction, or the GTID."""
    sequence: list[int] = field(default_factory=list)
    """Of each, its number among all that were fed."""
    skippable: Skippable = NOTHING_SKIPPABLE

    def locate(self, error: OncewardError, event: int, rows: Sequence[str] = ()) -> OncewardError:
        """Return ``error`` with the place of that event, or of rows in it."""
        return add_event(error, self.events[event], gtid_text(self.gtids[event]), rows=rows)


class _InvalidRows:
    """The unreadable rows of a block: skippable ones are dropped, one error names the others."""

    def __init__(self, source: SourceEvents, kind: BlockKind) -> None:
        self._source, self._pair = source, 2 if kind == "update" else 1
        self._first: tuple[OncewardError, int] | None = None
        self._names: list[str] = []

    def drop(self, error: InvalidCell, event: Numbers, row: Numbers) -> Mask:
        """Return a mask of all rows but the one of ``error``; of an update without both."""
        number, place = int(event[error.row]), int(row[error.row])
        source = self._source
        if not isinstance(error.error, ChangeUnreadable):
            raise source.locate(error.error, number) from None
        first = error.row - error.row % self._pair
        at, pair = source.events[number], row[first : first + self._pair]
        if not any(source.skippable.has_row(at, int(each)) for each in pair):
            self._first = self._first or (error.error, number)
            self._names.append(row_id(at, place))
            if len(self._names) >= _MOST_NAMED:
                self.raise_if_any()
        rows = np.ones(len(event), np.bool_)
        rows[first : first + self._pair] = False
        return rows

    def raise_if_any(self) -> None:
        """Raise the error of the rows that are not skippable."""
        if self._first is not None:
            error, number = self._first
            raise self._source.locate(error, number, self._names) from None


@dataclass(frozen=True)
class RowBlock:
    """Rows of one table, all of one kind, in the binlog's order; or one truncation of it."""

    map: TableMap
    kind: BlockKind
    images: pa.RecordBatch
    """Row images, of the types in :mod:`onceward.mysql.binlog.values`; of updates before and after
    in turns. Empty for a truncation.
    """
    event: Numbers
    """Index of each image's event in ``source``."""
    row: Numbers
    """Number of each image in its event."""
    source: SourceEvents

    def select(self, rows: Mask) -> RowBlock:
        """Return these rows."""
        images = self.images.filter(pa.array(rows))
        return replace(self, images=images, event=self.event[rows], row=self.row[rows])


class PendingRows:
    """The rows of a table's events that were fed and are not decoded yet, all of one kind."""

    def __init__(
        self,
        map: TableMap,
        layout: RowLayout,
        kind: BlockKind,
        skippable: Skippable,
        most_rows: int,
    ) -> None:
        self.map = map
        self.kind = kind
        self.source = SourceEvents(skippable=skippable)
        self._layout = layout
        self._parts: list[bytes | bytearray] = []
        # Of updates none without its other half
        self._most_rows = max(1, most_rows // 2) * 2
        self._rest: tuple[RowData, RowCells] | None = None

    def add(
        self,
        event: BinlogEvent,
        gtid: BinlogEvent | str | None,
        sequence: int,
        rows: bytes | bytearray,
    ) -> None:
        """Add an event, and the part of it that is its rows."""
        source = self.source
        source.events.append(event)
        source.gtids.append(gtid)
        source.sequence.append(sequence)
        self._parts.append(rows)

    def block(self) -> RowBlock:
        """Decode the next rows.

        :raises BinlogCorrupted: a row is damaged.
        :raises ChangeUnreadable: a value cannot be represented.
        """
        data, found = self._rest or self._walk()
        most = self._most_rows
        self._rest = (data, found.select(slice(most, None))) if len(found.event) > most else None
        found = found.select(slice(most)) if self._rest else found
        invalid = _InvalidRows(self.source, self.kind)
        while True:
            try:
                images = decode_columns(self.map, data, found.columns)
                break
            except InvalidCell as error:
                found = found.select(invalid.drop(error, found.event, found.row))
        invalid.raise_if_any()
        return RowBlock(self.map, self.kind, images, found.event, found.row, self.source)

    @property
    def has_more(self) -> bool:
        """Rows remain that did not fit into the last block."""
        return self._rest is not None

    def _walk(self) -> tuple[RowData, RowCells]:
        data = RowData.join(self._parts, self.map.columns)
        try:
            found = self._layout.rows(data)
        except InvalidCell as error:
            raise self.source.locate(error.error, error.row) from None
        if self.kind == "update":
            odd = np.flatnonzero(np.bincount(found.event) & 1)
            if len(odd):
                raise self.source.locate(
                    damaged_data("an update has a row before without the one after"), int(odd[0])
                )
        return data, found


def truncation_block(
    map: TableMap, event: BinlogEvent, gtid: BinlogEvent | str | None, sequence: int
) -> RowBlock:
    """Return the block of a TRUNCATE: all rows went at once, and the binlog does not name them."""
    nothing = pa.RecordBatch.from_arrays([], names=[])
    one = np.zeros(1, np.int64)
    return RowBlock(map, "truncate", nothing, one, one, SourceEvents([event], [gtid], [sequence]))


def merge_changes(blocks: Iterable[RowBlock], values: ValueForm) -> pa.Table:
    """Return the changes of several blocks, in the binlog's order.

    :raises ChangeUnreadable: a value has no place in that form.
    """
    result = [_changes_with_order(block, values) for block in blocks]
    if len(result) < 2:
        return result[0][0] if result else CHANGES.empty_table()
    order = np.argsort(np.concatenate([sequence for _, sequence in result]), kind="stable")
    return pa.concat_tables([table for table, _ in result]).combine_chunks().take(pa.array(order))


def snapshot_changes(
    map: TableMap, rows: pa.RecordBatch, values: ValueForm, *, ts_ms: int, file: str, pos: int
) -> pa.Table:
    """Return rows that a SELECT gave as :data:`CHANGES` with the op ``r``, all of them at one
    place of the binlog.

    :param rows: with a column for each of ``map``'s, see
        :func:`onceward.mysql.binlog.values.columns_from_text`.
    :raises InvalidCell: a value has no place in that form.
    """
    texts, keys = row_json(map, rows, values), key_json(map, rows, values)
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int32))
    return snapshot_table(map.db, map.table, keys, texts, numbers, ts_ms=ts_ms, file=file, pos=pos)


def snapshot_table(
    db: str, table: str, keys: pa.Array, rows: pa.Array, numbers: pa.Array, *, ts_ms: int,
    file: str, pos: int,
) -> pa.Table:  # fmt: skip
    """Return rows as :data:`CHANGES` with the op ``r``, by their keys, both as JSON."""
    values = {
        "op": "r", "db": db, "table": table, "ts_ms": ts_ms, "file": file, "pos": pos, "inner": 0,
        "server_id": 0,
    }  # fmt: skip
    columns = {"key": keys, "after": rows, "row": numbers}
    arrays = [
        columns.get(f.name, pa.repeat(pa.scalar(values.get(f.name), f.type), len(keys)))
        for f in CHANGES
    ]
    return pa.table(arrays, schema=CHANGES)


def _changes_with_order(block: RowBlock, values: ValueForm) -> tuple[pa.Table, Numbers]:
    """Return a block's changes, and the number by which changes of several blocks are ordered."""
    if block.kind == "truncate":
        none = pa.nulls(1, pa.string())
        return _changes_table(block, pa.array(["t"]), (none,) * 3, block.event, block.row)
    invalid = _InvalidRows(block.source, block.kind)
    while True:
        try:
            texts = row_json(block.map, block.images, values)
            keys = key_json(block.map, block.images, values)
            break
        except InvalidCell as error:
            block = block.select(invalid.drop(error, block.event, block.row))
    invalid.raise_if_any()
    count = len(texts)
    if block.kind == "update":
        return _update_changes(block, keys, texts)
    nothing = pa.nulls(count, pa.string())
    columns = (keys, nothing, texts) if block.kind == "insert" else (keys, texts, nothing)
    ops = pa.repeat(_OPS[block.kind], count)
    return _changes_table(block, ops, columns, block.event, block.row)


def _update_changes(block: RowBlock, keys: pa.Array, texts: pa.Array) -> tuple[pa.Table, Numbers]:
    old, new = np.arange(0, len(texts), 2), np.arange(1, len(texts), 2)
    has_new_key = np.zeros(len(old), np.bool_)
    if block.map.key:
        has_new_key = pc.not_equal(keys.take(pa.array(old)), keys.take(pa.array(new))).to_numpy(
            zero_copy_only=False
        )
    if not has_new_key.any():
        columns = (keys.take(pa.array(new)), texts.take(pa.array(old)), texts.take(pa.array(new)))
        return _changes_table(
            block, pa.repeat("u", len(old)), columns, block.event[new], block.row[new]
        )
    # A moved row stands twice: deleted first, then created.
    twice = np.repeat(np.arange(len(old)), 1 + has_new_key)
    second = np.concatenate([np.zeros(1, np.bool_), twice[1:] == twice[:-1]])
    deleted, created = has_new_key[twice] & ~second, second
    image = np.where(deleted, old[twice], new[twice])
    columns = (
        keys.take(pa.array(image)),
        texts.take(pa.array(old[twice], mask=created)),
        texts.take(pa.array(new[twice], mask=deleted)),
    )
    ops = pa.array(np.where(deleted, "d", np.where(created, "c", "u")).tolist(), pa.string())
    return _changes_table(block, ops, columns, block.event[image], block.row[image])


def _changes_table(
    block: RowBlock,
    ops: pa.Array,
    columns: tuple[pa.Array, pa.Array, pa.Array],
    event: Numbers,
    row: Numbers,
) -> tuple[pa.Table, Numbers]:
    count, source = len(ops), block.source
    events = source.events
    texts = [gtid_text(gtid) for gtid in source.gtids]
    alone = len(events) == count and (count == 0 or bool((event == np.arange(count)).all()))

    def each(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Return a value of each change's event."""
        if len(values) and values[0] == values[-1] and len(set(values)) == 1:
            return pa.repeat(pa.scalar(values[0], kind), count)
        array = pa.array(values, kind)
        return array if alone else array.take(pa.array(event))

    table = pa.table(
        [
            ops, pa.repeat(block.map.db, count), pa.repeat(block.map.table, count), *columns,
            each([each.timestamp * 1000 for each in events], pa.int64()),
            each(texts, pa.string()),
            each([each.file for each in events], pa.string()),
            each([each.position for each in events], pa.int64()),
            each([each.inner for each in events], pa.int32()),
            pa.array(row.astype(np.int32)),
            each([each.server_id for each in events], pa.int64()),
        ],
        schema=CHANGES,
    )  # fmt: skip
    return table, np.array(source.sequence, np.int64)[event]
