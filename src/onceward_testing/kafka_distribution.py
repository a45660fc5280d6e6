"""Jars of a Kafka version, options of its JVMs, and the class behind each
command-line tool.

Called by :mod:`onceward_testing.local_kafka` and ``onceward jars``. Runs wherever tests run; no
broker needed.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import os
import subprocess
import zipfile
from collections.abc import Sequence
from pathlib import Path

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import resolve
from onceward.spark.session.java import java_executable

NEWEST_VERSION = "4.3.1"
"""Transaction version 2 (KIP-890): what :class:`~onceward_testing.LocalKafka` starts unless told
otherwise."""

TRANSACTION_V1_VERSION = "3.9.1"
"""The last line of brokers with transaction version 1."""

_TOOLS = {  # newest home of each class first: 4.x moved several of them out of the broker's jar
    "kafka-acls": ("org.apache.kafka.tools.AclCommand", "kafka.admin.AclCommand"),
    "kafka-console-share-consumer": ("org.apache.kafka.tools.consumer.ConsoleShareConsumer",),
    "kafka-broker-api-versions": (
        "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka.admin.BrokerApiVersionsCommand",
    ),
    "kafka-reassign-partitions": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand",),
    "kafka-configs": ("org.apache.kafka.tools.ConfigCommand", "kafka.admin.ConfigCommand"),
    "kafka-consumer-groups": ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",),
    "kafka-delegation-tokens": (
        "org.apache.kafka.tools.DelegationTokenCommand",
        "kafka.admin.DelegationTokenCommand",
    ),
    "kafka-delete-records": ("org.apache.kafka.tools.DeleteRecordsCommand",),
    "kafka-dump-log": ("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments"),
    "kafka-features": ("org.apache.kafka.tools.FeatureCommand", "kafka.admin.FeatureCommand"),
    "kafka-get-offsets": ("org.apache.kafka.tools.GetOffsetShell",),
    "kafka-leader-election": ("org.apache.kafka.tools.LeaderElectionCommand",),
    "kafka-log-dirs": ("org.apache.kafka.tools.LogDirsCommand",),
    "kafka-metadata-quorum": ("org.apache.kafka.tools.MetadataQuorumCommand",),
    "kafka-storage": ("kafka.tools.StorageTool",),
    "kafka-topics": ("org.apache.kafka.tools.TopicCommand",),
    "kafka-transactions": ("org.apache.kafka.tools.TransactionsCommand",),
}
_OFFLINE_TOOLS = frozenset({"kafka-dump-log", "kafka-storage"})
_BROKER_JVM = (
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)
_TOOL_JVM = (
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
)


def coordinates(version: str) -> tuple[str, ...]:
    """Return the Maven coordinates of broker, tools and a logger that writes to stderr and needs
    no settings file."""
    return (
        # First on the class path, so that it is the binding that is found.
        "org.slf4j:slf4j-simple:1.7.36",
        f"org.apache.kafka:kafka_2.13:{version}",
        f"org.apache.kafka:kafka-tools:{version}",
    )


def jars_to_fetch() -> dict[str, tuple[str, ...]]:
    """Return the coordinates of both tested releases: the entry point of ``onceward jars``."""
    versions = (NEWEST_VERSION, TRANSACTION_V1_VERSION)
    return {f"Kafka {version}": coordinates(version) for version in versions}


def broker_jvm(heap_mb: int, log_level: str) -> tuple[str, ...]:
    """Return options of a broker's JVM: small, dead when its memory is out, its log on stderr with
    the time of day."""
    return (
        f"-Xmx{heap_mb}m",
        *_BROKER_JVM,
        f"-Dorg.slf4j.simpleLogger.defaultLogLevel={log_level}",
    )


def class_path(version: str) -> str:
    """Return the class path of ``version``; resolves its jars on first use (see
    :func:`onceward.spark.session.jars.resolve`)."""
    jars = [
        jar for jar in resolve(*coordinates(version)) if "slf4j-reload4j" not in jar.name
    ]  # 3.x: a second logger
    return os.pathsep.join(str(jar) for jar in [*jars, _scala_library()])


@functools.cache
def _scala_library() -> Path:
    """Return Spark's copy: its resolver leaves ``scala-library`` out of every answer, because
    Spark itself provides it."""
    spec = importlib.util.find_spec("pyspark")
    folder = (
        Path(spec.origin).parent / "jars"
        if spec is not None and spec.origin
        else Path("pyspark/jars")
    )
    found = sorted(folder.glob("scala-library-2.13.*.jar"))
    if not found:
        raise ConfigurationError(
            f"no scala-library-2.13 jar in {folder}",
            next_step="install PySpark from its own package (pip install pyspark)",
        )
    return found[-1]


def run_tool(
    tool: str,
    arguments: Sequence[str],
    *,
    version: str,
    bootstrap_servers: str | None = None,
    timeout_s: float = 120,
) -> str:
    """Run ``tool`` (``kafka-topics``, ``kafka-consumer-groups`` …) and return its stdout.

    ``--bootstrap-server`` is added when the tool takes one and ``arguments`` name none.

    :raises ConfigurationError: no such tool. :raises ResourceError: the tool failed; its stderr is
        in the message.
    """
    given = list(arguments)
    if bootstrap_servers and tool not in _OFFLINE_TOOLS and "--bootstrap-server" not in given:
        given = ["--bootstrap-server", bootstrap_servers, *given]
    command = [
        str(java_executable()),
        *_TOOL_JVM,
        "-cp",
        class_path(version),
        tool_class(tool, version),
        *given,
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise ResourceError(
            f"{tool} gave no answer in {timeout_s:g} s",
            next_step="check that the brokers it asks are running",
        ) from late
    if done.returncode != 0:
        raise ResourceError(
            f"{tool} {' '.join(arguments)} ended with status "
            f"{done.returncode}:\n{(done.stderr + done.stdout)[-3000:]}",
            next_step="read its message above",
        )
    return done.stdout


@functools.cache
def tool_class(tool: str, version: str) -> str:
    """Return the class that ``bin/<tool>.sh`` of Kafka ``version`` runs."""
    name = tool.removesuffix(".sh")
    if name not in _TOOLS:
        nearest = difflib.get_close_matches(name, _TOOLS, n=1)
        hint = (
            f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(sorted(_TOOLS))}"
        )
        raise ConfigurationError(f"{tool!r} is no Kafka tool known here", next_step=hint)
    kafka_jars = [
        Path(jar) for jar in class_path(version).split(os.pathsep) if "kafka" in Path(jar).name
    ]
    present = {entry for jar in kafka_jars for entry in zipfile.ZipFile(jar).namelist()}
    for candidate in _TOOLS[name]:
        if candidate.replace(".", "/") + ".class" in present:
            return candidate
    raise ConfigurationError(
        f"Kafka {version} has no {name}", next_step=f"use a version with one of {_TOOLS[name]}"
    )
