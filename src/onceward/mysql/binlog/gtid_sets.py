"""Sets of transactions, by which a position is found on another server. Pure.

MySQL names a transaction ``source:number`` or ``source:tag:number``, and a set has every number of
its own. MariaDB names it ``domain-server-number``, and counts what each *server* writes in a
domain. Over all servers of a domain numbers grow in ``gtid_strict_mode`` alone, which is off by
default: a replica with a write of its own may have 0-2-101 before 0-1-101. So a state has the last
number of every server in every domain, as ``gtid_binlog_state`` does.

Source: MySQL, ``sql/rpl_gtid_set.cc``; MariaDB, *Global Transaction ID*.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from copy import deepcopy
from typing import Any

from onceward.errors import ConfigurationError
from onceward.mysql.binlog.event import Dialect

_SOURCE = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.IGNORECASE)
_INTERVAL = re.compile(r"(\d{1,19})(?:\s*-\s*(\d{1,19}))?", re.ASCII)
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", re.ASCII)
END = (1 << 63) - 1
"""Above all of MySQL's numbers."""


class Gtids(ABC):
    """A set of transactions of either server."""

    is_unordered = False
    """A number was not above the one of its server before: it may name two transactions."""

    @staticmethod
    def parse(dialect: Dialect, text: str) -> Gtids:
        """Parse the value of ``gtid_executed``, ``gtid_purged`` or ``gtid_binlog_state``.

        :raises ConfigurationError: it is no such text.
        """
        return GtidSet.from_text(text) if dialect == "mysql" else GtidBinlogState.from_text(text)

    @property
    def is_complete(self) -> bool:
        """It is known of every transaction whether it is in the set."""
        return True

    @abstractmethod
    def add(self, gtid: str) -> None:
        """Add one transaction, in the order of the binlog."""

    @abstractmethod
    def update(self, other: Gtids) -> None:
        """Add all of another set."""

    @abstractmethod
    def covers(self, other: Gtids) -> bool:
        """Check whether it has all of another set."""

    def as_start(self) -> Gtids:
        """Return the set as a user means it who names a starting place: MariaDB's
        ``gtid_binlog_pos`` has one transaction of each domain, whichever servers wrote in there
        before it.
        """
        return self

    def can_start_in(self, before: Gtids) -> bool:
        """Check that nothing unread lies before a binlog that begins with the set ``before``."""
        return self.covers(before)

    @abstractmethod
    def __contains__(self, gtid: str) -> bool: ...

    @abstractmethod
    def __bool__(self) -> bool: ...

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and str(self) == str(other)

    @abstractmethod
    def __str__(self) -> str:
        """Return the set as the server writes it, on one line."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class GtidSet(Gtids):
    """MySQL's set: numbers by source and tag."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, str], list[int]] = {}
        """By source and tag: first numbers that are in, and first that are not, in turns, growing.
        """

    @staticmethod
    def from_text(text: str) -> GtidSet:
        """Parse ``gtid_executed``."""
        result = GtidSet()
        for part in text.split(","):
            words = [word.strip() for word in part.strip().split(":")]
            if words == [""]:
                continue
            if len(words) < 2 or not _SOURCE.fullmatch(words[0]):
                raise _invalid_set(text)
            source, tag = str(uuid.UUID(words[0])), ""
            for word, following in zip(words[1:], [*words[2:], ""], strict=True):
                found = _INTERVAL.fullmatch(word)
                if found:
                    first = int(found[1])
                    result.add_range(source, tag, first, int(found[2] or first) + 1, text)
                elif TAG.fullmatch(word) and _INTERVAL.fullmatch(following):
                    tag = word.lower()
                else:
                    raise _invalid_set(text)
        return result

    def add(self, gtid: str) -> None:
        name, _, number = gtid.rpartition(":")
        source, _, tag = name.partition(":")
        bounds = self._bounds.get((source, tag))
        if bounds and number.isdecimal() and bounds[-1] == int(number):
            # the common case: the next one
            bounds[-1] += 1
        else:
            self.update(GtidSet.from_text(gtid))

    def update(self, other: Gtids) -> None:
        for (source, tag), bounds in _same_kind(self, other)._bounds.items():
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                self.add_range(source, tag, first, end, str(other))

    def covers(self, other: Gtids) -> bool:
        return all(
            _contains(self._bounds.get(key, []), first, end)
            for key, bounds in _same_kind(self, other)._bounds.items()
            for first, end in zip(bounds[::2], bounds[1::2], strict=True)
        )

    def add_range(self, source: str, tag: str, first: int, end: int, text: str) -> None:
        """Add ``first`` to before ``end``. :param text: its origin, for the error."""
        if not 1 <= first < end <= END:
            raise _invalid_set(text)
        bounds = self._bounds.setdefault((source, tag), [])
        low, high = bisect_left(bounds, first), bisect_right(bounds, end)
        bounds[low:high] = [first] * (low % 2 == 0) + [end] * (high % 2 == 0)

    def __contains__(self, gtid: str) -> bool:
        name, _, number = gtid.rpartition(":")
        source, _, tag = name.partition(":")
        bounds = self._bounds.get((source, tag))
        # Without reading it closer: asked for every transaction.
        if bounds is not None and number.isdecimal():
            return _contains(bounds, int(number), int(number) + 1)
        return self.covers(GtidSet.from_text(gtid))

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def __str__(self) -> str:
        sources: dict[str, str] = {}
        for (source, tag), bounds in sorted(self._bounds.items()):
            ranges = "".join(
                f":{first}" if end == first + 1 else f":{first}-{end - 1}"
                for first, end in zip(bounds[::2], bounds[1::2], strict=True)
            )
            sources[source] = sources.get(source, source) + (f":{tag}" if tag else "") + ranges
        return ",".join(sources.values())


