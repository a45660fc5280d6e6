"""What Spark knows about its running batch: ids, offsets, plan. The one reader of its insides.

Called by ``engine.calls.foreach_batch`` at the start of every batch, in the driver, inside
``foreachBatch`` (there the Python call runs on the query's own JVM thread, so the thread's local
properties name query and batch).

Sources of these facts: ``StreamExecution`` (QUERY_ID_KEY, availableOffsets, committedOffsets,
lastExecution), ``MicroBatchExecution`` (BATCH_ID_KEY, sources),
``SharedState.activeStreamingQueries`` (Spark 3.1 and later: all sessions' running queries by id; a
batch's frame belongs to a cloned session that knows no streams of its own).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache, reduce
from typing import Any

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceward.errors import ROWS_REFUSED, UnsupportedQuery
from onceward.ids import BatchId, PipelineId, SourceRange
from onceward.spark.batch.checkpoint_files import CheckpointFiles
from onceward.spark.batch.refused_modes import refuse_modes
from onceward.spark.session.settings import use_the_drivers_python

STATE_FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
# How every stateful physical operator prints its StatefulOperatorStateInfo
_STATEFUL, _SHOWN_FIELDS = "state info [", 1


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """One Kafka source of a query: which of ``RunningBatch.sources`` it is, where it reads, and
    whether it passes over records that are gone (``failOnDataLoss=false``). ``finds`` says whether
    its pattern fits a topic: only of a pattern brokers may leave out a topic without a word.
    ``names``: the topics of its list (``subscribe``).
    """

    index: int
    bootstrap_servers: frozenset[str]
    may_lose: bool = False
    finds: Callable[[str], bool] = field(default=lambda topic: True, compare=False)
    names: frozenset[str] = frozenset()

    def reads(self, topic: str) -> bool:
        """Return whether a batch that is planned now would have the topic, if it is there."""
        return topic in self.names or self.finds(topic)


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """The batch that Spark is running.

    ``run_id`` changes with every start of the query, ``batch.query_id`` lives in the checkpoint.
    ``input_records`` is the number of offsets the batch spans when all sources are Kafka (an upper
    bound of its records), else None. ``computes_once``: what Spark commits as the query's state is
    of the first computation of the batch in a run. ``frame``: what its function was given.
    """

    batch: BatchId
    run_id: str
    name: str
    sources: tuple[SourceRange, ...]
    kafka_sources: tuple[KafkaSource, ...]
    stateful: bool
    input_records: int | None
    computes_once: bool = False
    history: History | None = field(default=None, compare=False, repr=False)
    frame: DataFrame | None = field(default=None, compare=False, repr=False)


def running_batch(frame: DataFrame, batch_id: int) -> RunningBatch:
    """Return the running batch of the query that ``frame`` belongs to.

    :raises UnsupportedQuery: not called by Spark inside ``foreachBatch``, or by a mode of Spark
        under which the promise cannot be kept.
    """
    if getattr(frame.sparkSession, "_jsparkSession", None) is None:
        raise UnsupportedQuery(
            "the sink was called with a Spark Connect DataFrame",
            next_step="start the query from a classic Spark session; Connect runs foreachBatch on "
            "the server",
        )
    context = frame.sparkSession.sparkContext
    use_the_drivers_python(context)
    query_id: str = context.getLocalProperty(QUERY_ID) or ""
    execution = _execution(frame, query_id)
    # Spark counts the batch as done when the function returns, whatever its threads do.
    if _in_another_thread(context, execution):
        raise _called_in_another_thread()
    run = _run(frame, execution)
    running = context.getLocalProperty(_BATCH_ID)
    if running is not None and int(running) != int(batch_id):
        raise UnsupportedQuery(
            f"the sink was given batch_id={batch_id} while Spark runs batch {running}",
            next_step="pass on the batch id that Spark gives to the foreachBatch function",
            details={ROWS_REFUSED: True},
        )
    described = _describe(run, execution, BatchId(query_id, int(batch_id)))
    once = described.stateful and _state_names_computations(frame.sparkSession)
    return replace(described, computes_once=once, history=History(execution), frame=frame)


class History:
    """What Spark says of the batches before the one that runs. Asked only where something is not
    as usual: answers cost calls into the JVM, some a look at a file.
    """

    def __init__(self, execution: Any) -> None:
        self.execution = execution
        """The query's ``StreamExecution``."""

    @property
    def checkpoint(self) -> str:
        """Where the query keeps its logs."""
        return str(self.execution.resolvedCheckpointRoot())

    def ends(self, batch_id: int) -> tuple[Any, ...] | None:
        """Return where a batch ends, by source (None: nothing yet), as ``OffsetSeqLog`` has it;
        None: it has dropped it (``minBatchesToRetain``).
        """
        found = self.execution.offsetLog().get(batch_id)
        if found.isEmpty():
            return None
        logged = found.get()
        kind = logged.getClass().getSimpleName()
        # spark.sql.streaming.offsetLog.formatVersion=2, by the sources' names: their places
        if kind == "OffsetMap":
            by_name = logged.offsetsMap()
            # A stream that is used twice is in it once
            if by_name.size() != self.execution.sources().size():
                return None
            return tuple(_offset(by_name.apply(str(index))) for index in range(by_name.size()))
        if kind != "OffsetSeq":
            return None
        return tuple(map(_offset, items(logged.offsets())))

    def first_of_run(self) -> bool:
        """Return whether this run has no batch before (``IncrementalExecution.isFirstBatch``)."""
        return bool(self.execution.lastExecution().isFirstBatch())


