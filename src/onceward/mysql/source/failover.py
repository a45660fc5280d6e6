"""The same place in the binlogs of another server, found by what was read: its GTIDs. Driver. So
is a place whose file is gone from its own server, because it was removed, or the server writes to
files of another name.

What if the other server lacks a transaction that was read? Then there is no such place: it has
diverged, or has not caught up. What if it has thrown away binlogs with transactions that were not
read? Then they are lost. What if it has the same transactions in another order (a replica with
several appliers)? The place is before the first that was not read, and those behind it that were
are passed over: per row the order is the same, for a replica only puts transactions in another
order that have no row in common.

What if numbers of MariaDB's do not grow (gtid_strict_mode is off, and somebody reset a counter, or
set one)? Then a GTID names two transactions, and no place can be found by it: that is said, and
the query stops.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from onceward.errors import (
    AccessDenied,
    BinlogPurged,
    OncewardError,
    ServerUnreachable,
    SourceReplaced,
)
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.gtids import Gtid, Gtids, gtids_before
from onceward.mysql.binlog.kinds import FORMAT_DESCRIPTION, TRANSACTION_STARTS
from onceward.mysql.source.connection import ANEW, Server, follow, reading
from onceward.mysql.source.position import FIRST_BYTE, Place, Position, base_of, number_of
from onceward.mysql.source.settings import Settings
from onceward.mysql.source.transactions import Walk, begins_later, out_of_order

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


def located(
    settings: Settings, server: Server, known: Position, *, exactly: bool = False
) -> Position:
    """``known``, which is of another server, on ``server``; an era later.

    :param exactly: before the place there must be all transactions that are before ``known``.
    :raises SourceReplaced: there is no such place.
    :raises BinlogPurged: binlogs are gone that were not read.
    """
    if known.gtids is None or known.dialect != server.dialect:
        raise SourceReplaced(
            f"{server.where} is the server {server.identity} now, and the query has read "
            f"{known.server} up to "
            f"{known.place}: "
            + (
                "a server of another kind"
                if known.gtids is not None
                else "without GTIDs the place cannot be found"
            ),
            next_step=f"bring the old server back; or {server.anew}",
            details={"known": known.server, "found": server.identity},
        )
    if (
        known.server != server.identity
        and (same := renamed(settings, server, known)).server == server.identity
    ):
        return same
    must_have(server, known)
    return _located(settings, server, known, known.era + 1, exactly=exactly)


def relocated(
    settings: Settings, server: Server, known: Position, gone: OncewardError
) -> Position:
    """``known``, whose binlog is gone from its own server.

    :param gone: what was said of it. :raises OncewardError: that, or what :func:`located` raises,
        for there is no such place.
    """
    if known.gtids is None:
        raise type(gone)(
            f"{gone.message}, and without GTIDs nobody can tell whether all of it was read",
            next_step=gone.next_step,
            details=gone.details,
        )
    must_have(server, known)
    files = list(server.binlogs())
    # RESET MASTER lets a server use its GTIDs again. But where the binlog that was read last was
    # removed, all that was read is among what the server has removed.
    removed = _removed(settings, server, files)
    if removed is None or not removed.covers(Gtids.parse(server.dialect, known.gtids)):
        raise SourceReplaced(
            f"{server.where} (the server {server.identity}) has no {known.file} any more, which "
            f"the query has read "
            f"up to {known.pos}, and has not removed all transactions that were read before: "
            f"removed are "
            f"{removed or 'none'}, and read {known.gtids}. Its binlogs were reset",
            next_step=f"{ANEW}: what was in the old binlogs is gone",
            details={"read": known.gtids, "purged": str(removed)},
        )
    onwards = base_of(files[-1]) == base_of(known.file) and number_of(files[0]) > number_of(
        known.file
    )
    return _located(settings, server, known, known.era if onwards else known.era + 1)


def _removed(settings: Settings, server: Server, files: list[str]) -> Gtids | None:
    """All transactions that the server has, and that are in none of its binlogs."""
    if server.dialect == "mysql":
        return Gtids.parse("mysql", server.purged())
    return first_of(settings, server.identity, files[0])[1]


def _located(
    settings: Settings, server: Server, known: Position, era: int, *, exactly: bool = False
) -> Position:
    _must_be_ordered(server, known)
    logged = Gtids.parse(server.dialect, known.gtids or "")
    for gtids in settings.passed_gtids:
        logged.update(Gtids.parse(server.dialect, gtids))
    file = _file_of(settings, server, logged)
    at = replace(
        known, server=server.identity, era=era, file=file, pos=FIRST_BYTE, born=None,
        gtids=str(logged),
        skips=str(logged) if server.dialect == "mariadb" else None,
    )  # fmt: skip
    return _first_unread(settings, at, logged if exactly else None)


def must_have(server: Server, known: Position) -> None:
    """
    :raises SourceReplaced: the server lacks a transaction that lies before ``known``.
    :raises ServerUnreachable: so does another server, which is a replica, and may only have to
        catch up.
    """
    if not known.gtids or _is_there(server, known):
        return
    missing = (
        _missing_mysql(server, known.gtids)
        if server.dialect == "mysql"
        else _missing_mariadb(server, known.gtids)
    )
    if not missing:
        return
    what = (
        f"{server.where} (the server {server.identity}) lacks transactions that the query has "
        f"read: {missing}"
    )
    details = {"known": known.server, "found": server.identity, "missing": missing}
    if server.identity != known.server and _may_catch_up(server):
        raise ServerUnreachable(
            f"{what}. It is a replica, which may not have caught up yet",
            next_step="see in SHOW REPLICA STATUS (SHOW SLAVE STATUS) whether it replicates; once "
            "it has these, the "
            "query goes on when it is started again",
            details=details,
        )
    raise SourceReplaced(
        f"{what}. "
        + (
            "Its binlogs were reset, or its data restored from a backup"
            if server.identity == known.server
            else "It has diverged from the server that was read before, and replicates no other"
        ),
        next_step=f"bring back a server that has them; or {ANEW}: what was read and written may "
        f"be more than this "
        "server has",
        details=details,
    )


def _may_catch_up(server: Server) -> bool:
    try:
        return server.is_replica()
    except AccessDenied:
        return False


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


def _is_there(server: Server, known: Position) -> bool:
    """Is the place in this server's binlogs? A MariaDB without gtid_strict_mode may have counted
    back since, and the numbers say nothing then; that it is another file of the name is seen when
    it is read.
    """
    if server.dialect == "mysql" or server.identity != known.server or _is_strict(server):
        return False
    return known.file in server.binlogs() and not _is_beyond(known, server.end())


def _is_beyond(known: Position, end: Place) -> bool:
    return known.place != end and known.place.is_at_or_behind(end)


def _is_strict(server: Server) -> bool:
    return server.variables("gtid_strict_mode").get("gtid_strict_mode") == "ON"


def renamed(settings: Settings, server: Server, known: Position) -> Position:
    """``known`` as this server's, if its binlogs are those of before: MariaDB has no name of its
    own, and what stands for it may change.
    """
    if server.dialect == "mysql" or known.born is None or known.file not in server.binlogs():
        return known
    if (
        _is_beyond(known, server.end())
        or first_of(settings, server.identity, known.file)[0] != known.born
    ):
        return known
    begins = replace(known, server=server.identity, pos=FIRST_BYTE, gtids=None, skips=None)
    walk = Walk(begins, upto=known.place)
    follow(settings, begins, walk.feed)
    if walk.stop is not None or walk.place != known.place or walk.gtids is None:
        return known
    logged = Gtids.parse(known.dialect, known.gtids or "")
    return replace(known, server=server.identity) if logged.covers(walk.gtids) else known


def _must_be_ordered(server: Server, known: Position) -> None:
    """
    :raises SourceReplaced: the numbers of MariaDB's transactions do not tell which were read.
    """
    if server.dialect == "mysql" or known.era < 0:  # a person has named the place
        return
    at = replace(known, server=server.identity)
    if known.unordered:
        raise out_of_order(
            at, f"on the server {known.server} one came that was not above the one before"
        )
    whole = Gtids.parse("mariadb", known.gtids or "").is_whole
    if not whole and not _is_strict(server):
        raise out_of_order(
            at, f"of each domain the last one is known, {known.gtids}, and gtid_strict_mode is OFF"
        )


def _missing_mysql(server: Server, gtids: str) -> str:
    return str(
        server.ask("SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", (gtids,))[0][0] or ""
    )


def _missing_mariadb(server: Server, gtids: str) -> str:
    """Of each domain and server the binlog's last is known; all before it are there."""
    last: dict[tuple[str, str], int] = {}
    for domain, source, number in _MARIADB_GTID.findall(server.executed()):
        last[domain, source] = max(int(number), last.get((domain, source), -1))
    found = [
        f"{domain}-{source}-{number}"
        for domain, source, number in _MARIADB_GTID.findall(gtids)
        if last.get((domain, source), -1) < int(number)
    ]
    return ",".join(found)


