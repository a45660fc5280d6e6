"""Plans the range of a batch, and its partitions: :class:`RangePlanner`. Pure: events in, a range
out. Driver.

A batch ends at the end of a transaction: as soon as it has the bytes or the changes that it may
have, where the server has no more, or before an event that cannot be passed on. Its partitions are
ranges of bytes that begin and end anywhere, also inside a transaction: each names the tables of
the rows in it, and its transaction. Stretches without a change of a selected table are in no
partition.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Container
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceward.errors import BinlogCorrupted, ChangeUnreadable, OncewardError
from onceward.mysql.binlog.decoder import END_OF_STATEMENT
from onceward.mysql.binlog.event import (
    COMPRESSED_ROWS_EVENTS,
    EXECUTE_LOAD_QUERY,
    HEADER_BYTES,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    ROWS_EVENTS,
    TABLE_MAP,
    UNSUPPORTED,
    XA_PREPARE,
    BinlogEvent,
    add_event,
    unreadable_event,
    unsupported_reason,
)
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.rows import describe_rows
from onceward.mysql.binlog.sql_effects import (
    NO_EFFECT,
    XA_DECISION,
    NoEffect,
    Rollback,
    SavepointSet,
    Truncation,
    Unsupported,
)
from onceward.mysql.binlog.sql_tables import OtherTables, TableNames
from onceward.mysql.binlog.statements import classify, decided_xid
from onceward.mysql.binlog.table_map import ID_BYTES, TableMap
from onceward.mysql.source.settings import (
    FIRST_BYTE,
    SYSTEM,
    ChangesSettings,
    Coordinates,
    Position,
)
from onceward.mysql.source.transactions import OUTSIDE, TransactionWalk

IDLE_BYTES = 1 << 30
"""Without selected changes, the position moves after so many bytes."""

_COMPARE = "compare these tables with what was read"
# Table maps whose answer is remembered
_MOST_TABLES = 10_000
_WITHOUT_UNSEEN_ROWS = ("xa", "partial_json", "cascade")
"""Reasons to refuse rows whose table maps were seen, and what puts rows into no table."""


@dataclass
class PlannedRange:
    """The stretch between two positions."""

    end: Position
    parts: list[dict[str, Any]]
    """One a task; see :mod:`partitions`."""
    changes: int
    """Events with selected changes: each has one at least."""
    bytes: int
    is_full: bool
    """There may be more behind it at this moment."""
    error: OncewardError | None
    """Why it ends here, if an event behind it cannot be passed on."""


@dataclass
class _PartitionBuilder:
    """The partitions of a range under construction."""

    least: int
    file: str
    begin: int
    partitions: list[dict[str, Any]] = field(default_factory=list)
    maps: tuple[bytes, ...] = ()
    gtid: str | None = None
    changes: int = 0
    """In the open partition."""
    created_at: int | None = None
    era: int = 0

    def cut(
        self, file: str, pos: int, maps: tuple[bytes, ...] = (), gtid: str | None = None
    ) -> None:
        """End the open partition here, and begin another one."""
        if self.changes:
            part: dict[str, Any] = {
                "file": self.file, "born": self.created_at, "era": self.era, "from": self.begin,
                "to": pos,
            }  # fmt: skip
            if self.maps:
                part["maps"] = [base64.b64encode(one).decode() for one in self.maps]
            if self.gtid is not None:
                part["gtid"] = self.gtid
            self.partitions.append(part)
        self.begins(file, pos, maps, gtid)

    def begins(
        self, file: str, pos: int, maps: tuple[bytes, ...] = (), gtid: str | None = None
    ) -> None:
        """Drop the open partition's content, and begin here."""
        self.file, self.begin, self.maps, self.gtid, self.changes = file, pos, maps, gtid, 0

    def between(self, place: Coordinates) -> None:
        """Handle the end of a transaction."""
        if not self.changes:
            self.begins(*place)
        elif place.pos - self.begin >= self.least:
            self.cut(*place)

    def mark(self) -> tuple[Any, ...]:
        """Return the state, for :meth:`back_to`."""
        return (len(self.partitions), self.file, self.begin, self.maps, self.gtid, self.changes)

    def back_to(self, mark: tuple[Any, ...], place: Coordinates) -> None:
        """Drop everything since ``mark``, which was made at ``place``."""
        if mark == self.mark():
            return
        count, self.file, self.begin, self.maps, self.gtid, self.changes = mark
        del self.partitions[count:]
        self.cut(*place)


