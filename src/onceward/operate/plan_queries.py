"""Queries of a job that is run to be looked at: each is given to whoever looks, and none starts.

Called by :mod:`onceward.operate.plan`. Readers do not clean up their sources meanwhile:
``FileStreamSource`` deletes or moves the files of the last batch when the next one is planned. Nor
are metrics served or pushed, in the place of those of the copy that runs. A schema registry is
asked about schemas, and none is registered.

:data:`start_query` alone starts one, for whoever looks. No call of the job's comes to it:
pipelines may be in threads, which start theirs side by side, and after the job's file has ended.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from onceward import surroundings
from onceward.errors import (
    OncewardError,
    RegistryRefused,
    SchemaUnknown,
    UnsupportedQuery,
    UnsupportedSchema,
)
from onceward.formats.registry.answers import LARGEST_ID, RegisteredSchema
from onceward.formats.registry.client import SchemaRegistry
from onceward.formats.registry.conversation import NO_RIGHT
from onceward.operate import metrics, stopping, waiting
from onceward.operate import supervise as supervising
from onceward.operate.plan_lines import Line, Weight
from onceward.operate.run_job import is_at_work

_CLEANS_UP = "cleansource"
_AT_ONCE = "0 seconds"
_LOADS = ("csv", "json", "load", "orc", "parquet", "text", "xml")
_LOOK_SECONDS = 0.2

start_query = DataStreamWriter.start
for_good = ExitStack()
"""What is replaced for the rest of the process: threads of the job may outlive its plan."""


@dataclass
class Definition:
    """A query as the job defines it, from the calls to its writer."""

    frame: DataFrame
    options: dict[str, str] = field(default_factory=dict)
    mode: str = "append"
    name: str = ""
    function: Callable[..., Any] | None = None
    trigger: dict[str, Any] = field(default_factory=lambda: {"processingTime": _AT_ONCE})

    def note_trigger(self, **kwargs: Any) -> None:
        """Note the trigger, by which a source may be planned in another way, but not its interval:
        whoever looks waits for none.
        """
        self.trigger = kwargs
        if kwargs.get("processingTime"):
            self.trigger = {"processingTime": _AT_ONCE}

    def note(self, key: str, value: Any) -> None:
        """Note an option; their names have no case."""
        self.options[key.lower()] = str(value)

    def note_all(self, **kwargs: Any) -> None:
        """Note several options."""
        for key, value in kwargs.items():
            self.note(key, value)


class JobWaits(BaseException):
    """The job has started its queries, and waits for one: it has nothing more to define."""


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
        raise JobWaits


@contextmanager
def replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Give ``owner`` other attributes inside."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


class JobWriters:
    """What writers are told; ``found`` is given each query in place of its start, in turn."""

    def __init__(self, found: Callable[[Definition], None]) -> None:
        self._found = found
        self._lock = threading.Lock()
        self._threads_before = set(threading.enumerate())
        self._known: dict[int, tuple[Any, Definition]] = {}
        self._failure: BaseException | None = None
        self._failed_before = stopping.failures()
        # Ids are counted from 1: no schema will ever have these. Threads may ask side by side
        self._stand_ins = itertools.count(LARGEST_ID, -1)
        self._lines: list[Line] = []

    def note_failure(self, failed: threading.ExceptHookArgs) -> None:
        """Note what a thread of the job has raised (``threading.excepthook``)."""
        if not isinstance(failed.exc_value, JobWaits):
            self._failure = self._failure or failed.exc_value

    def definition(self, writer: Any) -> Definition:
        """Return what the writer was told so far."""
        # The writer is kept, so that no other one gets its id
        return self._known.setdefault(id(writer), (writer, Definition(writer._df)))[1]

    def noting(self, name: str, note: Callable[..., None]) -> Callable[..., Any]:
        """Return a method of writers that notes what it is given, and does what it did."""
        original = getattr(DataStreamWriter, name)

        @functools.wraps(original)
        def call(writer: Any, *arguments: Any, **kwargs: Any) -> Any:
            note(self.definition(writer), *arguments, **kwargs)
            return original(writer, *arguments, **kwargs)

        return call

    def start(self, writer: Any, *_: Any, **kwargs: Any) -> Any:
        """Have the query looked at, and start none."""
        definition = self.definition(writer)
        definition.mode = kwargs.pop("outputMode", None) or definition.mode
        definition.name = kwargs.pop("queryName", None) or definition.name
        definition.note_all(**{key: value for key, value in kwargs.items() if value is not None})
        with self._lock:
            self._found(definition)
        return _NotStarted(definition.name)

    def look_up_schema(
        self, registry: SchemaRegistry, subject: str, schema_text: str, **how: Any
    ) -> int:
        """Return the id of a schema that is to be registered; where it is not, one that stands for
        it in this process. Called in the place of ``SchemaRegistry.register``.
        """
        may_be_there = ""
        try:
            return registry.lookup(subject, schema_text, **how)
        except SchemaUnknown:
            pass
        except RegistryRefused as refused:
            # Rights to register need not be such to look up
            if refused.details.get("status") != NO_RIGHT:
                raise
            may_be_there = f", if it is not there, which is not known: {refused.message}"
        kind = how.get("schema_type", "AVRO")
        stands_for_it = next(self._stand_ins)
        registry._remember(RegisteredSchema(stands_for_it, kind, schema_text))
        try:
            fits = registry.is_compatible(subject, schema_text, schema_type=kind)
        except UnsupportedSchema:
            raise
        except OncewardError as error:
            fits, why = None, f"whether the registry takes it is not known: {error.message}"
        if fits is not None:
            # Older ones (…_TRANSITIVE) are compared at the start alone
            why = f"it {'fits' if fits else 'does not fit'} the newest version there"
        # One that is there is not compared again
        is_refused = fits is False and not may_be_there
        weight = Weight.REFUSED if is_refused else Weight.CHANGES
        text = f"a schema would be registered under {subject}{may_be_there}; {why}"
        self._lines.append(Line(weight, "schemas", text))
        return stands_for_it

    def take_lines(self) -> tuple[Line, ...]:
        """Return what is to be said of schemas since the last call."""
        lines, self._lines = self._lines, []
        return tuple(lines)

    def has_threads_left(self) -> bool:
        """Return whether threads that the job has left may yet start a query."""
        return any(map(is_at_work, set(threading.enumerate()) - self._threads_before))

    def wait_for_threads(self) -> None:
        """Wait for them, as ``onceward run`` does, and raise what one has raised."""
        # A pool's thread may not have taken its work yet
        surroundings.sleep(_LOOK_SECONDS)
        while self._failure is None and (self._lock.locked() or self.has_threads_left()):
            surroundings.sleep(_LOOK_SECONDS)
        self.raise_failure()

    def raise_failure(self) -> None:
        """Raise what a thread of the job has raised, of itself or in ``ow.wait``."""
        failed = [each for each in stopping.failures() if each not in self._failed_before]
        if failure := self._failure or next(iter(failed), None):
            raise failure

    def close(self) -> None:
        """End each thread that starts a query from now on: none is looked at any more."""

        def refuse(_: Definition) -> None:
            raise JobWaits

        with self._lock:
            self._found = refuse


@contextmanager
def _connect_refused() -> Iterator[None]:
    """Let Spark Connect, where it is installed, start no query either: it would run for real."""
    connect = None
    # Not by trying alone: PySpark 4.3 takes a process without a main file for its doctests, and
    # ends it (sys.exit) where this is missing.
    with suppress(ImportError):
        if find_spec("grpc") is not None:
            connect = import_module("pyspark.sql.connect.streaming.readwriter")
    if connect is None:
        yield
        return

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedQuery(
            "the job starts a query by Spark Connect, which Onceward does not support",
            next_step="start it from a classic Spark session",
        )

    with replaced(connect.DataStreamWriter, start=refuse, toTable=refuse):
        yield


def _option(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def option(reader: Any, key: str, value: Any) -> Any:
        return reader if key.lower() == _CLEANS_UP else original(reader, key, value)

    return option


def _not_cleaning_up(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(reader: Any, *arguments: Any, **options: Any) -> Any:
        kept = {key: value for key, value in options.items() if key.lower() != _CLEANS_UP}
        return original(reader, *arguments, **kept)

    return call


@contextmanager
def queries_intercepted(found: Callable[[Definition], None]) -> Iterator[JobWriters]:
    """Give ``found`` each query that is started inside."""
    writers = JobWriters(found)

    def start(writer: Any, *arguments: Any, **kwargs: Any) -> Any:
        return writers.start(writer, *arguments, **kwargs)

    def waits(*_: Any, **__: Any) -> Any:
        raise JobWaits

    def supervised(begin: Callable[[], object], *_: Any) -> Any:
        begin()
        raise JobWaits

    def looks_up(registry: SchemaRegistry, subject: str, schema_text: str, **how: Any) -> int:
        return writers.look_up_schema(registry, subject, schema_text, **how)

    def tells_nobody(*_: Any, **__: Any) -> None: ...

    notes: dict[str, Callable[..., None]] = {
        "option": Definition.note,
        "options": Definition.note_all,
        "outputMode": lambda query, outputMode: setattr(query, "mode", outputMode),  # noqa: N803
        "queryName": lambda query, queryName: setattr(query, "name", queryName),  # noqa: N803
        "trigger": Definition.note_trigger,
        "foreachBatch": lambda query, func: setattr(query, "function", func),
    }
    readers = {
        name: _not_cleaning_up(getattr(DataStreamReader, name))
        for name in ("options", *_LOADS)
        if hasattr(DataStreamReader, name)
    }
    noted = {method: writers.noting(method, note) for method, note in notes.items()}
    with (
        replaced(DataStreamWriter, start=start, toTable=start, **noted),
        replaced(DataStreamReader, option=_option(DataStreamReader.option), **readers),
        _connect_refused(),
        replaced(StreamingQueryManager, awaitAnyTermination=waits),
        replaced(waiting, QueryEnd=waits),
        replaced(supervising, _supervise=supervised),
        replaced(SchemaRegistry, register=looks_up),
        replaced(metrics.Metrics, push=tells_nobody, serve=tells_nobody),
    ):
        yield writers
