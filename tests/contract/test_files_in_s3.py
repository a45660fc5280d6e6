"""The contract over files in a real S3 store, where nothing can be renamed: by lists, read by
pyarrow's own client.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset as dataset
import pytest
from file_kits import FileKit, dying_before_the_note_goes
from pyarrow import fs

import onceward as ow
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.errors import ConfigurationError, PreparedDataLost, TargetUnreachable
from onceward.files import manifest
from onceward.spark.files.file_system import S3Files, files_at
from onceward_testing import LocalS3
from onceward_testing.sink_contract import (
    FIRST,
    SECOND,
    Died,
    Process,
    TwoPhaseContract,
    TwoPhaseKit,
    assert_holds,
    batch,
    run_batch,
)
from onceward_verify.files import FilesQuestion, check_files

MAGIC = {
    "spark.sql.sources.commitProtocolClass": "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol",
    "spark.sql.parquet.output.committer.class": "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter",
}


class S3Kit(FileKit):
    """Read without anything of ours or of Spark's: the lists, and the files that they name."""

    def __init__(self, spark: Any, s3: LocalS3, folder: Path) -> None:
        self.path = f"{s3.url}/{folder.name}/out"
        self._store = fs.S3FileSystem(
            access_key=s3.user,
            secret_key=s3.secret,
            endpoint_override=s3.endpoint,
            region="us-east-1",
        )
        super().__init__(spark, folder, "manifest", "parquet", partitioned=True)

    def new_sink(self) -> ow.FileSink:
        self.settings = {
            "path": self.path,
            "ledger": ow.FolderLedger(self.folder / "ledger"),
            **self.settings,
        }
        return super().new_sink()

    def objects(self, below: str) -> list[str]:
        place = f"{self.path.removeprefix('s3a://')}/{below}"
        found = self._store.get_file_info(
            fs.FileSelector(place, recursive=True, allow_not_found=True)
        )
        return sorted(info.path for info in found if info.type == fs.FileType.File)

    def written_at(self, path: str) -> int:
        (found,) = self._store.get_file_info([f"{self.path.removeprefix('s3a://')}/{path}"])
        return int(found.mtime_ns)

    def published(self) -> list[str]:
        lists = [
            self._store.open_input_stream(path).read().decode()
            for path in self.objects(manifest.MANIFESTS)
        ]
        return [line.removeprefix("s3a://") for text in lists for line in text.splitlines()]

    def values(self) -> Counter[str]:
        tables = [
            dataset.dataset(path, format="parquet", filesystem=self._store).to_table()
            for path in self.published()
        ]
        return Counter(value for table in tables for value in table.column("value").to_pylist())


@pytest.fixture
def kit(spark: Any, s3: LocalS3, tmp_path: Path) -> S3Kit:
    return S3Kit(spark, s3, tmp_path)


@pytest.mark.lengthy("chaos")
def test_a_death_behind_the_list_leaves_nothing_hidden(
    kit: S3Kit, monkeypatch: pytest.MonkeyPatch
):
    """The list is there, its note as well: the next start takes the note away, and drops nothing
    that is published.
    """

    with monkeypatch.context() as patch:
        dying_before_the_note_goes(patch, S3Files)
        with pytest.raises(Died):
            run_batch(kit, 0, FIRST)
    assert kit.values() == Counter(FIRST)
    assert len(kit.objects("_onceward/prepared")) == 1
    run_batch(kit, 1, SECOND)
    assert_holds(kit, FIRST + SECOND, 1)
    assert kit.objects("_onceward/prepared") == []


@pytest.mark.once_more
class TestInS3(TwoPhaseContract):
    @pytest.fixture
    def kit(self, kit: S3Kit) -> TwoPhaseKit:
        return kit


@pytest.mark.lengthy("chaos")
def test_a_committer_that_renames_nothing(kit: S3Kit, spark: Any):
    """As it is set for S3: tasks begin uploads that the job ends, and nothing is copied."""
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    of_s3a = {
        "fs.s3a.committer.name": "magic",
        "mapreduce.outputcommitter.factory.scheme.s3a": "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory",
    }
    for name, value in MAGIC.items():
        spark.conf.set(name, value)
    for name, value in of_s3a.items():
        hadoop.set(name, value)
    try:
        run_batch(kit, 0, FIRST)
        dead = Process(kit).open()
        dead.stage(kit.frame(["never decided"]))
        run_batch(kit, 1, SECOND)
    finally:
        for name in MAGIC:
            spark.conf.unset(name)
        for name in of_s3a:
            hadoop.unset(name)
    assert_holds(kit, FIRST + SECOND, 1)
    assert sorted(kit.published()) == kit.objects("_onceward/files"), "something is left over"


