"""Contenders that are not Spark: Flink, Kafka Streams, a loop in librdkafka and Quix Streams, each
exactly once in a process that takes orders (:mod:`serving`). Called by :mod:`contender_process`.

Those in Java are compiled from ``benchmarks/java`` with jars that Spark's resolver fetches.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contenders import Contender
from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import resolve
from onceward.spark.session.java import java_executable

FLINK_VERSION = "2.2.1"
STREAMS_VERSION = "4.3.1"

_SOURCES = Path(__file__).with_name("java")
_LOOP = Path(__file__).with_name("loop.py")
_QUIX = Path(__file__).with_name("quix.py")
_QUIX_VERSION = "3.28.1"
_COMMON = ("com.fasterxml.jackson.core:jackson-databind:2.20.1", "org.slf4j:slf4j-simple:1.7.36")
_JARS = {
    "flink": (
        f"org.apache.flink:flink-streaming-java:{FLINK_VERSION}",
        f"org.apache.flink:flink-clients:{FLINK_VERSION}",
        f"org.apache.flink:flink-connector-base:{FLINK_VERSION}",
        "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
        *_COMMON,
    ),
    "flink-sql": (
        # Brings its own Scala, which Spark's resolver leaves out
        f"org.apache.flink:flink-table-planner-loader:{FLINK_VERSION}",
        f"org.apache.flink:flink-table-runtime:{FLINK_VERSION}",
        f"org.apache.flink:flink-table-api-java-bridge:{FLINK_VERSION}",
        f"org.apache.flink:flink-json:{FLINK_VERSION}",
        f"org.apache.flink:flink-streaming-java:{FLINK_VERSION}",
        f"org.apache.flink:flink-clients:{FLINK_VERSION}",
        f"org.apache.flink:flink-connector-base:{FLINK_VERSION}",
        "org.apache.flink:flink-connector-kafka:5.0.0-2.2",
        *_COMMON,
    ),
    "kafka-streams": (f"org.apache.kafka:kafka-streams:{STREAMS_VERSION}", *_COMMON),
}
_MAIN = {"flink": "FlinkPeer", "flink-sql": "FlinkSqlPeer", "kafka-streams": "StreamsPeer"}
_JVM = (
    "-Xms2g",
    "-Xmx2g",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    # A warning for each transaction
    "-Dorg.slf4j.simpleLogger.log.org.apache.flink.metrics=error",
    # Flink asks for these on Java 17
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
)


def command(contender: Contender, folder: Path, served: list[str]) -> list[str]:
    """Return the command of a contender's process.

    :param folder: for what it keeps while it runs.
    :param served: the command that serves the orders of one in Python (:mod:`serving`).
    :raises ConfigurationError: there is no ``javac``.
    :raises ResourceError: a jar, or Quix Streams, cannot be fetched.
    """
    own = [str(contender.interval_ms), str(folder)]
    if contender.sink == "loop":
        return [*served, str(_LOOP), *own]
    if contender.sink == "quix":
        return [str(_quix_python()), *served[1:], str(_QUIX), *own]
    class_path = [str(jar) for jar in resolve(*_JARS[contender.sink])]
    classes = _compiled(_MAIN[contender.sink], class_path)
    return [
        str(java_executable()),
        *_JVM,
        "-cp",
        ":".join([str(classes), *class_path]),
        _MAIN[contender.sink],
        *own,
    ]


def _quix_python() -> Path:
    """Return the interpreter of an environment with Quix Streams, whose libraries are others."""
    folder = Path("build", "benchmarks", f"quix-{_QUIX_VERSION}").absolute()
    python = folder / "bin" / "python"
    if not (folder / "installed").is_file():
        for command in (
            [sys.executable, "-m", "venv", "--clear", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", f"quixstreams=={_QUIX_VERSION}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ResourceError(
                    f"Quix Streams cannot be installed: {done.stderr[-2000:]}",
                    next_step="leave --peers out",
                )
        (folder / "installed").touch()
    return python


def _compiled(main: str, class_path: list[str]) -> Path:
    """Return the folder with the classes of ``main``, compiled once for each text of it."""
    sources = [_SOURCES / "Peer.java", _SOURCES / f"{main}.java"]
    texts = b"".join(source.read_bytes() for source in sources)
    digest = hashlib.sha256(texts + "\n".join(class_path).encode()).hexdigest()
    classes = Path("build", "benchmarks", f"{main}-{digest[:16]}").absolute()
    if not (classes / f"{main}.class").is_file():
        compiler = shutil.which("javac", path=str(java_executable().parent))
        compiler = compiler or shutil.which("javac")
        if compiler is None:
            raise ConfigurationError(
                "there is no javac, which compiles the contenders in Java",
                next_step="install a JDK (Debian: openjdk-17-jdk-headless), or leave --peers out",
            )
        done = subprocess.run(
            [compiler, "-cp", ":".join(class_path), "-d", str(classes), *map(str, sources)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ResourceError(
                f"{main}.java does not compile: {done.stderr[-2000:]}", next_step="report it"
            )
    return classes
