"""The object that users hand to ``foreachBatch``, and the way back to its typed errors. Driver
only. Spark calls the sink once per micro-batch on the query's own thread, or a function of the
user's does. Sinks subclass it and know how to write; when, and whether, is decided in
``engine.micro_batch``."""

from __future__ import annotations

import functools
import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from onceward import events, patience, surroundings
from onceward.engine import decoding, target
from onceward.engine.calls import gate, runs
from onceward.engine.calls.advice import paragraph
from onceward.engine.calls.batch import TO_FOREACH, Batch, as_exception, passed_wrongly
from onceward.engine.calls.runs import SinkRuns
from onceward.engine.ending import Ending
from onceward.engine.ledger.chain import LedgerPlace
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import SinkPlace, Target, Write
from onceward.errors import (
    Fenced,
    OncewardError,
    Recovery,
    SourceDataLost,
    UnsupportedQuery,
)
from onceward.ids import BatchId
from onceward.spark.batch import progress
from onceward.spark.batch.checkpoint_files import PLAN_ANEW
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.query import (
    RunningBatch,
    current_run_id,
    is_being_stopped,
    running_batch,
)
from onceward.spark.batch.write_errors import source_refusal

log = logging.getLogger(__name__)

_ASK_MS, _LATE_S = 10_000, 1.0
# By id: a sink of the user's may have no hash
_living: WeakValueDictionary[int, ForeachBatchSink] = WeakValueDictionary()
_Sink = TypeVar("_Sink", bound="ForeachBatchSink")


