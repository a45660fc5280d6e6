"""What could keep a pipeline from running: this machine's Java, Spark and jars, then the brokers
and topics.

Called by ``onceward doctor``. It changes nothing, and a check that may not look warns instead of
failing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from onceward.cli.doctor.finding import Finding
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.properties_file import read_properties
from onceward.kafka.wire.options.settings import (
    LONGEST_TRANSACTION_MS,
    ProducerSettings,
    settings_from_options,
)
from onceward.spark.session.connector import spark_connector
from onceward.spark.session.java import java_found, must_have_modules
from onceward.spark.session.versions import installed_spark, must_have_been_run, must_start_on

from onceward.cli.doctor.slowest_batch import check_slowest_batch
from onceward.cli.doctor.worker_python import check_worker_python
from onceward.errors import AccessDenied, OncewardError, TopicMissing
from onceward.ids import pipeline_id

_QUICK = {"socket.connection.setup.timeout.max.ms": "4000"}
"""Somebody waits in front of a screen; a pipeline that starts beside its brokers is more
patient.
"""


def check_machine() -> list[Finding]:
    """Check Java, PySpark, the jars of Spark's Kafka source and the workers' Python, as a driver
    here would find them."""
    return [
        tried(_java),
        tried(_pyspark),
        *_jars(),
        check_worker_python(),
    ]


def _jars() -> list[Finding]:
    """Check the jars of Spark's Kafka source, and every part that is not of the PySpark
    installed.
    """
    try:
        connector = spark_connector()
    except OncewardError as error:
        return [Finding("fail", error.message, error.next_step)]
    found = (
        f"jars: {len(connector.jars)} for Spark's Kafka source, of "
        f"{', '.join(connector.coordinates)}"
    )
    return [Finding("ok", found), *(Finding("warn", f"jars: {note}") for note in connector.notes)]


def tried(check: Callable[[], Finding]) -> Finding:
    """Return what ``check`` finds; a denied look is a warning, any other error of ours a
    failure.
    """
    try:
        return check()
    except AccessDenied as denied:
        return Finding("warn", f"not checked: {denied.message}", denied.next_step)
    except OncewardError as error:
        return Finding("fail", error.message, error.next_step)


def _java() -> Finding:
    java, major = java_found()
    must_start_on(java, major, installed_spark())
    must_have_modules(java)
    return Finding("ok", f"Java: {java}")


def _pyspark() -> Finding:
    try:
        import pyspark
    except ImportError:
        return Finding("fail", "PySpark is not installed", 'pip install "pyspark>=4.0,<4.4"')
    must_have_been_run(pyspark.__version__)
    return Finding("ok", f"PySpark {pyspark.__version__}")


def check_brokers(
    servers: str,
    command_config: Path | None,
    topics: Sequence[str],
    sources: Sequence[str],
    ledger_topic: str,
    pipeline: str | None = None,
) -> list[Finding]:
    """Check that brokers answer, which version they have, and that topics suit a pipeline.

    :param pipeline: whose last batches to look at, too.

    :raises ConfigurationError: the settings themselves are wrong.
    """
    client, producer = connected(servers, command_config)
    named = None if pipeline is None else pipeline_id(pipeline)
    try:
        reached = tried(
            lambda: Finding(
                "ok", f"cluster {client.cluster_id()} with {len(client.brokers())} brokers"
            )
        )
        if reached.status != "ok":
            return [reached]
        return [
            reached,
            tried(lambda: _transactions(client)),
            tried(lambda: _timeout(client, producer.transaction_timeout_ms)),
            *(
                []
                if named is None
                else [
                    tried(lambda: check_slowest_batch(client, named, ledger_topic, _most(client)))
                ]
            ),
            tried(lambda: _ledger(client, ledger_topic)),
            *(tried(lambda name=name: _output(client, name)) for name in topics),  # type: ignore[misc]
            *(tried(lambda name=name: _source(client, name)) for name in sources),  # type: ignore[misc]
        ]
    finally:
        client.close()


def connected(servers: str, command_config: Path | None) -> tuple[KafkaClient, ProducerSettings]:
    """Return a client with the patience of somebody in front of a screen. :raises
    ConfigurationError: wrong settings."""
    options = _QUICK if command_config is None else _QUICK | read_properties(command_config)
    settings, producer = settings_from_options(servers, options, client_id="onceward-doctor")
    return KafkaClient(settings), producer


def _most(client: KafkaClient) -> int | None:
    try:
        return int(client.broker_config().get("transaction.max.timeout.ms") or 0) or None
    except AccessDenied:
        return None


def _transactions(client: KafkaClient) -> Finding:
    version = client.transaction_version()
    if version == 2:
        return Finding("ok", "transaction version 2")
    return Finding(
        "ok",
        "transaction version 1: exactly once as well, one request more a batch; brokers from 3.6 "
        "on are needed",
    )


def _timeout(client: KafkaClient, chosen_ms: int | None) -> Finding:
    most = int(client.broker_config().get("transaction.max.timeout.ms") or 0)
    wanted_ms = min(most, LONGEST_TRANSACTION_MS) if chosen_ms is None else chosen_ms
    if most >= wanted_ms:
        return Finding(
            "ok",
            f"transaction.max.timeout.ms={most}, the sink's transaction.timeout.ms is {wanted_ms}",
        )
    return Finding(
        "fail",
        f"transaction.max.timeout.ms={most} is below the sink's "
        f"transaction.timeout.ms={wanted_ms}",
        "raise it on the brokers, or lower transaction.timeout.ms",
    )


def _ledger(client: KafkaClient, topic: str) -> Finding:
    try:
        replicas = client.replication_factor(topic)
    except TopicMissing:
        return Finding(
            "ok",
            f"ledger topic {topic} does not exist yet: the first pipeline creates it, if it may",
        )
    config = client.topic_config(topic)
    cleanup = config.get("cleanup.policy") or ""
    if cleanup != "compact":
        return Finding(
            "fail",
            f"ledger topic {topic} has cleanup.policy={cleanup}",
            "set cleanup.policy=compact (kafka-configs --alter): Kafka would delete what "
            "exactly-once rests on",
        )
    return _replicated(
        f"ledger topic {topic}, compacted", replicas, config.get("min.insync.replicas")
    )


def _output(client: KafkaClient, topic: str) -> Finding:
    replicas = client.replication_factor(topic)
    return _replicated(
        f"output topic {topic}", replicas, client.topic_config(topic).get("min.insync.replicas")
    )


def _source(client: KafkaClient, topic: str) -> Finding:
    return Finding(
        "ok", f"source topic {topic}, {len(client.topic_partitions([topic])[topic])} partitions"
    )


def _replicated(what: str, replicas: int, in_sync: str | None) -> Finding:
    text = f"{what}: replication factor {replicas}, min.insync.replicas {in_sync}"
    if replicas >= 3 and int(in_sync or 1) >= 2:
        return Finding("ok", text)
    return Finding(
        "warn", text, "use 3 and 2, or the loss of one broker stops the pipeline or loses records"
    )
