"""Events in, changes out: table maps are kept, rows events gathered by table, and decoded many at
once. Pure.

Runs in the tasks that read a binlog, and in the driver where it undoes what a snapshot has seen. A
caller feeds events in the binlog's order, and takes what they are after a few MiB: all that was
fed is held until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from onceward.errors import ChangeUnreadable, OncewardError
from onceward.mysql.binlog import kinds
from onceward.mysql.binlog.blocks import CHANGES, Block, Pending, in_order, truncation
from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.gtid_text import gtid_text
from onceward.mysql.binlog.kinds import Dialect
from onceward.mysql.binlog.left_out import rows_of
from onceward.mysql.binlog.packed import PACKED, unpacked
from onceward.mysql.binlog.packed_bytes import PackedBytes
from onceward.mysql.binlog.refusals import FULL_IMAGE, UNVERSIONED, damaged, located, unreadable
from onceward.mysql.binlog.rows import Layout
from onceward.mysql.binlog.statements import Truncated, classify
from onceward.mysql.binlog.stops import NO_PASSES, Passes
from onceward.mysql.binlog.table_map import ID_BYTES, TableMap
from onceward.mysql.binlog.texts import Values

__all__ = ["CHANGES", "Decoder", "opened"]

_FLAGS = HEADER_BYTES + ID_BYTES
_HEAD = _FLAGS + 2
"""Where in a rows event it begins to say which columns there are."""
_SECOND_VERSION = 30
_END_OF_STATEMENT = 1
_NO_TABLE = b"\xff\xff\xff\0\0\0"
"""The number of a rows event without rows, which only says that a statement is over."""
_MOST_NUMBERS = 4096
_MOST_TABLES = 4096
PIECE_BYTES = 64 << 20
"""Of what is made of rows at once, as an upper bound: a null is a bit in a row, and a name and a
null in its text.
"""
_CELL_BYTES = 64
"""While a row is decoded: where each cell lies, its value, its text."""
_BYTE_BECOMES, _PACKED_BYTE_BECOMES = 6, 1032
"""A character of a text that is escaped; a byte of a COMPRESSED column, at most."""


class _Table:
    """What is known of a wanted table, and its rows that wait."""

    def __init__(self, map: TableMap, body: bytes) -> None:
        self.map, self.body = map, body
        self.layout = Layout(map.columns)
        self.row_bytes = sum(_cell_bytes(column) for column in map.columns)
        self._byte_becomes = (
            _PACKED_BYTE_BECOMES if any(each.packed for each in map.columns) else _BYTE_BECOMES
        )
        self.pending: dict[int, Pending] = {}
        """By kind of event."""
        bits = ((1 << len(map.columns)) - 1).to_bytes(map.bitmap_bytes, "little")
        self.all_columns = bits
        self.heads = {kind: self._head(kind) for kind in kinds.ROWS}
        """By kind of event, what stands before its rows if nothing is special."""

    def most_bytes(self, rows: int) -> int:
        """What ``rows`` bytes of rows become, at most."""
        return rows // self.layout.least_bytes * self.row_bytes + rows * self._byte_becomes

    def _head(self, kind: int) -> bytes:
        count = len(self.map.columns)
        number = bytes([count]) if count < 251 else b"\xfc" + count.to_bytes(2, "little")
        extra = b"\x02\0" if kind >= _SECOND_VERSION else b""
        return extra + number + self.all_columns * (2 if kinds.ROWS[kind] == "update" else 1)


class _Unread(NamedTuple):
    """A wanted table whose rows cannot be read."""

    error: OncewardError
    map: bytes


def opened(event: Event, passes: Passes) -> Iterator[Event]:
    """The events that ``event`` stands for; none if it cannot be unpacked, and a person has passed
    it over.

    :raises ChangeUnreadable, BinlogDamaged: see :func:`~onceward.mysql.binlog.packed.unpacked`.
    """
    try:
        yield from unpacked(event)
    except ChangeUnreadable:
        if not passes.event(event):
            raise


def _cell_bytes(column: Column) -> int:
    """Of a cell in a row's text, whatever its value."""
    return (
        _CELL_BYTES
        + len(column.name)
        + max((len(label) for label in column.labels), default=0)
        + (sum(len(label) + 1 for label in column.labels) if column.kind is Kind.SET else 0)
    )


