"""The rows of a query as the server sends them, as Arrow columns of bytes, a block at a time.
Tasks; called by :mod:`chunks`.

PyMySQL makes a Python object of each value, a microsecond each. Here Python looks at each row's
length only; the cells of a block are found column by column, for all rows at once. The server
sends as fast as it is read, and no faster, so that memory is a block, however many rows there are.

PyMySQL has no public call for that: its private ``_execute_command``, ``_read_packet``, ``_rfile``
and ``_sock`` are used here.

Source: MySQL, *Client/Server Protocol*, "Text Resultset" and "Protocol::LengthEncodedInteger".
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from onceward.errors import ServerUnreachable
from onceward.mysql.source.connection import driver

_QUERY = 3
_HEADER = 4
_FULL_PACKET = 0xFFFFFF
_NULL, _TWO, _THREE, _EIGHT, _REFUSAL = 0xFB, 0xFC, 0xFD, 0xFE, 0xFF
_MOST_IN_EOF = 9
BLOCK_BYTES = 4 << 20

Offsets = npt.NDArray[np.int64]


def fetch_columns(
    connection: Any, statement: str, block_bytes: int = BLOCK_BYTES
) -> Iterator[list[pa.Array]]:
    """Yield the rows of ``statement``: blocks of columns, each an array of bytes, null where the
    value is.

    The connection must not be used for anything else before the last block has come; a caller that
    stops earlier closes it.

    :raises pymysql.err.MySQLError: the server refuses it, or breaks off.
    :raises ServerUnreachable: it ended the connection.
    """
    connection._execute_command(_QUERY, statement)
    columns = connection._read_packet().read_length_encoded_integer()
    # Their definitions, and the packet that ends them
    for _ in range(columns + 1):
        connection._read_packet()
    # What its buffer holds comes first; behind it the socket is read without one.
    packets = _RowPackets(
        connection._rfile.read1(io.DEFAULT_BUFFER_SIZE), connection._sock, block_bytes
    )
    while (block := packets.block()) is not None:
        starts, stops = block
        yield _split_columns(packets.buffer, starts, stops, columns)
    if packets.refusal is not None:
        driver().err.raise_mysql_exception(packets.refusal)


class _RowPackets:
    """Finds rows in packets. Each call of :meth:`block` fills one buffer."""

    def __init__(self, data: bytes, socket: Any, block_bytes: int) -> None:
        self._socket = socket
        self._block_bytes = block_bytes
        self._rest = data
        """Received, and no whole row."""
        self._is_over = False
        self.buffer = bytearray()
        """Of the newest block."""
        self._end = 0
        """Of the received bytes in it."""
        self.refusal: bytes | None = None
        """The server's error packet in the place of the next row."""

    def block(self) -> tuple[Offsets, Offsets] | None:
        """Return the ends of the next rows in :attr:`buffer`; None behind the last one."""
        self._end = len(self._rest)
        is_large = self._end > self._block_bytes // 2
        self.buffer = bytearray(2 * self._end if is_large else self._block_bytes)
        self.buffer[: self._end] = self._rest
        starts: list[int] = []
        stops: list[int] = []
        at = 0
        while not self._is_over:
            at = self._take_rows(at, starts, stops)
            begin, length = at + _HEADER, self._packet_length(at)
            if length == _FULL_PACKET:
                if starts:
                    # A row of several packets is a block of its own
                    break
                return self._long_row(self.buffer[: self._end])
            stop = begin + (length or 0)
            if length is None or stop > self._end:
                if not self._receive_up_to(stop, may_grow=not starts):
                    break
            elif not self._ends_rows(begin, stop):
                starts.append(begin)
                stops.append(stop)
                at = stop
        self._rest = bytes(memoryview(self.buffer)[at : self._end])
        return (np.array(starts, np.int64), np.array(stops, np.int64)) if starts else None

    def _take_rows(self, at: int, starts: list[int], stops: list[int]) -> int:
        """Append whole rows, the hot loop; return where something else begins."""
        buffer, end = self.buffer, self._end
        while (begin := at + _HEADER) < end:
            length = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
            stop = begin + length
            if stop > end or not 0 < length < _FULL_PACKET or buffer[begin] >= _EIGHT:
                break
            starts.append(begin)
            stops.append(stop)
            at = stop
        return at

    def _packet_length(self, at: int) -> int | None:
        """Return the length in a packet's header; None if that has not come."""
        if at + _HEADER > self._end:
            return None
        buffer = self.buffer
        return buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16

    def _ends_rows(self, begin: int, stop: int) -> bool:
        """Check for an EOF or ERR packet."""
        first = self.buffer[begin] if stop > begin else 0
        if first == _REFUSAL:
            self.refusal = bytes(self.buffer[begin:stop])
        self._is_over = first == _REFUSAL or (first == _EIGHT and stop - begin < _MOST_IN_EOF)
        return self._is_over

    def _receive_up_to(self, stop: int, *, may_grow: bool) -> bool:
        """Receive some bytes; return False if the buffer has no room up to ``stop``."""
        size = len(self.buffer)
        if self._end == size or stop > size:
            if not may_grow:
                return False
            self.buffer += bytes(max(stop - size, 0) + self._block_bytes)
        self._end += self._receive(memoryview(self.buffer)[self._end :])
        return True

    def _receive(self, space: memoryview) -> int:
        try:
            count: int = self._socket.recv_into(space)
        except OSError as error:
            # also a patience that is over
            raise ServerUnreachable(
                f"the server did not go on sending a snapshot's rows: {error}",
                next_step="see whether it runs; the chunk is read again when the query is started "
                "again",
            ) from error
        if not count:
            raise ServerUnreachable(
                "the server closed the connection in the middle of a snapshot's rows",
                next_step="see whether it runs, and whether net_write_timeout or a proxy between "
                "ended a slow reader",
            )
        return count

    def _long_row(self, data: bytearray) -> tuple[Offsets, Offsets]:
        """Return the first row, which is in several packets, without their headers."""
        row = bytearray()
        length = _FULL_PACKET
        while length == _FULL_PACKET:
            self._extend(data, _HEADER)
            length = int.from_bytes(data[:3], "little")
            self._extend(data, _HEADER + length)
            row += memoryview(data)[_HEADER : _HEADER + length]
            data = data[_HEADER + length :]
        self._rest, self.buffer = bytes(data), row
        return np.array([0], np.int64), np.array([len(row)], np.int64)

    def _extend(self, data: bytearray, size: int) -> None:
        """Receive until ``data`` has ``size`` bytes."""
        have = len(data)
        data += bytes(max(size - have, 0))
        while have < size:
            with memoryview(data) as whole:
                have += self._receive(whole[have:])


