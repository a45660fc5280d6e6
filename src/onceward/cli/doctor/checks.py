"""Checks of this machine's Java, Spark, jars and workers' Python, then brokers, topics, batches.

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
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from onceward.cli.doctor.kinds import CheckResult, Facts, diagnose, ok, warn
from onceward.cli.groups import DENIED, UNAVAILABLE, status_of
from onceward.cli.shared import connect
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    AccessDenied,
    OncewardError,
    TopicMissing,
    UnsupportedBroker,
)
from onceward.ids import PipelineId, pipeline_id
from onceward.kafka.ledger.reader import LedgerTopicReader
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.conversation import Refused, Unanswered
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.options.settings import LONGEST_TRANSACTION_MS, ProducerSettings
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator
from onceward.spark.session.connector import (
    installed_spark,
    must_have_been_run,
    must_start_on,
    spark_connector,
)
from onceward.spark.session.java import java_found, must_have_modules

_NARROW = 0.5
"""From this share on a batch twice as large, or brokers half as fast, would not get through."""
_LARGER = (
    "raise transaction.timeout.ms (options= of the sink), up to the brokers' "
    "transaction.max.timeout.ms, or make batches smaller with max_offsets_per_trigger"
)


def check_slowest_batch(
    client: KafkaClient, pipeline: PipelineId, ledger_topic: str
) -> CheckResult:
    """Compare the pipeline's slowest recent batch with the transaction's timeout.

    :raises AccessDenied, BrokerUnreachable, LedgerUnreadable: the ledger cannot be read.
    """
    try:
        most_ms = int(client.broker_config().get("transaction.max.timeout.ms") or 0) or None
    except (AccessDenied, UnsupportedBroker):
        most_ms = None
    recent = LedgerTopicReader(client, ledger_topic).recent(pipeline)
    return compare_with_timeout(
        pipeline, recent, _timeout_ms(client, pipeline), most_ms, ledger_topic
    )


def _timeout_ms(client: KafkaClient, pipeline: PipelineId) -> int | None:
    """Return the timeout of the newest run (up to 1 % less than set); None: not known."""
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
    """Compare the slowest of the ``recent`` batches with the timeout. Pure.

    :param most_ms: the brokers' ``transaction.max.timeout.ms``; None: it may not be read.
    """
    if not recent:
        return ok(f"pipeline {pipeline} has no batch in ledger topic {ledger_topic} yet")
    timed = [record for record in recent if record.open_ms is not None]
    if not timed:
        return ok(
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
        return ok(
            f"{text}; the coordinator does not say with which transaction.timeout.ms it runs; "
            f"{theirs}"
        )
    share = open_ms / timeout_ms
    text += (
        f", {share:.0%} of the {timeout_ms} ms that it asked for (transaction.timeout.ms): room "
        f"for {timeout_ms - open_ms} ms; {theirs}"
    )
    return warn(text, _LARGER) if share >= _NARROW else ok(text)


_VARIABLE = "PYSPARK_PYTHON"
_PROGRAM = (
    "import sys, onceward.spark.session.worker_daemon; print('.'.join(map(str, "
    "sys.version_info[:2])))"
)
_SECONDS = 120
_INSTALL_IT = "install onceward (and the driver's version of Python) there"


def check_worker_python() -> CheckResult:
    """Check the interpreter of :data:`_VARIABLE`; without it, report what a cluster and what local
    mode would take.
    """
    variable = os.environ.get(_VARIABLE)
    if variable:
        amiss = _fault(variable)
        if amiss is None:
            return ok(f"workers' Python: {_VARIABLE}={variable}")
        return CheckResult(
            "fail",
            f"workers' Python: {_VARIABLE}={variable} {amiss}",
            f"correct {_VARIABLE}, or {_INSTALL_IT}",
        )
    amiss = _fault("python3")
    if amiss is None:
        return ok(f"workers' Python: python3, as {_VARIABLE} is not set")
    return warn(
        f"workers' Python: {_VARIABLE} is not set; in local mode workers run this one, "
        f"{sys.executable}, but on a cluster python3, which here {amiss}",
        f"for a cluster set {_VARIABLE} to a Python that has onceward on every machine with an "
        "executor",
    )


def _fault(python: str) -> str | None:
    """Return why ``python`` cannot be a worker's; None: it can."""
    found = shutil.which(python)
    if found is None:
        return "is not there"
    try:
        # Not in this folder, whose modules would be found although a worker does not run here.
        ran = subprocess.run(
            [found, "-c", _PROGRAM], capture_output=True, text=True, timeout=_SECONDS, cwd="/"
        )
    except (OSError, subprocess.SubprocessError) as failure:
        return f"does not run: {failure}"
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        return f"cannot import onceward: {last}"
    version, ours = ran.stdout.split()[-1], ".".join(map(str, sys.version_info[:2]))
    return None if version == ours else f"is Python {version}, and the driver's is {ours}"


