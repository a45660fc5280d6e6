"""``onceward jars``: fetches every jar that tests, demo and benchmarks need, so that nothing later has to wait for it.

Registered in :mod:`onceward.cli`; ``make setup`` runs it.
"""

from __future__ import annotations

from typing import Annotated

import typer


def jars(
    paths: Annotated[bool, typer.Option("--paths", help="Print the path of every jar to stdout.")] = False,
) -> None:
    """Resolve the jars of Spark's Kafka and Avro connectors and of both tested Kafka releases, through Spark's Ivy."""
    from onceward.engine.jars import resolve, spark_connector_coordinates
    from onceward.engine.java import java_executable
    from onceward.testing.kafka_distribution import NEWEST_VERSION, TRANSACTION_V1_VERSION, coordinates

    java_executable()
    wanted = {
        "Spark's Kafka and Avro connectors": spark_connector_coordinates(),
        f"Kafka {NEWEST_VERSION}": coordinates(NEWEST_VERSION),
        f"Kafka {TRANSACTION_V1_VERSION}": coordinates(TRANSACTION_V1_VERSION),
    }
    for name, group in wanted.items():
        typer.echo(f"{name} … ", nl=False, err=True)
        found = resolve(*group)
        typer.echo(f"{len(found)} jars", err=True)
        if paths:
            for jar in found:
                typer.echo(jar)
