"""Runs a job's file as Python would, and ends with a status that says why. In the job's process.

:func:`main` is started by :mod:`onceward.operate.runner`, in a process of its own. SIGTERM
is answered from the first line on, and an error that leaves the file becomes a status. By a socket
the runner learns that a batch was committed, now or before, and the job that its runner is gone.

By the exit status whoever started a job knows whether to start it again, as
:mod:`onceward.operate.runner` does. Numbers follow BSD's ``sysexits.h`` where it has one.
"""

from __future__ import annotations

import atexit
import os
import pkgutil
import re
import runpy
import signal
import socket
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from concurrent.futures.thread import _worker
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path

from onceward import errors, events, surroundings
from onceward.errors import Fenced, OncewardError
from onceward.operate import stopping
from onceward.operate.restart import may_pass

FINISHED, FAILED, USAGE, MAY_PASS, NEEDS_A_CHANGE, FENCED = 0, 1, 64, 75, 78, 79
"""1 is Python's own, for an exception that nobody caught; EX_USAGE, EX_TEMPFAIL, EX_CONFIG; and
the first number behind those of ``sysexits.h``.
"""
FINAL = frozenset({FINISHED, USAGE, NEEDS_A_CHANGE, FENCED})
"""What a supervisor must not start a job again after."""

_WORDS = {
    FINISHED: "finished",
    FAILED: "an exception that is not Onceward's",
    MAY_PASS: "a failure that may pass",
    NEEDS_A_CHANGE: "a failure that needs a change",
    FENCED: "fenced: a newer copy has taken over",
}
# A shell's status for signal n is this and n
_SHELL = 128
_RUN_ID = re.compile(r"\brunId = ([0-9a-f]{8}-[0-9a-f-]{27})\b")


def exit_status(error: BaseException, *, worked_before: bool = False) -> int:
    """Return the status for a job to end with after ``error``.

    ::

        try:
            ow.wait(query)
        except Exception as error:
            sys.exit(ow.exit_status(error))

    Jobs under ``onceward run`` need no such lines.

    :param error: what ``ow.wait``, ``ow.supervise``, ``awaitTermination`` or a definition raised.
    :param worked_before: whether the pipeline is known to have committed a batch: what may be a
        wrong setting as well as an outage then may pass. Not asked where the error knows it.
    """
    ours = find_errors(error)
    return max((_status_of(each, worked_before) for each in ours), default=FAILED)


def _status_of(ours: OncewardError, worked_before: bool) -> int:
    if isinstance(ours, Fenced):
        return FENCED
    # Of several pipelines in a process one may have worked, and another never
    knows = worked_before if ours.worked_before is None else ours.worked_before
    passes = may_pass(ours, worked_before=knows)
    return MAY_PASS if passes else NEEDS_A_CHANGE


def find_errors(error: BaseException, visited: set[int] | None = None) -> list[OncewardError]:
    """Return the typed error in ``error``: itself, what it was raised from, or what ended the
    query that it is about; of a group, as ``asyncio.TaskGroup`` raises it, those of its members.
    """
    visited = set() if visited is None else visited
    for each in _chain(error, visited):
        found = each if isinstance(each, OncewardError) else _error_of_query(each)
        if found is not None:
            return [found]
        if ours := [one for member in _members(each) for one in find_errors(member, visited)]:
            return ours
    return []


def describe(status: int) -> str:
    """Describe a status, of a child as Python has it: minus n for the signal n."""
    if status < 0:
        return f"killed by {_signal_name(-status)}"
    if status > _SHELL:
        return f"status {status}, ended by {_signal_name(status - _SHELL)}"
    return f"status {status}" + (f", {_WORDS[status]}" if status in _WORDS else "")


def explain(error_class: str) -> tuple[str, str]:
    """Return what an error of that class means, and what may be done without a person."""
    found = getattr(errors, error_class, None)
    if not (isinstance(found, type) and issubclass(found, OncewardError)):
        return "of Spark, or of the job's own code", "the driver's log has it whole"
    meaning = (found.__doc__ or "").partition("\n\n")[0]
    return " ".join(meaning.split()), found.recovery.value


