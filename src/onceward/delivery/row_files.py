"""The rows of a task in a file: written by tasks, read by the driver once the batch is decided.

An Arrow IPC stream, compressed, whose name tells all that is known of it: who wrote it, for which
frame of the batch, how many rows and bytes it has, and their CRC-32C. So the name is the
committable, and a listing of the folder is ``recover()``. Until all of that is known the file has
another name, of which nothing can ever be decided.

The folder may lie on a file system that several machines share. No two tasks have the same name,
so nothing is asked of it but that what was synced stays, and that it can be opened by its name
from elsewhere afterwards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import crc32c
import pyarrow as pa

from onceward import patience
from onceward.durable import sync, sync_open
from onceward.engine.task_writer import Task, TaskWriter
from onceward.errors import (
    ConfigurationError,
    LedgerUnreadable,
    StoreUnreachable,
)

_NAME = re.compile(
    r"(?P<task>.+-(?P<frame>\d+)-\d+\.\d+)"
    r"\.(?P<rows>\d+)\.(?P<bytes>\d+)\.(?P<crc>[0-9a-f]{8})\.arrow"
)
_PART = ".part"
_NOTE = "@ledger"
"""Behind the folder's name; no pipeline's name has an ``@``."""
_BLOCK_BYTES = 1 << 20


class Looked(NamedTuple):
    """What was found when somebody looked at a file: ``wrong`` says in which way it is not as it
    was written (None: it is), ``sums`` are its CRC-32C up to the end of each of its blocks.
    """

    wrong: str | None
    sums: tuple[int, ...] = ()


class RowFile(NamedTuple):
    """A file that was written to its end. ``frame``: of the batch's frames which, from 0."""

    name: str
    frame: int
    rows: int
    bytes: int
    crc32c: int

    @staticmethod
    def of(name: Any) -> RowFile:
        """Parse a file's name. :raises LedgerUnreadable: it is none of ours."""
        found = _NAME.fullmatch(name) if isinstance(name, str) else None
        if found is None:
            raise LedgerUnreadable(
                f"{name!r} is no file of rows that this Onceward has written",
                next_step="start this pipeline with the release that wrote the ledger record",
            )
        return RowFile(
            name,
            int(found["frame"]),
            int(found["rows"]),
            int(found["bytes"]),
            int(found["crc"], 16),
        )

    def looked_at(self, folder: Path) -> Looked:
        """Read all of it, and return how it differs from what was written."""
        with reached(folder):
            try:
                with (folder / self.name).open("rb") as file:
                    found_bytes, found_crc, sums = 0, 0, []
                    while block := file.read(_BLOCK_BYTES):
                        patience.ask()
                        found_bytes += len(block)
                        found_crc = crc32c.crc32c(block, found_crc)
                        sums.append(found_crc)
            except FileNotFoundError:
                return Looked(f"{folder / self.name} (it is gone)")
        if (found_bytes, found_crc) != (self.bytes, self.crc32c):
            return Looked(
                f"{folder / self.name} (it has {found_bytes} bytes with checksum {found_crc:08x} "
                "now)"
            )
        return Looked(None, tuple(sums))

    def is_seen_in(self, folder: Path) -> bool:
        """Return whether the driver sees it, in its full length."""
        with reached(folder):
            try:
                return (folder / self.name).stat().st_size == self.bytes
            except FileNotFoundError:
                return False

    def read(self, folder: Path, looked: Looked) -> Iterator[pa.RecordBatch]:
        """Yield its rows, in their order. No row comes of a block that is not as it was when
        somebody :attr:`looked`.

        :raises StoreUnreachable: it is not what was written, although it was a moment ago.
        """
        rows = 0
        try:
            # Not mapped into memory: a file that is cut short meanwhile would then be a SIGBUS.
            with (
                reached(folder),
                (folder / self.name).open("rb") as file,
                pa.ipc.open_stream(
                    pa.PythonFile(_Compared(file, looked.sums), mode="r")
                ) as stream,
            ):
                for batch in stream:
                    rows += batch.num_rows
                    yield batch
        except (FileNotFoundError, pa.ArrowInvalid, _Changed) as error:
            if isinstance(error, FileNotFoundError):
                must_be_there(folder)
            raise self._lost(folder, str(error)) from error
        if rows != self.rows:
            raise self._lost(folder, f"it has {rows} rows")

    def _lost(self, folder: Path, how: str) -> StoreUnreachable:
        return StoreUnreachable(
            f"{folder / self.name} was as it had been written, and is not any more: {how}",
            next_step="find out what else writes to the store; start the query again, which looks "
            "at it anew",
        )


class _Changed(Exception):
    """A file is not what it was."""


class _Compared:
    """A file, as Arrow needs one, whose blocks are compared before any byte is handed on."""

    def __init__(self, file: BinaryIO, sums: tuple[int, ...]) -> None:
        self._file, self._sums = file, iter(sums)
        self._sum = 0
        self._block = memoryview(b"")

    @property
    def closed(self) -> bool:
        return self._file.closed

    def read(self, size: int) -> bytes:
        parts = []
        while size and (self._block or self._next_block()):
            parts.append(self._block[:size])
            self._block = self._block[size:]
            size -= len(parts[-1])
        return b"".join(parts)

    def _next_block(self) -> bool:
        block = self._file.read(_BLOCK_BYTES)
        self._sum = crc32c.crc32c(block, self._sum)
        if block and self._sum != next(self._sums, None):
            raise _Changed("its checksum is another one")
        self._block = memoryview(block)
        return bool(block)

    def close(self) -> None:
        """Do nothing: Arrow calls it when it forgets us, and the reader closes the file."""


