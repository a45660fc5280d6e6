"""Finds the Java that Spark and Kafka run on, and refuses one too old, before any start.

Called by :mod:`onceward.spark.session.jars`, by ``onceward_testing`` before it starts a broker,
and by the command line. Runs in the driver or in a test process; the only I/O is one ``java
-version``.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from onceward.errors import ConfigurationError

OLDEST_JAVA = 17
"""Spark 4 and Kafka 4 brokers both need Java 17 or newer."""

_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')


def java_executable() -> Path:
    """Return the ``java`` that ``JAVA_HOME`` names, else the one on ``PATH``: the order in which
    Spark's launcher looks.

    :raises ConfigurationError: there is none, it does not run, or it is older than
        :data:`OLDEST_JAVA`.
    """
    return java_found()[0]


@functools.cache
def java_found() -> tuple[Path, int]:
    """Return the same, and its major version."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not found or not Path(found).exists():
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no `java` on PATH"
        raise ConfigurationError(
            f"Java is missing: {where}",
            next_step=f"install a JDK or JRE {OLDEST_JAVA} or newer and set JAVA_HOME, or put "
            f"`java` on PATH{' and unset JAVA_HOME' if home else ''}",
        )
    major = java_major_version(_version_text(found))
    if major < OLDEST_JAVA:
        raise ConfigurationError(
            f"{found} is Java {major}, Spark 4 and Kafka 4 need Java {OLDEST_JAVA} or newer",
            next_step="point JAVA_HOME at a newer one",
            details={"java": found, "major": major},
        )
    return Path(found), major


@functools.cache
def must_have_modules(java: Path) -> None:
    """Refuse a Java that Spark's launcher cannot start: small runtimes lack a module.

    PySpark would say JAVA_GATEWAY_EXITED, and no more.

    :raises ConfigurationError: it is one.
    """
    command = [str(java), f"--add-modules={_MODULE}", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if answer.returncode:
        raise ConfigurationError(
            f"{java} has no module {_MODULE}, with which Spark starts it",
            next_step="point JAVA_HOME at a whole JDK or JRE",
            details={"java": str(java), "said": (answer.stdout + answer.stderr)[-500:]},
        )


def java_major_version(version_text: str) -> int:
    """Parse the major version in what ``java -version`` prints: 17 for ``"17.0.15"``, 8 for
    ``"1.8.0_402"``.

    :raises ConfigurationError: the text has no version in it.
    """
    match = _VERSION.search(version_text)
    if match is None:
        raise ConfigurationError(
            f"`java -version` printed no version: {version_text.strip()[:200]!r}",
            next_step="check that JAVA_HOME or PATH lead to a Java that runs",
        )
    first, second = int(match.group(1)), int(match.group(2) or 0)
    # Before Java 9 the number that counts came second
    return second if first == 1 else first


def _version_text(java: str) -> str:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as failure:
        raise ConfigurationError(
            f"{java} does not run: {failure}", next_step="point JAVA_HOME at a Java that runs"
        ) from failure
    # Every known JVM prints its version to stderr
    return answer.stderr + answer.stdout