def shell_status(status: int) -> int:
    """Return a child's status as a shell does."""
    return _SHELL - status if status < 0 else status


def _signal_name(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def _members(error: BaseException) -> Sequence[BaseException]:
    # By name: Python 3.10 has no groups of its own
    found = getattr(error, "exceptions", ())
    is_group = isinstance(found, tuple) and all(isinstance(one, BaseException) for one in found)
    return found if is_group else ()


def _chain(error: BaseException | None, visited: set[int]) -> Iterator[BaseException]:
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _error_of_query(error: BaseException) -> OncewardError | None:
    """Return what ended the query, if ``error`` is what Spark raises in its place."""
    # The text of another exception of Spark's may ask a JVM that is gone
    if type(error).__name__ != "StreamingQueryException":
        return None
    if (run := _RUN_ID.search(str(error))) is None:
        return None
    # Only here: a job without Spark has no need of it
    from onceward.engine.calls import runs

    return runs.error_in(run[1])


SOCKET, WORKED, PATH = "ONCEWARD_RUN_SOCKET", "ONCEWARD_RUN_WORKED", "ONCEWARD_RUN_PATH"
"""Environment variables for the job: the socket's file descriptor, whether an earlier process of
this runner has committed a batch, or found one committed, and the runner's ``sys.path``.
"""
START = (
    f"import os, sys; sys.path[:] = os.environ.pop({PATH!r}).split(os.pathsep); "
    "from onceward.operate.run_job import main; main(sys.argv[1:])"
)
"""The job's program. In a PEX, a zipapp and the like the interpreter alone finds no package."""
COMMITTED, REPLAYED = b"c", b"r"
"""What a job tells its runner: a replay has committed nothing, and where Spark cannot note it each
start has one.
"""
_END_SECONDS = 30.0
_ASK_SECONDS = 10.0
_TO_PIPELINE_SECONDS = 600.0
_LOOK_SECONDS = 0.5


def search_path() -> list[str]:
    """Return where this process looks for modules, its own program's folder last: a job has none
    of its business there; but an archive with all packages stays the first."""
    path = [str(each) for each in sys.path]
    first = Path(path[0] if path else "")
    is_archive = first.is_file() or (first / "__main__.py").is_file()
    has_all = is_archive and first.resolve() in Path(__file__).resolve().parents
    return path if is_safe_path() or has_all else [*path[1:], *path[:1]]


def is_safe_path() -> bool:
    """Return whether Python puts no folder of the program's in front of ``sys.path``."""
    # New in 3.11
    return bool(getattr(sys.flags, "safe_path", False))


class RunnerLink:
    """The job's end of the socket to its runner."""

    def __init__(self) -> None:
        self.worked_before = bool(os.environ.pop(WORKED, ""))
        self._socket = socket.socket(fileno=int(os.environ.pop(SOCKET)))
        self._socket.set_inheritable(False)
        self._told = b""
        self._listen_no_more = events.probe(self._hear)
        threading.Thread(target=self._watch, name="onceward-runner", daemon=True).start()

    def _hear(self, event: events.Event) -> None:
        if event.phase != "finished":
            return
        # Of a batch that is published behind its decision, the end may come in another process
        is_decided = event.step == events.COMMIT and "records" in event.values
        if event.step == events.FINISH or is_decided:
            self.worked_before = True
            told = REPLAYED if event.values.get("replayed") else COMMITTED
            if told == COMMITTED:
                self._listen_no_more()
            # Once: a few bytes fit into the socket's buffer, whatever the runner does
            if told not in self._told:
                self._told += told
                with suppress(OSError):
                    self._socket.send(told)

    def _watch(self) -> None:
        # The runner sends nothing: this returns when it ends
        with suppress(OSError):
            self._socket.recv(1)
        stopping.request()


def main(arguments: list[str]) -> None:
    """Run the job ``arguments[0]``; what follows are its own arguments."""
    link = RunnerLink()
    keep_status()
    stopping.answer_sigterm()
    hear_threads()
    job = arguments[0]
    sys.argv[:] = arguments
    if not is_safe_path():
        sys.path.insert(0, str(Path(job).resolve().parent))
    raised: list[BaseException] = []
    try:
        _run_file(job)
    except SystemExit as ended:
        code = FINISHED if ended.code is None else ended.code
        _end_soon(code if isinstance(code, int) else FAILED)
        raise
    except BaseException as error:  # noqa: BLE001 — becomes a status
        raised.append(error)

    def status_of(failure: BaseException) -> int:
        return exit_status(failure, worked_before=link.worked_before)

    # Of several the most severe: who was fenced must not come back for another's error. Beside
    # what the file has raised nothing else counts: the job may have dealt with it.
    left = _failures_left()
    failures = [*raised, *(each for each in left if not raised or status_of(each) == FENCED)]
    if not failures:
        _end_soon(FINISHED)
        return
    worst = max(failures, key=status_of)
    status = status_of(worst)
    # What is not printed, on a full disk, changes nothing about how the job has ended
    with suppress(Exception):
        for each in {id(each): each for each in (failures[0], worst)}.values():
            _print(each, job)
    _end_soon(status)
    raise SystemExit(status)


def _run_file(job: str) -> None:
    """Run the job's file, and wait for the pipelines that it leaves.

    :raises SystemExit: it has ended itself, and left none. Its 0 is believed of what has failed
        before.
    """
    try:
        _execute(job)
    except SystemExit as ended:
        if ended.code not in (None, 0) or not _wait_for_pipelines():
            raise
    else:
        _wait_for_pipelines()
    finally:
        _wait_for_last_batches()


def _execute(job: str) -> None:
    """Run the file as Python does: its module stays ``__main__``, where threads that it leaves,
    and pickle, look up its names."""
    if pkgutil.get_importer(job) is not None or job.endswith(".pyc"):
        runpy.run_path(job, run_name="__main__")
        return
    path = os.path.abspath(job)
    loader = SourceFileLoader("__main__", path)
    module = types.ModuleType("__main__")
    vars(module).update(__file__=path, __cached__=None, __loader__=loader)
    sys.modules["__main__"] = module
    code = loader.source_to_code(loader.get_data(path), path)
    exec(code, vars(module))  # noqa: S102 — the job's file


def _wait_for_pipelines() -> bool:
    """Wait while pipelines go on in threads that a job leaves; return whether there was one.

    Python waits for threads, too, but in its shutdown, in which no executor takes work any more;
    and some end only then: a thread without a pipeline has ten minutes to come to one.
    """
    until, has_met_one = surroundings.monotonic() + _TO_PIPELINE_SECONDS, False
    failed_before = stopping.failures()
    if any(not each.daemon for each in threading.enumerate()[1:]):
        # A pool's thread may not have taken its work yet
        surroundings.sleep(_LOOK_SECONDS)
    while stopping.is_awaited() or any(map(is_at_work, threading.enumerate())):
        if stopping.is_awaited() or _has_queries():
            until, has_met_one = surroundings.monotonic() + _TO_PIPELINE_SECONDS, True
        elif stopping.is_requested() or surroundings.monotonic() > until:
            break
        surroundings.sleep(_LOOK_SECONDS)
    return has_met_one or stopping.failures() != failed_before


def _wait_for_last_batches() -> None:
    """Wait, in a process that is to end, until each query has come to the end of its batch.

    The file may go on when the first of several has ended (``spark.streams.awaitAnyTermination``),
    and with this process the JVM ends, in the middle of another one's batch.
    """
    while stopping.is_requested() and _has_queries():
        surroundings.sleep(_LOOK_SECONDS)


def is_at_work(thread: threading.Thread) -> bool:
    """Return whether the thread may have a pipeline, or come to one. A pool's is idle where it
    waits for work; what manages a pool of processes ends with Python."""
    if thread.daemon or thread is threading.main_thread():
        return False
    managers = getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ())
    frame = sys._current_frames().get(thread.ident or 0)
    is_idle = frame is not None and frame.f_code is _worker.__code__
    return thread not in managers and not is_idle


