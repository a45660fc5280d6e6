"""What a start of a job would do, found out before it: Spark plans the first batch of each query
on a copy of the logs in its checkpoint, into a function that writes nothing.

Called by ``onceward plan``. So Spark's own checks of sources, offsets and state schemas speak
(``MicroBatchExecution.populateStartOffsets``, ``OperatorStateMetadata``,
``StateSchemaCompatibilityChecker``), and the engine's admission, which looks at the ledger and
touches nobody. No task runs, no checkpoint, topic, group or transaction is changed.
"""

from __future__ import annotations

import logging
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from onceward.engine.calls.foreach_batch import ForeachBatchSink, error_of, named_sinks
from onceward.engine.calls.journal import Journal, call_history
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    AuthenticationFailed,
    ConfigurationError,
    OncewardError,
    summary,
)
from onceward.ids import TopicPartition, partition_offsets
from onceward.kafka.source.identity import known_logins
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.kafka.wire.reads.offsets import EARLIEST, ask_who_may, list_offsets
from onceward.operate import waiting
from onceward.operate.checkpoint_files import (
    Folder,
    logged_batches,
    logged_ends,
    stateful_operators,
)
from onceward.operate.plan_lines import (
    Line,
    QueryPlan,
    Weight,
    compare_kept,
    compare_sources,
    cut,
    decide,
    gone_on,
)
from onceward.operate.plan_queries import (
    Definition,
    JobWaits,
    JobWriters,
    for_good,
    queries_intercepted,
    replaced,
    start_query,
)
from onceward.operate.run_job import search_path
from onceward.operate.savepoint import select_logs
from onceward.spark.batch import file_sources
from onceward.spark.batch.query import RunningBatch, checkpoint_files, running_batch
from onceward.spark.files import path_scheme
from onceward.spark.files.file_system import qualify
from onceward.spark.session.settings import quiet

log = logging.getLogger(__name__)

_SECONDS, _STOP_SECONDS = 120, 30.0
_ASK_MS = 20_000
_NEXT = (
    "Next: change the query back; or begin with a new checkpoint and, where its state is needed, "
    "a new pipeline_id and targets."
)


class _JobGoesOn(BaseException):
    """The job has defined no query for a while: it sleeps in a loop of its own, say."""


class _Planned(Exception):
    """Ends a planned batch."""


def plan_job(job: str, arguments: Sequence[str], timeout_s: float) -> list[QueryPlan]:
    """Run the job's file as far as its queries are defined, and return the plan of each.

    Whatever the job itself raises is raised, but for its end by ``sys.exit``. What it prints goes
    to stderr. No query of the job is started in this process any more.

    :param job: a Python file, which is run as ``__main__`` in this process.
    :param timeout_s: how long the job may run until it defines its first query, and after each;
        then it is left, with a warning. In the main thread only, where signals come.
    """
    plans: list[QueryPlan] = []
    with _alarm(timeout_s) as alarm:

        def found(definition: Definition) -> None:
            alarm(0)
            try:
                plan = _plan(definition)
                plans.append(replace(plan, lines=(*plan.lines, *writers.take_lines())))
            finally:
                alarm(timeout_s)

        writers = for_good.enter_context(queries_intercepted(found))
        try:
            try:
                _run(job, arguments, writers, lambda: alarm(0))
            finally:
                writers.close()
        except _JobGoesOn:
            writers.raise_failure()
            if not plans:
                raise ConfigurationError(
                    f"{job} has defined no query within {timeout_s:g} s, so that nothing is known "
                    "of what its start would do",
                    next_step="give it more with --timeout",
                ) from None
            log.warning(
                "%s ran on for %g s without defining a query, and was left; what it would define "
                "later is not looked at. Next: a larger --timeout, if it does",
                job, timeout_s,
            )  # fmt: skip
    if not plans:
        raise ConfigurationError(
            f"{job} has started no streaming query, so that there is nothing to plan",
            next_step="name the file that starts its queries when it is run as __main__",
        )
    last = plans[-1]
    return [*plans[:-1], replace(last, lines=(*last.lines, *writers.take_lines()))]


def _run(
    job: str, arguments: Sequence[str], writers: JobWriters, ended: Callable[[], object]
) -> None:
    """Run the file, and wait for the threads that it leaves."""
    path = [str(Path(job).resolve().parent), *search_path()]
    with (
        replaced(sys, argv=[job, *arguments], path=path),
        replaced(threading, excepthook=writers.note_failure),
        _printing_to_stderr(),
    ):
        try:
            try:
                with suppress(JobWaits):
                    runpy.run_path(job, run_name="__main__")
            except SystemExit as left:
                if left.code and not isinstance(left.__context__, JobWaits):
                    raise ConfigurationError(
                        f"{job} ended itself before all its queries were defined: {left.code!r}",
                        next_step="see what it has printed; its own arguments stand behind its "
                        "name",
                    ) from left
            writers.wait_for_threads()
        finally:
            ended()


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """Send what the job, and programs that it starts, print to stderr: stdout is the plan's."""
    sys.stdout.flush()
    before = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()
        os.dup2(before, 1)
        os.close(before)


