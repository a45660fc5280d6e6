"""Whoever does what an error of Java, of jars, of a session's settings, of a path or of a mode of
Spark says is done. None of these needs a session.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t

import onceward as ow
from onceward.errors import OncewardError, Recovery
from onceward.kafka.source import source
from onceward.spark import types
from onceward.spark.batch import failures, shuffles
from onceward.spark.batch.causes import Thrown
from onceward.spark.batch.refused_modes import (
    BY_FILE_SYSTEM,
    FILE_MANAGER,
    refuse_renames_that_keep_a_file,
    refuse_source_evolution,
    refuse_unsupported,
)
from onceward.spark.files import refuse_other_schemes
from onceward.spark.session import connector, jars, java
from onceward_testing import server_files
from support.next_steps import Done, Row, Wrong, follow, named


def raising(error: OncewardError | None) -> None:
    assert error is not None
    raise error


# Modes and settings of a session.


class Named:
    """Answers ``getClass().getSimpleName()`` like a Java object."""

    def __init__(self, name: str, trigger: str = "") -> None:
        self._name, self._trigger = name, trigger

    def getClass(self) -> Named:  # noqa: N802 — Java's name
        return self

    def getSimpleName(self) -> str:  # noqa: N802 — Java's name
        return self._name

    def trigger(self) -> Named:
        return Named(self._trigger)


TRIGGERS = {"processingTime": "ProcessingTimeTrigger", "availableNow": "AvailableNowTrigger$"}


def mode(
    speculation: str = "false",
    kind: str = "MicroBatchExecution",
    trigger: str = "ProcessingTimeTrigger",
) -> None:
    refuse_unsupported(speculation, Named(kind, trigger))


def by_file_system(removed: str = "", checkpoint: str = "hdfs://nodes/c") -> None:
    settings = {FILE_MANAGER: BY_FILE_SYSTEM}
    settings.pop(removed, None)
    refuse_renames_that_keep_a_file(settings.get(FILE_MANAGER, ""), checkpoint)


class Session:
    """As much of a session as the checks of its settings look at."""

    def __init__(self, **settings: str) -> None:
        self.conf = {
            "spark.sql.parquet.outputTimestampType": "INT96",
            "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
            "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
            "spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED",
        } | {name.replace("__", "."): value for name, value in settings.items()}


ROW = t.StructType([t.StructField("at", t.TimestampType())])


def microseconds(**settings: str) -> None:
    session: Any = Session(**settings)
    types.must_keep_microseconds(session, ROW)


def dates(kind: str, **settings: str) -> None:
    session: Any = Session(**settings)
    types.must_keep_dates(session, ROW, kind)


def set_to(check: Done, name: str, value: str) -> None:
    check(**{name.replace(".", "__"): value})


PARQUET, AVRO = partial(dates, "parquet"), partial(dates, "avro")
LEGACY = [
    (PARQUET, "spark__sql__parquet__datetimeRebaseModeInWrite"),
    (PARQUET, "spark__sql__parquet__int96RebaseModeInWrite"),
    (AVRO, "spark__sql__avro__datetimeRebaseModeInWrite"),
]
MODES: list[Row] = [
    (
        lambda: mode("true"),
        r"^set spark\.speculation=(\w+)$",
        lambda value: mode(value),
    ),
    (
        lambda: mode(kind="AsyncProgressTrackingMicroBatchExecution"),
        r"^remove the option asyncProgressTrackingEnabled$",
        mode,
    ),
    (
        lambda: mode(trigger="ContinuousTrigger"),
        r"use trigger\((\w+)=…\) or trigger\((\w+)=True\)",
        lambda *offered: [partial(mode, trigger=TRIGGERS[each])() for each in offered],
    ),
    (
        lambda: refuse_source_evolution("true"),
        r"set \S+=(\w+) and start with a new checkpoint",
        refuse_source_evolution,
    ),
    (
        by_file_system,
        r"^remove (\S+) \(ow\.checkpointing",
        lambda name: by_file_system(name),
    ),
    (
        by_file_system,
        r'on a local disk \("(\S+)…"\)',
        lambda where: by_file_system(checkpoint=f"{where}mnt/c"),
    ),
    (
        lambda: microseconds(spark__sql__parquet__outputTimestampType="TIMESTAMP_MILLIS"),
        r"^set (\S+) to (\w+);",
        partial(set_to, microseconds),
    ),
    *(
        (partial(check, **{name: "LEGACY"}), r"^set (\S+) to (\w+), its default$",
         partial(set_to, check))
        for check, name in LEGACY
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "done"), MODES, ids=named(MODES))
def test_modes_and_settings(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


# Paths.


def published(path: str, *layouts: str) -> str:
    """Check ``path`` for files that are renamed into place, or are not."""
    refuse_other_schemes(path, renames="manifest" not in layouts)
    return path


PATHS: list[Row] = [
    (
        lambda: published("file://host/data"),
        r"pass (file:///)… with three slashes, or an absolute path",
        lambda slashes: (published(f"{slashes}data"), published("/data")),
    ),
    (
        lambda: published("s3a://bucket/data"),
        r'^pass layout="(\w+)", which renames nothing$',
        lambda layout: published("s3a://bucket/data", layout),
    ),
    (
        lambda: published("gs://bucket/data"),
        r'to a path on (\w+:) or (\w+:), .*; or with layout="(\w+)" to one on (\w+:)',
        lambda one, other, layout, store: [
            published(f"{one}///data"), published(f"{other}//h/data"),
            published(f"{store}//bucket/data", layout),
        ],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says", "done"), PATHS, ids=named(PATHS))
def test_paths(wrong: Wrong, says: str, done: Done) -> None:
    follow(wrong, says, done)


def test_a_store_that_nothing_is_known_of() -> None:
    """``those`` are the file systems that the message names."""
    with pytest.raises(OncewardError) as refused:
        published("gs://bucket/data", "manifest")
    assert refused.value.next_step.startswith("write to a path on one of those")
    good = refused.value.message.rpartition("; of ")[2]
    schemes = re.findall(r"(\w+):(?=,| and| it is)", good)
    assert len(schemes) == 3
    for scheme in schemes:
        published("file:///data" if scheme == "file" else f"{scheme}://h/data", "manifest")


# Java, jars and versions.


@pytest.fixture(autouse=True)
def _not_remembered() -> Iterator[None]:
    java.java_found.cache_clear()
    yield
    java.java_found.cache_clear()


def home(folder: Path, version: str) -> Path:
    """Make a folder whose ``bin/java`` says that it is of ``version``."""
    (folder / "bin").mkdir(parents=True)
    executable = folder / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    executable.chmod(0o755)
    return folder


def test_a_java_that_is_missing_or_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))

    def installed(oldest: str, variable: str, on_path: str) -> None:
        good = home(tmp_path / "good", f"{oldest}.0.1")
        with monkeypatch.context() as there:
            there.setenv(variable, str(good))
            assert java.java_found()[1] == int(oldest)
        java.java_found.cache_clear()
        with monkeypatch.context() as there:
            there.setenv(on_path, f"{good / 'bin'}:/usr/bin:/bin")
            assert java.java_found()[1] == int(oldest)
        java.java_found.cache_clear()

    follow(
        java.java_found,
        r"install a JDK or JRE (\d+) or newer and set (\w+), or put `java` on (\w+)$",
        installed,
    )
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    broken = home(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    silent = home(tmp_path / "silent", "17")
    (silent / "bin" / "java").write_text("#!/bin/sh\necho hello\n")
    for number, wrong in enumerate([home(tmp_path / "old", "11.0.2"), broken, silent]):
        monkeypatch.setenv("JAVA_HOME", str(wrong))
        newer = home(tmp_path / f"newer{number}", "21.0.1")

        def pointed(variable: str, newer: Path = newer) -> None:
            monkeypatch.setenv(variable, str(newer))
            assert java.java_found()[1] == 21

        follow(java.java_found, r"(JAVA_HOME)", pointed)
        java.java_found.cache_clear()


def test_a_java_without_a_module(tmp_path: Path) -> None:
    small = home(tmp_path / "small", "17") / "bin" / "java"
    small.write_text("#!/bin/sh\necho 'Module jdk.incubator.vector not found' >&2\nexit 1\n")
    whole = home(tmp_path / "whole", "17") / "bin" / "java"
    follow(
        partial(java.must_have_modules, small),
        r"point JAVA_HOME at a whole JDK or JRE$",
        partial(java.must_have_modules, whole),
    )


@pytest.mark.parametrize("version", ["4.0.0", "4.1.1"])
def test_a_java_that_is_too_new(version: str) -> None:
    def done(*majors: str) -> None:
        for major in map(int, majors):
            assert major >= java.OLDEST_JAVA
            connector.must_start_on(Path("java"), major, version)

    follow(
        partial(connector.must_start_on, Path("java"), 25, version),
        r"^point JAVA_HOME at Java (\d+) or (\d+)$",
        done,
    )


@pytest.mark.parametrize("version", ["3.5.1", "5.0.0"])
def test_a_spark_that_was_never_run(version: str) -> None:
    follow(
        partial(connector.must_have_been_run, version),
        r'^pip install "pyspark~=(\d+\.\d+\.\d+)"$',
        connector.must_have_been_run,
    )


def test_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of as many parts as are asked for is looked for."""
    asked: list[tuple[str, ...]] = []

    def kept(name: object, coordinates: tuple[str, ...], ask: object) -> list[Path]:
        asked.append(coordinates)
        return [Path("jar")]

    for module in (jars, server_files):
        monkeypatch.setattr(module, "kept_or_asked", kept)
    for ask in (jars.resolve, server_files.archive):
        follow(partial(ask, "a:b"), r"^write it as (\S+)$", ask)
    assert asked == [("group:artifact:version",), ("group:artifact:version:type:classifier",)]


