"""Finds positions: of a start, and of a known place on another server, by its GTIDs. Driver.

A position whose file is gone from its own server, because it was removed, or the server writes to
files of another name, is found in the same way. It does not exist if the other server lacks a
transaction that was read: it has diverged, or has not caught up. If it has thrown away binlogs
with transactions that were not read, they are lost. If it has the same transactions in another
order (a replica with several appliers), the position is before the first that was not read, and
those behind it that were are skipped: per row the order is the same, for a replica only reorders
transactions that have no row in common.

Where MariaDB's numbers do not grow (gtid_strict_mode is off, and somebody reset a counter, or set
one), a GTID names two transactions, and no position can be found by it: the query stops with an
error.

Each start is a position between two transactions, with the set of all transactions before it,
counted from the beginning of its binlog: the server's answers on both may be of two moments.
Transactions that are in none of its binlogs (they were removed, or it was made of a dump) lie
before it, too: else another server's old binlogs would be read as new.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from onceward import patience
from onceward.errors import (
    AccessDenied,
    BinlogPurged,
    ConfigurationError,
    OncewardError,
    ServerUnreachable,
    SourceReplaced,
)
from onceward.mysql.binlog.event import START_ANEW, BinlogEvent
from onceward.mysql.binlog.gtid_sets import Gtids
from onceward.mysql.binlog.gtids import Gtid
from onceward.mysql.source.connection import Server, follow, read_file_header
from onceward.mysql.source.settings import (
    FIRST_BYTE,
    ChangesSettings,
    Coordinates,
    Position,
    base_name,
    binlog_number,
)
from onceward.mysql.source.transactions import TransactionWalk, gap_error, unordered_error

_COMMIT_SECONDS, _COMMIT_PAUSE_SECONDS = 1.0, 0.05
_HAS_A_WAY = "docs/how-to/mysql.md (Another server) has a way"
_OF_DELETED_DOMAINS = (
    ". For those of a domain that was deleted (FLUSH BINARY LOGS DELETE_DOMAIN_ID) " + _HAS_A_WAY
)
_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


def find_position(
    settings: ChangesSettings, server: Server, position: Position, *, exactly: bool = False
) -> Position:
    """Return ``position``, which is of another server, on ``server``; an era later.

    :param exactly: before the result there must be all transactions that are before ``position``.
    :raises SourceReplaced: there is no such position.
    :raises BinlogPurged: binlogs are gone that were not read.
    """
    if position.gtids is None or position.dialect != server.dialect:
        raise SourceReplaced(
            f"{server.where} is the server {server.identity} now, and the query has read "
            f"{position.server} up to {position.place}: "
            + (
                "a server of another kind"
                if position.gtids is not None
                else "without GTIDs the place cannot be found"
            ),
            next_step=f"bring the old server back; or {server.anew_advice}",
            details={"known": position.server, "found": server.identity},
        )
    if (
        position.server != server.identity
        and (same := find_renamed_server(settings, server, position)).server == server.identity
    ):
        return same
    check_has_transactions(settings, server, position)
    return _find(settings, server, position, position.era + 1, exactly=exactly)


def find_after_purge(
    settings: ChangesSettings, server: Server, position: Position, error: OncewardError
) -> Position:
    """Return ``position``, whose binlog is gone from its own server, in another file.

    :param error: raised when the file was asked for.
    :raises OncewardError: that, or as
        :func:`find_position`, for there is no such position.
    """
    if position.gtids is None:
        raise type(error)(
            f"{error.message}, and without GTIDs nobody can tell whether all of it was read",
            next_step=error.next_step,
            details=error.details,
        )
    check_has_transactions(settings, server, position)
    files = list(server.binlogs())
    # RESET MASTER lets a server use its GTIDs again. But where the binlog that was read last was
    # removed, all that was read is among what the server has removed.
    removed = (
        Gtids.parse("mysql", server.purged_gtids())
        if server.dialect == "mysql"
        else read_file_header(settings, server.identity, files[0])[1]
    )
    if removed is None or not removed.covers(Gtids.parse(server.dialect, position.gtids)):
        raise SourceReplaced(
            f"{server.where} (the server {server.identity}) has no {position.file} any more, "
            f"which the query has read up to {position.pos}, and has not removed all transactions "
            f"that were read before: removed are {removed or 'none'}, and read {position.gtids}. "
            "Its binlogs were reset",
            next_step=f"what was in the old binlogs is gone: {START_ANEW}",
            details={"read": position.gtids, "purged": str(removed)},
        )
    onwards = base_name(files[-1]) == base_name(position.file) and binlog_number(
        files[0]
    ) > binlog_number(position.file)
    return _find(settings, server, position, position.era if onwards else position.era + 1)


def _find(
    settings: ChangesSettings,
    server: Server,
    position: Position,
    era: int,
    *,
    exactly: bool = False,
) -> Position:
    _check_order(server, position)
    read_set = Gtids.parse(server.dialect, position.gtids or "")
    for gtids in settings.skippable_gtids:
        read_set.update(Gtids.parse(server.dialect, gtids))
    file = _find_file(settings, server, read_set)
    at = replace(
        position, server=server.identity, era=era, file=file, pos=FIRST_BYTE, born=None,
        gtids=str(read_set),
        skips=str(read_set) if server.dialect == "mariadb" else None,
    )  # fmt: skip
    return _first_unread(settings, at, read_set if exactly else None)


def check_has_transactions(settings: ChangesSettings, server: Server, position: Position) -> None:
    """Check that the server has all transactions before ``position``, or is committing them.

    :raises SourceReplaced: it lacks one.
    :raises ServerUnreachable: so does another server, which is a replica, and may only have to
        catch up.
    """
    if not position.gtids or _is_in_binlogs(server, position):
        return
    missing = _missing(server, position.gtids)
    if not missing or _is_committing(settings, server, position, missing):
        return
    what = (
        f"{server.where} (the server {server.identity}) lacks transactions that the query has "
        f"read: {missing}"
    )
    details = {"known": position.server, "found": server.identity, "missing": missing}
    of_domains = _OF_DELETED_DOMAINS if server.dialect == "mariadb" else ""
    if server.identity != position.server and _may_catch_up(server):
        raise ServerUnreachable(
            f"{what}. It is a replica, or in a group, and may not have caught up yet",
            next_step="see whether it replicates (SHOW REPLICA STATUS, SHOW SLAVE STATUS; in a "
            "group performance_schema.replication_group_members, SHOW STATUS LIKE 'wsrep%'); once "
            "it has these, the query goes on when it is started again. For errant ones, which "
            f"another replica has made for itself, {_HAS_A_WAY}{of_domains}",
            details=details,
        )
    raise SourceReplaced(
        f"{what}. "
        + (
            "Its binlogs were reset, or its data restored from a backup"
            if server.identity == position.server
            else "It has diverged from the server that was read before, and replicates no other"
        ),
        next_step=f"bring back a server that has them; or {START_ANEW}: what was read and written "
        f"may be more than this server has{of_domains}",
        details=details,
    )


def _is_committing(
    settings: ChangesSettings, server: Server, position: Position, missing: str
) -> bool:
    """Check whether missing transactions are in the server's binlog: MySQL sends one before it
    adds it to gtid_executed. Semi-synchronous replication (AFTER_SYNC) waits in between."""
    if server.dialect != "mysql" or server.identity != position.server:
        return False
    wanted = Gtids.parse("mysql", missing)
    ends = time.monotonic() + _COMMIT_SECONDS
    while server.held is None or not server.held.covers(wanted):
        if time.monotonic() > ends:
            server.held = held = _read_before(settings, server, position)
            return held is not None and held.covers(wanted)
        patience.pause(_COMMIT_PAUSE_SECONDS)
        if not _missing(server, missing):
            return True
    return True


def _may_catch_up(server: Server) -> bool:
    with suppress(AccessDenied):
        return server.is_member() or server.is_replica()
    return False


def _is_in_binlogs(server: Server, position: Position) -> bool:
    """Check whether the position is in this server's binlogs. A MariaDB without gtid_strict_mode
    may have counted back since, and the numbers mean nothing then; another file of the name is
    noticed when it is read.
    """
    if server.dialect == "mysql" or server.identity != position.server or _is_gtid_strict(server):
        return False
    return position.file in server.binlogs() and not _is_beyond(position, server.end())


def _is_beyond(position: Position, end: Coordinates) -> bool:
    return position.place != end and position.place.is_at_or_behind(end)


def _is_gtid_strict(server: Server) -> bool:
    return server.variables("gtid_strict_mode").get("gtid_strict_mode") == "ON"


def find_renamed_server(settings: ChangesSettings, server: Server, position: Position) -> Position:
    """Return ``position`` as this server's, if its binlogs are those of before: MariaDB has no
    server_uuid, and the substitute may change.
    """
    if server.dialect == "mysql":
        return position
    found = _read_before(settings, server, position)
    read_set = Gtids.parse(position.dialect, position.gtids or "")
    is_same = found is not None and read_set.covers(found)
    return replace(position, server=server.identity) if is_same else position


def _read_before(settings: ChangesSettings, server: Server, position: Position) -> Gtids | None:
    """Read all transactions before ``position`` from its binlog; None: it is not on the server."""
    if (
        position.born is None
        or position.file not in server.binlogs()
        or _is_beyond(position, server.end())
        or read_file_header(settings, server.identity, position.file)[0] != position.born
    ):
        return None
    begins = replace(position, server=server.identity, pos=FIRST_BYTE, gtids=None, skips=None)
    walk = TransactionWalk(begins, upto=position.place, skippable=settings.skippable)
    follow(settings, begins, walk.feed)
    return walk.gtids if walk.error is None and walk.place == position.place else None


def _check_order(server: Server, position: Position) -> None:
    """Check that numbers identify transactions: MariaDB's may not tell which were read."""
    # a person has named the place
    if server.dialect == "mysql" or position.era < 0:
        return
    at = replace(position, server=server.identity)
    if position.unordered:
        raise unordered_error(
            at, f"on the server {position.server} one came that was not above the one before"
        )
    whole = Gtids.parse("mariadb", position.gtids or "").is_complete
    if not whole and not _is_gtid_strict(server):
        raise unordered_error(
            at,
            f"of each domain the last one is known, {position.gtids}, and gtid_strict_mode is OFF",
        )


