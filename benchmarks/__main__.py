"""The options of ``make bench``, checked, and its parts one after the other.

Run as ``python -m benchmarks`` in the root of the repository. Progress goes to stderr, tables and
one line of JSON to stdout.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from benchmarks.contenders import (
    Contender,
    latency_contenders,
    nexmark_contenders,
    sink_contenders,
    throughput_contenders,
)
from benchmarks.plan import ONCEWARD, LatencyPlan, SinkPlan, shapes
from onceward.cli.groups import TypedErrors
from onceward.errors import ConfigurationError

_THROUGHPUT_ROUNDS = 3
_LATENCY_ROUNDS = 2
_RECORDS = 3_000_000
_ROWS = 1_000_000
_DECODED = 2_000_000
_CHANGES = 200_000
_TABLE = 5_000_000
_DECODING_ROUNDS = 5
_START_ROUNDS = 5
_KEYS = 1_000_000


class Part(str, Enum):
    """What to measure."""

    ALL = "all"
    ENCODER = "encoder"
    SINK = "sink"
    DATABASE = "database"
    MYSQL = "mysql"
    FILES = "files"
    AVRO = "avro"
    BINLOG = "binlog"
    SNAPSHOT = "snapshot"
    OBSERVERS = "observers"
    START = "start"
    SCALE = "scale"
    BOUNDS = "bounds"
    STATE = "state"
    NEXMARK = "nexmark"


def bench(
    part: Annotated[Part, typer.Option(help="What to measure.")] = Part.ALL,
    before: Annotated[
        Path | None,
        typer.Option(
            help="Another checkout of this package, such as a git worktree: a contender in the "
            "same run."
        ),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1, help="Rounds; each contender runs once in each.", show_default="3, of latency 2"
        ),
    ] = None,
    output_partitions: Annotated[
        str,
        typer.Option(help="Partitions of the output topics; several numbers are as many shapes."),
    ] = "4,16",
    broker_version: Annotated[
        str, typer.Option(help="Kafka release of the local broker.")
    ] = "4.3.1",
    records: Annotated[
        int, typer.Option(min=1_000, help="Records that each query copies; rows: a million.")
    ] = _RECORDS,
    batch_records: Annotated[
        int, typer.Option(min=1_000, help="Records of one micro-batch.")
    ] = 500_000,
    value_bytes: Annotated[int, typer.Option(min=16, help="Bytes of a record's value.")] = 112,
    compression: Annotated[
        str, typer.Option(help="compression.type of what is written: none, lz4, zstd …")
    ] = "none",
    small_batch_records: Annotated[
        int,
        typer.Option(
            min=0,
            help="Records of one micro-batch in the shape of small batches; 0: leave it out.",
        ),
    ] = 20_000,
    small_batches: Annotated[int, typer.Option(min=1, help="Micro-batches of that shape.")] = 12,
    warm_up_records: Annotated[
        int, typer.Option(min=0, help="Records that each contender copies before anything counts.")
    ] = 2_000_000,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Flink, Kafka Streams, a loop in confluent-kafka and Quix Streams, each exactly "
            "once, as contenders, too (fetches them).",
        ),
    ] = False,
    write: Annotated[
        Path | None,
        typer.Option(
            help="A folder for throughput, latency or start as JSON and as a picture (SVG), too."
        ),
    ] = None,
    latency: Annotated[
        bool,
        typer.Option(
            "--latency", help="Measure the time from send to visible under a steady load, instead."
        ),
    ] = False,
    rate: Annotated[int, typer.Option(min=1, help="Latency: records/s.")] = 1_000,
    keys: Annotated[int, typer.Option(min=1_000, help="State: keys that are counted.")] = _KEYS,
    kills: Annotated[
        int,
        typer.Option(
            min=0,
            help="Nexmark: compare Onceward's answers, killed so often (kill -9) in the middle of "
            "each query, instead.",
        ),
    ] = 0,
    seconds: Annotated[
        float,
        typer.Option(
            min=1, help="Latency: seconds measured of each contender, shared by its rounds."
        ),
    ] = 40,
    warm_up_seconds: Annotated[
        float, typer.Option(min=0, help="Latency: seconds at full rate before anything counts.")
    ] = 20,
) -> None:
    """Measure the encoder beside its peers, and KafkaSink beside Spark's own Kafka sink; if they
    are asked for, DatabaseSink beside Spark's JDBC writer, FileSink beside Spark's own file sink,
    avro.decode beside from_avro, and what reads a MySQL's binlog and its tables beside
    mysql-replication and a plain client; what ten pipelines cost that are watched by metrics, a
    scraper and the dashboard; how long it takes to the first commit of a start, and to the next
    one after kill -9; a batch in up to 1,000 tasks and output partitions; what is added to
    queries that keep state; and Nexmark, beside Flink's SQL.

    Nothing else should run meanwhile. CPU time per record is the figure to trust on a machine that
    is not quiet. With the defaults each contender's JVM may grow to 2 GB; they work in turn.
    """
    if part in (Part.DATABASE, Part.MYSQL):
        rows = records if records != _RECORDS else _ROWS
        _database(
            "MySQL" if part is Part.MYSQL else "PostgreSQL",
            rows,
            rounds=rounds or _THROUGHPUT_ROUNDS,
        )
        return
    if part is Part.FILES:
        _files(
            records=records if records != _RECORDS else _ROWS, rounds=rounds or _THROUGHPUT_ROUNDS
        )
        return
    if part is Part.AVRO:
        _avro(
            records=records if records != _RECORDS else _DECODED, rounds=rounds or _DECODING_ROUNDS
        )
        return
    if part is Part.BINLOG:
        _binlog(
            changes=records if records != _RECORDS else _CHANGES,
            rounds=rounds or _THROUGHPUT_ROUNDS,
        )
        return
    if part is Part.SNAPSHOT:
        _snapshot(rows=records if records != _RECORDS else _TABLE, rounds=rounds or 1)
        return
    if part is Part.OBSERVERS:
        _observers(broker_version, rounds=rounds or _LATENCY_ROUNDS, seconds=seconds)
        return
    if part is Part.START:
        _start(broker_version, before, write, rounds=rounds or _START_ROUNDS)
        return
    if part is Part.SCALE:
        _scale(broker_version, write, rounds=rounds or _THROUGHPUT_ROUNDS)
        return
    if part is Part.BOUNDS:
        _bounds()
        return
    if part is Part.STATE:
        _state(broker_version, write, keys=keys, rounds=rounds or _THROUGHPUT_ROUNDS)
        return
    if part is Part.NEXMARK:
        events = records if records != _RECORDS else _ROWS
        if kills:
            _nexmark_under_kills(broker_version, events, kills)
            return
        _nexmark(broker_version, write, events, rounds=rounds or _THROUGHPUT_ROUNDS)
        return
    partitions = _numbers(output_partitions)
    if latency:
        timed = latency_contenders(before, peers=peers)
        rounds = rounds or _LATENCY_ROUNDS
        _latency(
            LatencyPlan(
                _names(timed),
                rate,
                seconds,
                rounds,
                warm_up_seconds,
                min(partitions),
                broker_version,
            ),
            timed,
            write,
        )
        return
    copying = throughput_contenders(before, peers=peers)
    cut = shapes(partitions, records, batch_records, small_batch_records, small_batches)
    plan = SinkPlan(
        cut,
        _names(copying),
        rounds or _THROUGHPUT_ROUNDS,
        warm_up_records,
        broker_version,
        value_bytes,
        compression,
    )
    _throughput(part, plan, copying, write)


def _throughput(
    part: Part, plan: SinkPlan, contenders: Sequence[Contender], write: Path | None
) -> None:
    from benchmarks import display, encoder, plots
    from benchmarks.figures import ShapeFigures, summarise
    from benchmarks.local_broker import local_broker
    from benchmarks.rounds import run_sinks

    encoded: list[encoder.EncoderFigures] = []
    if part is not Part.SINK:
        display.say(
            "encoder: one core, Arrow columns to stamped record batches, beside two peers …"
        )
        encoded = encoder.measure()
        display.encoder_table(encoded)
    sinks: list[ShapeFigures] = []
    if part is not Part.ENCODER:
        display.say(f"sink: starting Kafka {plan.broker_version} …")
        with local_broker(plan.broker_version) as broker:
            sinks = summarise(plan, run_sinks(plan, contenders, broker, display.say))
        for figures in sinks:
            display.sink_table(plan, figures)
    draw = partial(plots.throughput, shapes=sinks) if sinks else None
    _keep(write, "throughput", draw, encoder=encoded, plan=plan, sink=sinks)


def _database(server: Literal["PostgreSQL", "MySQL"], rows: int, rounds: int) -> None:
    from benchmarks import display
    from benchmarks.database import run_database

    figures = run_database(server, rows, rounds, display.say)
    display.database_table(server, figures, rows, rounds)
    display.json_line(server=server, rows=rows, rounds=rounds, database=figures)


def _files(records: int, rounds: int) -> None:
    from benchmarks import display
    from benchmarks.files import run_files

    figures = run_files(records, rounds, display.say)
    display.files_table(figures, records, rounds)
    display.json_line(rows=records, rounds=rounds, files=figures)


def _observers(broker_version: str, rounds: int, seconds: float) -> None:
    from benchmarks import display
    from benchmarks.observers import run_observers

    turns = run_observers(broker_version, rounds, seconds, display.say)
    display.json_line(rounds=rounds, seconds=seconds, observers=turns)


def _start(broker_version: str, before: Path | None, write: Path | None, rounds: int) -> None:
    from benchmarks import display, plots
    from benchmarks.local_broker import local_broker
    from benchmarks.start import run_start, summarise_start

    with local_broker(broker_version) as broker:
        turns = run_start(
            latency_contenders(before), broker.bootstrap_servers, rounds, display.say
        )
    figures = summarise_start(turns)
    display.start_table(figures, rounds)
    draw = partial(plots.starts, figures=figures)
    _keep(write, "start", draw, rounds=rounds, start=figures, turns=turns)


def _bounds() -> None:
    from benchmarks import display
    from benchmarks.bounds import SIZES, measured_costs

    display.bounds_table(measured_costs(), SIZES)


def _scale(broker_version: str, write: Path | None, rounds: int) -> None:
    from benchmarks import display, plots
    from benchmarks.local_broker import local_broker
    from benchmarks.scale import run_scale, summarise_scale

    with local_broker(broker_version) as broker:
        turns = run_scale(sink_contenders(), broker, rounds, display.say)
    figures = summarise_scale(turns)
    display.scale_table(figures, rounds)
    rows = {str(row.cut): (row.spark_batch_s, row.batch_s) for row in figures}
    draw = partial(plots.beside_spark, title="Seconds of a batch", rows=rows)
    _keep(write, "scale", draw, rounds=rounds, scale=figures)


def _state(broker_version: str, write: Path | None, keys: int, rounds: int) -> None:
    from benchmarks import display, plots
    from benchmarks.local_broker import local_broker
    from benchmarks.state import run_state, stateful_queries, summarise_state

    with local_broker(broker_version) as broker:
        turns = run_state(sink_contenders(), broker, stateful_queries(keys), rounds, display.say)
    figures = summarise_state(turns)
    display.state_table(figures, rounds)
    rows = {str(row.query): (row.spark_s, row.onceward_s) for row in figures}
    draw = partial(plots.beside_spark, title="Seconds of a query", rows=rows)
    _keep(write, "state", draw, rounds=rounds, state=figures)


def _nexmark(broker_version: str, write: Path | None, number: int, rounds: int) -> None:
    from benchmarks import display, plots
    from benchmarks.local_broker import local_broker
    from benchmarks.nexmark import made_events, run_nexmark, summarise_nexmark

    events = made_events(number, display.say)
    with local_broker(broker_version) as broker:
        turns = run_nexmark(nexmark_contenders(), broker, events, rounds, display.say)
    figures = summarise_nexmark(turns, ONCEWARD)
    display.nexmark_table(figures, number, rounds)
    draw = partial(plots.nexmark, queries=figures)
    _keep(write, "nexmark", draw, events=number, rounds=rounds, nexmark=figures)


def _nexmark_under_kills(broker_version: str, number: int, kills: int) -> None:
    from benchmarks import display
    from benchmarks.local_broker import local_broker
    from benchmarks.nexmark import made_events
    from benchmarks.nexmark_kills import run_under_kills

    (ours,) = (each for each in nexmark_contenders() if each.name == ONCEWARD)
    events = made_events(number, display.say)
    seed = secrets.randbelow(1_000)
    with local_broker(broker_version) as broker:
        done = run_under_kills(ours, broker, events, kills, seed, display.say)
    display.json_line(events=number, kills=kills, seed=seed, nexmark=done)


def _avro(records: int, rounds: int) -> None:
    from benchmarks import display
    from benchmarks.avro import run_avro

    figures = run_avro(records, rounds, display.say)
    display.avro_table(figures, records, rounds)
    display.json_line(records=records, rounds=rounds, avro=figures)


def _binlog(changes: int, rounds: int) -> None:
    from benchmarks import display
    from benchmarks.binlog import run_binlog

    figures = run_binlog(changes, rounds, display.say)
    display.binlog_table(figures, rounds)
    display.json_line(changes=changes, rounds=rounds, binlog=figures)


def _snapshot(rows: int, rounds: int) -> None:
    from benchmarks import display
    from benchmarks.snapshot import run_snapshot

    figures = run_snapshot(rows, rounds, display.say)
    display.snapshot_table(figures, rounds)
    display.json_line(rows=rows, rounds=rounds, snapshot=figures)


def _latency(plan: LatencyPlan, contenders: Sequence[Contender], write: Path | None) -> None:
    from benchmarks import display, plots
    from benchmarks.latency import run_latency
    from benchmarks.latency_figures import summarise_latency
    from benchmarks.local_broker import local_broker

    display.say(f"latency: starting Kafka {plan.broker_version} …")
    with local_broker(plan.broker_version) as broker:
        turns = run_latency(plan, contenders, broker, display.say)
    figures = summarise_latency(plan, turns)
    display.latency_table(plan, figures)
    draw = partial(plots.latency, plan=plan, figures=figures)
    _keep(write, "latency", draw, plan=plan, latency=figures)
    for turn in turns:
        turn.audit.require(f"of {turn.contender}, round {turn.round},")


def _keep(
    write: Path | None, name: str, draw: Callable[[Path], None] | None, **parts: object
) -> None:
    """Print ``parts`` as JSON; into the folder ``write``, too, with the picture that ``draw``
    makes.
    """
    from benchmarks import display

    display.json_line(write and write / f"{name}.json", **parts)
    if write and draw:
        draw(write / f"{name}.svg")


def _names(contenders: Sequence[Contender]) -> tuple[str, ...]:
    return tuple(contender.name for contender in contenders)


def _numbers(text: str) -> tuple[int, ...]:
    """Different positive numbers, separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    numbers = tuple(dict.fromkeys(int(part) for part in parts if part.isdecimal()))
    if len(numbers) != len(parts) or min(numbers) < 1:
        raise ConfigurationError(
            f"--output-partitions {text!r} is not a list of different positive numbers",
            next_step="write it like --output-partitions 4,16",
        )
    return numbers


app = typer.Typer(
    cls=TypedErrors,
    subcommand_metavar="",
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.callback(invoke_without_command=True)(bench)

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