def _has_queries() -> bool:
    """Return whether Spark runs a query. A JVM that is gone, or stands still, runs none."""
    # A job without Spark has no need of it
    if "pyspark.sql" not in sys.modules:
        return False
    from onceward.operate.waiting import within
    from onceward.spark.batch.query import running_queries

    with suppress(Exception):
        return bool(within(_ASK_SECONDS, running_queries))
    return False


class _QueryFailed(Exception):
    """A query of the job has failed, and its file has ended without an exception."""


def _failures_left() -> list[BaseException]:
    """Return what the job's file has not raised: it may wait in a loop, or in threads, and then
    end as if all were well. A job that says ``sys.exit(0)`` is believed."""
    of_threads: list[BaseException] = [*stopping.failures()]
    # A job without a sink has no need of them
    if "onceward.engine.calls.runs" not in sys.modules:
        return of_threads
    from onceward.engine.calls import runs
    from onceward.operate.waiting import within

    try:
        found = within(_ASK_SECONDS, runs.failed_at_last)
    except TimeoutError:
        found = f"Spark's JVM does not answer within {_ASK_SECONDS:g} s"
    if found is None:
        return of_threads
    return [_QueryFailed(found) if isinstance(found, str) else found, *of_threads]


def _print(error: BaseException, job: str) -> None:
    """Print the error: of ours the place in the job and a paragraph, of others the traceback."""
    ours = find_errors(error)
    # A group may have others beside them
    if not ours or _members(error):
        traceback.print_exception(error)
        return
    file = getattr(sys.modules["__main__"], "__file__", None)
    places = [at for at in traceback.extract_tb(error.__traceback__) if at.filename == file]
    place = f"{job}:{places[-1].lineno}: " if places else ""
    print(f"{place}{type(ours[0]).__name__}: {ours[0]}", file=sys.stderr)  # noqa: T201


