"""The metrics of pipelines: their names, and how events of batches become their numbers. Pure.

Used by :mod:`onceward.operate.metrics`, which listens and serves. Times are those of the caller.
"""

from __future__ import annotations

import base64
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from onceward import events
from onceward.engine.calls.advice import paragraph
from onceward.libraries import release


class Family(NamedTuple):
    """One metric: name without ``onceward_``, kind, what it says, labels beside ``pipeline``."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...] = ()


# fmt: off
FAMILIES = tuple(Family(*row) for row in (
    ("batches", "counter", "Batches committed; `how`: written, or replayed (committed by an "
     "earlier run, and nothing sent)", ("how",)),
    ("records", "counter", "Records committed, dead letters among them"),
    ("bytes", "counter", "Bytes of keys, values and headers committed, before compression; of "
     "Kafka sinks"),
    ("attempts", "counter", "Batch attempts, committed or aborted"),
    ("aborts", "counter", "Batch attempts aborted, by the class of the error", ("reason",)),
    ("failures", "counter", "Batches that failed for good and ended their query, by the class of "
     "the error", ("error",)),
    ("restarts", "counter", "Starts after a failure by `ow.supervise`, by the class of the error",
     ("error",)),
    ("dead_letters", "counter", "Dead letters committed; `class`: RecordTooLarge, or "
     "InvalidRecord for what a format could not read", ("class",)),
    ("step_seconds", "histogram", "Seconds of each step of a batch", ("step",)),
    ("transaction_seconds", "histogram", "Seconds that a Kafka transaction was open before its "
     "commit, from its first record"),
    ("transaction_open_seconds", "gauge", "Age of the transaction that is open now, from the "
     "start of its first Spark job; 0: none is open"),
    ("transaction_timeout_seconds", "gauge", "transaction.timeout.ms: the coordinator aborts what "
     "is open longer"),
    ("last_commit_age_seconds", "gauge", "Seconds since the last commit, or since the start; "
     "computed at the scrape"),
    ("trigger_interval_seconds", "gauge", "Interval of the query's trigger; 0: none"),
    ("idle", "gauge", "1: a trigger has found nothing new since the last commit, five triggers "
     "ago at most, or two minutes"),
    ("lag_records", "gauge", "Records between the last committed batch and the last stable offset "
     "of its Kafka sources"),
    ("partition_lag_records", "gauge", "Lag by partition; only with `per_partition=True`",
     ("topic", "partition")),
    ("watermark_timestamp_seconds", "gauge", "Watermark of the last trigger, Unix time"),
    ("event_time_delay_seconds", "gauge", "Start of the last trigger with data, less the largest "
     "event time in it"),
    ("state_rows", "gauge", "Rows in the state of all operators"),
    ("state_bytes", "gauge", "Memory of the state of all operators"),
    ("epoch", "gauge", "Epoch of the last committed batch; with other ledgers than Kafka's its "
     "attempt"),
    ("ledger_sequence", "gauge", "Sequence of the newest ledger record"),
    ("start_time_seconds", "gauge", "Unix time when this run opened the ledger; of the first run "
     "under `ow.supervise` when it was started"),
    ("info", "gauge", "1 for each process that owns the pipeline", ("version", "query_id")),
))
# fmt: on
"""At most 25; the reference, the alert rules and the dashboard are checked against it."""

PREFIX = "onceward_"
BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)
_LEAST_INTERVAL, _STALE_SECONDS = 24.0, 120.0
_FAILURES_KEPT = 50
_ERA_SECONDS = 146_097 * 86_400

_AT_ONCE = (
    ("records",),
    ("batches", "written"),
    ("dead_letters", "InvalidRecord"),
    ("dead_letters", "RecordTooLarge"),
    ("failures", "Fenced"),
)

Sample = tuple[str, tuple[str, ...], float]
"""Name of a family, values of its labels with the pipeline first, value."""


class LastFailure(NamedTuple):
    """A batch that failed for good, or a query that is started again: what no number can say.

    ``at_ms`` since 1970; ``batch_id`` None: no batch was under way; ``error``: its class.
    """

    pipeline: str
    at_ms: int
    batch_id: int | None
    error: str
    message: str
    next_step: str


@dataclass
class _Numbers:
    """The numbers of one pipeline; times by the monotonic clock."""

    since: float
    counters: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    seconds: dict[tuple[str, tuple[str, ...]], list[float]] = field(default_factory=dict)
    query_id: str = ""
    has_begun: bool = False
    was_opened: bool = False
    is_owner: bool = False
    is_over: bool = False
    has_ended_well: bool = False
    goes_on: bool = False
    committed_at: float | None = None
    open_since: float | None = None
    idle_at: float | None = None
    idle_told_s: float = 0.0
    counted: object = None
    lags: dict[tuple[str, str], int] | None = None
    lags_at: float = 0.0

    def end(self, *, well: bool) -> None:
        """Forget what is true of a running query only; one that failed still commits nothing."""
        self.has_ended_well = well or not (self.is_owner or self.has_begun)
        self.is_owner, self.is_over = False, True
        self.open_since = self.idle_at = self.lags = None
        for name in ("state_rows", "state_bytes"):
            self.gauges.pop(name, None)

    def add(self, name: str, *labels: str, number: float = 1) -> None:
        key = (name, labels)
        self.counters[key] = self.counters.get(key, 0) + number

    def observe(self, name: str, seconds: float, *labels: str) -> None:
        counts = self.seconds.setdefault((name, labels), [0.0] * (len(BUCKETS) + 2))
        counts[next((i for i, up_to in enumerate(BUCKETS) if seconds <= up_to), len(BUCKETS))] += 1
        counts[-1] += seconds


class MetricState:
    """The numbers of all pipelines of a process, made of events. Any thread; never waits.

    :param failing_since: Unix time since when earlier processes have failed, without a batch.
    """

    def __init__(self, *, per_partition: bool = False, failing_since: float | None = None) -> None:
        self._per_partition = per_partition
        self._failing_since = failing_since
        self._lock = threading.Lock()
        self._pipelines: dict[str, _Numbers] = {}
        self._queries: dict[str, dict[str, None]] = {}
        self.positions: dict[str, Sequence[tuple[frozenset[str], Any]]] = {}
        """Where the last batch of each pipeline ended in its Kafka sources."""
        self._failures: deque[LastFailure] = deque(maxlen=_FAILURES_KEPT)

    def hear(self, event: events.Event, now: float, wall_clock: float = 0.0) -> None:
        """Count an event of a batch; others (of a replay of dead letters) name no pipeline."""
        query_id = str(event.ids.get("query_id", ""))
        with self._lock:
            # A function may call several sinks: what is said of none is said of the last
            of_query = next(reversed(self._queries.get(query_id, {})), "")
            pipeline = str(event.ids.get("pipeline") or of_query)
            if not pipeline:
                return
            numbers = self._pipelines.get(pipeline)
            if numbers is None:
                failed_for = wall_clock - self._failing_since if self._failing_since else 0.0
                numbers = self._pipelines[pipeline] = _Numbers(now - failed_for)
                numbers.goes_on = self._failing_since is not None
            if query_id:
                self._queries.setdefault(query_id, {})[pipeline] = None
                numbers.query_id = query_id
            if event.step in (events.FAIL, events.RESTART):
                self._note_failure(pipeline, numbers, event)
            elif event.step == events.BEGIN:
                # Behind its start() a query may have opened its ledger, and ended, already
                if event.phase == "started":
                    _hear_begin(numbers, now, wall_clock)
            elif event.phase == "started":
                _hear_start(numbers, event, now)
            else:
                numbers.observe("step_seconds", event.seconds or 0.0, event.step)
                _hear_end(numbers, event, now, wall_clock)
                if numbers.committed_at is not None:
                    # Pipelines that begin later have no part in it
                    self._failing_since = None
            # Spark may have told of the end before this was heard
            if event.phase == "finished" and "sources" in event.values and not numbers.is_over:
                self.positions[pipeline] = event.values["sources"]

    def _note_failure(self, pipeline: str, numbers: _Numbers, event: events.Event) -> None:
        error, batch_id = type(event.error).__name__, event.ids.get("batch_id")
        message, _, next_step = paragraph(event.error or Exception()).partition(" Next: ")
        at_ms = event.at_ns // 1_000_000
        failure = LastFailure(pipeline, at_ms, batch_id, error, message, next_step)
        if event.step == events.FAIL:
            numbers.add("failures", error)
            numbers.is_owner &= error != "Fenced"
            numbers.has_begun &= error != "Fenced"
            numbers.has_ended_well &= error == "Fenced"
        else:
            numbers.add("restarts", error)
            numbers.has_ended_well = False
            before = [each for each in self._failures if each.pipeline == pipeline]
            # A query is started again for a batch that failed, of which we have heard
            if before and before[-1].batch_id is not None and before[-1].message == message:
                return
        self._failures.append(failure)

    def failures(self) -> list[LastFailure]:
        """Return the last failures of all pipelines, the oldest first."""
        with self._lock:
            return list(self._failures)

    def hear_progress(self, query_id: str, progress: Mapping[str, Any]) -> None:
        """Take watermark, delay and state of a trigger; ``progress`` as Spark's JSON has it."""
        times = progress.get("eventTime") or {}
        states = progress.get("stateOperators") or ()
        watermark, latest = _unix(times.get("watermark")), _unix(times.get("max"))
        at = _unix(progress.get("timestamp"))
        gauges: dict[str, float] = {}
        # Spark's watermark is 1970 as long as there is none
        if watermark:
            gauges["watermark_timestamp_seconds"] = watermark
        if latest and at:
            gauges["event_time_delay_seconds"] = at - latest
        if states:
            gauges["state_rows"], gauges["state_bytes"] = (
                sum(float(state.get(name) or 0) for state in states)
                for name in ("numRowsTotal", "memoryUsedBytes")
            )
        with self._lock:
            for numbers in self._of_query(query_id):
                numbers.gauges |= gauges

    def _of_query(self, query_id: str) -> list[_Numbers]:
        return [self._pipelines[each] for each in self._queries.get(query_id, {})]

    def hear_idle(self, query_id: str, now: float) -> None:
        """Note that a trigger has found nothing new."""
        with self._lock:
            # Also one that was started again, and has had no batch yet
            for numbers in self._of_query(query_id):
                numbers.idle_at = now

    def hear_end(self, query_id: str, *, failed: bool) -> None:
        """Note that a query has ended."""
        with self._lock:
            for pipeline, numbers in self._pipelines.items():
                if numbers.query_id == query_id:
                    numbers.end(well=not failed)
                    self.positions.pop(pipeline, None)

    def end_all(self) -> None:
        """Note that nothing more will be heard."""
        with self._lock:
            for numbers in self._pipelines.values():
                numbers.end(well=True)

    def set_pace(self, pipeline: str, interval_s: float, idle_told_s: float) -> None:
        """Set the interval of its query's trigger, and how often Spark says that it is idle."""
        with self._lock:
            if (numbers := self._pipelines.get(pipeline)) is not None:
                numbers.gauges["trigger_interval_seconds"] = interval_s
                numbers.idle_told_s = idle_told_s

    def set_lags(self, pipeline: str, lags: dict[tuple[str, str], int], now: float) -> None:
        """Set the lag of each topic and partition."""
        with self._lock:
            numbers = self._pipelines.get(pipeline)
            if numbers is not None and not numbers.is_over:
                numbers.lags, numbers.lags_at = lags, now

    def samples(self, now: float) -> list[Sample]:
        """Return the counters and gauges as of now."""
        found: list[Sample] = []
        with self._lock:
            for pipeline, numbers in self._pipelines.items():
                for (name, labels), value in numbers.counters.items():
                    found.append((name, (pipeline, *labels), value))
                for name, value in {**numbers.gauges, **_as_of(numbers, now)}.items():
                    found.append((name, (pipeline,), value))
                if self._per_partition and numbers.lags is not None:
                    for place, lag in numbers.lags.items():
                        found.append(("partition_lag_records", (pipeline, *place), lag))
                if numbers.is_owner:
                    found.append(("info", (pipeline, release(), numbers.query_id), 1))
        return found

    def histograms(self) -> list[tuple[str, tuple[str, ...], list[float]]]:
        """Return of each histogram what fell into each bucket, above all of them, and the sum."""
        with self._lock:
            return [
                (name, (pipeline, *labels), list(counts))
                for pipeline, numbers in self._pipelines.items()
                for (name, labels), counts in numbers.seconds.items()
            ]


