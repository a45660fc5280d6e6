"""One batch into files: a Spark job for each frame, all into one hidden folder. Driver only; made by :mod:`target`."""

from __future__ import annotations

import logging

from onceward import events
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Attempt, Prepared, Write, ids_of
from onceward.engine.time_limit import TimeLimit
from onceward.errors import ConfigurationError, ReportMismatch
from onceward.ids import AttemptId
from onceward.ledger.chain import Chain
from onceward.ledger.record import LedgerRecord, Output, State
from onceward.sinks.files.columns import kept
from onceward.sinks.files.publishing import Committable, Publisher
from onceward.spark import file_writer
from onceward.spark.computation import Computation
from onceward.spark.file_writer import FileFormat, Written
from onceward.spark.query import RunningBatch

log = logging.getLogger(__name__)

KIND = "files"
"""Of a ledger record's output: ``{"version": …, "format": …, "committables": [at most one]}``, whose form is
:class:`~onceward.sinks.files.publishing.Committable`."""

FORMAT = 1


class FileAttempt(Attempt):
    """See the module."""

    def __init__(
        self,
        publisher: Publisher,
        how: FileFormat,
        chain: Chain,
        policy: SinkPolicy,
        attempt_id: AttemptId,
        branch: str,
        sequence: int,
        computation: Computation,
    ) -> None:
        self.id = attempt_id
        self._publisher = publisher
        self._how = how
        self._chain = chain
        self._policy = policy
        self._sequence = sequence
        self._computation = computation
        self._limit = TimeLimit(policy)
        self._folder = publisher.folder(policy.pipeline, attempt_id, branch)
        self._written: list[Written] = []

    def write(self, write: Write, running: RunningBatch) -> int:
        with events.step(events.SEND, **ids_of(self._policy.pipeline, running), **self.ids):
            if self._how.name == "csv":
                self._publisher.must_have(kept(write.frame.columns, self._how.partition_by))
            written = file_writer.write(
                write.frame, self._publisher.uri(self._folder), self._how, self._computation, self._limit.passed
            )
            self._written.append(written)
        return written.rows

    def prepared(self) -> Prepared:
        self._computation.must_be_one()
        rows = sum(written.rows for written in self._written)
        committables = []
        if rows:
            committables = [self._files()._asdict()]
        else:  # Spark has made a file of a schema without rows, for which nobody has asked
            self._drop()
        files = sum(len(committable["files"]) for committable in committables)
        data = {"version": Publisher.committable_version, "format": self._how.name, "committables": committables}
        return Prepared(
            {KIND: Output(KIND, FORMAT, rows, data)},
            f"in {files} files of {self.id}",
            State.DECIDED if committables else State.FINISHED,
        )

    def _files(self) -> Committable:
        try:
            place = self._publisher.free_place(self._policy.pipeline, self._sequence)
            return self._publisher.prepare(self._folder, place, self._written)
        except (ConfigurationError, ReportMismatch):
            # A newer copy may have put its batch there, or have dropped ours: then this raises Fenced, which is true.
            self._chain.newest()
            raise

    def stage(self, record: LedgerRecord, running: RunningBatch) -> None:
        if record.sequence != self._sequence:  # the folder has that number in its name
            raise ReportMismatch(f"{self.id} was prepared as number {self._sequence}, not as {record.sequence}")
        super().stage(record, running)

    def commit(self) -> None:
        self._chain.append(self.record)

    def abort(self) -> None:
        self._drop()
        self._chain.abort()

    def _drop(self) -> None:
        """What cannot be dropped now, the next start finds."""
        try:
            self._publisher.abort({"folder": self._folder})
        except Exception as error:  # noqa: BLE001 — see above
            log.warning("%s: %s could not be dropped: %r", self._policy.pipeline, self._folder, error)
