"""Packets of a server that sends its binlog, to events: :class:`EventReader`. Pure: it says where
bytes may be put, and is told how many came.

Every event is checked before it is handed out: its size against its packet's, its checksum, and
its end against the position that the server wrote into it. So a gap, a start inside an event
(MariaDB sends garbage then) or a flipped bit ends in :class:`~onceward.errors.BinlogDamaged`,
never in other rows.

What is not obvious:

* Positions in events have 32 bits, and binlogs may be longer. They are counted here by sizes, and
  checked modulo 2³².
* MariaDB writes 0 as the position of events inside a transaction.
* The events that a server makes up for a dump (the rotation at its beginning, the format
  description where it does not begin at the file's, heartbeats) take no room in the file. The
  rotation comes before the format description, which says whether there are checksums; it has one
  if the bytes at its end are one.
* An event of 16 MiB or more comes in several packets, whose lengths only its own size can check.

Source: MySQL, *Replication protocol* and *Packets* in the source documentation,
``sql/rpl_binlog_sender.cc``; MariaDB's *Replication protocol* pages.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from onceward.errors import BinlogDamaged
from onceward.mysql.binlog.event import HEADER_BYTES, Event
from onceward.mysql.binlog.kinds import (
    ARTIFICIAL_FLAG,
    FORMAT_DESCRIPTION,
    HEARTBEAT,
    HEARTBEAT_V2,
    ROTATE,
    Dialect,
)
from onceward.mysql.binlog.stops import ON_DAMAGE

MAGIC = b"\xfebin"
FIRST_POSITION = 4
BLOCK_BYTES = 1 << 20
MOST_BYTES = (1 << 30) + (1 << 20)
"""Of one event: a server sends none beyond ``max_allowed_packet``, whose own limit is 1 GiB."""

_PACKET = struct.Struct(
    "<IBIBIIIH"
)  # length and number, status, then the event: time, kind, server, size, end, flags
_HEADER = struct.Struct("<IBIIIH")
_FULL = 0xFFFFFF  # the packet is continued in the next one
_MODULO = 0xFFFFFFFF
_CHECKSUM = 4
# in a format description's flags, while its file is written; the checksum is of the event without
_IN_USE = 1
_OFTEN_MADE_UP = frozenset({ROTATE, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2})
_EVENT, _END, _ERROR = 0x00, 0xFE, 0xFF  # the first byte of a packet
_event = tuple.__new__
"""Event(…) calls a function that does this: half the time of making one."""


@dataclass(frozen=True)
class EndOfBinlog:
    """The server has sent all it has."""


@dataclass(frozen=True)
class ServerError:
    """The server's own words, in the place of an event."""

    code: int
    text: str


