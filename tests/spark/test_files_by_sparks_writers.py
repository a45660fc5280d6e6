"""Files that Spark's own writers make: what is counted, what readers find, and what Spark does
twice.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import onceward as ow
from fault_table import fired
from onceward import events
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import (
    BatchNotWritten,
    ComputationsMixed,
    ConfigurationError,
    InvalidColumn,
    OncewardError,
    RowRefused,
    SendFailed,
)
from onceward.spark.batch import write_errors
from onceward.spark.batch.shuffles import block_manager
from onceward_testing.sink_contract import batch
from onceward_verify.files import FilesQuestion, check_files

ROWS = 300


def sink(folder: Path, **settings: Any) -> ow.FileSink:
    return ow.FileSink(**{"path": folder / "out", "pipeline_id": "files", **settings})


def write(sink: ow.FileSink, *frames: DataFrame, attempts: int = 3) -> LedgerRecord:
    """Batch 0, by the engine; its record."""
    target = sink.new_target()
    policy = SinkPolicy(sink.settings.policy.pipeline, batch_attempts=attempts)
    MicroBatches(target, policy).process(
        [sink._checked(frame, None) for frame in frames], batch(0)
    )
    newest = target.peek()
    assert newest is not None
    return newest


def rows(spark: SparkSession) -> DataFrame:
    return spark.range(0, ROWS, 1, 3).selectExpr("CAST(id AS STRING) AS value", "id % 3 AS third")


def test_readers_find_the_rows_and_their_folders(spark: SparkSession, tmp_path: Path):
    record = write(sink(tmp_path, partition_by="third"), rows(spark).repartition(2))
    assert record.records == ROWS
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.columns == ["value", "batch", "third"]
    assert found.where("third = 1").count() == ROWS // 3
    assert [row.batch for row in found.select("batch").distinct().collect()] == [
        "files@0000000000"
    ]
    others = dataset.dataset(
        str(tmp_path / "out"), format="parquet", partitioning="hive"
    ).to_table()
    assert Counter(others.column("value").to_pylist()) == Counter(
        str(number) for number in range(ROWS)
    )
    (committable,) = record.outputs["files"].data["committables"]
    there = {
        path.relative_to(tmp_path / "out" / committable["to"]): path.stat().st_size
        for path in visible(tmp_path)
    }
    assert there == {Path(name): size for name, size in committable["files"].items()}


def visible(folder: Path) -> list[Path]:
    every = (folder / "out").rglob("part-*")
    return sorted(path for path in every if "_onceward" not in path.relative_to(folder).parts)


@pytest.mark.parametrize("layout", ["batches", "flat"])
@pytest.mark.parametrize("file_format", ["parquet", "orc", "json", "csv", "text", "avro"])
def test_every_format(spark: SparkSession, tmp_path: Path, file_format: str, layout: str):
    options = {"header": True} if file_format == "csv" else {}
    made = sink(tmp_path, format=file_format, layout=layout, partition_by="third", options=options)
    record = write(made, rows(spark), rows(spark).where("third = 0"))
    assert record.records == ROWS + ROWS // 3
    assert [frame.records for frame in record.frames or ()] == [ROWS, ROWS // 3]
    found = spark.read.options(**options).format(file_format).load(str(tmp_path / "out"))
    assert found.count() == record.records
    assert found.where("third = 0").count() == 2 * (ROWS // 3)


def test_a_null_has_sparks_own_folder(spark: SparkSession, tmp_path: Path):
    write(
        sink(tmp_path, partition_by="third", layout="flat"),
        spark.sql("SELECT 'a' AS value, CAST(NULL AS INT) AS third"),
    )
    assert [row.third for row in spark.read.parquet(str(tmp_path / "out")).collect()] == [None]


def test_names_that_have_to_be_escaped(spark: SparkSession, tmp_path: Path):
    names = ["a/b", "a b", "a%2Fb", "a=b", "ä:é"]
    frame = spark.createDataFrame([(name, name) for name in names], "value string, name string")
    write(sink(tmp_path, partition_by="name", layout="flat"), frame)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row.value: row.name for row in found} == {name: name for name in names}


def test_a_name_that_does_not_come_back_is_refused(spark: SparkSession, tmp_path: Path):
    """Readers pass over the one; of the other its bytes are lost, as of all text that is none."""
    for name in ("'x._COPYING_'", "CAST(X'ff' AS STRING)"):
        with pytest.raises(RowRefused, match="partition column"):
            write(
                sink(tmp_path, partition_by="name"),
                spark.sql(f"SELECT 1 AS value, {name} AS name"),
            )
        assert visible(tmp_path) == []


@pytest.mark.parametrize("value", ["repeat('x', 300)", "repeat('%', 90)", "concat('a', char(0))"])
def test_a_value_that_can_name_no_folder_is_the_rows_fault(
    spark: SparkSession, tmp_path: Path, value: str
):
    """The file system refuses the folder; another start would meet the same row."""
    with pytest.raises(RowRefused, match="partition column 'name'"):
        write(
            sink(tmp_path, partition_by="name"), spark.sql(f"SELECT 1 AS value, {value} AS name")
        )
    assert visible(tmp_path) == []


def test_a_path_is_taken_as_it_stands(spark: SparkSession, tmp_path: Path):
    """Nothing in it is escaped, in a path or in a URI, nor by the ledger, nor by the checker."""
    for number, start in enumerate(("", "file:", "file://", "file://localhost")):
        folder = tmp_path / f"{number} a%20b#c+d;e"
        write(
            sink(tmp_path, path=f"{start}{folder}", partition_by="third"), rows(spark).coalesce(1)
        )
        assert sorted(path.name for path in folder.iterdir()) == [
            "_onceward",
            "batch=files@0000000000",
        ]
        assert (folder / "_onceward" / "ledger" / "files").is_dir()
        assert check_files(FilesQuestion(root=folder, pipeline_id="files")).not_covered == []
    assert spark.read.parquet(str(folder)).count() == ROWS
    assert len(list(tmp_path.iterdir())) == 4


def test_a_path_that_the_jvm_cannot_write_is_the_settings_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As in a JVM without a locale. HDFS has its names in UTF-8 whatever that is."""
    monkeypatch.setattr(write_errors, "_encoding", lambda _: "ANSI_X3.4-1968")
    frame = rows(spark)
    for path in (tmp_path / "\xe9t\xe9", f"{tmp_path}/\xe9t\xe9"):
        with pytest.raises(ConfigurationError, match=r"this JVM cannot write .*ANSI_X3.4-1968"):
            sink(tmp_path, path=path)._checked(frame, None)
    sink(tmp_path)._checked(frame, None)
    hdfs = sink(tmp_path, path="hdfs://localhost:1/\xe9t\xe9", ledger=ow.FolderLedger(tmp_path))
    hdfs._checked(frame, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("layout", ["batches", "manifest"])
def test_a_path_is_no_pattern_where_it_is_read(spark: SparkSession, tmp_path: Path, layout: str):
    """Spark's readers take it for one, and read the rows of another path."""
    for number, name in enumerate(("a1bc", "a[1]{b,x}?", "a*\\d", "a}", "ab")):
        frame = spark.createDataFrame([(number, "{x}[y]*?}\\")], "number int, part string")
        path = f"{tmp_path}/{name}"
        write(sink(tmp_path, path=path, layout=layout, partition_by="part"), frame)
    for number, name in enumerate(("a1bc", "a[1]{b,x}?", "a*\\d", "a}", "ab")):
        (row,) = ow.read_files(spark, f"{tmp_path}/{name}").collect()
        assert (row["number"], row["part"]) == (number, "{x}[y]*?}\\")


def test_a_new_file_after_so_many_rows(spark: SparkSession, tmp_path: Path):
    write(sink(tmp_path, max_records_per_file=30), rows(spark).coalesce(1))
    assert len(visible(tmp_path)) == 10


def test_files_of_about_a_size(spark: SparkSession, tmp_path: Path):
    """In the first batch by a guess, from then on by what the batch before has come to, also in a
    new process.
    """
    frame = spark.range(20_000).selectExpr("uuid() AS value").coalesce(1)
    wanted = 200_000
    sizes: list[list[int]] = []
    for number in range(3):
        target = sink(tmp_path, target_file_size_bytes=wanted, format="json").new_target()
        MicroBatches(target, SinkPolicy(target._policy.pipeline)).process(
            [Write(frame)], batch(number)
        )
        newest = target.peek()
        assert newest is not None
        (committable,) = newest.outputs["files"].data["committables"]
        sizes.append(sorted(committable["files"].values()))
    total = sum(sizes[0])
    assert total > 4 * wanted
    assert len(sizes[0]) != len(sizes[1]), "the guess was no worse than the knowledge"
    for later in sizes[1:]:
        assert len(later) == -(-total // wanted)
        assert all(0.95 * wanted < size < 1.05 * wanted for size in later[1:]), later
    fewer = sink(
        tmp_path, target_file_size_bytes=wanted, format="json", max_records_per_file=1_000
    ).new_target()
    MicroBatches(fewer, SinkPolicy(fewer._policy.pipeline)).process([Write(frame)], batch(3))
    assert len(fewer.peek().outputs["files"].data["committables"][0]["files"]) == 20


def test_a_column_that_a_format_cannot_hold_is_named(spark: SparkSession, tmp_path: Path):
    with pytest.raises(InvalidColumn, match="`array`"):
        write(sink(tmp_path, format="csv"), spark.sql("SELECT array(1) AS array"))
    assert visible(tmp_path) == []


def test_a_disk_that_refuses_is_named(spark: SparkSession, tmp_path: Path):
    made = sink(tmp_path)
    target = made.new_target()
    newest = target.open(batch(0))
    attempt = target.begin(newest, batch(0))
    (tmp_path / "out" / "_onceward" / "prepared").rmdir()
    (tmp_path / "out" / "_onceward" / "prepared").write_text("no folder")
    with pytest.raises(SendFailed, match="prepared"):
        attempt.write(Write(rows(spark)), batch(0))


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_file_that_is_read_is_not_taken_for_the_target(
    spark: SparkSession, tmp_path: Path, *, is_gone: bool
):
    rows(spark).coalesce(1).write.parquet(str(tmp_path / "in"))
    frame = spark.read.parquet(str(tmp_path / "in"))
    (file,) = (tmp_path / "in").glob("part-*")
    if is_gone:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-9] + b"xxxxxxxxx")
    with pytest.raises(SendFailed, match=f"query reads cannot be read: .*{file.name}"):
        write(sink(tmp_path), frame)