# What fails while a batch runs.


def known(*thrown: tuple[str, ...]) -> Wrong:
    return lambda: raising(failures.known_failure([Thrown(*each) for each in thrown]))


STATE = "org.apache.spark.sql.kafka010.KafkaIllegalStateException"
WENT_BACK = ("offset was changed from 9 to 4", "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED")
LOST = ("Some data may have been lost", "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE")


def test_records_that_are_gone() -> None:
    def done(name: str, value: str) -> None:
        own = source._own({name: {"False": False}[value]})
        assert source._may_lose(own)

    for thrown in (
        LOST,
        WENT_BACK,
        ("Partitions Set(in-0)", "KAFKA_DATA_LOSS.PARTITIONS_DELETED"),
        ("in-0 from 7", "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"),
    ):
        says = r'kafka_source\(spark_options=\{"(\w+)": (\w+)\}\)'
        follow(known((STATE, *thrown)), says, done)
    for thrown in (LOST, WENT_BACK):
        # Of a plan that is removed nothing is left, or Spark takes it for another query's
        said = r"remove the file (offsets/\w+), the newest, .* hidden (offsets/\.\w+\.crc), .*from"
        follow(known((STATE, *thrown)), said, lambda name, checksum: None)


def test_records_that_cannot_be_read() -> None:
    def done(word: str, setting: str) -> None:
        where: dict[str, Any] = {"bootstrap_servers": "b:1", "pipeline_id": "p", "topic": "t"}
        ow.KafkaSink(**where | {"on_error": word, setting: "dead"})

    follow(
        lambda: raising(failures.invalid_record({"class": "DoesNotFit"})),
        r'pass on_error="(\w+)" to decode\(…\) and (\w+)= to KafkaSink',
        done,
    )


BY_ITSELF: list[tuple[Wrong, str]] = [
    (lambda: raising(shuffles._mixed()), r"^nothing; the batch runs again from its source"),
    (
        known(("org.apache.spark.SparkException", "Python worker exited unexpectedly (crashed)")),
        r"^nothing, the batch runs again",
    ),
]


@pytest.mark.parametrize(("wrong", "says"), BY_ITSELF, ids=[row[1][:30] for row in BY_ITSELF])
def test_nothing_is_to_be_done_and_the_engine_does_it(wrong: Wrong, says: str) -> None:
    follow(wrong, says, lambda: None)
    with pytest.raises(OncewardError) as refused:
        wrong()
    assert refused.value.recovery is Recovery.RUN_AGAIN


def test_a_schema_id_that_is_new_is_asked_for_by_the_next_start() -> None:
    follow(
        lambda: raising(failures._unseen({"id": 7})),
        r"ow\.(\w+)\(start\) does it by itself, at once$",
        lambda name: callable(getattr(ow, name)) or pytest.fail(name),
    )
    with pytest.raises(OncewardError) as refused:
        raise failures._unseen({"id": 7})
    assert refused.value.recovery is Recovery.RESTART_AT_ONCE
