"""Follows the events of a binlog from transaction to transaction: :class:`Walk`. Pure: events in.
Driver.

What is not obvious:

* A transaction begins with an event that is its GTID, or says that it has none, and ends with XID,
  with COMMIT or ROLLBACK as text, or, where no BEGIN came, with its one statement. MariaDB's GTID
  event says which of the two it is, and stands for the BEGIN itself. A transaction payload is all
  of its transaction.
* A server that died may have left half a transaction at the end of a file, which it then gave up.
  The next file begins without its end: then it never was.
* A file begins with the set of all transactions before it. Whatever is in there, and was not seen,
  is in no binlog.
* Which transactions were read before is decided on the same server by the place, and on another,
  where they may stand in another order, by GTIDs, so that each is read once. MySQL's sets are
  exact and asked always; numbers of MariaDB's may come out of order, so they are asked until the
  last that was read elsewhere has come, and never again.
* An XA transaction has its rows where it is prepared. The decision, which may come much later,
  says its name alone: of each that is prepared it is remembered whether it has rows that are
  wanted.

Source: MySQL, ``sql/binlog.cc``; MariaDB, *Gtid_log_event* in its *Replication protocol*,
``sql/rpl_gtid.cc`` (``rpl_binlog_state``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from onceward.errors import BinlogDamaged, ChangeUnreadable, OncewardError, SourceReplaced
from onceward.mysql.binlog import kinds
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.gtids import Gtid, Gtids, MariaState, gtid_of, gtids_before
from onceward.mysql.binlog.packed import unpacked
from onceward.mysql.binlog.statements import short_text, statement_of
from onceward.mysql.binlog.stops import damaged, unreadable
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.xa import decided, prepared
from onceward.mysql.source.position import Place, Position, base_of, number_of

OUTSIDE, BEGUN, OPEN = range(3)
"""Between transactions; behind the first event of one; behind its BEGIN."""

_STANDALONE = 1  # a flag of MariaDB's GTID event

_MISSING = (
    "the tables that are read may have other rows now: compare them, or start from a new "
    "checkpoint"
)
_MOST_PREPARED = 1000
"""XA transactions that are remembered: the decision on a forgotten one is a stop, as on one that
was never seen.
"""
_NAMELESS = Gtid(None, rows_only=False, length=None, committed_at_us=None)

Handler = Callable[[Event], None]


class Walk:
    """From ``at`` on. Its place is always behind a whole transaction; subclasses look into these.

    :param at: on the server that sends the events.
    :param wanted: is a table read? For what is remembered of XA transactions.
    :param before: asked of each transaction that is not passed over, at its first event: is it the
        end of the way?
    :param upto: the end of the way.
    """

    def __init__(
        self,
        at: Position,
        *,
        before: Callable[[Event, Gtid], bool] | None = None,
        upto: Place | None = None,
        wanted: Callable[[str, str], bool] = lambda *_: True,
    ) -> None:
        self.at = at
        self.dialect = at.dialect
        self.place, self.born, self.era = at.place, at.born, at.era
        self.gtids: Gtids | None = None if at.gtids is None else Gtids.parse(at.dialect, at.gtids)
        self._skips = None if at.skips is None else MariaState.parsed(at.skips)
        self.prepared = dict(at.prepared or {})
        """See :class:`~onceward.mysql.source.position.Position`."""
        self.full = False
        """Is this the end of the way? Events behind it are not looked at."""
        self.bytes = 0
        """Of the transactions that were seen."""
        self.stop: OncewardError | None = None
        """Why it goes no further, if it is not for the end of the way."""
        self.seen = Gtids.parse(at.dialect, "")
        """Of the transactions that were passed over, and those before them in their file."""
        self.gtid: str | None = None
        """Of the transaction that is under way."""
        self._state = OUTSIDE
        self._passing = False
        """Is the transaction one that was read before?"""
        self._begins = at.place
        self._touches = False
        """Has it rows of a wanted table?"""
        self._before, self._upto, self._wanted = before, upto, wanted
        self._file = at.file
        self.full = upto == self.place
        self._handlers: dict[int, Handler] = {
            **dict.fromkeys(kinds.TRANSACTION_STARTS, self._transaction),
            kinds.QUERY: self._query,
            kinds.QUERY_COMPRESSED: self._query,
            kinds.XID: self._end,
            kinds.TRANSACTION_PAYLOAD: self._payload,
            kinds.FORMAT_DESCRIPTION: self._format,
            kinds.PREVIOUS_GTIDS: self._previous,
            kinds.GTID_LIST: self._previous,
            kinds.XA_PREPARE: self._xa_prepare,
            kinds.TABLE_MAP: self._table_map,
        }

    def feed(self, events: Sequence[Event]) -> bool:
        """Is the end of the way reached, or a stop?"""
        handlers, other = self._handlers, self._other
        try:
            for event in events:
                if self.full:
                    break
                if event.file != self._file:
                    self._next_file(event)
                handlers.get(event.kind, other)(event)
        except (ChangeUnreadable, BinlogDamaged, SourceReplaced) as error:
            self.full, self.stop = True, error  # what came before it can still be passed on
        return self.full

    def position(self) -> Position:
        """Behind the last whole transaction."""
        return replace(
            self.at,
            file=self.place.file,
            pos=self.place.pos,
            born=self.born,
            era=self.era,
            gtids=None if self.gtids is None else str(self.gtids),
            skips=str(self._skips) if self._skips else None,
            unordered=self.at.unordered or (self.gtids is not None and self.gtids.unordered),
            prepared=self.prepared or None,
        )

    # What subclasses look at

    def _begun(self, event: Event) -> None:
        """A transaction that was not read before."""

    def _ended(self, event: Event) -> None:
        """It is whole; the place is behind it."""

    def _left_out(self, event: Event) -> None:
        """It is whole, and was read before."""
        if self.gtid is not None and self._skips is None:
            self.seen.add(self.gtid)

    def _torn(self) -> None:
        """It never was."""

    def _said(self, event: Event) -> None:
        """A statement that is neither BEGIN nor an end."""

    def _packed(self, event: Event) -> None:
        """All of a transaction, in one event."""

    def _undone(self, event: Event) -> None:
        """The transaction ends in ROLLBACK, or a part of it does."""

    def _undecided(self, event: Event) -> None:
        """XA_PREPARE of two phases: its rows are there, and the decision comes later."""
        while len(self.prepared) >= _MOST_PREPARED:
            del self.prepared[next(iter(self.prepared))]
        self.prepared[prepared(event)] = self._touches

    def _table_map(self, event: Event) -> None:
        if not self._touches and not self._passing:
            self._touches = self._wanted(*TableMap.named(bytes(event.body)))

    def _other(self, event: Event) -> None:
        """Any event that has no meaning here."""
        if self._state == OUTSIDE and not event.made_up:
            self._stands_behind(event)

    # Transactions

    def _transaction(self, event: Event) -> None:
        if self._state != OUTSIDE:
            raise damaged(event, f"a transaction, and the one at {self._begins} has not ended")
        gtid = self._name_of(event)
        self._passing, self._touches = self._was_read(gtid.text), False
        if not self._passing and self._before is not None and self._before(event, gtid):
            self.full = True
            return
        self.gtid, self._begins = gtid.text, Place(event.file, event.position)
        self._state = BEGUN
        if self.dialect == "mariadb" and not event.body[12] & _STANDALONE:
            self._state = OPEN
        if not self._passing:
            self._begun(event)

    def _was_read(self, gtid: str | None) -> bool:
        if gtid is None:
            return False
        if self.dialect == "mariadb":
            if (
                self._skips is not None
                and self.gtids is not None
                and self._skips.leaves_out(gtid, self.gtids)
            ):
                raise begins_later(self.at, gtid)
            return self._skips is not None and self._skips.skips(gtid)
        return self.gtids is not None and gtid in self.gtids

    def _name_of(self, event: Event) -> Gtid:
        try:
            found = gtid_of(event)
        except ChangeUnreadable as error:
            self._refuse(event, error)
            found = None
        return found or _NAMELESS

    def _query(self, event: Event) -> None:
        said = short_text(event) if event.kind == kinds.QUERY else b""
        if said == b"BEGIN":
            self._state = OPEN
        elif self._state == OPEN and said == b"COMMIT":
            self._end(event)
        elif self._state == OPEN and said == b"ROLLBACK":
            if not self._passing:
                self._undone(event)
            self._end(event)
        else:
            self._statement(event)

    def _statement(self, event: Event) -> None:
        plain = next(unpacked(event))
        if not self._passing:
            self._said(plain)
            self.prepared.pop(decided(plain) or "", None)
        if self._state == BEGUN and begins_with(plain, "XA START", "XA BEGIN"):
            self._state = OPEN  # MySQL's word for the BEGIN of an XA transaction
        elif self._state == BEGUN:
            self._end(event)
        elif self._state == OUTSIDE:
            self._stands_behind(event)

    def _payload(self, event: Event) -> None:
        if not self._passing:
            self._packed(event)
        self._end(event)

    def _xa_prepare(self, event: Event) -> None:
        one_phase = len(event.body) > 0 and bool(event.body[0])
        if not one_phase and not self._passing:
            self._undecided(event)
        self._end(event)

    def _end(self, event: Event) -> None:
        if self._skips is not None and self.gtid is not None:
            self._compare(self._skips, self.gtid)
        passing, self._passing, self._state = self._passing, False, OUTSIDE
        if self.gtid is None:
            self.gtids = None
        elif self.gtids is not None and not passing:
            self.gtids.add(self.gtid)
        self.bytes += max(0, _end_of(event) - self._begins.pos)
        self._stands_behind(event)
        if passing:
            self._left_out(event)
        else:
            self._ended(event)
        self.gtid = None

    def _compare(self, skips: MariaState, gtid: str) -> None:
        """Whoever passes over by numbers relies on their order."""
        self.seen.add(gtid)
        if self.seen.unordered and skips.is_whole:
            raise out_of_order(self.at, f"{gtid} at {self._begins}")
        self._reached(Gtids.parse(self.dialect, gtid))

    def _reached(self, state: Gtids) -> None:
        if self._skips is not None:
            self._skips.reached(state)
            self._skips = self._skips or None

    def _stands_behind(self, event: Event) -> None:
        self.place = Place(event.file, _end_of(event))
        if self._upto is not None and self.place.is_at_or_behind(self._upto):
            self._reach(self._upto, event)

    def _reach(self, upto: Place, event: Event) -> None:
        self.full = True
        if self.place != upto:
            raise damaged(event, f"what goes on beyond {upto}, where a batch ended before")

    # Files

    def _next_file(self, event: Event) -> None:
        if self._state != OUTSIDE:
            passing, self._passing, self._state = self._passing, False, OUTSIDE
            if not passing:
                self._torn()
        if base_of(event.file) != base_of(self._file):
            self.era += 1  # the server was started with another --log-bin, and counts from 1 again
        elif number_of(event.file) <= number_of(self._file):
            raise damaged(event, f"what follows {self._file}, and its name is not a later one")
        self._file = event.file

    def _format(self, event: Event) -> None:
        known = self.at.born if event.file == self.at.file else None
        if known is not None and event.timestamp != known:
            raise SourceReplaced(
                f"{event.file} was begun at {event.timestamp} (seconds since 1970), and the query "
                f"has read a file of "
                f"that name that was begun at {known}: the server's binlogs were reset, or it is "
                f"another server",
                next_step="start from a new checkpoint, with a snapshot: what was in the old "
                "binlogs is gone",
                details={"known": known, "found": event.timestamp},
            )
        self.born = event.timestamp
        self._other(event)

    def _previous(self, event: Event) -> None:
        said = gtids_before(event)
        if said is not None:
            self.seen.update(said)
        if said is not None and self.gtids is not None and not self.gtids.covers(said):
            what = (
                f"the set of all transactions before it, {said}, and seen were {self.gtids}: "
                f"gtid_purged was set"
            )
            self._refuse(event, unreadable(event, "incident", what, _MISSING))
        if said is not None and self.gtids is None:
            self.gtids = said
        elif (
            isinstance(said, MariaState)
            and isinstance(self.gtids, MariaState)
            and self._skips is None
        ):
            self.gtids.learn(said)
        elif said is not None and self.gtids is not None:
            self.gtids.update(said)
        if said is not None:
            self._reached(said)
        self._other(event)

    # Stops

    def _refuse(self, event: Event, error: ChangeUnreadable) -> None:
        """:raises ChangeUnreadable: unless a person has said that it may pass."""
        raise error


def begins_later(at: Position, what: str) -> SourceReplaced:
    """A MariaDB has no set of transactions that it has removed, or was made of."""
    return SourceReplaced(
        f"the binlogs of the server {at.server} have {what}, and not the last transactions that "
        f"the query has read "
        f"({at.gtids}), nor the next ones: it was made of a dump, or its binlogs were removed, "
        f"behind that place",
        next_step="bring the old server back; or start from a new checkpoint, with a snapshot",
        details={"found": at.server, "read": at.gtids},
    )


def out_of_order(at: Position, what: str) -> SourceReplaced:
    """Numbers do not tell what was read on another server."""
    return SourceReplaced(
        f"the query went on to the server {at.server}, and which of its transactions it has read "
        f"before cannot be "
        f"told: numbers of one server do not grow in its binlogs ({what}), as they do with "
        f"gtid_strict_mode=ON",
        next_step="bring the old server back; or start from a new checkpoint, with a snapshot",
        details={"found": at.server},
    )


def _end_of(event: Event) -> int:
    """Behind its last byte in the file: its header has its size with the checksum."""
    size = int.from_bytes(event.buffer[event.start + 9 : event.start + 13], "little")
    return event.position + size


def begins_with(statement: Event, *words: str) -> bool:
    """Does the text of a QUERY begin with one of these?"""
    return any(text.lstrip().upper().startswith(words) for text in statement_of(statement).texts)
