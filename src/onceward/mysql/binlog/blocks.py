"""Rows of a table, decoded, and the changes that they are. Pure; called by :mod:`changes`, and
:func:`snapshot_changes` by what reads a snapshot.

A change is one row of :data:`CHANGES`. An update that gives a row another primary key is two: the
row with the old one is deleted, and one with the new one is created, so that whoever works by key
sees both.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import ChangeUnreadable, OncewardError
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.gtid_text import gtid_text
from onceward.mysql.binlog.refusals import BadCell, damaged, located
from onceward.mysql.binlog.rows import Block as Bytes
from onceward.mysql.binlog.rows import Found, Layout, Mask, Numbers
from onceward.mysql.binlog.stops import NO_PASSES, Passes, row_place
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.texts import Values, key_texts, row_texts
from onceward.mysql.binlog.values import columns_of

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
"""What a change is. ``pos``, ``inner`` and ``row`` are the order of those of a file; of an update
the row before has an even number and the one after the next.
"""

_MOST_NAMED = 100
"""Rows in one error."""
What = Literal["insert", "update", "delete", "truncate"]
_OPS = {"insert": "c", "delete": "d", "truncate": "t"}


@dataclass
class Source:
    """The events that rows are from."""

    events: list[Event] = field(default_factory=list)
    gtids: list[Event | str | None] = field(default_factory=list)
    """Of each, the first event of its transaction, or that one's name."""
    fed: list[int] = field(default_factory=list)
    """Of each, its number among all that were fed."""
    passes: Passes = NO_PASSES

    def located(self, error: OncewardError, event: int) -> OncewardError:
        """``error`` with the place of that event."""
        return located(error, self.events[event], gtid_text(self.gtids[event]))


class _Refused:
    """The rows of a block that cannot be read: those that a person has passed over are left out,
    and of the others all are named at once.
    """

    def __init__(self, source: Source, kind: What) -> None:
        self._source, self._pair = source, 2 if kind == "update" else 1
        self._first: tuple[OncewardError, int] | None = None
        self._names: list[str] = []

    def kept(self, error: BadCell, event: Numbers, row: Numbers) -> Mask:
        """All rows but the one of ``error``; of an update both.

        :raises BinlogDamaged: it is none that a server writes.
        """
        number, place = int(event[error.row]), int(row[error.row])
        source = self._source
        if not isinstance(error.error, ChangeUnreadable):
            raise source.located(error.error, number) from None
        first = error.row - error.row % self._pair
        at = source.events[number]
        if not any(source.passes.row(at, int(each)) for each in row[first : first + self._pair]):
            self._first = self._first or (error.error, number)
            self._names.append(row_place(at, place))
            if len(self._names) >= _MOST_NAMED:
                self.stop()
        kept = np.ones(len(event), np.bool_)
        kept[first : first + self._pair] = False
        return kept

    def stop(self) -> None:
        """:raises ChangeUnreadable: one was not passed over."""
        if self._first is not None:
            error, number = self._first
            source = self._source
            raise located(
                error, source.events[number], gtid_text(source.gtids[number]), rows=self._names
            ) from None


@dataclass(frozen=True)
class Block:
    """Rows of one table, all inserted, all deleted, or all updated, in the binlog's order; or one
    truncation of it.
    """

    map: TableMap
    kind: What
    images: pa.RecordBatch
    """Rows as they were or have become, of the types in :mod:`onceward.mysql.binlog.values`; of
    updates in turns, before and after. Of a truncation none.
    """
    event: Numbers
    """Which of the source's events each image is from."""
    row: Numbers
    """How manieth of that event it is."""
    source: Source

    def only(self, rows: Mask) -> Block:
        """Those of its rows."""
        images = self.images.filter(pa.array(rows))
        return replace(self, images=images, event=self.event[rows], row=self.row[rows])

    @functools.cached_property
    def before(self) -> pa.RecordBatch | None:
        """Of updates and deletions, the rows as they were."""
        if self.kind == "update":
            return self.images.take(pa.array(np.arange(0, self.images.num_rows, 2)))
        return self.images if self.kind == "delete" else None

    @functools.cached_property
    def after(self) -> pa.RecordBatch | None:
        """Of insertions and updates, what they have become."""
        if self.kind == "update":
            return self.images.take(pa.array(np.arange(1, self.images.num_rows, 2)))
        return self.images if self.kind == "insert" else None