def fingerprint(frame: DataFrame) -> int:
    """Hash the plan of a frame: equal for equal plans, however made; 0 where Spark cannot tell."""
    try:
        return int(frame.semanticHash())
    except Exception:  # noqa: BLE001 — the frame is broken, which is why it is asked for
        return 0


def failed_call(frame: DataFrame, batch_id: int) -> tuple[int, bool] | None:
    """Return, for a failed call, the number of the batch that Spark runs, and whether the call
    came in another thread.

    In a thread of the function's, Spark may have gone on by then. None outside a running query.
    """
    execution = query_by_id(frame)
    if execution is None:
        return None
    context = frame.sparkSession.sparkContext
    running = context.getLocalProperty(_BATCH_ID)
    # A function may have passed on another one
    number = batch_id if running is None else int(running)
    return number, _in_another_thread(context, execution)


def checkpoint_files(frame: DataFrame, pipeline: PipelineId) -> CheckpointFiles:
    """Return our files beside the checkpoint of the query that ``frame`` belongs to."""
    root = str(query_by_id(frame).resolvedCheckpointRoot())
    return CheckpointFiles(frame.sparkSession, f"{root}/onceward/{pipeline}")


def current_run_id(frame: DataFrame) -> str:
    """Return the run id of the query of ``frame``; empty outside of one. Not the thread's job
    group, which Spark sets to it: a function may set another."""
    execution = query_by_id(frame)
    return "" if execution is None else str(execution.runId().toString())


def query_by_id(frame: DataFrame, query_id: str | None = None) -> Any:
    """Return the running query of ``frame``, also in a thread of its function's; or None.

    :param query_id: its :data:`QUERY_ID`, which a thread that is not its own does not know.
    """
    session = frame.sparkSession
    if getattr(session, "_jsparkSession", None) is None:
        return None
    query_id = query_id or session.sparkContext.getLocalProperty(QUERY_ID)
    if query_id:
        return _active_query(session, query_id)
    for execution in session._jsparkSession.sharedState().activeStreamingQueries().values():
        if execution.sparkSessionForStream().equals(session._jsparkSession):
            return execution
    return None


def is_being_stopped(frame: DataFrame, query_id: str | None = None) -> bool:
    """Return whether ``stop()`` was called on the query that ``frame`` belongs to.

    ``StreamExecution.stop`` says so before it cancels jobs and interrupts the thread; a batch that
    fails by itself does so while the query is active.
    """
    try:
        execution = query_by_id(frame, query_id)
        return execution is not None and not execution.isActive()
    except Exception:  # noqa: BLE001 — the JVM is gone, and whoever asks has an error that says so
        return False


def is_running(frame: DataFrame, query_id: str) -> bool:
    """Return whether Spark lists the query as running, in any session of this driver."""
    return _active_query(frame.sparkSession, query_id) is not None


def run_is_active(session: SparkSession, query_id: str, run_id: str) -> bool:
    """Return whether that run of the query has not ended. For any thread."""
    execution = _active_query(session, query_id)
    return execution is not None and str(execution.runId().toString()) == run_id


def running_queries() -> list[StreamingQuery]:
    """Return the running queries of this driver, whichever session they were started in."""
    session = SparkSession._instantiatedSession
    if session is None or SparkContext._active_spark_context is None:
        return []
    running = session._jsparkSession.sharedState().activeStreamingQueries().values()
    return [StreamingQuery(execution) for execution in running]


