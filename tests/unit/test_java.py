"""An unfit Java is refused with what to do, before anything is started with it."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward.errors import ConfigurationError, LaunchFailed
from onceward.spark.session import java
from support.errors import raises


@pytest.fixture(autouse=True)
def _not_remembered() -> Iterator[None]:
    java.java_found.cache_clear()
    yield
    java.java_found.cache_clear()


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


def make_java(home: Path, script: str) -> None:
    executable = home / "bin" / "java"
    executable.write_text(f"#!/bin/sh\n{script}\n")
    executable.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "24-ea" 2025-03-18', 24),
    ],
)
def test_the_major_version_is_found(text: str, major: int):
    assert java.java_major_version(text) == major


def test_a_new_enough_java_of_java_home_is_taken(java_home: Path):
    make_java(java_home, "echo 'openjdk version \"17.0.1\"' >&2")
    assert java.java_executable() == java_home / "bin" / "java"


def test_an_old_java_is_refused(java_home: Path):
    make_java(java_home, "echo 'openjdk version \"11.0.2\"' >&2")
    with raises(ConfigurationError):
        java.java_executable()


def test_a_java_home_without_java_is_named(java_home: Path):
    with raises(ConfigurationError):
        java.java_executable()


def test_a_java_that_does_not_run_is_named(java_home: Path):
    make_java(java_home, "exit 3")
    with raises(ConfigurationError):
        java.java_executable()


def test_something_that_prints_no_version_is_refused(java_home: Path):
    make_java(java_home, "echo hello")
    with raises(ConfigurationError):
        java.java_executable()


def test_a_java_without_the_module_that_spark_starts_it_with_is_named(java_home: Path):
    make_java(
        java_home,
        '[ "$1" = -version ] && exit 0; echo "Module jdk.incubator.vector not found"; exit 1',
    )
    with raises(ConfigurationError) as caught:
        java.must_have_modules(java_home / "bin" / "java")
    assert "not found" in caught.value.details["said"]


def test_a_java_that_starts_with_that_module_is_taken(java_home: Path):
    make_java(java_home, '[ "$1" = --add-modules=jdk.incubator.vector ]')
    java.must_have_modules(java_home / "bin" / "java")


NO_HEAP = "echo 'Could not reserve enough space for object heap' >&2; exit 1"
NO_THREAD = "echo 'pthread_create failed (EAGAIN)' >&2; exit 1"


@pytest.mark.parametrize("options", [(), ("--add-modules",)], ids=["version", "modules"])
@pytest.mark.parametrize(
    ("script", "says"),
    [(NO_HEAP, "object heap"), (NO_THREAD, "EAGAIN"), ("kill -9 $$", "-9"), ("exit 137", "137")],
    ids=["heap", "thread", "killed", "killed-in-a-script"],
)
def test_a_jvm_that_has_no_room_now_may_start_later(
    java_home: Path, script: str, says: str, options: tuple[str, ...]
):
    executable = java_home / "bin" / "java"
    make_java(java_home, script)
    with raises(LaunchFailed) as caught:
        if options:
            java.must_have_modules(executable)
        else:
            java.java_found()
    assert says in str(caught.value)
    make_java(java_home, "echo 'openjdk version \"17.0.1\"' >&2")
    assert java.java_found() == (executable, 17)
    java.must_have_modules(executable)


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (OSError(errno.EAGAIN, "no process left"), LaunchFailed),
        (OSError(errno.ENOMEM, "no memory left"), LaunchFailed),
        (subprocess.TimeoutExpired("java", 60), LaunchFailed),
        (OSError(errno.ENOEXEC, "Exec format error"), ConfigurationError),
        (OSError(errno.EACCES, "Permission denied"), ConfigurationError),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_only_a_program_that_is_none_is_one_for_good(
    java_home: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception, kind: type
):
    make_java(java_home, "")

    def run(*_: Any, **__: Any) -> Any:
        raise failure

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises((LaunchFailed, ConfigurationError)) as caught:
        java.java_found()
    assert type(caught.value) is kind
