"""Checks of this machine's Java, Spark, jars and workers' Python, then of brokers, topics and a
pipeline's batches.

Called by ``onceward doctor``. They change nothing, and one that may not look warns instead of
failing. What they cannot see is another machine's Python: a cluster's executors have to be looked
at there. Each ledger record of a Kafka transaction says for how long that had been open
(``open_ms``), and the coordinator says with which timeout the pipeline runs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import AccessDenied, OncewardError, TopicMissing
from onceward.ids import PipelineId, pipeline_id
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.options.settings import (
    LONGEST_TRANSACTION_MS,
    ProducerSettings,
    read_properties,
    settings_from_options,
)
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator
from onceward.spark.session.connector import spark_connector
from onceward.spark.session.java import java_found, must_have_modules
from onceward.spark.session.versions import installed_spark, must_have_been_run, must_start_on


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was looked at, how it is, and what to do if it is amiss."""

    status: Literal["ok", "warn", "fail"]
    what: str
    next_step: str = ""


_NARROW = 0.5
"""From this share of the timeout on a batch twice as large, or brokers half as fast, would not get
through.
"""
_LARGER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms, or make batches smaller with max_offsets_per_trigger"
)


def check_slowest_batch(
    client: KafkaClient, pipeline: PipelineId, ledger_topic: str, most_ms: int | None
) -> CheckResult:
    """Compare the pipeline's slowest recent batch with the transaction's timeout.

    :param most_ms: the brokers' ``transaction.max.timeout.ms``; None: it may not be read.

    :raises AccessDenied, BrokerUnreachable, LedgerUnreadable: the ledger cannot be read.
    """
    recent = LedgerTopic(client, ledger_topic, pipeline).recent()
    return compare_with_timeout(
        pipeline, recent, _timeout_ms(client, pipeline), most_ms, ledger_topic
    )


def _timeout_ms(client: KafkaClient, pipeline: PipelineId) -> int | None:
    """Return the timeout of the pipeline's newest run (up to 1 % less than it is set to); None: it
    is not known."""
    coordinator = TransactionCoordinator(client, pipeline)
    try:
        return coordinator.describe(Deadline(client.settings.request_timeout_ms)).timeout_ms
    except (Refused, Unanswered, OncewardError):
        # expired, brokers before 3.0, or not granted
        return None


def compare_with_timeout(
    pipeline: str,
    recent: Sequence[LedgerRecord],
    timeout_ms: int | None,
    most_ms: int | None,
    ledger_topic: str,
) -> CheckResult:
    """Compare the slowest of the ``recent`` batches with the timeout. Pure."""
    if not recent:
        return CheckResult(
            "ok", f"pipeline {pipeline} has no batch in ledger topic {ledger_topic} yet"
        )
    timed = [record for record in recent if record.open_ms is not None]
    if not timed:
        return CheckResult(
            "ok",
            f"pipeline {pipeline}: its last {len(recent)} batches in {ledger_topic} do not say "
            "how long their transactions were open: an earlier release wrote them",
            "look again after the next batch; at INFO the sink logs each batch's time",
        )
    slowest = max(timed, key=lambda record: record.open_ms or 0)
    open_ms = slowest.open_ms or 0
    brokers = "may not be read" if most_ms is None else f"is {most_ms}"
    text = (
        f"pipeline {pipeline}: of its last {len(timed)} batches the slowest, batch "
        f"{slowest.batch.batch_id}, had its transaction open for {open_ms} ms"
    )
    theirs = f"the brokers' transaction.max.timeout.ms {brokers}"
    if not timeout_ms:
        return CheckResult(
            "ok",
            f"{text}; the coordinator does not say with which transaction.timeout.ms it runs; "
            f"{theirs}",
        )
    share = open_ms / timeout_ms
    text += (
        f", {share:.0%} of the {timeout_ms} ms that it asked for (transaction.timeout.ms): room "
        f"for {timeout_ms - open_ms} ms; {theirs}"
    )
    return CheckResult("warn", text, _LARGER) if share >= _NARROW else CheckResult("ok", text)


