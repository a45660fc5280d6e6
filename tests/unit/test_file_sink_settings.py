"""What a file sink is told, and which frames it takes: refused by name before anything is
touched.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DateType,
    IntegerType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

import onceward as ow
from onceward import patience
from onceward.engine.two_phase import CommitResult
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    RowRefused,
    ServerMisconfigured,
    TargetUnreachable,
)
from onceward.files import manifest, reading, target
from onceward.files.publishing import Publisher, _must_be_read_back
from onceward.files.reading import reader_shape
from onceward.spark.files import file_system
from onceward.spark.files.file_system import HadoopFiles, LocalFiles, hidden
from support.errors import raises

KAFKA = ow.KafkaLedger("localhost:9092")


def fields(text: str) -> StructType:
    kinds = {
        kind.simpleString(): kind
        for kind in (StringType(), IntegerType(), ShortType(), DateType(), BinaryType())
    }
    kinds["nested"] = StructType().add("a", ArrayType(MapType(StringType(), ByteType())))
    kinds |= {kind.simpleString(): kind for kind in (TimestampType(), TimestampNTZType())}
    return StructType(
        [
            StructField(name, kinds[kind])
            for name, kind in (one.split() for one in text.split(", "))
        ]
    )


def sink(**settings: Any) -> ow.FileSink:
    return ow.FileSink(**{"path": "/somewhere/orders", "pipeline_id": "orders", **settings})


@pytest.mark.fault("files-cannot-rename")
@pytest.mark.parametrize(
    "path",
    ["s3a://bucket/orders", "gs://bucket/orders", "abfss://box@account/orders", "ftp://x/y"],
)
def test_a_file_system_that_cannot_rename_is_refused_by_name(path: str):
    with pytest.raises(ConfigurationError, match=path.partition(":")[0]) as refused:
        sink(path=path, ledger=KAFKA)
    assert "hdfs:" in str(refused.value)


def test_lists_that_readers_would_pass_over_are_refused_by_name():
    for hidden_one in ("_orders", ".orders"):
        with pytest.raises(ConfigurationError, match=f"pipeline_id='{hidden_one}'") as refused:
            sink(pipeline_id=hidden_one, layout="manifest")
        assert 'layout="batches"' in refused.value.next_step
        assert (
            sink(pipeline_id=hidden_one, layout="batches").settings.policy.pipeline == hidden_one
        )


def test_an_object_store_takes_lists():
    path = "s3a://bucket/orders"
    assert sink(path=path, ledger=KAFKA, layout="manifest").settings.path == path
    with pytest.raises(ConfigurationError) as refused:
        sink(path=path, ledger=KAFKA)
    assert 'layout="manifest"' in str(refused.value)
    with raises(ConfigurationError, "s3a:"):
        sink(path="gs://bucket/orders", ledger=KAFKA, layout="manifest")
    with raises(ConfigurationError):
        sink(path=path, layout="manifest")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"format": "xml"}, "format='xml'"),
        ({"layout": "piles"}, "layout='piles'"),
        ({"path": " "}, "path=' '"),
        ({"path": 5}, "path=5"),
        ({"pipeline_id": "a/b"}, "pipeline_id='a/b'"),
        ({"ledger": "/ledger"}, "ledger='/ledger'"),
        ({"commit_timeout_s": -1}, "commit_timeout_s=-1"),
        ({"max_records_per_file": 0}, "max_records_per_file=0"),
        ({"target_file_size_bytes": 0}, "target_file_size_bytes=0"),
        ({"options": {"path": "x"}}, "'path'"),
        ({"options": {"maxRecordsPerFile": 5}}, "max_records_per_file="),
        ({"options": {"mapreduce.fileoutputcommitter.algorithm.version": 2}}, "algorithm.version"),
        ({"options": {"compression": None}}, "compression"),
        ({"partition_by": "_day"}, "'_day'"),
        ({"partition_by": [""]}, "''"),
        ({"batch_column": ".batch"}, "'.batch'"),
        ({"batch_column": "a=b"}, "'='"),
        ({"batch_column": "a%20b"}, "'%'"),
        ({"batch_column": "a/b"}, "'/'"),
        ({"path": "hdfs://name/orders"}, "ledger="),
        ({"path": "file://data/orders"}, "file:///"),
        ({"path": "file:data/orders"}, "file:///"),
        ({"batch_attempts": 0}, "batch_attempts"),
    ],
)
def test_what_is_wrong_is_named(settings: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError) as refused:
        sink(**settings)
    assert named in str(refused.value)


@pytest.mark.parametrize("settings", [{"partition_by": ["day", "Day"]}, {"partition_by": "Batch"}])
def test_two_folders_of_one_name_are_refused(settings: dict[str, Any]):
    with pytest.raises(ContradictoryOptions):
        sink(**settings)
    sink(partition_by="Batch", batch_column="pile")
    sink(partition_by="batch", layout="flat")


def test_options_become_sparks_text():
    given = sink(
        options={"compression": "zstd", "header": True, "x": 5}, max_records_per_file=7
    ).settings.options
    assert given == {"compression": "zstd", "header": "true", "x": "5", "maxRecordsPerFile": "7"}


@pytest.mark.parametrize(
    "path",
    [
        "/data/orders",
        "file:/data/orders",
        "file:///data/orders",
        "file://localhost/data/orders",
        Path("/data/orders"),
    ],
)
def test_the_ledger_is_beside_the_files_and_hidden(path: Any):
    assert sink(path=path).settings.ledger == ow.FolderLedger("/data/orders/_onceward/ledger")


@pytest.mark.parametrize(
    ("schema", "settings", "named"),
    [
        ("value string", {"partition_by": "day"}, "'day'"),
        ("value string, BATCH string", {}, "'batch'"),
        ("value string, BATCH string", {"layout": "manifest"}, "'batch'"),
        ("value string, _attempt string", {"layout": "manifest"}, "'_attempt'"),
        ("day string", {"partition_by": "day"}, "partition_by"),
        ("value string, more string", {"format": "text"}, "value, more"),
        ("value int", {"format": "text"}, "value"),
        ("value string, Bytes binary", {"partition_by": "bytes"}, "'bytes'"),
        ("value string, at timestamp", {"partition_by": "at"}, "timestamp"),
        ("value string, bytes binary", {"format": "csv"}, "base64"),
        ("value string, small smallint", {"format": "avro"}, "column small is of type smallint"),
        ("value nested", {"format": "avro"}, "cast it to int"),
    ],
)
def test_a_frame_that_does_not_fit_is_named(schema: str, settings: dict[str, Any], named: str):
    with pytest.raises(InvalidColumn) as refused:
        target.check(fields(schema), sink(**settings).settings)
    assert named in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "settings"),
    [
        ("value string, Day date", {"partition_by": "day"}),
        ("value string, batch string", {"layout": "flat"}),
        ("value string, batch string", {"batch_column": "pile"}),
        ("value string, day date", {"format": "text", "partition_by": "day"}),
        ("value string, at timestamp_ntz", {"partition_by": "at"}),
        ("value string, bytes binary, at timestamp", {}),
        ("value int, small smallint", {"format": "avro", "partition_by": "small"}),
        ("value int, small smallint", {"format": "orc"}),
    ],
)
def test_a_frame_that_fits(schema: str, settings: dict[str, Any]):
    target.check(fields(schema), sink(**settings).settings)


def test_a_folder_that_does_not_give_its_value_back_is_refused():
    """As a JVM writes names that its locale does not have, or a text that is none."""
    for folder in (
        "name=x._COPYING_",
        "name=a?",
        "name=\ufffd",
        os.fsdecode(b"name=\xe4"),
        "größe=?",
    ):
        with raises(RowRefused):
            _must_be_read_back(
                ["day=2026-11-22/part-0?.parquet", f"day=2026-11-22/{folder}/part-0.parquet"]
            )
    _must_be_read_back(
        ["part-0?._COPYING_", "name=a%3F/größe=日本/part-0.parquet", "name=._COPYING_x/part"]
    )


def test_the_shape_of_a_path_is_what_its_readers_have_to_know():
    for same, settings in [
        (True, {"options": {"compression": "zstd"}, "max_records_per_file": 7}),
        (True, {"pipeline_id": "another", "ledger": KAFKA, "path": "/elsewhere"}),
        (True, {"options": {"sep": "|"}}),  # says nothing to Parquet
        (False, {"batch_column": "pile"}),
        (False, {"partition_by": "day"}),
    ]:
        assert (
            reader_shape(sink(**settings).settings) == reader_shape(sink().settings)
        ) is same, settings
    csv = [
        {},
        {"delimiter": "|"},
        {"SEP": "|"},
        {"sep": "|", "header": True},
        {"sep": "|", "compression": "gzip"},
        {"Header": "TRUE", "sep": "|"},
    ]
    shapes = [reader_shape(sink(format="csv", options=options).settings) for options in csv]
    assert [shapes.index(shape) for shape in shapes] == [0, 1, 1, 3, 1, 3]
    assert reader_shape(sink(layout="flat").settings) == reader_shape(
        sink(layout="flat", batch_column="pile").settings
    )


def test_what_readers_pass_over():
    assert [name for name in ("_a", ".a", "_a=1", "a", "a_", "_SUCCESS") if hidden(name)] == [
        "_a",
        ".a",
        "_SUCCESS",
    ]


class TestLocalFiles:
    @pytest.fixture
    def files(self, tmp_path: Path) -> LocalFiles:
        (tmp_path / "full" / "deep").mkdir(parents=True)
        (tmp_path / "full" / "deep" / "part").write_text("four")
        (tmp_path / "full" / "_hidden").mkdir()
        (tmp_path / "full" / "_hidden" / "part").write_text("hidden")
        (tmp_path / "full" / ".part.crc").write_text("hidden")
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("old")
        return LocalFiles(str(tmp_path))

    @pytest.mark.parametrize("target", ["empty", "file", "full"])
    @pytest.mark.parametrize("source", ["full", "full/deep/part", "file"])
    def test_a_move_neither_replaces_nor_nests(self, files: LocalFiles, source: str, target: str):
        before = files.listed("")
        assert files.move(source, target) is False
        assert files.listed("") == before
        assert files.move(source, "new") is True
        assert files.move(source, "new") is False
        assert files.move(source, "another") is False, "the source is gone"

    def test_a_folder_on_another_disk_is_named(self, files: LocalFiles, tmp_path: Path):
        with TemporaryDirectory(dir="/dev/shm") as elsewhere:
            if os.stat(elsewhere).st_dev == tmp_path.stat().st_dev:
                pytest.skip("there is one disk")
            (day := tmp_path / "day=1").symlink_to(elsewhere)
            with pytest.raises(ConfigurationError, match=f"{day}/part, which is on another disk"):
                files.move("full/deep/part", "day=1/part")
            day.unlink()
            day.mkdir()
            # as the error says
            assert files.move("full/deep/part", "day=1/part") is True

    def test_what_is_kept_is_synced_with_no_name_beside_it(
        self, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
    ):
        """A power failure would bring a name back that was removed behind the last sync of its
        folder.
        """
        synced: list[list[str]] = []
        monkeypatch.setattr(file_system, "sync", lambda path: synced.append(files.names("empty")))
        assert files.put_if_absent("empty/note", "text") == "text"
        assert synced[-1] == ["note"]

    @pytest.mark.parametrize("written", [True, False])
    def test_what_is_dropped_is_gone_for_good_before_its_note(
        self, files: LocalFiles, monkeypatch: pytest.MonkeyPatch, written: bool
    ):
        """A power failure would bring files back that no note tells of."""
        place, root = manifest.list_place("p@1.0", "batch", "p@0"), Path(str(files.local))
        (root / manifest.PREPARED).mkdir(parents=True)
        files.put_if_absent(place.note, place.manifest)
        if written:
            (root / place.files).mkdir(parents=True)
        synced: list[tuple[str, bool, bool]] = []

        def sync(path: str) -> None:
            folder = Path(path)
            if not folder.exists():
                raise FileNotFoundError(path)
            synced.append(
                (folder.name, (root / place.files).parent.exists(), files.text(place.note) is None)
            )

        monkeypatch.setattr(file_system, "sync", sync)
        manifest.drop(files, "p@1.0")
        assert synced == ([("files", False, False)] if written else [])
        assert files.text(place.note) is None

    def test_a_move_that_cannot_be_carried_out_says_so(self, files: LocalFiles):
        with pytest.raises(OSError, match="Not a directory"):
            files.move("full", "file/new")

    def test_what_is_listed(self, files: LocalFiles):
        assert files.listed("full") == {"deep/part": 4}
        assert files.listed("empty") == {}
        assert files.listed("nothing") is None
        assert files.listed("file") is None
        assert files.names("full") == [".part.crc", "_hidden", "deep"]
        assert files.names("nothing") == []
        assert (files.size("file"), files.size("nothing")) == (3, None)

    def test_what_is_kept_once_is_never_replaced(self, files: LocalFiles):
        assert [files.put_if_absent("full/one", text) for text in ("a", "b")] == ["a", "a"]
        assert files.names("full") == [".part.crc", "_hidden", "deep", "one"]

    @pytest.mark.parametrize("refusal", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EIO])
    def test_a_file_system_without_hard_links_is_named(
        self, files: LocalFiles, monkeypatch: pytest.MonkeyPatch, refusal: int
    ):
        """As Azure Files by SMB, or a bucket that is mounted by FUSE."""

        def link(source: str, target: str) -> None:
            raise OSError(refusal, os.strerror(refusal), source, None, target)

        monkeypatch.setattr(os, "link", link)
        may_pass = refusal == errno.EIO
        with pytest.raises(OSError if may_pass else ServerMisconfigured) as refused:
            files.put_if_absent("full/one", "a")
        assert may_pass or "hard links" in str(refused.value)
        assert files.names("full") == [".part.crc", "_hidden", "deep"]

    def test_the_shape_of_a_path_stays_as_young_as_its_batches(self, files: LocalFiles):
        """A retention of the path's files would remove it first, and stop the pipeline."""
        root = Path(str(files.local))
        settings = sink(path=files.root, ledger=KAFKA).settings
        publisher = Publisher(settings, ledger_is_beside=False)
        publisher.check("")
        shape, columns = (root / "_onceward" / name for name in ("shape.json", "columns.json"))
        columns.write_text("[]")
        for path in (shape, columns):
            os.utime(path, (0, 0))
        publisher.opened("p@1.0", 0)
        assert min(path.stat().st_mtime for path in (shape, columns)) > 0
        shape.unlink()
        with raises(TargetUnreachable):
            publisher.opened("p@1.1", 1)
        assert not shape.exists()

    @pytest.mark.parametrize("layout", ["batches", "flat", "manifest"])
    @pytest.mark.parametrize(
        "before", ["nothing", "an empty folder with the shape", "the old one"]
    )
    def test_a_batch_that_was_decided_before_its_path_was_moved_is_published_there(
        self, files: LocalFiles, layout: str, before: str
    ):
        """A crash is between the two, or somebody moves the folder before the next start."""
        root = Path(str(files.local))
        old, new = root / "old", root / "new"
        settings = sink(path=f"file://{old}", ledger=KAFKA, layout=layout).settings
        publisher = Publisher(settings, ledger_is_beside=False)
        publisher.check("")
        at = "_onceward/files/_attempt=p@m-1-1/batch=p@0" if layout == "manifest" else ""
        prepared = at or "_onceward/prepared/p@m-1-1.ready"
        (old / prepared).mkdir(parents=True)
        (old / prepared / "part-0.txt").write_text("row\n")
        to = {"batches": "batch=p@0", "flat": "", "manifest": "_symlink_format_manifest/p@0"}[
            layout
        ]
        decided = {
            "folder": "p@m-1-1", "root": f"file://{old}", "layout": layout, "to": to,
            "files": {"part-0.txt": 4}, "at": at,
        }  # fmt: skip
        shutil.copytree(old, new)
        if before != "the old one":
            shutil.rmtree(old)
        if before == "an empty folder with the shape":
            publisher.check("")
        moved = sink(path=f"file://{new}", ledger=KAFKA, layout=layout).settings
        publisher = Publisher(moved, ledger_is_beside=False)
        publisher.check(f"file://{old}")
        assert publisher.commit(decided) is CommitResult.DONE
        there = {"batches": "batch=p@0/part-0.txt", "flat": "part-0.txt", "manifest": to}[layout]
        assert (new / there).read_text() == (
            f"file://{new}/{at}/part-0.txt\n" if layout == "manifest" else "row\n"
        )
        assert publisher.commit(decided) is CommitResult.ALREADY_DONE
        publisher.remove_marks("p@m")
        assert layout == "manifest" or "p@m" not in str(list(new.rglob("*")))

    @pytest.mark.parametrize("name", ["_spark_metadata", "_delta_log"])
    @pytest.mark.parametrize("layout", ["flat", "batches", "manifest"])
    def test_a_path_whose_readers_go_by_somebody_elses_list_is_refused(
        self, files: LocalFiles, name: str, layout: str
    ):
        """By lists of ours readers are led to files below ``_onceward``, whatever else is there."""
        settings = sink(path=files.root, ledger=KAFKA, layout=layout).settings
        files.make(name)
        files.put_if_absent(f"{name}/0", "v1")
        publisher = Publisher(settings, ledger_is_beside=False)
        if layout == "manifest":
            publisher.check("")
            return
        with raises(ConfigurationError, name):
            publisher.check("")
        assert not files.names("_onceward")
        files.remove(name)
        publisher.check("")
        # Spark's sink may begin to write there between two runs of ours
        files.make(name)
        with raises(ConfigurationError, name):
            publisher.check(files.root)

    @pytest.mark.parametrize("ignores", ["true", "TRUE", "false"])
    def test_sparks_list_does_not_stop_a_sink_whose_readers_pass_over_it(
        self, files: LocalFiles, monkeypatch: pytest.MonkeyPatch, ignores: str
    ):
        """A query that ran so far may have readers that never were led by it."""
        settings = sink(path=files.root, ledger=KAFKA, layout="flat").settings
        session = SimpleNamespace(
            conf={"spark.sql.streaming.fileStreamSink.ignoreMetadata": ignores}
        )
        monkeypatch.setattr(reading.SparkSession, "getActiveSession", lambda: session)
        files.make("_spark_metadata")
        publisher = Publisher(settings, ledger_is_beside=False)
        if ignores == "false":
            with raises(ConfigurationError, "ignoreMetadata"):
                publisher.check("")
            return
        publisher.check("")
        files.make("_delta_log")
        with raises(ConfigurationError, "Delta"):
            publisher.check("")

    def test_a_path_of_which_spark_would_read_its_own_list_is_not_read(self, files: LocalFiles):
        Publisher(
            sink(path=files.root, ledger=KAFKA, layout="flat").settings, ledger_is_beside=False
        ).check("")
        files.make("_spark_metadata")
        ignores = dict[str, str]()
        session: Any = SimpleNamespace(conf=ignores, read=MagicMock())
        with raises(ConfigurationError, "_spark_metadata"):
            ow.read_files(session, files.root)
        ignores["spark.sql.streaming.fileStreamSink.ignoreMetadata"] = "true"
        assert ow.read_files(session, files.root) is not None

    def test_of_two_who_keep_something_one_wins(
        self, files: LocalFiles, monkeypatch: pytest.MonkeyPatch
    ):
        """Neither of whom has found anything there."""
        link = os.link

        def later(source: str, target: str) -> None:
            monkeypatch.setattr(os, "link", link)
            assert files.put_if_absent("full/one", "the other's") == "the other's"
            link(source, target)

        monkeypatch.setattr(os, "link", later)
        assert files.put_if_absent("full/one", "ours") == "the other's"

    def test_what_is_removed(self, files: LocalFiles):
        for path in ("full", "file", "nothing", "full"):
            files.remove(path)
        assert files.names("") == ["empty"]

    def test_folders_are_made_with_their_parents(self, files: LocalFiles):
        files.make("a/b/c")
        files.make("a/b/c")
        assert files.names("a/b") == ["c"]


