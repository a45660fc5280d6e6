"""The object that users hand to ``foreachBatch``, whatever it writes to; and the way back to its
typed errors.

Runs in the driver. Spark calls the sink once per micro-batch on the query's own thread, or a
function of the user's does. Sinks subclass :class:`ForeachBatchSink` and say how to write; when,
and whether, is decided in ``engine.micro_batch``.
"""

from __future__ import annotations

import inspect
import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.query import StreamingQuery

from onceward import patience
from onceward.engine import decoding
from onceward.engine.calls import runs
from onceward.engine.calls.batch_block import TO_FOREACH, Batch, handed_over_wrongly
from onceward.engine.calls.failed_batches import must_compute_once
from onceward.engine.calls.failed_calls import (
    failures_at,
    paragraph,
    refuse_other_frames,
    remember,
)
from onceward.engine.ending import Ending
from onceward.engine.ledger.refusals import second_call
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Target, Write
from onceward.errors import BadColumn, Fenced, OncewardError, Recovery, UnsupportedQuery
from onceward.spark.batch import callbacks
from onceward.spark.batch.job import JobInterrupted
from onceward.spark.batch.query import (
    RunningBatch,
    current_run_id,
    is_being_stopped,
    is_running,
    refuse_temporary_checkpoint,
    run_is_active,
    running_batch,
)
from onceward.spark.batch.source_errors import source_refusal

log = logging.getLogger(__name__)

_Sink = TypeVar("_Sink", bound="ForeachBatchSink")
_FOR_ONE_START = ("adopt", "complete", "keep")


def must_be_a_frame(frame: object, more: str = "") -> None:
    """:raises BadColumn: it is none."""
    if not isinstance(frame, DataFrame):
        raise BadColumn(
            f"a {type(frame).__name__} was handed over, not a Spark DataFrame",
            next_step=f"hand over a DataFrame of this batch{more}",
        )


