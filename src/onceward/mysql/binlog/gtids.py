"""What the events that carry names of transactions say: :func:`gtid_of` the first of each,
:func:`gtids_before` a file. Pure.

Source: MySQL, ``sql/rpl_gtid_set.cc``, ``libs/mysql/binlog/event/control_events.h``
(``Gtid_event``), ``libs/mysql/serialization/readme.md``; MariaDB, *GTID_EVENT* and
*GTID_LIST_EVENT* of the replication protocol.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import NamedTuple

from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.gtid_sets import END, TAG, Gtids, GtidSet, MariaState
from onceward.mysql.binlog.kinds import (
    ANONYMOUS_GTID,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    MARIADB_GTID,
    PREVIOUS_GTIDS,
    TRANSACTION_STARTS,
)  # fmt: skip
from onceward.mysql.binlog.lengths import Fields
from onceward.mysql.binlog.stops import damaged, unreadable

__all__ = ["Gtid", "GtidSet", "Gtids", "MariaState", "gtid_of", "gtids_before"]

_MAY_HAVE_STATEMENTS = 1
_LOGICAL_CLOCK = 2
_USUAL = struct.Struct(
    "<B16sQB16xIHBB"
)  # flags, source, number, clock, its two numbers, time in three, length
_IN_ONE_BYTE, _IN_TWO_BYTES = (
    251,
    252,
)  # a length below the first; the sign of one in the two bytes behind it
_TWO_TIMES = 1 << 55
_SERIAL_VERSION = 1
_SERIAL_FIELDS = 12
"""Of a tagged GTID, as MySQL 8.3 to 9.7 write it."""


class Gtid(NamedTuple):
    """What the first event of a transaction says of it."""

    text: str | None
    """None where the server gives none (``gtid_mode=OFF``)."""
    rows_only: bool
    """No statement changes anything in it. MariaDB never says so: there every QUERY has to be
    looked at.
    """
    length: int | None
    """Bytes of the whole transaction in the binlog, from this event on."""
    committed_at_us: int | None
    """Microseconds since 1970, on the server where it was committed first."""


def gtid_of(event: Event) -> Gtid | None:
    """What a transaction's first event says; None for any other event.

    :raises BinlogDamaged: it ends inside of a field. :raises ChangeUnreadable: a newer server
        wrote it.
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
    """All transactions before the file that ``event`` stands at the beginning of; None if it does
    not say so.

    :raises BinlogDamaged: it ends inside of a field.
    """
    if event.kind == PREVIOUS_GTIDS:
        return _previous(event)
    if event.kind == GTID_LIST:
        fields = Fields(event)
        state = MariaState()
        for _ in range(fields.number(4) & 0x0FFFFFFF):  # the bits above are flags
            domain, server, number = fields.number(4), fields.number(4), fields.number(8)
            state.add(
                f"{domain}-{server}-{number}"
            )  # of several servers in a domain, the last one is listed last
        return state
    return None


def _untagged(event: Event) -> Gtid:
    """GTID and ANONYMOUS_GTID. What is at the end came with later versions."""
    at = event.start + HEADER_BYTES
    if (
        event.kind == GTID and event.stop - at >= _USUAL.size
    ):  # most are like that, and there is one in a transaction
        flags, source, number, clock, low, middle, high, size = _USUAL.unpack_from(
            event.buffer, at
        )
        if size == _IN_TWO_BYTES and event.stop - at >= _USUAL.size + 2:
            size = int.from_bytes(event.buffer[at + _USUAL.size : at + _USUAL.size + 2], "little")
        elif size >= _IN_ONE_BYTE:
            clock = 0
        if clock == _LOGICAL_CLOCK and high < _TWO_TIMES >> 48 and 1 <= number < END:
            name = f"{_source(source)}:{number}"
            return Gtid(
                name,
                not flags & _MAY_HAVE_STATEMENTS,
                size,
                high << 48 | middle << 32 | low or None,
            )
    fields = Fields(event)
    flags, source, number = fields.number(1), bytes(fields.take(16)), fields.number(8)
    if event.kind == GTID and not 1 <= number < END:
        raise damaged(event, f"a transaction with the number {number}")
    text = None if event.kind == ANONYMOUS_GTID else f"{_source(source)}:{number}"
    length = committed = None
    if fields.left >= 1 + 16 + 7 and fields.number(1) == _LOGICAL_CLOCK:
        fields.take(16)
        committed = fields.number(7)
        if committed & _TWO_TIMES:
            committed = fields.number(7)
        length = fields.packed() if fields.left else None
    return Gtid(text, not flags & _MAY_HAVE_STATEMENTS, length, committed or None)


@lru_cache(64)
def _source(octets: bytes) -> str:
    return str(uuid.UUID(bytes=octets))


def _tagged(event: Event) -> Gtid:
    """A GTID with a tag. Source: ``Gtid_event::define_fields``; checked on MySQL 9.7.4."""
    fields = Fields(event)
    version, size = fields.serial(), fields.serial()
    needed = fields.serial()
    if version != _SERIAL_VERSION or needed > _SERIAL_FIELDS:
        raise unreadable(
            event, "unknown_event", f"a transaction's name in a form that is not known (version "
                                    f"{version}, up to field "
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
            committed = (
                value if field in (6, 7) else committed
            )  # the original one follows, if it is another
            length = value if field == 8 else length
    if not source or not 1 <= number < END or not (tag == "" or TAG.fullmatch(tag)):
        raise damaged(event, f"a transaction named {tag!r}, {number}")
    text = (
        f"{uuid.UUID(bytes=source)}:{tag}:{number}"
        if tag
        else f"{uuid.UUID(bytes=source)}:{number}"
    )
    return Gtid(text, not flags & _MAY_HAVE_STATEMENTS, length, committed or None)


def _previous(event: Event) -> GtidSet:
    """Source: ``Gtid_set::add_gtid_encoding``; with tags since MySQL 8.3."""
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
            if not 1 <= first < end <= END or not (tag == "" or TAG.fullmatch(tag)):
                raise damaged(event, f"transactions {tag!r}, {first} to {end}")
            made.add_range(source, tag, first, end, "")
    return made
