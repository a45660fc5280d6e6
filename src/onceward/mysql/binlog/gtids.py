"""GTID events: :func:`parse_gtid` reads the first event of a transaction,
:func:`parse_previous_gtids` the set at the beginning of a file. Pure.

Source: MySQL, ``sql/rpl_gtid_set.cc``, ``libs/mysql/binlog/event/control_events.h``
(``Gtid_event``), ``libs/mysql/serialization/readme.md``; MariaDB, *GTID_EVENT* and
*GTID_LIST_EVENT* of the replication protocol.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import Any, NamedTuple

from onceward.mysql.binlog.event import (
    ANONYMOUS_GTID,
    GTID,
    GTID_LIST,
    GTID_TAGGED,
    HEADER_BYTES,
    MARIADB_GTID,
    PREVIOUS_GTIDS,
    TRANSACTION_STARTS,
    BinlogEvent,
    damaged_event,
    unreadable_event,
)
from onceward.mysql.binlog.fields import EventFields
from onceward.mysql.binlog.gtid_sets import END, TAG, GtidBinlogState, Gtids, GtidSet

_LOGICAL_CLOCK = 2
# Flags, source, number, clock, its two numbers, time in three, length.
_USUAL = struct.Struct("<B16sQB16xIHBB")
# A length below the first; the sign of one in the two bytes behind it.
_IN_ONE_BYTE, _IN_TWO_BYTES = (251, 252)
_TWO_TIMES = 1 << 55
_SERIAL_VERSION = 1
_SERIAL_FIELDS = 12
"""Number of fields of a GTID_TAGGED event, as MySQL 8.3 to 9.7 write it."""


# Of a tagged one: fields by their numbers
_SOURCE, _NUMBER, _TAG, _LAST_COMMITTED, _SEQUENCE, _COMMIT, _ORIGINAL_COMMIT = range(1, 8)
_SIGNED_FIELDS = (_NUMBER, _LAST_COMMITTED, _SEQUENCE)


class Gtid(NamedTuple):
    """The fields of a transaction's first event."""

    text: str | None
    """None where the server gives none (``gtid_mode=OFF``)."""
    committed_at_us: int | None
    """Microseconds since 1970, on the server where it was committed first."""


def parse_gtid(event: BinlogEvent) -> Gtid | None:
    """Parse a transaction's first event; return None for any other event.

    :raises BinlogCorrupted: it ends inside of a field.
    :raises ChangeUnreadable: a newer server wrote it.
    """
    if event.kind not in TRANSACTION_STARTS:
        return None
    if event.kind == MARIADB_GTID:
        fields = EventFields(event)
        number, domain = fields.fixed_int(8), fields.fixed_int(4)
        # Its flags
        fields.fixed_int(1)
        return Gtid(f"{domain}-{event.server_id}-{number}", None)
    return _parse_tagged(event) if event.kind == GTID_TAGGED else _parse_untagged(event)


def parse_previous_gtids(event: BinlogEvent) -> Gtids | None:
    """Return all transactions before the file that begins with ``event``; None for any other
    event.

    :raises BinlogCorrupted: it ends inside of a field.
    """
    if event.kind == PREVIOUS_GTIDS:
        return _parse_gtid_set(event)
    if event.kind == GTID_LIST:
        fields = EventFields(event)
        state = GtidBinlogState()
        # the bits above are flags
        for _ in range(fields.fixed_int(4) & 0x0FFFFFFF):
            domain, server, number = fields.fixed_int(4), fields.fixed_int(4), fields.fixed_int(8)
            # Of several servers in a domain, the last one is listed last.
            state.add(f"{domain}-{server}-{number}")
        return state
    return None


def _parse_untagged(event: BinlogEvent) -> Gtid:
    """Parse GTID and ANONYMOUS_GTID, whose last fields came with later versions."""
    at = event.start + HEADER_BYTES
    # Most are like that, and there is one in a transaction.
    if event.kind == GTID and event.stop - at >= _USUAL.size:
        _, source, number, clock, low, middle, high, size = _USUAL.unpack_from(event.buffer, at)
        is_whole = size < _IN_ONE_BYTE or (
            size == _IN_TWO_BYTES and event.stop - at >= _USUAL.size + 2
        )
        if is_whole and clock == _LOGICAL_CLOCK and high < _TWO_TIMES >> 48 and 1 <= number < END:
            return Gtid(
                f"{_source_text(source)}:{number}", high << 48 | middle << 32 | low or None
            )
    fields = EventFields(event)
    _, source, number = fields.fixed_int(1), bytes(fields.take(16)), fields.fixed_int(8)
    if event.kind == GTID and not 1 <= number < END:
        raise damaged_event(event, f"a transaction with the number {number}")
    text = None if event.kind == ANONYMOUS_GTID else f"{_source_text(source)}:{number}"
    committed = None
    if fields.remaining >= 1 + 16 + 7 and fields.fixed_int(1) == _LOGICAL_CLOCK:
        fields.take(16)
        committed = fields.fixed_int(7)
        if committed & _TWO_TIMES:
            committed = fields.fixed_int(7)
        # How long the transaction is
        if fields.remaining:
            fields.lenenc_int()
    return Gtid(text, committed or None)


