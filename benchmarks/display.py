"""What ``make bench`` shows: progress on stderr, tables and one line of JSON on stdout.

Called by :mod:`__main__`.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.encoder import EncoderFigures
from benchmarks.figures import Comparison, ShapeFigures
from benchmarks.latency_figures import LatencyFigures
from benchmarks.plan import ONCEWARD, SOURCE_PARTITIONS, SPARK_TUNED, LatencyPlan, SinkPlan
from onceward import events

if TYPE_CHECKING:
    from benchmarks.avro import AvroFigures
    from benchmarks.binlog import BinlogFigures
    from benchmarks.bounds import Costs, Sizes
    from benchmarks.database import DatabaseFigures
    from benchmarks.files import FileFigures
    from benchmarks.nexmark import NexmarkFigures
    from benchmarks.scale import ScaleFigures
    from benchmarks.snapshot import SnapshotFigures
    from benchmarks.start import StartFigures
    from benchmarks.state import StateFigures

_PACKAGES = ("onceward", "pyspark", "pyarrow", "numpy", "kafka-python", "confluent-kafka")

_TOLD_STEPS = (
    events.PLAN,
    events.SEND,
    events.CHECK,
    events.OFFSETS,
    events.LEDGER,
    events.COMMIT,
)


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
    console.print(
        "librdkafka's produce() only queues: encoding and sending come on top, in its own "
        "threads.\n"
    )


def database_table(
    server: str, figures: Sequence[DatabaseFigures], rows: int, rounds: int
) -> None:
    """The ways into a table, and what Onceward is to the others."""
    table = Table(
        title=f"{rows:,} rows of 8 columns, one batch, local[2]; medians of {rounds} round(s); "
        f"CPU in µs a row"
    )
    for column in ("contender", "seconds", "Spark", server, "all CPU"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in figures:
        cpu = (row.spark_us, row.server_us, row.spark_us + row.server_us)
        table.add_row(row.contender, f"{row.seconds:.2f}", *(f"{value:.2f}" for value in cpu))
    console = _console()
    console.print(table)
    _, *theirs = [row for row in figures if not row.contender.startswith("onceward")]
    for ours in (row for row in figures if row.contender.startswith("onceward")):
        for row in theirs:
            ratio = (ours.spark_us + ours.server_us) / (row.spark_us + row.server_us)
            faster = row.seconds / ours.seconds
            said = f"{faster:.2f} times as fast at {ratio:.2f} times the CPU"
            console.print(f"{ours.contender} to {row.contender}: {said}")
    console.print("Every table was counted and summed: nothing is missing, nothing there twice.\n")


def files_table(figures: Sequence[FileFigures], rows: int, rounds: int) -> None:
    """The ways into files, and what Onceward is to Spark's own."""
    table = Table(
        title=f"{rows:,} rows of 8 columns a batch to Parquet, local[2]; medians of {rounds} "
        f"round(s)"
    )
    for column in ("contender", "a query's first batch, s", "a later one, s", "CPU, µs a row"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in figures:
        table.add_row(row.contender, f"{row.first:.2f}", f"{row.seconds:.2f}", f"{row.cpu_us:.2f}")
    console = _console()
    console.print(table)
    _, spark, *ours = figures
    for row in ours:
        first, times, cpu = (
            row.first / spark.first,
            row.seconds / spark.seconds,
            row.cpu_us / spark.cpu_us,
        )
        console.print(
            f"{row.contender}: {times:.2f} times the time of {spark.contender} ({first:.2f} times "
            f"in the first batch), "
            f"{cpu:.2f} times its CPU"
        )
    console.print(
        "Every output was counted and summed: nothing is missing, nothing there twice.\n"
    )


def avro_table(figures: Sequence[AvroFigures], records: int, rounds: int) -> None:
    """What decoding costs, beside Spark's own function."""
    table = Table(
        title=f"{records:,} records from Parquet to nowhere, local[2]; medians of {rounds} "
        f"round(s)"
    )
    for column in (
        "records",
        "contender",
        "CPU, µs a record",
        "times from_avro",
        "source left out",
    ):
        table.add_column(column, justify="left" if column in ("records", "contender") else "right")
    for row in figures:
        table.add_row(
            row.shape,
            row.contender,
            f"{row.cpu_us:.2f}",
            f"{row.times:.2f}",
            f"{row.times_alone:.2f}",
        )
    _console().print(table)


def binlog_table(figures: Sequence[BinlogFigures], rounds: int) -> None:
    """What changes cost out of a binlog, beside another decoder in Python."""
    table = Table(title=f"A MySQL's binlog, decoded by one process; medians of {rounds} round(s)")
    for column in ("changes", "contender", "CPU, µs a change", "times mysql-replication"):
        table.add_column(column, justify="left" if column in ("changes", "contender") else "right")
    for row in figures:
        table.add_row(
            f"{row.changes:,} {row.shape}", row.contender, f"{row.cpu_us:.2f}", f"{row.times:.3f}"
        )
    _console().print(table)


def snapshot_table(figures: Sequence[SnapshotFigures], rounds: int) -> None:
    """All rows of a table, beside a plain client."""
    table = Table(title=f"A MySQL's table, read by one process; medians of {rounds} round(s)")
    for column in ("contender", "rows", "rows/s", "CPU, µs a row"):
        table.add_column(column, justify="left" if column == "contender" else "right")
    for row in figures:
        table.add_row(
            row.contender, f"{row.rows:,}", f"{row.rows_per_s:,.0f}", f"{row.cpu_us:.2f}"
        )
    _console().print(table)


def sink_table(plan: SinkPlan, figures: ShapeFigures) -> None:
    """The contenders in one shape, and what Onceward is to the others."""
    shape = figures.shape
    table = Table(
        title=f"{shape.records:,} records of {plan.value_bytes} bytes, {shape.batch_records:,} a "
        f"batch, {SOURCE_PARTITIONS} partitions to {shape.output_partitions}, compression "
        f"{plan.compression}, local[2]; medians of {plan.rounds} round(s); CPU in µs a record"
    )
    table.add_column("contender", no_wrap=True)
    for title in (
        "M records/s",
        "pipeline",
        "= Python",
        "+ JVM",
        "+ workers",
        "broker",
        "all CPU",
        "ms a batch",
    ):
        table.add_column(title, justify="right")
    for name, row in figures.contenders.items():
        table.add_row(
            name,
            f"{row.records_per_s / 1e6:.3f}",
            *(
                f"{us:.2f}"
                for us in (
                    row.pipeline_us,
                    row.driver_us,
                    row.jvm_us,
                    row.workers_us,
                    row.broker_us,
                )
            ),
            f"{row.total_us:.2f}",
            "–" if math.isnan(row.batch_ms) else f"{row.batch_ms:,.0f}",
        )
    console = _console()
    console.print(table)
    for name, ratios in figures.onceward_to.items():
        console.print(f"{ONCEWARD} to {name}: {_compared(ratios)}")
    console.print(
        "Every output was read back with read_committed by librdkafka: lost 0, duplicates 0.\n"
    )


def latency_table(plan: LatencyPlan, figures: Mapping[str, LatencyFigures]) -> None:
    """Latencies, counts, and where the time of a batch goes."""
    table = Table(
        title=f"Send to visible at {plan.rate:,} records/s of 112 bytes, {SOURCE_PARTITIONS} "
        f"partitions to "
        f"{plan.output_partitions}, local[2]; {plan.seconds:g} s each in {plan.rounds} turn(s)"
    )
    table.add_column("contender", no_wrap=True)
    for title in (
        "p50 ms",
        "p99 ms",
        "max ms",
        "of each turn",
        "records",
        "lost",
        "duplicates",
        "cores",
    ):
        table.add_column(title, justify="right")
    for name, row in figures.items():
        turns = ", ".join(f"{p50:.0f} / {p99:.0f}" for p50, p99 in row.turns)
        latencies = (f"{ms:.0f}" for ms in (row.p50_ms, row.p99_ms, row.max_ms))
        counts = (f"{count:,}" for count in (row.records, row.lost, row.repeated))
        table.add_row(name, *latencies, turns, *counts, f"{row.pipeline_cores:.2f}")
    console = _console()
    console.print(table)
    for name, row in figures.items():
        console.print(
            f"{name}: {row.batches} batches, medians in ms: {_listed(row.phases_ms)}",
            highlight=False,
        )
        if steps := {step: row.steps_ms[step] for step in _TOLD_STEPS if step in row.steps_ms}:
            console.print(
                f"  within addBatch, Onceward's steps: {_listed(steps)}", highlight=False
            )
    console.print()


def start_table(figures: Sequence[StartFigures], rounds: int) -> None:
    """Seconds to the first commit of a new process."""
    table = Table(
        title=f"Seconds from the start of a process to its first visible records; medians of "
        f"{rounds} round(s), local[2], {SOURCE_PARTITIONS} partitions"
    )
    table.add_column("contender", no_wrap=True)
    for title in ("empty checkpoint", "ratio", "after kill -9", "ratio"):
        table.add_column(title, justify="right")
    for row in figures:
        table.add_row(
            row.contender,
            f"{row.first_s:.1f}",
            f"{row.first_ratio:.2f}",
            f"{row.again_s:.1f}",
            f"{row.again_ratio:.2f}",
        )
    _console().print(table)


def scale_table(figures: Sequence[ScaleFigures], rounds: int) -> None:
    """A batch by tasks and partitions, beside Spark's own sink under the same settings."""
    table = Table(
        title=f"A batch by tasks and output partitions, beside {SPARK_TUNED}; medians of {rounds} "
        f"round(s), local[2]"
    )
    table.add_column("cut", no_wrap=True)
    for title in ("records", "Spark s", "ours s", "ratio", "CPU ratio", *_TOLD_STEPS, "worker MB"):
        table.add_column(title, justify="right")
    for row in figures:
        table.add_row(
            str(row.cut),
            f"{row.cut.batch_records:,}",
            f"{row.spark_batch_s:.2f}",
            f"{row.batch_s:.2f}",
            f"{row.batch_ratio:.2f}",
            f"{row.cpu_ratio:.2f}",
            *(f"{row.steps_ms.get(step, math.nan):,.0f}" for step in _TOLD_STEPS),
            f"{row.worker_mb:,.0f}",
        )
    console = _console()
    console.print(table)
    console.print("Steps in ms; memory: the most that any worker has had until then.\n")


def bounds_table(costs: Costs, sizes: Sizes) -> None:
    """What the driver pays for pairs of a task and an output partition, as it was measured and by
    the size of a batch.
    """
    console = _console()
    console.print(
        f"A pair: {costs.lease_us:.1f} µs of the driver's CPU for the lease, "
        f"{costs.report_us:.1f} to read what the task reports of it, {costs.check_us:.1f} to "
        f"check that; {costs.driver_bytes:.0f} bytes in the driver, {costs.report_bytes:.0f} in "
        f"the report. A partition: {costs.ledger_bytes:.0f} bytes of the ledger's record."
    )
    table = Table(title="A batch in which each task writes to each partition")
    for title in ("tasks", "partitions", "driver's CPU s", "MB", "ledger's record kB"):
        table.add_column(title, justify="right")
    for tasks, partitions in sizes:
        pairs = tasks * partitions
        table.add_row(
            f"{tasks:,}",
            f"{partitions:,}",
            f"{costs.driver_s(pairs):,.1f}",
            f"{pairs * costs.driver_bytes / 1e6:,.0f}",
            f"{partitions * costs.ledger_bytes / 1e3:,.0f}",
        )
    console.print(table)


def state_table(figures: Sequence[StateFigures], rounds: int) -> None:
    """Queries with state, beside Spark's own sink under the same settings."""
    table = Table(
        title=f"Queries with state on RocksDB, beside {SPARK_TUNED}; medians of {rounds} "
        f"round(s), local[2]"
    )
    table.add_column("query", no_wrap=True)
    for title in ("Spark s", "ours s", "ratio", "of a batch", "CPU ratio"):
        table.add_column(title, justify="right")
    for row in figures:
        seconds, ratios = (
            (row.spark_s, row.onceward_s),
            (row.time_ratio, row.batch_ratio, row.cpu_ratio),
        )
        table.add_row(
            str(row.query),
            *(f"{value:.1f}" for value in seconds),
            *(f"{value:.2f}" for value in ratios),
        )
    console = _console()
    console.print(table)
    console.print("Every count was read back and added up to the records that were read.\n")


def nexmark_table(figures: Sequence[NexmarkFigures], events: int, rounds: int) -> None:
    """Cores times seconds of each query, as Nexmark counts, and Onceward's to others'."""
    names = list(figures[0].cores_times_s)
    table = Table(
        title=f"Nexmark, {events:,} events: cores × seconds (seconds); medians of {rounds} "
        f"round(s), two cores"
    )
    table.add_column("query")
    for title in (*names, *(f"{ONCEWARD} to {name}" for name in figures[0].onceward_to)):
        table.add_column(title, justify="right")
    for row in figures:
        table.add_row(
            row.query,
            *(f"{row.cores_times_s[name]:.1f} ({row.wall_s[name]:.1f})" for name in names),
            *(f"{ratio:.2f}" for ratio in row.onceward_to.values()),
        )
    console = _console()
    console.print(table)
    console.print("Every answer was read back and is SQLite's, row by row.\n")


def json_line(to: Path | None = None, **parts: object) -> None:
    """Everything as one line of JSON: the machine, and ``parts`` as they are called.

    :param to: a file that gets it, too.
    """
    told = _rounded(_plain({"machine": _machine(), **parts}))
    typer.echo(json.dumps(told, separators=(",", ":")))
    if to is not None:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(json.dumps(told, indent=1) + "\n")


def _compared(ratios: Comparison) -> str:
    beyond = ratios.beyond_source_cpu_ratio
    return (
        f"{ratios.throughput_ratio:.2f} times the throughput at {ratios.cpu_ratio:.2f} times the "
        f"CPU "
        f"(pipeline {ratios.pipeline_cpu_ratio:.2f}, broker {ratios.broker_cpu_ratio:.2f}"
        + (f"; beyond reading the source {beyond:.2f})" if beyond is not None else ")")
    )


def _listed(medians_ms: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {ms:.1f}" for name, ms in medians_ms.items())


def _machine() -> dict[str, object]:
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in _PACKAGES},
    }


def _plain(value: object) -> object:
    """Dataclasses as objects of JSON, wherever they are."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return value


def _rounded(value: object) -> object:
    """Numbers to four significant digits: more would claim a precision that is not there."""
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None  # JSON knows no others
    if isinstance(value, dict):
        return {key: _rounded(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(part) for part in value]
    return value


def _console() -> Console:
    """As wide as the terminal, but never so narrow that a table breaks when output goes to a
    file.
    """
    console = Console()
    return console if console.width >= _WIDTH else Console(width=_WIDTH)


_WIDTH = 118