@pytest.mark.fault("stage-retried")
def test_a_shuffle_lost_while_files_are_written(spark: SparkSession, tmp_path: Path):
    """Spark computes what was lost again, and of a plan that is not repeatable otherwise: the
    batch runs again.
    """
    disks = block_manager(spark.sparkContext).diskBlockManager()
    folders = [str(folder.getPath()) for folder in disks.localDirs()]
    flag = str(tmp_path / "lost")

    @f.udf("string")
    def drawn() -> str:
        return uuid.uuid4().hex

    @f.udf("string")
    def lose_the_shuffle(value: str) -> str:
        # In the first task that gets here, whichever it is: others are still to read
        if not os.path.exists(flag):
            for file in [file for folder in folders for file in Path(folder).glob("*/shuffle_*")]:
                file.unlink(missing_ok=True)
            Path(flag).touch()
        return value

    lots = rows(spark).withColumn("lot", drawn.asNondeterministic()()).repartition(4, "lot")
    frame = lots.select(lose_the_shuffle("value").alias("value")).repartition(3)
    failed: list[Any] = []
    stop = events.probe(
        lambda e: (
            failed.append(type(e.error)) if (e.step, e.phase) == (events.SEND, "failed") else None
        )
    )
    try:
        record = write(sink(tmp_path), frame)
    finally:
        stop()
    fired(os.path.exists(flag), "the second stage never ran")
    assert failed == [ComputationsMixed]
    found = spark.read.parquet(str(tmp_path / "out"))
    assert Counter(row.value for row in found.collect()) == Counter(
        str(number) for number in range(ROWS)
    )
    assert record.records == ROWS


