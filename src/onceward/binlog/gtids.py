"""Names of transactions, and sets of them: what a position has read, whatever the binlogs of a server are called. Pure.

MySQL names a transaction ``source:number`` or ``source:tag:number``, and a set has every number of its own. MariaDB
names it ``domain-server-number``, and a position is the last one of each domain: all before it in that domain are meant,
which holds where ``gtid_strict_mode`` does.

Source: MySQL, ``sql/rpl_gtid_set.cc``, ``libs/mysql/binlog/event/control_events.h`` (``Gtid_event``),
``libs/mysql/serialization/readme.md``; MariaDB, *GTID_EVENT* and *GTID_LIST_EVENT* of the replication protocol.
"""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from onceward.binlog.event import Event
from onceward.binlog.kinds import (
    ANONYMOUS_GTID,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    MARIADB_GTID,
    PREVIOUS_GTIDS,
    TRANSACTION_STARTS,
    Dialect,
)  # fmt: skip
from onceward.binlog.lengths import Fields
from onceward.binlog.stops import damaged, unreadable
from onceward.errors import ConfigurationError

_SOURCE = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}", re.IGNORECASE)
_INTERVAL = re.compile(r"(\d{1,19})(?:\s*-\s*(\d{1,19}))?")
_MARIADB = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,20})")
_END = (1 << 63) - 1  # no number of MySQL's is that large
_MAY_HAVE_STATEMENTS = 1
_LOGICAL_CLOCK = 2
_TWO_TIMES = 1 << 55
_SERIAL_VERSION = 1
_SERIAL_FIELDS = 12
"""Of a tagged GTID, as MySQL 8.3 to 9.7 write it."""


@dataclass(frozen=True)
class Gtid:
    """What the first event of a transaction says of it."""

    text: str | None
    """None where the server gives none (``gtid_mode=OFF``)."""
    rows_only: bool
    """No statement changes anything in it. MariaDB never says so: there every QUERY has to be looked at."""
    length: int | None
    """Bytes of the whole transaction in the binlog, from this event on."""
    committed_at_us: int | None
    """Microseconds since 1970, on the server where it was committed first."""


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
                    made._add(source, tag, first, int(found[2] or first) + 1, text)
                elif _TAG.fullmatch(word) and _INTERVAL.fullmatch(following):
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
                self._add(source, tag, first, end, str(other))

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

    def _add(self, source: str, tag: str, first: int, end: int, text: str) -> None:
        if not 1 <= first < end <= _END:
            raise _no_set(text)
        bounds = self._bounds.setdefault((source, tag), [])
        low, high = bisect_left(bounds, first), bisect_right(bounds, end)
        bounds[low:high] = [first] * (low % 2 == 0) + [end] * (high % 2 == 0)

    def __contains__(self, gtid: str) -> bool:
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


def gtid_of(event: Event) -> Gtid | None:
    """What a transaction's first event says; None for any other event.

    :raises BinlogDamaged: it ends inside of a field. :raises ChangeUnreadable: a newer server wrote it.
    """
    if event.kind not in TRANSACTION_STARTS:
        return None
    if event.kind == MARIADB_GTID:
        fields = Fields(event)
        number, domain = fields.number(8), fields.number(4)
        fields.number(1)  # its flags say of no transaction that there are only rows in it
        return Gtid(f"{domain}-{event.server_id}-{number}", False, None, None)
    return _tagged(event) if event.kind == GTID_TAGGED else _untagged(event)


def gtids_before(event: Event) -> Gtids | None:
    """All transactions before the file that ``event`` stands at the beginning of; None if it does not say so.

    :raises BinlogDamaged: it ends inside of a field.
    """
    if event.kind == PREVIOUS_GTIDS:
        return _previous(event)
    if event.kind == GTID_LIST:
        fields = Fields(event)
        position = MariaPosition()
        for _ in range(fields.number(4) & 0x0FFFFFFF):  # the bits above are flags
            domain, server, number = fields.number(4), fields.number(4), fields.number(8)
            position._last[domain] = (server, number)  # of several servers in a domain, the last one is listed last
        return position
    return None