def _file_of(settings: Settings, server: Server, logged: Gtids) -> str:
    """The newest binlog all of whose predecessors were read: what is not, begins in there."""
    files = list(server.binlogs())
    if server.dialect == "mysql" or _is_strict(server):
        unread = (
            bisect_left(
                files, True, key=lambda file: not _fits(logged, _before(settings, server, file))
            )
            - 1
        )
    else:
        unread = _newest_that_fits(
            server, logged, [_before(settings, server, file) for file in files]
        )
    purged = Gtids.parse("mysql", server.purged()) if server.dialect == "mysql" else None
    if unread < 0 or (purged is not None and not logged.covers(purged)):
        raise BinlogPurged(
            f"{server.where} (the server {server.identity}) has removed binlogs with transactions "
            f"that the query has "
            f"not read: removed are "
            f"{purged if purged is not None else f'those before {files[0]}'}, and read {logged}",
            next_step=f"{ANEW}; or, if you know that those missing changed none of the tables "
            f"that are read, add them "
            "to pass_over, as a set of GTIDs",
            details={"read": str(logged), "purged": str(purged)},
        )
    return files[unread]


def _before(settings: Settings, server: Server, file: str) -> Gtids | None:
    return first_of(settings, server.identity, file)[1]


def _fits(logged: Gtids, before: Gtids | None) -> bool:
    return before is None or logged.begins_in(before)


