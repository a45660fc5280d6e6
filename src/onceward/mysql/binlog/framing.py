"""Packets of a server that sends its binlog, to events: :class:`EventReader`. Pure: the caller
receives into its buffer, and says how many bytes came.

Every event is checked before it is returned: its size against its packet's, its checksum, and its
end against the position that the server wrote into it. So a gap, a start inside an event (MariaDB
sends garbage then) or a flipped bit ends in :class:`~onceward.errors.BinlogCorrupted`, never in
other rows.

Source: MySQL, *Replication protocol* and *Packets* in the source documentation,
``sql/rpl_binlog_sender.cc``; MariaDB's *Replication protocol* pages.
"""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass

from onceward.errors import BinlogCorrupted
from onceward.mysql.binlog.event import (
    ARTIFICIAL_FLAG,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    HEARTBEAT,
    HEARTBEAT_V2,
    ON_DAMAGE,
    ROTATE,
    START_ENCRYPTION,
    BinlogEvent,
    Dialect,
)

FIRST_POSITION = 4
BLOCK_BYTES = 1 << 20
MOST_BYTES = (1 << 30) + (1 << 20)
"""Size limit of one event: that of ``max_allowed_packet`` is 1 GiB."""

# Length and number, status, then the event: time, kind, server, size, end, flags.
_PACKET = struct.Struct("<IBIBIIIH")
_HEADER = struct.Struct("<IBIIIH")
# The packet is continued in the next one
_FULL = 0xFFFFFF
_POSITION_MASK = 0xFFFFFFFF
_CHECKSUM = 4
_AT_ZERO = (ROTATE, START_ENCRYPTION)
"""Made up where their position is 0: MariaDB repeats how an encrypted file begins."""
_OFTEN_MADE_UP = frozenset({*_AT_ZERO, FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2})
# the first byte of a packet
_EVENT, _END, _ERROR = 0x00, 0xFE, 0xFF
_event = tuple.__new__
"""``BinlogEvent(…)`` calls a function that calls this one: half the time of making an event."""


@dataclass(frozen=True)
class EndOfBinlog:
    """The server has sent all that it has."""