_QUICK = {"socket.connection.setup.timeout.max.ms": "4000"}
"""Somebody waits in front of a screen; a pipeline is more patient."""


def check_machine() -> list[CheckResult]:
    """Check Java, PySpark, Spark's Kafka jars and workers' Python, as a driver here finds them."""
    return [run_check(_java), run_check(_pyspark), run_check(_jars), check_worker_python()]


def _jars() -> CheckResult:
    """Check the jars of Spark's Kafka source."""
    connector = spark_connector()
    return ok(
        f"jars: {len(connector.jars)} for Spark's Kafka source, of "
        f"{', '.join(connector.coordinates)}"
    )


def run_check(check: Callable[[], CheckResult]) -> CheckResult:
    """Return what ``check`` finds, as :func:`run_checks` does."""
    return run_checks(lambda: [check()])[0]


def run_checks(check: Callable[[], list[CheckResult]]) -> list[CheckResult]:
    """Return what ``check`` finds; a look that is denied, or that the service has no request for,
    is a warning, another error of ours a failure.
    """
    try:
        return check()
    except (AccessDenied, UnsupportedBroker) as denied:
        return [warn(f"not checked: {denied.message}", denied.next_step)]
    except OncewardError as error:
        return [failure(error)]


def failure(error: OncewardError) -> CheckResult:
    """Return the result of a look that has ended with an error of ours."""
    status = status_of(error)
    away = status in (UNAVAILABLE, DENIED)
    return CheckResult("fail", error.message, error.next_step, exit_status=status if away else 1)


def reach(client: KafkaClient) -> CheckResult:
    """Check that brokers answer."""
    return run_check(
        lambda: ok(f"cluster {client.cluster_id()} with {len(client.brokers())} brokers")
    )


def _java() -> CheckResult:
    java, major = java_found()
    must_start_on(java, major, installed_spark())
    must_have_modules(java)
    return ok(f"Java: {java}")


def _pyspark() -> CheckResult:
    try:
        import pyspark
    except ImportError:
        return CheckResult("fail", "PySpark is not installed", 'pip install "pyspark>=4.0,<4.4"')
    must_have_been_run(pyspark.__version__)
    return ok(f"PySpark {pyspark.__version__}")


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
    pipeline_name = None if pipeline is None else pipeline_id(pipeline)
    try:
        reached = reach(client)
        if reached.status != "ok":
            return [reached]
        limits: list[int] = []
        looks: list[CheckResult] = []
        for name in sources:
            looks += run_checks(partial(_source, client, name, limits))
        found = [reached, run_check(lambda: _transactions(client))]
        found += run_checks(partial(_brokers, client, producer.transaction_timeout_ms))
        if pipeline_name is not None:
            found.append(
                run_check(partial(check_slowest_batch, client, pipeline_name, ledger_topic))
            )
        found += run_checks(partial(_transaction_log, client))
        found += run_checks(partial(_ledger, client, ledger_topic))
        largest = max(limits, default=0)
        more = {"largest.source.record": str(largest)} if largest else {}
        for name in topics:
            found += run_checks(partial(_topic, client, "output topic", name, more))
        return found + looks
    finally:
        client.close()


