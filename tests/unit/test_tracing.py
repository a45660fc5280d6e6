"""A batch is a trace, its steps are spans, by OpenTelemetry's own SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from onceward import events
from onceward.errors import SendFailed
from onceward.events import step
from onceward.operate.tracing import attributes, trace_batches

IDS = {"pipeline": "orders", "query_id": "q", "batch_id": 7}


@pytest.fixture
def spans() -> Iterator[Callable[[], dict[str, ReadableSpan]]]:
    """Stops tracing and returns the spans by name; of one name the last."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stop = trace_batches(provider)

    def ended() -> dict[str, ReadableSpan]:
        stop()
        return {span.name: span for span in exporter.get_finished_spans()}

    yield ended
    stop()
    provider.shutdown()


def write_a_batch(**more: Any) -> None:
    ids = {**IDS, **more}
    for name in (events.ADMIT, events.PLAN):
        with step(name, **ids):
            pass
    with step(events.SEND, **ids), step(events.LEASE, partition=0):
        pass
    with step(events.LEDGER, **ids), step(events.MOVE, **ids, table="t"):
        pass
    with step(events.COMMIT, **ids) as values:
        values |= {"records": 5, "sources": [("b", {})]}
    with step(events.FINISH, **ids) as values:
        values["records"] = 5


def children(spans: dict[str, ReadableSpan], name: str) -> set[str]:
    above = spans[name].get_span_context()
    assert above is not None
    return {
        span.name
        for span in spans.values()
        if span.parent and span.parent.span_id == above.span_id
    }


def test_a_batch_is_one_trace_and_its_steps_are_spans(spans: Any):
    write_a_batch()
    found = spans()
    assert children(found, "batch") == {"admit", "plan", "send", "ledger", "commit", "finish"}
    assert children(found, "ledger") == {"move"}
    assert "lease" not in found
    assert len({span.context.trace_id for span in found.values()}) == 1
    assert found["batch"].attributes["onceward.batch_id"] == 7
    assert found["batch"].attributes["onceward.records"] == 5
    assert found["commit"].attributes["onceward.records"] == 5
    assert "onceward.sources" not in found["commit"].attributes


def test_spans_have_the_times_of_their_steps_and_lie_in_their_batch(spans: Any):
    began = time.time_ns()
    write_a_batch()
    ended = time.time_ns()
    found = spans()
    root = found.pop("batch")
    assert began <= root.start_time <= root.end_time <= ended
    for span in found.values():
        assert root.start_time <= span.start_time <= span.end_time <= root.end_time


def test_no_span_is_as_long_as_a_query(spans: Any):
    write_a_batch()
    first = time.time_ns()
    write_a_batch(batch_id=8)
    found = spans()
    assert found["batch"].attributes["onceward.batch_id"] == 8
    assert found["batch"].start_time >= first


def test_an_attempt_that_is_aborted_is_in_the_trace_of_its_batch(spans: Any):
    with step(events.ADMIT, **IDS):
        pass
    with pytest.raises(SendFailed), step(events.SEND, **IDS):
        raise SendFailed("a broker is away")
    with step(events.ABORT, **IDS) as values:
        values["reason"] = "SendFailed"
    with step(events.COMMIT, **IDS), step(events.FINISH, **IDS):
        pass
    found = spans()
    assert found["send"].status.description == "SendFailed: a broker is away"
    assert found["abort"].attributes["onceward.reason"] == "SendFailed"
    assert found["batch"].status.is_ok or found["batch"].status.is_unset
    assert len({span.context.trace_id for span in found.values()}) == 1


def test_a_batch_that_fails_ends_its_trace_with_the_error(spans: Any):
    with step(events.OPEN, **IDS), step(events.ADMIT, **IDS):
        pass
    error = SendFailed("for good")
    events.announce(events.FAIL, IDS, error)
    found = spans()
    assert found["batch"].attributes["error.type"] == "SendFailed"
    assert not found["batch"].status.is_ok


@pytest.mark.parametrize("first", [events.OPEN, events.ADMIT])
def test_a_batch_that_was_stopped_ends_with_its_last_step(spans: Any, first: str):
    with step(events.ADMIT, **IDS):
        pass
    stopped = time.time_ns()
    time.sleep(0.01)
    with step(first, **IDS):
        pass
    found = spans()
    assert found["batch"].start_time > stopped, "the same batch, run again, is another trace"


def test_what_is_no_pipelines_is_not_traced(spans: Any):
    with step(events.COMMIT, topic="letters"):
        pass
    assert spans() == {}


def test_an_exporter_that_hangs_delays_no_batch():
    hang, asked = threading.Event(), threading.Event()

    class Hanging(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            asked.set()
            hang.wait(10)
            return SpanExportResult.FAILURE

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Hanging()))
    stop = trace_batches(provider)
    try:
        began = time.monotonic()
        for number in range(100):
            write_a_batch(batch_id=number)
        assert time.monotonic() - began < 2
        assert asked.wait(10)
    finally:
        hang.set()
        stop()


def test_attributes_are_numbers_and_texts():
    assert attributes({"a": 1, "b": "x", "c": None, "d": [1], "e": True}) == {
        "onceward.a": 1,
        "onceward.b": "x",
        "onceward.e": True,
    }