def _missing(server: Server, gtids: str) -> str:
    """Return missing transactions; on MariaDB by the last one of each domain and server."""
    if server.dialect == "mysql":
        rows = server.query("SELECT GTID_SUBTRACT(%s, @@GLOBAL.gtid_executed)", (gtids,))
        return str(rows[0][0] or "")
    last: dict[tuple[str, str], int] = {}
    for domain, source, number in _MARIADB_GTID.findall(server.executed_gtids()):
        last[domain, source] = max(int(number), last.get((domain, source), -1))
    found = [
        f"{domain}-{source}-{number}"
        for domain, source, number in _MARIADB_GTID.findall(gtids)
        if last.get((domain, source), -1) < int(number)
    ]
    return ",".join(found)


def _find_file(settings: ChangesSettings, server: Server, read_set: Gtids) -> str:
    """Return the binlog with the first unread transaction: all before it were read."""
    files = list(server.binlogs())

    def before(file: str) -> Gtids | None:
        return read_file_header(settings, server.identity, file)[1]

    if server.dialect == "mysql" or _is_gtid_strict(server):
        unread = (
            bisect_left(files, True, key=lambda file: not _can_start(read_set, before(file))) - 1
        )
    else:
        unread = _newest_start(server, read_set, [before(file) for file in files])
    removed = Gtids.parse("mysql", server.purged_gtids()) if server.dialect == "mysql" else None
    if unread < 0 or (removed is not None and not read_set.covers(removed)):
        raise BinlogPurged(
            f"{server.where} (the server {server.identity}) has removed binlogs with transactions "
            "that the query has not read: removed are "
            f"{removed if removed is not None else f'those before {files[0]}'}, and read "
            f"{read_set}",
            next_step=f"{START_ANEW}; or, if you know that those missing changed none of the "
            "tables that are read, add them to pass_over, as a set of GTIDs",
            details={"read": str(read_set), "purged": str(removed)},
        )
    return files[unread]


