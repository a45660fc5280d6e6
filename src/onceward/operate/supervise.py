"""Starts a failed streaming query again, as often and as late as a strategy says. Driver only.

What may be started again is decided by the error (:class:`onceward.errors.Recovery`) and by the
situation, not by the strategy. A pipeline that was fenced, is set up wrongly, or cannot write its
data would only fail again, and a fenced one would do harm. What may come of a wrong setting as
well as of an outage (a login that is refused, a topic that is not there) stops a pipeline that has
never worked, and no other: one that has committed a batch, in this process or in an earlier one,
is started again (:func:`onceward.operate.restart.may_pass`).

While failures follow each other and no batch is committed in between, the pauses grow up to
minutes, whatever the strategy (:func:`onceward.operate.restart.least_pause`): a hundred starts a
minute help nobody.

Where a query had only to be defined anew (``Recovery.RESTART_AT_ONCE``: a schema that is new to
it, say), it has not failed: it is started again at once, and no strategy hears of it. That is so
for as long as it says what it has learnt, and has not said it before; else it is a failure like
others, so that nothing is tried for ever.

A restart is a start like any other: what a crash left open is ended, what was decided is finished,
and then batches go on (:mod:`onceward.engine.micro_batch`). It is the same query on the same
checkpoint, in the same Spark session.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from os import PathLike, fspath

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from onceward import events, patience, surroundings
from onceward.engine.calls import gate, runs
from onceward.engine.calls.foreach_batch import named_sinks
from onceward.errors import ConfigurationError, OncewardError, Recovery, plain_text
from onceward.operate import stopping
from onceward.operate.restart import (
    ExponentialDelay,
    Failure,
    RestartStrategy,
    least_pause,
    may_pass,
    without_progress,
)
from onceward.operate.waiting import (
    LOOK_SECONDS,
    QueryEnd,
    must_be_a_query,
    stopped_context,
    within,
)
from onceward.spark.batch.checkpoint_files import (
    PLAN_ANEW,
    forget_planned,
    newest_committed,
    newest_committed_at,
)
from onceward.spark.batch.job import context_has_stopped
from onceward.spark.batch.query import jvm_is_gone

log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_FORGET_LOOK_SECONDS = 0.1
_PROGRESS_SECONDS = 60.0
_SPARK_CHARACTERS = 1_000
_REPEATED = 3
_BUILD_INSIDE = (
    "build the frame inside the function that you give to ow.supervise: the query has said the "
    "same before, and was started with the plan of then, which does not know what was learnt"
)


def supervise(
    start: Callable[[], StreamingQuery],
    strategy: RestartStrategy | None = None,
    *,
    stop: threading.Event | None = None,
    checkpoint: str | PathLike[str] | None = None,
) -> StreamingQuery:
    """Run a query until it ends well, starting it again after failures that may pass.

    ::

        def start():
            source = ow.kafka_source(spark, topic="orders", …)
            rows = transform(source).writeStream.option("checkpointLocation", path)
            return rows.foreachBatch(sink).start()

        ow.supervise(start, ow.restart.ExponentialDelay(initial_s=1, max_s=60))

    :param start: defines and starts the query; called again for each restart, on the same
        checkpoint. Build the sink once, outside of it: metrics know the pipeline by the sink that
        it names, and a new one would take up again a ``resume=`` that is for one start
        (``"adopt"``, ``"write_missing"``, ``"skip_missing"``). But sources, sinks and ledgers have
        the passwords with which they were built: where a sink's change, read them and build it in
        here. What ``start`` raises counts as a failure, but for what is not Onceward's the first
        time: then the program is wrong.
    :param strategy: default: :class:`ExponentialDelay`, without end. It is asked after failures
        only: a query that has met a schema which is new to it starts again at once. While no batch
        is committed between failures, pauses are at least those of
        :func:`onceward.operate.restart.least_pause`.
    :param stop: ends the query within a second when it is set; while a restart is waited for, the
        last error is raised. SIGTERM sets it.
    :param checkpoint: the query's ``checkpointLocation``. Only needed where ``start`` asks a
        server before it starts the query (a schema registry, MySQL), or builds session or sink:
        by it a first start that is refused knows whether the pipeline has worked. One that cannot
        be looked at has not said that it has not.
    :returns: the last query, which has ended without an error: by ``query.stop()``, by ``stop``,
        or because its trigger was ``availableNow``.
    :raises OncewardError: the query failed, and its error says *stop*, or the strategy has it no
        more restarted.
    :raises StreamingQueryException: the same, where the error is Spark's or your function's own.
        Whatever it is, also when Spark's JVM is gone, or its context has stopped and ``start``
        builds no other: that takes a new process (``onceward run``).

    SIGTERM ends the query at a batch boundary, and a second one the process at once, if this is
    the main thread and the program does not handle it itself. A KeyboardInterrupt, or any other
    exception of this thread's, stops the query on its way out.
    """
    restarts = ExponentialDelay() if strategy is None else strategy
    ended = surroundings.Event() if stop is None else stop
    # A pool's thread may have called, whose future nobody asks
    with stopping.waiting():
        _check(start, restarts, ended, checkpoint)
    with stopping.waiting(ended), gate.starting_again():
        return _supervise(start, restarts, ended, checkpoint)


def _check(start: object, restarts: object, ended: object, checkpoint: object) -> None:
    is_strategy = callable(getattr(restarts, "delay", None)) and not isinstance(restarts, type)
    is_path = checkpoint is None or isinstance(checkpoint, str | PathLike)
    for name, given, fits, wanted in (
        ("start", start, callable(start), "the function that defines and starts the query"),
        ("strategy", restarts, is_strategy, "an object, such as ow.restart.ExponentialDelay()"),
        ("stop", ended, hasattr(ended, "is_set"), "a threading.Event"),
        ("checkpoint", checkpoint, is_path, "the query's checkpointLocation"),
    ):
        if not fits:
            raise ConfigurationError(f"{name}={given!r} is wrong", next_step=f"pass {wanted}")


def _supervise(
    start: Callable[[], StreamingQuery],
    restarts: RestartStrategy,
    ended: threading.Event,
    checkpoint: str | PathLike[str] | None,
) -> StreamingQuery:
    failures: list[Failure] = []
    news: set[str] = set()
    run: _Run | None = None
    while True:
        run = _Run(start, ended, run, None if checkpoint is None else fspath(checkpoint))
        error = run.run(first=not failures and not news)
        if error is None:
            assert run.query is not None  # noqa: S101 — a start that failed has an error
            # Its JVM may end with it
            with suppress(Exception):
                runs.settle(run.query_id)
            return run.query
        run.must_leave_a_way_on(error)
        if _has_news(error, news) and not ended.is_set():
            log.debug("query %s is defined anew, and goes on: %s", run.name, error)
            continue
        failures.append(run.failure())
        if isinstance(error, OncewardError) and error.recovery is Recovery.RESTART_AT_ONCE:
            # It was started again for news, and reports the same
            error.next_step = _BUILD_INSIDE
        worked = run.has_worked(error)
        pause = _pause(restarts, failures, error, worked_before=worked, can_look=run.can_look)
        if isinstance(pause, str):
            log.error(
                "query %s failed %d times in all and %s. %s",
                run.name,
                len(failures),
                pause,
                _paragraph(error, is_logged=run.is_logged),
            )
            raise error
        if ended.is_set():
            raise error
        log.warning(
            "query %s failed, and is started again in %.1f s%s. %s",
            run.name,
            pause,
            _describe_repetition(failures, error) + _describe_doubt(error, worked),
            _paragraph(error, is_logged=run.is_logged),
        )
        # Before the pause: nothing else tells of a failure that no sink has seen
        events.announce(events.RESTART, run.event_ids, error)
        if ended.wait(pause):
            raise error


def _pause(
    strategy: RestartStrategy,
    failures: list[Failure],
    error: Exception,
    *,
    worked_before: bool | None,
    can_look: bool,
) -> float | str:
    """Return the seconds until the query is started again, or the reason why it is not."""
    if not may_pass(error):
        return "is not started again, because this error does not pass by itself"
    # A checkpoint that cannot be looked at now may be one of years
    may_have_worked = can_look if worked_before is None else worked_before
    if not may_pass(error, worked_before=may_have_worked):
        why = (
            "it has never committed a batch"
            if worked_before is False
            else "whether it has ever committed a batch is not known without checkpoint="
        )
        return f"is not started again, because {why}: a setting may be wrong"
    delay = strategy.delay(failures)
    if delay is None:
        return f"is not started again: {strategy} is used up"
    return max(delay, least_pause(failures))


def _describe_repetition(failures: list[Failure], error: Exception) -> str:
    """Describe how often it failed since the last batch, and what may be the reason."""
    count = without_progress(failures)
    if count < _REPEATED:
        return ""
    hint = (
        ""
        if isinstance(error, OncewardError)
        else "; if its source has changed, build the frame inside start()"
    )
    return f" (failure {count} without a batch in between{hint})"


def _describe_doubt(error: Exception, worked_before: bool | None) -> str:
    if worked_before is not None or may_pass(error, worked_before=False):
        return ""
    return (
        "; whether it has ever committed a batch is not known, for its checkpoint could not be "
        "looked at: a setting may be wrong"
    )


def _paragraph(error: BaseException, *, is_logged: bool) -> str:
    """Return kind and text of an error; of Spark's own the beginning: a plan may follow."""
    if is_logged:
        return f"{type(error).__name__}, as logged above"
    text = plain_text(" ".join(str(error).split()))
    longest = None if isinstance(error, OncewardError) else _SPARK_CHARACTERS
    return f"{type(error).__name__}: {text[:longest]}"


