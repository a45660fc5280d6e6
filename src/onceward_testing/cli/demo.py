"""``onceward demo``: the promise, shown. A job is killed again and again, and its output is
exactly right.

Registered in :mod:`onceward.cli`; it runs :mod:`onceward_testing.demo`, loaded when the command
runs.
"""

from __future__ import annotations

import importlib.util
import signal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer


class DemoSource(str, Enum):
    """Sources of the demo's job."""

    kafka = "kafka"
    mysql = "mysql"


class DemoSink(str, Enum):
    """Targets of the demo's job."""

    kafka = "kafka"
    postgres = "postgres"
    mysql = "mysql"
    files = "files"


def demo(
    records: Annotated[
        int | None,
        typer.Option(
            help="How many people to write, or changes to make. [default: 200000, of MySQL 60000]"
        ),
    ] = None,
    at_least_once: Annotated[
        bool,
        typer.Option(
            "--at-least-once", help="Use Spark's own Kafka sink instead, and see its duplicates."
        ),
    ] = False,
    source: Annotated[
        DemoSource,
        typer.Option(
            help="What the job reads: people from Kafka, or the changes of a MySQL's tables."
        ),
    ] = DemoSource.kafka,
    sink: Annotated[
        DemoSink,
        typer.Option(help="Where the job writes to; changes of MySQL to kafka or postgres."),
    ] = DemoSink.kafka,
    plain: Annotated[
        bool,
        typer.Option(
            "--plain",
            help="JSON without a registry, as always with --at-least-once and other sinks.",
        ),
    ] = False,
    nodes: Annotated[
        int, typer.Option(help="Brokers: 1, or 3 with every topic on three replicas.")
    ] = 1,
    broker_version: Annotated[
        str, typer.Option(help="Kafka release; 4.3.1 and 3.9.1 are tested.")
    ] = "4.3.1",
    master: Annotated[
        str, typer.Option(help="Spark master, such as local-cluster[2,1,1200].")
    ] = "local[2]",
    seconds: Annotated[
        float, typer.Option(help="Over how long the input is spread, in seconds.")
    ] = 90.0,
    window_seconds: Annotated[
        int, typer.Option(help="Length of the tumbling window, in seconds.")
    ] = 20,
    kills: Annotated[
        int | None,
        typer.Option(help="So many kills, at random moments, instead of the planned few."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the input and of the random kill.")] = 1,
    mysql_home: Annotated[
        Path | None,
        typer.Option(
            help="For --source mysql: another MySQL than 8.0.12, unpacked in this folder."
        ),
    ] = None,
    json_only: Annotated[
        bool, typer.Option("--json-only", help="Show nothing but the JSON line.")
    ] = False,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep the logs of broker and job in this folder.")
    ] = None,
) -> None:
    """Run an ETL job on a real Kafka, kill it with kill -9 at the worst moments, and count what
    comes out.

    Status 0: every expected number is visible exactly once, and `onceward verify` agrees. Status
    1: it is not so (always with --at-least-once), or the run proves nothing because a planned kill
    did not happen.
    """
    _require_demo_extra(source, sink)
    from onceward_testing.demo.report import Screen, show
    from onceward_testing.demo.run import run
    from onceward_testing.demo.settings import DemoSettings

    settings = DemoSettings(
        records=_RECORDS[source] if records is None else records,
        seed=seed,
        delivery="at_least_once" if at_least_once else "exactly_once",
        source=source.value,
        sink=sink.value,
        plain=plain,
        nodes=nodes,
        broker_version=broker_version,
        master=master,
        window_seconds=window_seconds,
        produce_seconds=seconds,
        kills=kills,
        mysql_home="" if mysql_home is None else str(mysql_home.resolve()),
    )
    signal.signal(signal.SIGTERM, _leave)
    with Screen(quiet=json_only) as screen:
        result = run(settings, screen, log_dir)
    show(result, screen.console)
    typer.echo(result.to_json())
    raise typer.Exit(0 if result.kept else 1)


def _leave(number: int, _frame: Any) -> None:
    """End the demo by SIGTERM like Ctrl-C does: through every ``finally``, so that nothing is left
    running."""
    raise SystemExit(128 + number)


_CLIENTS = {
    "postgres": (("psycopg", "adbc_driver_postgresql"), ",postgresql"),
    "mysql": (("pymysql",), ",mysql"),
}
"""Modules that a source or sink needs, and the extra that brings them."""

_RECORDS = {DemoSource.kafka: 200_000, DemoSource.mysql: 60_000}


def _require_demo_extra(source: DemoSource, sink: DemoSink) -> None:
    from onceward.errors import ConfigurationError

    clients = [
        _CLIENTS[name] for name in dict.fromkeys((source.value, sink.value)) if name in _CLIENTS
    ]
    extra = "".join(extra for _, extra in clients)
    needed = [
        "confluent_kafka",
        "psutil",
        "fastavro",
        "urllib3",
        *(name for names, _ in clients for name in names),
    ]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo needs {' and '.join(missing)}",
            next_step=f'run pip install "onceward[demo{extra}]"',
        )
