"""Rows events to cells: where each value of each row lies. Pure, and by column: numpy walks row
*k* of all events at once.

A rows event is one row behind the other, each a bitmap of its nulls and then its cells without a
gap, so a row's beginning is known when the one before it has been walked. Events of a table are
independent of each other, and a server cuts them at some 8 KiB: a block of a stream has hundreds,
whose rows with the same number are walked together. A few events with many rows are walked by a
loop that is generated for the table.

Nothing is read behind the bytes there are: lengths are cut to the end of the buffer as they are
read, and a row that runs past its event is an error. Source: MySQL ``sql/rpl_record.cc``
(``unpack_row``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.errors import OncewardError
from onceward.mysql.binlog.column_types import ColumnKind, TableColumn
from onceward.mysql.binlog.event import (
    HEADER_BYTES,
    PARTIAL_UPDATE_ROWS,
    ROWS_EVENTS,
    SECOND_VERSION,
    BinlogEvent,
    InvalidCell,
    damaged_data,
)
from onceward.mysql.binlog.fields import MetadataFields
from onceward.mysql.binlog.table_map import ID_BYTES, TableMap

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

TOGETHER = 12
"""Fewer events than this are walked one after the other."""
_SPARE = 16
"""Bytes behind a block that may be read, and mean nothing."""
_TOO_LONG = "a row runs past the end of its event"


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a column, by row. ``start`` of a null is arbitrary, its length 0."""

    start: Numbers
    length: Numbers | None
    """None where all have the column's width."""
    null: Mask | None
    """None where there is none."""

    def select(self, rows: Mask | slice) -> Cells:
        """Return the cells of these rows."""
        length, null = self.length, self.null
        return Cells(
            self.start[rows],
            None if length is None else length[rows],
            None if null is None else null[rows],
        )


@dataclass(frozen=True, slots=True)
class RowCells:
    """The cells of the rows of some events."""

    event: Numbers
    """Index of each row's event."""
    row: Numbers
    """Number of each row in its event."""
    columns: list[Cells]

    def select(self, rows: Mask | slice) -> RowCells:
        """Return these rows."""
        return RowCells(
            self.event[rows], self.row[rows], [cells.select(rows) for cells in self.columns]
        )


@dataclass(frozen=True, slots=True)
class RowData:
    """The row data of some events, one behind the other."""

    data: bytes
    numbers: Bytes
    """``data`` as an array."""
    start: Numbers
    stop: Numbers

    @staticmethod
    def join(
        parts: Sequence[bytes | bytearray | memoryview], columns: Sequence[TableColumn]
    ) -> RowData:
        """Join the parts, with enough bytes behind them to read cells before they are checked."""
        spare = bytes(_SPARE + 1 + sum(8 + max(column.width, 0) for column in columns))
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        stop = np.cumsum(lengths)
        data = b"".join((*parts, spare))
        return RowData(data, np.frombuffer(data, np.uint8), stop - lengths, stop)


