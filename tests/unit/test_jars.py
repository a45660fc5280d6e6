"""Resolved jars are remembered as long as they exist. The resolver itself is replaced: it is
Spark's.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from onceward import patience
from onceward.errors import ConfigurationError, LaunchFailed
from onceward.spark.session import jars
from onceward_testing import server_files
from support.errors import raises


class Resolver:
    """Stands for the JVM: answers with files it makes, and counts how often it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, coordinates: tuple[str, ...], *_: object) -> list[Path]:
        with (self.folder / "asked").open("a") as asked:
            asked.write(" ".join(coordinates) + "\n")
        time.sleep(0.2)  # long enough for the other processes of the race to arrive
        answer = [
            self.folder / f"{coordinate.replace(':', '-')}.jar" for coordinate in coordinates
        ]
        for jar in answer:
            jar.touch()
        return answer

    @property
    def times_asked(self) -> int:
        return len((self.folder / "asked").read_text().splitlines())


@pytest.fixture
def resolver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver(tmp_path)
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(jars.IVY_SETTINGS_VARIABLE, raising=False)
    monkeypatch.setattr(jars, "_ask_spark", resolver)
    return resolver


def test_the_second_time_nobody_is_asked(resolver: Resolver):
    first = jars.resolve("a:b:1", "c:d:2")
    assert (
        jars.resolve("a:b:1", "c:d:2")
        == first
        == [resolver.folder / "a-b-1.jar", resolver.folder / "c-d-2.jar"]
    )
    assert resolver.times_asked == 1


def test_other_coordinates_and_other_mirrors_are_other_questions(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
):
    jars.resolve("a:b:1")
    jars.resolve("a:b:2")
    monkeypatch.setenv(jars.IVY_SETTINGS_VARIABLE, "mirror.xml")
    jars.resolve("a:b:1")
    jars.resolve("a:b:1", without=["c:d"])
    jars.resolve("a:b:1", transitive=False)
    assert resolver.times_asked == 5


def test_a_jar_that_is_gone_is_resolved_again(resolver: Resolver):
    (jar,) = jars.resolve("a:b:1")
    jar.unlink()
    assert jars.resolve("a:b:1") == [jar]
    assert resolver.times_asked == 2


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", '{"jars": []}', '{"jars": 3}', json.dumps({"jars": ["gone.jar"]})]
)
def test_a_damaged_memory_is_no_answer(resolver: Resolver, damage: str):
    jars.resolve("a:b:1")
    (answer,) = (jars.cache_folder() / "jars").glob("*.json")
    answer.write_text(damage)
    jars.resolve("a:b:1")
    assert resolver.times_asked == 2