def test_a_query_that_is_stopped_has_not_failed(spark: SparkSession, tmp_path: Path):
    """In the middle of a batch: nothing of it is seen, and nothing of it is left after the next
    start.
    """

    @f.udf("string")
    def slowly(value: str) -> str:
        time.sleep(0.5)
        return value

    source = tmp_path / "in"
    source.mkdir()
    (source / "1.txt").write_text("\n".join(str(number) for number in range(200)))
    stream = spark.readStream.text(str(source))
    started: list[Any] = []
    stop = events.probe(
        lambda e: started.append(e) if (e.step, e.phase) == (events.SEND, "started") else None
    )
    try:
        slow = stream.select(slowly("value").alias("value")).writeStream.foreachBatch(
            sink(tmp_path)
        )
        query = slow.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        deadline = time.monotonic() + 100
        while not started and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)
        query.stop()
    finally:
        stop()
    assert query.exception() is None
    assert visible(tmp_path) == []
    quick = stream.writeStream.foreachBatch(sink(tmp_path)).option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    quick.trigger(availableNow=True).start().awaitTermination()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 200
    left = (tmp_path / "out" / "_onceward" / "prepared").iterdir()
    assert [path for path in left if path.suffix != ".published"] == []


@pytest.mark.lengthy("chaos")
def test_a_folder_restored_from_a_backup_goes_back_as_the_error_says(
    spark: SparkSession, tmp_path: Path
):
    """Ledger and files have lost the same batches: Spark runs them again."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    source.mkdir()

    def run(*numbers: int) -> OncewardError | None:
        for number in numbers:
            file = source / f"{number}.txt"
            file.write_text(f"{number}\n")
            os.utime(file, (1_700_000_000 + number,) * 2)
        query = (
            spark.readStream.option("maxFilesPerTrigger", 1)
            .text(str(source))
            .writeStream.option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(sink(tmp_path))
            .start()
        )
        with contextlib.suppress(StreamingQueryException):
            query.awaitTermination(120)
        return ow.error_of(query)

    assert run(0, 1) is None
    shutil.copytree(tmp_path / "out", tmp_path / "backup")
    assert run(2, 3) is None
    shutil.rmtree(tmp_path / "out")
    shutil.move(tmp_path / "backup", tmp_path / "out")
    error = run(4)
    assert isinstance(error, BatchNotWritten)
    commits, offsets = re.findall(r"(commits|offsets)/(\d+) and above", error.next_step)
    for folder, first in (commits, offsets):
        for number in range(int(first), 5):
            (checkpoint / folder / str(number)).unlink(missing_ok=True)
            (checkpoint / folder / f".{number}.crc").unlink(missing_ok=True)
    assert run() is None
    found = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert Counter(row.value for row in found) == Counter("01234")