def hear_threads() -> None:
    """Count what ends a thread of the job as what ``ow.wait`` raises in one: a pipeline's
    definition may fail before it comes to that.
    """
    tell = threading.excepthook

    def hear(ended: threading.ExceptHookArgs) -> None:
        error, thread = ended.exc_value, ended.thread
        if (
            isinstance(error, Exception)
            and thread is not None
            # Daemons may be a library's own: only an error of ours is about a pipeline
            and (find_errors(error) or not (thread.daemon or _has_lost_its_session(error)))
            # Of a job that was told to stop the session may be gone already
            and not stopping.is_requested()
        ):
            stopping.note_failure(thread, error)
        tell(ended)

    threading.excepthook = hear


def _has_lost_its_session(error: Exception) -> bool:
    """Return whether a thread has ended so because the job has stopped its query, or its session:
    with that a thread that compacts a table, say, fails at its next step. One that could not be
    built was never there.
    """
    # By name: a job without Spark has no need of it
    if type(error).__name__ == "JobInterrupted":
        return True
    context = getattr(sys.modules.get("pyspark"), "SparkContext", None)
    if context is None or context._gateway is None or context._active_spark_context is not None:
        return False
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return all(frame.f_code is not context.__init__.__code__ for frame in frames)


def keep_status() -> None:
    """Let this process end with its own status, and not with 120, as Python has it where stdout or
    stderr cannot be written at the end: a full disk, a pipe whose reader is gone.
    """

    def flush() -> None:
        for name in ("stdout", "stderr"):
            try:
                getattr(sys, name).flush()
            except Exception:  # noqa: BLE001, PERF203 — whatever the job has put there
                setattr(sys, name, None)

    # What is registered first runs last
    atexit.register(flush)


def _end_soon(status: int) -> None:
    """End the process soon after a job failed or was to stop, whatever its threads wait for."""
    if status == FINISHED and not stopping.is_requested():
        return

    def end() -> None:
        surroundings.sleep(_END_SECONDS)
        os._exit(status)

    threading.Thread(target=end, name="onceward-end", daemon=True).start()


if __name__ == "__main__":
    # Started so by a runner that goes on while its package is upgraded
    main(sys.argv[1:])