class ForeachBatchSink(ABC):
    """A callable for ``DataStreamWriter.foreachBatch``.

    One sink object belongs to one query; a second one that is given it while the first runs is
    refused. When a query is started again in the same process, the new run takes the sink over and
    fences what the old one left behind.

    :param where: names the chain of batches that the sink continues, and the ledger that has it:
        in one run of a query it has one owner.
    :param settings: what the sink was built with; two sinks at one place must have equal ones.
    """

    def __new__(cls: type[_Sink], *arguments: object, **_: object) -> _Sink:
        """Make a sink; refuse to be called with a batch in the place of one."""
        if arguments and isinstance(arguments[0], (DataFrame, Row)):
            what = (
                f"the class {cls.__name__} was handed to Spark, and not a sink that was built "
                f"of it"
            )
            raise _known(handed_over_wrongly(what, cls.__name__), arguments[0])
        return super().__new__(cls)

    def __init__(self, policy: SinkPolicy, *, where: Hashable, settings: object) -> None:
        self._policy = policy
        self._where = where
        self._built_with = settings
        self._place: runs.Place | None = None
        self._query_id: str | None = None
        self._earlier_runs: set[str] = set()
        self._resumed_in: str | None = None
        self._looked_at = ""

    def __getstate__(self) -> Any:
        """Refuse to be sent to tasks, as ``writeStream.foreach`` would."""
        raise handed_over_wrongly(TO_FOREACH, type(self).__name__)

    is_atomic: bool = False
    """Is the target's own commit the decision? Else it is the ledger's."""

    writes_to: Hashable = None
    """The place, where it can be told: two sinks with equal ones would get into each other's way
    in one batch.
    """

    place_word: ClassVar[str] = ""
    """What a frame may be sent to, as :meth:`Batch.write` calls it."""

    def _must_have(self, word: str, value: str | None) -> None:
        if value is not None and word != self.place_word:
            raise UnsupportedQuery(
                f"batch.write(…, {word}={value!r}): {type(self).__name__} has no {word}s",
                next_step=f"leave {word}= out"
                + (
                    f", or use {self.place_word}="
                    if self.place_word
                    else "; what goes where is for the rows to say"
                ),
            )

    def _dead_letters(self, frame: DataFrame) -> Write:
        """Where records go that a format could not read: columns as in
        ``engine.decoding.DEAD_LETTER``.
        """
        raise UnsupportedQuery(
            f"the query sets records aside that it cannot read, and {type(self).__name__} has no "
            f"place for them",
            next_step='write to Kafka with ow.KafkaSink(…, dead_letter_topic="…"), or let such a '
            "sink decide in an "
            'ow.FanOut; or use on_error="stop"',
        )

    @abstractmethod
    def _new_target(self, policy: SinkPolicy) -> Target:
        """A fresh target for a new run of the query, which goes by ``policy``."""

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        """What is to be written, if it can be: called for each frame as it is handed over."""
        return Write(frame, where)

    def _checked_writes(self, frame: DataFrame, where: str | None) -> Sequence[Write]:
        """The same, where one frame goes to several places."""
        return [self._checked(frame, where)]

    def __call__(self, frame: DataFrame, batch_id: int = -1) -> None:
        """Write one micro-batch of one frame exactly once. Called by Spark, or by your own
        ``foreachBatch`` function.

        :raises OncewardError: the batch is not written; :func:`error_of` finds it behind Spark's
            own exception.
        """
        if batch_id == -1:
            raise handed_over_wrongly(TO_FOREACH, type(self).__name__)
        with self.batch(frame, batch_id) as batch:
            batch.write(frame)

    def batch(self, frame: DataFrame, batch_id: int) -> Batch:
        """For a ``foreachBatch`` function of your own: several frames of one batch in one
        transaction.

        ::

            def write(frame, batch_id):
                with sink.batch(frame, batch_id) as batch:
                    batch.write(frame.where("amount > 0"))
                    batch.write(frame.where("amount <= 0"), topic="rejected")

        :param frame: the frame that Spark gave to the function; :param batch_id: the number that
            came with it.
        """
        caller = inspect.currentframe()
        if (
            caller is not None
            and caller.f_back is not None
            and _is_sparks(caller.f_back.f_globals)
        ):
            # Spark would take the block that nobody begins for a batch that is done.
            what = "the sink's method batch was handed to foreachBatch, which would write nothing"
            raise _known(handed_over_wrongly(what, type(self).__name__), frame)
        return Batch(self, frame, batch_id)

    def _write(self, frame: DataFrame, batch_id: int, writes: Sequence[Write]) -> None:
        """Called when the block of a :class:`Batch` ends; a typed error is kept on its way through
        Spark.
        """
        steps: tuple[decoding.DecodingStep, ...] = ()
        try:
            running = running_batch(frame, batch_id)
            if running.run_id != self._looked_at:
                refuse_temporary_checkpoint(frame)
                callbacks.remember(frame, running.run_id)
                self._looked_at = running.run_id
            steps = decoding.steps_of(frame, running.run_id)
            with patience.asking(Ending(lambda: is_being_stopped(frame))):
                writes = [*writes, *self._set_aside(steps, frame)]
                self._process(frame, writes, running)
        except BaseException as met:
            error = _as_it_ended(met, steps, frame)
            self._gave_up(frame, batch_id, error, writes)
            log.debug("%s: batch %s is not written", self._policy.pipeline, batch_id, exc_info=met)
            if not isinstance(error, OncewardError | JobInterrupted):
                raise
            # Spark prints what is raised here three times, with all that led to it, and looks
            # through all of the text. The error says it all in a paragraph; what it came from is
            # for whoever asks.
            raise error.with_traceback(None) from None
        runs.memory(
            runs.Place(running.run_id, self._where)
        ).error = None  # what an earlier try met ended no query

    def _set_aside(self, steps: Sequence[decoding.DecodingStep], frame: DataFrame) -> list[Write]:
        """The frames of what the batch's formats cannot read, behind those that the user's
        function has.
        """
        for step in steps:
            step.before_batch()
        asides = [step for step in steps if step.sets_aside]
        return [self._dead_letters(decoding.dead_letters_of(frame, step)) for step in asides]

    def _gave_up(
        self, frame: DataFrame, batch_id: int, error: BaseException, writes: Sequence[Write] | None
    ) -> None:
        """The batch is not written: remember why, for :func:`error_of`, and for the next batch,
        should there be one.

        :param writes: what was handed over, if nothing else may be handed over in its place.
        """
        pipeline = self._policy.pipeline
        try:
            place = runs.Place(current_run_id(frame), self._where)
            known = runs.memory(place)
            if isinstance(error, OncewardError):
                known.error = error
            if isinstance(error, Fenced):
                known.fenced = known.fenced or error.message
            if is_being_stopped(frame):
                log.warning(
                    "%s: stopped in batch %d. Next: start the query again, which settles it "
                    "first.",
                    pipeline,
                    batch_id,
                )
            else:
                log.error("%s: batch %d is not written: %s", pipeline, batch_id, paragraph(error))
            if self._policy.has_ledger:
                remember(frame, batch_id, error, writes, place, pipeline)
        except Exception as also:  # noqa: BLE001 — the first error is the one to hear of
            log.error(
                "%s: no file could be left beside the checkpoint that batch %s failed (%s). Next: "
                "let the sink's "
                "errors leave the function; one that keeps them to itself, and ends before its "
                "next batch, has left "
                "this batch out",
                pipeline,
                batch_id,
                also,
            )

    def _process(self, frame: DataFrame, writes: Sequence[Write], running: RunningBatch) -> None:
        self._refuse_a_second_query(frame, running)
        place = runs.Place(running.run_id, self._where)
        known = runs.claim(place, self._policy.pipeline)
        if known.committed == running.batch.batch_id:
            raise second_call(running.batch)
        refuse_other_frames(known, running, writes)
        if failures_at(place, frame, self._policy.pipeline).in_this_run(running.batch.batch_id):
            must_compute_once(running, known.error)
        for left in reversed(range(self._policy.batch_attempts)):
            batches = self._batches_at(place, frame, running)
            try:
                batches.process(writes, running)
                self._resumed_in = self._resumed_in or running.run_id
                return known.succeeded(running.batch)
            except BaseException as error:
                known.replay = batches.is_replay(running)
                # Spark ends the query now; a later start, or the next try of a patient function,
                # or of ours, opens everything again. A second call that was refused is no failed
                # try: tried again, it must not pass for a replay.
                runs.leave(
                    place, failed=None if isinstance(error, UnsupportedQuery) else running.batch
                )
                if (
                    not left
                    or not isinstance(error, OncewardError)
                    or error.recovery is not Recovery.REOPEN
                ):
                    raise
                must_compute_once(running, error)
                log.warning(
                    "%s: beginning anew with %s: %s", self._policy.pipeline, running.batch, error
                )
        return None

    def _refuse_a_second_query(self, frame: DataFrame, running: RunningBatch) -> None:
        """Two queries under one pipeline id would fence each other: the healthy one shall not be
        the first to stop.
        """
        ours = self._query_id
        if ours not in (None, running.batch.query_id) and is_running(frame, str(ours)):
            raise UnsupportedQuery(
                f"query {running.batch.query_id} was given the sink of query {ours}, which is "
                f"running",
                next_step="give each query a sink and a pipeline_id of its own",
            )

    def _batches_at(
        self, place: runs.Place, frame: DataFrame, running: RunningBatch
    ) -> MicroBatches:
        if running.run_id in self._earlier_runs:
            raise Fenced(
                f"run {running.run_id} of query {running.batch.query_id} was replaced by a newer "
                f"run of this sink",
                next_step="give each running query a sink and a pipeline_id of its own",
            )
        if self._place is not None and self._place != place:
            runs.leave(self._place)
            self._earlier_runs.add(self._place.run_id)
        elif self._place is None and runs.find(place, self._built_with) is not None:
            log.info(
                "%s: a new sink goes on for one of the same query; build it once",
                self._policy.pipeline,
            )
        self._place, self._query_id = place, running.batch.query_id
        run = runs.find(place, self._built_with)
        if run is None:
            run = self._new_run(place, frame, running)
            runs.enter(place, run)
        return run.batches

    def _new_run(self, place: runs.Place, frame: DataFrame, running: RunningBatch) -> runs.Run:
        policy = self._policy_of(running.run_id)
        target = self._new_target(policy)
        known = runs.memory(place)
        session, query_id = frame.sparkSession, running.batch.query_id
        return runs.Run(
            query_id=query_id,
            settings=self._built_with,
            target=target,
            batches=MicroBatches(
                target, policy, known.failed, failures_at(place, frame, self._policy.pipeline)
            ),
            is_running=lambda: run_is_active(session, query_id, place.run_id),
        )

    def _policy_of(self, run_id: str) -> SinkPolicy:
        """What the user allowed for one start holds until a batch was committed under it, and in
        that run.

        A sink that is built once sees many runs under a supervisor: what a later one loses, nobody
        has looked at.
        """
        if self._policy.resume not in _FOR_ONE_START or self._resumed_in in (None, run_id):
            return self._policy
        log.info(
            "%s: resume=%r was for one start, and is over",
            self._policy.pipeline,
            self._policy.resume,
        )
        return replace(self._policy, resume="checkpoint")

    def close(self) -> None:
        """Give back connections and threads; the next batch opens them again. Nothing is aborted.

        Happens by itself, within seconds, when the query fails or ends.
        """
        if self._place is not None:
            runs.leave(self._place)