class Pending:
    """The rows of a table's events that were fed and are not decoded yet, all of one kind."""

    def __init__(
        self, map: TableMap, layout: Layout, kind: What, passes: Passes, most_rows: int
    ) -> None:
        self.map = map
        self.kind = kind
        self.source = Source(passes=passes)
        self._layout = layout
        self._parts: list[bytes | bytearray] = []
        self._most_rows = max(1, most_rows // 2) * 2  # of updates none without its other half
        self._rest: tuple[Bytes, Found] | None = None

    def add(
        self, event: Event, gtid: Event | str | None, fed: int, rows: bytes | bytearray
    ) -> None:
        """An event, and the part of it that is its rows."""
        source = self.source
        source.events.append(event)
        source.gtids.append(gtid)
        source.fed.append(fed)
        self._parts.append(rows)

    def block(self) -> Block:
        """The next rows of it.

        :raises BinlogDamaged: a row is none. :raises ChangeUnreadable: a value of it has no place
            here.
        """
        data, found = self._rest or self._walked()
        most = self._most_rows
        self._rest = (data, found.only(slice(most, None))) if len(found.event) > most else None
        found = found.only(slice(most)) if self._rest else found
        refused = _Refused(self.source, self.kind)
        while True:
            try:
                images = columns_of(self.map, data, found.columns)
                break
            except BadCell as error:
                found = found.only(refused.kept(error, found.event, found.row))
        refused.stop()
        return Block(self.map, self.kind, images, found.event, found.row, self.source)

    @property
    def has_more(self) -> bool:
        """Are there rows that the last block had no place for?"""
        return self._rest is not None

    def _walked(self) -> tuple[Bytes, Found]:
        data = Bytes.of(self._parts, self.map.columns)
        try:
            found = self._layout.rows(data)
        except BadCell as error:
            raise self.source.located(error.error, error.row) from None
        if self.kind == "update":
            odd = np.flatnonzero(np.bincount(found.event) & 1)
            if len(odd):
                raise self.source.located(
                    damaged("an update has a row before without the one after"), int(odd[0])
                )
        return data, found


def truncation(map: TableMap, event: Event, gtid: Event | str | None, fed: int) -> Block:
    """That all rows of a table went at once, of which the binlog does not say what they were."""
    nothing = pa.RecordBatch.from_arrays([], names=[])
    one = np.zeros(1, np.int64)
    return Block(map, "truncate", nothing, one, one, Source([event], [gtid], [fed]))


def changes_of(block: Block, values: Values) -> pa.Table:
    """A block as :data:`CHANGES`.

    :raises ChangeUnreadable: a value has no place in that form.
    """
    return _numbered(block, values)[0]


def in_order(blocks: Iterable[Block], values: Values) -> pa.Table:
    """The changes of several, in the binlog's order.

    :raises ChangeUnreadable: see :func:`changes_of`.
    """
    made = [_numbered(block, values) for block in blocks]
    if len(made) < 2:
        return made[0][0] if made else CHANGES.empty_table()
    order = np.argsort(np.concatenate([fed for _, fed in made]), kind="stable")
    return pa.concat_tables([table for table, _ in made]).combine_chunks().take(pa.array(order))


def snapshot_changes(
    map: TableMap,
    rows: pa.RecordBatch,
    values: Values,
    *,
    ts_ms: int,
    gtid: str | None,
    file: str,
    pos: int,
    inner: int = 0,
    first_row: int = 0,
    server_id: int = 0,
) -> pa.Table:
    """Rows that a SELECT gave as :data:`CHANGES` with the op ``r``, all of them at one place of
    the binlog.

    :param rows: with a column for each of ``map``'s, see
        :mod:`onceward.mysql.binlog.values.from_text`.
    :raises ChangeUnreadable: a value has no place in that form.
    """
    count = rows.num_rows
    try:
        texts, keys = row_texts(map, rows, values), key_texts(map, rows, values)
    except BadCell as error:
        raise error.error from None
    numbers = np.arange(first_row, first_row + count, dtype=np.int32)
    return pa.table(
        [
            pa.repeat("r", count), pa.repeat(map.db, count), pa.repeat(map.table, count), keys,
            pa.nulls(count, pa.string()), texts, pa.repeat(pa.scalar(ts_ms, pa.int64()), count),
            pa.repeat(pa.scalar(gtid, pa.string()), count), pa.repeat(file, count),
            pa.repeat(pa.scalar(pos, pa.int64()), count),
            pa.repeat(pa.scalar(inner, pa.int32()), count),
            pa.array(numbers), pa.repeat(pa.scalar(server_id, pa.int64()), count),
        ],
        schema=CHANGES,
    )  # fmt: skip


def _numbered(block: Block, values: Values) -> tuple[pa.Table, Numbers]:
    """With the number by which changes of several blocks are put in order."""
    if block.kind == "truncate":
        nothing = pa.nulls(1, pa.string())
        return _table(block, pa.array(["t"]), (nothing, nothing, nothing), block.event, block.row)
    refused = _Refused(block.source, block.kind)
    while True:
        try:
            texts, keys = (
                row_texts(block.map, block.images, values),
                key_texts(block.map, block.images, values),
            )
            break
        except BadCell as error:
            block = block.only(refused.kept(error, block.event, block.row))
    refused.stop()
    count = len(texts)
    if block.kind == "update":
        return _updates(block, keys, texts)
    nothing = pa.nulls(count, pa.string())
    columns = (keys, nothing, texts) if block.kind == "insert" else (keys, texts, nothing)
    return _table(block, pa.repeat(_OPS[block.kind], count), columns, block.event, block.row)


def _updates(block: Block, keys: pa.Array, texts: pa.Array) -> tuple[pa.Table, Numbers]:
    old, new = np.arange(0, len(texts), 2), np.arange(1, len(texts), 2)
    moved = np.zeros(len(old), np.bool_)
    if block.map.key:
        moved = pc.not_equal(keys.take(pa.array(old)), keys.take(pa.array(new))).to_numpy(
            zero_copy_only=False
        )
    if not moved.any():
        columns = (keys.take(pa.array(new)), texts.take(pa.array(old)), texts.take(pa.array(new)))
        return _table(block, pa.repeat("u", len(old)), columns, block.event[new], block.row[new])
    # A moved row stands twice: deleted first, then created.
    twice = np.repeat(np.arange(len(old)), 1 + moved)
    second = np.concatenate([np.zeros(1, np.bool_), twice[1:] == twice[:-1]])
    deleted, created = moved[twice] & ~second, second
    image = np.where(deleted, old[twice], new[twice])
    columns = (
        keys.take(pa.array(image)),
        texts.take(pa.array(old[twice], mask=created)),
        texts.take(pa.array(new[twice], mask=deleted)),
    )
    ops = pa.array(np.where(deleted, "d", np.where(created, "c", "u")).tolist(), pa.string())
    return _table(block, ops, columns, block.event[image], block.row[image])


def _table(
    block: Block,
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
        """Of the event of each change."""
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
    return table, np.array(source.fed, np.int64)[event]