@contextmanager
def _alarm(seconds: float) -> Iterator[Callable[[float], object]]:
    """Raise :class:`_JobGoesOn` so many seconds later (0: never), and again each second."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda _: None
        return

    def ring(*_: object) -> None:
        raise _JobGoesOn

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, 1)
        yield lambda later: signal.setitimer(signal.ITIMER_REAL, later, 1)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _plan(definition: Definition) -> QueryPlan:
    sinks = named_sinks(definition.function)
    name = definition.name or ", ".join(sorted({str(sink._policy.pipeline) for sink in sinks}))
    checkpoint = _checkpoint(definition)
    if not sinks:
        text = "it writes by no sink of Onceward that can be found; it is not looked at"
        # A function may have one in a place of its own; what Spark writes alone has none
        weight = Weight.AS_BEFORE if definition.function is None else Weight.UNKNOWN
        return QueryPlan(name or "a query", checkpoint, (Line(weight, "start", text),))
    if not checkpoint:
        text = "it has no checkpointLocation; give it one by writeStream.option"
        return QueryPlan(name, "", (Line(Weight.REFUSED, "start", text),))
    with tempfile.TemporaryDirectory(
        prefix="onceward-plan-", ignore_cleanup_errors=True
    ) as folder:
        look = _Look(sinks)
        before = _copy_logs(checkpoint, folder)
        error = look.at(definition, folder, before)
    lines = [*look.lines, *before.lines(look)]
    if error:
        lines.insert(0, Line(Weight.REFUSED, "start", error))
    elif look.first is None:
        first = before.committed + 1
        text = f"batch {first} is next, once there is something to read"
        lines.insert(0, Line(Weight.AS_BEFORE, "start", text))
    columns = ", ".join(
        f"{f.name} {f.dataType.simpleString()}" for f in definition.frame.schema.fields
    )
    lines.append(Line(Weight.AS_BEFORE, "output", columns))
    return QueryPlan(name, checkpoint, tuple(lines))


def _checkpoint(definition: Definition) -> str:
    location = definition.options.get("checkpointlocation")
    session = definition.frame.sparkSession
    if not location:
        root = session.conf.get("spark.sql.streaming.checkpointLocation", None)
        location = f"{root}/{definition.name}" if root and definition.name else ""
    if not location or path_scheme(location):
        return location
    qualified = qualify(location, session)
    return location if path_scheme(qualified) == "file" else qualified


@dataclass(frozen=True)
class _Before:
    """Of the checkpoint: newest finished and planned batch (-1: none), ends, operators."""

    committed: int = -1
    planned: int = -1
    ends: tuple[Any, ...] = ()
    operators: tuple[tuple[str, int], ...] = ()

    def lines(self, look: _Look) -> Iterator[Line]:
        """Yield what it says beside what Spark has planned."""
        if self.operators:
            fits = "; Spark finds that it fits" if look.planned is not None else ""
            text = ", ".join(f"{name} in {count} partitions" for name, count in self.operators)
            yield Line(Weight.AS_BEFORE, "state", f"{text}{fits}")
            if look.shuffle_partitions not in {count for _, count in self.operators}:
                text = f"spark.sql.shuffle.partitions={look.shuffle_partitions} has no effect"
                yield Line(Weight.AS_BEFORE, "state", f"{text}: the checkpoint's number stays")
        elif look.planned is not None and look.planned.stateful and self.committed >= 0:
            yield Line(Weight.CHANGES, "state", "the query keeps state now; it had none")
        if look.first is not None:
            yield from compare_sources(self.ends, look.first.sources)


class _Look:
    """Has Spark plan a batch, and asks the ledger about it."""

    def __init__(self, sinks: Sequence[ForeachBatchSink]) -> None:
        self._sinks = sinks
        # Before the logs are copied: the pipeline may run, and go on
        self._known = {id(sink): _newest(sink) for sink in sinks}
        self.lines: list[Line] = []
        self.planned: RunningBatch | None = None
        self.first: RunningBatch | None = None
        """The batch that a start would begin with; None while there is nothing to read."""
        self.shuffle_partitions = 0

    def at(self, definition: Definition, folder: str, before: _Before) -> str:
        """Return what refuses the query; empty if nothing does."""
        conf = definition.frame.sparkSession.conf
        self.shuffle_partitions = int(conf.get("spark.sql.shuffle.partitions") or 0)
        error = self._run(definition, folder, before, self._sinks)
        self.first = self.planned
        if error or self.first is not None or before.committed < 0:
            return error
        # Nothing to read: the plan is tried on an empty batch behind the last one. Not on the last
        # one itself: Spark compares no stateful operators before its batch 0.
        offsets = Path(folder, "offsets")
        logged = (offsets / f"{before.committed}").read_bytes()
        (offsets / f"{before.committed + 1}").write_bytes(logged)
        return self._run(definition, folder, before, ())

    def _run(
        self,
        definition: Definition,
        folder: str,
        before: _Before,
        sinks: Sequence[ForeachBatchSink],
    ) -> str:
        failed: list[str] = []
        checkpoint = _checkpoint(definition)

        def look(frame: DataFrame, batch_id: int) -> None:
            try:
                self.planned = running_batch(frame, batch_id)
                if sinks:
                    self.lines += _retained(self.planned)
                for sink in sinks:
                    known = self._known[id(sink)]
                    found = _judge(sink, self.planned, before.planned, frame, checkpoint, known)
                    if found.weight is Weight.REFUSED:
                        found = gone_on(known, _newest(sink), self.planned) or found
                    self.lines.append(found)
            except OncewardError as error:
                failed.append(summary(error))
            raise _Planned

        try:
            with quiet(definition.frame.sparkSession):
                query = start_query(
                    definition.frame.writeStream.outputMode(definition.mode)
                    .option("checkpointLocation", f"file://{folder}")
                    .trigger(**definition.trigger)
                    .foreachBatch(look)
                )
                has_answered = True
                try:
                    waiting.within(_SECONDS, query.processAllAvailable)
                except PySparkException:
                    pass
                except TimeoutError:
                    has_answered = False
                # With brokers that keep silent it takes its time
                with suppress(TimeoutError):
                    waiting.within(_STOP_SECONDS, query.stop)
        except PySparkException as error:
            return cut(str(error))
        if not has_answered:
            return f"its first batch is not planned within {_SECONDS} s: a source does not answer"
        exception = query.exception()
        if failed or exception is None or self.planned is not None:
            return "; ".join(failed)
        ours = error_of(query)
        return (
            f"{type(ours).__name__}: {ours}" if ours else f"Spark: {cut(str(exception))} {_NEXT}"
        )


def _retained(running: RunningBatch) -> list[Line]:
    """Return whether brokers still have what the batch begins with."""
    found: list[Line] = []
    for source in running.kafka_sources:
        start = partition_offsets(running.sources[source.index].start)

        def ask(login: ClientSettings, start: Any = start) -> dict[TopicPartition, int]:
            client = KafkaClient.shared(login)
            return list_offsets(client, start, EARLIEST, timeout_ms=_ASK_MS)

        try:
            logins = known_logins(source.bootstrap_servers) if start else ()
            earliest = ask_who_may(logins, ask, {}, None)
        except (AccessDenied, AuthenticationFailed) as error:
            # The source's own login may be told to Spark alone
            text = f"whether brokers still have what the first batch reads: {error.message}"
            found.append(Line(Weight.UNKNOWN, "sources", text))
        else:
            found += compare_kept(start, earliest or {})
    return found


def _newest(sink: ForeachBatchSink) -> LedgerRecord | None:
    # Whatever is wrong is said where it is asked for
    with suppress(Exception):
        if sink._policy.has_ledger:
            return waiting.within(_SECONDS, sink.newest_record)
    return None


def _judge(
    sink: ForeachBatchSink,
    running: RunningBatch,
    planned: int,
    frame: DataFrame,
    checkpoint: str,
    known: LedgerRecord | None,
) -> Line:
    policy = sink._policy
    if not policy.has_ledger:
        return Line(Weight.AS_BEFORE, "start", f"delivery={policy.delivery!r} keeps no ledger")
    # None is not certain: a commit of the copy that runs may be under way
    newest = sink.newest_record() or known
    journal = Journal(policy.pipeline, running.run_id, checkpoint_files(frame, policy.pipeline))
    # What it names is the job's, and not the copy that is looked at
    history = replace(call_history(running, newest, policy, journal), checkpoint=checkpoint)
    found = decide(running, newest, policy.resume, history, planned)
    if found.weight is not Weight.REFUSED:
        files = file_sources.logged_files(running)
        if newest is not None and newest.batch == running.batch:
            file_sources.must_be_committed_files(files, running, newest.sources)
        else:
            file_sources.must_have_files(running, files)
    return found


def _copy_logs(checkpoint: str, to: str) -> _Before:
    """Copy offsets, commits, sources' logs and what describes the state, but no state."""
    source, target = Folder(checkpoint), Folder(to)
    names = source.names()
    for name in select_logs(names):
        with suppress(FileNotFoundError):
            target.write(name, source.chunks(name))
    offsets, commits = logged_batches(names, "offsets"), logged_batches(names, "commits")
    if not offsets:
        return _Before()
    ends: list[Any] = []
    with suppress(FileNotFoundError):
        ends = logged_ends(source, max(commits, default=max(offsets)))
    operators = [(each.name, each.partitions) for each in stateful_operators(source, names)]
    return _Before(max(commits, default=-1), max(offsets), tuple(ends), tuple(operators))
