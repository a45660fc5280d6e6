"""What ``onceward bench`` shows: progress on stderr, tables and one line of JSON on stdout.

Called by :mod:`command`.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

import typer
from rich.console import Console
from rich.table import Table

from onceward.cli.bench.encoder import EncoderFigures
from onceward.cli.bench.figures import CONTENDERS, SPARK_SINK, SinkFigures, SinkPlan

_PACKAGES = ("onceward", "pyspark", "pyarrow", "numpy", "kafka-python", "confluent-kafka")


def say(text: str) -> None:
    """One line of progress."""
    typer.echo(text, err=True)


def encoder_table(figures: Sequence[EncoderFigures]) -> None:
    """The encoder and its peers."""
    table = Table(title="Encoding on one core (short keys, no compression; medians)")
    table.add_column("contender")
    for title in ("value bytes", "M records/s of CPU", "MB/s of CPU", "M records/s by the clock"):
        table.add_column(title, justify="right")
    for row in figures:
        table.add_row(
            row.contender,
            f"{row.value_bytes:,}",
            f"{row.records_per_cpu_s / 1e6:.2f}",
            f"{row.mb_per_cpu_s:,.0f}",
            f"{row.records_per_s / 1e6:.2f}",
        )
    console = _console()
    console.print(table)
    console.print("librdkafka's produce() only queues: encoding and sending come on top, in its own threads.\n")


def sink_table(plan: SinkPlan, figures: SinkFigures) -> None:
    """The sinks, and what one is to the other."""
    table = Table(
        title=f"{plan.records:,} records of 112 bytes, {plan.batch_records:,} a batch, 4 partitions to "
        f"{plan.partitions}, local[2]; medians of {plan.rounds} round(s); CPU in µs a record"
    )
    table.add_column("contender")
    for title in ("M records/s", "Spark", "= driver", "+ JVM", "+ workers", "broker", "all CPU", "ms a batch"):
        table.add_column(title, justify="right")
    for name in CONTENDERS:
        row = figures.contenders[name]
        table.add_row(
            name,
            f"{row.records_per_s / 1e6:.3f}",
            *(f"{us:.2f}" for us in (row.spark_us, row.driver_us, row.jvm_us, row.workers_us, row.broker_us)),
            f"{row.total_us:.2f}",
            f"{row.batch_ms:,.0f}",
        )
    console = _console()
    console.print(table)
    console.print(
        f"Onceward (exactly once) to {SPARK_SINK} (at least once): "
        f"{figures.throughput_ratio:.2f} times the throughput at {figures.cpu_ratio:.2f} times the CPU "
        f"(Spark {figures.spark_cpu_ratio:.2f}, broker {figures.broker_cpu_ratio:.2f}; "
        f"beyond reading the source {figures.beyond_source_cpu_ratio:.2f}).\n"
        "Every output was read back with read_committed by librdkafka: lost 0, duplicates 0.\n"
    )


def json_line(encoded: Sequence[EncoderFigures], plan: SinkPlan, sinks: SinkFigures | None) -> None:
    """Everything as one line of JSON."""
    document: dict[str, object] = {"machine": _machine(), "encoder": [asdict(row) for row in encoded]}
    if sinks is not None:
        document["sink"] = {"plan": asdict(plan), **asdict(sinks)}
    typer.echo(json.dumps(_rounded(document), separators=(",", ":")))


def _machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _rounded(value: object) -> object:
    """Numbers to four significant digits: more would claim a precision that is not there."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return value


def _console() -> Console:
    """As wide as the terminal, but never so narrow that a table breaks when output goes to a file."""
    console = Console()
    return console if console.width >= _WIDTH else Console(width=_WIDTH)


_WIDTH = 118