class Stopped(Exception):
    pass


def test_a_file_system_that_stands_still_holds_no_query_that_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
):
    """Hadoop's clients try for many minutes."""
    goes_on = threading.Event()
    files = HadoopFiles.__new__(HadoopFiles)
    files.root = "hdfs://nn/orders"
    silent: Any = SimpleNamespace(getFileStatus=lambda path: goes_on.wait(60))
    files._system, files._hadoop = silent, SimpleNamespace(Path=str)

    def stop() -> None:
        raise Stopped

    try:
        with patience.asking(stop), pytest.raises(Stopped):
            files.size("a")
        monkeypatch.setattr(file_system, "_ANSWER_SECONDS", 0.1)
        with pytest.raises(OSError, match=r"hdfs://nn/orders has not answered"):
            files.size("a")
    finally:
        goes_on.set()


@pytest.mark.parametrize("layout", ["batches", "flat", "manifest"])
def test_a_path_with_nothing_published_has_a_frame_by_its_schema_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
):
    """Spark makes no column of folders that are not there, and guesses no schema."""
    files = LocalFiles(str(tmp_path))
    there = sink(path=files.root, ledger=KAFKA, layout=layout, partition_by="day").settings
    Publisher(there, ledger_is_beside=False).check("")
    empty = {"batches": "batch=p@0000000000", "flat": "day=1"}
    files.make(empty.get(layout, "_hidden"))
    frame = SimpleNamespace(columns=["value", "Day"], withColumns=list)
    session: Any = SimpleNamespace(
        conf={}, read=MagicMock(), createDataFrame=lambda rows, schema: frame
    )
    monkeypatch.setattr(reading, "f", MagicMock())
    with raises(ConfigurationError, "schema="):
        ow.read_files(session, files.root)
    seen: Any = ow.read_files(session, files.root, schema="value string, Day string")
    assert seen == ([] if layout == "flat" else ["batch"])
    frame.columns = ["value"]
    seen = ow.read_files(session, files.root, schema="value string")
    assert seen == (["day"] if layout == "flat" else ["batch", "day"])
    session.read.assert_not_called()


@pytest.mark.parametrize("published", ["batch=p@0000000000/part-0", "day=1/part-0", "part-0"])
def test_a_path_with_a_published_file_is_read(tmp_path: Path, published: str):
    files = LocalFiles(str(tmp_path))
    there = sink(path=files.root, ledger=KAFKA, layout="flat").settings
    Publisher(there, ledger_is_beside=False).check("")
    files.make(published.rpartition("/")[0])
    files.mark(published)
    session: Any = SimpleNamespace(conf={}, read=MagicMock())
    assert ow.read_files(session, files.root) is not None
    session.read.format.assert_called_once_with("parquet")
