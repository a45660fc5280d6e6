"""Holds the tests of the tier ``fast`` to what it promises: while one of them runs, nobody starts
a Java.

A plugin of the suite, loaded by ``tests/conftest.py``. In this process ``subprocess`` refuses to
run the Java of this machine, or Spark's launcher, whoever asks for it; in processes that a test
starts, ``JAVA_HOME`` leads to a script that says why it is none. A test that makes a Java of its
own, or sets ``JAVA_HOME``, is left alone.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

WHY = (
    "a test of the tier `fast` starts {what}. If it must, let it ask for the fixture `kafka` or "
    "`spark`, "
    "from which tests/tiers.py sees that it belongs to another tier"
)
_LAUNCHERS = {"spark-submit", "spark-class", "spark-class2.cmd", "spark-submit.cmd"}


class JavaStarted(AssertionError):
    """What a test gets that starts a Java in spite of its tier."""


class NoJava:
    """The guard. It stands in ``subprocess.Popen`` while a test of the tier runs.

    An audit hook would be simpler, and would outlive every test: ``sys.settrace`` asks it, too,
    and when two threads start at the same moment under coverage, CPython 3.11 then refuses to
    start one of them.
    """

    def __init__(self, folder: Path) -> None:
        self._home = folder
        self._real = _java_of_this_machine()
        stub = folder / "bin" / "java"
        stub.parent.mkdir(parents=True)
        stub.write_text(
            "#!/bin/sh\necho 'a test of the tier fast starts no Java: see tests/support/no_java.py' "
            ">&2\nexit 97\n"
        )
        stub.chmod(0o755)

    def _refuse(self, command: Any, executable: Any) -> None:
        words = [command] if isinstance(command, (str, bytes, os.PathLike)) else list(command)
        for word in map(
            os.fsdecode, [executable or "", *words]
        ):  # a broker's Java is an argument of the guard
            if Path(word).name in _LAUNCHERS or self._is_java(word):
                raise JavaStarted(WHY.format(what=word))

    def _is_java(self, word: str) -> bool:
        return (
            Path(word).name == "java"
            and os.path.realpath(shutil.which(word) or word) == self._real
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.get_closest_marker("fast") is None:
            return (yield)
        start = subprocess.Popen.__init__

        @functools.wraps(start)
        def guarded(
            process: Any,
            args: Any,
            bufsize: int = -1,
            executable: Any = None,
            *others: Any,
            **named: Any,
        ) -> None:
            self._refuse(args, executable)
            start(process, args, bufsize, executable, *others, **named)

        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JAVA_HOME", str(self._home))
            environment.setattr(subprocess.Popen, "__init__", guarded)
            return (yield)


def pytest_sessionstart(session: pytest.Session) -> None:
    folder: Path = session.config._tmp_path_factory.mktemp("no-java-in-a-fast-test")  # type: ignore[attr-defined]
    session.config.pluginmanager.register(NoJava(folder), "onceward-no-java")


def _java_of_this_machine() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return os.path.realpath(found) if found else ""
