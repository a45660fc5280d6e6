"""Turns Maven coordinates into jar files on disk, by Spark's own resolver, and caches them.

Called by :mod:`onceward.spark.session.connector` for Spark's Kafka connector and by
``onceward_testing`` for the broker's class path. Runs in the driver or in a test process, never in
executors.

Why not ``spark.jars.packages``: it puts every resolved jar on the Python workers' path, where each
costs a directory read per task. Jars given as paths (``spark.jars``) do not. Why Spark's resolver
and not one of our own: whoever runs Spark has it, with the mirrors and the Ivy cache that are
configured for Spark.

The resolver is a JVM that takes seconds to start, so its answer is kept as JSON in the user's
cache folder and used again as long as every file it names is still there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from onceward import patience
from onceward.errors import ConfigurationError, LaunchFailed
from onceward.spark.session.java import java_executable, must_have_modules

log = logging.getLogger(__name__)

CACHE_VARIABLE = "ONCEWARD_CACHE"
"""Environment variable that moves the cache folder, and Ivy's, which is in the user's home, into
it.
"""

IVY_SETTINGS_VARIABLE = "ONCEWARD_IVY_SETTINGS"
"""Environment variable: path of an ``ivysettings.xml``, as of ``spark.jars.ivySettings``."""

SUBMITTED_VARIABLE = "PYSPARK_GATEWAY_PORT"
"""Environment variable that ``spark-submit`` sets in Python processes: where their JVM listens."""

_FORMAT = 2
_OTHERS_SECONDS = 900
_LOOK_SECONDS = 0.2
_ANSWER_MS = 30_000
"""For a connection, and for each piece of a download."""
_LOG_TAIL_CHARACTERS = 3_000


def cache_folder() -> Path:
    """Return $ONCEWARD_CACHE, else $XDG_CACHE_HOME/onceward, else ~/.cache/onceward."""
    if folder := os.environ.get(CACHE_VARIABLE):
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "onceward"


def resolve(*coordinates: str, without: Sequence[str] = (), transitive: bool = True) -> list[Path]:
    """Resolve ``coordinates`` (``group:artifact:version``) and all they depend on to files.

    Conflicting versions are settled over all coordinates of one call. The first call starts a JVM
    (2 s when Ivy has the jars, up to minutes when it must fetch them); later calls read a small
    file. Of several processes one resolves, and the others wait for its answer.

    :param without: ``group:artifact`` of dependencies to leave out.
    :param transitive: False: the coordinates themselves only, nothing that they depend on.
    :raises ConfigurationError: a coordinate is malformed, or there is no fit Java.
    :raises LaunchFailed: a jar cannot be found or fetched, which Ivy does not tell apart; the
        message ends with what it printed.
    """
    for coordinate in coordinates:
        if len(parts := str(coordinate).split(":")) != 3 or not all(parts):
            raise ConfigurationError(
                f"{coordinate!r} is no Maven coordinate",
                next_step="write it as group:artifact:version",
            )
    if not coordinates:
        return []
    question = (coordinates, tuple(without), transitive, os.environ.get(IVY_SETTINGS_VARIABLE))
    return kept_or_asked(kept_as(*question), coordinates, lambda: _ask_spark(*question))


def kept_or_asked(
    answer_file: Path, coordinates: Sequence[str], ask: Callable[[], list[Path]]
) -> list[Path]:
    """Return the cached answer, else what ``ask`` finds, and cache it; one process at a time."""
    if (jars := remembered(answer_file)) is not None:
        return jars
    with _one_resolver_at_a_time(answer_file.parent):
        if (jars := remembered(answer_file)) is not None:
            # Somebody resolved the same while we waited
            return jars
        jars = ask()
        remember(answer_file, jars, coordinates=coordinates)
        return jars


def kept_as(*question: object) -> Path:
    """Return the file that caches the answer to ``question`` (JSON values)."""
    name = hashlib.sha256(json.dumps([_FORMAT, *question]).encode()).hexdigest()[:20]
    return cache_folder() / "jars" / f"{name}.json"


def remembered(answer_file: Path) -> list[Path] | None:
    """Return the jars of an earlier answer; None without one, or if a file is gone."""
    try:
        answer = json.loads(answer_file.read_text())
        jars = [Path(jar) for jar in answer["jars"]]
    except (OSError, ValueError, KeyError, TypeError):
        # Absent or damaged: resolving again writes a good one
        return None
    # Not pathlib's, which raises for one that is in another user's home
    return jars if jars and all(map(os.path.isfile, jars)) else None


def remember(answer_file: Path, jars: Sequence[Path], **more: object) -> None:
    """Keep ``jars`` for :func:`remembered`, and ``more`` (JSON values) beside them."""
    answer = {**more, "jars": [str(jar) for jar in jars]}
    # Renamed into place, so that a reader without the lock never meets half a file.
    unfinished = answer_file.with_suffix(f".{os.getpid()}.tmp")
    try:
        answer_file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(answer, indent=1) + "\n")
        unfinished.replace(answer_file)
    except OSError as error:
        # They are there all the same, and are looked for again the next time
        log.debug("not kept: %s", error)


_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
"""Why a folder cannot be written, unless somebody does something about it."""


@contextlib.contextmanager
def _one_resolver_at_a_time(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, for all coordinates: they share Ivy's cache, which has races."""
    path, deadline = folder / "resolver.lock", time.monotonic() + _OTHERS_SECONDS
    try:
        folder.mkdir(parents=True, exist_ok=True)
        opened = path.open("w")
    except OSError as error:
        if error.errno not in _FOR_GOOD:
            raise
        raise ConfigurationError(
            f"the folder that keeps which jars were found cannot be written: {error}",
            next_step=f"set {CACHE_VARIABLE} to a folder that this user can write",
        ) from error
    with opened as lock:
        while not _taken(lock):
            if time.monotonic() >= deadline:
                raise LaunchFailed(
                    f"another process has been resolving jars for {_OTHERS_SECONDS} s, and holds "
                    f"{path}",
                    next_step="see what that process waits for, a repository that does not answer "
                    "most likely; end it, and start again",
                )
            patience.pause(_LOOK_SECONDS)
        yield


