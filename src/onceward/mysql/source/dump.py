"""A dump of a server's binlog: :class:`Dump`. Driver and tasks; called by
:func:`onceward.mysql.source.connection.open_dump`, which finds out the reason of a refusal.

Source: MySQL, ``sql/rpl_source.cc`` (``com_binlog_dump``, ``com_binlog_dump_gtid``) and
``sql/rpl_binlog_sender.cc``; MariaDB, ``sql/sql_repl.cc`` (``mysql_binlog_send``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onceward.errors import BinlogCorrupted, ServerMisconfigured, ServerUnreachable
from onceward.libraries import library
from onceward.mysql.binlog.event import SET_GTIDS, START_ANEW, BinlogEvent, Dialect
from onceward.mysql.binlog.framing import BLOCK_BYTES, DumpRefused, EventReader

_DUMP, _DUMP_GTID = 0x12, 0x1E
# flags of a dump
_NON_BLOCK, _ANNOTATIONS = 1, 2
_FAR = 1 << 32
# MARIA_SLAVE_CAPABILITY_GTID: send all as it stands in the file
_MARIADB_CAPABILITY = 4
_SECONDS = 60.0


class Dump:
    """The events of a server's binlog from ``position`` of ``file`` on, inside ``with``. The
    connection belongs to the dump from then on, and is closed behind it.

    :param connection: of PyMySQL, open, with nothing unread.
    :param seconds: how long the server may be silent before it counts as unreachable.
    :raises ServerMisconfigured: this server cannot be asked for ``position``.
    :raises ServerUnreachable: it does not answer.
    """

    def __init__(
        self, connection: Any, dialect: Dialect, file: str, position: int, *,
        seconds: float = _SECONDS, block_bytes: int = BLOCK_BYTES,
    ) -> None:  # fmt: skip
        self.reader = EventReader(dialect, file, position, block_bytes=block_bytes)
        """Its ``file`` and ``position`` are those of the next event."""
        # PyMySQL has no public call for a dump: its private parts are used here.
        self._connection = connection
        self._connection._read_timeout = seconds
        self._seconds = seconds

    def __enter__(self) -> Dump:
        try:
            self._request()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def blocks(
        self, file: str | None = None, position: int | None = None
    ) -> Iterator[list[BinlogEvent]]:
        """Yield the events before ``position`` of ``file`` in blocks; without it, all that the
        server has at this moment.

        :raises BinlogCorrupted: bytes are not what was written, or no event begins at that place.
        :raises ServerUnreachable: the server closed the connection.
        :raises DumpRefused: with an error.
        """
        reader = self.reader
        until = None if file is None or position is None else (file, position)
        block = reader.events(0, until)
        while True:
            if block:
                yield block
            if (reader.file, reader.position) == until:
                return
            if reader.end is not None:
                break
            count = self._receive(reader.space())
            block = reader.events(count, until)
        if isinstance(reader.end, BinlogCorrupted | DumpRefused):
            raise reader.end
        if until is not None:
            raise BinlogCorrupted(
                f"the server's binlog ends at {self._at()}, and was read up to {file}:{position} "
                "before",
                next_step="if the server lost what it had written (sync_binlog other than 1), "
                f"{START_ANEW}",
                details={"at": self._at()},
            )

    def _request(self) -> None:
        reader = self.reader
        # Changes are read as a sink takes them: the server's default, a minute, ends a dump for a
        # batch that stands still for longer, each time.
        self._query("SET SESSION net_write_timeout = 3600")
        # Without checksums the server strips them, and sizes no longer add up to positions. One of
        # the names is an older server's.
        for variable in ("@master_binlog_checksum", "@source_binlog_checksum"):
            self._query(f"SET {variable} = 'CRC32'")
        flags, name = _NON_BLOCK, reader.file.encode()
        if reader.dialect == "mariadb":
            # MariaDB withholds annotations unless asked for them, and rewrites events for a reader
            # that does not claim to be a MariaDB: either makes holes in the positions.
            self._query(f"SET @mariadb_slave_capability = {_MARIADB_CAPABILITY}")
            flags |= _ANNOTATIONS
        elif self._query("SELECT @@GLOBAL.gtid_mode") == ("ON",):
            # COM_BINLOG_DUMP has a position of 32 bits, this command one of 64: with an empty set
            # of GTIDs the file and position decide. Servers refuse it unless gtid_mode is ON. Id 0
            # of a reader never ends another one's dump.
            start = struct.pack("<HII", flags, 0, len(name)) + name
            self._send(_DUMP_GTID, start + struct.pack("<QIQ", reader.position, 8, 0))
            return
        if reader.position >= _FAR:
            at = self._at()
            raise ServerMisconfigured(
                f"{at} is beyond the first 4 GiB of a binlog, which this server cannot be asked "
                "for",
                next_step=f"{SET_GTIDS}, or let no transaction be that large; then {START_ANEW}"
                if reader.dialect == "mysql"
                else "MariaDB's protocol has no word for it: let no transaction be that large, "
                f"then {START_ANEW}",
                details={"at": at},
            )
        self._send(_DUMP, struct.pack("<IHI", reader.position, flags, 0) + name)

    def _at(self) -> str:
        return f"{self.reader.file}:{self.reader.position}"

    def _query(self, statement: str) -> tuple[Any, ...] | None:
        with self._driver_errors(), self._connection.cursor() as cursor:
            cursor.execute(statement)
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row

    def _send(self, command: int, body: bytes) -> None:
        with self._driver_errors():
            self._connection._execute_command(command, body)
            self._connection._sock.settimeout(self._seconds)

    def _receive(self, space: memoryview) -> int:
        """Receive at least a byte into ``space``. PyMySQL's own buffer is empty by then."""
        with self._driver_errors():
            count: int = self._connection._sock.recv_into(space)
        if count == 0:
            raise self._unreachable_error("it closed the connection")
        return count

    def _close(self) -> None:
        """Close without COM_QUIT: the server is still streaming."""
        self._connection._force_close()

    @contextmanager
    def _driver_errors(self) -> Iterator[None]:
        errors = library("changes of a MySQL or MariaDB need PyMySQL", "mysql", "pymysql").err
        try:
            yield
        except TimeoutError:
            raise self._unreachable_error(f"nothing came for {self._seconds:g} seconds") from None
        except OSError as error:
            raise self._unreachable_error(str(error)) from error
        except errors.InterfaceError as error:
            raise self._unreachable_error("the connection is closed") from error
        except errors.MySQLError as error:
            code, text = (*error.args, 0, "")[:2]
            refusal = DumpRefused(int(code) if isinstance(code, int) else 0, str(text))
            if not 1000 <= refusal.code < 2000:  # PyMySQL's own words
                raise self._unreachable_error(str(refusal)) from error
            raise refusal from error

    def _unreachable_error(self, why: str) -> ServerUnreachable:
        at = self._at()
        return ServerUnreachable(
            f"the server did not go on sending its binlog at {at}: {why}",
            next_step="see whether it runs; the query goes on from there when it is started again",
            details={"at": at},
        )
