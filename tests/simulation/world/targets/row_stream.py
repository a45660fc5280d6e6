"""In the place of Arrow's streams, for files of rows: the same calls, and simulated rows in
them.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from simulation.spark.frames import Rows

_LENGTH_BYTES = 4


class StreamInvalid(Exception):
    """As ``pyarrow.ArrowInvalid``."""


class _Writer:
    __slots__ = ("_file",)

    def __init__(self, file: Any) -> None:
        self._file = file

    def write_batch(self, rows: Rows) -> None:
        data = marshal.dumps((rows.batch_id, rows.computation, list(rows)))
        self._file.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)

    def close(self) -> None:
        self._file.write(bytes(_LENGTH_BYTES))


class _Reader:
    __slots__ = ("_file",)

    def __init__(self, file: Any) -> None:
        self._file = file

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """Whoever opened the file closes it."""

    def __iter__(self) -> Iterator[Rows]:
        while True:
            length = int.from_bytes(self._read(_LENGTH_BYTES), "big")
            if not length:
                return
            batch_id, computation, rows = marshal.loads(self._read(length))  # noqa: S302 — written above
            yield Rows(rows, batch_id, computation)

    def _read(self, size: int) -> bytes:
        data: bytes = self._file.read(size)
        if len(data) < size:
            raise StreamInvalid("the stream ends in between")
        return data


def _concatenated(parts: list[Rows]) -> Rows:
    whole = Rows(parts[0], parts[0].batch_id, parts[0].computation)
    for part in parts[1:]:
        whole.extend(part)
    return whole


PYARROW = SimpleNamespace(
    ArrowInvalid=StreamInvalid,
    PythonFile=lambda file, mode: file,
    concat_batches=_concatenated,
    ipc=SimpleNamespace(
        IpcWriteOptions=lambda compression: None,
        new_stream=lambda file, schema, options: _Writer(file),
        open_stream=_Reader,
    ),
)