def test_processes_that_race_ask_once(resolver: Resolver):
    fork = multiprocessing.get_context("fork")  # so that the replaced resolver is there
    racers = [fork.Process(target=jars.resolve, args=("a:b:1",)) for _ in range(4)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert [racer.exitcode for racer in racers] == [0] * 4
    assert resolver.times_asked == 1


@pytest.mark.parametrize("wrong", ["kafka", "a:b", "a:b:c:d", "a::1", ""])
def test_a_malformed_coordinate_is_refused_before_anything_starts(resolver: Resolver, wrong: str):
    with raises(ConfigurationError, "group:artifact:version"):
        jars.resolve(wrong)


def test_no_coordinates_no_jars(resolver: Resolver):
    assert jars.resolve() == []


@pytest.mark.parametrize(
    "coordinate", ["g:a:1", "g:a:1:zip", "g:a:1:zip:", "g:a:1:zip:all:more", ""]
)
def test_an_archive_has_a_coordinate_of_five_parts(coordinate: str) -> None:
    with raises(ConfigurationError, "group:artifact:version:type:classifier"):
        server_files.archive(coordinate)


def test_an_archive_is_remembered_as_jars_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(jars.IVY_SETTINGS_VARIABLE, raising=False)
    packed = tmp_path / "packed.tar.gz"
    packed.touch()
    jars.remember(jars.kept_as("archive", "g:a:1:tar.gz:all", None), [packed])
    assert server_files.archive("g:a:1:tar.gz:all") == packed  # no JVM is started for it


def test_a_process_that_resolves_for_ever_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_OTHERS_SECONDS", 0.3)
    with (
        jars._one_resolver_at_a_time(tmp_path),
        raises(LaunchFailed),
        jars._one_resolver_at_a_time(tmp_path),
    ):
        pytest.fail("two resolvers at a time")
    with jars._one_resolver_at_a_time(tmp_path):
        pass


def test_a_process_that_resolves_is_not_waited_for_by_who_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_OTHERS_SECONDS", 5)

    def is_told() -> None:
        raise KeyError("told to stop")

    with (
        jars._one_resolver_at_a_time(tmp_path),
        pytest.raises(KeyError, match="told to stop"),
        patience.asking(is_told),
        jars._one_resolver_at_a_time(tmp_path),
    ):
        pytest.fail("two resolvers at a time")


def test_no_repository_is_waited_for_without_end(monkeypatch: pytest.MonkeyPatch):
    """Also one within a chain; what the user's settings say of it holds."""
    limits: dict[str, int] = {}

    class Resolver:
        def __init__(self, kind: str, *, limit: object = None, inner: Sequence[object] = ()):
            self.kind, self.limit, self.named, self.inner = kind, limit, "", inner

        def getTimeoutConstraint(self) -> object:  # noqa: N802 — Ivy's names
            return self.limit

        def setTimeoutConstraint(self, name: str) -> None:  # noqa: N802
            self.named = name

        def validate(self) -> None:
            self.limit = limits[self.named]

        def getResolvers(self) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(toArray=lambda: list(self.inner))

    class Limit:
        def __init__(self, name: str) -> None:
            self.name = name

        def setConnectionTimeout(self, limit_ms: int) -> None:  # noqa: N802
            limits[self.name] = limit_ms

        def setReadTimeout(self, limit_ms: int) -> None:  # noqa: N802
            assert limits[self.name] == limit_ms

    plain, own = Resolver("AbstractResolver"), Resolver("AbstractResolver", limit="the user's")
    settings: Any = Resolver("", inner=[Resolver("ChainResolver", inner=[plain]), own])
    settings.addConfigured = lambda limit: None
    gateway = SimpleNamespace(jvm=MagicMock())
    gateway.jvm.org.apache.ivy.core.settings.NamedTimeoutConstraint = Limit
    monkeypatch.setattr(
        "py4j.java_gateway.is_instance_of",
        lambda _, resolver, kind: kind.rpartition(".")[2] == resolver.kind,
    )
    assert jars._in_bounds(gateway, settings) is settings
    assert (plain.limit, own.limit) == (30_000, "the user's")


@pytest.mark.parametrize("folder", ["/proc/onceward", "{file}", "{file}/below"])
def test_a_cache_that_cannot_be_made_is_named(
    resolver: Resolver, tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "file").touch()
    named = folder.format(file=tmp_path / "file")
    monkeypatch.setenv(jars.CACHE_VARIABLE, named)
    with pytest.raises(ConfigurationError, match="cannot be written") as refused:
        jars.resolve("a:b:1")
    assert named in refused.value.message
    assert "ONCEWARD_CACHE" in refused.value.next_step


def test_jars_that_cannot_be_kept_are_used(
    resolver: Resolver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object, **__: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert jars.resolve("a:b:1") == [tmp_path / "a-b-1.jar"]
    assert jars.resolve("a:b:1") == [tmp_path / "a-b-1.jar"]
    assert resolver.times_asked == 2


@pytest.mark.parametrize("settings", [None, "mirror.xml"])
@pytest.mark.parametrize("named", ["cache", None])
def test_ivys_own_folder_moves_with_the_cache(
    settings: str | None, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(jars.CACHE_VARIABLE, raising=False)
    if named:
        monkeypatch.setenv(jars.CACHE_VARIABLE, named)
    gateway, asked = MagicMock(), []
    gateway.jvm.scala.Option = SimpleNamespace(empty=lambda: None, apply=lambda it: it)
    maven = gateway.jvm.org.apache.spark.util.MavenUtils
    maven.loadIvySettings = lambda file, mirrors, folder, errors: asked.append(folder)
    maven.buildIvySettings = lambda mirrors, folder, local, errors: asked.append(folder)
    monkeypatch.setattr(jars, "_in_bounds", lambda gateway, settings: settings)
    jars.ivy_settings(gateway, settings)
    assert asked == [str(tmp_path / "cache" / "ivy") if named else None]


def test_jars_in_a_folder_that_is_closed_to_this_user_are_looked_for_again(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
):
    """Those that root had found in its own home, in an image that another user runs."""
    (jar,) = jars.resolve("a:b:1")
    stat = os.stat

    def closed(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if str(path) == str(jar):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    monkeypatch.setattr(os, "stat", closed)
    jars.resolve("a:b:1")
    assert resolver.times_asked == 2
