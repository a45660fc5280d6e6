"""What Spark calls of a resettable source: ``pyspark.sql.datasource.DataSourceStreamReader``.

All but ``read`` runs in a Python process that Spark keeps on the driver's machine for as long as
the query runs (``pyspark. sql.streaming.python_streaming_source_runner``); ``read`` runs in tasks.
Facts of Spark 4.0 to 4.2 that this rests on:

* At a start on a checkpoint that has offsets, ``partitions(x, x)`` comes first, with the newest
  ``x`` that is logged (``PythonMicroBatchStream.setLatestSeenOffset``). If its batch is not in the
  commit log, ``partitions(start, x)`` follows.
* What ``latestOffset`` returns is logged before its batch runs, and it is compared as text.
* ``partitions`` may be called more than once for a range, until ``commit`` of its end.

PySpark's ``SimpleDataSourceStreamReader`` would read on the driver, too. It is not used: its
wrapper keeps an entry for each call that found nothing, a hundred a second, until the next batch
comes; and rows that its cache has lost are read again in a task, without a comparison.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from onceward.custom.resettable.fitting import Fitting
from onceward.custom.resettable.offsets import (
    Offset,
    as_partition,
    copied,
    logged_position,
    position_text,
    same,
    shown,
)
from onceward.custom.resettable.ranges import Ranges, calling, must_go_forward
from onceward.errors import SourceContractViolated, UnsupportedQuery
from onceward.spark.batch.carried import Carrier

_PART_BYTES = 512 << 10
"""Rows travel inside their tasks, as Arrow. Spark warns of tasks above 1000 KiB
(TaskSetManager.TASK_SIZE_TO_WARN_KIB)."""

_MOST_ROWS = 1 << 31


class SourceReader(DataSourceStreamReader):
    """The common part of both kinds of source.

    :param starts_at: where a new query begins instead of at the source's own beginning: an offset
        as JSON.
    :param poll_seconds: a source that had nothing new is not asked again earlier.
    :param limit: rows of a range, at most.
    :param carrying: the driver's: inside, errors of ours get through Spark.
    """

    def __init__(
        self,
        source: Any,
        schema: StructType,
        starts_at: Any,
        poll_seconds: float,
        limit: int,
        carrying: Carrier,
    ) -> None:
        self.carrying = carrying
        self._source = source
        self._fitting = Fitting(schema)
        self._ranges = Ranges(source, self._fitting, limit)
        self._limit = limit
        self._starts_at = starts_at
        self._poll_seconds = poll_seconds
        self._end: Offset | None = None
        """Where the newest range ends that Spark knows."""
        self._planned = False
        self._idle_since: float | None = None
        self.until_none_is_left = False

    # Beside the driver

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 — PySpark's name
        """Return the offset at which the run began, at every call; Spark asks for its first batch,
        the ledger's admission, too."""
        with self.carrying():
            return self._beginning.to_json()

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 — PySpark's name
        """Return the end of the next range, whose rows are read or counted now; the newest end
        when there is none."""
        with self.carrying():
            return self.advance(self._end or self._beginning).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the rows of a range, in pieces."""
        with self.carrying():
            begins, ends = Offset.from_json(start), Offset.from_json(end)
            first, self._planned = not self._planned, True
            if start == end:
                if first:
                    self._newest_logged(ends)
                return []
            if ends.first or not (begins.first or same(begins.position, ends.begins)):
                raise SourceContractViolated(
                    f"Spark asks for the rows from {shown(begins.position)} to "
                    f"{shown(ends.position)}, which was logged as a range from "
                    f"{shown(ends.begins)}: the checkpoint was changed by hand, or "
                    "restored in part",
                    next_step="restore the newest checkpoint as a whole",
                )
            self._end = self._end or ends
            return self._partitions_for(ends)

    def commit(self, end: dict[str, Any]) -> None:
        """Forget what is before ``end``."""

    def _newest_logged(self, end: Offset) -> None:
        """Go on from ``end``, the newest in the checkpoint, at a start."""
        if self._end is not None and not end.first:
            # Spark has asked for a range before it said where the query stands, and will take that
            # for all there is.
            raise UnsupportedQuery(
                "trigger(availableNow=True) with "
                "spark.sql.streaming.triggerAvailableNowWrapper.enabled=true asks a source for "
                "its newest position before it says where the query stands",
                next_step="leave that setting at false, or start the query with another trigger, "
                "call processAllAvailable() and stop it",
            )
        self._end = end
        self._ranges.same_source(end)

    @cached_property
    def _beginning(self) -> Offset:
        if self._starts_at is None:
            return self._ranges.beginning()
        return Offset.from_json(self._starts_at)

    def advance(self, at: Offset) -> Offset:
        """Return the end of the range after ``at``; ``at`` itself when there is nothing new."""
        # Without a processing-time trigger Spark asks a hundred times a second
        # (spark.sql.streaming.pollingDelay).
        if self._idle_since is not None and not self.until_none_is_left:
            time.sleep(max(0.0, self._idle_since + self._poll_seconds - time.monotonic()))
        following = self._next_range(at)
        # Whoever asks whether all is read (processAllAvailable) gets an answer of now: the wait is
        # before the question.
        self._idle_since = time.monotonic() if following is None else None
        self._end = at if following is None else following
        return self._end

    # What the two kinds of source do each in their way

    def _next_range(self, at: Offset) -> Offset | None:
        raise NotImplementedError

    def _partitions_for(self, end: Offset) -> Sequence[InputPartition]:
        raise NotImplementedError


class RowsReader(SourceReader):
    """Of a ``ResettableSource``: rows are read here and travel inside the tasks, so that a task
    that runs again has the same rows, and only this process talks to the source.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._rows: dict[str, pa.Table] = {}
        """Of the ranges that Spark may ask for: the newest one, and the one before it until that
        is committed.
        """

    def commit(self, end: dict[str, Any]) -> None:
        """Drop the rows up to ``end``, which are not asked for again."""
        self._rows.pop(position_text(end), None)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the rows of a partition, which are in it: one Arrow stream. Runs in a task."""
        with pa.ipc.open_stream(partition.value) as stream:
            yield from stream

    def _next_range(self, at: Offset) -> Offset | None:
        following = self._ranges.following(at)
        if following is None:
            return None
        end, rows = following
        self._rows[position_text(end.to_json())] = rows
        return end

    def _partitions_for(self, end: Offset) -> Sequence[InputPartition]:
        key = position_text(end.to_json())
        # logged by an earlier run
        if key not in self._rows:
            self._rows[key] = self._ranges.again(end)
        return list(_pieces(self._rows[key]))


_END = object()
"""Of a partition's pieces."""


