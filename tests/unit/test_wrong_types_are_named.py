"""Whatever somebody passes for a setting: it is taken, or a typed error names it. Never a TypeError
out of the middle of the package.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import onceward as ow
from onceward.errors import ConfigurationError
from onceward.ids import pipeline_id
from onceward.kafka.source.topics_and_positions import newest_in
from support.wrong_values import WRONG, what_is_amiss


class Ended:
    """A query that has ended well."""

    id = runId = name = "q"  # noqa: N815 — Spark's name
    isActive = False  # noqa: N815 — Spark's name

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        return True

    def exception(self) -> None:
        return None


QUERY: Any = Ended()
LEDGER = ow.FolderLedger("/ledger")
KAFKA = {"bootstrap_servers": "b:9092", "pipeline_id": "p", "topic": "out"}
STORED = {"pipeline_id": "p", "store": "/store", "ledger": LEDGER}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "KafkaSink": (ow.KafkaSink, KAFKA),
    "DatabaseSink": (
        ow.DatabaseSink,
        {"url": "postgresql://u@h/db", "pipeline_id": "p", "table": "t"},
    ),
    "FileSink": (ow.FileSink, {"path": "/files", "pipeline_id": "p"}),
    "DeltaSink": (ow.DeltaSink, {"path": "/delta", "pipeline_id": "p", "ledger": LEDGER}),
    "IcebergSink": (ow.IcebergSink, {"table": "a.b", "pipeline_id": "p", "ledger": LEDGER}),
    "WriteAheadSink": (ow.WriteAheadSink, {"deliver": print, **STORED}),
    "UpsertSink": (ow.UpsertSink, {"url": "redis://h", "prefix": "a:", "key": "id", **STORED}),
    "FanOut": (
        ow.FanOut,
        {
            "sinks": {
                "kafka": ow.KafkaSink(**KAFKA),
                "files": ow.FileSink(
                    path="/files", pipeline_id="p", ledger=ow.KafkaLedger("b:9092")
                ),
            }
        },
    ),
    "SchemaRegistry": (ow.SchemaRegistry, {"url": "http://r:8081"}),
    "FolderLedger": (ow.FolderLedger, {"path": "/ledger"}),
    "KafkaLedger": (ow.KafkaLedger, {"bootstrap_servers": "b:9092"}),
    "DatabaseLedger": (ow.DatabaseLedger, {"url": "postgresql://u@h/db"}),
    "checkpointing": (ow.checkpointing, {}),
    "FixedDelay": (ow.restart.FixedDelay, {}),
    "ExponentialDelay": (ow.restart.ExponentialDelay, {}),
    "FailureRate": (ow.restart.FailureRate, {}),
    "supervise": (ow.supervise, {"start": lambda: QUERY}),
    "wait": (lambda timeout_s: ow.wait(QUERY, timeout_s=timeout_s), {"timeout_s": 1}),
    "watch": (
        lambda watcher, steps: ow.events.watch(watcher, steps)(),
        {"watcher": print, "steps": [ow.events.COMMIT]},
    ),
    "newest_in": (lambda ledger: newest_in(ledger, pipeline_id("p")), {"ledger": LEDGER}),
}


@pytest.mark.parametrize("name", CALLS)
def test_each_parameter_takes_or_names_what_it_is_given(name: str):
    call, given = CALLS[name]
    call(**given)
    amiss = [
        f"{parameter}={value!r}: {found}"
        for parameter in inspect.signature(call).parameters
        for value in WRONG
        if (found := what_is_amiss(functools.partial(call, **{**given, parameter: value})))
    ]
    assert amiss == []


@pytest.mark.parametrize("seconds", [0, -1, "x", float("nan"), float("inf"), None])
def test_what_is_repeated_has_a_pause(seconds: Any):
    """Without one ``push_metrics`` pushed without end, on a core of its own."""
    for call in (
        lambda: ow.push_metrics("gateway:9091", interval_s=seconds),
        lambda: ow.push_metrics("gateway:9091", timeout_s=seconds),
        lambda: ow.serve_metrics(0, lag_interval_s=seconds),
        lambda: ow.register_metrics(lag_interval_s=seconds),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert refused.value.next_step == "pass seconds, 15 say"


def test_a_port_that_is_none():
    for port in (-1, 65_536, "9464", None):
        with pytest.raises(ConfigurationError) as refused:
            ow.serve_metrics(port)  # type: ignore[arg-type]
        assert "9464" in refused.value.next_step


def test_what_would_fail_later_is_refused_at_the_call():
    for call, named in (
        (lambda: ow.supervise(lambda: QUERY, "fixed-delay"), "strategy="),  # type: ignore[arg-type, return-value]
        (lambda: ow.events.watch(None), "watcher="),  # type: ignore[arg-type]
        (lambda: ow.events.watch(print, 5), "steps="),  # type: ignore[arg-type]
        (lambda: ow.events.watch(print, ["comit"]), "steps="),
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert refused.value.message.startswith(named)


class Writer:
    """A ``DataStreamWriter`` that nobody has started."""


def test_a_writer_that_was_not_started_is_no_query():
    for call in (
        lambda: ow.wait(Writer()),  # type: ignore[arg-type]
        lambda: ow.wait([]),  # type: ignore[arg-type]
        lambda: ow.supervise(Writer, ow.restart.NoRestart()),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigurationError) as refused:
            call()
        assert "DataStreamWriter.start()" in refused.value.next_step
        assert "instead of a streaming query" in refused.value.message
