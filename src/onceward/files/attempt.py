"""One batch into files: a Spark job for each frame, all into one hidden folder. Driver only; made
by :mod:`target`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from onceward import events
from onceward.engine.ledger.chain import Chain, takeover_error
from onceward.engine.policy import SinkPolicy
from onceward.engine.spark_jobs import SparkJobsAttempt
from onceward.engine.target import Write, event_ids
from onceward.errors import ConfigurationError, ReportMismatch
from onceward.files.columns import kept
from onceward.files.publishing import Publisher
from onceward.files.rolling import Rolling
from onceward.ids import AttemptId
from onceward.spark.batch.computation import Computation
from onceward.spark.batch.query import RunningBatch
from onceward.spark.files import file_writer
from onceward.spark.files.file_writer import WrittenFiles

KIND = "files"
"""Of a ledger record's output: ``{"version": …, "format": …, "committables": [at most one]}``,
whose form is :class:`~onceward.files.committable.Committable`.
"""


class FileAttempt(SparkJobsAttempt):
    """See the module.

    :param folder: of the attempt, by its name.
    """

    committable_version: ClassVar[int] = Publisher.committable_version

    def __init__(
        self,
        publisher: Publisher,
        rolling: Rolling,
        chain: Chain,
        policy: SinkPolicy,
        attempt_id: AttemptId,
        folder: str,
        sequence: int,
        computation: Computation,
    ) -> None:
        super().__init__(KIND, chain, policy, attempt_id, folder, sequence, computation)
        self._publisher = publisher
        self._rolling = rolling
        self._how = rolling.how
        self._written: list[WrittenFiles] = []

    def write(self, write: Write, running: RunningBatch) -> int:
        with events.step(events.SEND, **event_ids(self._policy.pipeline, running), **self.ids):
            if self._how.name == "csv":
                self._publisher.must_have(kept(write.frame.columns, self._how.partition_by))
            written = file_writer.write(
                write.frame,
                self._publisher.opened(self._name, self._sequence),
                self._rolling.told(write.frame),
                self._computation,
                self._limit.passed,
            )
            self._written.append(written)
        self._rows += written.rows
        return written.rows

    def _committable(self) -> dict[str, Any]:
        try:
            return self._publisher.prepare(self._name, self._sequence, self._written).as_told()
        except (ConfigurationError, ReportMismatch) as error:
            # A newer copy may have put its batch there, or have dropped ours: then it is for
            # Fenced to say so.
            newest = self._chain.newest()
            if newest is not None and newest.sequence >= self._sequence:
                raise takeover_error(
                    self._policy.pipeline, f"the ledger, which has {newest.batch}"
                ) from error
            raise

    def _extra_data(self) -> Mapping[str, Any]:
        return {"format": self._how.name, "root": self._publisher.files.root}

    def _summary(self, committables: Sequence[Mapping[str, Any]]) -> str:
        return (
            f"in {sum(len(committable['files']) for committable in committables)} files of "
            f"{self.id}"
        )

    def _drop(self) -> None:
        self._publisher.abort({"folder": self._name})