class PartsReader(SourceReader):
    """Of a ``PartitionedSource``: here ends and parts are named, and tasks read."""

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read the rows of a partition: what the source's ``partitions`` named, JSON. Runs in a
        task."""
        with self.carrying():
            pieces = self._pieces(copied(partition.value))
            while True:
                with calling(f"read_partition({shown(partition.value)})"):
                    piece = next(pieces, _END)
                    if piece is _END:
                        return
                    table = self._fitting.table(piece, _MOST_ROWS)
                yield from table.to_batches()

    def _pieces(self, part: Any) -> Iterator[Any]:
        """Yield what ``read_partition`` gives; of a source of ours a piece at a time, whose
        partitions may be larger than a task's memory."""
        if hasattr(self._source, "read_pieces"):
            yield from self._source.read_pieces(part)
        else:
            yield self._source.read_partition(part)

    def _next_range(self, at: Offset) -> Offset | None:
        self._ranges.same_source(at)
        with calling(f"advance({shown(at.position)}, {self._limit})"):
            answer = self._source.advance(copied(at.position), self._limit)
        after = logged_position(answer, f"advance({shown(at.position)}, {self._limit})")
        if same(after, at.position):
            return None
        must_go_forward(at, after, "advance")
        return Offset(after, at.position, identity=self._ranges.same_source(at), first=False)

    def _partitions_for(self, end: Offset) -> Sequence[InputPartition]:
        self._ranges.same_source(end)
        what = f"partitions({shown(end.begins)}, {shown(end.position)})"
        with calling(what):
            parts = self._source.partitions(copied(end.begins), copied(end.position))
            # One by one: a generator may give out one object again and again, changed in place.
            return [InputPartition(as_partition(part, what)) for part in parts]


def _pieces(table: pa.Table) -> Iterator[InputPartition]:
    rows = max(1, table.num_rows * _PART_BYTES // max(1, table.nbytes))
    for begin in range(0, table.num_rows, rows):
        sink = pa.BufferOutputStream()
        # One batch: chunks are as many as there were calls of read().
        piece = table.slice(begin, rows).combine_chunks()
        with pa.ipc.new_stream(sink, table.schema) as stream:
            stream.write_table(piece)
        yield InputPartition(sink.getvalue().to_pybytes())


def reader_class(base: type[Any]) -> type[Any]:
    """Return ``base`` as the Spark that runs this wants it.

    Since 4.2 the engine says where it stands, and has ``trigger(availableNow=True)`` run until
    nothing is left. On 4.0 and 4.1 that trigger runs one batch (SPARK-45178).
    """
    try:
        mixin = import_module("pyspark.sql.streaming.datasource").SupportsTriggerAvailableNow
    except (ImportError, AttributeError):
        return base
    methods = {
        "latestOffset": _latest_offset_after,
        "prepareForTriggerAvailableNow": _prepare_for_available_now,
    }
    return type(base.__name__, (base, mixin), methods)


def _latest_offset_after(
    reader: SourceReader, start: dict[str, Any], limit: object
) -> dict[str, Any]:
    """Return the end of the next range, within our limit: Spark asks for all there is when the
    trigger says *now*, and then asks again."""
    with reader.carrying():
        return reader.advance(Offset.from_json(start)).to_json()


def _prepare_for_available_now(reader: SourceReader) -> None:
    reader.until_none_is_left = True
