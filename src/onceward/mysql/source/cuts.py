"""Where a batch ends, and what its tasks read of the binlog: :class:`Cutter`. Pure: events in, a
range out. Driver.

A batch ends at the end of a transaction: as soon as it has the bytes or the changes that it may
have, where the server has no more, or before an event that nobody can pass on. Its parts are
ranges of bytes that begin and end anywhere, also inside a transaction: the one who reads a part is
told which tables the rows in it are of, and whose transaction it is. Stretches without a change of
a wanted table are in no part.

What if a transaction turns out never to have been, or is left out for another reason? Its parts
are taken back: they are kept apart until it has ended.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from onceward.errors import BinlogDamaged, ChangeUnreadable, OncewardError
from onceward.mysql.binlog import kinds
from onceward.mysql.binlog.changes import opened
from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.gtids import Gtids
from onceward.mysql.binlog.kinds import WHY, must_not_pass
from onceward.mysql.binlog.left_out import rows_of
from onceward.mysql.binlog.refusals import located
from onceward.mysql.binlog.statements import (
    DECISION,
    PASSED,
    Elsewhere,
    Passed,
    Stop,
    Truncated,
    classify,
)
from onceward.mysql.binlog.stops import unreadable
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.xa import decided
from onceward.mysql.source.position import FIRST_BYTE, Place, Position
from onceward.mysql.source.settings import SYSTEM, Settings
from onceward.mysql.source.transactions import OUTSIDE, Walk, begins_with

IDLE_BYTES = 1 << 30
"""So much may go by without a change that is wanted, until the position moves all the same."""

_COMPARE = "compare these tables with what was read"
_MOST_TABLES = 10_000  # table maps whose answer is remembered


@dataclass
class Range:
    """What lies between two positions."""

    end: Position
    parts: list[dict[str, Any]]
    """One a task; see :mod:`parts`."""
    changes: int
    """Events with changes that are wanted: each has one at least."""
    bytes: int
    is_full: bool
    """May there be more behind it at this moment?"""
    stop: OncewardError | None
    """Why it ends here, if something behind it cannot be passed on."""


@dataclass
class _Parts:
    """The parts of a range, as far as it is known."""

    least: int
    file: str
    begin: int
    done: list[dict[str, Any]] = field(default_factory=list)
    maps: tuple[bytes, ...] = ()
    gtid: str | None = None
    changes: int = 0
    """In the part that is open."""
    born: int | None = None
    era: int = 0
    """See :class:`~onceward.mysql.source.position.Position`."""

    def cut(
        self, file: str, pos: int, maps: tuple[bytes, ...] = (), gtid: str | None = None
    ) -> None:
        """The open part ends here, and another one begins."""
        if self.changes:
            part: dict[str, Any] = {
                "file": self.file, "born": self.born, "era": self.era, "from": self.begin,
                "to": pos,
            }  # fmt: skip
            if self.maps:
                part["maps"] = [base64.b64encode(one).decode() for one in self.maps]
            if self.gtid is not None:
                part["gtid"] = self.gtid
            self.done.append(part)
        self.begins(file, pos, maps, gtid)

    def begins(
        self, file: str, pos: int, maps: tuple[bytes, ...] = (), gtid: str | None = None
    ) -> None:
        """What was in the open part is dropped."""
        self.file, self.begin, self.maps, self.gtid, self.changes = file, pos, maps, gtid, 0

    def between(self, place: Place) -> None:
        """Between two transactions."""
        if not self.changes:
            self.begins(*place)
        elif place.pos - self.begin >= self.least:
            self.cut(*place)

    def mark(self) -> tuple[Any, ...]:
        return (len(self.done), self.file, self.begin, self.maps, self.gtid, self.changes)

    def back_to(self, mark: tuple[Any, ...], place: Place) -> None:
        """All since ``mark``, which was made at ``place``, is dropped."""
        count, self.file, self.begin, self.maps, self.gtid, self.changes = mark
        del self.done[count:]
        self.cut(*place)


class Cutter(Walk):
    """Makes one range, from ``start`` on.

    :param start: on the server that sends the events.
    :param most_changes: events with changes, at most; but a transaction is never cut.
    :param upto: the range ends there, and nowhere else: it was logged before.
    :param only: of a range that was logged on another server: these transactions, and no others.
    :param looked_at: the wanted tables that were seen when the server was looked at.
    :param reaches_others: asked of a table that a statement changes and nobody reads: is it a
        view, or has triggers?
    """

    def __init__(
        self,
        settings: Settings,
        start: Position,
        *,
        most_changes: int = 1 << 62,
        upto: Place | None = None,
        only: Gtids | None = None,
        looked_at: Container[tuple[str, str]] | None = None,
        reaches_others: Callable[[str, str], bool] = lambda *_: False,
    ) -> None:
        super().__init__(start, upto=upto, wanted=settings.wanted)
        self._again = upto is not None or only is not None
        self._only = only
        self._reaches_others = reaches_others
        self._settings = settings
        self._most_bytes, self._most_changes = settings.max_bytes, most_changes
        self._passes = settings.passes
        self._looked_at = looked_at
        self.news: Place | None = None
        """Before the first transaction that defines a wanted table, or has changes of one that was
        not looked at.
        """
        self.unseen: set[tuple[str, str]] = set()
        """Those tables."""
        self._parts = _Parts(settings.part_bytes, start.file, start.pos, era=start.era)
        self._mark = self._parts.mark()
        self._maps: dict[bytes, bytes] = {}
        self._wanted_ids: dict[bytes, bool] = {}
        self._known_maps: dict[bytes, bool] = {}
        self._changes = 0
        """Of whole transactions."""
        self._here = 0
        """Of the transaction under way."""
        self._handlers |= {
            kinds.EXECUTE_LOAD_QUERY: self._load,
            **dict.fromkeys(
                (*kinds.ROWS, *kinds.COMPRESSED_ROWS, kinds.PARTIAL_UPDATE_ROWS), self._rows
            ),
        }
        if only is not None and self.gtids is not None and self.gtids.covers(only):
            self.full = True

    def range(self) -> Range:
        """What was found."""
        if self._state != OUTSIDE:  # the last transaction is not whole
            self._torn()
        else:
            self._parts.cut(*self.place)
        return Range(
            self.position(), self._parts.done, self._changes, self.bytes, self.full, self.stop
        )

    # Transactions

    def _begun(self, event: Event) -> None:
        if self._only is not None and (self.gtid is None or self.gtid not in self._only):
            self._passing = True  # of a later range
        self._here = 0
        self._maps.clear()
        self._wanted_ids.clear()
        self._mark = self._parts.mark()

    def _ended(self, event: Event) -> None:
        self._changes += self._here
        self._here = 0
        self._parts.between(self.place)
        if self._only is not None:
            self.full = self.gtids is not None and self.gtids.covers(self._only)
        elif not self._again:
            most = self._most_bytes if self._changes else IDLE_BYTES
            self.full = self.bytes >= most or self._changes >= self._most_changes

    def _left_out(self, event: Event) -> None:
        super()._left_out(event)
        self._parts.cut(*self._begins)
        self._parts.begins(*self.place)

    def _torn(self) -> None:
        self._parts.back_to(self._mark, self._begins)
        self._here = 0

    def _next_file(self, event: Event) -> None:
        super()._next_file(event)
        self._parts.cut(*self.place)
        self._parts.era = self.era
        self._parts.begins(event.file, FIRST_BYTE)

    def _format(self, event: Event) -> None:
        super()._format(event)
        self._parts.born = event.timestamp

    # What is in them

    def _table_map(self, event: Event) -> None:
        if self._passing:
            return
        self._cut_inside(event)
        body = bytes(event.body)
        known = self._known_maps.get(body)
        if known is None:
            if len(self._known_maps) >= _MOST_TABLES:
                self._known_maps.clear()
            name = _table_of(event, body)
            known = self._known_maps[body] = self._wanted(*name)
            if (
                known
                and self._looked_at is not None
                and self._settings.as_compared(*name) not in self._looked_at
            ):
                self._is_news(name)
        self._maps[body[:6]] = body
        self._wanted_ids[body[:6]] = known

    def _rows(self, event: Event) -> None:
        if self._passing:
            return
        self._cut_inside(event)
        start = event.start + HEADER_BYTES
        if self._wanted_ids.get(bytes(event.buffer[start : start + 6])):
            if event.kind == kinds.PARTIAL_UPDATE_ROWS:
                map = self._maps[bytes(event.buffer[start : start + 6])]
                self._refuse_kind(event, "partial_json", rows_of(event, map))
            self._count()

    def _count(self) -> None:
        self._touches = True
        self._here += 1
        self._parts.changes += 1

    def _cut_inside(self, event: Event) -> None:
        if event.position - self._parts.begin >= self._parts.least and not event.inner:
            self._parts.cut(event.file, event.position, tuple(self._maps.values()), self.gtid)

    def _said(self, event: Event) -> None:
        settings = self._settings
        found = classify(
            event, settings.wanted, settings.wanted_database, lower_case_names=settings.any_case
        )  # fmt: skip
        if isinstance(found, Elsewhere):
            hidden = [
                name
                for name in found.tables
                if name[0] not in SYSTEM and self._reaches_others(*name)
            ]
            found = _through(hidden[0]) if hidden else PASSED
        if found == DECISION and self.prepared.get(decided(event) or "", True) is False:
            return  # on a transaction without rows that are wanted
        if (
            isinstance(found, Stop)
            and found.table is not None
            and settings.passes_cascade(*found.table)
        ):
            found = Passed(found.table)
        if isinstance(found, Passed) and found.defines is not None:
            self._is_news(found.defines)
        elif isinstance(found, Stop) and not (self._here == 0 and begins_with(event, "ROLLBACK")):
            self._refuse(
                event, unreadable(event, found.reason, found.what, found.next_step, gtid=self.gtid)
            )
        elif isinstance(found, Truncated):
            self._count()

    def _is_news(self, name: tuple[str, str]) -> None:
        self.news = self.news or self._begins
        self.unseen.add(name)

    def _load(self, event: Event) -> None:
        """LOAD DATA as a statement."""
        if not self._passing:
            self._said(event)

    def _packed(self, event: Event) -> None:
        for inner in opened(event, self._passes):
            if inner.kind in kinds.ROWS or inner.kind == kinds.PARTIAL_UPDATE_ROWS:
                self._rows(inner)
            elif inner.kind == kinds.TABLE_MAP:
                self._table_map(inner)
            elif inner.kind == kinds.QUERY:
                self._said(inner)
            elif inner.kind == kinds.XA_PREPARE and must_not_pass(
                inner.kind, 0, self.dialect, inner.body
            ):
                self._undecided(inner)
            else:
                self._must_pass(inner)

    def _undone(self, event: Event) -> None:
        if self._here:
            what = (
                "a ROLLBACK of a transaction with changes of tables that are read, some of "
                "which may have none"
            )
            self._refuse(event, unreadable(event, "statement", what, _COMPARE, gtid=self.gtid))

    def _undecided(self, event: Event) -> None:
        if self._touches:
            self._refuse_kind(event, "xa")
        super()._undecided(event)

    def _other(self, event: Event) -> None:
        if not event.made_up and not self._passing:
            self._must_pass(event)
        super()._other(event)

    # Stops

    def _must_pass(self, event: Event) -> None:
        reason = must_not_pass(event.kind, event.flags, self.dialect, event.body)
        if reason is not None:
            self._refuse_kind(event, reason)

    def _refuse_kind(self, event: Event, reason: str, left_out: str = "this one event") -> None:
        what, next_step = WHY[reason]
        what = what.format(kind=event.kind)
        self._refuse(
            event, unreadable(event, reason, what, next_step, gtid=self.gtid, left_out=left_out)
        )

    def _refuse(self, event: Event, error: ChangeUnreadable) -> None:
        if not self._passes.event(event):
            raise error


def _through(name: tuple[str, str]) -> Stop:
    what = (
        f"a statement in the place of the rows that it changed: {'.'.join(name)} is a view, or "
        f"has a trigger"
    )
    return Stop(
        "statement",
        what,
        f"set binlog_format=ROW for every session on the server, then {_COMPARE}",
    )


def _table_of(event: Event, body: bytes) -> tuple[str, str]:
    """Database and table of a table map."""
    try:
        return TableMap.named(body)
    except BinlogDamaged as error:
        raise located(error, event, None) from None
