"""Where a query with a new checkpoint begins. Driver.

Each start is a place between two transactions, with the set of all transactions before it, counted
from the beginning of its binlog: what a server says of both at once may be of two moments. What is
in none of its binlogs (they were removed, or it was made of a dump) lies before it, too: else
another server's old binlogs would be read as new.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onceward.errors import ConfigurationError
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.gtids import Gtid, Gtids
from onceward.mysql.source.connection import Server
from onceward.mysql.source.failover import first_of, located, walked
from onceward.mysql.source.position import FIRST_BYTE, Place, Position
from onceward.mysql.source.settings import Settings


def first(settings: Settings, server: Server) -> Position:
    """Where ``settings.starting`` is on ``server``; for ``"initial"`` the end of its binlog.

    :raises ConfigurationError: there is no such place.
    """
    before = _in_no_binlog(settings, server)
    found = _first(settings, server)
    if found.gtids is None or not before:
        return found
    gtids = Gtids.parse(server.dialect, found.gtids)
    gtids.update(Gtids.parse(server.dialect, before))
    return replace(found, gtids=str(gtids))


def _in_no_binlog(settings: Settings, server: Server) -> str:
    """Asked before the place is chosen: what is removed later may lie behind it.

    MariaDB says of a replica's transactions the last ones, in its binlogs or not: all of them lie
    before its end, and before another place those alone that are in none.
    """
    if server.dialect == "mysql":
        return server.purged()
    return server.replicated(not_logged=settings.starting not in ("initial", "latest"))


def _first(settings: Settings, server: Server) -> Position:
    starting = settings.starting
    if starting in ("initial", "latest"):
        end = server.end()
        return _walked(
            settings, server, end.file, lambda event, _: _place(event).order >= end.order
        )
    if starting == "earliest":
        return _walked(settings, server, next(iter(server.binlogs())), lambda *_: True)
    if "timestamp" in starting:
        return _since(settings, server, starting["timestamp"])
    if "gtid" in starting:
        return _behind(settings, server, starting["gtid"])
    return _at(settings, server, Place(starting["file"], starting["position"]))


def _since(settings: Settings, server: Server, milliseconds: int) -> Position:
    """Before the first transaction that was committed at that time, or later.

    All that is in a binlog was committed after it was begun, and before the next one was.
    """
    files = list(server.binlogs())
    while len(files) > 1:
        born, _ = first_of(settings, server.identity, files[-1])
        if born is not None and born * 1000 < milliseconds:
            break
        files.pop()

    def is_later(event: Event, gtid: Gtid) -> bool:
        if gtid.committed_at_us is not None:
            return gtid.committed_at_us >= milliseconds * 1000
        return event.timestamp * 1000 + 999 >= milliseconds  # whole seconds: rather a second early

    return _walked(settings, server, files[-1], is_later)


def _behind(settings: Settings, server: Server, gtids: str) -> Position:
    said = str(Gtids.parse(server.dialect, gtids).given())
    return located(
        settings, server, _beginning(server, next(iter(server.binlogs())), said, era=-1)
    )


def _at(settings: Settings, server: Server, place: Place) -> Position:
    files = list(server.binlogs())
    if place.file not in files:
        raise _no_place(server, place, f"it has {', '.join(files[-5:])}")
    found = _walked(
        settings, server, place.file, lambda event, _: _place(event).order >= place.order
    )
    if found.place != place and place.pos != FIRST_BYTE:
        raise _no_place(
            server, place, f"the nearest place between two transactions is {found.place}"
        )
    return found


def _walked(
    settings: Settings, server: Server, file: str, ends: Callable[[Event, Gtid], bool]
) -> Position:
    """From the beginning of ``file``."""
    return walked(settings, _beginning(server, file, None), ends).position()


def _beginning(server: Server, file: str, gtids: str | None, era: int = 0) -> Position:
    return Position(server.dialect, server.identity, era, file, FIRST_BYTE, None, gtids)


def _place(event: Event) -> Place:
    return Place(event.file, event.position)


def _no_place(server: Server, place: Place, what: Any) -> ConfigurationError:
    return ConfigurationError(
        f"starting at {place}, where {server.where} has no transaction that begins: {what}",
        next_step="name a file of SHOW BINARY LOGS, and a position of SHOW BINLOG EVENTS at which "
        "a transaction "
        "begins; or a GTID, or a time",
    )
