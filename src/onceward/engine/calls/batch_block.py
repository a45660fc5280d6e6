"""The frames of one micro-batch, as a ``foreachBatch`` function hands them over. Driver only.

Made by :meth:`onceward.engine.calls.foreach_batch.ForeachBatchSink.batch`, and the ways in which
it cannot be used.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from pyspark.sql import DataFrame

from onceward.engine.target import Write
from onceward.errors import ROWS_REFUSED, OncewardError, UnsupportedQuery


class Sink(Protocol):
    """What a block asks of its sink:
    :class:`onceward.engine.calls.foreach_batch.ForeachBatchSink`.
    """

    def _must_have(self, word: str, value: str | None) -> None: ...

    def _checked_writes(self, frame: DataFrame, where: str | None) -> Sequence[Write]: ...

    def _write(self, frame: DataFrame, batch_id: int, writes: Sequence[Write]) -> None: ...

    def _gave_up(
        self, frame: DataFrame, batch_id: int, error: BaseException, writes: Sequence[Write] | None
    ) -> None: ...


class Batch:
    """The frames of one micro-batch, written and committed together when the ``with`` block ends.

    Made by ``ForeachBatchSink.batch``. Nothing is written when the block is left by an exception;
    a block without a :meth:`write` commits that the batch has no rows. Each frame is computed on
    its own, by a Spark job of its own: frames that share out the rows of a batch must do it by the
    rows' own values. What is drawn by chance or looked up, and what is costly to compute twice, is
    persisted until the block has ended; when an executor dies with a part of it, the batch runs
    again.
    """

    def __init__(self, sink: Sink, frame: DataFrame, batch_id: int) -> None:
        self._sink = sink
        self._frame = frame
        self._batch_id = batch_id
        self._writes: list[Write] | None = None
        self._refused: BaseException | None = None
        self._lock = threading.Lock()

    def write(
        self, frame: DataFrame, *, topic: str | None = None, table: str | None = None
    ) -> None:
        """Hand over a frame; its columns are checked at once, its rows are written when the block
        ends.

        :param topic: where it goes, instead of the sink's own topic or the column ``topic``.
        :param table: the same of a sink that writes to tables.
        :raises BadColumn, InvalidTopicName: the frame cannot be written as it is.
        """
        where = topic if table is None else table
        handed: Sequence[Write] = [Write(frame, where)]
        writes = self._writes
        refused: BaseException | None = None
        try:
            self._sink._must_have("topic", topic)
            self._sink._must_have("table", table)
            handed = self._sink._checked_writes(frame, where)
        except BaseException as error:  # noqa: BLE001 — whatever it is: raised again below
            refused = error
        with self._lock:  # a thread of the function's may be late
            inside = writes is not None and writes is self._writes
            if writes is not None and inside:
                writes.extend(handed)
                # The function may keep it to itself; the block shall not commit the other frames
                # as if they were all.
                self._refused = refused if self._refused is None else self._refused
        if not inside:
            refused = _misused(
                "batch.write() was called outside the with block, where nothing would be written"
            )
            self._sink._gave_up(self._frame, self._batch_id, refused, handed)
        if refused is not None:
            raise refused

    def __enter__(self) -> Batch:
        with self._lock:
            if self._writes is not None:
                self._refused = _misused(
                    "a with block of one batch was begun within another of the same batch"
                )
                raise self._refused
            self._writes, self._refused = [], None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            writes, self._writes = self._writes or [], None
        failed = self._refused if error is None else error
        if failed is None:
            self._sink._write(self._frame, self._batch_id, writes)
            return
        # What the function itself has raised, it may answer as it likes: with other frames, say.
        handed = writes if self._refused is not None or isinstance(error, OncewardError) else None
        self._sink._gave_up(self._frame, self._batch_id, failed, handed)
        if error is None:
            raise failed


def _misused(what: str) -> UnsupportedQuery:
    return UnsupportedQuery(
        what,
        next_step="write `with sink.batch(frame, batch_id) as batch:` once and call "
        "batch.write(…) inside",
        details={ROWS_REFUSED: True},
    )


TO_FOREACH = "the sink was handed to writeStream.foreach, which calls it in tasks, for each row"


class NotForTasks(UnsupportedQuery, pickle.PicklingError):
    """Spark passes on what is a ``PickleError``; any other error it would put into words of its
    own.
    """


def handed_over_wrongly(what: str, kind: str) -> NotForTasks:
    return NotForTasks(
        f"{what}; {kind} takes whole micro-batches in the driver",
        next_step=f"hand a sink over by frame.writeStream.foreachBatch({kind}(…)) in a classic "
        f"Spark session",
    )
