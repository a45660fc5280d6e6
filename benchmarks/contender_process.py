"""The processes in which contenders run: started, told what to do, ended. Called by :mod:`rounds`
and :mod:`latency`.

Each contender has a driver, a JVM and Python workers of its own, because JVM options hold for a
whole JVM, one interpreter imports one version of a package, and nobody shall run on code that
another has warmed. All of them live through all rounds; only one works at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from benchmarks import peers
from benchmarks.contenders import Contender
from onceward.errors import ConfigurationError, OncewardError

_JOB = Path(__file__).with_name("job.py")
_SERVING = Path(__file__).with_name("serving.py")
# By its path and not as a module: its process imports nothing of this repository but the Onceward
# that it is told.
_LAUNCH = "import runpy, sys; path = sys.argv.pop(1); runpy.run_path(path, run_name='__main__')"
_END_SECONDS = 60.0
_LOG_TAIL_LINES = 15
_MOST_SECONDS = 180.0
_LOOK_SECONDS = 0.02


class ContenderFailed(OncewardError):
    """A contender's process could not do what it was told."""


class ContenderProcess:
    """One contender; it takes orders once :meth:`wait_until_ready` has returned.

    :param folder: for its checkpoints, Spark's files and its log; must exist.
    """

    def __init__(self, contender: Contender, folder: Path) -> None:
        self.contender = contender
        self.pid = 0
        self.jvm_pid = 0
        self._log = folder / "log"
        root = str(contender.package_root)
        served = [sys.executable, "-c", _LAUNCH, str(_SERVING)]
        if contender.is_spark:
            command = [*served, str(_JOB), contender.sink, contender.settings, str(folder)]
        else:
            command = peers.command(contender, folder, served)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": _import_path(root),
                    "PYSPARK_PYTHON": sys.executable,
                },
                start_new_session=True,  # Ctrl-C is for us; we end it in order
            )

    def wait_until_ready(self) -> None:
        """Returns when it is up, and its Spark if it has one.

        :raises ConfigurationError: it imports another Onceward than it should.
        """
        hello = self._answer()
        self.pid, self.jvm_pid = hello["pid"], hello["jvm_pid"]
        if not self.contender.is_spark:
            return
        wanted = self.contender.package_root / "onceward"
        if Path(hello["package"]) != wanted:
            raise ConfigurationError(
                f"{self.contender.name}: imported onceward from {hello['package']} instead of "
                f"{wanted}",
                next_step="remove what puts another onceward before PYTHONPATH, such as a "
                "sitecustomize module",
            )

    def tell(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Have an order of :class:`job.Job` carried out; returns its result.

        :raises ContenderFailed: it could not, or the process ended.
        """
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 — it is a pipe
        with contextlib.suppress(
            BrokenPipeError
        ):  # then there is no answer either, and the log says why
            stdin.write(json.dumps({"do": order, **arguments}) + "\n")
            stdin.flush()
        answer = self._answer()
        if "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until something has come of what it was told.

        :raises ContenderFailed: it has not within minutes; ``what`` says so.
        """
        until = time.monotonic() + _MOST_SECONDS
        while not holds():
            if time.monotonic() > until:
                self.tell("stop")  # which tells why, if the query has failed
                raise ContenderFailed(
                    f"{self.contender.name}: {what} within {_MOST_SECONDS:.0f} s",
                    next_step="see whether the machine is busy with other work, and run again",
                )
            time.sleep(_LOOK_SECONDS)

    def close(self, *, at_once: bool = False) -> None:
        """End it with its JVM and workers.

        :param at_once: without waiting for what it is doing.
        """
        pipes = (self._process.stdin, self._process.stdout)
        family = _family(self._process.pid)
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        _, left = psutil.wait_procs(family, 0 if at_once else _END_SECONDS)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        for pipe in pipes:
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _answer(self) -> dict[str, Any]:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 — it is a pipe
        line = stdout.readline()
        if not line:
            last = self._log.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
            raise self._failed("its process ended; its last words: " + " | ".join(last))
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _failed(self, why: str) -> ContenderFailed:
        return ContenderFailed(
            f"{self.contender.name} failed: {why}",
            next_step=f"mend what it names (it imports onceward from "
            f"{self.contender.package_root}), and run again",
        )


class ContenderProcesses:
    """All of them, for a ``with`` block; started together, because each start takes seconds.

    :param folder: where each gets a folder of its own.
    """

    def __init__(self, contenders: Sequence[Contender], folder: Path) -> None:
        self._contenders = contenders
        self._folder = folder
        self._processes: list[ContenderProcess] = []

    def __enter__(self) -> dict[str, ContenderProcess]:
        try:
            for number, contender in enumerate(self._contenders):
                own = self._folder / str(number)
                own.mkdir()
                self._processes.append(ContenderProcess(contender, own))
            for process in self._processes:
                process.wait_until_ready()
        except BaseException:
            self._close(at_once=True)
            raise
        return {process.contender.name: process for process in self._processes}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(at_once=error is not None)

    def _close(self, *, at_once: bool) -> None:
        for process in self._processes:
            process.close(at_once=at_once)


def _import_path(root: str) -> str:
    """``PYTHONPATH`` with ``root`` first; the rest as it is here, for what else is imported from
    there.
    """
    inherited = (entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry)
    return os.pathsep.join([root, *(os.path.abspath(entry) for entry in inherited)])


def _family(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []
