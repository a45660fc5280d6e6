"""Sets of transactions: what a position has read, whatever the binlogs of a server are called. Pure.

MySQL names a transaction ``source:number`` or ``source:tag:number``, and a set has every number of its own. MariaDB
names it ``domain-server-number``, and a position is the last one of each domain: all before it in that domain are
meant, which holds where ``gtid_strict_mode`` does.

Source: MySQL, ``sql/rpl_gtid_set.cc``; MariaDB, *Global Transaction ID*.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from typing import Any

from onceward.binlog.kinds import Dialect
from onceward.errors import ConfigurationError

_SOURCE = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.IGNORECASE)
_INTERVAL = re.compile(r"(\d{1,19})(?:\s*-\s*(\d{1,19}))?", re.ASCII)
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})", re.ASCII)
END = (1 << 63) - 1
"""No number of MySQL's is that large."""


class Gtids(ABC):
    """A set of transactions."""

    @staticmethod
    def parse(dialect: Dialect, text: str) -> Gtids:
        """As the server says it: ``gtid_executed``, ``gtid_purged``, ``gtid_binlog_pos``; empty for none.

        :raises ConfigurationError: it is no such text.
        """
        return GtidSet.parsed(text) if dialect == "mysql" else MariaPosition.parsed(text)

    @abstractmethod
    def add(self, gtid: str) -> None:
        """One transaction. In the order of the binlog."""

    @abstractmethod
    def update(self, other: Gtids) -> None:
        """All of another's."""

    @abstractmethod
    def covers(self, other: Gtids) -> bool:
        """Whether it has all of another's."""

    @abstractmethod
    def copy(self) -> Gtids:
        """One that changes on its own."""

    @abstractmethod
    def __contains__(self, gtid: str) -> bool: ...

    @abstractmethod
    def __bool__(self) -> bool: ...

    @abstractmethod
    def __eq__(self, other: object) -> bool: ...

    @abstractmethod
    def __str__(self) -> str:
        """As the server says it, on one line."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class GtidSet(Gtids):
    """MySQL's: numbers by source and tag."""

    def __init__(self) -> None:
        self._bounds: dict[tuple[str, str], list[int]] = {}
        """By source and tag: first numbers that are in, and first that are not, in turns, growing."""

    @staticmethod
    def parsed(text: str) -> GtidSet:
        made = GtidSet()
        for part in text.split(","):
            words = [word.strip() for word in part.strip().split(":")]
            if words == [""]:
                continue
            if len(words) < 2 or not _SOURCE.fullmatch(words[0]):
                raise _no_set(text)
            source, tag = str(uuid.UUID(words[0])), ""
            for word, following in zip(words[1:], [*words[2:], ""], strict=True):
                found = _INTERVAL.fullmatch(word)
                if found:
                    first = int(found[1])
                    made.add_range(source, tag, first, int(found[2] or first) + 1, text)
                elif TAG.fullmatch(word) and _INTERVAL.fullmatch(following):
                    tag = word.lower()
                else:
                    raise _no_set(text)
        return made

    def add(self, gtid: str) -> None:
        name, _, number = gtid.rpartition(":")
        source, _, tag = name.partition(":")
        bounds = self._bounds.get((source, tag))
        if bounds and number.isdecimal() and bounds[-1] == int(number):
            bounds[-1] += 1  # the common case: the next one
        else:
            self.update(GtidSet.parsed(gtid))

    def update(self, other: Gtids) -> None:
        for (source, tag), bounds in _same(self, other)._bounds.items():
            for first, end in zip(bounds[::2], bounds[1::2], strict=True):
                self.add_range(source, tag, first, end, str(other))

    def covers(self, other: Gtids) -> bool:
        return all(
            _has(self._bounds.get(key, []), first, end)
            for key, bounds in _same(self, other)._bounds.items()
            for first, end in zip(bounds[::2], bounds[1::2], strict=True)
        )

    def copy(self) -> GtidSet:
        made = GtidSet()
        made._bounds = {key: list(bounds) for key, bounds in self._bounds.items()}
        return made

    def add_range(self, source: str, tag: str, first: int, end: int, text: str) -> None:
        """``first`` to before ``end``. :param text: where it is from, for the error."""
        if not 1 <= first < end <= END:
            raise _no_set(text)
        bounds = self._bounds.setdefault((source, tag), [])
        low, high = bisect_left(bounds, first), bisect_right(bounds, end)
        bounds[low:high] = [first] * (low % 2 == 0) + [end] * (high % 2 == 0)

    def __contains__(self, gtid: str) -> bool:
        name, _, number = gtid.rpartition(":")
        source, _, tag = name.partition(":")
        bounds = self._bounds.get((source, tag))
        if bounds is not None and number.isdecimal():  # without reading it closer: asked for every transaction
            return _has(bounds, int(number), int(number) + 1)
        return self.covers(GtidSet.parsed(gtid))

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GtidSet) and self._bounds == other._bounds

    def __str__(self) -> str:
        sources: dict[str, str] = {}
        for (source, tag), bounds in sorted(self._bounds.items()):
            ranges = "".join(
                f":{first}" if end == first + 1 else f":{first}-{end - 1}"
                for first, end in zip(bounds[::2], bounds[1::2], strict=True)
            )
            sources[source] = sources.get(source, source) + (f":{tag}" if tag else "") + ranges
        return ",".join(sources.values())


class MariaPosition(Gtids):
    """MariaDB's: the last transaction of each domain."""

    def __init__(self) -> None:
        self._last: dict[int, tuple[int, int]] = {}
        """By domain: server and number."""

    @staticmethod
    def parsed(text: str) -> MariaPosition:
        made = MariaPosition()
        for part in filter(None, (part.strip() for part in text.split(","))):
            made.add(part)
        return made

    def add(self, gtid: str) -> None:
        found = _MARIADB.fullmatch(gtid)
        numbers = [int(number) for number in found.groups()] if found else []
        if not numbers or max(numbers[:2]) >> 32 or numbers[2] >> 64:
            raise _no_set(gtid)
        self._last[numbers[0]] = (numbers[1], numbers[2])

    def update(self, other: Gtids) -> None:
        for domain, (server, number) in _same(self, other)._last.items():
            if number > self._last.get(domain, (0, -1))[1]:
                self._last[domain] = (server, number)

    def covers(self, other: Gtids) -> bool:
        last = _same(self, other)._last
        return all(number <= self._last.get(domain, (0, -1))[1] for domain, (_, number) in last.items())

    def copy(self) -> MariaPosition:
        made = MariaPosition()
        made._last = dict(self._last)
        return made

    def __contains__(self, gtid: str) -> bool:
        return self.covers(MariaPosition.parsed(gtid))

    def __bool__(self) -> bool:
        return bool(self._last)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MariaPosition) and self._last == other._last

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{number}" for domain, (server, number) in sorted(self._last.items()))


def _has(bounds: list[int], first: int, end: int) -> bool:
    at = bisect_right(bounds, first)
    return at % 2 == 1 and bounds[at] >= end


def _same(one: Gtids, other: Gtids) -> Any:
    if type(one) is not type(other):
        raise TypeError(f"{one!r} and {other!r} are of two kinds of servers")
    return other


def _no_set(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"{text[:200]!r} is no set of transactions",
        next_step="write it as the server does: MySQL's gtid_executed (source:1-7,source:tag:1-3), MariaDB's "
        "gtid_binlog_pos (0-1-27,1-2-3)",
    )