def jvm_is_gone() -> bool:
    """Return whether the JVM that this process has started has ended."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _active_query(session: SparkSession, query_id: str) -> Any:
    """Return Spark's ``StreamExecution`` of a running query of this driver, or None."""
    context = session.sparkContext
    # Asked each time: a session that somebody made anew in the same context has a state of its own
    running = session._jsparkSession.sharedState().activeStreamingQueries()
    return running.get(_java_method(context._gateway, "util.UUID.fromString")(query_id))


@lru_cache(maxsize=8)
def _java_method(gateway: Any, name: str) -> Any:
    """Return the static method ``java.{name}``; py4j asks for each part of it at each use."""
    return reduce(getattr, name.split("."), gateway.jvm.java)


def _execution(frame: DataFrame, query_id: str) -> Any:
    if not query_id and query_by_id(frame) is not None:
        raise _called_in_another_thread()
    if not query_id:
        raise UnsupportedQuery(
            "the sink was called outside a streaming query",
            next_step="hand it to Spark: frame.writeStream.foreachBatch(sink).start(); a batch "
            "job has no checkpoint to be exactly-once with",
        )
    execution = _active_query(frame.sparkSession, query_id)
    if execution is None:
        raise UnsupportedQuery(
            f"Spark does not list query {query_id} as running",
            next_step="start the query with writeStream.start() in this driver",
        )
    return execution


def _in_another_thread(context: Any, execution: Any) -> bool:
    thread = _java_method(context._gateway, "lang.Thread.currentThread")()
    return not thread.equals(execution.queryExecutionThread())


def _called_in_another_thread() -> UnsupportedQuery:
    return UnsupportedQuery(
        "the sink was called in a thread that the foreachBatch function has started; Spark counts "
        "a batch as done when the function returns, and the rows of this call are not written",
        next_step="call the sink in the function itself; all executors write the frames of a "
        "batch anyway (and do not set PYSPARK_PIN_THREAD=false)",
        details={ROWS_REFUSED: True},
    )


def _state_names_computations(session: SparkSession) -> bool:
    """Return whether the state store's format names computations (SPARK-51573): in format 2 each
    computation of a batch has a state of its own, and Spark commits the first one of a run, also
    where that attempt failed. ``StateStoreConf``: the format is 1 unless it is set.
    """
    setting = str(session.conf.get(STATE_FORMAT))
    return setting.strip().isdecimal() and int(setting) >= 2


@dataclass(frozen=True, slots=True)
class _RunFacts:
    """What stays the same as long as a query runs: ``StreamExecution`` makes its plan, sources and
    trigger once, and no rule of Spark's leaves a stateful operator out of one batch, also where
    nothing has come (``PropagateEmptyRelation``: its state may have to be cleaned up). Each fact
    costs calls into the JVM, half a millisecond each.
    """

    run_id: str
    name: str
    streams: tuple[Any, ...]
    kafka_indices: tuple[int, ...]
    kafka_sources: tuple[KafkaSource, ...]
    stateful: bool


_runs: OrderedDict[str, _RunFacts] = OrderedDict()
_MOST_RUNS = 50
_lock = threading.Lock()


def _run(frame: DataFrame, execution: Any) -> _RunFacts:
    """Return the run of a batch; learn of a new one. :raises UnsupportedQuery: its mode."""
    run_id = str(execution.runId().toString())
    with _lock:
        run = _runs.get(run_id)
        if run is not None:
            _runs.move_to_end(run_id)
            return run
    refuse_modes(frame.sparkSession, execution)
    stateful = any(state_texts(execution.lastExecution().executedPlan()))
    found = _facts(execution, run_id, stateful=stateful)
    with _lock:
        _runs[run_id] = found
        while len(_runs) > _MOST_RUNS:
            _runs.popitem(last=False)
    return found


def _facts(execution: Any, run_id: str, *, stateful: bool) -> _RunFacts:
    streams = tuple(items(execution.sources()))
    kafka = tuple(
        index
        for index, stream in enumerate(streams)
        if stream.getClass().getSimpleName().startswith("Kafka")
    )
    relations = zip(kafka, kafka_options(execution.analyzedPlan()), strict=False)
    return _RunFacts(
        run_id,
        str(execution.name() or ""),
        streams,
        kafka,
        tuple(
            KafkaSource(
                index,
                _listed(options, "kafka.bootstrap.servers"),
                _may_lose(options),
                _pattern(options),
                _listed(options, "subscribe"),
            )
            for index, options in relations
        ),
        stateful,
    )