def _taken(lock: IO[str]) -> bool:
    try:
        # Released by the kernel whenever this process ends
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _ask_spark(
    coordinates: tuple[str, ...], without: tuple[str, ...], transitive: bool, settings: str | None
) -> list[Path]:
    """Resolve by ``org.apache.spark.util.MavenUtils``, which ``spark-submit --packages`` uses."""

    def resolved(gateway: Any) -> list[Path]:
        jvm = gateway.jvm
        exclusions = getattr(jvm.scala.collection.immutable, "Nil$").__getattr__("MODULE$")
        for excluded in without:
            exclusions = exclusions.prepended(excluded)
        found = jvm.org.apache.spark.util.MavenUtils.resolveMavenCoordinates(
            ",".join(coordinates), ivy_settings(gateway, settings), jvm.scala.Option.empty(),
            transitive, exclusions, False, jvm.java.lang.System.err,
        )  # fmt: skip
        return [Path(found.apply(index)) for index in range(found.size())]

    return read_answer(coordinates, resolved)


def read_answer(coordinates: tuple[str, ...], ask: Callable[[Any], list[Path]]) -> list[Path]:
    """Return what ``ask`` finds by a gateway to a JVM of its own, whose output is shown only if
    that fails. :raises LaunchFailed: it finds nothing, or fails."""
    # A clear error now instead of a failed launch script later
    must_have_modules(java_executable())
    from py4j.protocol import Py4JError

    with tempfile.TemporaryFile() as chatter:
        reason = "the answer names files that do not exist"
        with _spark_gateway(chatter) as gateway:
            try:
                jars = ask(gateway)
            except Py4JError as failure:
                # Asked now: the text lives in the JVM that is about to end
                jars, reason = [], _java_message(failure)
        if not jars or not all(map(os.path.isfile, jars)):
            raise _not_resolvable(coordinates, reason, chatter)
        return jars