class ForeachBatchSink(ABC):
    """A callable for ``DataStreamWriter.foreachBatch``. One sink object belongs to one query; a
    second one that is given it while the first runs is refused. When a query is started again in
    the same process, the new run takes the sink over and fences what the old one left behind.

    :param ledger: has the chain of batches that the sink continues, which in one run of a query
        has one owner.
    :param settings: of the sink; two sinks with one chain must have equal ones.
    """

    is_atomic: bool = False
    """Whether the target's own commit is the decision; else it is the ledger's."""

    writes_to: SinkPlace | None = None
    """The place, where it is known: two sinks whose places meet would conflict in one batch."""

    place_word: ClassVar[str] = ""
    """What a frame may be sent to, as :meth:`Batch.write` calls it."""

    def __new__(cls: type[_Sink], *arguments: object, **_: object) -> _Sink:
        """Make a sink; refuse to be called with a batch in the place of one."""
        if arguments and isinstance(arguments[0], (DataFrame, Row)):
            what = f"the class {cls.__name__} was handed to Spark, and not a sink built of it"
            raise _remembered(passed_wrongly(what, cls.__name__), arguments[0])
        return super().__new__(cls)

    def __init__(self, policy: SinkPolicy, *, ledger: LedgerPlace, settings: object) -> None:
        self._policy = policy
        self._where = (ledger, policy.pipeline)
        self._built_with = settings
        self._runs = SinkRuns(policy, settings, self.new_target)
        self._checked_run = ""
        _living[id(self)] = self

    def __getstate__(self) -> Any:
        """Refuse to be sent to tasks, as ``writeStream.foreach`` would."""
        raise passed_wrongly(TO_FOREACH, type(self).__name__)

    def new_target(self, policy: SinkPolicy | None = None) -> Target:
        """Return the target of a new run, as the engine drives it; for contract tests, too."""
        self._begin_run()
        return self._new_target(policy or self._policy)

    def _begin_run(self) -> None:  # noqa: B027 — most sinks are as they were built
        """Note what is to hold for the run that begins."""

    @abstractmethod
    def _new_target(self, policy: SinkPolicy) -> Target:
        """Return a fresh target, which goes by ``policy``: of a run, or of who only looks."""

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        """Return the write of a frame, if it can be written. Called as it is handed over."""
        return Write(frame, where)

    def _checked_writes(self, frame: DataFrame, where: str | None) -> Sequence[Write]:
        """Return the writes of a frame that goes to several places."""
        return [self._checked(frame, where)]

    def _dead_letters(self, frame: DataFrame) -> Write:
        """Return the write of what a format could not read (``DecodingStep.dead_letters``)."""
        raise UnsupportedQuery(
            f"the query sets records aside that it cannot read, and {type(self).__name__} has no "
            "place for them",
            next_step='write to Kafka with ow.KafkaSink(…, dead_letter_topic="…"), or let such a '
            'sink decide in an ow.FanOut; or use on_error="stop"',
        )

    def __call__(self, frame: DataFrame, batch_id: int = -1) -> None:
        """Write one micro-batch of one frame exactly once. Called by Spark or your own function.
        :raises OncewardError: the batch is not written; :func:`error_of` finds it behind Spark's
        own exception."""
        with self.batch(frame, batch_id) as batch:
            batch.write(frame)

    def batch(self, frame: DataFrame, batch_id: int) -> Batch:
        """Begin several frames of one batch in one transaction, in your own ``foreachBatch``.

        ::

            def write(frame, batch_id):
                with sink.batch(frame, batch_id) as batch:
                    batch.write(frame.where("amount > 0"))
                    batch.write(frame.where("amount <= 0"), topic="rejected")

        :param frame: the frame that Spark gave to the function; :param batch_id: its number.
        """
        here = inspect.currentframe()
        caller = here.f_back if here is not None else None
        module = str(caller.f_globals.get("__name__")) if caller is not None else ""
        if module.partition(".")[0] == "pyspark":
            # Spark would take the block that nobody begins for a batch that is done.
            what = "the sink's method batch was handed to foreachBatch, which would write nothing"
            raise _remembered(passed_wrongly(what, type(self).__name__), frame)
        if not isinstance(batch_id, int) or batch_id < 0:
            numberless = UnsupportedQuery(
                f"the sink was called without the number of the batch (batch_id={batch_id!r})",
                next_step="call it in a function that was given to foreachBatch, not to foreach, "
                "with both of that function's arguments: sink(frame, batch_id)",
            )
            raise _remembered(numberless, frame, batch_id)
        return Batch(self, frame, batch_id)

    def close(self) -> None:
        """Give back connections and threads; the next batch opens them again. Nothing is aborted.
        Happens by itself, within seconds, when the query fails or ends."""
        self._runs.close()

    def _write(self, frame: DataFrame, batch_id: int, writes: Sequence[Write]) -> None:
        """Write a block's frames. A typed error is remembered on its way through Spark."""
        with events.batch(pipeline=self._policy.pipeline, batch_id=batch_id) as under_way:
            steps: tuple[decoding.DecodingStep, ...] = ()
            try:
                gate.wait(frame, batch_id, self._policy.min_pause_s)
                running = running_batch(frame, batch_id)
                under_way.ids["query_id"] = running.batch.query_id
                gate.begin(running.run_id, batch_id)
                if running.run_id != self._checked_run:
                    progress.remember(frame, running.run_id)
                    self._checked_run = running.run_id
                steps = decoding.find_steps(frame, running.run_id)
                with patience.asking(Ending(lambda: is_being_stopped(frame))):
                    writes = [*writes, *self._set_aside(steps, frame)]
                    self._process(frame, writes, running)
            except BaseException as met:
                error = _error_at_end(met, steps, frame)
                self._fail(frame, batch_id, error, writes)
                log.debug(
                    "%s: batch %s is not written", self._policy.pipeline, batch_id, exc_info=met
                )
                if not isinstance(error, OncewardError | JobInterrupted):
                    raise
                # Spark prints what is raised here three times, with all that led to it, and looks
                # through all of the text. The error has it in a paragraph; its cause is logged.
                raise error.with_traceback(None) from None
            gate.end(running.run_id, batch_id)
            memory = runs.memory(runs.RunKey(running.run_id, self._where))
            # That of an earlier try ended no query
            memory.error, memory.is_logged = None, False

    def _process(self, frame: DataFrame, writes: Sequence[Write], running: RunningBatch) -> None:
        self._runs.process(self._where, frame, writes, running)

    def _set_aside(self, steps: Sequence[decoding.DecodingStep], frame: DataFrame) -> list[Write]:
        """Return the dead letters of the batch, which come behind the frames of the function."""
        for step in steps:
            step.before_batch()
        asides = [step for step in steps if step.sets_aside]
        return [self._dead_letters(decoding.take_dead_letters(frame, step)) for step in asides]

    def newest_record(self, *, certain: bool = False) -> LedgerRecord | None:
        """Return the ledger's newest record, disturbing no copy; None: none, or not certain, for
        which ``certain`` waits. :raises LedgerUndecided: in vain."""
        with closing(self._new_target(self._policy)) as target:
            return target.chain.read() if certain else target.peek()

    def _has_committed(self, error: OncewardError) -> bool | None:
        """Return whether the ledger has a batch of the pipeline, as behind a crash before the
        first one is in Spark's log, or with a new checkpoint; None: not known, or not asked for.
        """
        if error.recovery is not Recovery.RESTART_IF_WORKED or not self._policy.has_ledger:
            return None
        try:
            with patience.within(_ASK_MS):
                found = self.newest_record(certain=True)
        except Exception as unknown:  # noqa: BLE001 — the first error is the one to report
            log.debug("%s: whether it has worked is not known: %r", self._policy.pipeline, unknown)
            return None
        # What was decided first may never have been taken by its target
        return found is not None and found.was_taken

    def _fail(
        self, frame: DataFrame, batch_id: int, error: BaseException, writes: Sequence[Write] | None
    ) -> None:
        """Remember why the batch is not written, for :func:`error_of` and for later batches.
        :param writes: the frames of the call, if no others may take their place."""
        if isinstance(error, OncewardError):
            # Spark runs a batch once the one before it is in its log of commits.
            error.worked_before = batch_id > 0 or self._has_committed(error)
        pipeline = self._policy.pipeline
        try:
            run_id = current_run_id(frame)
            memory = runs.memory(runs.RunKey(run_id, self._where))
            memory.fail(error)
            if is_being_stopped(frame):
                next_step = "start the query again, which settles it first."
                log.warning("%s: stopped in batch %d. Next: %s", pipeline, batch_id, next_step)
            else:
                log.error(
                    "%s: batch %d is not written: %s (onceward status --pipeline-id %s)",
                    pipeline,
                    batch_id,
                    paragraph(error),
                    f"{pipeline} {self._where[0].options}".rstrip(),
                )
                memory.is_logged = True
                ids = {**events.batch_ids(), "pipeline": pipeline, "batch_id": batch_id}
                events.announce(events.FAIL, ids, error)
            runs.note_run(frame, run_id)
            self._record_failure(frame, batch_id, error, writes, run_id)
        except Exception as also:  # noqa: BLE001 — the first error is the one to report
            log.error(
                "%s: no file could be left beside the checkpoint that batch %s failed (%s). Next: "
                "let the sink's errors leave the function; one that keeps them to itself, and "
                "ends before its next batch, has left this batch out",
                pipeline,
                batch_id,
                also,
            )

    def _record_failure(
        self,
        frame: DataFrame,
        batch_id: int,
        error: BaseException,
        writes: Sequence[Write] | None,
        run_id: str,
    ) -> None:
        """Keep in mind, for later batches, that a call for the batch has failed."""
        memory = runs.memory(runs.RunKey(run_id, self._where))
        memory.record_failure(frame, batch_id, error, writes, self._policy.pipeline, run_id)