def _hear_begin(numbers: _Numbers, now: float, wall_clock: float) -> None:
    """Begin to wait for a commit: a source that is away keeps the ledger from being opened."""
    if numbers.has_ended_well:
        numbers.since, numbers.committed_at = now, None
        numbers.is_over = numbers.has_ended_well = False
    numbers.has_begun = True
    # Once in a process: alerts know a new one by the start of its first run
    numbers.gauges.setdefault("start_time_seconds", wall_clock)


def _hear_start(numbers: _Numbers, event: events.Event, now: float) -> None:
    if event.step == events.OPEN:
        # Also of a run that opens its ledger again
        numbers.goes_on |= numbers.is_owner or (numbers.is_over and not numbers.has_ended_well)
        numbers.is_over = numbers.has_ended_well = False
    # An epoch in the ids: a transaction of Kafka's
    is_sent = event.step == events.SEND and "epoch" in event.ids and not numbers.is_over
    if is_sent and numbers.open_since is None:
        numbers.open_since = now


def _hear_end(numbers: _Numbers, event: events.Event, now: float, wall_clock: float) -> None:
    step, values = event.step, event.values
    has_finished = event.phase == "finished"
    if step == events.OPEN and has_finished:
        # One that has failed is waited for since its last commit, however often it is started
        if not numbers.goes_on:
            numbers.since, numbers.committed_at = now, None
        numbers.is_owner, numbers.goes_on = True, False
        if numbers.was_opened or not numbers.has_begun:
            numbers.gauges["start_time_seconds"] = wall_clock
        numbers.was_opened, numbers.has_begun = True, False
        # A counter that begins with its first event has no increase
        for name, *labels in _AT_ONCE:
            numbers.add(name, *labels, number=0)
        if values.get("sequence") is not None:
            numbers.gauges["ledger_sequence"] = values["sequence"]
    if values.get("timeout_ms"):
        numbers.gauges["transaction_timeout_seconds"] = values["timeout_ms"] / 1000
    if "open_ms" in values:
        numbers.observe("transaction_seconds", values["open_ms"] / 1000)
    # One of the two ends each attempt
    if step in (events.COMMIT, events.ABORT):
        numbers.add("attempts")
        numbers.open_since = None
    if step == events.ABORT:
        numbers.add("aborts", str(values.get("reason", "")))
    if has_finished and values.get("replayed"):
        numbers.add("batches", "replayed")
    elif step in (events.COMMIT, events.FINISH) and has_finished and "records" in values:
        numbers.committed_at, numbers.idle_at = now, None
        # With the last step only where the commit was in doubt, and the ledger has it
        key = (event.ids.get("query_id"), event.ids.get("batch_id"), values.get("sequence"))
        if numbers.counted != key:
            numbers.counted = key
            _count(numbers, values)