class RowFileWriter(TaskWriter):
    """Writes the rows of one task attempt. A task without rows leaves no file.

    :param folder: the driver has made it.
    :param storable: returns rows as they are stored, and raises for such as must not be.
    """

    def __init__(
        self,
        folder: Path,
        task: Task,
        storable: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows,
    ) -> None:
        # The pipeline's name is the folder's already; together they could be too long for a file.
        self._folder, self._name = folder, task.name.partition("@")[2]
        self._path = folder / f"{self._name}{_PART}"
        self._storable = storable
        self._file: _Summing | None = None
        self._stream: Any = None
        self._rows = 0
        self._is_pre_committed = False

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows as one block of Arrow's stream format."""
        if rows.num_rows == 0:
            return
        rows = self._storable(rows)
        with reached(self._folder):
            if self._file is None:
                try:
                    self._file = _Summing(self._path.open("xb"))
                except FileNotFoundError as error:
                    raise _gone(self._folder) from error
                options = pa.ipc.IpcWriteOptions(compression="zstd")
                self._stream = pa.ipc.new_stream(
                    pa.PythonFile(self._file, mode="w"), rows.schema, options=options
                )
            self._stream.write_batch(rows)
        self._rows += rows.num_rows

    def pre_commit(self) -> str | None:
        """Close and sync the file, and return the name that it has then; None without rows."""
        if self._file is None:
            return None
        with reached(self._folder):
            self._stream.close()
            self._file.flush()
            sync_open(self._file.file.fileno())
            name = f"{self._name}.{self._rows}.{self._file.bytes}.{self._file.crc32c:08x}.arrow"
            self._path = self._path.rename(self._folder / name)
            # So that the name outlasts a power failure
            sync(self._folder)
        self._is_pre_committed = True
        return name

    def close(self) -> None:
        """Remove the file unless it was pre-committed."""
        if self._file is None:
            return
        if not self._is_pre_committed:
            # The next start of the query lists it, and drops it
            with suppress(OSError):
                self._path.unlink(missing_ok=True)
        # What is left in its buffer has no place on a full disk, and is of no use
        with suppress(OSError):
            self._file.file.close()


class _Summing:
    """A file that counts what is written to it, as far as Arrow needs one."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.bytes = 0
        self.crc32c = 0

    @property
    def closed(self) -> bool:
        return self.file.closed

    def write(self, data: bytes) -> int:
        self.file.write(data)
        self.bytes += len(data)
        self.crc32c = crc32c.crc32c(data, self.crc32c)
        return len(data)

    def flush(self) -> None:
        self.file.flush()

    def close(self) -> None:
        """Do nothing: Arrow calls it when it forgets us, and the writer closes the file."""


def listed(folder: Path) -> list[str]:
    """List the names of all that tasks have left in ``folder``, finished or not."""
    with reached(folder):
        try:
            return sorted(
                name
                for name in os.listdir(folder)
                if name.endswith(_PART) or _NAME.fullmatch(name)
            )
        except FileNotFoundError:
            return []


def not_shared(
    folder: Path, how: str, *, has_worked: bool
) -> ConfigurationError | StoreUnreachable:
    """Return the error for a folder that driver and executors do not share, or not any more."""
    return (StoreUnreachable if has_worked else ConfigurationError)(
        f"the store {folder} is not one folder for driver and executors: {how}",
        next_step="pass store=, a folder of a file system that all of them see under the same "
        "path",
    )


@contextmanager
def reached(folder: Path) -> Iterator[None]:
    """Add the folder's name to what goes wrong with files inside."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreUnreachable(
            f"the store {folder} cannot be used: {error}",
            next_step="make the folder readable and writable for driver and executors, and see "
            "that its disk has room",
        ) from error


def must_be_there(folder: Path) -> None:
    """Check that a store in which rows were put still is there: a disk that is not mounted leaves
    neither its folder nor its note. (Whoever removes old files removes the note alone.)

    :raises StoreUnreachable: it is not.
    """
    note = note_path(folder)
    with reached(folder.parent):
        if note.exists() or folder.is_dir():
            return
    raise _gone(folder)


def _gone(folder: Path) -> StoreUnreachable:
    return StoreUnreachable(
        f"{folder} is not there, though this pipeline has stored rows in it: its disk may not be "
        "mounted",
        next_step="mount it, for driver and executors under the same path; nothing was written in "
        "its place. A folder that was removed while it was empty is made again by the next start; "
        "where the store was emptied on purpose, pass another store=",
        details={"store": str(folder)},
    )


def note_path(folder: Path) -> Path:
    """Return the file that says whose store it is."""
    return folder.with_name(f"{folder.name}{_NOTE}")
