"""Holds the tests of the tier ``fast`` to what it promises: while one of them runs, nobody starts a Java.

A plugin of the suite, loaded by ``tests/conftest.py``. In this process an audit hook refuses to run the Java of this
machine, or Spark's launcher, whoever asks for it; in processes that a test starts, ``JAVA_HOME`` leads to a script that
says why it is none. A test that makes a Java of its own, or sets ``JAVA_HOME``, is left alone.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

WHY = (
    "a test of the tier `fast` starts {what}. If it must, let it ask for the fixture `kafka` or `spark`, "
    "from which tests/tiers.py sees that it belongs to another tier"
)
_LAUNCHERS = {"spark-submit", "spark-class", "spark-class2.cmd", "spark-submit.cmd"}


class JavaStarted(AssertionError):
    """What a test gets that starts a Java in spite of its tier."""


class NoJava:
    """The guard, and whether it is on duty. One a process: an audit hook stays as long as the interpreter."""

    def __init__(self, folder: Path) -> None:
        self.on_duty = False
        self._home = folder
        self._real = _java_of_this_machine()
        stub = folder / "bin" / "java"
        stub.parent.mkdir(parents=True)
        stub.write_text(
            "#!/bin/sh\necho 'a test of the tier fast may not start a Java: see tests/no_java.py' >&2\nexit 97\n"
        )
        stub.chmod(0o755)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on_duty or event != "subprocess.Popen":
            return
        executable, command = arguments[0], arguments[1]
        words = [command] if isinstance(command, (str, bytes, os.PathLike)) else command
        for word in map(os.fsdecode, (executable, *words)):  # a broker's Java is an argument of the guard before it
            if Path(word).name in _LAUNCHERS or self._is_java(word):
                raise JavaStarted(WHY.format(what=word))

    def _is_java(self, word: str) -> bool:
        return Path(word).name == "java" and os.path.realpath(shutil.which(word) or word) == self._real

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if item.get_closest_marker("fast") is None:
            return (yield)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("JAVA_HOME", str(self._home))
            self.on_duty = True
            try:
                return (yield)
            finally:
                self.on_duty = False


def pytest_sessionstart(session: pytest.Session) -> None:
    folder: Path = session.config._tmp_path_factory.mktemp("no-java-in-a-fast-test")  # type: ignore[attr-defined]
    session.config.pluginmanager.register(NoJava(folder), "onceward-no-java")


def _java_of_this_machine() -> str:
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return os.path.realpath(found) if found else ""
