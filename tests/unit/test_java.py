"""An unfit Java is refused with what to do, before anything is started with it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.errors import ConfigurationError
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