def _can_start(read_set: Gtids, before: Gtids | None) -> bool:
    return before is None or read_set.can_start_in(before)


def _newest_start(server: Server, read_set: Gtids, begins: list[Gtids | None]) -> int:
    """Return the newest of MariaDB's binlogs to start in: one may begin with smaller numbers."""
    for older, newer in pairwise(each for each in begins if each is not None):
        if read_set.is_complete and not newer.covers(older):
            at = Position(server.dialect, server.identity, 0, "", FIRST_BYTE, None, None)
            raise unordered_error(
                at, f"before one binlog lie {older}, and before a later one {newer}"
            )
    return max(
        (place for place, before in enumerate(begins) if _can_start(read_set, before)), default=-1
    )


def walk_until(
    settings: ChangesSettings, at: Position, ends: Callable[[BinlogEvent, Gtid], bool]
) -> TransactionWalk:
    """Walk from ``at`` to before the first transaction for which ``ends`` is True, or the end."""
    walk = TransactionWalk(at, before=ends, selects=settings.selects, skippable=settings.skippable)
    follow(settings, at, walk.feed)
    if walk.error is not None:
        raise walk.error
    return walk


def _first_unread(settings: ChangesSettings, at: Position, read_set: Gtids | None) -> Position:
    def ends(event: BinlogEvent, gtid: Gtid) -> bool:
        if gtid.text is None:
            raise SourceReplaced(
                f"the transaction at {event.file}:{event.position} on the server {at.server} has "
                "no GTID: whether it was read on the server before cannot be told",
                next_step=f"{START_ANEW}; with gtid_mode=ON on all servers a query goes on by "
                "itself",
            )
        return True

    walk = walk_until(settings, at, ends)
    found = walk.position()
    if found.skips is not None and not Gtids.parse("mariadb", found.skips).is_complete:
        # All is passed over until the place comes that was named by it, and that is not there.
        raise gap_error(at, f"none of {found.skips}")
    if read_set is not None and not walk.skipped_gtids.covers(read_set):
        raise SourceReplaced(
            f"{settings.where} (the server {at.server}) has transactions in another order than "
            f"{read_set}: of which moment a snapshot's rows would be cannot be told",
            next_step=f"bring the old server back; or {START_ANEW}",
            details={"read": str(read_set), "found": str(walk.skipped_gtids)},
        )
    return found


