"""Which rows of a decided batch are delivered together. Values, but for the rows that are read.

The rows of a batch have an order: frame by frame as they were handed over, in a frame by the
partitions of its plan, in a partition as the plan gave them. A chunk is the next ``chunk_rows`` of
a frame. All that this hangs on (the files, their rows, ``chunk_rows``, and the attempt's name) is
in the ledger record, so that a chunk has the same key and the same rows at every start, whatever
the sink's settings are by then. Settings that say what the rows are to become are there, too: with
others they would become something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from onceward.delivery.row_files import Looked, RowFile
from onceward.engine.ledger.record import DELIVERED, LedgerRecord
from onceward.ids import AttemptId


@dataclass(frozen=True)
class Chunk:
    """Rows to deliver together, under a key of their own.

    ``key`` names the chunk for ever: it is the same whenever it is delivered again, and no other
    chunk of any pipeline has it. Up to 270 characters of ``a-z A-Z 0-9 . _ - @``, in a fan-out up
    to 331. ``number`` counts the chunks of the batch from 0, ``of`` is how many it has.
    ``sequence`` counts the batches of the pipeline, over all its checkpoints; ``first_row`` is the
    place of the first row in its batch: the pair grows from row to row that the pipeline delivers.
    ``attempt`` names what was decided: all chunks of the batch have it, and no other batch, not
    even one that has the same ``sequence`` in another ledger.
    """

    key: str
    number: int
    of: int
    batch_id: int
    sequence: int
    first_row: int
    attempt: str
    rows: pa.RecordBatch = field(repr=False, compare=False)

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return the rows, each as a dict by the names of its columns."""
        found: list[dict[str, Any]] = self.rows.to_pylist()
        return found


_NO_ROWS = pa.RecordBatch.from_pylist([], pa.schema([]))


class Gap(NamedTuple):
    """Rows that are lost and may be left out."""

    rows: int


class Delivery:
    """The chunks of one decided batch.

    :param output: what the ledger record says of it, as :func:`output` made it.
    :param branch: the sink's name in a fan-out, in which others deliver rows of the same attempt.
    """

    def __init__(
        self,
        record: LedgerRecord,
        output: Mapping[str, Any],
        names: Iterable[Any],
        branch: str = "",
    ) -> None:
        self._record = record
        self._branch = branch
        self._attempt = AttemptId(*output["attempt"])
        self._chunk_rows = int(output["chunk_rows"])
        self.settings: Mapping[str, Any] = output["settings"]
        """Of the sink when the batch was decided: those that say what its rows are to become."""
        self.delivered = int(output[DELIVERED])
        """So many chunks, as far as the ledger knows."""
        by_frame = groupby(
            sorted(map(RowFile.of, names), key=lambda file: file.frame), lambda file: file.frame
        )
        # sorted() is stable: in a frame as they were reported
        self._frames = [list(files) for _, files in by_frame]
        self._of = sum(self._chunk_count(files) for files in self._frames)

    @property
    def needed(self) -> list[RowFile]:
        """The files that have rows of chunks that are not known to be delivered."""
        skipped, found = self.delivered, []
        for files in self._frames:
            first = skipped * self._chunk_rows
            for file in files:
                if first < file.rows:
                    found.append(file)
                first = max(0, first - file.rows)
            skipped = max(0, skipped - self._chunk_count(files))
        return found

    def rest(self, folder: Path, looked: Mapping[RowFile, Looked]) -> Iterator[Chunk]:
        """Yield the chunks that are not known to be delivered, in order.

        One with all rows in damaged files has none; others of such files keep their places.

        :param looked: at all that are :attr:`needed`.
        """
        number, row = 0, 0
        for files in self._frames:
            of_frame = self._chunk_count(files)
            skipped = min(of_frame, max(0, self.delivered - number))
            pieces = _read(skipped * self._chunk_rows, files, folder, looked)
            for chunk, group in enumerate(_grouped(pieces, self._chunk_rows), skipped):
                found = [piece for piece in group if not isinstance(piece, Gap)]
                rows = _together(found) if found else _NO_ROWS
                yield self._chunk(number + chunk, row + chunk * self._chunk_rows, rows)
            number += of_frame
            row += sum(file.rows for file in files)

    def _chunk(self, number: int, first_row: int, rows: pa.RecordBatch) -> Chunk:
        record, (owner, attempt) = self._record, self._attempt
        name = f"{record.batch.query_id[:8]}-{record.batch.batch_id}-{owner}.{attempt}"
        name += f"-{self._branch}" if self._branch else ""
        key = f"{record.pipeline}@{name}-{number}"
        return Chunk(
            key, number, self._of, record.batch.batch_id, record.sequence, first_row, name, rows
        )

    def _chunk_count(self, files: Sequence[RowFile]) -> int:
        return -(-sum(file.rows for file in files) // self._chunk_rows)


def output_data(
    attempt: AttemptId, chunk_rows: int, settings: Mapping[str, Any]
) -> dict[str, Any]:
    """Return for the ledger record, beside the files, what a chunk's key and rows depend on, and
    what the rows are to become.

    The record's own attempt will not do: in Kafka it changes with each record of progress.

    :param settings: JSON values, by the names that users know.
    """
    return {
        "attempt": list(attempt),
        "chunk_rows": chunk_rows,
        "settings": dict(settings),
        DELIVERED: 0,
    }


Piece: TypeAlias = "pa.RecordBatch | Gap"


def _grouped(pieces: Iterable[Piece], rows: int) -> Iterator[list[Piece]]:
    """Yield ``pieces`` in groups of ``rows`` rows, the last one of what is left."""
    group: list[Piece] = []
    missing = rows
    for piece in pieces:
        start = 0
        while start < _size(piece):
            end = min(_size(piece), start + missing)
            group.append(_part(piece, start, end))
            start, missing = end, missing - (end - start)
            if not missing:
                yield group
                group, missing = [], rows
    if group:
        yield group


def _together(pieces: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    try:
        return pa.concat_batches(pieces)
    except pa.ArrowInvalid:
        # 2 GiB of a column's texts are more than its type can count, and the batch is decided
        schema = pieces[0].schema
        large = pa.schema([field.with_type(_large(field.type)) for field in schema])
        return pa.concat_batches([piece.cast(large) for piece in pieces])


def _large(kind: pa.DataType) -> pa.DataType:
    """Return the type of the same values with a length of 64 bits, inside as well."""
    kinds = pa.types
    if kinds.is_string(kind):
        return pa.large_string()
    if kinds.is_binary(kind):
        return pa.large_binary()
    if kinds.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if kinds.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_large(key.type)), item.with_type(_large(item.type)))
    if kinds.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    return kind


def _read(
    first: int, files: Sequence[RowFile], folder: Path, looked: Mapping[RowFile, Looked]
) -> Iterator[Piece]:
    """Yield the rows of ``files`` from number ``first`` on; one that ends before is not opened."""
    for file in files:
        if first >= file.rows:
            first -= file.rows
            continue
        found = looked[file]
        for piece in [Gap(file.rows)] if found.wrong else file.read(folder, found):
            if first < _size(piece):
                yield _part(piece, first, _size(piece))
            first = max(0, first - _size(piece))


def _size(piece: Piece) -> int:
    return int(piece.rows if isinstance(piece, Gap) else piece.num_rows)


def _part(piece: Piece, start: int, end: int) -> Piece:
    return Gap(end - start) if isinstance(piece, Gap) else piece.slice(start, end - start)
