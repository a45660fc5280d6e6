"""Events in, changes out: table maps are kept, rows events gathered by table, and decoded many at
once. Pure.

Runs in the tasks that read a binlog, also where they undo changes for a snapshot's chunk. The
caller feeds events in the binlog's order, and takes the changes after a few MiB: all that was fed
is held until then.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from onceward.errors import ChangeUnreadable, OncewardError
from onceward.mysql.binlog.blocks import PendingRows, RowBlock, merge_changes, truncation_block
from onceward.mysql.binlog.column_types import ColumnKind, TableColumn
from onceward.mysql.binlog.compression import COMPRESSED_EVENTS, decompress
from onceward.mysql.binlog.event import (
    DROP_SYSTEM_VERSIONING,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    NOTHING_SKIPPABLE,
    QUERY,
    ROTATE,
    ROWS_EVENTS,
    SECOND_VERSION,
    SET_FULL_IMAGE,
    TABLE_MAP,
    TRANSACTION_STARTS,
    BinlogEvent,
    Dialect,
    Skippable,
    add_event,
    damaged_data,
    unreadable_change,
)
from onceward.mysql.binlog.fields import MetadataFields
from onceward.mysql.binlog.gtids import gtid_text
from onceward.mysql.binlog.json_rows import ValueForm
from onceward.mysql.binlog.rows import RowLayout, describe_rows
from onceward.mysql.binlog.sql_effects import Truncation
from onceward.mysql.binlog.statements import classify
from onceward.mysql.binlog.table_map import ID_BYTES, TableMap

_FLAGS_AT = HEADER_BYTES + ID_BYTES
# Of a format description, behind its header
_WRITER_AT, _WRITER_BYTES = 2, 50
_COLUMNS_AT = _FLAGS_AT + 2
"""Offset of a rows event's column bitmaps in their first possible place."""
END_OF_STATEMENT = 1
"""Of the flags of a rows event, their first byte."""
_NO_TABLE = b"\xff\xff\xff\0\0\0"
"""Table id of a rows event without rows, which only ends a statement."""
_MOST_NUMBERS = 4096
_MOST_TABLES = 4096
PIECE_BYTES = 64 << 20
"""Bound of what one decoding makes: a null, for one, is a bit in a row, and text in JSON."""
_CELL_BYTES = 64
"""Memory of a cell while a row is decoded: its place, its value, its text."""
_BYTE_BECOMES, _PACKED_BYTE_BECOMES = 6, 1032
"""Bytes that one becomes at most: an escaped character of a text; a byte of a COMPRESSED column.
"""


class _ReadableTable:
    """A selected table, and its rows that wait."""

    def __init__(self, map: TableMap, body: bytes) -> None:
        self.map, self.body = map, body
        self.layout = RowLayout(map.columns)
        self.row_bytes = sum(_cell_bytes(column) for column in map.columns)
        is_packed = any(each.is_compressed for each in map.columns)
        self._bytes_per_byte = _PACKED_BYTE_BECOMES if is_packed else _BYTE_BECOMES
        self.pending: dict[int, PendingRows] = {}
        """By type of event."""
        self.all_columns = ((1 << len(map.columns)) - 1).to_bytes(map.bitmap_bytes, "little")
        self.headers = {kind: self._usual_header(kind) for kind in ROWS_EVENTS}
        """By type of event, the usual bytes before its rows."""

    def max_result_bytes(self, rows: int) -> int:
        """Return the bound of what ``rows`` bytes of rows become."""
        return rows // self.layout.least_bytes * self.row_bytes + rows * self._bytes_per_byte

    def _usual_header(self, kind: int) -> bytes:
        count = len(self.map.columns)
        number = bytes([count]) if count < 251 else b"\xfc" + count.to_bytes(2, "little")
        extra = b"\x02\0" if kind >= SECOND_VERSION else b""
        return extra + number + self.all_columns * (2 if ROWS_EVENTS[kind] == "update" else 1)


class _UnreadableTable(NamedTuple):
    """A selected table whose rows cannot be read."""

    error: OncewardError
    map: bytes


def inner_events(event: BinlogEvent, skippable: Skippable) -> Iterator[BinlogEvent]:
    """Yield the events that ``event`` contains; none if it cannot be decompressed, and is
    skippable.

    :raises ChangeUnreadable, BinlogCorrupted: as
        :func:`~onceward.mysql.binlog.compression.decompress`.
    """
    try:
        yield from decompress(event)
    except ChangeUnreadable:
        if not skippable.has_event(event):
            raise


def _cell_bytes(column: TableColumn) -> int:
    """Return the size of a cell in a row's JSON, whatever its value."""
    labels = [len(label) for label in column.labels]
    together = sum(labels) + len(labels) if column.kind is ColumnKind.SET else 0
    return _CELL_BYTES + len(column.name) + max(labels, default=0) + together