def test_read_by_spark(kit: S3Kit, spark: Any):
    """By the lists, with the columns of all folders but the attempts'; and by nobody who lists
    folders.
    """
    with pytest.raises(ConfigurationError, match="no file sink has written"):
        ow.read_files(spark, kit.path)
    kit.settings["partition_by"] = ["initial"]
    target = kit.new_target()
    target.open(batch(0))
    assert ow.read_files(spark, kit.path, schema="value string").columns == [
        "value",
        "batch",
        "initial",
    ]
    with pytest.raises(ConfigurationError, match="nothing is published"):
        ow.read_files(spark, kit.path)
    run_batch(kit, 0, FIRST)
    decided = Process(kit).open()
    decided.decide(SECOND)
    found = ow.read_files(spark, kit.path)
    assert found.columns == ["value", "batch", "initial"]
    rows = found.collect()
    assert Counter(row.value for row in rows) == Counter(FIRST)
    assert {row.batch for row in rows} == {"contract@0000000000"}
    assert all(row.initial == row.value[0] for row in rows)
    decided.finish()
    assert ow.read_files(spark, kit.path).where("batch > 'contract@0000000000'").count() == len(
        SECOND
    )
    assert found.count() == len(FIRST), (
        "a frame is of the batches that were there when it was made"
    )


def test_prepared_files_that_are_gone_are_named(kit: S3Kit):
    decided = Process(kit).open()
    decided.decide(FIRST)
    files = files_at(kit.path, renames=False)
    gone = kit.objects("_onceward/files")[0]
    files.remove(gone.partition("/out/")[2])
    with pytest.raises(PreparedDataLost):
        run_batch(kit, 0, FIRST)
    assert kit.values() == Counter()


def test_a_store_that_is_down_is_waited_for_or_named(kit: S3Kit, spark: Any):
    """Before anybody is fenced."""
    ledger = ow.FolderLedger(kit.folder / "ledger")
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    for name, value in {
        "endpoint": "http://127.0.0.1:9",
        "attempts.maximum": "1",
        "retry.limit": "1",
    }.items():
        hadoop.set(f"fs.s3a.bucket.nobody.{name}", value)
    for name in ("access.key", "secret.key", "endpoint.region"):
        hadoop.set(f"fs.s3a.bucket.nobody.{name}", "us-east-1")
    nowhere = ow.FileSink(
        path="s3a://nobody/out", pipeline_id="contract", layout="manifest", ledger=ledger
    )
    with pytest.raises(TargetUnreachable, match="s3a://nobody"):
        nowhere.new_target().open(batch(0))
    once = MicroBatches(kit.new_target(), SinkPolicy(kit.pipeline))
    once.process([Write(kit.frame(FIRST))], batch(0))
    assert_holds(kit, FIRST, 0)


def test_what_is_listed_kept_and_removed(kit: S3Kit):
    files = files_at(kit.path, renames=False)
    assert isinstance(files, S3Files)
    assert [files.put_if_absent("full/one", text) for text in ("a", "größe")] == ["a", "a"]
    files.put_if_absent("full/deep/part", "four")
    files.put_if_absent("full/_hidden/part", "x")
    assert files.listed("full") == {"deep/part": 4, "one": 1}
    assert files.listed("nothing") is None
    assert files.names("full") == ["_hidden", "deep", "one"]
    assert files.names("nothing") == []
    assert (files.size("full/one"), files.size("nothing"), files.text("nothing")) == (
        1,
        None,
        None,
    )
    before = kit.written_at("full/one")
    while kit.written_at("full/one") == before:
        files.renew("full/one")
    files.renew("nothing")
    assert (files.text("full/one"), files.text("nothing")) == ("a", None)
    with pytest.raises(NotImplementedError):
        files.move("full/one", "full/two")
    for path in ("full", "nothing", "full"):
        files.remove(path)
    assert kit.objects("") == []


def test_the_checker_proves_it_by_the_lists_alone(kit: S3Kit, s3: LocalS3):
    """With a client of its own; a list that is gone, or a file, is named."""
    kit.settings["partition_by"] = None
    run_batch(kit, 0, FIRST)
    run_batch(kit, 1, SECOND)
    where = f"{kit.path.removeprefix('s3a://')}?endpoint_override={s3.endpoint.removeprefix('http://')}&scheme=http"
    question = FilesQuestion(
        root=f"s3://{s3.user}:{s3.secret}@{where}&region=us-east-1",
        pipeline_id="contract",
        ledger=kit.folder / "ledger",
    )
    well = check_files(question)
    assert (well.verdict, well.facts["ledger"]["records"]) == (
        "exactly_once",
        len(FIRST + SECOND),
    ), well
    assert s3.secret not in str(well)
    files = files_at(kit.path, renames=False)
    (first, *_) = (path.partition("/out/")[2] for path in kit.objects("_onceward/files"))
    files.remove(first)
    assert [one.name for one in check_files(question).anomalies] == ["lost-write"]
    files.remove(f"{manifest.MANIFESTS}/contract@0000000000")
    assert {one.name for one in check_files(question).anomalies} == {"lost-write"}