def _has_news(error: BaseException, news: set[str]) -> bool:
    """Return whether the error reports news that no earlier one did, and add them to ``news``."""
    if not isinstance(error, OncewardError) or error.recovery is not Recovery.RESTART_AT_ONCE:
        return False
    new = set(map(str, error.details.get("news", ()))) - news
    news |= new
    return bool(new)


def _named_pipeline(start: Callable[[], StreamingQuery]) -> str:
    """Return the pipeline of the one sink that ``start`` names, for whoever listens; of several,
    one may not be this query's."""
    named: list[str] = []
    # It may name whatever there is
    with suppress(Exception):
        if events.is_heard(events.BEGIN):
            named = [str(sink._policy.pipeline) for sink in named_sinks(start)]
    return named[0] if len(named) == 1 else ""


class _Run:
    """One start of the query, until its end. ``checkpoint``: where to look without a query."""

    def __init__(
        self,
        start: Callable[[], StreamingQuery],
        ended: threading.Event,
        before: _Run | None,
        checkpoint: str | None,
    ) -> None:
        self._start = start
        self._ended = ended
        self.committed: int | None = None if before is None else before.committed
        self._last: StreamingQuery | None = (
            None if before is None else before.query or before._last
        )
        self._is_dead: bool = before is not None and before._is_dead
        self._checkpoint = checkpoint
        self.query: StreamingQuery | None = None
        self.name, self.run_id, self.query_id = "(not started)", "", ""
        self._pipeline = _named_pipeline(start)
        self._began = surroundings.monotonic()
        self._progressed = False
        self._was_asked = False

    @property
    def worked_before(self) -> bool | None:
        """Whether a batch was ever committed; None: the checkpoint has not said."""
        return True if self.committed is not None else False if self._was_asked else None

    @property
    def can_look(self) -> bool:
        """Whether there is a checkpoint to look at, even if it cannot be now."""
        return self.query is not None or self._checkpoint is not None

    def has_worked(self, error: Exception) -> bool | None:
        """Return whether the pipeline has ever committed a batch, and note it in ``error``; None:
        neither its checkpoint nor its ledger has said."""
        # A batch may be in the ledger, and not in Spark's log
        in_ledger = error.worked_before if isinstance(error, OncewardError) else None
        told = (self.worked_before, in_ledger)
        worked = True if True in told else False if False in told else None
        if isinstance(error, OncewardError) and self.worked_before is not None:
            error.worked_before = worked
        return worked

    @property
    def event_ids(self) -> dict[str, str]:
        """The ids of its query, once there is one, and of its pipeline, where ``start`` names one
        sink."""
        known = {"query_id": self.query_id, "pipeline": self._pipeline}
        return {name: value for name, value in known.items() if value}

    @property
    def is_logged(self) -> bool:
        """Whether the sink has logged what its last batch failed with."""
        return runs.is_logged(self.run_id)

    def failure(self) -> Failure:
        return Failure(
            self._began, surroundings.monotonic(), surroundings.jitter(0.0, 1.0), self._progressed
        )

    def run(self, *, first: bool) -> Exception | None:
        """Start the query, wait for its end; what it failed with."""
        events.announce(events.BEGIN, self.event_ids, phase="started")
        try:
            with patience.asking(self._still_wanted):
                query = self._start()
        except Exception as error:
            events.announce(events.BEGIN, self.event_ids, error)
            if first and not isinstance(error, OncewardError):
                # the program is wrong; later, Spark's own start may meet what the query has met
                raise
            if self.committed is None:
                self._newest_batch(None)
            return error
        if query is None:
            raise ConfigurationError(
                "the function start returned no query; if it started one, that is running on its "
                "own",
                next_step="let it return what DataStreamWriter.start() gives",
            )
        must_be_a_query(query, "supervise")
        self.query, end = query, QueryEnd(query)
        self.name, self.run_id, self.query_id = end.name, end.run_id, end.query_id
        events.announce(events.BEGIN, self.event_ids, phase="finished")
        before = self.committed
        if before is None:
            before = self._newest_batch(query)
        checked_at = self._began
        try:
            while not end.join(LOOK_SECONDS):
                # SIGTERM has the query end at a batch boundary
                stopped = self._ended.is_set() and not stopping.is_requested()
                if stopped and not end.stop():
                    break
                # the checkpoint may be away in the end
                if surroundings.monotonic() - checked_at > _PROGRESS_SECONDS:
                    checked_at = surroundings.monotonic()
                    self._newest_batch(query)
        except (OncewardError, StreamingQueryException) as failed:
            after = self._newest_batch(query)
            self._progressed = after is not None and (before is None or after > before)
            self._plan_anew(query, failed)
            return failed
        finally:
            end.stop()
        return None

    def must_leave_a_way_on(self, error: Exception) -> None:
        """Raise where no start of this process can help: that is for whoever starts the process.

        A start may build another context, and is called once more for that; one that was still
        asking a server has not come to it.
        """
        if jvm_is_gone():
            raise error
        is_asking = self.query is None and isinstance(error, OncewardError)
        was_dead = self._is_dead
        self._is_dead = not is_asking and context_has_stopped(self.query or self._last)
        if was_dead and self._is_dead:
            raise stopped_context() from error

    def _plan_anew(self, query: StreamingQuery, failed: Exception) -> None:
        """Have the next start plan the query's batch anew, where only that helps: Spark runs the
        one that it has logged again and again."""
        if not isinstance(failed, OncewardError) or PLAN_ANEW not in failed.details:
            return
        number = failed.details[PLAN_ANEW]
        if others := runs.committed_in(self.run_id, number):
            failed.next_step = (
                f"of the pipelines of the query, {', '.join(others)} has committed batch {number} "
                "as it is planned, so that it cannot be planned anew: start once with "
                f'resume="skip_missing" and a function that leaves this sink out of batch {number}'
            )
            return
        forgetting = patience.in_a_thread(lambda: forget_planned(query, number), "onceward-forget")
        try:
            # However long it takes. Given up in the middle of it, on a store that stands still:
            # 1. the next start finds the plan, and runs the batch as it is planned;
            # 2. the removal goes on, and takes state and plans that are of that start.
            told_at = surroundings.monotonic() + _ASK_SECONDS
            while not (forgetting.done() or self._ended.is_set()):
                surroundings.sleep(_FORGET_LOOK_SECONDS)
                if surroundings.monotonic() > told_at:
                    told_at = surroundings.monotonic() + _PROGRESS_SECONDS
                    log.warning(
                        "query %s: waits until offsets/%s is removed, before it is started again. "
                        "Next: see that the checkpoint's file system answers",
                        self.name,
                        number,
                    )
            if forgetting.done():
                forgetting.result()
        except Exception as error:  # noqa: BLE001 — the next failure comes here again
            log.warning("query %s: offsets/%s is not removed: %r", self.name, number, error)

    def _still_wanted(self) -> None:
        """Raise if the supervisor was told to stop, while the query is being defined."""
        if self._ended.is_set():
            raise OncewardError(
                "the query was being started, and waited for somebody, when the supervisor was "
                "told to stop",
                next_step="nothing",
            )

    def _newest_batch(self, query: StreamingQuery | None) -> int | None:
        """Return the newest committed batch; if it cannot be read now, the one known before."""
        try:
            found = within(_ASK_SECONDS, lambda: self._newest(query))
            self._was_asked = self.can_look
        except Exception as error:  # noqa: BLE001
            # A checkpoint that is away is for the query to say.
            log.debug("query %s: which batches are committed is not known: %r", self.name, error)
            found, self._was_asked = None, False
        self.committed = self.committed if found is None else found
        return self.committed

    def _newest(self, query: StreamingQuery | None) -> int | None:
        if query is not None:
            return newest_committed(query)
        return None if self._checkpoint is None else newest_committed_at(self._checkpoint)