_VARIABLE = "PYSPARK_PYTHON"
_PROGRAM = (
    "import sys, onceward.spark.session.worker_daemon; print('.'.join(map(str, "
    "sys.version_info[:2])))"
)
_SECONDS = 120
_INSTALL_IT = "install onceward (and the driver's version of Python) there"


def check_worker_python(environment: Mapping[str, str] | None = None) -> CheckResult:
    """Check the interpreter of :data:`_VARIABLE`; without it, report what a cluster and what local
    mode would take.

    :param environment: the variables to look into; None: this process's own.
    """
    environment = os.environ if environment is None else environment
    chosen = environment.get(_VARIABLE)
    if chosen:
        amiss = _fault(chosen, environment)
        if amiss is None:
            return CheckResult("ok", f"workers' Python: {_VARIABLE}={chosen}")
        return CheckResult(
            "fail",
            f"workers' Python: {_VARIABLE}={chosen} {amiss}",
            f"correct {_VARIABLE}, or {_INSTALL_IT}",
        )
    amiss = _fault("python3", environment)
    if amiss is None:
        return CheckResult("ok", f"workers' Python: python3, as {_VARIABLE} is not set")
    return CheckResult(
        "warn",
        f"workers' Python: {_VARIABLE} is not set; in local mode workers run this one, "
        f"{sys.executable}, but on a cluster python3, which here {amiss}",
        f"for a cluster set {_VARIABLE} to a Python that has onceward on every machine with an "
        "executor",
    )


def _fault(python: str, environment: Mapping[str, str]) -> str | None:
    """Return why ``python`` cannot be a worker's; None: it can."""
    found = shutil.which(python, path=environment.get("PATH"))
    if found is None:
        return "is not there"
    try:
        # Not in this folder, whose modules would be found although a worker does not run here.
        ran = subprocess.run(
            [found, "-c", _PROGRAM],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=dict(environment),
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError) as failure:
        return f"does not run: {failure}"
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        return f"cannot import onceward: {last}"
    version, ours = ran.stdout.split()[-1], ".".join(map(str, sys.version_info[:2]))
    return None if version == ours else f"is Python {version}, and the driver's is {ours}"


_QUICK = {"socket.connection.setup.timeout.max.ms": "4000"}
"""Somebody waits in front of a screen; a pipeline that starts beside its brokers is more
patient.
"""


def check_machine() -> list[CheckResult]:
    """Check Java, PySpark, the jars of Spark's Kafka source and the workers' Python, as a driver
    here would find them."""
    return [
        run_check(_java),
        run_check(_pyspark),
        *_jars(),
        check_worker_python(),
    ]


def _jars() -> list[CheckResult]:
    """Check the jars of Spark's Kafka source, and every part that is not of the PySpark
    installed.
    """
    try:
        connector = spark_connector()
    except OncewardError as error:
        return [CheckResult("fail", error.message, error.next_step)]
    found = (
        f"jars: {len(connector.jars)} for Spark's Kafka source, of "
        f"{', '.join(connector.coordinates)}"
    )
    return [
        CheckResult("ok", found),
        *(CheckResult("warn", f"jars: {note}") for note in connector.notes),
    ]


def run_check(check: Callable[[], CheckResult]) -> CheckResult:
    """Return what ``check`` finds; a denied look is a warning, any other error of ours a
    failure.
    """
    try:
        return check()
    except AccessDenied as denied:
        return CheckResult("warn", f"not checked: {denied.message}", denied.next_step)
    except OncewardError as error:
        return CheckResult("fail", error.message, error.next_step)


def _java() -> CheckResult:
    java, major = java_found()
    must_start_on(java, major, installed_spark())
    must_have_modules(java)
    return CheckResult("ok", f"Java: {java}")


def _pyspark() -> CheckResult:
    try:
        import pyspark
    except ImportError:
        return CheckResult("fail", "PySpark is not installed", 'pip install "pyspark>=4.0,<4.4"')
    must_have_been_run(pyspark.__version__)
    return CheckResult("ok", f"PySpark {pyspark.__version__}")


