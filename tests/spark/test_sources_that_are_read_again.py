"""I19: custom sources on Spark: failures reach the user by name, and the ledger has positions."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import onceward as ow
from onceward.errors import (
    CheckpointReplaced,
    CheckpointRewound,
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    InvalidRow,
    OncewardError,
    SourceContractViolated,
    SourceFailed,
    SourceFileMissing,
    SourceRangeChanged,
    SourceReplaced,
)
from onceward.spark.batch import file_sources

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Shelf(ow.ResettableSource):
    """Rows in a file, a JSON list; Spark's process reads it, the test writes it."""

    schema = "id BIGINT NOT NULL, name STRING"

    def __init__(self, folder: Path) -> None:
        self.rows, self.label = str(folder / "rows.json"), str(folder / "label")

    def start(self) -> Any:
        return [0]

    def identity(self) -> str | None:
        return Path(self.label).read_text()

    def read(self, position: Any, limit: int) -> Any:
        rows = json.loads(Path(self.rows).read_text())[position[0] :][:limit]
        if any(row[1] == "trap" for row in rows):
            raise LookupError("nothing under this name")
        return [tuple(row) for row in rows], [position[0] + len(rows)]


class ShelfInParts(ow.PartitionedSource):
    """The same, a row a task."""

    schema = Shelf.schema

    def __init__(self, folder: Path) -> None:
        self.shelf = Shelf(folder)

    def start(self) -> Any:
        return 0

    def identity(self) -> str | None:
        return self.shelf.identity()

    def advance(self, position: Any, limit: int) -> Any:
        return min(position + limit, len(json.loads(Path(self.shelf.rows).read_text())))

    def partitions(self, start: Any, end: Any) -> Any:
        return range(start, end)

    def read_partition(self, partition: Any) -> Any:
        return self.shelf.read([partition], 1)[0]


class Place:
    """A source, a checkpoint, and a sink that writes files."""

    def __init__(self, spark: Any, folder: Path, kind: Any = Shelf) -> None:
        self.spark, self.folder = spark, folder
        self.source = kind(folder)
        self.ledger = ow.FolderLedger(folder / "ledger")
        self.checkpoint = "checkpoint"
        self.label("one")
        self.rows: list[list[Any]] = []

    def put(self, *names: Any) -> None:
        self.rows += [[len(self.rows) + n, name] for n, name in enumerate(names)]
        (self.folder / "rows.json").write_text(json.dumps(self.rows))

    def label(self, name: str) -> None:
        (self.folder / "label").write_text(name)

    def run(
        self, resume: Any = "checkpoint", max_rows: int = 3, sources: int = 1, **options: Any
    ) -> OncewardError | None:
        """To the end of what there is; the error that ended the query, if one did."""
        sink = ow.FileSink(
            path=str(self.folder / "out"),
            format="parquet",
            pipeline_id="shelf",
            ledger=self.ledger,
            resume=resume,
        )
        frames = [
            self.source.stream(self.spark, max_rows_per_batch=max_rows, poll_seconds=0, **options)
            for _ in range(sources)
        ]
        frame = reduce(DataFrame.union, frames)
        writer = frame.writeStream.foreachBatch(sink)
        query = writer.option("checkpointLocation", str(self.folder / self.checkpoint)).start()
        try:
            query.processAllAvailable()
        except StreamingQueryException:
            assert query.exception() is not None
        finally:
            query.stop()
        self.raised = query.exception()
        error = ow.error_of(query)
        assert (error is None) == (self.raised is None), self.raised
        return error

    def visible(self) -> Counter[Any]:
        table = dataset.dataset(str(self.folder / "out"), format="parquet").to_table(
            columns=["name"]
        )
        return Counter(table.column("name").to_pylist())

    def forget_the_last_commit(self) -> None:
        """As if Spark had died before its commit log."""
        commits = self.folder / self.checkpoint / "commits"
        last = max(
            (file for file in commits.iterdir() if file.name.isdecimal()),
            key=lambda file: int(file.name),
        )
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


