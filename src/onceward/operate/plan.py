"""What a start of a job would do, found out before it: Spark plans the first batch of each query
on a copy of the logs in its checkpoint, into a function that writes nothing.

Called by ``onceward plan``. So Spark's own checks of sources, offsets and state schemas speak
(``MicroBatchExecution.populateStartOffsets``, ``OperatorStateMetadata``,
``StateSchemaCompatibilityChecker``), and the engine's admission, which looks at the ledger and
touches nobody. No task runs, no checkpoint, topic, group or transaction is changed.
"""

from __future__ import annotations

import functools
import inspect
import logging
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamWriter

from onceward.engine.calls.foreach_batch import ForeachBatchSink, error_of
from onceward.engine.calls.journal import Journal, call_history
from onceward.errors import ConfigurationError, OncewardError, UnsupportedQuery, summary
from onceward.ids import partition_offsets
from onceward.kafka.source.identity import known_settings
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.offsets import EARLIEST, list_offsets
from onceward.operate import supervise as supervising
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
)
from onceward.operate.savepoint import select_logs
from onceward.spark.batch.query import RunningBatch, checkpoint_files, running_batch
from onceward.spark.session.settings import quiet

log = logging.getLogger(__name__)

_SECONDS, _STOP_SECONDS = 120, 30.0
_ASK_MS = 20_000
_NEXT = (
    "Next: change the query back; or begin with a new checkpoint and, where its state is needed, "
    "a new pipeline_id and targets."
)


@dataclass
class _Definition:
    """A query as the job defines it, from the calls to its writer."""

    frame: DataFrame
    options: dict[str, str] = field(default_factory=dict)
    mode: str = "append"
    name: str = ""
    function: Callable[..., Any] | None = None

    def note(self, key: str, value: Any) -> None:
        """Note an option; their names have no case."""
        self.options[key.lower()] = str(value)

    def note_all(self, **kwargs: Any) -> None:
        """Note several options."""
        for key, value in kwargs.items():
            self.note(key, value)


class _JobWaits(BaseException):
    """The job has started its queries, and waits for one: it has nothing more to define."""


class _JobGoesOn(BaseException):
    """The job has defined no query for a while: it sleeps in a loop of its own, say."""


class _Planned(Exception):
    """Ends a planned batch."""


class _NotStarted:
    """Stands for a query that was not started. A job may keep it, log it and stop it; where it
    waits for it, it has nothing more to define.
    """

    def __init__(self, name: str) -> None:
        self.id = self.runId = "not started"
        self.name, self.lastProgress = name or None, None
        self.recentProgress: list[object] = []
        self.status = {"message": "Not started", "isDataAvailable": False}

    def exception(self) -> None:
        """Return what ended it: nothing."""

    def stop(self) -> None:
        """Stop nothing."""

    def __getattr__(self, name: str) -> Any:
        raise _JobWaits