class DumpRefused(Exception):
    """The server answered with an error. Its meaning is not in its text."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}, {text}")
        self.code, self.text = code, text.rstrip(".")


class EventReader:
    """One dump, from ``position`` of ``file`` on. Put bytes into :meth:`space`, then call
    :meth:`events`.

    :param block_bytes: events are returned in blocks of about that size, each in a buffer of its
        own.
    """

    def __init__(
        self, dialect: Dialect, file: str, position: int, *, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self.dialect = dialect
        self.file = file
        """File of the next event."""
        self.position = position
        self.end: EndOfBinlog | DumpRefused | BinlogCorrupted | None = None
        """Why no more events will come."""
        # Bytes behind an event, as the format description says
        self._checksum = _CHECKSUM
        # The first rotation, which repeats what was asked for, was seen
        self._has_rotation = False
        self._block_bytes = block_bytes
        self._buffer = bytearray(block_bytes)
        # Events are made up to there, bytes have come up to there
        self._read_at = self._write_at = 0
        # Bytes from _read on, before anything more can be said
        self._need = 4
        # The beginning of an event of several packets
        self._partial: bytearray | None = None

    def space(self) -> memoryview:
        """Return where the next bytes belong, at least one. Returned events are not touched."""
        room = len(self._buffer) - self._write_at
        if self._read_at + self._need > len(self._buffer) or room <= self._block_bytes >> 4:
            rest = memoryview(self._buffer)[self._read_at : self._write_at]
            fresh = bytearray(max(self._block_bytes, self._need + (self._block_bytes >> 4)))
            fresh[: len(rest)] = rest
            self._buffer, self._read_at, self._write_at = fresh, 0, len(rest)
        return memoryview(self._buffer)[self._write_at :]

    def events(self, count: int, until: tuple[str, int] | None = None) -> list[BinlogEvent]:
        """Return the events that are complete, now that ``count`` bytes more are in :meth:`space`.
        Look at :attr:`end` afterwards.

        :param until: file and position of an event that is not returned any more, nor what follows
            it: the range is complete once ``(file, position)`` equals it. Bytes behind it are kept
            for the next call.
        """
        self._write_at += count
        found: list[BinlogEvent] = []
        try:
            while self.end is None and not self._is_at(until):
                if self._partial is None:
                    self._take_plain(
                        found, until[1] if until and until[0] == self.file else sys.maxsize
                    )
                if self._is_at(until) or not self._take_special(found):
                    break
        except BinlogCorrupted as error:
            # What came before it is as it was written
            self.end = error
        return found

    def _is_at(self, until: tuple[str, int] | None) -> bool:
        """Check whether the reader is at ``until``; beyond it no event begins there."""
        if until is None or (number := file_number(self.file)) < (last := file_number(until[0])):
            return False
        if number == last and self.position < until[1]:
            return False
        if (self.file, self.position) != until:
            raise self._damage(f"an event where one is to begin at {until[0]}:{until[1]}")
        return True

    def _take_plain(self, found: list[BinlogEvent], until: int) -> None:
        """Append whole events in packets of their own, the hot loop; stop at anything else."""
        buffer, read, write_at = self._buffer, self._read_at, self._write_at
        position, file, checksum = self.position, self.file, self._checksum
        verify, unpack, append = checksum > 0, _PACKET.unpack_from, found.append
        view, crc32, from_bytes = memoryview(buffer), zlib.crc32, int.from_bytes
        make, kind_of = _event, BinlogEvent
        special, least = _OFTEN_MADE_UP, HEADER_BYTES + checksum
        # MariaDB writes 0 as the position of events inside a transaction.
        zero_is_right = self.dialect == "mariadb"
        while write_at - read >= 24 and position < until:
            length, status, timestamp, kind, server_id, size, log_pos, flags = unpack(buffer, read)
            length &= _FULL
            after = read + 4 + length
            if after > write_at or length != size + 1 or status or size < least or length == _FULL:
                break
            if kind in special or flags & ARTIFICIAL_FLAG:
                break
            # A position in an event has 32 bits, and binlogs may be longer: it is counted by
            # sizes, and checked modulo 2³².
            following = position + size
            if following & _POSITION_MASK != log_pos and not (zero_is_right and log_pos == 0):
                break
            stop = after - checksum
            if verify and crc32(view[read + 5 : stop]) != from_bytes(view[stop:after], "little"):
                break
            header = kind, flags, timestamp, server_id
            append(make(kind_of, (buffer, read + 5, stop, *header, file, position, 0, False)))
            position, read = following, after
        self._read_at, self.position = read, position

    def _take_special(self, found: list[BinlogEvent]) -> bool:
        """Handle one packet that the hot loop does not; return False if it is not complete."""
        buffer, read = self._buffer, self._read_at
        have = self._write_at - read
        self._need = 5
        if have < 5:
            return False
        length = int.from_bytes(buffer[read : read + 3], "little")
        self._need = 4 + length
        if self._partial is not None:
            return self._join(length, found)
        status = buffer[read + 4]
        if status == _EVENT and have >= 24:
            self._check_size(length, int.from_bytes(buffer[read + 14 : read + 18], "little"))
        if (
            length == 0
            or (status == _EVENT and length < HEADER_BYTES + 1)
            or status not in (_EVENT, _END, _ERROR)
        ):
            raise self._damage(f"a packet of {length} bytes that begins with {status:#04x}")
        if have < self._need:
            return False
        self._read_at += self._need
        payload = read + 4
        if status == _ERROR:
            self.end = _server_error(bytes(buffer[payload + 1 : payload + length]))
        elif status == _END:
            if length >= 9:
                raise self._damage(f"a packet of {length} bytes in the place of the end")
            self.end = EndOfBinlog()
        elif length == _FULL:
            self._partial = bytearray(memoryview(buffer)[payload + 1 : payload + length])
        else:
            found.append(self.check_event(buffer, payload + 1, payload + length))
        return True

    def _check_size(self, length: int, size: int) -> None:
        """Check an event's own size against its packet's, before waiting for either."""
        if size > MOST_BYTES:
            raise self._damage(f"an event of {size} bytes")
        if length != min(size + 1, _FULL):
            raise self._damage(f"an event of {size} bytes in a packet of {length}")

    def _join(self, length: int, found: list[BinlogEvent]) -> bool:
        """Append one more packet to an event of several."""
        partial = self._partial
        assert partial is not None  # noqa: S101 — for the type checker; the caller has looked
        # Only the event's own size can check the lengths of its packets.
        size = int.from_bytes(partial[9:13], "little")
        if length != min(size - len(partial), _FULL):
            raise self._damage(
                f"an event of {size} bytes, of which {len(partial)} are there, goes on with "
                f"{length}"
            )
        self._need = 4 + length
        if self._write_at - self._read_at < self._need:
            return False
        partial += memoryview(self._buffer)[self._read_at + 4 : self._read_at + self._need]
        self._read_at += self._need
        if length < _FULL:
            self._partial = None
            found.append(self.check_event(partial, 0, len(partial)))
        return True

    def check_event(self, buffer: bytes | bytearray, start: int, stop: int) -> BinlogEvent:
        """Return the next event, in ``buffer[start:stop]`` with its checksum.

        :raises BinlogCorrupted: its size, checksum or position is wrong.
        """
        timestamp, kind, server_id, size, log_pos, flags = _HEADER.unpack_from(buffer, start)
        if size != stop - start or size < HEADER_BYTES:
            raise self._damage(f"an event of {size} bytes in {stop - start}")
        if kind == FORMAT_DESCRIPTION:
            self._checksum = self._parse_checksum_bytes(buffer, start, stop)
        # Events that the server makes up for a dump take no room in the file: the rotation at its
        # beginning, the format description unless the dump begins at the file's, heartbeats.
        artificial = kind in (HEARTBEAT, HEARTBEAT_V2) or bool(flags & ARTIFICIAL_FLAG)
        artificial = artificial or (kind == FORMAT_DESCRIPTION and self.position > FIRST_POSITION)
        artificial = artificial or (kind in _AT_ZERO and log_pos == 0)
        if kind == ROTATE and artificial:
            return self._rotate(buffer, start, stop, (timestamp, server_id, flags))
        # A format description always has one.
        behind = _CHECKSUM if kind == FORMAT_DESCRIPTION else self._checksum
        if size < HEADER_BYTES + behind:
            raise self._damage(f"an event of {size} bytes")
        # Servers change a format description that they make up, and not its checksum, if the file
        # has none.
        changed = kind == FORMAT_DESCRIPTION and artificial and not self._checksum
        if behind and not changed and not _has_valid_checksum(buffer, start, stop):
            raise self._damage(f"an event (kind {kind}) whose checksum is another")
        position = self.position
        if not artificial:
            if (position + size) & _POSITION_MASK != log_pos and not (
                self.dialect == "mariadb" and log_pos == 0
            ):
                raise self._damage(
                    f"an event (kind {kind}) of {size} bytes that ends at {log_pos} (modulo 2³²)"
                )
            self.position = position + size
        return BinlogEvent(
            buffer, start, stop - behind, kind, flags, timestamp, server_id, self.file, position,
            0, artificial
        )  # fmt: skip

    def _rotate(
        self, buffer: bytes | bytearray, start: int, stop: int, header: tuple[int, int, int]
    ) -> BinlogEvent:
        """Continue in another file, or check the first rotation, which repeats the request."""
        # It comes before the format description, which says whether there are checksums: it has
        # one if its last bytes are one.
        if stop - start > HEADER_BYTES + 8 + _CHECKSUM and _has_valid_checksum(
            buffer, start, stop
        ):
            stop -= _CHECKSUM
        if stop - start <= HEADER_BYTES + 8:
            raise self._damage("a rotation without a file")
        position = int.from_bytes(
            buffer[start + HEADER_BYTES : start + HEADER_BYTES + 8], "little"
        )
        file = bytes(buffer[start + HEADER_BYTES + 8 : stop]).decode("utf-8", "backslashreplace")
        if (
            (file, position) != (self.file, self.position)
            if not self._has_rotation
            else position != FIRST_POSITION
        ):
            raise self._damage(f"a rotation to {file}:{position}")
        self._has_rotation, self.file, self.position = True, file, position
        timestamp, server_id, flags = header
        return BinlogEvent(
            buffer, start, stop, ROTATE, flags, timestamp, server_id, file, position, 0, True
        )

    def _parse_checksum_bytes(self, buffer: bytes | bytearray, start: int, stop: int) -> int:
        """Return how many bytes follow each event, from the format description."""
        body = memoryview(buffer)[start + HEADER_BYTES : stop]
        if len(body) < 2 + 50 + 4 + 1 + 1 + _CHECKSUM:
            raise self._damage(f"a format description of {stop - start} bytes")
        version, header, kind = int.from_bytes(body[:2], "little"), body[56], body[-_CHECKSUM - 1]
        if version != 4 or header != HEADER_BYTES or kind not in (0, 1):
            raise self._damage(
                f"a format that is not known: version {version}, headers of {header}, checksum "
                f"{kind}"
            )
        return _CHECKSUM if kind else 0

    def _damage(self, what: str) -> BinlogCorrupted:
        at = f"{self.file}:{self.position}"
        return BinlogCorrupted(
            f"at {at} of the binlog there is {what}", next_step=ON_DAMAGE, details={"at": at}
        )


def file_number(file: str) -> int:
    """Return the number by which binlogs follow each other: ``binlog.1000000`` comes after
    ``binlog.999999``. -1 if there is none.
    """
    number = file.rpartition(".")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _has_valid_checksum(buffer: bytes | bytearray, start: int, stop: int) -> bool:
    """Check whether the last four bytes are the event's checksum."""
    end = stop - _CHECKSUM
    return zlib.crc32(memoryview(buffer)[start:end]) == int.from_bytes(buffer[end:stop], "little")


def _server_error(payload: bytes) -> DumpRefused:
    """Parse an ERR_Packet (MySQL, *Protocol Basics*)."""
    text = payload[8:] if payload[2:3] == b"#" else payload[2:]
    return DumpRefused(int.from_bytes(payload[:2], "little"), text.decode("utf-8", "replace"))
