"""Savepoints of checkpoints as Spark writes them, on a local disk: what is copied, what must be
there, and when one is refused. No Spark; ``tests/spark/test_savepoints.py`` has the real thing.
"""

from __future__ import annotations

import io
import json
import shutil
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import onceward as ow
from onceward.cli import app
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    CheckpointCorrupted,
    CheckpointReplaced,
    CheckpointRewound,
    CheckpointUnreachable,
    ConfigurationError,
    LedgerBehind,
)
from onceward.ids import BatchId, PipelineId, SourceRange
from onceward.operate import savepoint as savepoints
from onceward.operate.checkpoint_files import Folder
from support.errors import raises

QUERY = "11111111-2222-3333-4444-555555555555"


def end(batch_id: int) -> dict[str, dict[str, int]]:
    return {"in": {"0": 10 * batch_id + 10}}


def commit(ledger: ow.FolderLedger, pipeline: str, first: int, last: int) -> None:
    chain = ledger.chain(PipelineId(pipeline))
    newest = chain.take()
    for number in range(first, last + 1):
        source = SourceRange(end(number - 1), end(number))
        record = LedgerRecord(
            PipelineId(pipeline), number, BatchId(QUERY, number), (source,), chain.begin(newest),
            {}, 1_700_000_000_000 + number,
        )  # fmt: skip
        chain.append(record)
        newest = record
    chain.close()


