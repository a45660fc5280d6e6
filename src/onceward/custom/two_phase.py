"""``onceward.TwoPhaseCommitSink``: to subclass, for a target of one's own. Driver, and executor
tasks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, ClassVar, SupportsIndex

from pyspark.sql import DataFrame

from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import Checkpointing, SinkPolicy, must_be_decided
from onceward.engine.target import Target, Write
from onceward.engine.task_writer import Task, TaskWriter
from onceward.engine.two_phase import CommitResult, TwoPhaseTarget
from onceward.errors import ConfigurationError, LedgerUnreadable
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.spark.batch.carried import pickled, pickled_again, restore


class TwoPhaseCommitSink(ForeachBatchSink):
    """A callable for ``foreachBatch`` that writes each micro-batch exactly once to whatever a
    subclass writes to.

    In Flink's words: each task of the batch begins a transaction of its own, writes, and
    pre-commits; what it has prepared then (the *committable*) is named in the batch's ledger
    record, which is the decision. After it each committable is committed, and an attempt that was
    not decided is aborted. Source offsets are in the same ledger record, so that a batch is
    decided with its progress, or not at all.

    Guarantee: after any crash each committable of a decided batch is committed until
    :meth:`commit` says that it is done, before any later batch is decided; no committable of any
    other attempt ever is. Readers see a batch task by task while it is committed, unless the
    target makes all of it visible at once.

    What a subclass owes: :meth:`begin`, :meth:`commit`, :meth:`abort` and :meth:`recover`; that
    nothing is visible before :meth:`commit`, and that what :meth:`TaskWriter.pre_commit` has
    returned for outlives every process. The class and its attributes, as they are before its first
    batch, are pickled for the tasks: keep it in the job's own file or in a module that executors
    can import, and open connections in the methods, not before. What :meth:`commit`,
    :meth:`abort` and :meth:`recover` open and keep stays in the driver.

    :param pipeline_id: the stable name of this query: its key in the ledger. One running query per
        id; a second one takes over.
    :param ledger: where decisions are kept: ``ow.FolderLedger``, ``ow.DatabaseLedger``,
        ``ow.KafkaLedger``.
    :param resume: as for :class:`onceward.KafkaSink`. ``"skip_missing"`` also goes on without what
        :meth:`commit` calls lost of the batch that an earlier run has decided.
    :param skipped_batches: as for :class:`onceward.KafkaSink`.
    :param batch_attempts: how often one batch is tried before the query fails.
    :param batch_timeout_s: abort an attempt that runs longer, in seconds; None: no limit.
    :param checkpointing: what :func:`onceward.checkpointing` returns; sets ``batch_attempts`` and
        ``batch_timeout_s``, and the pause between batches.
    :param commit_timeout_s: how long committables are tried again without progress before the
        query fails with :class:`~onceward.errors.PublishIncomplete`; started again
        (``ow.supervise``) it goes on with them first.
    :raises ConfigurationError: any of these is wrong. Nothing is connected before the first batch.
    """

    committable_version: ClassVar[int] = 1
    """Raise it when the form of committables changes, and give :meth:`upgrade` for what the ledger
    may still hold.
    """

    def __init__(
        self,
        *,
        pipeline_id: str,
        ledger: Ledger,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        must_be_decided(ledger, commit_timeout_s)
        policy = SinkPolicy(
            checked_pipeline_id(pipeline_id),
            resume=resume,
            skipped_batches=skipped_batches,
            batch_attempts=batch_attempts,
            batch_timeout_s=batch_timeout_s,
            checkpointing=checkpointing,
        )
        before = set(vars(self))
        super().__init__(policy, ledger=ledger.where, settings=_BuiltAlike(self))
        self._ledger = ledger
        self._commit_timeout_s = commit_timeout_s
        self._as_built: tuple[dict[str, Any], bytes] | None = None
        self._of_the_engine = frozenset(vars(self)) - before | {"_of_the_engine"}

    @property
    def pipeline_id(self) -> str:
        """As it was given. Only in the driver."""
        return self._policy.pipeline

    @abstractmethod
    def begin(self, task: Task) -> TaskWriter:
        """Return the writer of a task's rows. Runs in the task.

        ``task.name`` is unique for all time: prepare everything under that name, so that no two
        attempts, of this task or of the batch, ever meet.
        """

    @abstractmethod
    def commit(self, committable: Any) -> CommitResult | None:
        """Make visible what a task has prepared. Runs in the driver, after the decision.

        Called again after a crash or a lost answer, and then for what may be done already: it must
        be idempotent.

        :param committable: what :meth:`TaskWriter.pre_commit` has returned, after a way through
            JSON.
        :returns: ``DONE`` (or None), ``ALREADY_DONE``, ``RETRY_LATER``, ``PROGRESS`` or ``LOST``.
            What it raises counts as ``RETRY_LATER``, but for an error of Onceward's that says
            *stop*.
        """

    @abstractmethod
    def abort(self, committable: Any) -> None:
        """Drop what a task has prepared, for it will never be committed. Runs in the driver.

        May be called twice, or not at all: what a crash leaves is for :meth:`recover`.
        """

    @abstractmethod
    def recover(self) -> Iterable[Any]:
        """List the committables of all that is prepared under this pipeline's names and not
        published, as they were returned (or as :meth:`upgrade` gives them).

        Runs in the driver at every start, before anything else, and once more after older copies
        of the pipeline are fenced. What was there both times and is not decided is aborted; what
        is decided is committed, and committed again where the newest batch is published already:
        by a place that was failed over, or restored, and has not heard of that. Empty where the
        place forgets by itself what was never committed.
        """

    def upgrade(self, committable: Any, version: int) -> Any:
        """Convert ``committable``, of an older :attr:`committable_version`, to the form of
        today.
        """
        raise LedgerUnreadable(
            f"the ledger has a committable of version {version}, and {type(self).__name__} "
            f"(version {self.committable_version}) has no upgrade() for it",
            next_step="start once with the code that wrote it, so that it is committed; or write "
            "upgrade()",
        )

    # the engine's side

    def _new_target(self, policy: SinkPolicy) -> Target:
        return TwoPhaseTarget(
            self,
            self._ledger.chain(policy.pipeline),
            policy,
            commit_timeout_s=self._commit_timeout_s,
        )

    def _begin_run(self) -> None:
        """Note what goes to the tasks of a new run, and what the sink was built with."""
        built_with, before = self._as_built or (self.__getstate__(), None)
        self._as_built = None
        now = pickled_again(
            self,
            "open connections in begin(), commit(), abort() and recover(), and not before; or "
            "leave the attribute out by __getstate__()",
            before,
        )
        self._as_built = (built_with, now)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        must_be_a_frame(frame)
        return Write(frame)

    def __getstate__(self) -> dict[str, Any]:
        """Return what tasks need: what the subclass has set. Settings, with their passwords, and
        runs stay in the driver."""
        return {
            name: value for name, value in vars(self).items() if name not in self._of_the_engine
        }

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Go to the tasks as before the first batch of the run: what the methods have opened since
        then stays in the driver."""
        as_built = vars(self).get("_as_built")
        return super().__reduce_ex__(protocol) if as_built is None else (restore, as_built[1:])

    def _construction(self) -> object:
        """Return what the subclass was built with: equal where two write the same to one place."""
        return self.__getstate__() if self._as_built is None else self._as_built[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pipeline_id={self._policy.pipeline!r})"


class _BuiltAlike:
    """Two sinks of a pipeline in one query are one where they write to the same place."""

    def __init__(self, sink: TwoPhaseCommitSink) -> None:
        self._sink = sink

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _BuiltAlike):
            return NotImplemented
        ours, theirs = self._sink, other._sink
        return (
            type(ours) is type(theirs)
            and (ours._policy, ours._commit_timeout_s)
            == (theirs._policy, theirs._commit_timeout_s)
            and _alike(ours._construction(), theirs._construction())
        )

    def __hash__(self) -> int:
        return hash(type(self._sink))


def _alike(one: object, other: object) -> bool:
    """Compare what two sinks were built with: by what it says of itself, or, as arrays and plain
    objects say nothing of the kind, by what the tasks would get."""
    with suppress(Exception):
        if one == other:
            return True
    with suppress(ConfigurationError):
        return pickled(one, "") == pickled(other, "")
    return False
