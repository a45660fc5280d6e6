"""Follows the events of a binlog from transaction to transaction: :class:`TransactionWalk`. Pure.
Driver.

A transaction begins with its GTID event, or one that says that it has none, and ends with XID,
with COMMIT or ROLLBACK as text, or, where no BEGIN came, with its one statement or INCIDENT. A
transaction payload is a whole transaction.

Source: MySQL, ``sql/binlog.cc``; MariaDB, *Gtid_log_event* in its *Replication protocol*,
``sql/rpl_gtid.cc`` (``rpl_binlog_state``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from onceward.errors import BinlogCorrupted, ChangeUnreadable, OncewardError, SourceReplaced
from onceward.mysql.binlog.compression import decompress
from onceward.mysql.binlog.event import (
    FORMAT_DESCRIPTION,
    GTID_LIST,
    INCIDENT,
    NOTHING_SKIPPABLE,
    PREVIOUS_GTIDS,
    QUERY,
    QUERY_COMPRESSED,
    START_ANEW,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    TRANSACTION_STARTS,
    XA_PREPARE,
    XID,
    BinlogEvent,
    Skippable,
    damaged_event,
    unreadable_event,
)
from onceward.mysql.binlog.gtid_sets import GtidBinlogState, Gtids
from onceward.mysql.binlog.gtids import Gtid, parse_gtid, parse_previous_gtids
from onceward.mysql.binlog.statements import (
    decided_xid,
    parse_statement,
    prepared_xid,
    short_statement,
)
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.source.settings import Coordinates, Position, base_name, binlog_number

OUTSIDE, BEGUN, OPEN = range(3)
"""Between transactions; behind the first event of one; behind its BEGIN."""

# A flag of MariaDB's GTID event
_STANDALONE = 1

_MISSING = f"the tables that are read may have other rows now: compare them, or {START_ANEW}"
_MOST_PREPARED = 1000
"""The decision on an XA transaction that is forgotten is an error."""
_NO_GTID = Gtid(None, None)

Handler = Callable[[BinlogEvent], None]


class TransactionWalk:
    """A walk from ``at`` on. Its place is always behind a whole transaction; subclasses look into
    these.

    :param at: on the server that sends the events.
    :param selects: says whether a table is read. For what is remembered of XA transactions.
    :param before: says of each transaction that is not skipped, at its first event, whether the
        walk ends before it.
    :param upto: the end of the walk.
    :param skippable: what ``pass_over`` names.
    """

    def __init__(
        self,
        at: Position,
        *,
        before: Callable[[BinlogEvent, Gtid], bool] | None = None,
        upto: Coordinates | None = None,
        selects: Callable[[str, str], bool] = lambda *_: True,
        skippable: Skippable = NOTHING_SKIPPABLE,
    ) -> None:
        self.at = at
        self.dialect = at.dialect
        self.place, self.created_at, self.era = at.place, at.born, at.era
        self.gtids: Gtids | None = None if at.gtids is None else Gtids.parse(at.dialect, at.gtids)
        self._skips = None if at.skips is None else GtidBinlogState.from_text(at.skips)
        self.prepared = dict(at.prepared or {})
        self.is_done = upto == self.place
        """The walk has ended. Events behind the end are not looked at."""
        self.bytes = 0
        """Size of the transactions that were walked."""
        self.error: OncewardError | None = None
        """Why it ended, unless it reached its end."""
        self.skipped_gtids = Gtids.parse(at.dialect, "")
        """The transactions that were skipped, and those before them in their file."""
        self.gtid: str | None = None
        """Of the transaction under way."""
        self._state = OUTSIDE
        self._is_skipping = False
        """The transaction was read before."""
        self._transaction_at = at.place
        self._has_selected_rows = False
        """The transaction has rows of a selected table."""
        self._before, self._upto, self._selects = before, upto, selects
        self._skippable = skippable
        self._file = at.file
        self._handlers: dict[int, Handler] = {
            **dict.fromkeys(TRANSACTION_STARTS, self._transaction),
            QUERY: self._query,
            QUERY_COMPRESSED: self._query,
            XID: self._end_transaction,
            TRANSACTION_PAYLOAD: self._payload,
            FORMAT_DESCRIPTION: self._format,
            PREVIOUS_GTIDS: self._previous,
            GTID_LIST: self._previous,
            XA_PREPARE: self._xa_prepare,
            TABLE_MAP: self._table_map,
            INCIDENT: self._incident,
        }

    def feed(self, events: Sequence[BinlogEvent]) -> bool:
        """Take events; return whether the walk has ended, at its end or by an error."""
        handlers, other = self._handlers, self._on_other
        try:
            for event in events:
                if self.is_done:
                    break
                if event.file != self._file:
                    self._next_file(event)
                handlers.get(event.kind, other)(event)
        except (ChangeUnreadable, BinlogCorrupted, SourceReplaced) as error:
            # What came before it can still be passed on
            self.is_done, self.error = True, error
        return self.is_done

    def position(self) -> Position:
        """Return the position behind the last whole transaction."""
        return replace(
            self.at,
            file=self.place.file,
            pos=self.place.pos,
            born=self.created_at,
            era=self.era,
            gtids=None if self.gtids is None else str(self.gtids),
            skips=str(self._skips) if self._skips else None,
            unordered=self.at.unordered or (self.gtids is not None and self.gtids.is_unordered),
            prepared=self.prepared or None,
        )

    # What subclasses look at

    def _on_begin(self) -> None:
        """Handle the first event of a transaction that was not read before."""

    def _on_end(self) -> None:
        """Handle the end of a transaction; the place is behind it."""

    def _on_skipped(self) -> None:
        """Handle the end of a transaction that was read before."""
        if self.gtid is not None and self._skips is None:
            self.skipped_gtids.add(self.gtid)

    def _on_undone(self) -> None:
        """Handle a transaction that was rolled back or given up, or that has not ended."""

    def _on_statement(self, event: BinlogEvent) -> None:
        """Handle a statement that is neither BEGIN nor an end."""

    def _on_payload(self, event: BinlogEvent) -> None:
        """Handle a whole transaction in one event."""

    def _on_xa_prepare(self, event: BinlogEvent) -> None:
        """Handle XA_PREPARE of two phases."""
        # Its rows are here. The decision, which may come much later, has only the XID.
        while len(self.prepared) >= _MOST_PREPARED:
            del self.prepared[next(iter(self.prepared))]
        self.prepared[prepared_xid(event)] = self._has_selected_rows

    def _table_map(self, event: BinlogEvent) -> None:
        if not self._has_selected_rows and not self._is_skipping:
            self._has_selected_rows = self._selects(*TableMap.parse_names(bytes(event.body)))

    def _on_other(self, event: BinlogEvent) -> None:
        """Handle any event that has no meaning here."""
        if self._state == OUTSIDE and not event.artificial:
            self._advance_behind(event)

    # Transactions

    def _transaction(self, event: BinlogEvent) -> None:
        if self._state != OUTSIDE:
            raise damaged_event(
                event, f"a transaction, and the one at {self._transaction_at} has not ended"
            )
        gtid = self._parse_gtid(event)
        self._is_skipping, self._has_selected_rows = self._was_read(gtid.text), False
        if not self._is_skipping and self._before is not None and self._before(event, gtid):
            self.is_done = True
            return
        self.gtid, self._transaction_at = gtid.text, Coordinates(event.file, event.position)
        self._state = BEGUN
        # MariaDB's GTID event stands for the BEGIN, unless it says that one statement follows.
        if self.dialect == "mariadb" and not event.body[12] & _STANDALONE:
            self._state = OPEN
        if not self._is_skipping:
            self._on_begin()

    def _was_read(self, gtid: str | None) -> bool:
        if gtid is None:
            return False
        # On the same server the place decides what was read. On another one, where transactions
        # may stand in another order, GTIDs do. MySQL's sets are exact, and asked always. MariaDB's
        # numbers may come out of order: they are asked until the last one that was read elsewhere
        # has come.
        if self.dialect == "mariadb":
            if (
                self._skips is not None
                and self.gtids is not None
                and self._skips.has_gap_before(gtid, self.gtids)
            ):
                raise gap_error(self.at, gtid)
            return self._skips is not None and self._skips.must_skip(gtid)
        return self.gtids is not None and gtid in self.gtids

    def _parse_gtid(self, event: BinlogEvent) -> Gtid:
        try:
            found = parse_gtid(event)
        except ChangeUnreadable as error:
            self._refuse(event, error)
            found = None
        return found or _NO_GTID

    def _query(self, event: BinlogEvent) -> None:
        text = short_statement(event) if event.kind == QUERY else b""
        if text == b"BEGIN":
            self._state = OPEN
        elif self._state == OPEN and text == b"COMMIT":
            self._end_transaction(event)
        elif self._state == OPEN and text == b"ROLLBACK":
            if not self._is_skipping:
                self._on_undone()
            self._end_transaction(event)
        else:
            self._statement(event)

    def _statement(self, event: BinlogEvent) -> None:
        texts: tuple[str, ...] = ()
        for plain in self._inner_events(event):
            if not self._is_skipping:
                self._on_statement(plain)
                self.prepared.pop(decided_xid(plain) or "", None)
            texts = parse_statement(plain).texts if self._state == BEGUN else ()
        if any(text.lstrip().upper().startswith(("XA START", "XA BEGIN")) for text in texts):
            # MySQL's word for the BEGIN of an XA transaction
            self._state = OPEN
        elif self._state == BEGUN:
            self._end_transaction(event)
        elif self._state == OUTSIDE:
            self._advance_behind(event)

    def _payload(self, event: BinlogEvent) -> None:
        if not self._is_skipping:
            self._on_payload(event)
        self._end_transaction(event)

    def _xa_prepare(self, event: BinlogEvent) -> None:
        one_phase = len(event.body) > 0 and bool(event.body[0])
        if not one_phase and not self._is_skipping:
            self._on_xa_prepare(event)
        self._end_transaction(event)

    def _incident(self, event: BinlogEvent) -> None:
        self._on_other(event)
        if self._state == BEGUN:
            # MySQL's has a GTID, and nothing follows that ends it
            self._end_transaction(event)

    def _end_transaction(self, event: BinlogEvent) -> None:
        if self._skips is not None and self.gtid is not None:
            # Skipping by numbers relies on their order
            self.skipped_gtids.add(self.gtid)
            if self.skipped_gtids.is_unordered and self._skips.is_complete:
                raise unordered_error(self.at, f"{self.gtid} at {self._transaction_at}")
            self._mark_reached(Gtids.parse(self.dialect, self.gtid))
        was_skipping, self._is_skipping, self._state = self._is_skipping, False, OUTSIDE
        if self.gtid is None:
            self.gtids = None
        elif self.gtids is not None and not was_skipping:
            self.gtids.add(self.gtid)
        self.bytes += max(0, _end_position(event) - self._transaction_at.pos)
        self._advance_behind(event)
        if was_skipping:
            self._on_skipped()
        else:
            self._on_end()
        self.gtid = None

    def _mark_reached(self, state: Gtids) -> None:
        if self._skips is not None:
            self._skips.mark_reached(state)
            self._skips = self._skips or None

    def _advance_behind(self, event: BinlogEvent) -> None:
        self.place = Coordinates(event.file, _end_position(event))
        upto = self._upto
        if upto is not None and self.place.is_at_or_behind(upto):
            self.is_done = True
            if self.place != upto:
                what = f"what goes on beyond {upto}, where a batch ended before"
                raise damaged_event(event, what)

    # Files

    def _next_file(self, event: BinlogEvent) -> None:
        if self._state != OUTSIDE:
            # A server that died may have left half a transaction at the end of a file, and given
            # it up.
            was_skipping, self._is_skipping, self._state = self._is_skipping, False, OUTSIDE
            if not was_skipping:
                self._on_undone()
        if base_name(event.file) != base_name(self._file):
            # The server was started with another --log-bin, and counts from 1 again
            self.era += 1
        elif binlog_number(event.file) <= binlog_number(self._file):
            raise damaged_event(
                event, f"what follows {self._file}, and its name is not a later one"
            )
        self._file = event.file

    def _format(self, event: BinlogEvent) -> None:
        created_at = self.at.born if event.file == self.at.file else None
        if created_at is not None and event.timestamp != created_at:
            raise SourceReplaced(
                f"{event.file} was begun at {event.timestamp} (seconds since 1970), and the query "
                f"has read a file of that name that was begun at {created_at}: the server's "
                "binlogs were reset, or it is another server",
                next_step=f"what was in the old binlogs is gone: {START_ANEW}",
                details={"known": created_at, "found": event.timestamp},
            )
        self.created_at = event.timestamp
        self._on_other(event)

    def _previous(self, event: BinlogEvent) -> None:
        before = parse_previous_gtids(event)
        assert before is not None  # noqa: S101 — it is an event of that kind
        # A transaction of it that was not seen is in no binlog
        self.skipped_gtids.update(before)
        if self.gtids is not None and not self.gtids.covers(before):
            what = (
                f"the set of all transactions before it, {before}, and seen were {self.gtids}: "
                "gtid_purged was set"
            )
            self._refuse(event, unreadable_event(event, "incident", what, _MISSING))
        gtids = self.gtids
        if gtids is None:
            self.gtids = before
        elif (
            isinstance(before, GtidBinlogState)
            and isinstance(gtids, GtidBinlogState)
            and self._skips is None
        ):
            gtids.learn(before)
        else:
            gtids.update(before)
        self._mark_reached(before)
        self._on_other(event)

    # Stops

    def _inner_events(self, event: BinlogEvent) -> Iterator[BinlogEvent]:
        """Yield the events that ``event`` contains; none if it is passed over."""
        try:
            yield from decompress(event)
        except ChangeUnreadable as error:
            self._refuse(event, error)

    def _refuse(self, event: BinlogEvent, error: ChangeUnreadable) -> None:
        """Raise ``error``, unless ``pass_over`` names the event."""
        if not self._skippable.has_event(event):
            raise error


def gap_error(at: Position, what: str) -> SourceReplaced:
    """Return the error of a MariaDB that lacks transactions before its binlogs: it has no set of
    those that it has removed, or was made of.
    """
    return SourceReplaced(
        f"the binlogs of the server {at.server} have {what}, and not the last transactions that "
        f"the query has read ({at.gtids}), nor the next ones: it was made of a dump, or its "
        "binlogs were removed, behind that place",
        next_step=f"bring the old server back; or {START_ANEW}",
        details={"found": at.server, "read": at.gtids},
    )


def unordered_error(at: Position, what: str) -> SourceReplaced:
    """Return the error of numbers that do not identify what was read on another server."""
    return SourceReplaced(
        f"the query went on to the server {at.server}, and which of its transactions it has read "
        f"before cannot be told: numbers of one server do not grow in its binlogs ({what}), as "
        "they do with gtid_strict_mode=ON",
        next_step=f"bring the old server back; or {START_ANEW}",
        details={"found": at.server},
    )


def _end_position(event: BinlogEvent) -> int:
    """Return the position behind the event, whose size in the header includes the checksum."""
    size = int.from_bytes(event.buffer[event.start + 9 : event.start + 13], "little")
    return event.position + size