class _Savepoint(NamedTuple):
    """A savepoint of the transaction under way."""

    mark: tuple[Any, ...]
    place: Coordinates
    here: int
    """The changes before it."""
    least: int
    """Those before it when one of its name was set first."""


class RangePlanner(TransactionWalk):
    """Plans one range, from ``start`` on.

    :param start: on the server that sends the events.
    :param max_changes: events with changes, at most; but a transaction is never cut.
    :param upto: the range ends there, and nowhere else: it was logged before.
    :param only: of a range that was logged on another server: these transactions, and no others.
    :param checked_tables: the selected tables that were there when the server was checked.
    :param reaches_others: asked of a table that a statement changes and nobody reads.
    :param is_view: asked of one that it reads.
    """

    def __init__(
        self,
        settings: ChangesSettings,
        start: Position,
        *,
        max_changes: int = 1 << 62,
        upto: Coordinates | None = None,
        only: Gtids | None = None,
        checked_tables: Container[tuple[str, str]] | None = None,
        reaches_others: Callable[[str, str], bool] = lambda *_: False,
        is_view: Callable[[str, str], bool] = lambda *_: False,
    ) -> None:
        super().__init__(start, upto=upto, selects=settings.selects, skippable=settings.skippable)
        self._again = upto is not None or only is not None
        self._only = only
        self._reaches_others, self._is_view = reaches_others, is_view
        self._settings = settings
        self._most_bytes, self._max_changes = settings.max_bytes, max_changes
        self._checked_tables = checked_tables
        self.unchecked_at: Coordinates | None = None
        """Before the first transaction with a selected table that was not checked."""
        self.unchecked_tables: set[tuple[str, str]] = set()
        self._parts = _PartitionBuilder(settings.part_bytes, start.file, start.pos, era=start.era)
        self._mark = self._parts.mark()
        self._known = (
            None if start.known is None else {settings.normalize(*n) for n in start.known}
        )
        self._maps: dict[bytes, bytes] = {}
        self._wanted_ids: dict[bytes, bool] = {}
        self._known_maps: dict[bytes, bool] = {}
        self._changes = 0
        """Of whole transactions."""
        self._here = 0
        """Of the transaction under way."""
        self._savepoints: dict[str, _Savepoint] = {}
        """Of the transaction under way, in their order."""
        self._handlers |= {
            EXECUTE_LOAD_QUERY: self._load,
            **dict.fromkeys(
                (*ROWS_EVENTS, *COMPRESSED_ROWS_EVENTS, PARTIAL_UPDATE_ROWS), self._rows
            ),
        }
        if only is not None and self.gtids is not None and self.gtids.covers(only):
            self.is_done = True

    def range(self) -> PlannedRange:
        """Return the range."""
        # The last transaction is not whole
        if self._state != OUTSIDE:
            self._on_undone()
        self._parts.cut(*self.place)
        parts, error = self._parts.partitions, self.error
        return PlannedRange(self.position(), parts, self._changes, self.bytes, self.is_done, error)

    def position(self) -> Position:
        """Return the position behind the last whole transaction."""
        return super().position().with_known(self._known)

    # Transactions

    def _on_begin(self) -> None:
        if self._only is not None and (self.gtid is None or self.gtid not in self._only):
            # of a later range
            self._is_skipping = True
        self._here = 0
        self._maps.clear()
        self._wanted_ids.clear()
        self._savepoints.clear()
        self._mark = self._parts.mark()

    def _on_end(self) -> None:
        self._changes += self._here
        self._here = 0
        self._parts.between(self.place)
        if self._only is not None:
            self.is_done = self.gtids is not None and self.gtids.covers(self._only)
        elif not self._again:
            most = self._most_bytes if self._changes else IDLE_BYTES
            self.is_done = self.bytes >= most or self._changes >= self._max_changes

    def _on_skipped(self) -> None:
        super()._on_skipped()
        self._parts.cut(*self._transaction_at)
        self._parts.begins(*self.place)

    def _on_undone(self) -> None:
        # The partitions of a transaction stay revocable until it has ended. All rows before its
        # ROLLBACK are undone: those of tables without transactions are in one of their own.
        self._parts.back_to(self._mark, self._transaction_at)
        self._here = 0

    def _next_file(self, event: BinlogEvent) -> None:
        super()._next_file(event)
        self._parts.cut(*self.place)
        self._parts.era = self.era
        self._parts.begins(event.file, FIRST_BYTE)

    def _format(self, event: BinlogEvent) -> None:
        super()._format(event)
        self._parts.created_at = event.timestamp

    # What is in them

    def _table_map(self, event: BinlogEvent) -> None:
        if self._is_skipping:
            return
        self._cut_inside(event)
        body = bytes(event.body)
        is_selected = self._known_maps.get(body)
        if is_selected is None:
            if len(self._known_maps) >= _MOST_TABLES:
                self._known_maps.clear()
            name = _table_name(event, body)
            is_selected = self._selects(*name) and not self._is_sequence(body)
            self._known_maps[body] = is_selected
            if is_selected:
                self._has_changes(name)
        self._maps[body[:6]] = body
        self._wanted_ids[body[:6]] = is_selected

    def _has_changes(self, name: tuple[str, str]) -> None:
        table = self._settings.normalize(*name)
        if self._known is not None:
            self._known.add(table)
        if self._checked_tables is not None and table not in self._checked_tables:
            self._is_news(name)

    def _is_sequence(self, body: bytes) -> bool:
        if not TableMap.may_be_sequence(body):
            return False
        with suppress(ChangeUnreadable):
            return TableMap.parse(body, self.dialect).is_sequence
        return False

    def _rows(self, event: BinlogEvent) -> None:
        if self._is_skipping:
            return
        self._cut_inside(event)
        start = event.start + HEADER_BYTES
        if self._wanted_ids.get(bytes(event.buffer[start : start + 6])):
            if event.kind == PARTIAL_UPDATE_ROWS:
                map = self._maps[bytes(event.buffer[start : start + 6])]
                self._refuse_kind(event, "partial_json", describe_rows(event, map))
            self._count()
        if event.buffer[start + ID_BYTES] & END_OF_STATEMENT:
            # The next statement says anew which tables it has: of a transaction over many, a part
            # would have them all
            self._maps.clear()

    def _count(self) -> None:
        self._has_selected_rows = True
        self._here += 1
        self._parts.changes += 1

    def _cut_inside(self, event: BinlogEvent) -> None:
        if event.position - self._parts.begin >= self._parts.least and not event.inner:
            self._parts.cut(event.file, event.position, tuple(self._maps.values()), self.gtid)

    def _on_statement(self, event: BinlogEvent) -> None:
        settings = self._settings
        found = classify(
            event, settings.selects, settings.selects_database,
            lower_case_names=settings.ignores_case
        )  # fmt: skip
        if isinstance(found, OtherTables):
            indirect = [
                name
                for names, is_indirect in (
                    (found.tables, self._reaches_others),
                    (found.reads, self._is_view),
                )
                for name in names
                if name[0] not in SYSTEM and is_indirect(*name)
            ]
            found = _reaching_others(indirect[0]) if indirect else NO_EFFECT
        if found == XA_DECISION and self.prepared.get(decided_xid(event) or "", True) is False:
            # On a transaction without rows that are wanted
            return
        if isinstance(found, Unsupported) and self._was_never_there(found.if_there):
            found = found.otherwise
        if (
            isinstance(found, Unsupported)
            and found.table is not None
            and settings.allows_cascade(*found.table)
        ):
            found = NoEffect(found.table)
        if isinstance(found, NoEffect) and found.defines is not None:
            self._is_news(found.defines)
        elif isinstance(found, Unsupported):
            self._refuse(
                event,
                unreadable_event(event, found.reason, found.what, found.next_step, gtid=self.gtid),
            )
        elif isinstance(found, Truncation):
            self._count()
        elif isinstance(found, SavepointSet):
            self._set_savepoint(event, found.name)
        elif isinstance(found, Rollback):
            self._roll_back(event, found.to)

    def _set_savepoint(self, event: BinlogEvent, name: str) -> None:
        before = self._savepoints.pop(name, None)
        self._savepoints[name] = _Savepoint(
            self._parts.mark(),
            Coordinates(event.file, event.position),
            self._here,
            before.least if before is not None else self._here,
        )

    def _roll_back(self, event: BinlogEvent, name: str | None) -> None:
        """Drop what the transaction has since that savepoint. (A ROLLBACK of all of it ends the
        transaction, as servers write it, and is no statement in it.)
        """
        savepoint = None if name is None or event.inner else self._savepoints.get(name)
        if savepoint is None:
            if self._here:
                error = unreadable_event(
                    event, "statement", "a ROLLBACK to a place that is not known here", _COMPARE,
                    gtid=self.gtid, loss="this ROLLBACK, so that what it undid comes as changes,",
                )  # fmt: skip
                super()._refuse(event, error)
            return
        if savepoint.here != savepoint.least:
            # A function's or a trigger's savepoints are its own, and gone when it has ended.
            what = (
                f"a ROLLBACK TO {name}, and this savepoint was set twice, with changes of tables "
                "that are read between: if once by a function or a trigger, the binlog does not "
                "say which of the two is meant"
            )
            error = unreadable_event(
                event, "statement", what, _COMPARE, gtid=self.gtid,
                loss="what came behind the last of them",
            )  # fmt: skip
            super()._refuse(event, error)
        while next(reversed(self._savepoints)) != name:
            self._savepoints.popitem()
        if self._here != savepoint.here:
            self._parts.back_to(savepoint.mark, savepoint.place)
            self._here = savepoint.here
            self._parts.begins(event.file, event.position, tuple(self._maps.values()), self.gtid)

    def _was_never_there(self, names: TableNames) -> bool:
        """Check for tables of which nothing was passed on: IF EXISTS is logged without any."""
        if not names or self._known is None:
            return False
        known = self._known | {(database, "") for database, _ in self._known}
        return known.isdisjoint(self._settings.normalize(*name) for name in names)

    def _is_news(self, name: tuple[str, str]) -> None:
        self.unchecked_at = self.unchecked_at or self._transaction_at
        self.unchecked_tables.add(name)

    def _load(self, event: BinlogEvent) -> None:
        """Handle LOAD DATA as a statement."""
        if not self._is_skipping:
            self._on_statement(event)

    def _on_payload(self, event: BinlogEvent) -> None:
        for inner in self._inner_events(event):
            if inner.kind in ROWS_EVENTS or inner.kind == PARTIAL_UPDATE_ROWS:
                self._rows(inner)
            elif inner.kind == TABLE_MAP:
                self._table_map(inner)
            elif inner.kind == QUERY:
                self._on_statement(inner)
            elif inner.kind == XA_PREPARE and unsupported_reason(
                inner.kind, 0, self.dialect, inner.body
            ):
                self._on_xa_prepare(inner)
            else:
                self._must_pass(inner)

    def _on_xa_prepare(self, event: BinlogEvent) -> None:
        if self._has_selected_rows:
            self._refuse_kind(event, "xa")
        super()._on_xa_prepare(event)

    def _on_other(self, event: BinlogEvent) -> None:
        if not event.artificial and not self._is_skipping:
            self._must_pass(event)
        super()._on_other(event)

    # Stops

    def _must_pass(self, event: BinlogEvent) -> None:
        reason = unsupported_reason(event.kind, event.flags, self.dialect, event.body)
        if reason is not None:
            self._refuse_kind(event, reason)

    def _refuse_kind(self, event: BinlogEvent, reason: str, loss: str = "this one event") -> None:
        what, next_step = UNSUPPORTED[reason]
        what = what.format(kind=event.kind)
        self._refuse(
            event, unreadable_event(event, reason, what, next_step, gtid=self.gtid, loss=loss)
        )

    def _refuse(self, event: BinlogEvent, error: ChangeUnreadable) -> None:
        super()._refuse(event, error)
        # What it has done is not read: tables, or rows in them, may be there now
        if error.details.get("reason") not in _WITHOUT_UNSEEN_ROWS:
            self._known = None


def _reaching_others(name: tuple[str, str]) -> Unsupported:
    what = (
        f"a statement in the place of the rows that it changed: {'.'.join(name)} is a view, has a "
        "trigger, or is what a foreign key with CASCADE or SET NULL refers to"
    )
    return Unsupported(
        "statement",
        what,
        f"set binlog_format=ROW for every session on the server, then {_COMPARE}",
    )


def _table_name(event: BinlogEvent, body: bytes) -> tuple[str, str]:
    try:
        return TableMap.parse_names(body)
    except BinlogCorrupted as error:
        raise add_event(error, event, None) from None