def _newest_that_fits(server: Server, logged: Gtids, begins: list[Gtids | None]) -> int:
    """Of MariaDB's binlogs, each of which may begin with smaller numbers than the one before.

    :raises SourceReplaced: one does.
    """
    for older, newer in pairwise(each for each in begins if each is not None):
        if logged.is_whole and not newer.covers(older):
            at = Position(server.dialect, server.identity, 0, "", FIRST_BYTE, None, None)
            raise out_of_order(
                at, f"before one binlog lie {older}, and before a later one {newer}"
            )
    return max((place for place, before in enumerate(begins) if _fits(logged, before)), default=-1)


def walked(settings: Settings, at: Position, ends: Callable[[Event, Gtid], bool]) -> Walk:
    """From ``at`` to before the first transaction of which ``ends`` says so, or to the end of
    all.
    """
    walk = Walk(at, before=ends, wanted=settings.wanted)
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
    found = walk.position()
    if found.skips is not None and not Gtids.parse("mariadb", found.skips).is_whole:
        # All is passed over until the place comes that was named by it, and that is not there.
        raise begins_later(at, f"none of {found.skips}")
    if logged is not None and not walk.seen.covers(logged):
        raise SourceReplaced(
            f"{settings.where} (the server {at.server}) has transactions in another order than "
            f"{logged}: of which "
            "moment a snapshot's rows would be cannot be told",
            next_step=f"bring the old server back; or {ANEW}",
            details={"read": str(logged), "found": str(walk.seen)},
        )
    return found


def _nameless(at: Position, event: Event) -> OncewardError:
    return SourceReplaced(
        f"the transaction at {event.file}:{event.position} on the server {at.server} has no GTID: "
        f"whether it was read "
        "on the server before cannot be told",
        next_step=f"{ANEW}; with gtid_mode=ON on all servers a query goes on by itself",
    )