def _java_message(failure: Exception) -> str:
    """Return the Java exception's own line, without py4j's preamble and the Java stack."""
    lines = [
        line for line in str(failure).splitlines() if line and not line.lstrip().startswith("at ")
    ]
    return next(
        (line.removeprefix(": ") for line in lines if line.startswith(": ")),
        lines[0] if lines else "unknown",
    )


@contextlib.contextmanager
def _spark_gateway(chatter: IO[bytes]) -> Iterator[Any]:
    """Start Spark's py4j gateway without a context; its JVM ends with the block."""
    from pyspark.java_gateway import launch_gateway

    # PySpark ships it without types
    start: Any = launch_gateway
    with _as_if_not_submitted():
        gateway = start(popen_kwargs={"stdout": chatter, "stderr": chatter})
    process = gateway.proc
    try:
        yield gateway
    finally:
        gateway.shutdown()
        if process.stdin is not None:
            # Spark's gateway server ends when its stdin does
            process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _as_if_not_submitted() -> Iterator[None]:
    """Let PySpark start a JVM inside the block. In a process that ``spark-submit`` started it
    would answer with the job's own one, which would then be ended together with the resolver.
    """
    port = os.environ.pop(SUBMITTED_VARIABLE, None)
    try:
        yield
    finally:
        if port is not None:
            os.environ[SUBMITTED_VARIABLE] = port


def ivy_settings(gateway: Any, path: str | None) -> Any:
    """Return Spark's own settings of Ivy, or those in the file at ``path``, with a time limit."""
    jvm = gateway.jvm
    maven, errors = jvm.org.apache.spark.util.MavenUtils, jvm.java.lang.System.err
    option = jvm.scala.Option
    nothing = folder = option.empty()
    if os.environ.get(CACHE_VARIABLE):
        folder = option.apply(str(cache_folder().absolute() / "ivy"))
    if path:
        return _in_bounds(gateway, maven.loadIvySettings(path, nothing, folder, errors))
    return _in_bounds(gateway, maven.buildIvySettings(nothing, folder, True, errors))


def _not_resolvable(coordinates: tuple[str, ...], reason: str, chatter: IO[bytes]) -> LaunchFailed:
    chatter.seek(0)
    output = chatter.read().decode(errors="replace")
    return LaunchFailed(
        f"cannot resolve {', '.join(coordinates)}: {reason}\n--- the resolver's last words "
        f"---\n{output[-_LOG_TAIL_CHARACTERS:]}",
        next_step="start again, for a repository that is busy counts as one that has not found "
        "it; check the coordinates and the way to a Maven repository; name a mirror in an "
        f"ivysettings.xml and set {IVY_SETTINGS_VARIABLE} to its path",
        details={"coordinates": list(coordinates)},
    )


def _in_bounds(gateway: Any, settings: Any) -> Any:
    """Return Ivy settings with a time limit, where they have none: Ivy waits for a repository for
    ever, and what it says is shown only once it has failed."""
    limit = gateway.jvm.org.apache.ivy.core.settings.NamedTimeoutConstraint("onceward")
    limit.setConnectionTimeout(_ANSWER_MS)
    limit.setReadTimeout(_ANSWER_MS)
    settings.addConfigured(limit)
    for resolver in ivy_resolvers(gateway, settings, "AbstractResolver"):
        if resolver.getTimeoutConstraint() is None:
            resolver.setTimeoutConstraint("onceward")
            # which looks it up
            resolver.validate()
    return settings


def ivy_resolvers(gateway: Any, settings: Any, kind: str) -> Iterator[Any]:
    """Yield all resolvers of a class of Ivy's, those in chains, too."""
    from py4j.java_gateway import is_instance_of

    package = "org.apache.ivy.plugins.resolver"
    waiting = list(settings.getResolvers().toArray())
    while waiting:
        resolver = waiting.pop()
        if is_instance_of(gateway, resolver, f"{package}.ChainResolver"):
            waiting += list(resolver.getResolvers().toArray())
        elif is_instance_of(gateway, resolver, f"{package}.{kind}"):
            yield resolver
