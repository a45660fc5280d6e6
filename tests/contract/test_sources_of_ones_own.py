"""I19: the contract over the example sources, and what each of them notices."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from source_kits import (
    OutboxTable,
    events_server,
    example,
    growing_file_kit,
    outbox_kit,
    paged_api_kit,
    scanned_log_kit,
)

from onceward.errors import SourceFailed, SourceReplaced
from onceward_testing import LocalPostgres
from onceward_testing.source_contract import RangeReader, SourceContract, SourceKit
from support.errors import raises


@pytest.mark.once_more
class TestAGrowingFile(SourceContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> Iterator[SourceKit]:
        with growing_file_kit(spark, tmp_path) as kit:
            yield kit


@pytest.mark.slow
class TestALogThatIsScanned(SourceContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> Iterator[SourceKit]:
        with scanned_log_kit(spark, tmp_path) as kit:
            yield kit


@pytest.mark.slow
class TestAPagedApi(SourceContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path) -> Iterator[SourceKit]:
        with paged_api_kit(spark, tmp_path) as kit:
            yield kit


@pytest.mark.once_more
class TestAnOutbox(SourceContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path, postgres: LocalPostgres) -> Iterator[SourceKit]:
        with outbox_kit(spark, tmp_path, postgres.url, "Outbox") as kit:
            yield kit


@pytest.mark.slow
class TestAnOutboxReadByTasks(SourceContract):
    @pytest.fixture
    def kit(self, spark: Any, tmp_path: Path, postgres: LocalPostgres) -> Iterator[SourceKit]:
        with outbox_kit(spark, tmp_path, postgres.url, "OutboxInParts") as kit:
            yield kit


@pytest.mark.fault("source-ids-late")
def test_an_id_that_becomes_visible_late_is_read(postgres: LocalPostgres, tmp_path: Path):
    with outbox_kit(None, tmp_path, postgres.url, "Outbox") as kit:
        kit.add(2)
        source = kit.new_source()
        table = OutboxTable.__new__(OutboxTable)
        table.name, table.url = source.table, source.url
        with psycopg.connect(postgres.url) as slow:
            rows, position = read_all(source, source.start())
            first = table.insert(slow)
            with psycopg.connect(postgres.url) as quick:
                second = table.insert(quick)
            assert second > first
            held, position = read_all(
                source, position
            )  # the quick one's row is there, and waits for the slow one's
            slow.commit()
        late, position = read_all(source, position)
    assert len(rows) == 2
    assert held == []
    assert sorted(row[0] for row in late) == [first, second]


def read_all(source: Any, position: Any, limit: int = 2) -> tuple[list[Any], Any]:
    found: list[Any] = []
    while True:
        rows, after = source.read(position, limit)
        if after == position:
            return found, position
        found, position = found + rows, after


def test_a_table_that_was_made_anew_is_another_source(postgres: LocalPostgres, tmp_path: Path):
    with outbox_kit(None, tmp_path, postgres.url, "Outbox") as kit:
        before = kit.new_source().identity()
        assert kit.new_source().identity() == before
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            name = kit.new_source().table
            connection.execute(f"CREATE TABLE {name}_other (LIKE {name})")
            connection.execute(f"DROP TABLE {name}")
            connection.execute(f"ALTER TABLE {name}_other RENAME TO {name}")
        assert kit.new_source().identity() != before


@pytest.mark.fault("source-fails")
def test_a_page_that_failed_is_asked_for_again():
    module = example("paged_api")
    with events_server() as server:
        server.add(300)
        rows, _ = read_all(module.EventsApi(server.url, page=10, timeout_s=0.3), None, 10)
        assert [row["id"] for row in rows] == list(range(300))
        assert set(server.failed) == {"503", "cut", "late"}, "INVALID: not every failure happened"


def test_a_server_that_refuses_is_not_asked_again():
    module = example("paged_api")
    with events_server() as server:
        server.failing = False
        server.refusing = True
        with pytest.raises(module.urllib.error.HTTPError):
            module.EventsApi(server.url).read(None, 10)
        assert server.asked == 1


class Log:
    """The file of the example, and a walk through it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.txt"
        self.path.write_text("".join(f"line {number} of the log\n" for number in range(50)))
        source = example("growing_file").GrowingFile(self.path)
        self.walk = RangeReader(
            SourceKit(None, folder, _schema_of(source), lambda _: None, list, "line"), source, 20
        )

    def read(self) -> list[str]:
        return self.walk.keys(self.walk.to_the_end())


def _schema_of(source: Any) -> Any:
    """A kit's ``new_source``, for a walk without a Spark session: Spark alone reads DDL."""
    from pyspark.sql.types import LongType, StringType, StructType

    type(source).schema = (
        StructType().add("at", LongType(), False).add("line", StringType(), False)
    )
    return lambda: source


@pytest.fixture
def log(tmp_path: Path) -> Log:
    made = Log(tmp_path)
    assert len(made.read()) == 50
    return made


def test_a_line_counts_when_it_is_complete(log: Log):
    with log.path.open("a") as file:
        file.write("begun")
        file.flush()
        assert log.read() == []
        file.write(" and ended\nbegun")
    assert log.read() == ["begun and ended"]


@pytest.mark.fault("source-replaced")
def test_a_truncated_file_is_named(log: Log):
    log.path.write_text("new\n")
    with raises(SourceReplaced):
        log.read()


def test_a_file_that_was_truncated_and_has_grown_beyond_is_named(log: Log):
    size = log.path.stat().st_size
    with log.path.open("r+") as file:
        file.truncate()
        file.write("x" * size + "\nmore\n")
    with raises(SourceReplaced):
        log.read()


@pytest.mark.fault("source-replaced")
def test_a_rotated_file_is_named(log: Log):
    os.rename(log.path, log.path.with_suffix(".1"))
    with raises(SourceFailed, "FileNotFoundError"):
        log.read()
    log.path.write_text("new\n" * 1_000)
    with raises(SourceReplaced):
        log.read()