class RowLayout:
    """How the rows of a table lie in bytes. Made once for each table."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self._columns = columns
        self._bitmap = (len(columns) + 7) // 8
        self._walk: Callable[..., int] | None = None
        always = (column.length_bytes or column.width for column in columns if not column.nullable)
        self.least_bytes = self._bitmap + sum(always)
        """Of a row."""

    def rows(self, block: RowData) -> RowCells:
        """Find the cells of all rows.

        :raises InvalidCell: a row runs past its event; its row is the number of that event.
        """
        event, start, stop = np.arange(len(block.start)), block.start, block.stop
        live = start < stop
        if not live.all():
            event, start, stop = event[live], start[live], stop[live]
        steps: list[tuple[Numbers, Numbers, list[Cells]]] = []
        number = 0
        while len(start) >= TOGETHER:
            end, cells = self._walk_together(block, start)
            fits = end <= stop
            if not fits.all():
                raise InvalidCell(int(event[int(np.argmin(fits))]), damaged_data(_TOO_LONG))
            steps.append((event, np.full(len(event), number), cells))
            number += 1
            live = end < stop
            if live.all():
                start = end
            else:
                event, start, stop = event[live], end[live], stop[live]
        if len(start):
            steps.append(self._walk_one_by_one(block, event, start, stop, number))
        return self._join(steps)

    def _walk_together(self, block: RowData, start: Numbers) -> tuple[Numbers, list[Cells]]:
        """Walk one row of each event, with lengths cut to one byte beyond the end."""
        data, limit = block.numbers, np.int64(block.stop[-1] + 1)
        # The next cell is at `at + ahead`
        cells, at, ahead = [], start, self._bitmap
        for place, column in enumerate(self._columns):
            null = None
            if column.nullable:
                null = (data[start + place // 8] & (1 << place % 8)) != 0
                if not null.any():
                    null = None
            here = at + ahead
            if not column.length_bytes:
                cells.append(Cells(here, None, null))
                if null is None:
                    ahead += column.width
                else:
                    at, ahead = here + np.where(null, 0, column.width), 0
                continue
            length = data[here].astype(np.int64)
            for k in range(1, column.length_bytes):
                length |= data[here + k].astype(np.int64) << (8 * k)
            first = here + column.length_bytes
            if null is not None:
                length[null] = 0
                first = np.where(null, here, first)
            at, ahead = np.minimum(first + length, limit), 0
            cells.append(Cells(first, length, null))
        return at + ahead, cells

    def _walk_one_by_one(
        self, block: RowData, event: Numbers, start: Numbers, stop: Numbers, number: int
    ) -> tuple[Numbers, Numbers, list[Cells]]:
        if self._walk is None:
            self._walk = self._generate_walk()
        flat = array("q")
        counts = []
        for each, first, last in zip(event.tolist(), start.tolist(), stop.tolist(), strict=True):
            try:
                found = self._walk(block.data, first, last, flat.append)
            except IndexError:
                found = -1
            if found < 0:
                raise InvalidCell(each, damaged_data(_TOO_LONG))
            counts.append(found)
        numbers = sum(1 + bool(each.length_bytes or each.nullable) for each in self._columns)
        table = np.frombuffer(flat, np.int64).reshape(-1, numbers)
        cells, place = [], 0
        for column in self._columns:
            here, length, null = table[:, place], None, None
            place += 1
            if column.length_bytes or column.nullable:
                length = table[:, place]
                place += 1
                null = length < 0
                if not column.nullable or not null.any():
                    null = None
                if not column.length_bytes:
                    length = None
                elif null is not None:
                    length = np.maximum(length, 0)
            cells.append(Cells(here, length, null))
        many = np.array(counts)
        rows = np.arange(len(table)) - np.repeat(np.cumsum(many) - many, many) + number
        return np.repeat(event, many), rows, cells

    def _generate_walk(self) -> Callable[..., int]:
        """Return a loop over one event's rows (their number, or -1), three times as fast as
        others.
        """
        lines = [
            "def walk(b, o, stop, add):",
            " n = 0",
            " while o < stop:",
            f"  r = o; o += {self._bitmap}",
        ]
        for place, column in enumerate(self._columns):
            indent = "  "
            if column.nullable:
                lines.append(
                    f"  if b[r+{place // 8}] & {1 << place % 8}: add(o); add(-1)\n  else:"
                )
                indent = "   "
            if column.length_bytes:
                length = "|".join(
                    f"b[o+{k}]<<{8 * k}" if k else "b[o]" for k in range(column.length_bytes)
                )
                lines.append(
                    f"{indent}l = {length}; o += {column.length_bytes}; add(o); add(l); o += l"
                )
            else:
                lines.append(
                    f"{indent}add(o); {f'add({column.width}); ' if column.nullable else ''}o += "
                    f"{column.width}"
                )
        lines += ["  if o > stop: return -1", "  n += 1", " return n"]
        result: dict[str, Any] = {}
        exec("\n".join(lines), result)  # noqa: S102  made of numbers alone, see above
        walk: Callable[..., int] = result["walk"]
        return walk

    def _join(self, steps: list[tuple[Numbers, Numbers, list[Cells]]]) -> RowCells:
        if not steps:
            nothing = np.zeros(0, np.int64)
            empty = [
                Cells(nothing, nothing if column.length_bytes else None, None)
                for column in self._columns
            ]
            return RowCells(nothing, nothing, empty)
        if len(steps) == 1:
            return RowCells(*steps[0])
        event = np.concatenate([each for each, _, _ in steps])
        order = np.argsort(event, kind="stable")
        columns = [self._join_cells(steps, place, order) for place in range(len(self._columns))]
        rows = np.concatenate([number for _, number, _ in steps])
        return RowCells(event[order], rows[order], columns)

    def _join_cells(
        self, steps: list[tuple[Numbers, Numbers, list[Cells]]], place: int, order: Numbers
    ) -> Cells:
        parts = [cells[place] for _, _, cells in steps]
        length = None
        if self._columns[place].length_bytes:
            lengths = [part.length for part in parts if part.length is not None]
            length = np.concatenate(lengths)[order]
        null: Mask | None = None
        if any(part.null is not None for part in parts):
            nulls = [
                np.zeros(len(part.start), np.bool_) if part.null is None else part.null
                for part in parts
            ]
            null = np.concatenate(nulls)[order]
        return Cells(np.concatenate([part.start for part in parts])[order], length, null)


def _count_rows(
    images: Sequence[Sequence[TableColumn]], data: bytes, *, partial_json: bool
) -> int:
    """Count the changes in an event's rows, each of which has these images.

    :param partial_json: before a second image, bits say which JSON values are partial.
    """
    at = count = 0
    if not all(images):
        raise IndexError
    while at < len(data):
        columns = images[count % len(images)]
        if partial_json and count % len(images):
            documents = sum(column.kind is ColumnKind.JSON for column in columns)
            at += 1 + ((documents + 7) // 8 if data[at] & 1 else 0)
        nulls = int.from_bytes(data[at : at + (len(columns) + 7) // 8], "little")
        at += (len(columns) + 7) // 8
        for place, column in enumerate(columns):
            if nulls >> place & 1:
                continue
            # 0 where it has none
            length = int.from_bytes(data[at : at + column.length_bytes], "little")
            at += column.length_bytes + length + column.width
        count += 1
    if at != len(data):
        raise IndexError
    return count // len(images)


def describe_rows(event: BinlogEvent, map: bytes) -> str:
    """Return, for errors, how many rows of which table are lost without an event.

    :param map: the body of its table map.
    """
    name = ".".join(TableMap.parse_names(map))
    try:
        count = _count_event_rows(event, map)
    except (OncewardError, IndexError):
        # Of a type whose length nobody knows
        return f"all rows of {name} in this one event"
    return f"{count} row{'s' * (count != 1)} of {name}, all of this one event"


def _count_event_rows(event: BinlogEvent, map: bytes) -> int:
    columns = TableMap.parse_shape(map)
    data = MetadataFields(
        bytes(event.buffer[event.start + HEADER_BYTES : event.stop]), "a rows event", ID_BYTES + 2
    )
    if event.kind >= SECOND_VERSION:
        data.take(int.from_bytes(data.take(2), "little") - 2)
    many = data.lenenc_int()
    partial = event.kind == PARTIAL_UPDATE_ROWS
    images = []
    for _ in range(2 if partial or ROWS_EVENTS[event.kind] == "update" else 1):
        bits = int.from_bytes(data.take((many + 7) // 8), "little")
        images.append([column for place, column in enumerate(columns) if bits >> place & 1])
    return _count_rows(images, data.take_rest(), partial_json=partial)
