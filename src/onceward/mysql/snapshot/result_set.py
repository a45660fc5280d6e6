"""The rows of a query as the server sends them, as Arrow columns of bytes, a block at a time.
Tasks; called by :mod:`as_of`.

PyMySQL makes a Python object of each value, a microsecond each. Here Python looks at each row's
length only; the cells of a block are found column by column, for all rows at once. The server
sends as fast as it is read, and no faster, so that memory is a block, however many rows there are.

PyMySQL has no word for that: its private ``_execute_command``, ``_read_packet``, ``_rfile`` and
``_sock`` are used here.

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
from onceward.libraries import library

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
    """What ``statement`` gives: blocks of columns, each an array of bytes, null where the value
    is.

    The connection must not be used for anything else before the last block has come; whoever stops
    earlier closes it.

    :raises pymysql.err.MySQLError: the server refuses it, or breaks off.
    :raises ServerUnreachable: it ended the connection.
    """
    connection._execute_command(_QUERY, statement)
    columns = connection._read_packet().read_length_encoded_integer()
    for _ in range(columns + 1):  # their definitions, and the packet that ends them
        connection._read_packet()
    # What its buffer holds comes first; behind it the socket is read without one.
    packets = _RowPackets(
        connection._rfile.read1(io.DEFAULT_BUFFER_SIZE), connection._sock, block_bytes
    )
    while (block := packets.block()) is not None:
        starts, stops = block
        yield _split_columns(packets.buffer, starts, stops, columns)
    if packets.refusal is not None:
        library(
            "a snapshot of a MySQL or MariaDB needs PyMySQL", "mysql", "pymysql"
        ).err.raise_mysql_exception(packets.refusal)


class _RowPackets:
    """Where rows lie in what was received. Each call of :meth:`block` is one buffer, read until it
    is full or the rows are over: as long as their end has not come, the server has more to say.
    """

    def __init__(self, data: bytes, socket: Any, block_bytes: int) -> None:
        self._socket = socket
        self._block_bytes = block_bytes
        self._rest = data
        """Received, and no whole row."""
        self._over = False
        self.buffer = bytearray()
        """Of the newest block."""
        self.refusal: bytes | None = None
        """The server's, in the place of the next row."""

    def block(self) -> tuple[Offsets, Offsets] | None:
        """Where the rows of the next block begin and end in :attr:`buffer`, one at least; None
        behind the last one.
        """
        buffer, fill, at = bytearray(self._block_bytes), len(self._rest), 0
        if fill > len(buffer) // 2:
            buffer = bytearray(2 * fill)
        buffer[:fill] = self._rest
        starts: list[int] = []
        stops: list[int] = []
        while not self._over:
            begin, end = at + _HEADER, at + _HEADER
            if begin <= fill:
                length = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
                if length == _FULL_PACKET:
                    if starts:
                        break  # a row of several packets is a block of its own
                    return self._long_row(buffer[:fill])
                end += length
                if end <= fill:
                    first = buffer[begin] if length else 0
                    if (first == _EIGHT and length < _MOST_IN_EOF) or first == _REFUSAL:
                        self._over = True
                        self.refusal = bytes(buffer[begin:end]) if first == _REFUSAL else None
                        break
                    starts.append(begin)
                    stops.append(end)
                    at = end
                    continue
            if fill == len(buffer) or end > len(buffer):
                if starts:
                    break
                buffer += bytes(max(end - len(buffer), 0) + self._block_bytes)
            fill += self._receive(memoryview(buffer)[fill:])
        self._rest, self.buffer = bytes(memoryview(buffer)[at:fill]), buffer
        return (np.array(starts, np.int64), np.array(stops, np.int64)) if starts else None

    def _receive(self, space: memoryview) -> int:
        try:
            count: int = self._socket.recv_into(space)
        except OSError as error:  # also a patience that is over
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
        """The first row, which is in several packets, without their headers."""
        row = bytearray()
        length = _FULL_PACKET
        while length == _FULL_PACKET:
            for need in (
                _HEADER,
                _HEADER + _FULL_PACKET,
            ):  # the header says how much the second time
                if need > _HEADER:
                    length = int.from_bytes(data[:3], "little")
                    need = _HEADER + length
                if (have := len(data)) < need:
                    data += bytes(need - have)
                    while have < need:
                        with memoryview(data) as whole:
                            have += self._receive(whole[have:])
            row += memoryview(data)[_HEADER : _HEADER + length]
            data = data[_HEADER + length :]
        self._rest, self.buffer = bytes(data), row
        return np.array([0], np.int64), np.array([len(row)], np.int64)


def _split_columns(
    buffer: bytearray, starts: Offsets, stops: Offsets, columns: int
) -> list[pa.Array]:
    """The values of rows that lie in ``buffer``: cell k of all rows at once, then the next."""
    data = np.frombuffer(buffer, np.uint8)
    last = len(data) - 1
    at = starts
    # Cells and the gaps between them are one array of bytes over the buffer, of which each column
    # takes its own.
    edges = np.empty((len(starts), 2 * columns), np.int64)
    nulls: list[npt.NDArray[np.bool_]] = []
    for column in range(columns):
        lead = data[np.minimum(at, last)]
        length, behind = lead.astype(np.int64), at + 1
        null = lead == _NULL
        wide = lead > _NULL
        if wide.any():
            for mark, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
                of = lead == mark
                if of.any():
                    where = at[of] + 1
                    number = np.zeros(len(where), np.int64)
                    for byte in range(width):
                        number |= data[np.minimum(where + byte, last)].astype(np.int64) << 8 * byte
                    length[of] = number
                    behind[of] = where + width
        length[null] = 0
        at = behind + length
        edges[:, 2 * column], edges[:, 2 * column + 1] = behind, at
        nulls.append(null)
    if (at != stops).any():
        raise ServerUnreachable(
            "a row of the snapshot does not have the bytes that it says",
            next_step="the next attempt reads it again; if that fails too, see what is between "
            "here and the server",
        )
    whole = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        edges.size - 1,
        [None, pa.py_buffer(np.ascontiguousarray(edges).reshape(-1)), pa.py_buffer(buffer)],
    )
    first = np.arange(len(starts), dtype=np.int64) * 2 * columns
    found = []
    for column in range(columns):
        places = pa.array(first + 2 * column, mask=nulls[column] if nulls[column].any() else None)
        found.append(whole.take(places).cast(pa.binary()))
    return found