def plan_job(job: str, arguments: Sequence[str], timeout_s: float) -> list[QueryPlan]:
    """Run the job's file as far as its queries are defined, and return the plan of each.

    Whatever the job itself raises is raised, but for its end by ``sys.exit``. What it prints goes
    to stderr.

    :param job: a Python file, which is run as ``__main__`` in this process.
    :param timeout_s: how long the job may run until it defines its first query, and after each;
        then it is left, with a warning. In the main thread only, where signals come.
    """
    plans: list[QueryPlan] = []
    path = [str(Path(job).resolve().parent), *sys.path[1:]]
    with _alarm(timeout_s) as alarm:

        def found(definition: _Definition) -> None:
            alarm(0)
            plans.append(_plan(definition))
            alarm(timeout_s)

        try:
            with (
                _queries_intercepted(found),
                _replaced(sys, argv=[job, *arguments], path=path),
                redirect_stdout(sys.stderr),
            ):
                try:
                    runpy.run_path(job, run_name="__main__")
                finally:
                    alarm(0)
        except _JobWaits:
            pass
        except _JobGoesOn:
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
        except SystemExit as left:
            if left.code:
                raise ConfigurationError(
                    f"{job} ended itself before all its queries were defined: {left.code!r}",
                    next_step="see what it has printed; its own arguments stand behind its name",
                ) from left
    if not plans:
        raise ConfigurationError(
            f"{job} has started no streaming query, so that there is nothing to plan",
            next_step="name the file that starts its queries when it is run as __main__",
        )
    return plans


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


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class _Writers:
    """What writers of queries are told; ``found`` is given each query in place of its start."""

    def __init__(self, found: Callable[[_Definition], None]) -> None:
        self._found = found
        self._is_planning = False
        self._start = DataStreamWriter.start
        self._known: dict[int, tuple[Any, _Definition]] = {}

    def definition(self, writer: Any) -> _Definition:
        """Return what the writer was told so far."""
        # The writer is kept, so that no other one gets its id
        return self._known.setdefault(id(writer), (writer, _Definition(writer._df)))[1]

    def noting(self, name: str, note: Callable[..., None]) -> Callable[..., Any]:
        """Return a method of writers that notes what it is given, and does what it did."""
        original = getattr(DataStreamWriter, name)

        @functools.wraps(original)
        def call(writer: Any, *arguments: Any, **kwargs: Any) -> Any:
            if not self._is_planning:
                note(self.definition(writer), *arguments, **kwargs)
            return original(writer, *arguments, **kwargs)

        return call

    def start(self, writer: Any, *arguments: Any, **kwargs: Any) -> Any:
        """Have the query looked at, and start none."""
        if self._is_planning:
            return self._start(writer, *arguments, **kwargs)
        definition = self.definition(writer)
        definition.mode = kwargs.pop("outputMode", None) or definition.mode
        definition.name = kwargs.pop("queryName", None) or definition.name
        definition.note_all(**{key: value for key, value in kwargs.items() if value is not None})
        self._is_planning = True
        try:
            self._found(definition)
        finally:
            self._is_planning = False
        return _NotStarted(definition.name)


@contextmanager
def _connect_refused() -> Iterator[None]:
    """Let Spark Connect, where it is installed, start no query either: it would run for real."""
    try:
        # Not by trying alone: PySpark 4.3 takes a process without a main file for its doctests,
        # and ends it (sys.exit) where this is missing.
        if find_spec("grpc") is None:
            raise ImportError
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectWriter
    except ImportError:
        yield
        return

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedQuery(
            "the job starts a query by Spark Connect, which Onceward does not support",
            next_step="start it from a classic Spark session",
        )

    with _replaced(ConnectWriter, start=refuse, toTable=refuse):
        yield


@contextmanager
def _queries_intercepted(found: Callable[[_Definition], None]) -> Iterator[None]:
    writers = _Writers(found)

    def start(writer: Any, *arguments: Any, **kwargs: Any) -> Any:
        return writers.start(writer, *arguments, **kwargs)

    def waits(*_: Any, **__: Any) -> Any:
        raise _JobWaits

    def supervised(begin: Callable[[], object], *_: Any) -> Any:
        begin()
        raise _JobWaits

    notes: dict[str, Callable[..., None]] = {
        "option": _Definition.note,
        "options": _Definition.note_all,
        "outputMode": lambda query, outputMode: setattr(query, "mode", outputMode),  # noqa: N803
        "queryName": lambda query, queryName: setattr(query, "name", queryName),  # noqa: N803
        "foreachBatch": lambda query, func: setattr(query, "function", func),
    }
    noted = {method: writers.noting(method, note) for method, note in notes.items()}
    with (
        _replaced(DataStreamWriter, start=start, toTable=start, **noted),
        _connect_refused(),
        _replaced(StreamingQueryManager, awaitAnyTermination=waits),
        _replaced(waiting, QueryEnd=waits),
        _replaced(supervising, _supervise=supervised),
    ):
        yield