@lru_cache(256)
def _source_text(octets: bytes) -> str:
    return str(uuid.UUID(bytes=octets))


def _parse_tagged(event: BinlogEvent) -> Gtid:
    """Parse a GTID with a tag. Source: ``Gtid_event::define_fields``; checked on MySQL 9.7.4."""
    fields = EventFields(event)
    version, size, least_field = (fields.varlen_int() for _ in range(3))
    if version != _SERIAL_VERSION or least_field > _SERIAL_FIELDS:
        form = f"a form that is not known (version {version}, up to field {least_field})"
        raise unreadable_event(
            event, "unknown_event", f"a transaction's name in {form}", "look for a newer Onceward"
        )
    if not fields.at <= size <= fields.at + fields.remaining:
        raise damaged_event(event, f"a transaction's name of {size} bytes")
    values = _tagged_fields(event, EventFields(event, event.body[fields.at : size]))
    source, number, tag = values.get(_SOURCE), values.get(_NUMBER, 0), values.get(_TAG, "")
    if not source or not 1 <= number < END or not (tag == "" or TAG.fullmatch(tag)):
        raise damaged_event(event, f"a transaction named {tag!r}, {number}")
    text = (
        f"{uuid.UUID(bytes=source)}:{tag}:{number}" if tag else f"{_source_text(source)}:{number}"
    )
    committed = values.get(_ORIGINAL_COMMIT, values.get(_COMMIT))
    return Gtid(text, committed or None)


def _tagged_fields(event: BinlogEvent, fields: EventFields) -> dict[int, Any]:
    """Read the fields of a tagged GTID, by their numbers, which grow."""
    values: dict[int, Any] = {}
    last = -1
    while fields.remaining and (field := fields.varlen_int()) < _SERIAL_FIELDS:
        if field <= last:
            raise damaged_event(
                event, f"a transaction's name with field {field} behind field {last}"
            )
        last = field
        if field == _SOURCE:
            octets = [fields.varlen_int() for _ in range(16)]
            if max(octets) > 255:
                raise damaged_event(event, "a transaction's source that is no UUID")
            values[field] = bytes(octets)
        elif field == _TAG:
            values[field] = bytes(fields.take(fields.varlen_int())).decode("ascii", "replace")
        elif field in _SIGNED_FIELDS:
            values[field] = fields.signed_varlen_int()
        else:
            values[field] = fields.varlen_int()
    return values


def _parse_gtid_set(event: BinlogEvent) -> GtidSet:
    """Parse PREVIOUS_GTIDS (``Gtid_set::add_gtid_encoding``), with tags since MySQL 8.3."""
    fields = EventFields(event)
    count = fields.fixed_int(8)
    form = count >> 56
    if form > 1:
        raise unreadable_event(
            event, "unknown_event", f"a set of transactions in a form that is not known ({form})",
            "look for a newer Onceward",
        )  # fmt: skip
    count = count >> 8 & 0xFFFFFFFFFFFF if form else count
    result = GtidSet()
    for _ in range(count):
        source = str(uuid.UUID(bytes=bytes(fields.take(16))))
        tag = bytes(fields.take(fields.varlen_int())).decode("ascii", "replace") if form else ""
        for _ in range(fields.fixed_int(8)):
            first, end = fields.fixed_int(8), fields.fixed_int(8)
            if not 1 <= first < end <= END or not (tag == "" or TAG.fullmatch(tag)):
                raise damaged_event(event, f"transactions {tag!r}, {first} to {end}")
            result.add_range(source, tag, first, end, "")
    return result


_SOURCE_AT, _NUMBER_AT = HEADER_BYTES + 1, HEADER_BYTES + 17
_SHORTEST_GTID = HEADER_BYTES + 25


def gtid_text(event: BinlogEvent | str | None) -> str | None:
    """Return a transaction's GTID, when a change needs it. In a stream of small transactions that
    is once a change, so the two usual types are parsed here directly.

    :param event: the first event of a transaction, or its GTID.
    :raises BinlogCorrupted: it is no such event.
    :raises ChangeUnreadable: a newer server wrote it.
    """
    if event is None or isinstance(event, str):
        return event
    if event.kind == ANONYMOUS_GTID:
        return None
    buffer, start = event.buffer, event.start
    if event.kind == GTID and event.stop - start >= _SHORTEST_GTID:
        number = int.from_bytes(buffer[start + _NUMBER_AT : start + _NUMBER_AT + 8], "little")
        return f"{_source_text(bytes(buffer[start + _SOURCE_AT : start + _NUMBER_AT]))}:{number}"
    if event.kind == MARIADB_GTID and event.stop - start >= HEADER_BYTES + 13:
        at = start + HEADER_BYTES
        domain = int.from_bytes(buffer[at + 8 : at + 12], "little")
        return f"{domain}-{event.server_id}-{int.from_bytes(buffer[at : at + 8], 'little')}"
    found = parse_gtid(event)
    return found.text if found else None