def starting_position(settings: ChangesSettings, server: Server) -> Position:
    """Return the position of ``settings.starting`` on ``server``; for ``"initial"`` the end of its
    binlog.

    :raises ConfigurationError: there is no such position.
    """
    before = _transactions_without_binlog(settings, server)
    found = _find_start(settings, server)
    if found.gtids is None or not before:
        return found
    gtids = Gtids.parse(server.dialect, found.gtids)
    gtids.update(Gtids.parse(server.dialect, before))
    return replace(found, gtids=str(gtids))


def _transactions_without_binlog(settings: ChangesSettings, server: Server) -> str:
    """Return transactions that are in no binlog. Asked before the position is chosen: one that is
    removed later may lie behind it.

    MariaDB has the last ones of a replica, in its binlogs or not: all of them lie before its end,
    and before another position those alone that are in none.
    """
    if server.dialect == "mysql":
        return server.purged_gtids()
    return server.replicated_gtids(not_logged=settings.starting not in ("initial", "latest"))


def _find_start(settings: ChangesSettings, server: Server) -> Position:
    starting = settings.starting
    if starting in ("initial", "latest"):
        end = server.end()
        return _walk_file(
            settings, server, end.file, lambda event, _: _coordinates(event).order >= end.order
        )
    if starting == "earliest":
        return _walk_file(settings, server, next(iter(server.binlogs())), lambda *_: True)
    if "timestamp" in starting:
        return _find_timestamp(settings, server, starting["timestamp"])
    if "gtid" in starting:
        return _find_gtid(settings, server, starting["gtid"])
    return _find_coordinates(settings, server, Coordinates(starting["file"], starting["position"]))


def _find_timestamp(settings: ChangesSettings, server: Server, microseconds: int) -> Position:
    """Binlogs hold what was committed between their creation and that of the next one."""
    files = list(server.binlogs())
    while len(files) > 1:
        created_at, _ = read_file_header(settings, server.identity, files[-1])
        # Whole seconds, cut off: within one the file before may have what is later
        if created_at is not None and created_at * 1_000_000 + 999_999 < microseconds:
            break
        files.pop()

    def is_later(event: BinlogEvent, gtid: Gtid) -> bool:
        if gtid.committed_at_us is not None:
            return gtid.committed_at_us >= microseconds
        # Whole seconds: rather a second early
        return event.timestamp * 1_000_000 + 999_999 >= microseconds

    return _walk_file(settings, server, files[-1], is_later)


def _find_gtid(settings: ChangesSettings, server: Server, gtids: str) -> Position:
    text = str(Gtids.parse(server.dialect, gtids).as_start())
    return find_position(
        settings, server, _file_start(server, next(iter(server.binlogs())), text, era=-1)
    )


def _find_coordinates(settings: ChangesSettings, server: Server, place: Coordinates) -> Position:
    files = list(server.binlogs())
    if place.file not in files:
        raise _no_start_error(server, place, f"it has {', '.join(files[-5:])}")
    found = _walk_file(
        settings, server, place.file, lambda event, _: _coordinates(event).order >= place.order
    )
    if found.place != place and place.pos != FIRST_BYTE:
        raise _no_start_error(
            server, place, f"the nearest place between two transactions is {found.place}"
        )
    return found


def _walk_file(
    settings: ChangesSettings, server: Server, file: str, ends: Callable[[BinlogEvent, Gtid], bool]
) -> Position:
    """Walk from the beginning of ``file``."""
    return walk_until(settings, _file_start(server, file, None), ends).position()


def _file_start(server: Server, file: str, gtids: str | None, era: int = 0) -> Position:
    return Position(server.dialect, server.identity, era, file, FIRST_BYTE, None, gtids)


def _coordinates(event: BinlogEvent) -> Coordinates:
    return Coordinates(event.file, event.position)


def _no_start_error(server: Server, place: Coordinates, what: Any) -> ConfigurationError:
    return ConfigurationError(
        f"starting at {place}, where {server.where} has no transaction that begins: {what}",
        next_step="name a file of SHOW BINARY LOGS, and a position of SHOW BINLOG EVENTS at which "
        "a transaction begins; or a GTID, or a time",
    )