class GtidBinlogState(Gtids):
    """MariaDB's state: the last transaction by domain and server.

    Of some domains only the last one of all is known, as ``gtid_binlog_pos`` has it: written
    ``..0-1-27``, it stands for everything that a server's binlog has in that domain up to there.
    """

    def __init__(self) -> None:
        self._last: dict[int, dict[int, int]] = {}
        """By domain and server, the last writer at the end: the number."""
        self._up_to: set[int] = set()
        """Domains of which only the last transaction of all is known."""

    @staticmethod
    def from_text(text: str) -> GtidBinlogState:
        """Parse ``gtid_binlog_state``, or this class's own text."""
        result = GtidBinlogState()
        for part in filter(None, (part.strip() for part in text.split(","))):
            name = part.removeprefix("..")
            result.add(name)
            if name != part:
                result._up_to.add(_numbers(name)[0])
        result.is_unordered = False
        return result

    def as_start(self) -> GtidBinlogState:
        result = deepcopy(self)
        result._up_to |= {domain for domain, servers in result._last.items() if len(servers) == 1}
        return result

    def add(self, gtid: str) -> None:
        self._set_last(*_numbers(gtid))

    def update(self, other: Gtids) -> None:
        for domain, server, number in _same_kind(self, other)._triples():
            if number > self._last.get(domain, {}).get(server, -1):
                self._set_last(domain, server, number)

    def learn(self, state: GtidBinlogState) -> None:
        """Replace domains by the server's own state at this place."""
        for domain, servers in state._last.items():
            self._last[domain] = dict(servers)
            self._up_to.discard(domain)

    def covers(self, other: Gtids) -> bool:
        return all(
            number <= self._last.get(domain, {}).get(server, -1)
            or (domain in self._up_to and server not in self._last[domain])
            for domain, server, number in _same_kind(self, other)._triples()
        )

    def can_start_in(self, before: Gtids) -> bool:
        if not self._up_to:
            return self.covers(before)
        state = _same_kind(self, before)._last
        for domain, servers in state.items():
            if domain in self._up_to:
                server, number = list(self._last[domain].items())[-1]
                there = servers.get(server, -1)
                fits = there < number or (there == number and list(servers)[-1] == server)
            else:
                last = self._last.get(domain, {})
                fits = all(number <= last.get(server, -1) for server, number in servers.items())
            if not fits:
                return False
        return True

    def must_skip(self, gtid: str) -> bool:
        """Check whether a transaction is skipped, where the last of these has not come."""
        domain, server, number = _numbers(gtid)
        last = self._last.get(domain, {}).get(server, -1)
        if domain in self._up_to:
            return last == -1 or number <= last or server != list(self._last[domain])[-1]
        return number <= last

    def has_gap_before(self, gtid: str, read: Gtids) -> bool:
        """Check whether transactions are missing before this one: it comes before the last one
        that was read in its domain, and is not the next one behind all of them. A writer takes the
        number above the highest that it has.
        """
        domain, _, number = _numbers(gtid)
        servers = self._last.get(domain, {})
        if not servers or self.must_skip(gtid):
            return False
        highest: int = max(
            (servers if domain in self._up_to else _same_kind(self, read)._last[domain]).values()
        )
        return number > highest + 1

    def mark_reached(self, state: Gtids) -> None:
        """Drop transactions that have come: nothing more is skipped up to them."""
        for domain, server, number in _same_kind(self, state)._triples():
            servers = self._last.get(domain, {})
            is_last = domain not in self._up_to or server == list(servers)[-1]
            if not is_last or number < servers.get(server, END):
                continue
            del servers[server]
            if not servers or domain in self._up_to:
                del self._last[domain]
                self._up_to.discard(domain)

    @property
    def is_complete(self) -> bool:
        return not self._up_to

    def _set_last(self, domain: int, server: int, number: int) -> None:
        servers = self._last.setdefault(domain, {})
        self.is_unordered |= number <= servers.pop(server, -1)
        servers[server] = number

    def _triples(self) -> list[tuple[int, int, int]]:
        return [
            (domain, *one) for domain, servers in self._last.items() for one in servers.items()
        ]

    def __contains__(self, gtid: str) -> bool:
        domain, server, number = _numbers(gtid)
        servers = self._last.get(domain, {})
        if domain in self._up_to:
            return number <= list(servers.values())[-1]
        return number <= servers.get(server, -1)

    def __bool__(self) -> bool:
        return bool(self._last)

    def __str__(self) -> str:
        found = []
        for domain, servers in sorted(self._last.items()):
            *others, last = servers.items()
            found += [f"{domain}-{server}-{number}" for server, number in sorted(others)]
            found.append(f"{'..' * (domain in self._up_to)}{domain}-{last[0]}-{last[1]}")
        return ",".join(found)


def _numbers(gtid: str) -> tuple[int, int, int]:
    """Parse domain, server and number."""
    found = _MARIADB.fullmatch(gtid)
    domain, server, number = (int(each) for each in found.groups()) if found else (-1, -1, -1)
    if not found or max(domain, server) >> 32 or number >> 64:
        raise _invalid_set(gtid)
    return domain, server, number


def _contains(bounds: list[int], first: int, end: int) -> bool:
    at = bisect_right(bounds, first)
    return at % 2 == 1 and bounds[at] >= end


def _same_kind(one: Gtids, other: Gtids) -> Any:
    if type(one) is not type(other):
        raise TypeError(f"{one!r} and {other!r} are of two kinds of servers")
    return other


def _invalid_set(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text[:200]!r} is no set of transactions",
        next_step="write it as the server does: MySQL's gtid_executed "
        "(source:1-7,source:tag:1-3), MariaDB's gtid_binlog_pos or gtid_binlog_state "
        "(0-1-27,1-2-3)",
    )
