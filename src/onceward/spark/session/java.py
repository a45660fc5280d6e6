"""Finds the Java that Spark and Kafka run on, and refuses one too old, before any start.

Called by :mod:`onceward.spark.session.jars`, by ``onceward_testing`` before it starts a broker,
and by the command line. Runs in the driver or in a test process; the only I/O is ``java
-version``.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from onceward.errors import WANT_OF_MEMORY, ConfigurationError, LaunchFailed

OLDEST_JAVA = 17
"""Spark 4 and Kafka 4 brokers both need Java 17 or newer."""

_MODULE = "jdk.incubator.vector"
_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_NO_PROGRAM = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ENOEXEC)
"""Why a program cannot be started, unless somebody does something about it."""
_NO_JVM = 1
"""How ``java`` ends when it cannot create a JVM: for want of memory or threads, for one."""
_SECONDS = 60


def java_executable() -> Path:
    """Return the ``java`` that ``JAVA_HOME`` names, else the one on ``PATH``: the order in which
    Spark's launcher looks.

    :raises ConfigurationError: there is none, it does not run, or it is older than
        :data:`OLDEST_JAVA`.
    :raises LaunchFailed: it cannot be started now.
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
    major = java_major_version(_words(found))
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
    :raises LaunchFailed: it cannot be started now.
    """
    _words(str(java), f"--add-modules={_MODULE}")


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


def _words(java: str, *options: str) -> str:
    """Return what ``java -version`` prints."""
    command = [java, *options, "-version"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as failure:
        raise _not_now(java, f"has not ended within {_SECONDS} s") from failure
    except OSError as failure:
        if failure.errno not in _NO_PROGRAM:
            raise _not_now(java, str(failure)) from failure
        raise _unfit(java, str(failure)) from failure
    # Every known JVM prints its version to stderr
    words = answer.stderr + answer.stdout
    if not answer.returncode:
        return words
    if f"Module {_MODULE} not found" in words:
        raise ConfigurationError(
            f"{java} has no module {_MODULE}, with which Spark starts it",
            next_step="point JAVA_HOME at a whole JDK or JRE",
            details={"java": java, "said": words[-500:]},
        )
    why = f"exit status {answer.returncode}: {words.strip()[:500]}".removesuffix(": ")
    # By a signal, of itself or of what a script has started
    if answer.returncode == _NO_JVM or answer.returncode < 0 or answer.returncode > 128:
        raise _not_now(java, why)
    raise _unfit(java, why)


def _unfit(java: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{java} does not run: {why}", next_step="point JAVA_HOME at a Java that runs"
    )


def _not_now(java: str, why: str) -> LaunchFailed:
    return LaunchFailed(
        f"{java} cannot be started now: {why}",
        next_step=f"start again; if it repeats, {WANT_OF_MEMORY}, look for an option that it does "
        "not know in JAVA_TOOL_OPTIONS and JDK_JAVA_OPTIONS, or point JAVA_HOME at another Java",
    )