def _plan(definition: _Definition) -> QueryPlan:
    sinks = _sinks(definition.function)
    name = definition.name or ", ".join(sorted({str(sink._policy.pipeline) for sink in sinks}))
    checkpoint = _checkpoint(definition)
    if not sinks:
        text = "it writes by no sink of Onceward that can be found; it is not looked at"
        return QueryPlan(name or "a query", checkpoint, (Line(Weight.AS_BEFORE, "start", text),))
    if not checkpoint:
        text = "it has no checkpointLocation; give it one by writeStream.option"
        return QueryPlan(name, "", (Line(Weight.REFUSED, "start", text),))
    with tempfile.TemporaryDirectory(
        prefix="onceward-plan-", ignore_cleanup_errors=True
    ) as folder:
        before = _copy_logs(checkpoint, folder)
        look = _Look(sinks)
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


def _sinks(function: Any) -> list[ForeachBatchSink]:
    """Return the sinks that a ``foreachBatch`` function names: itself, or in its closure."""
    if isinstance(function, ForeachBatchSink):
        return [function]
    owner = getattr(function, "__self__", None)
    objects = list(vars(owner).values()) if hasattr(owner, "__dict__") else []
    with suppress(TypeError):
        variables = inspect.getclosurevars(inspect.unwrap(function))
        objects += [*variables.nonlocals.values(), *variables.globals.values()]
    return [each for each in objects if isinstance(each, ForeachBatchSink)]


def _checkpoint(definition: _Definition) -> str:
    location = definition.options.get("checkpointlocation")
    if location:
        return location
    root = definition.frame.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
    return f"{root}/{definition.name}" if root and definition.name else ""


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
        self.lines: list[Line] = []
        self.planned: RunningBatch | None = None
        self.first: RunningBatch | None = None
        """The batch that a start would begin with; None while there is nothing to read."""
        self.shuffle_partitions = 0

    def at(self, definition: _Definition, folder: str, before: _Before) -> str:
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
        definition: _Definition,
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
                    self.lines.append(
                        _judge(sink, self.planned, before.planned, frame, checkpoint)
                    )
            except OncewardError as error:
                failed.append(summary(error))
            raise _Planned

        try:
            with quiet(definition.frame.sparkSession):
                query = (
                    definition.frame.writeStream.outputMode(definition.mode)
                    .option("checkpointLocation", f"file://{folder}")
                    .trigger(availableNow=True)
                    .foreachBatch(look)
                    .start()
                )
                try:
                    has_ended = query.awaitTermination(_SECONDS)
                except PySparkException:
                    has_ended = True
                # With brokers that keep silent it takes its time
                with suppress(TimeoutError):
                    waiting.within(_STOP_SECONDS, query.stop)
        except PySparkException as error:
            return cut(str(error))
        if not has_ended:
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
        settings = known_settings(source.bootstrap_servers)
        start = partition_offsets(running.sources[source.index].start)
        if settings is not None and start:
            client = KafkaClient.shared(settings)
            earliest = list_offsets(client, start, EARLIEST, timeout_ms=_ASK_MS)
            found += compare_kept(start, earliest)
    return found


def _judge(
    sink: ForeachBatchSink, running: RunningBatch, planned: int, frame: DataFrame, checkpoint: str
) -> Line:
    policy = sink._policy
    if not policy.has_ledger:
        return Line(Weight.AS_BEFORE, "start", f"delivery={policy.delivery!r} keeps no ledger")
    newest = sink.newest_record()
    journal = Journal(policy.pipeline, running.run_id, checkpoint_files(frame, policy.pipeline))
    # What it names is the job's, and not the copy that is looked at
    history = replace(call_history(running, newest, policy, journal), checkpoint=checkpoint)
    return decide(running, newest, policy.resume, history, planned)


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
