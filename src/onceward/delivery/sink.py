"""``onceward.WriteAheadSink``: what users build for ``foreachBatch``. Driver, executor tasks."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from onceward.custom.two_phase import TwoPhaseCommitSink
from onceward.delivery.row_files import RowFileWriter, listed, reached
from onceward.delivery.target import Deliver, WriteAheadTarget
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import Checkpointing, SinkPolicy, whole_number
from onceward.engine.target import Target, Write
from onceward.engine.task_writer import Task, TaskWriter
from onceward.engine.two_phase import CommitResult
from onceward.errors import ConfigurationError, InvalidColumn
from onceward.spark.files import local_folder


class WriteAheadSink(TwoPhaseCommitSink):
    """Delivers each micro-batch to a target without transactions: HTTP, mail, a queue.

    Tasks store their rows in files, in parallel. The batch is decided by its ledger record, with
    its source offsets. Then the driver calls ``deliver`` for one chunk of rows after the other,
    and counts each in the ledger.

    Guarantee: of a batch that is not decided nothing is delivered. Every row of a decided batch is
    delivered, before any later batch; rows of one partition of the plan come in its order. Each
    crash, or takeover by a newer copy, delivers at most one chunk a second time, under the same
    ``key``; a target that ignores a key which it knows shows every row exactly once. What cannot
    be delivered stops the query by name; nothing is skipped.

    Cost: the driver delivers alone, one chunk at a time, and appends to the ledger after each.

    :param deliver: called with an ``ow.delivery.Chunk`` in the driver, in the query's own thread.
        Returns None when the target has all of its rows. What it raises is tried again, with
        growing pauses, for ``commit_timeout_s``; but for :class:`onceward.errors.DeliveryRefused`,
        which says that no try will ever do, and stops the query. A time limit for a call that
        hangs is its own matter. If it is an object with a method ``close``, that is called when
        the query has ended.
    :param store: a folder that driver and executors see under the same path, for rows until they
        are delivered. It must outlast every process; it is made when it is missing. Each pipeline
        has a folder of its own in it.
    :param chunk_rows: how many rows are delivered together, at most. Of a batch that is decided it
        does not change.
    :param resume: as for :class:`onceward.KafkaSink`. ``"skip_missing"`` also leaves out the rows
        of files that are lost of the batch that an earlier run has decided.
    :param batch_timeout_s: abort an attempt that runs longer, in seconds; None: no limit.
        Delivering does not count.
    :param commit_timeout_s: how long one chunk is tried before the query fails with
        :class:`~onceward.errors.PublishIncomplete`; started again (``ow.supervise``) it goes on
        with that chunk.
    :param pipeline_id: this and all others as for :class:`onceward.TwoPhaseCommitSink`.
    :raises ConfigurationError: any of these is wrong. Nothing is connected before the first batch.
    """

    def __init__(
        self,
        *,
        deliver: Deliver,
        pipeline_id: str,
        ledger: Ledger,
        store: str | os.PathLike[str],
        chunk_rows: int = 1_000,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        super().__init__(
            pipeline_id=pipeline_id,
            ledger=ledger,
            resume=resume,
            skipped_batches=skipped_batches,
            batch_attempts=batch_attempts,
            batch_timeout_s=batch_timeout_s,
            checkpointing=checkpointing,
            commit_timeout_s=commit_timeout_s,
        )
        if not callable(deliver):
            raise ConfigurationError(
                f"deliver={deliver!r} cannot be called",
                next_step="pass a function that takes an ow.delivery.Chunk, and returns when the "
                "target has its rows",
            )
        whole_number("chunk_rows", chunk_rows, 1)
        self.deliver = deliver
        self.chunk_rows = chunk_rows
        self.folder = _store(store) / self._policy.pipeline
        """Of this pipeline, in the store."""

    # what tasks and the engine ask for

    def begin(self, task: Task) -> TaskWriter:
        """Open a file for the task's rows. Runs in the task."""
        return RowFileWriter(self.folder, task)

    def commit(self, committable: Any) -> CommitResult:
        """Remove a file of which all rows are delivered and counted. Runs in the driver."""
        return CommitResult.DONE if self._remove(committable) else CommitResult.ALREADY_DONE

    def abort(self, committable: Any) -> None:
        """Remove a file of which nothing will be delivered. Runs in the driver."""
        self._remove(committable)

    def recover(self) -> Iterable[Any]:
        """List all files that there are. Runs in the driver."""
        return listed(self.folder)

    def _remove(self, name: str) -> bool:
        with reached(self.folder):
            try:
                (self.folder / name).unlink()
            except FileNotFoundError:
                return False
        return True

    def _new_target(self, policy: SinkPolicy) -> Target:
        return WriteAheadTarget(self, policy)

    def _written_to(self) -> Mapping[str, Any] | None:
        """Return what tells the target from others of its name, as JSON; None: not known. It is in
        the ledger from the first chunk on."""
        return None

    def _check_place(self, then: Mapping[str, Any] | None) -> None:
        """Look, before a batch is decided, whether the target can be written to, and was ``then``.

        :raises OncewardError: it is not.
        :raises Exception: it cannot be asked now.
        """

    def _what_rows_become(self) -> dict[str, Any]:
        """Return the settings that decide what rows become, by name, as JSON has them.

        A batch that is decided is delivered by them alone. What ``deliver`` does nobody knows.
        """
        return {}

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        write = super()._checked(frame, where)
        twice = sorted({name for name in frame.columns if frame.columns.count(name) > 1})
        if twice:
            raise InvalidColumn(
                f"the frame has columns of the same name: {', '.join(map(repr, twice))}; of a row "
                "as a dict only one would be left",
                next_step="rename them, or select one of them",
            )
        return write

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need to store rows, without ``deliver``: it may hold connections."""
        return {"folder": self.folder}

    def _construction(self) -> object:
        return self.folder, self.chunk_rows, self.deliver


def _store(path: str | os.PathLike[str]) -> Path:
    if (folder := local_folder(path)) is None:
        raise ConfigurationError(
            f"store={path!r} names no folder of a disk, local or mounted",
            next_step="pass the path, or the URI (file:///…), of a folder that driver and "
            "executors see, on a disk that outlasts them, absolute where a name has a colon",
        )
    return Path(folder)
