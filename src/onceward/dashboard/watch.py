"""The dashboard's one look at the clusters: a thread that asks them in turn, and what it found.

A page is made of the newest :class:`Snapshot`. A cluster that does not answer makes the next one
late, and the page says how old it is; it makes no page wait.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
import urllib.request
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urljoin

from onceward import surroundings
from onceward.dashboard.messages import PartitionExcerpt, read_excerpt
from onceward.errors import LedgerUnreadable, OncewardError, summary
from onceward.ids import TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.libraries import library
from onceward.operate.metric_state import LastFailure, split_login
from onceward.operate.metrics import fetch
from onceward.operate.status import LedgerEntry, LedgerView, PipelineStatus

log = logging.getLogger(__name__)

_BATCHES = 200
_SCRAPE_SECONDS = 2.0
_AT_ONCE = 64
_KEPT = 20
_OLDEST_LOOKS = 5
"""An answer from before so many looks is not shown."""
_PREFIX = "onceward_"
_FAILURES = "failures"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a pipeline's own metrics say: step → (how often, seconds in all), aborts by reason,
    failures and restarts by error; the last failures, oldest first, if its driver tells of them.
    """

    steps: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    aborts: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, float] = field(default_factory=dict)
    restarts: Mapping[str, float] = field(default_factory=dict)
    last_failures: tuple[LastFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class PipelineView:
    """One pipeline as it was found: its status, and its last batches, oldest first."""

    status: PipelineStatus
    entries: tuple[LedgerEntry, ...]
    measured: Measured | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the last look found. ``number`` counts looks and answered questions; times in
    milliseconds since 1970, 0 before the first look. ``trouble``: what could not be looked at.
    """

    number: int = 0
    taken_at_ms: int = 0
    pipelines: Mapping[str, PipelineView] = field(default_factory=dict)
    trouble: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """Records that somebody wants to see."""

    where: TopicPartition
    start: int
    count: int = 50


class Watcher:
    """Looks at ledgers every ``interval_s`` seconds, until it is stopped.

    :param views: the ledgers. :param metrics: addresses of pipelines' ``/metrics``, if any.
    :raises ConfigurationError: the extra that reads them is not installed.
    """

    def __init__(
        self, views: Sequence[LedgerView], interval_s: float, metrics: Sequence[str] = ()
    ) -> None:
        if metrics:
            _parser()
        self._views, self._metrics, self._interval_s = views, metrics, interval_s
        self.snapshot = Snapshot()
        self._answers: OrderedDict[RecordQuery, tuple[PartitionExcerpt | str, int]] = OrderedDict()
        self._looks = 0
        # To be read at once, and again with the next look, because a page shows them
        self._due: set[RecordQuery] = set()
        self._shown: set[RecordQuery] = set()
        self._known: dict[tuple[int, str], list[LedgerEntry]] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._watch, name="onceward-dashboard", daemon=True)

    def start(self) -> Watcher:
        """Begin to look."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look no more. A question that is under way ends by its own deadline."""
        self._stopped = True
        self._wake.set()

    def ask(self, question: RecordQuery) -> PartitionExcerpt | str | None:
        """Return the records, or why there are none; None while they are being read. Whoever goes
        on asking gets what each look has found.
        """
        with self._lock:
            answer, look = self._answers.get(question, (None, 0))
            if answer is not None and self._looks - look <= _OLDEST_LOOKS:
                self._shown.add(question)
                return answer
            if len(self._due) < _KEPT:
                self._due.add(question)
        self._wake.set()
        return None

    def look(self) -> None:
        """Look at everything once."""
        with self._lock:
            self._looks += 1
            self._due |= self._shown
            self._shown.clear()
        found: dict[str, PipelineView] = {}
        trouble: list[str] = []
        measured = self._scrape(trouble)
        unmeasured = len(trouble)
        twice: set[str] = set()
        for view in self._views:
            for name, pipeline in self._look_at(view, measured, trouble).items():
                if name in found:
                    twice.add(name)
                found[name] = max(found.get(name, pipeline), pipeline, key=_newest)
        now_ms, before = surroundings.wall_clock_ns() // 1_000_000, self.snapshot
        if len(trouble) > unmeasured and (not found or before.pipelines.keys() - found.keys()):
            # What was known stays, with its age
            found, now_ms = {**before.pipelines, **found}, before.taken_at_ms
        trouble += [
            f"{name} is in two ledgers: shown is the one with the newest batch"
            for name in sorted(twice)
        ]
        self._answer()
        self._publish(Snapshot(0, now_ms, dict(sorted(found.items())), tuple(trouble)))

    def _look_at(
        self, view: LedgerView, measured: Mapping[str, Measured], trouble: list[str]
    ) -> dict[str, PipelineView]:
        found: dict[str, PipelineView] = {}
        known: dict[str, list[LedgerEntry]] = {}
        try:
            with view.looking():
                try:
                    for name in view.pipelines():
                        known[name] = self._entries(view, name) or []
                        self._answer()
                finally:
                    # Of those that were read before one that cannot be
                    for status in view.statuses(known, known):
                        name = status.pipeline_id
                        entries = tuple(known[name])
                        found[name] = PipelineView(status, entries, measured.get(name))
        except OncewardError as error:
            trouble.append(error.message)
        except Exception as error:
            log.exception("a ledger could not be looked at")
            trouble.append(summary(error))
        return found

    def _entries(self, view: LedgerView, name: str) -> list[LedgerEntry] | None:
        """Return its last batches; None where they cannot be read, of which the status speaks."""
        key = id(view), name
        entries = self._known.get(key, [])
        try:
            newest = view.entries(name, 1)
            if newest and newest == entries[-1:]:
                return entries
            missing = newest[0].sequence - entries[-1].sequence if newest and entries else _BATCHES
            new = view.entries(name, min(_BATCHES, missing + 1) if missing >= 0 else _BATCHES)
        except LedgerUnreadable:
            return None
        entries = [each for each in entries if new and each.sequence < new[0].sequence]
        entries = [*entries, *new][-_BATCHES:]
        self._known[key] = entries
        return entries

    def _watch(self) -> None:
        while not self._stopped:
            try:
                self.look()
            except Exception:
                # The pages show how old they are; the next look may go well
                log.exception("the pipelines could not be looked at")
            until = surroundings.monotonic() + self._interval_s
            while not self._stopped and (left := until - surroundings.monotonic()) > 0:
                self._wake.wait(left)
                self._wake.clear()
                self._answer()

    def _publish(self, snapshot: Snapshot) -> None:
        with self._lock:
            self.snapshot = replace(snapshot, number=self.snapshot.number + 1)

    def _answer(self) -> None:
        with self._lock:
            due, self._due = self._due, set()
        for question in due:
            answer = self._read(question)
            with self._lock:
                self._answers[question] = answer, self._looks
                self._answers.move_to_end(question)
                while len(self._answers) > _KEPT:
                    self._answers.popitem(last=False)
            self._publish(self.snapshot)

    def _read(self, question: RecordQuery) -> PartitionExcerpt | str:
        reasons = []
        clients = [client for view in self._views for client in view.clients()]
        if self._is_a_source(question.where.topic):
            # As for the lag: the ledger's cluster may have a topic of the same name, a copy
            clients.reverse()
        for client in clients:
            found = _read_by(client, question)
            if isinstance(found, PartitionExcerpt):
                return found
            reasons.append(found)
        return "; ".join(filter(None, reasons)) or "no brokers are known: name --bootstrap-servers"

    def _is_a_source(self, topic: str) -> bool:
        return any(
            where.topic == topic
            for view in self.snapshot.pipelines.values()
            for entry in view.entries[-1:]
            for where in entry.kafka_offsets
        )

    def _scrape(self, trouble: list[str]) -> dict[str, Measured]:
        found: dict[str, Measured] = {}
        # Those of a machine that is gone are waited for once
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for measured, why in pool.map(_measured, self._metrics):
                found |= measured
                trouble += why
        return found


def _newest(view: PipelineView) -> tuple[int, int]:
    """Return when the newest batch was committed, and its sequence: copies have the same time."""
    last = view.entries[-1] if view.entries else None
    return (last.committed_at_ms, last.sequence) if last else (0, 0)


def _read_by(
    client_there: Callable[[], KafkaClient | None], question: RecordQuery
) -> PartitionExcerpt | str:
    try:
        client = client_there()
        if client is None:
            return ""
        return read_excerpt(client, question.where, question.start, question.count)
    except OncewardError as error:
        return error.message
    except Exception as error:
        log.exception("%s could not be read", question.where)
        return summary(error)


def _measured(url: str) -> tuple[dict[str, Measured], list[str]]:
    try:
        found = measure(_get(url))
        failures = _failures(url) if found else {}
    except (OSError, ValueError, http.client.HTTPException) as error:
        shown, _ = split_login(url)
        return {}, [f"{shown} has no metrics now: {type(error).__name__}: {error}"]
    return {
        pipeline: replace(measured, last_failures=failures.get(pipeline, ()))
        for pipeline, measured in found.items()
    }, []


def _failures(metrics: str) -> dict[str, tuple[LastFailure, ...]]:
    # Whoever does not serve them, or not in time, may serve metrics
    try:
        return last_failures(_get(urljoin(metrics, _FAILURES)))
    except (OSError, http.client.HTTPException):
        return {}


def _get(url: str) -> str:
    where, login = split_login(url)
    # S310: whoever started the dashboard chose the address
    request = urllib.request.Request(where)  # noqa: S310
    return fetch(request, login, _SCRAPE_SECONDS).decode(errors="replace")


def _parser() -> Any:
    return library("--metrics are read by it", "dashboard", "prometheus_client", "parser").parser


def measure(text: str) -> dict[str, Measured]:
    """Return by pipeline what an endpoint of :func:`onceward.serve_metrics` has. Pure.

    :raises ValueError: it is no text of Prometheus.
    """
    numbers: dict[str, dict[str, dict[str, float]]] = {}
    # Of a histogram sum and count are shown; its buckets are nine lines of ten
    text = "\n".join(line for line in text.split("\n") if "_bucket{" not in line)
    for family in _parser().text_string_to_metric_families(text):
        for sample in family.samples:
            kinds = {name: kind for name, kind in sample.labels.items() if name != "pipeline"}
            pipeline = sample.labels.get("pipeline", "")
            if len(kinds) == 1 and pipeline and sample.name.startswith(_PREFIX):
                (kind,) = kinds.values()
                name = sample.name.removeprefix(_PREFIX)
                numbers.setdefault(pipeline, {}).setdefault(name, {})[kind] = sample.value
    return {
        pipeline: Measured(
            {
                step: (count, of.get("step_seconds_sum", {}).get(step, 0.0))
                for step, count in of.get("step_seconds_count", {}).items()
                if count
            },
            _above_zero(of.get("aborts_total", {})),
            _above_zero(of.get("failures_total", {})),
            _above_zero(of.get("restarts_total", {})),
        )
        for pipeline, of in numbers.items()
    }


def last_failures(text: str) -> dict[str, tuple[LastFailure, ...]]:
    """Return by pipeline the failures that ``serve_metrics(failures=True)`` tells of. Pure."""
    # A server of the user's may answer everything with its metrics
    if not text.startswith("["):
        return {}
    found: dict[str, tuple[LastFailure, ...]] = {}
    try:
        for row in json.loads(text):
            failure = LastFailure(**row)
            if not (isinstance(failure.at_ms, int) and isinstance(failure.batch_id, int | None)):
                raise TypeError(f"at_ms={failure.at_ms!r}, batch_id={failure.batch_id!r}")
            found[failure.pipeline] = (*found.get(failure.pipeline, ()), failure)
    except TypeError as error:
        raise ValueError(f"{_FAILURES} is no list of failures: {error!r}") from error
    return found


def _above_zero(numbers: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in numbers.items() if value}