def _count(numbers: _Numbers, values: Mapping[str, Any]) -> None:
    numbers.add("batches", "written")
    numbers.add("records", number=values["records"])
    if values.get("bytes") is not None:
        numbers.add("bytes", number=values["bytes"])
    for name, error_class in (("set_aside", "InvalidRecord"), ("too_large", "RecordTooLarge")):
        if values.get(name):
            numbers.add("dead_letters", error_class, number=values[name])
    for name, gauge in (("epoch", "epoch"), ("sequence", "ledger_sequence")):
        if values.get(name) is not None:
            numbers.gauges[gauge] = values[name]


def _as_of(numbers: _Numbers, now: float) -> dict[str, float]:
    """Return what depends on the time of the scrape."""
    if numbers.has_ended_well:
        return {}
    began = numbers.committed_at if numbers.committed_at is not None else numbers.since
    interval = numbers.gauges.get("trigger_interval_seconds", 0.0)
    # Spark says every ten seconds, or as it is set, that a query is idle; one that hangs is not.
    # The batch that ends a quiet time has as long for its commit as any other, before the alert
    longest = 5 * max(_LEAST_INTERVAL, interval, numbers.idle_told_s)
    idle_for = now - numbers.idle_at if numbers.idle_at is not None else float("inf")
    found = {
        "last_commit_age_seconds": now - began,
        # Also before it has opened its ledger: a rule that compares with it needs both
        "trigger_interval_seconds": interval,
        "transaction_open_seconds": now - numbers.open_since if numbers.open_since else 0.0,
        "idle": float(idle_for <= longest),
    }
    # Of brokers that do not answer nothing is known
    if numbers.lags is not None and now - numbers.lags_at <= _STALE_SECONDS:
        found["lag_records"] = float(sum(numbers.lags.values()))
    return found


def _unix(text: str | None) -> float:
    """Return a time of Spark's in seconds since 1970; 0: none. Event times are of any year."""
    if not text:
        return 0.0
    # Years beyond 9999 have a sign. Python knows none of them, but every 400 years are alike
    year, _, rest = text[1:].partition("-")
    eras, of_era = divmod(int(text[0] + year), 400)
    alike = datetime.fromisoformat(f"{2000 + of_era}-{rest.replace('Z', '+00:00')}")
    return alike.timestamp() + (eras - 5) * _ERA_SECONDS


def split_login(url: str) -> tuple[str, str]:
    """Return ``url`` without its login, to be shown, and header ``Authorization``, or empty."""
    before, at, behind = url.rpartition("@")
    scheme, slashes, login = before.rpartition("//")
    if not at or "/" in login:
        return url, ""
    user, _, password = login.partition(":")
    plain = f"{unquote(user)}:{unquote(password)}"
    return scheme + slashes + behind, f"Basic {base64.b64encode(plain.encode()).decode()}"