def connected(servers: str, command_config: Path | None) -> tuple[KafkaClient, ProducerSettings]:
    """Return a client for who waits at a screen. :raises ConfigurationError: wrong settings."""
    return connect(servers, command_config, "onceward-doctor", _QUICK)


def _transactions(client: KafkaClient) -> CheckResult:
    version = client.transaction_version()
    if version == 2:
        return ok("transaction version 2")
    return ok(
        "transaction version 1: exactly once as well, one request more a batch; the whole promise "
        "from brokers 3.6 on"
    )


def _brokers(client: KafkaClient, chosen_ms: int | None) -> list[CheckResult]:
    """Check the settings of every broker; those that have the same are one finding."""
    by_settings: dict[frozenset[tuple[str, str | None]], list[int]] = {}
    for node in client.brokers():
        config = client.broker_config(node)
        broker_settings = frozenset((name, config.get(name)) for name in _OF_BROKERS)
        by_settings.setdefault(broker_settings, []).append(node)
    found = []
    for settings, nodes in by_settings.items():
        facts = dict(settings)
        most = int(facts["transaction.max.timeout.ms"] or 0)
        wanted_ms = min(most, LONGEST_TRANSACTION_MS) if chosen_ms is None else chosen_ms
        what = f"brokers {', '.join(map(str, nodes))}"
        amiss = diagnose("brokers", what, facts | {"transaction.timeout.ms": str(wanted_ms)})
        found += amiss or [
            ok(
                f"{what}: transaction.max.timeout.ms={most}, the sink's transaction.timeout.ms is "
                f"{wanted_ms}"
            )
        ]
    return found


_OF_BROKERS = (
    "auto.create.topics.enable",
    "offsets.retention.minutes",
    "transaction.max.timeout.ms",
    "transactional.id.expiration.ms",
)
_TRANSACTION_LOG = "__transaction_state"


def _transaction_log(client: KafkaClient) -> list[CheckResult]:
    try:
        return _topic(client, "transaction log", _TRANSACTION_LOG)
    except TopicMissing:
        # made with the first transaction
        return []


def _ledger(client: KafkaClient, topic: str) -> list[CheckResult]:
    try:
        return _topic(client, "ledger topic", topic)
    except TopicMissing:
        return [
            ok(
                f"ledger topic {topic} does not exist yet: the first pipeline creates it, if it "
                "may"
            )
        ]


def _topic(
    client: KafkaClient, subject: str, topic: str, more: Facts | None = None
) -> list[CheckResult]:
    replicas = str(client.replication_factor(topic))
    facts = {**client.topic_config(topic), "replication.factor": replicas, **(more or {})}
    servers = ",".join(client.settings.bootstrap_servers)
    amiss = diagnose(subject, f"{subject} {topic}", facts, name=topic, servers=servers)
    return amiss or [
        ok(
            f"{subject} {topic}: replication factor {facts['replication.factor']}, "
            f"min.insync.replicas {facts['min.insync.replicas']}"
        )
    ]


def _source(client: KafkaClient, topic: str, limits: list[int]) -> list[CheckResult]:
    """Check a source topic; its limit of a record joins ``limits``, if it may be seen."""
    what, partitions = f"source topic {topic}", len(client.topic_partitions([topic])[topic])
    servers = ",".join(client.settings.bootstrap_servers)

    def look() -> list[CheckResult]:
        config = client.topic_config(topic)
        limits.append(int(config.get("max.message.bytes") or 0))
        return diagnose("source topic", what, config, name=topic, servers=servers)

    return [ok(f"{what}, {partitions} partitions"), *run_checks(look)]