def put(path: Path, text: str | bytes = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    (path.parent / f".{path.name}.crc").write_bytes(b"crc of " + path.name.encode())


def rocksdb_version(*shared: str) -> bytes:
    """As ``RocksDBFileManager`` zips a version: its metadata names the files it shares."""
    known = [{"localFileName": "1.sst", "dfsSstFileName": name, "sizeBytes": 3} for name in shared]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("metadata", "v1\n" + json.dumps({"sstFiles": known, "logFiles": []}))
    return packed.getvalue()


def checkpoint_at(folder: Path, newest: int) -> Path:
    """A checkpoint whose batch ``newest`` is done, and the one after it is running."""
    put(folder / "metadata", json.dumps({"id": QUERY}))
    put(folder / "sources" / "0" / "0", "v1\n{}")
    put(folder / "state" / "0" / "_metadata" / "metadata")
    for batch in range(newest + 2):
        put(folder / "offsets" / str(batch), f'v1\n{{"conf":{{}}}}\n{json.dumps(end(batch))}')
        if batch <= newest:
            put(folder / "commits" / str(batch))
        put(folder / "state" / "0" / "0" / f"{batch + 1}.delta")
        if batch % 2 == 0:
            put(
                folder / "state" / "1" / "0" / "left" / f"{batch + 1}.zip",
                rocksdb_version(f"{batch}-a.sst"),
            )
        put(folder / "state" / "1" / "0" / "left" / f"{batch + 1}.changelog")
        put(folder / "state" / "1" / "0" / "left" / "SSTs" / f"{batch}-a.sst")
    put(folder / "state" / "0" / "0" / "3.snapshot")
    put(folder / "onceward" / "p" / f"{newest + 1}.failed")
    put(folder / "onceward" / "p" / f"{newest}.replay")
    (folder / "offsets" / ".7.1234.tmp").write_text("half")
    return folder


@pytest.fixture
def ledger(tmp_path: Path) -> ow.FolderLedger:
    ledger = ow.FolderLedger(tmp_path / "ledger")
    commit(ledger, "p", 0, 4)
    return ledger


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return checkpoint_at(tmp_path / "checkpoint", 4)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def take(tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path) -> savepoints.Savepoint:
    return savepoints.create(str(checkpoint), str(tmp_path / "saved"), ledger, "p")


def test_nothing_of_the_batch_that_is_running_is_in_it(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    made = take(tmp_path, ledger, checkpoint)
    assert (made.batch_id, made.sequence, made.query_id) == (4, 4, QUERY)
    copied = files(Path(made.path) / "checkpoint")
    assert {"offsets/4", "commits/4", "metadata", "sources/0/0"} <= copied
    assert {"state/0/0/5.delta", "state/0/0/3.snapshot", "state/0/_metadata/metadata"} <= copied
    assert {"state/1/0/left/5.zip", "state/1/0/left/SSTs/4-a.sst", "onceward/p/4.replay"} <= copied
    assert not copied & {
        "offsets/5", "offsets/.4.crc", "state/0/0/6.delta", "state/1/0/left/6.changelog",
        "offsets/.7.1234.tmp", "onceward/p/5.failed",
    }  # fmt: skip
    assert savepoints.read(made.path) == made
    assert savepoints.saved(str(tmp_path / "saved")) == [made]


def test_old_files_may_go_while_it_is_taken_and_needed_ones_may_not() -> None:
    names = [
        "offsets/3", "offsets/2", "offsets/1", "commits/3", "commits/2", "commits/1", "metadata",
        "sources/0/0", "state/0/0/1.delta", "state/0/0/2.delta", "state/0/0/2.snapshot",
        "state/0/0/3.delta", "state/0/0/4.delta", "state/0/1/1.delta", "state/2/0/2_ab-1.zip",
        "state/2/0/3_ab-2.changelog", "state/2/0/1_ab-0.zip", "state/2/0/SSTs/old.sst",
    ]  # fmt: skip
    copied, needed = savepoints.select(names, 3)
    assert set(copied) == set(names)
    assert set(names) - needed == {
        "offsets/1", "commits/1", "state/0/0/1.delta", "state/2/0/1_ab-0.zip",
        "state/2/0/SSTs/old.sst",
    }  # fmt: skip


@pytest.mark.parametrize("main", ["4.delta", "4_ab-1.zip", "4_ab-1.changelog", "SSTs/4.sst"])
def test_no_checksum_is_copied_or_missed(main: str) -> None:
    """Neither Hadoop's hidden one, nor Spark's visible one (``ChecksumCheckpointFileManager``),
    which has one of Hadoop's, too.
    """
    folder, slash, last = f"state/0/0/{main}".rpartition("/")
    checksums = [f"{folder}{slash}{name}.crc" for name in (f".{last}", last, f".{last}.crc")]
    copied, needed = savepoints.select([f"{folder}/{last}", *checksums], 3)
    assert copied == [f"{folder}/{last}"]
    assert needed <= set(copied)
    assert savepoints.select_logs([f"{folder}/{last}", *checksums]) == []


class Purging(Folder):
    """A checkpoint whose files go as Spark's purge takes them."""

    going: tuple[str, ...] = ()
    seen: list[str] = []  # noqa: RUF012 — reset by each test

    def chunks(self, name: str) -> Any:
        self.seen.append(name)
        if name in self.going:
            raise FileNotFoundError(name)
        return super().chunks(name)


@pytest.mark.parametrize("gone", ["offsets/0", "state/0/0/1.delta", "state/1/0/left/SSTs/0-a.sst"])
def test_what_is_not_needed_is_left_out(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    gone: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(Purging, "going", (gone,))
    monkeypatch.setattr(savepoints, "Folder", Purging)
    made = take(tmp_path, ledger, checkpoint)
    assert gone not in made.files
    assert gone not in files(Path(made.path) / "checkpoint")


@pytest.mark.parametrize(
    "gone",
    ["offsets/3", "state/0/0/4.delta", "state/1/0/left/5.zip", "state/1/0/left/SSTs/4-a.sst"],
)
def test_where_a_needed_file_is_gone_there_is_no_savepoint(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, monkeypatch: pytest.MonkeyPatch,
    gone: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(Purging, "going", (gone,))
    monkeypatch.setattr(Purging, "seen", [])
    monkeypatch.setattr(savepoints, "Folder", Purging)
    with raises(CheckpointUnreachable):
        take(tmp_path, ledger, checkpoint)
    assert Purging.seen.count(gone) == 5
    assert files(tmp_path / "saved") == set()


@pytest.mark.parametrize(
    "gone",
    [
        ["state/0/0/5.delta"],
        ["state/0/0/3.snapshot", "state/0/0/1.delta"],
        ["state/0/0/3.snapshot", "state/0/0/4.delta"],
        [f"state/1/0/left/{n}.zip" for n in (1, 3, 5)] + ["state/1/0/left/1.changelog"],
        ["state/1/0/left/5.zip", "state/1/0/left/5.changelog"],
    ],
)
def test_a_version_that_cannot_be_loaded_is_missed_though_nobody_lists_it(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, gone: list[str]
) -> None:
    """As Spark's cleanup may have it between the look at ``commits`` and the list of files."""
    for name in gone:
        (checkpoint / name).unlink()
    with raises(CheckpointUnreachable):
        take(tmp_path, ledger, checkpoint)


@pytest.mark.parametrize("descriptions", [{"metadata": 2}, {"v2/0": 1, "v2/3": 2}])
def test_a_partition_without_any_file_is_missed(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, descriptions: dict[str, int]
) -> None:
    """Spark describes transformWithState anew in the first batch of each run."""
    shutil.rmtree(checkpoint / "state" / "0" / "_metadata")
    for name, partitions in descriptions.items():
        stores = [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": partitions}]
        put(
            checkpoint / "state" / "0" / "_metadata" / name,
            "v1\n"
            + json.dumps({"operatorInfo": {"operatorName": "dedupe"}, "stateStoreInfo": stores}),
        )
    with raises(CheckpointUnreachable):
        take(tmp_path, ledger, checkpoint)
    for version in range(1, 6):
        put(checkpoint / "state" / "0" / "1" / f"{version}.delta")
    assert take(tmp_path, ledger, checkpoint).batch_id == 4
    assert savepoints.find_gap(["state/0/1/1.delta"], 0) == "state/0/0"


def test_a_restored_checkpoint_names_its_own_files(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    """Spark notes the schemas of transformWithState with their full paths; and what the batch that
    runs has noted is not in the copy.
    """
    schema = "state/0/_stateSchema/default/0_2affdac7"
    put(checkpoint / schema)
    paths = [f"file:{checkpoint}/{schema}", "s3a://an/older place/state/1/_stateSchema/é"]
    info = {
        "stateStoreInfo": [{"stateSchemaFilePaths": paths}],
        "operatorPropertiesJson": '{"a":1}',
    }
    for batch in (0, 4, 5):
        put(checkpoint / f"state/0/_metadata/v2/{batch}", f"v2\n{json.dumps(info)}")
    made, new = take(tmp_path, ledger, checkpoint), tmp_path / "new"
    savepoints.restore(made, str(new), ledger)
    assert {path.name for path in (new / "state/0/_metadata/v2").iterdir()} == {"0", "4"}
    version, text = (new / "state/0/_metadata/v2/4").read_text().split("\n")
    moved = [f"file:{new}/{schema}", f"file:{new}/state/1/_stateSchema/é"]
    assert version == "v2"
    assert json.loads(text) == info | {"stateStoreInfo": [{"stateSchemaFilePaths": moved}]}
    savepoints.fork(made, f"file://{tmp_path}/fork", ledger, "q")
    assert (
        f'"file:{tmp_path}/fork/{schema}"'
        in (tmp_path / "fork/state/0/_metadata/v2/0").read_text()
    )
    assert savepoints.read(made.path) == made


@pytest.mark.parametrize(
    ("given", "noted", "spelt"),
    [
        ("s3://bucket/cp?region=x", "s3a", "s3a://bucket/cp"),
        ("s3a://bucket/cp?region=x", "s3", "s3://bucket/cp"),
        ("s3n://bucket/cp?region=x", "file", "s3a://bucket/cp"),
        ("/a folder/cp/", "s3a", "file:/a folder/cp"),
    ],
)
def test_files_are_named_as_spark_names_them(given: str, noted: str, spelt: str) -> None:
    assert Folder(given).as_spark_has_it(noted) == spelt


def test_a_file_that_a_version_shares_is_missed_though_nobody_lists_it(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    (checkpoint / "state/1/0/left/SSTs/4-a.sst").unlink()
    with raises(CheckpointUnreachable):
        take(tmp_path, ledger, checkpoint)


def test_it_is_of_the_pipeline_that_the_ledger_has(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    to = str(tmp_path / "saved")
    with raises(LedgerBehind, "q"):
        savepoints.create(str(checkpoint), to, ledger, "q")
    with raises(ConfigurationError):
        savepoints.create(str(tmp_path / "nowhere"), to, ledger, "p")
    put(checkpoint / "offsets" / "4", 'v1\n{}\n{"in":{"0":51}}')
    with raises(CheckpointRewound):
        savepoints.create(str(checkpoint), to, ledger, "p")
    put(checkpoint / "metadata", json.dumps({"id": "another"}))
    with raises(CheckpointReplaced, "another"):
        savepoints.create(str(checkpoint), to, ledger, "p")
    assert savepoints.saved(to) == []


def test_behind_a_batch_that_the_function_skipped_it_notes_the_record_before(
    tmp_path: Path, checkpoint: Path
) -> None:
    ledger = ow.FolderLedger(tmp_path / "short")
    commit(ledger, "p", 0, 3)
    made = take(tmp_path, ledger, checkpoint)
    assert (made.batch_id, made.ledger_batch_id, made.sequence) == (4, 3, 3)
    savepoints.restore(made, str(tmp_path / "new"), ledger)


def test_a_record_that_became_readable_later_is_of_a_batch_that_it_has(
    tmp_path: Path, checkpoint: Path
) -> None:
    ledger = ow.FolderLedger(tmp_path / "short")
    commit(ledger, "p", 0, 3)
    made = take(tmp_path, ledger, checkpoint)
    commit(ledger, "p", 4, 4)
    savepoints.restore(made, str(tmp_path / "new"), ledger)
    commit(ledger, "p", 5, 5)
    with raises(CheckpointRewound):
        savepoints.restore(made, str(tmp_path / "other"), ledger)


def test_no_savepoint_is_put_into_the_checkpoint(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    before = files(checkpoint)
    for to in (checkpoint, checkpoint / "saved", f"file://{checkpoint}/saved"):
        with raises(ConfigurationError, str(to)):
            savepoints.create(str(checkpoint), str(to), ledger, "p")
    assert files(checkpoint) == before
    beside = savepoints.create(str(checkpoint), f"{checkpoint}-saved", ledger, "p")
    assert beside.batch_id == 4


def test_what_is_restored_is_the_checkpoint_again(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    made, new = take(tmp_path, ledger, checkpoint), tmp_path / "deep" / "new"
    savepoints.restore(made, str(new), ledger)
    assert files(new) == set(made.files)
    assert (new / "metadata").read_bytes() == (checkpoint / "metadata").read_bytes()
    assert [path.name for path in new.parent.iterdir()] == ["new"]
    with raises(ConfigurationError):
        savepoints.restore(made, str(new), ledger)


def test_where_spark_keeps_one_batch_there_is_none_while_the_next_runs(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    """It needs the one before, too (``MicroBatchExecution.populateStartOffsets``)."""
    (checkpoint / "offsets" / "3").unlink()
    with raises(CheckpointUnreachable):
        take(tmp_path, ledger, checkpoint)


def test_a_tilde_is_a_folder_of_that_name_as_to_spark(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home would have another checkpoint, or none, than the one that a query goes on from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "~").mkdir()
    checkpoint.rename(tmp_path / "~" / "checkpoint")
    made = savepoints.create("~/checkpoint", "~/saved", ledger, "p")
    assert made.batch_id == 4
    assert Path(made.path).parent == tmp_path / "~" / "saved", "it is printed for a shell"


@pytest.mark.parametrize("how", ["folder", "link", "volume", "uri"])
def test_it_is_restored_into_a_folder_that_is_there(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, how: str
) -> None:
    """As a volume is, which can be neither removed nor renamed."""
    point = take(tmp_path, ledger, checkpoint)
    there = tmp_path / "disk" / "new"
    # What a restore left that was killed
    put(there / ".0a1b2c3d.tmp" / "metadata")
    if how == "volume":
        (there / "lost+found").mkdir()
    where = there
    if how == "link":
        where = tmp_path / "link"
        where.symlink_to(there)
    number = there.stat().st_ino
    named = f"file://{where}" if how == "uri" else str(where)
    savepoints.restore(point, named, ledger)
    assert there.stat().st_ino == number
    assert where.is_symlink() == (how == "link")
    assert files(there) == set(point.files)
    with raises(ConfigurationError):
        savepoints.restore(point, named, ledger)


def test_a_batch_that_spark_has_not_logged_is_waited_for_and_not_left_out(
    tmp_path: Path,
    ledger: ow.FolderLedger,
    checkpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who wipes the old disk could go on with nothing."""
    commit(ledger, "p", 5, 5)
    monkeypatch.setattr(savepoints, "_COMMIT_LOG_SECONDS", 0.1)
    with pytest.raises(CheckpointRewound, match="has batch 5"):
        take(tmp_path, ledger, checkpoint)
    forked = savepoints.create(
        str(checkpoint), str(tmp_path / "saved"), ledger, "p", for_fork=True
    )
    savepoints.fork(forked, str(tmp_path / "fork"), ledger, "q")
    monkeypatch.setattr(savepoints, "_COMMIT_LOG_SECONDS", 30.0)
    logged = threading.Timer(0.3, put, [checkpoint / "commits" / "5"])
    put(checkpoint / "state" / "0" / "0" / "6.delta")
    logged.start()
    assert take(tmp_path, ledger, checkpoint).batch_id == 5


def test_what_is_no_manifest_hides_no_savepoint(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    point = take(tmp_path, ledger, checkpoint)
    for number, text in enumerate(("5", '{"format": 1, "files": []}', "[]")):
        damaged = tmp_path / "saved" / f"p-{number}-20260101T000000.000000Z"
        damaged.mkdir()
        (damaged / "savepoint.json").write_text(text)
    assert savepoints.saved(str(tmp_path / "saved")) == [point]


def test_it_goes_back_behind_nothing_that_is_committed(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    made, new = take(tmp_path, ledger, checkpoint), tmp_path / "new"
    commit(ledger, "p", 5, 5)
    with raises(CheckpointRewound, "batch 5"):
        savepoints.restore(made, str(new), ledger)
    older = ow.FolderLedger(tmp_path / "older")
    with raises(LedgerBehind, "nothing"):
        savepoints.restore(made, str(new), older)
    commit(older, "p", 0, 3)
    with raises(LedgerBehind, "batch 3"):
        savepoints.restore(made, str(new), older)
    assert not new.exists()


def test_a_fork_is_another_query_of_another_pipeline(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path
) -> None:
    made, new = take(tmp_path, ledger, checkpoint), tmp_path / "new"
    commit(ledger, "p", 5, 9)
    for known in ("p", "not a name"):
        with raises(ConfigurationError):
            savepoints.fork(made, str(new), ledger, known)
    savepoints.fork(made, str(new), ledger, "q")
    assert json.loads((new / "metadata").read_text())["id"] not in ("", QUERY)
    assert files(new) == {
        name for name in made.files if not name.startswith("onceward") and name != ".metadata.crc"
    }
    assert ledger.recent(PipelineId("q")) == []


@pytest.mark.parametrize("damage", ["lost", "changed", "half"])
def test_a_damaged_savepoint_makes_no_checkpoint(
    tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path, damage: str
) -> None:
    made, new = take(tmp_path, ledger, checkpoint), tmp_path / "new"
    damaged = Path(made.path) / "checkpoint" / "state" / "0" / "0" / "5.delta"
    if damage == "lost":
        damaged.unlink()
    elif damage == "changed":
        damaged.write_text("y")
    else:
        (Path(made.path) / savepoints.MANIFEST).write_text('{"format": 1')
        with raises(CheckpointCorrupted):
            savepoints.read(made.path)
        assert savepoints.saved(str(tmp_path / "saved")) == []
        return
    for make in (
        lambda: savepoints.restore(made, str(new), ledger),
        lambda: savepoints.fork(made, str(new), ledger, "q"),
    ):
        with raises(CheckpointCorrupted, "5.delta"):
            make()
    assert [path for path in tmp_path.iterdir() if path.name.startswith("new")] == []


def test_a_path_that_no_file_system_has_is_named(tmp_path: Path) -> None:
    with raises(ConfigurationError, "dbfs:/"):
        Folder("dbfs:/z")


@pytest.mark.parametrize("name", ["my jobs", "a%20c", "Auftr\u00e4ge", "100%", "#1"])
@pytest.mark.parametrize(
    "place",
    ["file:{}", "file://{}", "s3a://bucket{}?region=eu-central-1", "gs://anonymous@bucket{}"],
)
def test_a_path_is_taken_as_hadoop_takes_it(name: str, place: str, tmp_path: Path) -> None:
    """Each character is itself; a URI would have escapes."""
    path = tmp_path / name
    put(path / "offsets" / "0")
    folder = Folder(place.format(path))
    assert folder.root == ("" if folder.is_local else "bucket") + str(path)
    assert folder.as_spark_has_it("s3a").endswith(str(path))
    if folder.is_local:
        assert "offsets/0" in folder.names()


@pytest.mark.parametrize("query", ["region=eu-central-1", "endpoint_override=m:9&scheme=http"])
def test_a_folder_below_an_s3_uri_with_a_query_is_in_it(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "a"),
        ("AWS_SECRET_ACCESS_KEY", "b"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ):
        monkeypatch.setenv(name, value)
    root = Folder(f"s3://bucket/saved?{query}")
    below = root.below("p-3").below("checkpoint")
    assert below.path == f"s3://bucket/saved/p-3/checkpoint?{query}"
    assert below.root == Folder(below.path).root == "bucket/saved/p-3/checkpoint"
    assert below._fs == root._fs == Folder(below.path)._fs
    assert below.as_spark_has_it("s3a") == "s3a://bucket/saved/p-3/checkpoint"


def test_the_commands(tmp_path: Path, ledger: ow.FolderLedger, checkpoint: Path) -> None:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(app, ["savepoint", *arguments], catch_exceptions=False)

    where, to = ("--ledger-path", str(tmp_path / "ledger")), str(tmp_path / "saved")
    done = run("create", "--pipeline-id", "p", "--checkpoint", str(checkpoint), "--to", to, *where)
    path = done.stdout.strip()
    assert "behind batch 4: " in done.stderr
    left = Path(to) / f"p-3-{Path(path).name.rpartition('-')[2]}"
    put(left / "checkpoint" / "metadata")
    put(Path(to) / "something else" / "file")
    listed = run("list", to)
    assert path in listed.stdout
    assert [line.split()[0] for line in listed.stderr.splitlines()] == [str(left)]
    assert json.loads(run("list", to, "--json").stdout)[0]["path"] == path
    restored = run("restore", path, "--checkpoint", str(tmp_path / "a"), *where)
    assert "start pipeline p with this checkpointLocation" in restored.stdout
    forked = run(
        "fork", path, "--checkpoint", str(tmp_path / "b"), "--pipeline-id", "q", *where
    )  # fmt: skip
    assert 'resume="adopt"' in forked.stdout
    assert {"a", "b"} <= {each.name for each in tmp_path.iterdir()}
