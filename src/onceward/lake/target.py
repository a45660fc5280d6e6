"""The side of a pipeline that writes to a table of a lake: a two-phase target whose tasks are
Spark's own. Driver only.

Called by ``engine.micro_batch``; the order of things is :mod:`onceward.engine.two_phase`'s. A
batch is a :class:`LakeAttempt`: a Spark job for each frame, none of which readers see. Prepared in
the table, whose format is a :class:`LakeTable`, it is published by one commit.

That commit says which batch it brings, by the ledger's identity and the batch's number there. So
it is known of every batch whether the table has it, however old that is and whatever became of the
ledger record's state since; and if two copies of a pipeline publish the same batch at once, the
format itself lets one of them through.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from pyspark.sql import DataFrame

from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import SinkPolicy, must_be_decided
from onceward.engine.spark_jobs import SparkJobsAttempt
from onceward.engine.target import Write, run_again_after
from onceward.engine.two_phase import CommitResult, MarkedTarget
from onceward.errors import (
    ConfigurationError,
    LedgerBehind,
    LedgerUnreadable,
    PreparedDataLost,
    ReportMismatch,
    TargetUnreachable,
)
from onceward.ids import AttemptId, PipelineId
from onceward.spark.batch import job
from onceward.spark.batch.query import RunningBatch

log = logging.getLogger(__name__)

_LATEST = "latest"
"""In an output's data: :class:`Latest`; not there if nothing is known."""


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """The settings of a sink for a table of a lake, checked when it is built, immutable.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    ledger: Ledger
    table: str | None
    path: str | None
    commit_timeout_s: float

    def __post_init__(self) -> None:
        must_be_decided(self.ledger, self.commit_timeout_s)
        for name, value in (("table", self.table), ("path", self.path)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigurationError(
                    f"{name}={value!r} names no table", next_step="pass its name as text"
                )


class Staged(NamedTuple):
    """What one job has written: how many rows, and where, as JSON has it; into which table (its
    name or path under ``table``), and what tells whether it is still the same.
    """

    rows: int
    what: Sequence[Any]
    table: Mapping[str, Any]


class Latest(NamedTuple):
    """The newest batch with rows that went into a table, as ledger records have it from then on:
    its number in the ledger, and the table, by what the sink calls it and by its id.
    """

    place: str
    table_id: str
    sequence: int


def concatenated(staged: Sequence[Staged]) -> list[Any]:
    """Return what several jobs have staged."""
    return [what for one in staged for what in one.what]


class LakeTable(ABC):
    """One table, to one pipeline; the committer of its :class:`LakeTarget`.

    A committable is ``{"table": …, "attempt": its name, "chain": the ledger's identity, "branch":
    the sink's name in a fan-out, "sequence": in the ledger, "staged": [of all jobs]}``, and what a
    format needs besides. Of one that was never decided less is known.
    """

    kind: ClassVar[str]
    """Of a ledger record's output."""
    committable_version: ClassVar[int] = 1

    def __init__(self, pipeline: PipelineId, place: str) -> None:
        self._pipeline = pipeline
        self.place = place
        """Its name or path, as the sink has it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Which no other table has, also none that is made in its place."""

    @abstractmethod
    def check(self) -> None:
        """Check session and table, before another owner is fenced.

        :raises ConfigurationError: the session, or the table, is not fit.
        :raises TableMissing: there is none.
        """

    def look_anew(self) -> None:  # noqa: B027
        """Look at the start of a batch what the name of the table means by now."""

    @abstractmethod
    def newest(self) -> dict[str, int]:
        """Return the newest batch's number of each ledger (its identity) whose batches of this
        pipeline the table has.

        Whichever of a fan-out's sinks has brought it.
        """

    @abstractmethod
    def newest_batch(self, chain: str, branch: str) -> int:
        """Return the number of the newest batch that the table has of one sink; -1: of none."""

    def _warn_of_lost_commits(self, why: str, instead: str) -> None:
        """Say in the log that one commit may replace another, whose rows are then lost."""
        log.warning(
            "%s: %s. Of two commits at once, the sink's and another Spark driver's (maintenance, "
            "say), one may replace the other, without an error: a batch is lost, or what the "
            "other has done. Let nobody else commit while the query runs, or %s",
            self,
            why,
            instead,
        )

    @abstractmethod
    def fitting(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` as it can be staged.

        :raises InvalidColumn: it cannot.
        """

    @abstractmethod
    def stage(self, frame: DataFrame, name: str, number: int) -> Staged:
        """Write ``frame`` by one job, the ``number``-th of the attempt ``name``."""

    @abstractmethod
    def missing(self, staged: Sequence[Any]) -> list[str]:
        """List what is gone of what was staged: files, snapshots."""

    @abstractmethod
    def commit(self, committable: Mapping[str, Any]) -> CommitResult:
        """Publish, if it is not published already."""

    @abstractmethod
    def abort(self, committable: Mapping[str, Any]) -> None:
        """Drop what was staged and not decided."""

    @abstractmethod
    def recover(self) -> list[dict[str, Any]]:
        """List the pipeline's attempts of which something is staged, where the format can tell."""

    def begin(self, task: Any) -> Any:
        """Raise: Spark's own tasks write."""
        raise NotImplementedError

    def upgrade(self, committable: Any, version: int) -> Any:
        """Raise: there is no older form."""
        raise LedgerUnreadable(f"version {version} of staged tables is unknown")


class LakeAttempt(SparkJobsAttempt):
    """One batch into a table: a Spark job for each frame, none of which readers see.

    :param latest: what the table has of the batches before.
    """

    target: LakeTarget

    def __init__(
        self,
        target: LakeTarget,
        attempt_id: AttemptId,
        newest: LedgerRecord | None,
        latest: Latest | None,
    ) -> None:
        super().__init__(target, attempt_id, newest)
        self._table = target._table
        self._latest = latest
        self._staged: list[Staged] = []

    @run_again_after(TargetUnreachable)
    def write(self, write: Write, running: RunningBatch) -> int:
        return super().write(write, running)

    def _written(self, write: Write, running: RunningBatch) -> int:
        frame = self._table.fitting(write.frame)
        with self._computation.read_once(frame):
            with job.watched(frame, self._limit.passed):
                staged = self._table.stage(frame, self._name, len(self._staged))
                self._staged.append(staged)
            self._computation.counts(frame)
        return staged.rows

    @run_again_after(TargetUnreachable)
    def _committable(self) -> dict[str, Any]:
        table, of_table, staged = self._table, self._staged[0].table, concatenated(self._staged)
        if any(one.table != of_table for one in self._staged):
            raise ReportMismatch(
                f"{table} was changed while a batch was written",
                next_step="nothing, the batch runs again",
            )
        # 1. A task closes its file, or a job stages its snapshot; 2. somebody's VACUUM,
        # remove_orphan_files or expire_snapshots takes it for left over, while others still
        # write; 3. the batch is decided, and readers miss it, for good.
        if missing := table.missing(staged):
            raise ReportMismatch(
                f"parts of a batch into {table} are gone before it was decided ({len(missing)}): "
                f"{', '.join(missing[:10])}",
                next_step="nothing, the batch runs again; if it repeats, let whoever cleans up "
                "the table (VACUUM, remove_orphan_files, expire_snapshots) leave alone what is "
                "not older than a batch takes",
            )
        batch = {
            "attempt": self._name,
            "chain": self.target.identity,
            "branch": self.target.branch,
            "sequence": self._sequence,
            "staged": staged,
        }
        return {**of_table, **batch}

    def _summary(self, committables: Sequence[Any]) -> str:
        return f"as {self._name}"

    def _extra_data(self) -> Mapping[str, Any]:
        latest = self._latest
        if self._rows:
            table_id = str(self._staged[0].table["id"])
            latest = Latest(self._table.place, table_id, self._sequence)
        return {} if latest is None else {_LATEST: latest._asdict()}

    def _drop(self) -> None:
        staged, self._staged = self._staged, []
        self._table.abort({"attempt": self._name, "staged": concatenated(staged)})


class LakeTarget(MarkedTarget):
    """One run of a query, writing to one table."""

    def __init__(self, settings: LakeSettings, table: LakeTable) -> None:
        policy = settings.policy
        chain = settings.ledger.chain(policy.pipeline)
        super().__init__(table, chain, policy, commit_timeout_s=settings.commit_timeout_s)
        self._ledger = f"the ledger {settings.ledger.where}"
        self.kind = table.kind
        self._table = table
        # The newest batch of earlier runs; None: table and ledger are yet to be compared
        self._inherited_last: int | None = None

    def list_prepared(self) -> list[Any]:
        self._table.check()
        return super().list_prepared()

    def must_be_of_this_chain(self) -> None:
        super().must_be_of_this_chain()
        others = [one for one in self._table.newest() if one != self.identity]
        if others:
            raise ConfigurationError(
                f"{self._table} has batches of pipeline {self._policy.pipeline} that another "
                f"ledger (with the identity {others[0]}) has decided than {self._ledger} "
                f"({self.identity}); numbers of the one mean nothing in the other",
                next_step="use the ledger that the pipeline has had: of an ow.FolderLedger the "
                "file `identity` in the pipeline's folder says which it is; or, if it shall begin "
                "anew, another pipeline_id",
            )

    @run_again_after(TargetUnreachable)
    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> LakeAttempt:
        last = -1 if newest is None else newest.sequence
        self._table.look_anew()
        if self._inherited_last is None:
            # Once a run, before anything is decided: afterwards nobody but us can decide
            self._must_not_be_ahead(last)
            self._inherited_last = last
        return LakeAttempt(self, attempt_id, newest, self._latest(newest))

    def _must_not_be_ahead(self, last: int) -> None:
        """Check that the ledger, which ends with number ``last``, knows the table's batches.

        :raises LedgerBehind: the table has one that this ledger knows nothing of. Batches that are
            decided again under its number would be taken for it.
        """
        found = self._table.newest().get(self.identity, -1)
        if found > last:
            # a newer copy may have published its batch there: then this raises Fenced
            self.chain.newest()
            raise LedgerBehind(
                f"{self._table} has batch number {found} of pipeline {self._policy.pipeline}, and "
                f"{self._ledger} ends with {last if last >= 0 else 'none'}: it has lost records, "
                "or was put back from an older copy",
                next_step="put the ledger back as it was; if that is gone, go on under another "
                "pipeline_id, from where the table ends",
            )

    def _latest(self, newest: LedgerRecord | None) -> Latest | None:
        """Return what the table has of the batches up to ``newest``, for the next record.

        :raises PreparedDataLost: it has lost some, and none may be left out.
        """
        output = None if newest is None else newest.outputs.get(self.kind)
        if newest is None or output is None or _LATEST not in output.data:
            return None
        latest = Latest(**output.data[_LATEST])
        found = self._table.newest_batch(self.identity, self.branch)
        if found >= latest.sequence:
            return latest
        # one that forgets its writers says so
        self._table.check()
        place, table_id = self._table.place, self._table.id
        if table_id != latest.table_id and place != latest.place:
            # the sink was pointed at another table
            return latest
        lost = self._lost_error(latest, found, table_id)
        # whoever has gone on without them may be a newer copy: then this raises Fenced
        self.chain.newest()
        # only of what is lost before this run, somebody has said that it may be
        if self._policy.resume != "skip_missing" or newest.sequence != self._inherited_last:
            raise lost
        log.warning("%s: left out: %s", self._policy.pipeline, lost.message)
        return Latest(place, table_id, found)

    def _lost_error(self, latest: Latest, found: int, table_id: str) -> PreparedDataLost:
        """Return the error for a table that was put back from an older copy, or made anew: batches
        are gone, and the next one would be appended over the hole."""
        pipeline = self._policy.pipeline
        ends, first, last = f"batch number {found}", found + 1, latest.sequence
        anew = f", or another one has its name (its id was {latest.table_id}, and is {table_id})"
        return PreparedDataLost(
            f"{self._table} ends with {ends if found >= 0 else 'no batch'} of pipeline "
            f"{pipeline}, and the ledger has published number {last} into it: "
            f"{f'numbers {first} to {last} are' if first < last else f'number {last} is'} gone, "
            "as far as they had rows; it was put back from an older copy, or made anew"
            f"{anew if table_id != latest.table_id else ''}",
            next_step="put the table back as it was; to go on without these batches, start once "
            'with resume="skip_missing"',
            details={"pipeline": pipeline, "first_missing": first, "last_missing": last},
        )

    def _must_not_be_lost(self, lost: Sequence[Any], record: LedgerRecord) -> LedgerRecord:
        record = super()._must_not_be_lost(lost, record)
        if not lost:
            return record
        # It is left out: the next start is not to look for it
        output = record.outputs[self.kind]
        found = self._table.newest_batch(self.identity, self.branch)
        latest = Latest(self._table.place, self._table.id, found)._asdict()
        data = {**output.data, _LATEST: latest}
        return replace(record, outputs={self.kind: replace(output, data=data)})

    def _name_of(self, recovered: Any) -> str:
        return str(recovered["attempt"])

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        return [{"attempt": committable["attempt"]} for committable in self._committables(record)]