def check_brokers(
    servers: str,
    command_config: Path | None,
    topics: Sequence[str],
    sources: Sequence[str],
    ledger_topic: str,
    pipeline: str | None = None,
) -> list[CheckResult]:
    """Check that brokers answer, which version they have, and that topics suit a pipeline.

    :param pipeline: whose last batches to look at, too.

    :raises ConfigurationError: the settings themselves are wrong.
    """
    client, producer = connected(servers, command_config)
    named = None if pipeline is None else pipeline_id(pipeline)
    try:
        reached = run_check(
            lambda: CheckResult(
                "ok", f"cluster {client.cluster_id()} with {len(client.brokers())} brokers"
            )
        )
        if reached.status != "ok":
            return [reached]
        return [
            reached,
            run_check(lambda: _transactions(client)),
            run_check(lambda: _timeout(client, producer.transaction_timeout_ms)),
            *(
                []
                if named is None
                else [
                    run_check(
                        lambda: check_slowest_batch(client, named, ledger_topic, _most(client))
                    )
                ]
            ),
            run_check(lambda: _ledger(client, ledger_topic)),
            *(run_check(partial(_output, client, name)) for name in topics),
            *(run_check(partial(_source, client, name)) for name in sources),
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


def _transactions(client: KafkaClient) -> CheckResult:
    version = client.transaction_version()
    if version == 2:
        return CheckResult("ok", "transaction version 2")
    return CheckResult(
        "ok",
        "transaction version 1: exactly once as well, one request more a batch; brokers from 3.6 "
        "on are needed",
    )


def _timeout(client: KafkaClient, chosen_ms: int | None) -> CheckResult:
    most = int(client.broker_config().get("transaction.max.timeout.ms") or 0)
    wanted_ms = min(most, LONGEST_TRANSACTION_MS) if chosen_ms is None else chosen_ms
    if most >= wanted_ms:
        return CheckResult(
            "ok",
            f"transaction.max.timeout.ms={most}, the sink's transaction.timeout.ms is {wanted_ms}",
        )
    return CheckResult(
        "fail",
        f"transaction.max.timeout.ms={most} is below the sink's "
        f"transaction.timeout.ms={wanted_ms}",
        "raise it on the brokers, or lower transaction.timeout.ms",
    )


def _ledger(client: KafkaClient, topic: str) -> CheckResult:
    try:
        replicas = client.replication_factor(topic)
    except TopicMissing:
        return CheckResult(
            "ok",
            f"ledger topic {topic} does not exist yet: the first pipeline creates it, if it may",
        )
    config = client.topic_config(topic)
    cleanup = config.get("cleanup.policy") or ""
    if cleanup != "compact":
        return CheckResult(
            "fail",
            f"ledger topic {topic} has cleanup.policy={cleanup}",
            "set cleanup.policy=compact (kafka-configs --alter): Kafka would delete what "
            "exactly-once rests on",
        )
    return _replication_result(
        f"ledger topic {topic}, compacted", replicas, config.get("min.insync.replicas")
    )


def _output(client: KafkaClient, topic: str) -> CheckResult:
    replicas = client.replication_factor(topic)
    return _replication_result(
        f"output topic {topic}", replicas, client.topic_config(topic).get("min.insync.replicas")
    )


def _source(client: KafkaClient, topic: str) -> CheckResult:
    return CheckResult(
        "ok", f"source topic {topic}, {len(client.topic_partitions([topic])[topic])} partitions"
    )


def _replication_result(what: str, replicas: int, in_sync: str | None) -> CheckResult:
    text = f"{what}: replication factor {replicas}, min.insync.replicas {in_sync}"
    if replicas >= 3 and int(in_sync or 1) >= 2:
        return CheckResult("ok", text)
    return CheckResult(
        "warn", text, "use 3 and 2, or the loss of one broker stops the pipeline or loses records"
    )
