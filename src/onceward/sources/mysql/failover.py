"""The same place in the binlogs of another server, found by what was read: its GTIDs. Driver.

What if the other server lacks a transaction that was read? Then there is no such place: it has diverged, or has not
caught up. What if it has thrown away binlogs with transactions that were not read? Then they are lost. What if it has
the same transactions in another order (a replica with several appliers)? The place is before the first that was not
read, and those behind it that were are passed over: per row the order is the same, for a replica only puts transactions
in another order that have no row in common.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable

from onceward.binlog.event import Event
from onceward.binlog.gtids import Gtid, Gtids, gtids_before
from onceward.binlog.kinds import FORMAT_DESCRIPTION, TRANSACTION_STARTS
from onceward.errors import BinlogPurged, OncewardError, SourceReplaced
from onceward.sources.mysql.connection import Server, follow, reading
from onceward.sources.mysql.position import FIRST_BYTE, Place, Position
from onceward.sources.mysql.settings import Settings
from onceward.sources.mysql.transactions import Walk

_ANEW = "start from a new checkpoint, with a snapshot"
_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


def located(settings: Settings, server: Server, known: Position, *, exactly: bool = False) -> Position:
    """``known``, which is of another server, on ``server``; an era later.

    :param exactly: before the place there must be all transactions that are before ``known``.
    :raises SourceReplaced: there is no such place.
    :raises BinlogPurged: binlogs are gone that were not read.
    """
    if known.gtids is None or known.dialect != server.dialect:
        raise SourceReplaced(
            f"{server.where} is the server {server.identity} now, and the query has read {known.server} up to "
            f"{known.place}: "
            + ("a server of another kind" if known.gtids is not None else "without GTIDs the place cannot be found"),
            next_step=f"bring the old server back; or {_ANEW}; with gtid_mode=ON a query goes on by itself",
            details={"known": known.server, "found": server.identity},
        )
    must_have(server, known)
    logged = Gtids.parse(server.dialect, known.gtids)
    for gtids in settings.passed_gtids:
        logged.update(Gtids.parse(server.dialect, gtids))
    file = _file_of(settings, server, logged)
    at = Position(server.dialect, server.identity, known.era + 1, file, FIRST_BYTE, None, str(logged), known.snapshot)
    return _first_unread(settings, at, logged if exactly else None)


def must_have(server: Server, known: Position) -> None:
    """
    :raises SourceReplaced: the server lacks a transaction that lies before ``known``.
    """
    if not known.gtids:
        return
    missing = (
        _missing_mysql(server, known.gtids) if server.dialect == "mysql" else _missing_mariadb(server, known.gtids)
    )
    if not missing:
        return
    raise SourceReplaced(
        f"{server.where} (the server {server.identity}) lacks transactions that the query has read: {missing}. "
        + (
            "Its binlogs were reset, or its data restored from a backup"
            if server.identity == known.server
            else "It has diverged from the server that was read before, or has not caught up with it"
        ),
        next_step=f"if it is a replica that still catches up, start the query again when it has; else {_ANEW}: what "
        "was read and written may be more than this server has",
        details={"known": known.server, "found": server.identity, "missing": missing},
    )


def first_of(settings: Settings, server: str, file: str) -> tuple[int | None, Gtids | None]:
    """When a binlog was begun, and all transactions before it."""
    born = None
    with reading(settings, server, Place(file, FIRST_BYTE)) as dump:
        for events in dump.blocks():
            for event in events:
                if event.kind == FORMAT_DESCRIPTION:
                    born = event.timestamp
                before = gtids_before(event)
                if before is not None or event.kind in TRANSACTION_STARTS:
                    return born, before
    return born, None


def _missing_mysql(server: Server, gtids: str) -> str:
    return str(server.ask("SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", (gtids,))[0][0] or "")


def _missing_mariadb(server: Server, gtids: str) -> str:
    """Of each domain and server the binlog's last is known; all before it are there."""
    last = {(domain, source): int(number) for domain, source, number in _MARIADB_GTID.findall(server.executed())}
    found = [
        f"{domain}-{source}-{number}"
        for domain, source, number in _MARIADB_GTID.findall(gtids)
        if last.get((domain, source), -1) < int(number)
    ]
    return ",".join(found)


def _file_of(settings: Settings, server: Server, logged: Gtids) -> str:
    """The newest binlog all of whose predecessors were read: what is not, begins in there."""
    files = server.binlogs()
    unread = bisect_left(files, True, key=lambda file: not _is_read_before(settings, server, file, logged)) - 1
    purged = Gtids.parse("mysql", server.purged()) if server.dialect == "mysql" else None
    if unread < 0 or (purged is not None and not logged.covers(purged)):
        raise BinlogPurged(
            f"{server.where} (the server {server.identity}) has removed binlogs with transactions that the query has "
            f"not read: removed are {purged if purged is not None else f'those before {files[0]}'}, and read {logged}",
            next_step=f"{_ANEW}; or, if you know that those missing changed none of the tables that are read, add them "
            "to pass_over, as a set of GTIDs",
            details={"read": str(logged), "purged": str(purged)},
        )
    return files[unread]


def _is_read_before(settings: Settings, server: Server, file: str, logged: Gtids) -> bool:
    before = first_of(settings, server.identity, file)[1]
    return before is None or logged.covers(before)


def walked(settings: Settings, at: Position, ends: Callable[[Event, Gtid], bool]) -> Walk:
    """From ``at`` to before the first transaction of which ``ends`` says so, or to the end of all."""
    walk = Walk(at, before=ends)
    follow(settings, at, walk.feed)
    if walk.stop is not None:
        raise walk.stop
    return walk


def _first_unread(settings: Settings, at: Position, logged: Gtids | None) -> Position:
    def ends(event: Event, gtid: Gtid) -> bool:
        if gtid.text is None:
            raise _nameless(at, event)
        return True

    walk = walked(settings, at, ends)
    if logged is not None and not walk.seen.covers(logged):
        raise SourceReplaced(
            f"{settings.where} (the server {at.server}) has transactions in another order than {logged}: of which "
            "moment a snapshot's rows would be cannot be told",
            next_step=f"bring the old server back; or {_ANEW}",
            details={"read": str(logged), "found": str(walk.seen)},
        )
    return walk.position()


def _nameless(at: Position, event: Event) -> OncewardError:
    return SourceReplaced(
        f"the transaction at {event.file}:{event.position} on the server {at.server} has no GTID: whether it was read "
        "on the server before cannot be told",
        next_step=f"{_ANEW}; with gtid_mode=ON on all servers a query goes on by itself",
    )