@pytest.fixture
def place(spark: Any, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


@pytest.fixture
def in_parts(spark: Any, tmp_path: Path) -> Place:
    return Place(spark, tmp_path, ShelfInParts)


@pytest.mark.fault("source-range-changed")
def test_a_committed_range_with_other_rows_stops_the_query(place: Place):
    place.put("a", "b", "c", "d")
    assert place.run() is None
    place.forget_the_last_commit()
    place.rows[3][1] = "another d"
    place.put("e")
    assert isinstance(place.run(), SourceRangeChanged)
    place.rows[3][1] = "d"
    place.put("f")
    assert place.run() is None
    assert place.visible() == Counter("abcdef")


@pytest.mark.fault("source-fails")
def test_what_a_source_raises_comes_with_its_traceback(place: Place):
    place.put("a", "b", "c", "trap")
    error = place.run()
    assert isinstance(error, SourceFailed)
    assert "LookupError: nothing under this name" in error.message
    assert 'raise LookupError("nothing under this name")' in error.details["traceback"]
    assert "in read" in str(place.raised)  # and in what Spark itself prints
    place.rows[3][1] = "d"
    place.put()
    assert place.run() is None
    assert place.visible() == Counter("abcd")


def test_what_a_task_of_a_source_raises_comes_with_its_traceback(in_parts: Place):
    in_parts.put("a", "b", "c", "trap")
    error = in_parts.run()
    assert isinstance(error, SourceFailed)
    assert "read_partition(3) raised LookupError" in error.message
    in_parts.rows[3][1] = "d"
    in_parts.put()
    assert in_parts.run() is None
    assert in_parts.visible() == Counter("abcd")


@pytest.mark.parametrize("parts", [False, True])
def test_a_row_that_does_not_fit_stops_the_query(request: pytest.FixtureRequest, parts: bool):
    place = request.getfixturevalue("in_parts" if parts else "place")
    place.put("a", 7)
    error = place.run()
    assert isinstance(error, InvalidRow)
    assert "column name" in error.message
    assert "7 (int)" in error.message


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("parts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_another_source_stops_the_query(request: pytest.FixtureRequest, parts: bool):
    place = request.getfixturevalue("in_parts" if parts else "place")
    place.put("a")
    assert place.run() is None
    place.label("two")
    assert isinstance(place.run(), SourceReplaced)
    place.label("one")
    place.put("b")
    assert place.run() is None
    assert place.visible() == Counter("ab")


@pytest.mark.parametrize("parts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_lost_checkpoint_goes_on_where_the_ledger_ends(
    request: pytest.FixtureRequest, parts: bool
):
    place = request.getfixturevalue("in_parts" if parts else "place")
    place.put("a", "b", "c", "d")
    assert place.run() is None
    place.checkpoint = "another"
    place.put("e")
    assert isinstance(place.run(), CheckpointReplaced)
    place.checkpoint = "a third"
    assert isinstance(
        place.run(resume="ledger"), CheckpointReplaced
    )  # from the beginning: not where the ledger ends
    place.checkpoint = "a fourth"
    assert place.run(resume="ledger", ledger=place.ledger, pipeline_id="shelf") is None
    assert place.visible() == Counter("abcde")
    place.put("f")
    assert place.run() is None
    place.checkpoint = "a fifth"
    place.label("two")
    assert isinstance(
        place.run(resume="ledger", ledger=place.ledger, pipeline_id="shelf"), SourceReplaced
    )
    assert place.visible() == Counter("abcdef")


@pytest.mark.lengthy("chaos")
def test_two_sources_that_end_alike_both_go_on_where_the_ledger_ends(place: Place):
    place.put("a", "b")
    assert place.run(sources=2) is None
    place.checkpoint = "another"
    place.put("c")
    ledger = {"ledger": place.ledger, "pipeline_id": "shelf"}
    assert place.run(resume="ledger", sources=2, **ledger) is None
    assert place.visible() == Counter("aabbcc")


def test_a_source_alone_knows_no_kafka(place: Place, spark: Any):
    place.put("a", "b", "c", "d", "e")
    frame = place.source.stream(spark, max_rows_per_batch=2, poll_seconds=0)
    seen: list[list[str]] = []
    query = (
        frame.writeStream.foreachBatch(
            lambda batch, _: seen.append([row["name"] for row in batch.collect()])
        )
        .option("checkpointLocation", str(place.folder / "plain"))
        .start()
    )
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    assert seen == [["a", "b"], ["c", "d"], ["e"]]


class Unpicklable(Shelf):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.open = (folder / "open").open("w")


class Shapeless(Shelf):
    schema = 7  # type: ignore[assignment]


class Odd(Shelf):
    schema = "id VARIANT"


@pytest.mark.parametrize(
    ("kind", "options", "error"),
    [
        (Unpicklable, {}, SourceContractViolated),
        (Shapeless, {}, SourceContractViolated),
        (Odd, {}, InvalidColumn),
        (Shelf, {"max_rows_per_batch": 0}, ConfigurationError),
        (Shelf, {"poll_seconds": -1}, ConfigurationError),
        (Shelf, {"pipeline_id": "shelf"}, ContradictoryOptions),
    ],
)
def test_what_cannot_be_is_refused_before_a_query_starts(
    spark: Any, tmp_path: Path, kind: Any, options: dict[str, Any], error: type[OncewardError]
):
    with pytest.raises(error):
        kind(tmp_path).stream(spark, **options)


def into_files(
    rows: DataFrame, folder: Path, mode: str = "append", function: Any = None
) -> OncewardError | None:
    """Run a query into files below ``folder`` until it ends; return its error."""
    sink = ow.FileSink(
        path=folder / "out", pipeline_id="p", ledger=ow.FolderLedger(folder / "ledger")
    )
    query = (
        rows.writeStream.foreachBatch(function or sink)
        .outputMode(mode)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    with suppress(StreamingQueryException):
        query.awaitTermination()
    return ow.error_of(query)


@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful, replayed"])
@pytest.mark.parametrize("interval", [10, 2], ids=["one each", "compacted"])
def test_a_logged_file_that_is_gone_is_named_and_not_left_out(
    spark: SparkSession,
    tmp_path: Path,
    stateful: bool,
    interval: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """Removed, or its disk is not mounted. Spark plans the batch anew without it, silently."""
    # Of a log that has been compacted the end is read, where the batch's own entries are
    monkeypatch.setattr(file_sources, "_TAIL_BYTES", 64)
    source = tmp_path / "a source"
    source.mkdir()

    def run() -> OncewardError | None:
        rows = spark.readStream.schema("n int").option("maxFilesPerTrigger", 2).json(str(source))
        rows = rows.groupBy("n").count().select("n") if stateful else rows
        return into_files(rows, tmp_path, "update" if stateful else "append")

    def written() -> list[int]:
        return sorted(row.n for row in ow.read_files(spark, tmp_path / "out").collect())

    spark.conf.set("spark.sql.streaming.fileSource.log.compactInterval", interval)
    try:
        for n in range(1, 5):
            (source / f"{n} %.json").write_text(json.dumps({"n": n}) + "\n")
            os.utime(source / f"{n} %.json", (n, n))
        assert run() is None
        (source / "5 %.json").write_text(json.dumps({"n": 5}) + "\n")
        if stateful:
            newest = max(
                int(each.name) for each in (tmp_path / "checkpoint/commits").glob("[0-9]*")
            )
            for name in (f"{newest}", f".{newest}.crc"):
                (tmp_path / "checkpoint" / "commits" / name).unlink()
            lost, kept = source / "4 %.json", source / "3 %.json"
        else:
            (source / "6 %.json").write_text(json.dumps({"n": 6}) + "\n")
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(ow.FileSink, "__call__", lambda *_: 1 / 0)
                run()
            lost, kept = source / "6 %.json", source / "5 %.json"
        there = lost.read_text()
        lost.unlink()
        error = run()
        assert type(error) is SourceFileMissing
        assert error.details["files"] == [lost.as_uri()]
        assert kept.exists()
        lost.write_text("")
        error = run()
        assert type(error) is SourceFileMissing
        assert "are empty" in error.message
        assert error.details["files"] == [lost.as_uri()]
        lost.write_text(there)
        assert run() is None
        assert set(written()) == {1, 2, 3, 4, 5} | ({6} if not stateful else set())
        # going on without
        spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
        lost.unlink()
        assert run() is None
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")
        spark.conf.unset("spark.sql.streaming.fileSource.log.compactInterval")


def test_a_stream_that_is_used_twice_hides_no_other_ones_files(
    spark: SparkSession, tmp_path: Path
):
    """Spark numbers its logs by stream, and offsets by place in the plan."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()

    def put(*names: str) -> None:
        for name in names:
            (tmp_path / name[:-1] / name).write_text(name)

    def run(function: Any = None) -> OncewardError | None:
        one, two = (spark.readStream.text(str(tmp_path / name)) for name in ("one", "two"))
        return into_files(
            one.where("value < 'p'").union(one.where("value >= 'p'")).union(two),
            tmp_path,
            function=function,
        )

    # The second place has other numbers than the second log
    for names in (("one0", "two0"), ("two1",), ("two2",), ("one1", "two3")):
        put(*names)
        assert run() is None
    put("two4", "two5")
    run(lambda frame, _: 1 / 0)
    (tmp_path / "two" / "two4").unlink()
    error = run()
    assert type(error) is SourceFileMissing
    assert error.details["files"] == [(tmp_path / "two" / "two4").as_uri()]
    put("two4")
    assert run() is None
    found = {row.value for row in ow.read_files(spark, tmp_path / "out").collect()}
    assert found == {"one0", "one1", *(f"two{n}" for n in range(6))}


@pytest.mark.parametrize("change", ["gone, which may be", "gone", "left out"])
def test_a_logged_file_may_be_gone_where_its_source_says_so(
    spark: SparkSession, tmp_path: Path, change: str
):
    """Of two sources one says so. A file that the source's new options leave out is not gone."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for n in (1, 2):
            (tmp_path / name / f"{n}.txt").write_text(f"{name} {n}\n")

    def run(function: Any = None, **options: Any) -> OncewardError | None:
        reader = spark.readStream.format("text")
        one = reader.option("ignoreMissingFiles", True).load(str(tmp_path / "one"))
        two = spark.readStream.format("text").options(**options).load(str(tmp_path / "two"))
        return into_files(one.union(two), tmp_path, function=function)

    run(lambda frame, _: 1 / 0)
    if change == "left out":
        error = run(pathGlobFilter="1*")
        assert type(error) is SourceFileMissing
        assert "its options were changed" in error.next_step
        assert run() is None
        return
    gone = tmp_path / ("one" if "may be" in change else "two") / "2.txt"
    gone.unlink()
    error = run()
    assert (type(error) is SourceFileMissing) is ("may be" not in change)
    if "may be" in change:
        found = {row.value for row in ow.read_files(spark, tmp_path / "out").collect()}
        assert found == {"one 1", "two 1", "two 2"}


@pytest.mark.parametrize("age", [None, "3650d"])
def test_files_that_spark_never_reads_are_warned_of(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, age: str | None
):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "new.txt").write_text("new\n")

    def run() -> set[str]:
        reader = spark.readStream.option("maxFileAge", age) if age else spark.readStream
        assert into_files(reader.text(str(tmp_path / "in")), tmp_path) is None
        return {row.value for row in ow.read_files(spark, tmp_path / "out").collect()}

    run()
    old = tmp_path / "in" / "with the time it had.txt"
    old.write_text("old\n")
    os.utime(old, (1_700_000_000, 1_700_000_000))
    assert run() == ({"new", "old"} if age else {"new"})
    warned = [text for text in caplog.messages if "maxFileAge" in text]
    assert len(warned) == (0 if age else 1), "a run without files has no batch"


@pytest.mark.lengthy("ci")
def test_files_that_go_in_mid_run_are_missed_too(spark: SparkSession, tmp_path: Path):
    """Spark lists all of them at once, and plans a few at a time."""
    for n in range(4):
        (tmp_path / f"{n}.txt").write_text(f"{n}\n")
        os.utime(tmp_path / f"{n}.txt", (n + 1, n + 1))
    sinks = (
        ow.FileSink(
            path=tmp_path / "out", pipeline_id="p", ledger=ow.FolderLedger(tmp_path / "ledger")
        ),
        ow.KafkaSink(
            bootstrap_servers="127.0.0.1:1", topic="t", pipeline_id="p", delivery="at_least_once"
        ),
    )
    for sink in sinks:
        (tmp_path / "3.txt").write_text("3\n")
        os.utime(tmp_path / "3.txt", (4, 4))

        def batch(frame: DataFrame, number: int, sink: Any = sink) -> None:
            if number == 0 and isinstance(sink, ow.KafkaSink):
                (tmp_path / "3.txt").unlink()
                return
            if number == 3 or isinstance(sink, ow.FileSink):
                sink(frame, number)
            if number == 0:
                (tmp_path / "3.txt").unlink()

        frame = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
        folder = tmp_path / type(sink).__name__
        error = into_files(frame.load(f"{tmp_path}/*.txt"), folder, function=batch)
        assert type(error) is SourceFileMissing
        assert error.details["files"] == [(tmp_path / "3.txt").as_uri()]


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize("stateful", [False, True], ids=["stateless", "stateful"])
def test_a_checkpoint_without_its_last_entries_gives_no_files_away(
    spark: SparkSession, tmp_path: Path, stateful: bool
):
    """A power failure takes what was written last and not synced: Spark plans the batch that the
    ledger has anew, by the same number, with whatever it finds now.
    """
    source = tmp_path / "source"
    source.mkdir()

    def run() -> OncewardError | None:
        reader = spark.readStream.option("maxFilesPerTrigger", 1).option("latestFirst", True)
        rows = reader.text(str(source))
        rows = rows.groupBy("value").count().select("value") if stateful else rows
        return into_files(rows, tmp_path, "update" if stateful else "append")

    def lose(number: int) -> None:
        for name in ("offsets", "commits", "sources/0"):
            for file in (tmp_path / "checkpoint" / name).glob(f"*{number}*"):
                file.unlink()

    for name in ("one", "two"):
        (source / f"{name}.txt").write_text(f"{name}\n")
        assert run() is None
    lose(1)
    # The same files: a replay
    assert run() is None
    lose(1)
    (source / "three.txt").write_text("three\n")
    error = run()
    assert type(error) is CheckpointRewound
    assert error.details["files"] == [(source / "three.txt").as_uri()]