class EventReader:
    """One dump, from ``position`` of ``file`` on. Put bytes into :meth:`space`, then ask for
    :meth:`events`.

    :param verify: check each event's checksum; without, damage inside an event is not noticed.
    :param block_bytes: events are handed out in blocks of about that size, each in a buffer of its
        own.
    """

    def __init__(
        self,
        dialect: Dialect,
        file: str,
        position: int,
        *,
        verify: bool = True,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        self.dialect = dialect
        self.file = file
        """Where the next event is."""
        self.position = position
        self.end: EndOfBinlog | ServerError | BinlogDamaged | None = None
        """Why no more events will come."""
        self._verify = verify
        self._checksum = _CHECKSUM  # bytes behind an event, as the format description says
        self._begun = False  # the first rotation, which repeats what was asked for, was seen
        self._block_bytes = block_bytes
        self._buffer = bytearray(block_bytes)
        self._read = self._filled = 0  # events are made up to there, bytes have come up to there
        self._needed = 4  # bytes from _read on, before anything more can be said
        self._joined: bytearray | None = None  # the beginning of an event of several packets

    def space(self) -> memoryview:
        """Where the next bytes belong, at least one. What was handed out before is not touched."""
        room = len(self._buffer) - self._filled
        if self._read + self._needed > len(self._buffer) or room <= self._block_bytes >> 4:
            rest = memoryview(self._buffer)[self._read : self._filled]
            fresh = bytearray(max(self._block_bytes, self._needed + (self._block_bytes >> 4)))
            fresh[: len(rest)] = rest
            self._buffer, self._read, self._filled = fresh, 0, len(rest)
        return memoryview(self._buffer)[self._filled :]

    def events(self, received: int, until: tuple[str, int] | None = None) -> list[Event]:
        """The events that are complete, now that ``received`` bytes more are in :meth:`space`.
        Look at :attr:`end` behind them.

        :param until: file and position of an event, which is not given out any more, nor what
            follows it: once ``(file, position)`` is that, no bytes are missing. What came behind
            it is kept for the next call.
        """
        self._filled += received
        found: list[Event] = []
        try:
            while self.end is None and not self._is_at(until):
                if self._joined is None:
                    self._take_plain(
                        found, until[1] if until and until[0] == self.file else sys.maxsize
                    )
                if self._is_at(until) or not self._take_special(found):
                    break
        except BinlogDamaged as damaged:
            self.end = damaged  # what came before it is as it was written
        return found

    def _is_at(self, until: tuple[str, int] | None) -> bool:
        """
        :raises BinlogDamaged: beyond it, and so no event begins there.
        """
        if until is None or (number := file_number(self.file)) < (last := file_number(until[0])):
            return False
        if number == last and self.position < until[1]:
            return False
        if (self.file, self.position) != until:
            raise self._damaged(f"an event where one is to begin at {until[0]}:{until[1]}")
        return True

    def _take_plain(self, found: list[Event], until: int) -> None:
        """The hot loop: whole events in packets of their own. Leaves at the first byte of whatever
        is not.
        """
        buffer, read, filled, position, file = (
            self._buffer,
            self._read,
            self._filled,
            self.position,
            self.file,
        )
        checksum, verify, unpack, append = (
            self._checksum,
            self._verify and self._checksum > 0,
            _PACKET.unpack_from,
            found.append,
        )
        view, crc32, from_bytes, make, kind_of = (
            memoryview(buffer),
            zlib.crc32,
            int.from_bytes,
            _event,
            Event,
        )
        special, least = _OFTEN_MADE_UP, HEADER_BYTES + checksum
        zero_is_right = self.dialect == "mariadb"
        while filled - read >= 24 and position < until:
            length, status, timestamp, kind, server_id, size, log_pos, flags = unpack(buffer, read)
            length &= _FULL
            after = read + 4 + length
            if after > filled or length != size + 1 or status or size < least or length == _FULL:
                break
            if kind in special or flags & ARTIFICIAL_FLAG:
                break
            following = position + size
            if following & _MODULO != log_pos and not (zero_is_right and log_pos == 0):
                break
            stop = after - checksum
            if verify and crc32(view[read + 5 : stop]) != from_bytes(view[stop:after], "little"):
                break
            append(
                make(
                    kind_of,
                    (
                        buffer,
                        read + 5,
                        stop,
                        kind,
                        flags,
                        timestamp,
                        server_id,
                        file,
                        position,
                        0,
                        False,
                    ),
                )
            )
            position, read = following, after
        self._read, self.position = read, position

    def _take_special(self, found: list[Event]) -> bool:
        """What the hot loop does not take, one packet; False if it is not complete."""
        buffer, read = self._buffer, self._read
        have = self._filled - read
        self._needed = 5
        if have < 5:
            return False
        length = int.from_bytes(buffer[read : read + 3], "little")
        self._needed = 4 + length
        if self._joined is not None:
            return self._join(length, found)
        status = buffer[read + 4]
        if status == _EVENT and have >= 24:
            self._must_fit(length, int.from_bytes(buffer[read + 14 : read + 18], "little"))
        if (
            length == 0
            or (status == _EVENT and length < HEADER_BYTES + 1)
            or status not in (_EVENT, _END, _ERROR)
        ):
            raise self._damaged(f"a packet of {length} bytes that begins with {status:#04x}")
        if have < self._needed:
            return False
        self._read += self._needed
        payload = read + 4
        if status == _ERROR:
            self.end = _server_error(bytes(buffer[payload + 1 : payload + length]))
        elif status == _END:
            if length >= 9:
                raise self._damaged(f"a packet of {length} bytes in the place of the end")
            self.end = EndOfBinlog()
        elif length == _FULL:
            self._joined = bytearray(memoryview(buffer)[payload + 1 : payload + length])
        else:
            found.append(self.checked(buffer, payload + 1, payload + length))
        return True

    def _must_fit(self, length: int, size: int) -> None:
        """An event's own size against its packet's, before we wait for either."""
        if size > MOST_BYTES:
            raise self._damaged(f"an event of {size} bytes")
        if length != min(size + 1, _FULL):
            raise self._damaged(f"an event of {size} bytes in a packet of {length}")

    def _join(self, length: int, found: list[Event]) -> bool:
        """One more packet of an event of several."""
        joined = self._joined
        assert joined is not None  # noqa: S101 — for the type checker; the caller has looked
        size = int.from_bytes(joined[9:13], "little")
        if length != min(size - len(joined), _FULL):
            raise self._damaged(
                f"an event of {size} bytes, of which {len(joined)} are there, goes on with "
                f"{length}"
            )
        self._needed = 4 + length
        if self._filled - self._read < self._needed:
            return False
        joined += memoryview(self._buffer)[self._read + 4 : self._read + self._needed]
        self._read += self._needed
        if length < _FULL:
            self._joined = None
            found.append(self.checked(joined, 0, len(joined)))
        return True

    def checked(
        self, buffer: bytes | bytearray, start: int, stop: int, *, in_file: bool = False
    ) -> Event:
        """The event that is the next one, in ``buffer[start:stop]`` with its checksum, once all is
        as it should be.

        :param in_file: as it lies on the server's disk, which may still write to it.

        :raises BinlogDamaged: it is not.
        """
        timestamp, kind, server_id, size, log_pos, flags = _HEADER.unpack_from(buffer, start)
        if size != stop - start or size < HEADER_BYTES:
            raise self._damaged(f"an event of {size} bytes in {stop - start}")
        if kind == FORMAT_DESCRIPTION:
            self._checksum = self._checksum_of(buffer, start, stop)
        made_up = kind in (HEARTBEAT, HEARTBEAT_V2) or bool(flags & ARTIFICIAL_FLAG)
        made_up = made_up or (kind == FORMAT_DESCRIPTION and self.position > FIRST_POSITION)
        made_up = made_up or (kind == ROTATE and log_pos == 0)
        if kind == ROTATE and made_up:
            return self._rotated(buffer, start, stop, (timestamp, server_id, flags))
        behind = (
            _CHECKSUM if kind == FORMAT_DESCRIPTION else self._checksum
        )  # a format description always has one
        if size < HEADER_BYTES + behind:
            raise self._damaged(f"an event of {size} bytes")
        # Servers change a format description that they make up, and not its checksum, if the file
        # has none.
        changed = kind == FORMAT_DESCRIPTION and made_up and not self._checksum
        if (
            self._verify
            and behind
            and not changed
            and not _is_checked(buffer, start, stop, in_file)
        ):
            raise self._damaged(f"an event (kind {kind}) whose checksum is another")
        position = self.position
        if not made_up:
            if (position + size) & _MODULO != log_pos and not (
                self.dialect == "mariadb" and log_pos == 0
            ):
                raise self._damaged(
                    f"an event (kind {kind}) of {size} bytes that ends at {log_pos} (modulo 2³²)"
                )
            self.position = position + size
        return Event(
            buffer, start, stop - behind, kind, flags, timestamp, server_id, self.file, position,
            0, made_up
        )  # fmt: skip

    def _rotated(
        self, buffer: bytes | bytearray, start: int, stop: int, said: tuple[int, int, int]
    ) -> Event:
        """The server goes on in another file, or says in which one it begins."""
        if stop - start > HEADER_BYTES + 8 + _CHECKSUM and _is_checked(buffer, start, stop):
            stop -= _CHECKSUM
        if stop - start <= HEADER_BYTES + 8:
            raise self._damaged("a rotation without a file")
        position = int.from_bytes(
            buffer[start + HEADER_BYTES : start + HEADER_BYTES + 8], "little"
        )
        file = bytes(buffer[start + HEADER_BYTES + 8 : stop]).decode("utf-8", "backslashreplace")
        if (
            (file, position) != (self.file, self.position)
            if not self._begun
            else position != FIRST_POSITION
        ):
            raise self._damaged(f"a rotation to {file}:{position}")
        self._begun, self.file, self.position = True, file, position
        timestamp, server_id, flags = said
        return Event(
            buffer, start, stop, ROTATE, flags, timestamp, server_id, file, position, 0, True
        )

    def _checksum_of(self, buffer: bytes | bytearray, start: int, stop: int) -> int:
        """How many bytes are behind each event, as the format description says."""
        body = memoryview(buffer)[start + HEADER_BYTES : stop]
        if len(body) < 2 + 50 + 4 + 1 + 1 + _CHECKSUM:
            raise self._damaged(f"a format description of {stop - start} bytes")
        version, header, kind = int.from_bytes(body[:2], "little"), body[56], body[-_CHECKSUM - 1]
        if version != 4 or header != HEADER_BYTES or kind not in (0, 1):
            raise self._damaged(
                f"a format that is not known: version {version}, headers of {header}, checksum "
                f"{kind}"
            )
        return _CHECKSUM if kind else 0

    def _damaged(self, what: str) -> BinlogDamaged:
        at = f"{self.file}:{self.position}"
        return BinlogDamaged(
            f"at {at} of the binlog there is {what}", next_step=ON_DAMAGE, details={"at": at}
        )


def events_of_file(
    data: bytes | bytearray, dialect: Dialect, file: str = "binlog.000001", *, verify: bool = True
) -> Iterator[Event]:
    """The events of a whole binlog file, as a server keeps it on its disk.

    :raises BinlogDamaged: it is none, or it ends inside an event.
    """
    reader = EventReader(dialect, file, FIRST_POSITION, verify=verify, block_bytes=32)
    if bytes(data[:4]) != MAGIC:
        raise reader._damaged(f"no binlog: it begins with {bytes(data[:4])!r}")
    while (at := reader.position) < len(data):
        size = int.from_bytes(data[at + 9 : at + 13], "little")
        if size < HEADER_BYTES or at + size > len(data):
            raise reader._damaged(f"an event of {size} bytes where {len(data) - at} are left")
        yield reader.checked(data, at, at + size, in_file=True)
        if reader.position != at + size:
            raise reader._damaged("an event that no file holds")


def file_number(file: str) -> int:
    """By which binlogs follow each other: ``binlog.1000000`` comes after ``binlog.999999``. -1 if
    there is none.
    """
    number = file.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _is_checked(buffer: bytes | bytearray, start: int, stop: int, in_file: bool = False) -> bool:
    """Whether its last four bytes are its checksum."""
    event = memoryview(buffer)[start : stop - _CHECKSUM]
    written = int.from_bytes(buffer[stop - _CHECKSUM : stop], "little")
    if zlib.crc32(event) == written:
        return True
    if not in_file or event[4] != FORMAT_DESCRIPTION or not event[17] & _IN_USE:
        return False
    closed = bytearray(event)
    closed[17] &= ~_IN_USE
    return zlib.crc32(closed) == written


def _server_error(payload: bytes) -> ServerError:
    """Source: MySQL, *Protocol Basics*, ERR_Packet."""
    text = payload[8:] if payload[2:3] == b"#" else payload[2:]
    return ServerError(int.from_bytes(payload[:2], "little"), text.decode("utf-8", "replace"))
