"""The frames of one micro-batch, as a ``foreachBatch`` function hands them over. Driver only. Made
by :meth:`onceward.engine.calls.foreach_batch.ForeachBatchSink.batch`; has the errors for ways in
which a sink or a block cannot be used."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Protocol

from pyspark.sql import DataFrame

from onceward.engine.target import Write
from onceward.errors import (
    ROWS_REFUSED,
    BatchFailed,
    InvalidColumn,
    OncewardError,
    UnsupportedQuery,
)


class WritingSink(Protocol):
    """What a block asks of its sink, a :class:`~.foreach_batch.ForeachBatchSink`."""

    place_word: ClassVar[str]

    def _checked_writes(self, frame: DataFrame, where: str | None) -> Sequence[Write]: ...

    def _write(self, frame: DataFrame, batch_id: int, writes: Sequence[Write]) -> None: ...

    def _fail(
        self, frame: DataFrame, batch_id: int, error: BaseException, writes: Sequence[Write] | None
    ) -> None: ...


class Batch:
    """The frames of one micro-batch, written and committed together when the ``with`` block ends.

    Made by ``ForeachBatchSink.batch``. Nothing is written when the block is left by an exception;
    a block without a :meth:`write` commits that the batch has no rows (its frame is computed where
    the query keeps state, from which the next batch goes on). Each frame is computed on its own,
    by a Spark job of its own: frames that share out the rows of a batch must do it by the rows'
    own values. What is drawn by chance or looked up, and what is costly to compute twice, is
    persisted until the block has ended; when an executor dies with a part of it, the batch runs
    again.
    """

    def __init__(self, sink: WritingSink, frame: DataFrame, batch_id: int) -> None:
        self._sink = sink
        self._frame = frame
        self._batch_id = batch_id
        self._writes: list[Write] | None = None
        self._refusal: BaseException | None = None
        self._lock = threading.Lock()

    def write(
        self, frame: DataFrame, *, topic: str | None = None, table: str | None = None
    ) -> None:
        """Hand over a frame. Its columns are checked now, its rows written when the block ends.

        :param topic: where it goes, instead of the sink's own topic or the column ``topic``.
        :param table: where it goes, of a sink that writes to tables.
        :raises InvalidColumn, InvalidTopicName: the frame cannot be written as it is.
        """
        where = topic if table is None else table
        block = self._writes
        writes: Sequence[Write] = [Write(frame, where)]
        refusal: BaseException | None = None
        try:
            self._check_word("topic", topic)
            self._check_word("table", table)
            writes = self._sink._checked_writes(frame, where)
        except BaseException as error:  # noqa: BLE001 — raised again below
            refusal = as_exception(error)
        # A thread of the function's may be late
        with self._lock:
            is_open = block is not None and block is self._writes
            if is_open:
                block.extend(writes)  # type: ignore[union-attr]
                # The function may keep it to itself; the block must not commit the other frames
                # as if they were all.
                self._refusal = refusal if self._refusal is None else self._refusal
        if not is_open:
            refusal = _misused(
                "batch.write() was called outside the with block, where nothing would be written"
            )
            self._sink._fail(self._frame, self._batch_id, refusal, writes)
        if refusal is not None:
            raise refusal

    def _check_word(self, word: str, value: str | None) -> None:
        its_word = self._sink.place_word
        if value is not None and word != its_word:
            raise UnsupportedQuery(
                f"batch.write(…, {word}={value!r}): {type(self._sink).__name__} has no {word}s",
                next_step=f"leave {word}= out"
                + (
                    f", or use {its_word}="
                    if its_word
                    else "; what goes where is for the rows to say"
                ),
            )

    def __enter__(self) -> Batch:
        with self._lock:
            if self._writes is not None:
                self._refusal = _misused(
                    "a with block of one batch was begun within another of the same batch"
                )
                raise self._refusal
            self._writes, self._refusal = [], None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            writes, self._writes = self._writes or [], None
        failure = self._refusal if error is None else as_exception(error)
        if failure is None:
            self._sink._write(self._frame, self._batch_id, writes)
            return
        # To an exception of its own the function may answer as it likes: with other frames, say.
        is_ours = self._refusal is not None or isinstance(error, OncewardError)
        self._sink._fail(self._frame, self._batch_id, failure, writes if is_ours else None)
        if failure is not error:
            raise failure from error


def as_exception(error: BaseException) -> BaseException:
    """Return ``error``, or an Exception in its place: at anything else Py4J's thread ends without
    an answer, for which the query would wait for ever. KeyboardInterrupt is for the process."""
    if isinstance(error, Exception | KeyboardInterrupt):
        return error
    return BatchFailed(
        f"{error!r} was raised in the batch, by a function or a method of the user's: it is no "
        "Exception, and would end Spark's thread without a word",
        next_step="catch it there, and raise an Exception in its place (SystemExit comes of "
        "sys.exit(), CancelledError of a task of asyncio that was cancelled, PanicException of a "
        "library in Rust); then start the query again, which settles the batch first",
    )


def _misused(message: str) -> UnsupportedQuery:
    return UnsupportedQuery(
        message,
        next_step="write `with sink.batch(frame, batch_id) as batch:` once and call "
        "batch.write(…) inside",
        details={ROWS_REFUSED: True},
    )


def must_be_a_frame(frame: object, more: str = "") -> None:
    """Raise InvalidColumn unless a Spark DataFrame was handed over."""
    if not isinstance(frame, DataFrame):
        raise InvalidColumn(
            f"a {type(frame).__name__} was handed over, not a Spark DataFrame",
            next_step=f"hand over a DataFrame of this batch{more}",
        )


TO_FOREACH = "the sink was handed to writeStream.foreach, which calls it in tasks, for each row"


class NotForTasks(UnsupportedQuery, pickle.PicklingError):
    """A sink in a task's closure. Spark passes on a ``PickleError`` with its own text only."""


def passed_wrongly(message: str, kind: str) -> NotForTasks:
    """Return the error for a sink that was passed to Spark in a way that cannot work."""
    return NotForTasks(
        f"{message}; {kind} takes whole micro-batches in the driver",
        next_step=f"hand a sink over by frame.writeStream.foreachBatch({kind}(…)) in a classic "
        "Spark session",
    )
