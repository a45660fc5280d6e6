"""Rows events to cells: where each value of each row lies. Pure, and by column: numpy walks row
*k* of all events at once.

A rows event is one row behind the other, each a bitmap of its nulls and then its cells without a
gap, so a row's beginning is known when the one before it has been walked. Events of a table are
independent of each other, and a server cuts them at some 8 KiB: a block of a stream has hundreds,
whose rows with the same number are walked together. What few events with many rows are left is
walked by a loop, generated for the table.

Nothing is read behind the bytes there are: lengths are cut to the end of the buffer as they are
read, and a row that runs past its event is refused. Source: MySQL ``sql/rpl_record.cc``
(``unpack_row``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.refusals import BadCell, damaged

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

TOGETHER = 12
"""Fewer events than this are walked one after the other."""
_SPARE = 16
"""Bytes behind a block that may be read, and mean nothing."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One column's, a row after the other. ``start`` of a null is some place in the buffer, its
    length 0.
    """

    start: Numbers
    length: Numbers | None
    """None where all have the column's width."""
    null: Mask | None
    """None where there is none."""

    def only(self, rows: Mask | slice) -> Cells:
        """Those of the rows."""
        length, null = self.length, self.null
        return Cells(
            self.start[rows],
            None if length is None else length[rows],
            None if null is None else null[rows],
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The rows of some events."""

    event: Numbers
    """Which of them each row is of."""
    row: Numbers
    """How manieth of its event."""
    columns: list[Cells]

    def only(self, rows: Mask | slice) -> Found:
        """Those of the rows."""
        return Found(
            self.event[rows], self.row[rows], [cells.only(rows) for cells in self.columns]
        )


@dataclass(frozen=True, slots=True)
class Block:
    """The row data of some events, one behind the other."""

    data: bytes
    numbers: Bytes
    """The same."""
    start: Numbers
    stop: Numbers

    @staticmethod
    def of(parts: Sequence[bytes | bytearray | memoryview], columns: Sequence[Column]) -> Block:
        """Joined, with enough behind them that what is not checked yet can be read."""
        spare = bytes(_SPARE + 1 + sum(8 + max(column.width, 0) for column in columns))
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        stop = np.cumsum(lengths)
        data = b"".join((*parts, spare))
        return Block(data, np.frombuffer(data, np.uint8), stop - lengths, stop)


class Layout:
    """How the rows of a table lie in bytes. Made once for each table."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = columns
        self._bitmap = (len(columns) + 7) // 8
        self._walk: Callable[..., int] | None = None
        always = (column.length_bytes or column.width for column in columns if not column.nullable)
        self.least_bytes = self._bitmap + sum(always)
        """Of a row."""

    def rows(self, block: Block) -> Found:
        """:raises BadCell: a row runs past its event; its row is the number of that event."""
        event, start, stop = np.arange(len(block.start)), block.start, block.stop
        live = start < stop
        if not live.all():
            event, start, stop = event[live], start[live], stop[live]
        steps: list[tuple[Numbers, Numbers, list[Cells]]] = []
        number = 0
        while len(start) >= TOGETHER:
            end, cells = self._step(block, start)
            _require(end <= stop, event)
            steps.append((event, np.full(len(event), number), cells))
            number += 1
            live = end < stop
            if live.all():
                start = end
            else:
                event, start, stop = event[live], end[live], stop[live]
        if len(start):
            steps.append(self._one_by_one(block, event, start, stop, number))
        return self._joined(steps)

    def _step(self, block: Block, start: Numbers) -> tuple[Numbers, list[Cells]]:
        """One row of each event. What a length says is cut to one byte more than there are, so
        that it is seen.
        """
        data, limit = block.numbers, np.int64(block.stop[-1] + 1)
        cells, at, ahead = [], start, self._bitmap  # the next cell is at `at + ahead`
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

    def _one_by_one(
        self, block: Block, event: Numbers, start: Numbers, stop: Numbers, number: int
    ) -> tuple[Numbers, Numbers, list[Cells]]:
        if self._walk is None:
            self._walk = self._generated()
        flat = array("q")
        counts = []
        for each, first, last in zip(event.tolist(), start.tolist(), stop.tolist(), strict=True):
            try:
                found = self._walk(block.data, first, last, flat.append)
            except IndexError:
                found = -1
            if found < 0:
                raise BadCell(each, damaged("a row runs past the end of its event"))
            counts.append(found)
        table = np.frombuffer(flat, np.int64).reshape(-1, self._numbers_a_row())
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

    def _numbers_a_row(self) -> int:
        return sum(2 if column.length_bytes or column.nullable else 1 for column in self._columns)

    def _generated(self) -> Callable[..., int]:
        """A loop over the rows of one event, with this table's columns written out: three times as
        fast as one over their descriptions. It is made of numbers alone, and says how many rows
        there are, or -1.
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
        made: dict[str, Any] = {}
        exec("\n".join(lines), made)  # noqa: S102  made of numbers alone, see above
        walk: Callable[..., int] = made["walk"]
        return walk

    def _joined(self, steps: list[tuple[Numbers, Numbers, list[Cells]]]) -> Found:
        if not steps:
            nothing = np.zeros(0, np.int64)
            empty = [
                Cells(nothing, nothing if column.length_bytes else None, None)
                for column in self._columns
            ]
            return Found(nothing, nothing, empty)
        if len(steps) == 1:
            return Found(*steps[0])
        event = np.concatenate([each for each, _, _ in steps])
        order = np.argsort(event, kind="stable")
        columns = [
            Cells(
                np.concatenate([step[2][place].start for step in steps])[order],
                np.concatenate([_length(step[2][place]) for step in steps])[order]
                if column.length_bytes
                else None,
                _nulls([(step[2][place].null, len(step[0])) for step in steps], order),
            )
            for place, column in enumerate(self._columns)
        ]
        return Found(
            event[order], np.concatenate([number for _, number, _ in steps])[order], columns
        )


def _length(cells: Cells) -> Numbers:
    assert cells.length is not None  # noqa: S101  the column has length bytes
    return cells.length


def _nulls(parts: list[tuple[Mask | None, int]], order: Numbers) -> Mask | None:
    if all(null is None for null, _ in parts):
        return None
    joined: Mask = np.concatenate(
        [np.zeros(count, np.bool_) if null is None else null for null, count in parts]
    )[order]
    return joined


def _require(fits: Mask, event: Numbers) -> None:
    if not fits.all():
        raise BadCell(
            int(event[int(np.argmin(fits))]), damaged("a row runs past the end of its event")
        )


def counted(images: Sequence[Sequence[Column]], data: bytes, *, partial_json: bool = False) -> int:
    """How many changes are in an event's rows, of which each has these images: for errors, of rows
    that are not read.

    :param partial_json: before a second image it says of which JSON values there are parts.
    :raises IndexError: they do not fit.
    """
    at = count = 0
    if not all(images):
        raise IndexError
    while at < len(data):
        columns = images[count % len(images)]
        if partial_json and count % len(images):
            options, at = data[at], at + 1
            at += (
                (sum(column.kind is Kind.JSON for column in columns) + 7) // 8
                if options & 1
                else 0
            )
        nulls = int.from_bytes(data[at : at + (len(columns) + 7) // 8], "little")
        at += (len(columns) + 7) // 8
        for place, column in enumerate(columns):
            if nulls >> place & 1:
                continue
            length = (
                int.from_bytes(data[at : at + column.length_bytes], "little")
                if column.length_bytes
                else 0
            )
            at += column.length_bytes + length + column.width
        count += 1
    if at != len(data):
        raise IndexError
    return count // len(images)