def ended_batch(query: StreamingQuery) -> RunningBatch | None:
    """Return the newest batch logged when ``query`` failed, without ``stateful``; None if none."""
    execution = query._jsq.streamingQuery()
    newest = execution.offsetLog().getLatestBatchId()
    if newest.isEmpty():
        return None
    facts = _facts(execution, str(query.runId), stateful=False)
    return _describe(facts, execution, BatchId(str(query.id), int(newest.get())))


def state_texts(plan: Any) -> Iterator[str]:
    """Yield how each of the plan's operators that keeps state prints itself. Operator by operator:
    the text of a whole plan is cut off at ``spark.sql.maxPlanStringLength``.

    Without a look under ``AdaptiveSparkPlanExec``, which Spark uses for stateless queries only.
    """
    waiting = [plan]
    while waiting:
        operator = waiting.pop()
        if _STATEFUL in (text := str(operator.simpleString(_SHOWN_FIELDS))):
            yield text
        waiting += items(operator.children())


def _describe(run: _RunFacts, execution: Any, batch: BatchId) -> RunningBatch:
    available, committed = execution.availableOffsets(), execution.committedOffsets()
    sources: list[SourceRange] = []
    for stream in run.streams:
        start = _offset(committed.get(stream))
        if start is None:
            start = _initial_offset(stream)
        end = _offset(available.get(stream))
        # No end: nothing has come yet
        sources.append(SourceRange(start, start if end is None else end))
    is_kafka = len(run.kafka_indices) == len(sources)
    return RunningBatch(
        batch=batch,
        run_id=run.run_id,
        name=run.name,
        sources=tuple(sources),
        kafka_sources=run.kafka_sources,
        stateful=run.stateful,
        input_records=_input_records(sources) if is_kafka else None,
    )


def _offset(option: Any) -> Any:
    """Parse a Scala ``Option[Offset]`` from JSON; text that is not JSON stays text."""
    if option.isEmpty():
        return None
    text = option.get().json()
    try:
        return json.loads(text)
    except ValueError:
        return text


def _initial_offset(stream: Any) -> Any:
    """Return where a source begins that has committed nothing, as ``MicroBatchExecution`` asks.

    ``SparkDataStream.initialOffset`` answers the same at every call (Kafka's keeps it in the
    checkpoint). Sources of the older interface (``Source``) do not say.
    """
    try:
        return json.loads(stream.initialOffset().json())
    except Exception:  # noqa: BLE001
        # The old interface raises UnsupportedOperationException through py4j.
        return None


def kafka_options(plan: Any) -> Iterator[Any]:
    """Yield the options (a Java map) of each Kafka relation in the analyzed plan of a stream."""
    for leaf in leaves(plan, "StreamingRelationV2"):
        if leaf.sourceName() == "kafka":
            yield leaf.extraOptions()


def leaves(plan: Any, kind: str) -> Iterator[Any]:
    """Yield the leaves of a plan that are of that class of Spark's, in plan order."""
    found = items(plan.collectLeaves())
    return (leaf for leaf in found if leaf.getClass().getSimpleName() == kind)


def items(found: Any) -> list[Any]:
    """Return the items of a Scala ``Seq``."""
    return [found.apply(index) for index in range(found.size())]


def _listed(options: Any, name: str) -> frozenset[str]:
    """Return what an option lists: brokers (``host:port``), or topics."""
    listed = options.get(name) or ""
    return frozenset(each.strip() for each in listed.split(",") if each.strip())


def _may_lose(options: Any) -> bool:
    return str(options.get("failOnDataLoss") or "").strip().lower() == "false"


def _pattern(options: Any) -> Callable[[str], bool]:
    text = options.get("subscribePattern")
    if not text:
        return lambda topic: False
    jvm: Any = SparkSession.active()._jvm
    pattern = jvm.java.util.regex.Pattern.compile(text)
    # As Spark does (SubscribePatternStrategy)
    return lambda topic: bool(pattern.matcher(topic).find())


def _input_records(sources: list[SourceRange]) -> int | None:
    total = 0
    for source in sources:
        if source.start is None or source.end is None:
            return None
        for topic, partitions in source.end.items():
            begun = source.start.get(topic, {})
            total += sum(end - begun.get(partition, 0) for partition, end in partitions.items())
    return total
