"""Metrics of the pipelines in this process, for Prometheus: by an endpoint, by a push gateway, or
in a registry of the user's.

Driver only. Events come in a thread of their own (:func:`onceward.events.watch`), and a scrape
computes its answer from what is there (:mod:`onceward.operate.metric_state`). Brokers are asked
for the lag in another thread, over connections of its own and with a deadline. So no batch waits
for a scraper, a gateway or a broker, and none fails with them. The lag is how far the last
committed batch is behind the last stable offset, and not the high watermark: what lies between the
two belongs to open transactions, which no reader may see. ``prometheus_client`` (extra
``metrics``) is imported when a function is called.
"""

from __future__ import annotations

import errno
import http.client
import json
import logging
import math
import os
import socket
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from onceward import events, surroundings
from onceward.engine import batch_log
from onceward.errors import ConfigurationError
from onceward.ids import FAILING_SINCE, TopicPartition, partition_offsets
from onceward.kafka.source.identity import known_logins
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.kafka.wire.reads.offsets import LATEST, ask_who_may, list_offsets
from onceward.libraries import library
from onceward.operate.metric_state import (
    BUCKETS,
    FAMILIES,
    PREFIX,
    MetricState,
    split_login,
)
from onceward.patience import Cut, cut_in_time
from onceward.spark.batch.progress import ProgressWatch

_DEADLINE_MS = 5_000
_CLIENT_ID = "onceward-lag"

Position = Sequence[tuple[frozenset[str], Any]]
"""Of each Kafka source its servers and where the batch ended, as Spark's JSON has it."""
Lags = dict[tuple[str, str], int]


def lags(ends: Mapping[TopicPartition, int], stable: Mapping[TopicPartition, int]) -> Lags:
    """Return the records that are left in each topic and partition.

    An offset behind the stable one (a topic that was created again) is no negative lag.
    """
    return {
        (place.topic, str(place.partition)): max(0, stable[place] - end)
        for place, end in ends.items()
        if place in stable
    }


