"""The conversation in which a server sends its binlog: :class:`Dump`. Driver and tasks; called by
:func:`onceward.mysql.source.connection.reading`, which asks the server what a refusal means.

What is not obvious:

* COM_BINLOG_DUMP has a position of 32 bits, and MySQL's COM_BINLOG_DUMP_GTID one of 64, also where
  an empty set of GTIDs comes with the name of a file, which then decides. Servers whose
  ``gtid_mode`` is not ON refuse that one.
* Two readers with the same server id end each other; id 0 never does, and any number may read at
  once.
* Checksums are always asked for: without, the server strips them, and sizes no longer add up to
  positions.
* MariaDB withholds annotations (kind 160) unless asked for them, and rewrites events for a reader
  that does not claim to be a MariaDB: either makes holes in the positions.

PyMySQL has no word for any of this: its private ``_execute_command``, ``_sock``, ``_read_timeout``
and ``_force_close`` are used in :class:`_Conversation`.

Source: MySQL, ``sql/rpl_source.cc`` (``com_binlog_dump``, ``com_binlog_dump_gtid``) and
``sql/rpl_binlog_sender.cc``; MariaDB, ``sql/sql_repl.cc`` (``mysql_binlog_send``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from onceward.errors import BinlogDamaged, ServerUnfit, ServerUnreachable
from onceward.libraries import library
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.framing import BLOCK_BYTES, EventReader, ServerError
from onceward.mysql.binlog.kinds import Dialect

_DUMP, _DUMP_GTID = 0x12, 0x1E
_NON_BLOCK, _ANNOTATIONS = 1, 2  # flags of a dump
_FAR = 1 << 32
_MARIADB_CAPABILITY = 4  # MARIA_SLAVE_CAPABILITY_GTID: send all as it stands in the file
_SECONDS = 60.0


class Refused(Exception):
    """The server's own words in the place of an event, or of an answer. What they mean is not read
    off their text.
    """

    def __init__(self, said: ServerError) -> None:
        super().__init__(f"{said.code}, {said.text}")
        self.code, self.text = said.code, said.text.rstrip(".")


class Dump:
    """Inside ``with``, the events of a server's binlog from ``position`` of ``file`` on. The
    connection is the dump's from then on, and closed behind it.

    :param connection: of PyMySQL, open, with nothing unread.
    :param verify: check each event's checksum.
    :param seconds: how long the server may say nothing before it is called unreachable.
    :raises ServerUnfit: ``position`` is beyond what this server can be asked for.
    :raises ServerUnreachable: it does not answer.
    """

    def __init__(
        self, connection: Any, dialect: Dialect, file: str, position: int, *,
        verify: bool = True, seconds: float = _SECONDS, block_bytes: int = BLOCK_BYTES,
    ) -> None:  # fmt: skip
        self.reader = EventReader(dialect, file, position, verify=verify, block_bytes=block_bytes)
        """Its ``file`` and ``position`` say where the next event is."""
        self._conversation = _Conversation(connection, seconds)

    def __enter__(self) -> Dump:
        try:
            self._ask()
        except BaseException:
            self._conversation.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._conversation.close()

    def until(self, file: str | None = None, position: int | None = None) -> Iterator[Event]:
        """The events before ``position`` of ``file``; without, all that the server has at this
        moment.

        :raises BinlogDamaged: bytes are not what was written, or no event begins at that place.
        :raises ServerUnreachable: the server ended the conversation. :raises Refused: with words
            of its own.
        """
        for block in self.blocks(file, position):
            yield from block

    def blocks(
        self, file: str | None = None, position: int | None = None
    ) -> Iterator[list[Event]]:
        """The same, as many at a time as came at once: cheaper by a function call for each."""
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
            received = self._conversation.receive(reader.space(), self._at())
            block = reader.events(received, until)
        if isinstance(reader.end, BinlogDamaged):
            raise reader.end
        if isinstance(reader.end, ServerError):
            raise Refused(reader.end)
        if until is not None:
            raise BinlogDamaged(
                f"the server's binlog ends at {self._at()}, and was read up to {file}:{position} "
                f"before",
                next_step="if the server lost what it had written (sync_binlog other than 1), "
                "start from a new "
                "checkpoint, with a snapshot",
                details={"at": self._at()},
            )

    def _ask(self) -> None:
        say, reader = self._conversation, self.reader
        at = self._at()
        for variable in (
            "@master_binlog_checksum",
            "@source_binlog_checksum",
        ):  # one name is an older server's
            say.query(f"SET {variable} = 'CRC32'", at)
        flags, name = _NON_BLOCK, reader.file.encode()
        if reader.dialect == "mariadb":
            say.query(f"SET @mariadb_slave_capability = {_MARIADB_CAPABILITY}", at)
            flags |= _ANNOTATIONS
        elif say.query("SELECT @@GLOBAL.gtid_mode", at) == ("ON",):
            start = struct.pack("<HII", flags, 0, len(name)) + name
            say.send(_DUMP_GTID, start + struct.pack("<QIQ", reader.position, 8, 0), at)
            return
        if reader.position >= _FAR:
            raise ServerUnfit(
                f"{at} is beyond the first 4 GiB of a binlog, which this server cannot be asked "
                f"for",
                next_step="set gtid_mode=ON, or let no transaction be that large; then start from "
                "a new checkpoint, "
                "with a snapshot"
                if reader.dialect == "mysql"
                else "MariaDB's protocol has no word for it: let no transaction be that large, "
                "then start from a new "
                "checkpoint, with a snapshot",
                details={"at": at},
            )
        say.send(_DUMP, struct.pack("<IHI", reader.position, flags, 0) + name, at)

    def _at(self) -> str:
        return f"{self.reader.file}:{self.reader.position}"


class _Conversation:
    """PyMySQL's connection, and what is private of it."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection = connection
        self._connection._read_timeout = (
            seconds  # of its own reading, which may have been without an end
        )
        self._seconds = seconds

    def query(self, statement: str, at: str) -> tuple[Any, ...] | None:
        with self._named(at), self._connection.cursor() as cursor:
            cursor.execute(statement)
            row: tuple[Any, ...] | None = cursor.fetchone()
            return row

    def send(self, command: int, body: bytes, at: str) -> None:
        with self._named(at):
            self._connection._execute_command(command, body)
            self._connection._sock.settimeout(self._seconds)

    def receive(self, space: memoryview, at: str) -> int:
        """What has come is in ``space``: at least a byte. The connection's own buffer is empty: a
        server that was asked for nothing says nothing.
        """
        with self._named(at):
            received: int = self._connection._sock.recv_into(space)
        if received == 0:
            raise _unreachable("it closed the connection", at)
        return received

    def close(self) -> None:
        """Without a farewell: the server is in the middle of a sentence."""
        self._connection._force_close()

    @contextmanager
    def _named(self, at: str) -> Iterator[None]:
        errors = library("changes of a MySQL or MariaDB need PyMySQL", "mysql", "pymysql").err
        try:
            yield
        except TimeoutError:
            raise _unreachable(f"nothing came for {self._seconds:g} seconds", at) from None
        except OSError as error:
            raise _unreachable(str(error), at) from error
        except errors.InterfaceError as error:
            raise _unreachable("the connection is closed", at) from error
        except errors.MySQLError as error:
            code, text = (*error.args, 0, "")[:2]
            said = ServerError(int(code) if isinstance(code, int) else 0, str(text))
            if not 1000 <= said.code < 2000:  # PyMySQL's own words
                raise _unreachable(f"{said.code}, {said.text}", at) from error
            raise Refused(said) from error


def _unreachable(why: str, at: str) -> ServerUnreachable:
    return ServerUnreachable(
        f"the server did not go on sending its binlog at {at}: {why}",
        next_step="see whether it runs; the query goes on from there when it is started again",
        details={"at": at},
    )