class Decoder:
    """Changes of the selected tables, in pieces of bounded size: take them until none is left
    (:attr:`has_changes`).

    :param selects: says whether a table is read, by its database and name.
    :param values: the form of values, see :mod:`json_rows`.
    :param maps: bodies of the table maps in force where the first event to come stands, inside of
        a statement.
    :param gtid: of the transaction there.
    :param lower_case_names: the server's ``lower_case_table_names`` is not 0.
    :param skippable: events and rows to leave out if they cannot be read.
    """

    def __init__(
        self,
        dialect: Dialect,
        selects: Callable[[str, str], bool],
        *,
        values: ValueForm = "text",
        maps: Iterable[bytes] = (),
        gtid: str | None = None,
        lower_case_names: bool = False,
        skippable: Skippable = NOTHING_SKIPPABLE,
    ) -> None:
        self._skippable = skippable
        self._dialect: Dialect = dialect
        self._selects = selects
        self._lower_case_names = lower_case_names
        self._values: ValueForm = values
        self._tables: dict[bytes, _ReadableTable | _UnreadableTable | None] = {}
        """By the bytes of their maps, without the table id; None for one that is not selected."""
        self._numbers: dict[bytes, _ReadableTable | _UnreadableTable | None] = {}
        """The table of each table id now."""
        self._gtid: BinlogEvent | str | None = gtid
        self._waiting: list[PendingRows] = []
        self._busy: set[_ReadableTable] = set()
        """Those that have rows waiting."""
        self._truncations: list[RowBlock] = []
        self._result_bytes = 0
        """Bound of the result of all that waits."""
        self._pieces: deque[tuple[list[PendingRows], list[RowBlock]]] = deque()
        """Pieces that take no more."""
        self._event_count = 0
        self._writer: tuple[int, ...] | None = None
        """Version of the server that wrote the file, once that is known."""
        self._maps = [bytes(body) for body in maps]
        """Not parsed yet: the file's format description comes first."""

    def feed(self, event: BinlogEvent) -> None:
        """Take the next event, of whatever type. An unsupported event that is neither rows nor a
        table map is ignored: :class:`~onceward.mysql.source.ranges.RangePlanner` has looked at
        all events before.

        :raises ChangeUnreadable: it is of a selected table, and cannot be read as a change of
            rows.
        :raises BinlogCorrupted: no server writes it.
        """
        kind = event.kind
        if kind == FORMAT_DESCRIPTION:
            self._describe(event)
            return
        if self._maps and kind != ROTATE:
            maps, self._maps = self._maps, []
            for body in maps:
                self._map(body)
        if kind in ROWS_EVENTS:
            self._rows(event)
        elif kind == TABLE_MAP:
            try:
                self._map(bytes(event.buffer[event.start + HEADER_BYTES : event.stop]))
            except OncewardError as error:
                raise add_event(error, event, gtid_text(self._gtid)) from None
        elif kind in TRANSACTION_STARTS:
            self._gtid = event
        elif kind == QUERY:
            self._statement(event)
        elif kind in COMPRESSED_EVENTS:
            for inner in inner_events(event, self._skippable):
                self.feed(inner)

    def _describe(self, event: BinlogEvent) -> None:
        """Take note of who wrote the file."""
        start = event.start + HEADER_BYTES + _WRITER_AT
        text = bytes(event.buffer[start : start + _WRITER_BYTES])
        found = re.match(rb"\d+\.\d+\.\d+", text)
        writer = tuple(int(part) for part in found[0].split(b".")) if found else None
        if writer != self._writer:
            self._writer, self._tables = writer, {}

    @property
    def is_full(self) -> bool:
        """A whole piece is ready. More may be fed all the same: it is held as it was sent."""
        return bool(self._pieces)

    @property
    def has_changes(self) -> bool:
        """Changes remain to be taken."""
        return bool(self._pieces or self._waiting or self._truncations)

    def flush(self) -> pa.Table:
        """Return the next piece as :data:`CHANGES`, in the binlog's order.

        :raises ChangeUnreadable, BinlogCorrupted: as :meth:`blocks`.
        """
        return merge_changes(self.blocks(), self._values)

    def blocks(self) -> Iterator[RowBlock]:
        """Yield the next piece, decoded: a block for each table and kind of change, none of which
        is kept here.

        :raises ChangeUnreadable: a value cannot be represented.
        :raises BinlogCorrupted: a row is damaged.
        """
        if not self._pieces:
            self._close()
        waiting, truncations = self._pieces.popleft()
        waiting.reverse()
        more: list[tuple[list[PendingRows], list[RowBlock]]] = []
        while waiting:
            pending = waiting.pop()
            yield pending.block()
            # Of one event that is larger than a piece: its rows are the last ones.
            if pending.has_more:
                more.append(([pending], []))
        yield from truncations
        self._pieces.extendleft(reversed(more))

    def _close(self) -> None:
        """Make a piece of all that waits."""
        self._pieces.append((self._waiting, self._truncations))
        self._waiting, self._truncations, self._result_bytes = [], [], 0
        for table in self._busy:
            table.pending = {}
        self._busy = set()

    def _statement(self, event: BinlogEvent) -> None:
        """Take a statement that empties a selected table as a change of it."""
        verdict = classify(event, self._selects, lower_case_names=self._lower_case_names)
        if isinstance(verdict, Truncation):
            table = TableMap(verdict.database, verdict.table, (), (), self._dialect)
            self._truncations.append(truncation_block(table, event, self._gtid, self._event_count))
            self._event_count += 1

    def _map(self, body: bytes) -> None:
        """Assign a table to a table id from here on."""
        content = body[ID_BYTES:]
        if content not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables = {}
            self._tables[content] = (
                self._table(body) if self._selects(*TableMap.parse_names(body)) else None
            )
        self._numbers[body[:ID_BYTES]] = self._tables[content]

    def _table(self, body: bytes) -> _ReadableTable | _UnreadableTable | None:
        """Parse a table map. One that cannot be read is no error until a row comes; a sequence is
        none.
        """
        try:
            map = TableMap.parse(body, self._dialect, self._writer)
            if map.is_sequence:
                return None
            if map.has_system_versions:
                raise unreadable_change(
                    "system_versioned",
                    f"rows of {map.name}, which has system versions",
                    DROP_SYSTEM_VERSIONING,
                )
            return _ReadableTable(map, body)
        except ChangeUnreadable as error:
            return _UnreadableTable(error, body)

    def _refuse(self, event: BinlogEvent, error: OncewardError, map: bytes) -> None:
        """Raise ``error`` unless the event is skippable."""
        if not isinstance(error, ChangeUnreadable):
            raise add_event(error, event, gtid_text(self._gtid)) from None
        if not self._skippable.has_event(event):
            raise add_event(
                error, event, gtid_text(self._gtid), loss=describe_rows(event, map)
            ) from None

    def _rows(self, event: BinlogEvent) -> None:
        buffer, start, stop, kind = event.buffer, event.start, event.stop, event.kind
        at = start + _COLUMNS_AT
        number = bytes(buffer[start + HEADER_BYTES : start + _FLAGS_AT])
        try:
            table = self._numbers[number]
        except KeyError:
            self._without_map(event, number)
            return
        if table is None:
            return
        if isinstance(table, _UnreadableTable):
            self._refuse(event, table.error, table.map)
            return
        head = table.headers[kind]
        at += len(head)
        if buffer[start + _COLUMNS_AT : at] != head or at > stop:
            columns_at = start + _COLUMNS_AT
            try:
                at = columns_at + self._parse_header(table, kind, bytes(buffer[columns_at:stop]))
                # The bits behind the last column are set or not.
                table.headers[kind] = bytes(buffer[columns_at:at])
            except OncewardError as error:
                self._refuse(event, error, table.body)
                return
        pending = table.pending.get(kind)
        if pending is None:
            self._busy.add(table)
            most_rows = 2 * PIECE_BYTES // table.row_bytes
            pending = PendingRows(
                table.map, table.layout, ROWS_EVENTS[kind], self._skippable, most_rows
            )
            table.pending[kind] = pending
            self._waiting.append(pending)
        pending.add(event, self._gtid, self._event_count, buffer[at:stop])
        self._event_count += 1
        self._result_bytes += table.max_result_bytes(stop - at)
        if self._result_bytes >= PIECE_BYTES:
            self._close()
        if len(self._numbers) > _MOST_NUMBERS and buffer[start + _FLAGS_AT] & END_OF_STATEMENT:
            # a server numbers a table anew whenever it opens it, and says so in each statement
            self._numbers = {}

    def _without_map(self, event: BinlogEvent, number: bytes) -> None:
        if number == _NO_TABLE or event.stop - event.start < _COLUMNS_AT:
            return
        error = unreadable_change(
            "table_map",
            f"rows of the table number {int.from_bytes(number, 'little')}, which no event before "
            "them describes",
            "start at the beginning of a transaction",
        )
        raise add_event(error, event, gtid_text(self._gtid))

    def _parse_header(self, table: _ReadableTable, kind: int, data: bytes) -> int:
        """Return the header length of a rows event with a non-default header."""
        name = table.map.name
        fields = MetadataFields(data, f"a rows event of {name}")
        if kind >= SECOND_VERSION:
            extra = int.from_bytes(fields.take(2), "little")
            if extra < 2:
                raise damaged_data(f"a rows event of {name} has {extra} extra bytes")
            fields.take(extra - 2)
        count = fields.lenenc_int()
        if count != len(table.map.columns):
            raise damaged_data(
                f"a rows event of {name} has {count} columns, and its table map "
                f"{len(table.map.columns)}"
            )
        for _ in range(2 if ROWS_EVENTS[kind] == "update" else 1):
            bits = int.from_bytes(fields.take(table.map.bitmap_bytes), "little")
            if bits & (1 << count) - 1 != (1 << count) - 1:
                raise unreadable_change(
                    "row_image",
                    f"rows of {name} come without all of their columns",
                    SET_FULL_IMAGE,
                )
        return len(data) - fields.remaining