class Decoder:
    """Changes of the wanted tables, in pieces of bounded size: ask for them until none is left
    (:attr:`holds`).

    :param dialect: of the server. :param wanted: whether a table is, by its database and name.
    :param values: the form of values in texts, see :mod:`texts`.
    :param maps: bodies of the table maps in force where the first event to come stands, inside of
        a statement.
    :param gtid: of the transaction there. :param lower_case_names: the server's
        ``lower_case_table_names`` is not 0.
    :param passes: what a person has said may be left out if it cannot be read.
    """

    def __init__(
        self,
        dialect: Dialect,
        wanted: Callable[[str, str], bool],
        *,
        values: Values = "text",
        maps: Iterable[bytes] = (),
        gtid: str | None = None,
        lower_case_names: bool = False,
        passes: Passes = NO_PASSES,
    ) -> None:
        self._passes = passes
        self._dialect: Dialect = dialect
        self._wanted = wanted
        self._lower_case_names = lower_case_names
        self._values: Values = values
        self._tables: dict[bytes, _Table | _Unread | None] = {}
        """By the bytes of their maps, without the number; None for one that is not wanted."""
        self._numbers: dict[bytes, _Table | _Unread | None] = {}
        """Which table each number means now."""
        self._gtid: Event | str | None = gtid
        self._waiting: list[Pending] = []
        self._busy: set[_Table] = set()
        """Those that have rows waiting; others may be known by their numbers alone."""
        self._truncations: list[Block] = []
        self._built = 0
        """What is waiting becomes, at most."""
        self._full: deque[tuple[list[Pending], list[Block]]] = deque()
        """Pieces that take no more."""
        self._fed = 0
        for body in maps:
            self._map(bytes(body))

    def feed(self, event: Event) -> None:
        """The next event, of whatever kind. What stops a reader, and is neither rows nor their
        table map, is passed over here: whoever looked at all events before has judged it.

        :raises ChangeUnreadable: it is of a wanted table, and cannot be read as a change of rows.
        :raises BinlogDamaged: it is none that a server writes.
        """
        kind = event.kind
        if kind in kinds.ROWS:
            self._rows(event)
        elif kind == kinds.TABLE_MAP:
            try:
                self._map(bytes(event.buffer[event.start + HEADER_BYTES : event.stop]))
            except OncewardError as error:
                raise located(error, event, gtid_text(self._gtid)) from None
        elif kind in kinds.TRANSACTION_STARTS:
            self._gtid = event
        elif kind == kinds.QUERY:
            self._statement(event)
        elif kind in PACKED and not self._is_unwanted(event):
            for inner in opened(event, self._passes):
                self.feed(inner)

    @property
    def is_full(self) -> bool:
        """Is there a whole piece? More may be fed all the same: it is held, as it was sent."""
        return bool(self._full)

    @property
    def holds(self) -> bool:
        """Is there any change that was not taken?"""
        return bool(self._full or self._waiting or self._truncations)

    def blocks(self) -> list[Block]:
        """The next piece of what was fed, decoded: a block for each table and kind of change.

        :raises ChangeUnreadable: a value has no place in a change. :raises BinlogDamaged: a row is
            none.
        """
        return list(self._blocks())

    def flush(self) -> pa.Table:
        """The same as changes: :data:`CHANGES`, in the binlog's order.

        :raises ChangeUnreadable: see :meth:`blocks`. :raises BinlogDamaged: see there.
        """
        return in_order(self._blocks(), self._values)

    def _blocks(self) -> Iterator[Block]:
        """One after the other, none of which is kept here."""
        if not self._full:
            self._close()
        waiting, truncations = self._full.popleft()
        waiting.reverse()
        more: list[tuple[list[Pending], list[Block]]] = []
        while waiting:
            pending = waiting.pop()
            yield pending.block()
            if (
                pending.has_more
            ):  # of one event that is larger than a piece: its rows are the last ones
                more.append(([pending], []))
        yield from truncations
        self._full.extendleft(reversed(more))

    def _close(self) -> None:
        """What waits is a piece."""
        self._full.append((self._waiting, self._truncations))
        self._waiting, self._truncations, self._built = [], [], 0
        for table in self._busy:
            table.pending = {}
        self._busy = set()

    def _statement(self, event: Event) -> None:
        """One that empties a wanted table is a change of it."""
        verdict = classify(event, self._wanted, lower_case_names=self._lower_case_names)
        if isinstance(verdict, Truncated):
            table = TableMap(0, verdict.database, verdict.table, (), (), self._dialect)
            self._truncations.append(truncation(table, event, self._gtid, self._fed))
            self._fed += 1

    def _is_unwanted(self, event: Event) -> bool:
        """Compressed rows of a table that nobody wants: they stay as they are."""
        if event.kind not in kinds.COMPRESSED_ROWS:
            return False
        start = event.start + HEADER_BYTES
        return self._numbers.get(bytes(event.buffer[start : start + ID_BYTES]), False) is None

    def _map(self, body: bytes) -> None:
        """A table's number means this table from here on."""
        content = body[ID_BYTES:]
        if content not in self._tables:
            if len(self._tables) >= _MOST_TABLES:
                self._tables = {}
            self._tables[content] = (
                self._table(body) if self._wanted(*TableMap.named(body)) else None
            )
        self._numbers[body[:ID_BYTES]] = self._tables[content]

    def _table(self, body: bytes) -> _Table | _Unread:
        """A table that cannot be read is no error until a row of it comes."""
        try:
            map = TableMap.parse(body, self._dialect)
            if map.has_system_versions:
                raise unreadable(
                    "system_versioned",
                    f"rows of {map.name}, which has system versions",
                    UNVERSIONED,
                )
            return _Table(map, body)
        except ChangeUnreadable as error:
            return _Unread(error, body)

    def _refuse(self, event: Event, error: OncewardError, map: bytes) -> None:
        """:raises OncewardError: that, unless a person has passed the event over."""
        if not isinstance(error, ChangeUnreadable):
            raise located(error, event, gtid_text(self._gtid)) from None
        if not self._passes.event(event):
            raise located(
                error, event, gtid_text(self._gtid), left_out=rows_of(event, map)
            ) from None

    def _rows(self, event: Event) -> None:
        buffer, start, stop, kind = event.buffer, event.start, event.stop, event.kind
        at = start + _HEAD
        number = bytes(buffer[start + HEADER_BYTES : start + _FLAGS])
        try:
            table = self._numbers[number]
        except KeyError:
            self._without_map(event, number)
            return
        if table is None:
            return
        if isinstance(table, _Unread):
            self._refuse(event, table.error, table.map)
            return
        head = table.heads[kind]
        at += len(head)
        if buffer[start + _HEAD : at] != head or at > stop:
            try:
                at = (
                    start + _HEAD + self._special(table, kind, bytes(buffer[start + _HEAD : stop]))
                )
                table.heads[kind] = bytes(
                    buffer[start + _HEAD : at]
                )  # the bits behind the last column are set or not
            except OncewardError as error:
                self._refuse(event, error, table.body)
                return
        pending = table.pending.get(kind)
        if pending is None:
            self._busy.add(table)
            pending = table.pending[kind] = Pending(
                table.map,
                table.layout,
                kinds.ROWS[kind],
                self._passes,
                2 * PIECE_BYTES // table.row_bytes,
            )
            self._waiting.append(pending)
        pending.add(event, self._gtid, self._fed, buffer[at:stop])
        self._fed += 1
        self._built += table.most_bytes(stop - at)
        if self._built >= PIECE_BYTES:
            self._close()
        if len(self._numbers) > _MOST_NUMBERS and buffer[start + _FLAGS] & _END_OF_STATEMENT:
            # a server numbers a table anew whenever it opens it, and says so in each statement
            self._numbers = {}

    def _without_map(self, event: Event, number: bytes) -> None:
        if number == _NO_TABLE or event.stop - event.start < _HEAD:
            return
        error = unreadable(
            "table_map",
            f"rows of the table number {int.from_bytes(number, 'little')}, which no event before "
            f"them describes",
            "start at the beginning of a transaction",
        )
        raise located(error, event, gtid_text(self._gtid))

    def _special(self, table: _Table, kind: int, data: bytes) -> int:
        """How long it is, what stands before the rows of an event that is not as usual."""
        name = table.map.name
        fields = PackedBytes(data, f"a rows event of {name}")
        if kind >= _SECOND_VERSION:
            extra = int.from_bytes(fields.take(2), "little")
            if extra < 2:
                raise damaged(f"a rows event of {name} has {extra} extra bytes")
            fields.take(extra - 2)
        count = fields.packed()
        if count != len(table.map.columns):
            raise damaged(
                f"a rows event of {name} has {count} columns, and its table map "
                f"{len(table.map.columns)}"
            )
        for _ in range(2 if kinds.ROWS[kind] == "update" else 1):
            bits = int.from_bytes(fields.take(table.map.bitmap_bytes), "little")
            if bits & (1 << count) - 1 != (1 << count) - 1:
                raise unreadable(
                    "row_image", f"rows of {name} come without all of their columns", FULL_IMAGE
                )
        return len(data) - fields.left
