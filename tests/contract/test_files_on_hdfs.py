"""The contract over files on a real HDFS: its own renames, and Spark's own way of writing
there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_kits import FileKit
from pyspark.errors import AnalysisException

import onceward as ow
from onceward.errors import TargetUnreachable, UnsupportedQuery
from onceward.spark.batch.refused_modes import FILE_MANAGER
from onceward.spark.files.file_system import HadoopFiles, files_at
from onceward_testing.sink_contract import TwoPhaseContract, TwoPhaseKit, batch
from support.local_hdfs import LocalHdfs

pytestmark = pytest.mark.slow  # servers of its own


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHdfs]:
    with LocalHdfs(tmp_path_factory.mktemp("hdfs")) as servers:
        yield servers


class HdfsKit(FileKit):
    """Read by Spark, through a cache of no kind."""

    def __init__(self, spark: Any, hdfs: LocalHdfs, folder: Path, layout: str) -> None:
        self.path = f"{hdfs.url}/{folder.name}/out"
        super().__init__(spark, folder, layout, "parquet", partitioned=layout == "flat")
        self.settings |= {"path": self.path, "ledger": ow.FolderLedger(folder / "ledger")}

    def new_sink(self) -> ow.FileSink:
        self.settings = {
            "path": self.path,
            "ledger": ow.FolderLedger(self.folder / "ledger"),
            **self.settings,
        }
        return super().new_sink()

    def values(self) -> Counter[str]:
        try:
            found = self._spark.read.parquet(self.path).select("value").collect()
        except AnalysisException:
            return Counter()  # no path, or no file yet
        return Counter(row.value for row in found)


@pytest.fixture(params=["batches", "flat"])
def kit(
    request: pytest.FixtureRequest, spark: Any, hdfs: LocalHdfs, tmp_path: Path
) -> TwoPhaseKit:
    return HdfsKit(spark, hdfs, tmp_path, request.param)


class TestOnHdfs(TwoPhaseContract):
    pass


def test_a_file_system_that_is_not_there_is_named(spark: Any, tmp_path: Path):
    ledger = ow.FolderLedger(tmp_path / "ledger")
    sink = ow.FileSink(
        path="hdfs://no-such-host.invalid/out", pipeline_id="nowhere", ledger=ledger
    )
    with pytest.raises(TargetUnreachable, match="no-such-host"):
        sink.new_target().open(batch(0))


@pytest.fixture
def files(spark: Any, hdfs: LocalHdfs, tmp_path: Path) -> HadoopFiles:
    found = files_at(f"{hdfs.url}/{tmp_path.name}")
    assert isinstance(found, HadoopFiles)
    for name, text in (
        ("full/deep/part", "four"),
        ("full/_hidden/part", "x"),
        ("full/.part.crc", "x"),
        ("file", "old"),
    ):
        stream = found._system.create(found._at(name), True)
        stream.write(bytearray(text.encode()))
        stream.close()
    found.make("empty")
    return found


@pytest.mark.parametrize("target", ["empty", "file", "full"])
@pytest.mark.parametrize("source", ["full", "full/deep/part", "file"])
def test_a_move_neither_replaces_nor_nests(files: HadoopFiles, source: str, target: str):
    before = files.listed("")
    assert files.move(source, target) is False
    assert files.listed("") == before
    assert files.move(source, "new") is True
    assert files.move(source, "new") is False
    assert files.move(source, "another") is False, "the source is gone"


def test_what_is_listed_and_removed(files: HadoopFiles):
    assert files.listed("full") == {"deep/part": 4}
    assert files.listed("empty") == {}
    assert files.listed("nothing") is None
    assert files.listed("file") is None
    assert files.names("full") == [".part.crc", "_hidden", "deep"]
    assert files.names("nothing") == []
    assert (files.size("file"), files.size("nothing")) == (3, None)
    for path in ("full", "file", "nothing", "full"):
        files.remove(path)
    assert files.names("") == ["empty"]


def test_what_is_renewed_is_young(files: HadoopFiles):
    def written_at() -> int:
        return int(files._system.getFileStatus(files._at("file")).getModificationTime())

    files._system.setTimes(files._at("file"), 1, -1)
    assert written_at() == 1
    files.renew("file")
    files.renew("nothing")
    assert written_at() > 1
    assert files.size("file") == 3


def test_what_is_kept_once_is_never_replaced(files: HadoopFiles, monkeypatch: pytest.MonkeyPatch):
    """Also where somebody else keeps something just then, and neither has found anything there."""
    assert [files.put_if_absent("full/one", text) for text in ("a", "größe")] == ["a", "a"]
    move = HadoopFiles.move

    def later(ours: HadoopFiles, source: str, target: str) -> bool:
        monkeypatch.setattr(HadoopFiles, "move", move)
        assert files.put_if_absent("full/two", "the other's: größe") == "the other's: größe"
        return move(ours, source, target)

    monkeypatch.setattr(HadoopFiles, "move", later)
    assert files.put_if_absent("full/two", "ours") == "the other's: größe"
    assert files.names("full") == [".part.crc", "_hidden", "deep", "one", "two"]


def test_a_checkpoint_there_is_not_written_as_on_a_local_disk(
    spark: Any, hdfs: LocalHdfs, tmp_path: Path
):
    """The session of the tests has ``local_disk``; here a rename does not replace a file."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"value": "a"}\n')
    ledger = ow.FolderLedger(tmp_path / "ledger")
    sink = ow.FileSink(path=f"{tmp_path}/out", pipeline_id="p", ledger=ledger, format="json")

    def run() -> None:
        rows = spark.readStream.schema("value string").json(f"{tmp_path}/in")
        writer = rows.writeStream.option("checkpointLocation", f"{hdfs.url}/{tmp_path.name}/c")
        ow.wait(writer.trigger(availableNow=True).foreachBatch(sink).start())

    with pytest.raises(UnsupportedQuery, match="checkpointFileManagerClass"):
        run()
    setting = spark.conf.get(FILE_MANAGER)
    spark.conf.unset(FILE_MANAGER)  # as it says
    try:
        run()
    finally:
        spark.conf.set(FILE_MANAGER, setting)
    assert [row.value for row in spark.read.json(f"{tmp_path}/out").collect()] == ["a"]