def _split_columns(
    buffer: bytearray, starts: Offsets, stops: Offsets, columns: int
) -> list[pa.Array]:
    """Return the columns of rows in ``buffer``: cell k of all rows at once, then the next."""
    data = np.frombuffer(buffer, np.uint8)
    at = starts
    # Cells and the gaps between them are one array of bytes over the buffer, of which each column
    # takes its own.
    edges = np.empty((len(starts), 2 * columns), np.int64)
    nulls: list[npt.NDArray[np.bool_]] = []
    for column in range(columns):
        begin, length, null = _cell_lengths(data, at)
        at = begin + length
        edges[:, 2 * column], edges[:, 2 * column + 1] = begin, at
        nulls.append(null)
    if (at != stops).any():
        raise ServerUnreachable(
            "a row of the snapshot does not have the bytes that it says",
            next_step="the next attempt reads it again; if that fails too, see what is between "
            "here and the server",
        )
    flat = pa.py_buffer(np.ascontiguousarray(edges).reshape(-1))
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), edges.size - 1, [None, flat, pa.py_buffer(buffer)]
    )
    first = np.arange(len(starts), dtype=np.int64) * 2 * columns
    found = []
    for column, null in enumerate(nulls):
        places = pa.array(first + 2 * column, mask=null if null.any() else None)
        found.append(whole.take(places).cast(pa.binary()))
    return found


def _cell_lengths(
    data: npt.NDArray[np.uint8], at: Offsets
) -> tuple[Offsets, Offsets, npt.NDArray[np.bool_]]:
    """Return where each cell at ``at`` begins, its length, and whether it is null."""
    last = len(data) - 1
    lead = data[np.minimum(at, last)]
    length, begin = lead.astype(np.int64), at + 1
    null = lead == _NULL
    if (lead > _NULL).any():
        for mark, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
            wide = lead == mark
            if wide.any():
                where = at[wide] + 1
                number = np.zeros(len(where), np.int64)
                for byte in range(width):
                    number |= data[np.minimum(where + byte, last)].astype(np.int64) << 8 * byte
                length[wide] = number
                begin[wide] = where + width
    length[null] = 0
    return begin, length, null