def _untagged(event: Event) -> Gtid:
    """GTID and ANONYMOUS_GTID. What is at the end came with later versions."""
    fields = Fields(event)
    flags, source, number = fields.number(1), bytes(fields.take(16)), fields.number(8)
    if event.kind == GTID and not 1 <= number < _END:
        raise damaged(event, f"a transaction with the number {number}")
    text = None if event.kind == ANONYMOUS_GTID else f"{uuid.UUID(bytes=source)}:{number}"
    length = committed = None
    if fields.left >= 1 + 16 + 7 and fields.number(1) == _LOGICAL_CLOCK:
        fields.take(16)
        committed = fields.number(7)
        if committed & _TWO_TIMES:
            committed = fields.number(7)
        length = fields.packed() if fields.left else None
    return Gtid(text, not flags & _MAY_HAVE_STATEMENTS, length, committed or None)


def _tagged(event: Event) -> Gtid:
    """A GTID with a tag. Written from the definition in the server's source; no such server has been met.

    Source: ``Gtid_event::define_fields``.
    """
    fields = Fields(event)
    version, size = fields.serial(), fields.serial()
    needed = fields.serial()
    if version != _SERIAL_VERSION or needed > _SERIAL_FIELDS:
        raise unreadable(
            event, "unknown_event", f"a transaction's name in a form that is not known (version {version}, up to field "
            f"{needed})", "look for a newer Onceward",
        )  # fmt: skip
    if not fields.at <= size <= fields.at + fields.left:
        raise damaged(event, f"a transaction's name of {size} bytes")
    fields = Fields(event, event.body[fields.at : size])
    flags, source, number, tag = _MAY_HAVE_STATEMENTS, b"", 0, ""
    committed: int | None = None
    length: int | None = None
    seen = -1
    while fields.left and (field := fields.serial()) < _SERIAL_FIELDS:
        if field <= seen:
            raise damaged(event, f"a transaction's name with field {field} behind field {seen}")
        seen = field
        if field == 0:
            flags = fields.serial()
        elif field == 1:
            octets = [fields.serial() for _ in range(16)]
            if max(octets) > 255:
                raise damaged(event, "a transaction's source that is no UUID")
            source = bytes(octets)
        elif field == 3:
            tag = bytes(fields.take(fields.serial())).decode("ascii", "replace")
        elif field in (2, 4, 5):
            value = fields.signed_serial()
            number = value if field == 2 else number
        else:
            value = fields.serial()
            committed = value if field in (6, 7) else committed  # the original one follows, if it is another
            length = value if field == 8 else length
    if not source or not 1 <= number < _END or not (tag == "" or _TAG.fullmatch(tag)):
        raise damaged(event, f"a transaction named {tag!r}, {number}")
    text = f"{uuid.UUID(bytes=source)}:{tag}:{number}" if tag else f"{uuid.UUID(bytes=source)}:{number}"
    return Gtid(text, not flags & _MAY_HAVE_STATEMENTS, length, committed or None)


def _previous(event: Event) -> GtidSet:
    """Source: ``Gtid_set::add_gtid_encoding``; with tags since MySQL 8.3, which no server here writes."""
    fields = Fields(event)
    count = fields.number(8)
    form = count >> 56
    if form > 1:
        raise unreadable(
            event, "unknown_event", f"a set of transactions in a form that is not known ({form})",
            "look for a newer Onceward",
        )  # fmt: skip
    count = count >> 8 & 0xFFFFFFFFFFFF if form else count
    made = GtidSet()
    for _ in range(count):
        source = str(uuid.UUID(bytes=bytes(fields.take(16))))
        tag = bytes(fields.take(fields.serial())).decode("ascii", "replace") if form else ""
        for _ in range(fields.number(8)):
            first, end = fields.number(8), fields.number(8)
            if not 1 <= first < end <= _END or not (tag == "" or _TAG.fullmatch(tag)):
                raise damaged(event, f"transactions {tag!r}, {first} to {end}")
            made._add(source, tag, first, end, "")
    return made


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