class LagWatcher:
    """A thread that asks for the lag every so often.

    :param positions: returns where each pipeline's last batch ended.
    :param found: is told the lags of a pipeline.
    """

    def __init__(
        self,
        positions: Callable[[], Mapping[str, Position]],
        found: Callable[[str, Lags], None],
        interval_s: float,
    ) -> None:
        self._positions = positions
        self._found = found
        self._interval_s = interval_s
        self._could: dict[tuple[str, frozenset[str]], ClientSettings] = {}
        self._failed: set[str] = set()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="onceward-lag", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more. A question that is under way ends by its deadline."""
        self._stopped.set()
        self._thread.join(_DEADLINE_MS / 1000)

    def _watch(self) -> None:
        looked: set[str] = set()
        while not self._stopped.wait(self._interval_s):
            positions = self._positions()
            for pipeline, position in positions.items():
                self._look(pipeline, position)
            for pipeline in looked - positions.keys():
                batch_log.known_lags.pop(pipeline, None)
            looked = set(positions)
        for pipeline in looked:
            batch_log.known_lags.pop(pipeline, None)

    def _look(self, pipeline: str, position: Position) -> None:
        try:
            if position and (known := self._ask(position, pipeline)):
                self._found(pipeline, known)
                batch_log.known_lags[pipeline] = sum(known.values())
            self._failed.discard(pipeline)
        except Exception as error:  # noqa: BLE001 — the pipeline is well
            # No line of a batch has a lag that is outdated
            batch_log.known_lags.pop(pipeline, None)
            level = logging.DEBUG if pipeline in self._failed else logging.WARNING
            log.log(level, "%s: its lag is not known now: %s", pipeline, error)
            self._failed.add(pipeline)

    def _ask(self, position: Position, pipeline: str) -> Lags:
        found: Lags = {}
        for servers, end in position:
            ends = partition_offsets(end)

            def ask(login: ClientSettings, ends: Any = ends) -> dict[TopicPartition, int]:
                # Not a client that batches use: whoever asks a broker that is slow holds it up
                client = KafkaClient.shared(replace(login, client_id=_CLIENT_ID))
                return list_offsets(
                    client, ends, LATEST, read_committed=True, timeout_ms=_DEADLINE_MS
                )

            logins = known_logins(servers) if ends else ()
            stable = ask_who_may(logins, ask, self._could, (pipeline, servers))
            for where, lag in lags(ends, stable or {}).items():
                # Of two sources on one topic the one that is behind counts
                found[where] = max(lag, found.get(where, 0))
        return found


log = logging.getLogger(__name__)

WATCHED = (*(step for step in events.STEPS if step != events.LEASE), *events.QUERY_EVENTS)
FAILURES = "/failures"
"""Where an endpoint serves the last failures, beside ``/metrics``."""
_HTTP_SECONDS = 10.0
_MOST_BYTES = 4 << 20
_BIND_AGAIN_SECONDS = 10.0
_JOB = "onceward"


class Metrics:
    """A collector for ``prometheus_client``, of this process's pipelines, until :meth:`stop`."""

    def __init__(self, *, per_partition: bool = False, lag_interval_s: float = 15.0) -> None:
        _must_be_seconds("lag_interval_s", lag_interval_s)
        why = "metrics need prometheus_client"
        self._client = library(why, "metrics", "prometheus_client", "core", "exposition")
        since = os.environ.get(FAILING_SINCE)
        self.state = MetricState(
            per_partition=per_partition, failing_since=float(since) if since else None
        )
        self._progress = ProgressWatch(
            self.state.hear_progress, self._hear_idle, self.state.hear_end
        )
        lag = LagWatcher(lambda: dict(self.state.positions), self._set_lags, lag_interval_s)
        # Whoever serves or pushes comes behind them: its last word has all that was heard
        self._ends: list[Callable[[], None]] = [
            events.watch(self._hear, WATCHED),
            self._progress.stop,
            lag.stop,
            self.state.end_all,
        ]
        self.port: int | None = None
        """Of the endpoint, once it is bound."""

    def stop(self) -> None:
        """End threads and the endpoint. Pipelines go on."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    def _hear(self, event: events.Event) -> None:
        self.state.hear(event, surroundings.monotonic(), surroundings.wall_clock())
        query_id = str(event.ids.get("query_id", ""))
        if event.step in (events.BEGIN, events.OPEN) and event.phase == "finished" and query_id:
            # In this thread, which no batch waits for: the JVM may be slow
            pace = self._progress.listen_to(query_id)
            if pace is not None:
                self.state.set_pace(str(event.ids.get("pipeline")), *pace)

    def _hear_idle(self, query_id: str) -> None:
        self.state.hear_idle(query_id, surroundings.monotonic())

    def _set_lags(self, pipeline: str, lags: dict[tuple[str, str], int]) -> None:
        self.state.set_lags(pipeline, lags, surroundings.monotonic())

    def describe(self) -> Iterator[Any]:
        """Return the families without samples, as registries ask for them."""
        return iter(self._families().values())

    def collect(self) -> Iterator[Any]:
        """Return the families as of now."""
        families = self._families()
        for name, labels, value in self.state.samples(surroundings.monotonic()):
            families[name].add_metric(labels, value)
        for name, labels, counts in self.state.histograms():
            total, buckets = 0.0, []
            for up_to, count in zip([*map(str, BUCKETS), "+Inf"], counts[:-1], strict=True):
                total += count
                buckets.append((up_to, total))
            families[name].add_metric(labels, buckets, counts[-1])
        return iter([family for family in families.values() if family.samples])

    def _families(self) -> dict[str, Any]:
        core = self._client.core
        kinds = {
            "counter": core.CounterMetricFamily,
            "gauge": core.GaugeMetricFamily,
            "histogram": core.HistogramMetricFamily,
        }
        return {
            family.name: kinds[family.kind](
                PREFIX + family.name, family.text, labels=["pipeline", *family.labels]
            )
            for family in FAMILIES
        }

    def serve(self, port: int, host: str, *, failures: bool) -> None:
        """Serve ``/metrics``, and ``/failures`` if asked; try a taken port again in a thread."""
        app = self._app(failures=failures)
        stopped = threading.Event()
        self._ends.append(stopped.set)
        refused = self._bind(app, port, host)
        if refused is not None:
            is_taken = refused.errno == errno.EADDRINUSE
            why = "it is taken" if is_taken else f"{refused.strerror or refused}"
            log.error("no metrics at %s, port %d, until that can be had: %s", host, port, why)

            def try_again() -> None:
                while not stopped.wait(_BIND_AGAIN_SECONDS):
                    if self._bind(app, port, host) is None:
                        return

            threading.Thread(target=try_again, name="onceward-metrics", daemon=True).start()

    def _app(self, *, failures: bool) -> Any:
        registry = self._client.CollectorRegistry()
        registry.register(self)
        metrics = self._client.exposition.make_wsgi_app(registry)

        def serve(environ: dict[str, Any], start_response: Any) -> Any:
            if environ.get("PATH_INFO") != FAILURES:
                return metrics(environ, start_response)
            status = "200 OK" if failures else "404 Not Found"
            start_response(status, [("Content-Type", "application/json")])
            found = self.state.failures() if failures else []
            return [json.dumps([each._asdict() for each in found]).encode()]

        return serve

    def _bind(self, app: Any, port: int, host: str) -> OSError | None:
        """Serve, and return None; or the error with which the address is refused."""
        exposition = self._client.exposition

        handler: Any = exposition._SilentHandler

        class ScrapeHandler(handler):  # type: ignore[misc]
            # A scraper that sends or takes nothing holds a thread, and no longer than this
            timeout = _HTTP_SECONDS

        server_class: Any = exposition.ThreadingWSGIServer

        class ScrapeServer(server_class):  # type: ignore[misc]
            def handle_error(self, request: object, client_address: object) -> None:
                """Log at DEBUG: a scraper that goes away is its own business."""
                log.debug("a scrape by %s failed", client_address, exc_info=True)

        try:
            found = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            ScrapeServer.address_family = found[0][0]
            server = exposition.make_server(
                host, port, app, ScrapeServer, handler_class=ScrapeHandler
            )
        except OSError as error:
            log.debug("metrics are not served: %r", error)
            return error
        threading.Thread(target=server.serve_forever, name="onceward-metrics", daemon=True).start()
        self.port = server.server_port

        def end() -> None:
            server.shutdown()
            server.server_close()

        self._ends.append(end)
        return None

    def push(
        self, gateway: str, job: str, instance: str, interval_s: float, timeout_s: float
    ) -> None:
        """Push to a gateway from a thread of its own, and once more at the end."""
        registry = self._client.CollectorRegistry()
        registry.register(self)
        stopped = threading.Event()
        gateway, login = split_login(gateway)

        def handler(
            url: str,
            method: str,
            timeout: float,
            headers: Iterable[tuple[str, str]],
            data: bytes,
        ) -> Callable[[], bytes]:
            request = urllib.request.Request(url, data, dict(headers), method=method)  # noqa: S310
            return lambda: fetch(request, login, timeout)

        def push_all() -> None:
            failed = False
            while True:
                is_last = stopped.wait(interval_s)
                try:
                    self._client.push_to_gateway(
                        gateway, job, registry, {"instance": instance}, timeout_s, handler
                    )
                    failed = False
                except Exception as error:  # noqa: BLE001 — whatever it is, pipelines go on
                    level = logging.DEBUG if failed else logging.WARNING
                    log.log(level, "the push gateway takes no metrics; pipelines go on: %r", error)
                    failed = True
                if is_last:
                    return

        thread = threading.Thread(target=push_all, name="onceward-push", daemon=True)
        thread.start()

        def end() -> None:
            stopped.set()
            thread.join(timeout_s)

        self._ends.append(end)


def fetch(request: urllib.request.Request, login: str, seconds: float) -> bytes:
    """Return the whole answer, however slowly it comes: within ``seconds``.

    :param login: header ``Authorization``; no other host that an answer leads to is told.
    :raises OSError: there is none in time, or its status tells of a failure.
    :raises HTTPException: it is none, or not whole.
    """
    if login:
        request.add_unredirected_header("Authorization", login)

    def ask(cut: Cut) -> bytes:
        with _opener(cut).open(request, timeout=seconds) as answer:
            data: bytes = answer.read(_MOST_BYTES)
            if answer.length or answer.read(1):
                raise http.client.IncompleteRead(data, answer.length)
        return data

    late = TimeoutError(f"no whole answer within {seconds:g} s")
    return cut_in_time(ask, seconds, "onceward-metrics", late=late)


def _opener(cut: Cut) -> urllib.request.OpenerDirector:
    class WatchedConnection(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            cut.watch(self.sock)

    class SecureConnection(http.client.HTTPSConnection, WatchedConnection):
        """Connects as the other, and begins TLS when the socket is watched."""

    class Plain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(WatchedConnection, req)

    class Secure(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(SecureConnection, req)

    return urllib.request.build_opener(Plain, Secure)


def serve_metrics(
    port: int = 9464,
    host: str = "127.0.0.1",
    *,
    per_partition: bool = False,
    lag_interval_s: float = 15.0,
    failures: bool = False,
) -> Metrics:
    """Serve the metrics of this process's pipelines at ``http://host:port/metrics``.

    A port that is taken fails no job: that is logged, and tried again.

    :param host: ``"0.0.0.0"`` for scrapers on other machines. There is no login.
    :param per_partition: also a series of lag for each topic and partition.
    :param lag_interval_s: how often brokers are asked for last stable offsets.
    :param failures: also serve the last 50 failures at ``/failures``, as JSON: a dashboard that is
        given this address shows their messages and next steps. They are those of the log, and may
        name values of rows.
    :raises ConfigurationError: ``prometheus_client`` is missing (extra ``metrics``).
    """
    if not isinstance(port, int) or not 0 <= port <= 65_535:
        raise ConfigurationError(f"port={port!r} is none", next_step="pass a port, 9464 say")
    metrics = Metrics(per_partition=per_partition, lag_interval_s=lag_interval_s)
    metrics.serve(port, host, failures=failures)
    return metrics


def push_metrics(
    gateway: str,
    job: str = _JOB,
    *,
    instance: str = "",
    interval_s: float = 15.0,
    timeout_s: float = 10.0,
    per_partition: bool = False,
    lag_interval_s: float = 15.0,
) -> Metrics:
    """Push the metrics of this process's pipelines to a push gateway, for jobs that end soon.

    :param gateway: its URL, ``https://user:password@host:port`` where it wants a login.
    :param instance: label ``instance``. A gateway keeps the numbers of one push for each ``job``
        and ``instance``: two jobs with the same replace each other's. Default: ``job``, and
        without one the name of the program's file: name them where files are called alike.
    :param interval_s: between two pushes; one more comes with ``stop()``.
    :param timeout_s: how long a push may take. Nobody waits for it but ``stop()``.
    """
    _must_be_seconds("interval_s", interval_s)
    _must_be_seconds("timeout_s", timeout_s)
    metrics = Metrics(per_partition=per_partition, lag_interval_s=lag_interval_s)
    program = Path(*sys.argv[:1])
    # `python -m package`
    own = program.parent.name if program.stem == "__main__" else program.stem
    instance = instance or (own if job == _JOB else "") or job
    metrics.push(gateway, job, instance, interval_s, timeout_s)
    return metrics


def register_metrics(
    registry: Any = None, *, per_partition: bool = False, lag_interval_s: float = 15.0
) -> Metrics:
    """Put the metrics of this process's pipelines into a registry of ``prometheus_client``.

    :param registry: default: the one that all of ``prometheus_client`` uses.
    :raises ConfigurationError: it has the metrics of this process already.
    """
    metrics = Metrics(per_partition=per_partition, lag_interval_s=lag_interval_s)
    target = metrics._client.REGISTRY if registry is None else registry
    try:
        target.register(metrics)
    except ValueError as error:
        metrics.stop()
        raise ConfigurationError(
            f"the registry has metrics of this process already: {error}",
            next_step="call register_metrics() once in a process, outside of what ow.supervise "
            "calls for each start",
        ) from error
    metrics._ends.append(lambda: target.unregister(metrics))
    return metrics


def _must_be_seconds(name: str, value: object) -> None:
    """Refuse no time at all: what is repeated without a pause takes a core for itself."""
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ConfigurationError(f"{name}={value!r} is no time", next_step="pass seconds, 15 say")
