"""Metrics and log lines of a real pipeline, while everybody who observes it is broken."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
import time
import urllib.request
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql import DataFrame
from streaming_pipeline import Pipeline, copy

from onceward import events
from onceward.operate.logs import JsonFormatter
from onceward.operate.metrics import Metrics, push_metrics, serve_metrics
from onceward.operate.tracing import trace_batches


def with_state(frame: DataFrame) -> DataFrame:
    watermarked = frame.withWatermark("timestamp", "1 minute")
    return copy(watermarked.dropDuplicatesWithinWatermark(["partition", "offset"]))


def scraped(port: int | None, pipeline: str) -> dict[str, float]:
    """The samples of one pipeline by name, with the labels behind it where there are any."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    found = {}
    for line in lines:
        if f'pipeline="{pipeline}"' in line:
            name, _, value = line.rpartition(" ")
            bare = re.sub(f',?pipeline="{pipeline}"', "", name).replace("{,", "{")
            found[bare.replace("{}", "").removeprefix("onceward_")] = float(value)
    return found


def until(port: int | None, pipeline: str, **wanted: float) -> dict[str, float]:
    """Scrape until the samples are there, Spark's word on the watermark with them."""
    ends = time.monotonic() + 60
    while True:
        found = scraped(port, pipeline)
        is_there = "watermark_timestamp_seconds" in found
        if is_there and all(found.get(name) == value for name, value in wanted.items()):
            return found
        assert time.monotonic() < ends, found
        time.sleep(0.1)


@pytest.mark.fault("observers-broken")
def test_a_pipeline_is_seen_and_no_broken_observer_holds_it_up(
    pipeline: Pipeline, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.INFO, "onceward")
    for_ever, blocked = threading.Event(), threading.Event()

    def block(event: events.Event) -> None:
        blocked.set()
        for_ever.wait()

    def fail(event: events.Event) -> None:
        raise ZeroDivisionError("a broken exporter")

    pipeline.feed(80)
    served = serve_metrics(0, per_partition=True, lag_interval_s=0.2)
    with socket.socket() as gateway, socket.socket() as scraper:
        gateway.bind(("127.0.0.1", 0))
        gateway.listen()
        pushed = push_metrics(f"127.0.0.1:{gateway.getsockname()[1]}", interval_s=0.1, timeout_s=1)
        scraper.connect(("127.0.0.1", served.port or 0))
        scraper.sendall(b"GET /metrics HTTP/1.1\r\n")
        exporter, provider = InMemorySpanExporter(), TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        stops = [events.watch(block), events.watch(fail), trace_batches(provider)]
        try:
            query = pipeline.start(with_state, trigger={"processingTime": "0 seconds"})
            query.processAllAvailable()
            assert blocked.is_set(), "INVALID: nobody was blocked"
            found = until(served.port, pipeline.name, lag_records=0, records_total=80)
            check_numbers(found, pipeline)
            query.stop()
            check_the_end(served, pipeline)
            pipeline.assert_exactly_once()
        finally:
            for_ever.set()
            for stop in [*stops, pushed.stop, served.stop]:
                stop()
    assert caplog.text.count("a broken exporter") == 1
    assert "Traceback" not in capfd.readouterr().err
    check_spans(exporter, pipeline)
    check_lines([r for r in caplog.records if r.name.endswith("batch_log")], pipeline)


def check_numbers(found: dict[str, float], pipeline: Pipeline) -> None:
    ledger = pipeline.ledger()
    batches = ledger[-1]["sequence"] + 1
    assert found['batches_total{how="written"}'] == found["attempts_total"] == batches
    assert found["ledger_sequence"] == batches - 1
    assert found["epoch"] == ledger[-1]["attempt"][1]
    assert found["bytes_total"] > 80 * len("value-1")
    assert found['step_seconds_count{step="commit"}'] == batches
    assert found["transaction_seconds_count"] == batches
    assert found["transaction_timeout_seconds"] == 900
    assert found["transaction_open_seconds"] == 0
    assert 0 <= found["last_commit_age_seconds"] < 120
    assert found[f'partition_lag_records{{partition="0",topic="{pipeline.source}"}}'] == 0
    assert found["trigger_interval_seconds"] == 0
    assert found["state_rows"] > 0
    assert found["state_bytes"] > 0
    assert time.time() - 3_600 < found["watermark_timestamp_seconds"] < time.time()
    assert "aborts_total" not in str(found)


def check_the_end(served: Metrics, pipeline: Pipeline) -> None:
    """Nobody owns a pipeline whose query was stopped, or waits for its next commit."""
    ends = time.monotonic() + 60
    while "last_commit_age_seconds" in (found := scraped(served.port, pipeline.name)):
        assert time.monotonic() < ends, found
        time.sleep(0.1)
    assert "lag_records" not in found
    assert not any(name.startswith("info") for name in found)
    assert found["records_total"] == 80
    assert pipeline.name not in served.state.positions


def check_spans(exporter: InMemorySpanExporter, pipeline: Pipeline) -> None:
    traces: dict[int, dict[str, Any]] = {}
    for span in exporter.get_finished_spans():
        traces.setdefault(span.context.trace_id, {})[span.name] = span
    assert len(traces) == pipeline.ledger()[-1]["sequence"] + 1
    first = min(traces.values(), key=lambda spans: spans["batch"].start_time)
    every = {"batch", "open", "admit", "plan", "send", "check", "offsets", "ledger", "commit"}
    assert first.keys() == every | {"finish"}
    assert first["batch"].attributes["onceward.records"] == 40
    assert first["batch"].attributes["onceward.pipeline"] == pipeline.name


def check_lines(records: list[logging.LogRecord], pipeline: Pipeline) -> None:
    lines: list[dict[str, Any]] = [json.loads(JsonFormatter().format(r)) for r in records]
    assert all(line["pipeline"] == pipeline.name for line in lines)
    opened, *batches = (line["message"].partition(": ")[2] for line in lines)
    assert opened == "open, the first to write; begins with batch 0"
    assert all(f"batch {n} committed: " in text for n, text in enumerate(batches[:2]))
    assert sum(line.get("records", 0) for line in lines if "batch_id" in line) == 80
