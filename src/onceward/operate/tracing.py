"""Traces of batches for OpenTelemetry: a batch is a trace, its steps are spans. Driver only.

Spans are made of step events, in a thread that no batch waits for, with the times at which the
steps began and ended. So an exporter that is slow or broken loses spans, and nothing else. A trace
ends with its batch: no span is as long as a query. Leases are left out: a batch may have many.
``opentelemetry`` (extra ``tracing``) is imported when :func:`trace_batches` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onceward import events
from onceward.errors import summary
from onceward.libraries import library

_WATCHED = (*(step for step in events.STEPS if step != events.LEASE), events.FAIL)
_LONGEST_TEXT = 1_000


def trace_batches(provider: Any = None) -> Callable[[], None]:
    """Trace the batches of this process's pipelines from now on.

    :param provider: an OpenTelemetry ``TracerProvider``; default: the global one.
    :returns: how to stop; spans that are open then are ended. The provider is yours to shut down.
    :raises ConfigurationError: OpenTelemetry is missing (extra ``tracing``).
    """
    why = "tracing needs OpenTelemetry"
    trace = library(why, "tracing", "opentelemetry.trace")
    tracers = trace.get_tracer_provider() if provider is None else provider
    traces = BatchTraces(tracers.get_tracer("onceward"), trace)
    stop_watching = events.watch(traces.hear, _WATCHED)

    def stop() -> None:
        stop_watching()
        traces.end_all()

    return stop


@dataclass
class _Trace:
    """The trace of a batch: its root, and the spans of steps that run, the innermost last."""

    root: Any
    ended_ns: int
    is_admitted: bool = False
    running: list[tuple[str, Any]] = field(default_factory=list)


class BatchTraces:
    """Makes spans of events. One thread calls it.

    :param tracer: of OpenTelemetry. :param trace: its module ``opentelemetry.trace``.
    """

    def __init__(self, tracer: Any, trace: Any) -> None:
        self._tracer = tracer
        self._trace = trace
        self._open: dict[str, _Trace] = {}

    def hear(self, event: events.Event) -> None:
        """Begin or end a span. Events of others than pipelines have no ``pipeline``."""
        pipeline = event.ids.get("pipeline")
        if pipeline is None:
            return
        if event.phase == "started":
            self._start(str(pipeline), event)
        elif (batch_trace := self._open.get(str(pipeline))) is not None:
            batch_trace.ended_ns = event.at_ns
            self._end(batch_trace, event)
            if event.step == events.FAIL or (event.step == events.FINISH and event.error is None):
                self._end_trace(str(pipeline), event.error, event.values)

    def end_all(self) -> None:
        """End what is open."""
        for pipeline in list(self._open):
            self._end_trace(pipeline)

    def _start(self, pipeline: str, event: events.Event) -> None:
        batch_trace = self._open.get(pipeline)
        # Of a batch that was stopped there is no last event: the next one begins with one of these
        again = event.step == events.ADMIT and batch_trace is not None and batch_trace.is_admitted
        if batch_trace is not None and (again or event.step == events.OPEN):
            self._end_trace(pipeline)
            batch_trace = None
        if batch_trace is None:
            root = self._tracer.start_span(
                "batch", attributes=attributes(event.ids), start_time=event.at_ns
            )
            batch_trace = self._open[pipeline] = _Trace(root, event.at_ns)
        batch_trace.is_admitted |= event.step == events.ADMIT
        above = batch_trace.running[-1][1] if batch_trace.running else batch_trace.root
        span = self._tracer.start_span(
            event.step,
            context=self._trace.set_span_in_context(above),
            attributes=attributes(event.ids),
            start_time=event.at_ns,
        )
        batch_trace.running.append((event.step, span))

    def _end(self, batch_trace: _Trace, event: events.Event) -> None:
        # What did not end itself was within
        while any(step == event.step for step, _ in batch_trace.running):
            step, span = batch_trace.running.pop()
            if step == event.step:
                self._finish(span, event.at_ns, event.error, event.values)
                return
            self._finish(span, event.at_ns)

    def _end_trace(
        self, pipeline: str, error: BaseException | None = None, values: Mapping[str, Any] = {}
    ) -> None:
        batch_trace = self._open.pop(pipeline)
        while batch_trace.running:
            self._finish(batch_trace.running.pop()[1], batch_trace.ended_ns)
        self._finish(batch_trace.root, batch_trace.ended_ns, error, values)

    def _finish(
        self,
        span: Any,
        at_ns: int,
        error: BaseException | None = None,
        values: Mapping[str, Any] = {},
    ) -> None:
        span.set_attributes(attributes(values))
        if error is not None:
            text = summary(error)[:_LONGEST_TEXT]
            span.set_status(self._trace.Status(self._trace.StatusCode.ERROR, text))
            span.set_attribute("error.type", type(error).__name__)
        span.end(end_time=at_ns)


def attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ids and values as attributes: those that are numbers and texts."""
    return {
        f"onceward.{name}": value
        for name, value in values.items()
        if isinstance(value, str | int | float | bool)
    }