def _remembered(error: OncewardError, *given: object) -> OncewardError:
    """Return ``error``; :func:`error_of` finds it, too, if a frame of a batch was given."""
    for frame in [each for each in given if isinstance(each, DataFrame)]:
        run_id = current_run_id(frame)
        runs.memory(runs.RunKey(run_id, None)).error = error
        runs.note_run(frame, run_id)
    return error


def _error_at_end(
    met: BaseException, steps: Sequence[decoding.DecodingStep], frame: DataFrame
) -> BaseException:
    if isinstance(met, Fenced | JobInterrupted):
        return met
    failure = as_exception(met)
    # stop() interrupts the thread, and all that waits in it fails in a way of its own: while the
    # query is being stopped that is no error, whatever it is.
    if isinstance(failure, Exception) and is_being_stopped(frame):
        return JobInterrupted(
            "the query is being stopped in the middle of a batch, which the next start settles."
        )
    if failure is not met or not isinstance(met, OncewardError):
        return failure
    try:
        # A step may ask a registry that says nothing
        with patience.asking(Ending(lambda: is_being_stopped(frame))):
            return decoding.explain(met, tuple(steps), frame)
    except JobInterrupted as stopped:
        return stopped


def error_of(query: StreamingQuery) -> OncewardError | None:
    """Return the typed error that ended ``query``, or None.

    Spark wraps what ``foreachBatch`` raises into a ``StreamingQueryException`` that carries text
    only; the error itself stays in this process. Also an error of Spark's Kafka source is
    returned, when a broker refused it, by an ACL or at the login. None when the query runs, ended
    well, or failed for a reason of its own.
    """
    remembered = runs.error_in(str(query.runId))
    if remembered is not None:
        # While the query runs, the function has kept the error to itself, so far.
        return remembered if query.exception() is not None else None
    refused = source_refusal(query)
    if refused is None:
        return None
    explained = target.explain_outside(refused, query)
    return decoding.explain_outside(_unless_written(explained, query, refused))


