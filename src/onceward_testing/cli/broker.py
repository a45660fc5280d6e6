"""``onceward broker``: a real Kafka by hand, for as long as the terminal is open.

Registered in :mod:`onceward.cli`. Runs in the foreground; what it starts ends with it, however it
ends.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from onceward_testing import LocalKafka

_CHECK_SECONDS = 0.5
_PARTITIONS = 4


def broker(
    nodes: Annotated[int, typer.Option(help="1, or 3 with every topic on three replicas.")] = 1,
    version: Annotated[
        str, typer.Option(help="Kafka release; 4.3.1 and 3.9.1 are tested.")
    ] = "4.3.1",
    port: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=65_500,
            help="Port of the first node, the next ones follow; a free one by default.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A broker setting in Kafka's own name."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:PARTITIONS]",
            help="A topic to create, with 4 partitions unless told otherwise.",
        ),
    ] = None,
    heap_mb: Annotated[int, typer.Option(help="Heap of each node in MiB.")] = 384,
    log_dir: Annotated[
        Path | None, typer.Option(help="Keep the brokers' logs in this folder.")
    ] = None,
) -> None:
    """Start a local Kafka, print its bootstrap servers, and run until Ctrl-C. Its data go with
    it.
    """
    from onceward_testing import LocalKafka

    topics, stopped = _topics(topic), threading.Event()
    typer.echo(f"starting Kafka {version} with {nodes} node(s) …", err=True)
    ports = None if port is None else range(port, port + nodes)
    cluster = LocalKafka(
        nodes,
        version,
        properties=_settings(setting),
        ports=ports,
        heap_mb=heap_mb,
        log_dir=log_dir,
    )
    with cluster:
        # Not before: a start, which may fetch jars, is left at once by Ctrl-C.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stopped.set())
        _create(cluster.bootstrap_servers, topics)
        typer.echo(cluster.bootstrap_servers)  # alone on stdout, for scripts
        typer.echo(
            "running until Ctrl-C; only --topic creates topics; data are removed at the end",
            err=True,
        )
        _wait(cluster, stopped)
    typer.echo("stopped", err=True)


def _create(bootstrap_servers: str, topics: dict[str, int]) -> None:
    from onceward.kafka.wire.client import KafkaClient
    from onceward.kafka.wire.options.settings import settings_from_options

    if not topics:
        return
    settings, _ = settings_from_options(bootstrap_servers, {}, client_id="onceward-broker")
    client = KafkaClient(settings)
    try:
        for name, partitions in topics.items():
            client.create_topic(name, partitions)
    finally:
        client.close()


def _wait(cluster: LocalKafka, stopped: threading.Event) -> None:
    """Wait until the user stops it; fail when a node ended by itself."""
    while not stopped.wait(_CHECK_SECONDS):
        for node in cluster.nodes:
            if not node.running:
                raise node.ended_by_itself()


def _topics(wanted: list[str] | None) -> dict[str, int]:
    """Return names and partition counts. :raises InvalidTopicName: before a broker is started in
    vain."""
    from onceward.ids import topic_name

    topics = {}
    for text in wanted or []:
        name, _, count = text.partition(":")
        if count and not (count.isdecimal() and int(count) > 0):
            raise typer.BadParameter(
                f"{text!r} is not NAME or NAME:PARTITIONS", param_hint="--topic"
            )
        topics[topic_name(name, "--topic")] = int(count or _PARTITIONS)
    return topics


def _settings(pairs: list[str] | None) -> dict[str, str]:
    for pair in pairs or []:
        if "=" not in pair:
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--set")
    return dict(pair.split("=", 1) for pair in pairs or [])