def _is_sparks(names: Mapping[str, object]) -> bool:
    """Are they the globals of a module of PySpark?"""
    return str(names.get("__name__")).partition(".")[0] == "pyspark"


def _known(error: OncewardError, frame: object) -> OncewardError:
    """``error``, for :func:`error_of`, too, if it is met in a batch."""
    if isinstance(frame, DataFrame):
        runs.memory(runs.Place(current_run_id(frame), None)).error = error
    return error


def _as_it_ended(
    met: BaseException, steps: Sequence[decoding.DecodingStep], frame: DataFrame
) -> BaseException:
    """What a batch ended with that met ``met``. While its query is being stopped that is no error,
    whatever it is: ``stop()`` interrupts the thread, and all that waits in it fails in a way of
    its own.
    """
    if (
        isinstance(met, Exception)
        and not isinstance(met, Fenced | JobInterrupted)
        and is_being_stopped(frame)
    ):
        return JobInterrupted(
            "the query is being stopped in the middle of a batch, which the next start settles."
        )
    return decoding.explained(met, tuple(steps), frame) if isinstance(met, OncewardError) else met


def error_of(query: StreamingQuery) -> OncewardError | None:
    """The typed error that ended ``query``, or None.

    Spark wraps what ``foreachBatch`` raises into a ``StreamingQueryException`` that carries text
    only; the error itself stays in this process. What Spark's Kafka source met is told, too, when
    a broker refused it, by an ACL or at the login. None when the query runs, ended well, or failed
    for a reason of its own.
    """
    remembered = runs.error_in(str(query.runId))
    if remembered is not None:
        return (
            remembered if query.exception() is not None else None
        )  # kept back by the function, so far
    refused = source_refusal(query)
    return None if refused is None else decoding.heard_of(refused)