def _unless_written(
    error: OncewardError, query: StreamingQuery, refused: OncewardError
) -> OncewardError:
    """Return ``error``, unless it would have a batch planned anew that a ledger has."""
    # 1. A batch is committed, and the process dies before Spark's commit log has it;
    # 2. the next start names other topics, and Spark fails before any sink is asked;
    # 3. planned anew, the batch would differ from the ledger's, and no start would go on.
    if PLAN_ANEW not in error.details:
        return error
    batch = BatchId(str(query.id), error.details[PLAN_ANEW])
    is_known, unknown = False, ""
    # In one step: other threads build sinks
    living = [found for each in _living.valuerefs() if (found := each()) is not None]
    # Of each chain the newest
    asked = {sink._where: sink for sink in living if sink._policy.has_ledger}
    # All at once, by threads: another pipeline's folder may be on a disk that hangs
    answers = [
        (sink, patience.in_a_thread(functools.partial(_newest, sink), "onceward-newest"))
        for sink in asked.values()
    ]
    late_at = surroundings.monotonic() + _ASK_MS / 1000 + _LATE_S
    for sink, answer in answers:
        try:
            newest = patience.result(answer, late_at - surroundings.monotonic())
        except Exception as failure:  # noqa: BLE001 — said, and the next start asks again
            unknown = unknown or f"{sink._policy.pipeline}: {str(failure) or 'no answer'}"
            continue
        if newest is None or newest.batch.query_id != batch.query_id:
            continue
        if newest.batch.batch_id >= batch.batch_id:
            return _written_before(batch, sink, refused)
        is_known = True
    # That of another query may be away, or its sink have been given up
    if unknown and not is_known:
        error.details = {k: v for k, v in error.details.items() if k != PLAN_ANEW}
        error.next_step = (
            "see that the ledger can be read, and start the query again: whether it has "
            f"{batch} is not known ({unknown})"
        )
    return error


def _newest(sink: ForeachBatchSink) -> LedgerRecord | None:
    """Return the newest record of a sink's ledger. :raises Exception: it does not say."""
    with patience.within(_ASK_MS):
        return sink.newest_record(certain=True)


def _written_before(
    batch: BatchId, sink: ForeachBatchSink, refused: OncewardError
) -> SourceDataLost:
    """Return the error for a committed batch that Spark cannot run with the topics of now."""
    return SourceDataLost(
        f"{batch} is committed by {sink._policy.pipeline}, and Spark, which has not noted "
        f"that, cannot run it again with other topics: {refused.message}",
        next_step="set topic= or topic_pattern= to what it was when the batch was "
        "planned, and start the query again; once Spark has run the batch, it may change",
        details=refused.details,
    )


def named_sinks(function: Any, deep: int = 3) -> list[ForeachBatchSink]:
    """Return the sinks that a function names, which is given to ``foreachBatch`` or starts a
    query: itself, in its closure, or in that of what it calls. Not those in lists and the like, of
    which it may take one.
    """
    if isinstance(function, ForeachBatchSink):
        return [function]
    is_called = inspect.isroutine(function) or inspect.isfunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )
    if not deep or isinstance(function, type):
        return []
    if isinstance(function, functools.partial):
        objects = [function.func, *function.args, *function.keywords.values()]
    elif is_called:
        owner = function.__self__ if inspect.ismethod(function) else function
        objects = list(vars(owner).values()) if hasattr(owner, "__dict__") else []
        code = function if inspect.isroutine(function) else type(function).__call__
        # A variable of the closure may have no value yet
        with suppress(TypeError, ValueError):
            variables = inspect.getclosurevars(code)
            objects += [*variables.nonlocals.values(), *variables.globals.values()]
    else:
        return []
    found = [sink for each in objects for sink in named_sinks(each, deep - 1)]
    # However often it is decorated
    if (inner := inspect.unwrap(function)) is not function:
        found += named_sinks(inner, deep)
    return list({id(sink): sink for sink in found}.values())
