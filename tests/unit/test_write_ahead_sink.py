"""A write-ahead sink's settings, and how rows are cut into chunks."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import threading
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import onceward as ow
from onceward import durable, patience
from onceward.delivery import chunks as chunks_module
from onceward.delivery import row_files, target
from onceward.delivery.chunks import Delivery, output_data
from onceward.delivery.row_files import RowFile, RowFileWriter
from onceward.durable import make
from onceward.engine import task_writer
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.task_writer import Task
from onceward.errors import (
    ConfigurationError,
    LedgerUnreadable,
    RowRefused,
    StoreUnreachable,
)
from onceward.ids import AttemptId, BatchId, PipelineId, TaskAttempt
from support.errors import raises

ATTEMPT = AttemptId(1 << 62, 12)
TASK_ATTEMPT = TaskAttempt(0, 0, 1)
BATCH = BatchId("3b6c0de1-0000-4000-8000-000000000001", 17)


def send(chunk: ow.delivery.Chunk) -> None:
    raise NotImplementedError


def sink(folder: Path, **more: Any) -> ow.WriteAheadSink:
    said = {
        "deliver": send,
        "pipeline_id": "p",
        "ledger": ow.FolderLedger(folder / "ledger"),
        "store": folder / "s",
    }
    return ow.WriteAheadSink(**{**said, **more})


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"deliver": "http://somewhere"}, "deliver="),
        ({"chunk_rows": 0}, "chunk_rows"),
        ({"store": ""}, "store="),
        ({"store": "s3://bucket/store"}, "store="),
        ({"store": "dbfs:/store"}, "store="),
        ({"ledger": "/a/folder"}, "ledger="),
        ({"commit_timeout_s": -1}, "commit_timeout_s"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, wrong: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError, match=named):
        sink(tmp_path, **wrong)


def test_a_store_that_is_named_by_its_uri_is_that_folder(tmp_path: Path):
    """And not one below the folder where a process happens to be."""
    assert sink(tmp_path, store=f"file:{tmp_path}/s").folder == sink(tmp_path).folder


def test_tasks_get_the_folder_and_nothing_else(tmp_path: Path):
    held = threading.Lock()
    ours = sink(tmp_path, deliver=lambda chunk: held.acquire())
    assert vars(cloudpickle.loads(cloudpickle.dumps(ours))) == {"folder": tmp_path / "s" / "p"}
    ours._new_target(ours._policy)


def test_two_that_are_built_alike_are_one_and_others_are_not(tmp_path: Path):
    first = sink(tmp_path)
    assert first._built_with == sink(tmp_path)._built_with
    for other in (
        {"store": tmp_path / "t"},
        {"chunk_rows": 2},
        {"deliver": print},
        {"resume": "skip_missing"},
    ):
        assert first._built_with != sink(tmp_path, **other)._built_with


def test_a_note_that_a_full_disk_cuts_off_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    folder = tmp_path / "store"
    note = partial(target.must_belong, folder, PipelineId("p"), "chain", "here", is_known=False)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        for _ in range(3):
            with pytest.raises(StoreUnreachable, match="No space left"):
                note()
    assert list(tmp_path.iterdir()) == []
    note()
    assert [found.name for found in tmp_path.iterdir()] == ["store@ledger"]


def test_a_file_of_the_longest_pipeline_id_can_be_written(tmp_path: Path):
    assert written(tmp_path, "p" * 200, [["a"]], frame=9_999, partition=99_999).rows == 1


@pytest.mark.parametrize("name", ["notes.txt", "a.part", "", 7, "x-0-0.0.1.2.zzzzzzzz.arrow"])
def test_a_name_of_anything_else_is_refused(name: object):
    with pytest.raises(LedgerUnreadable):
        RowFile.of(name)


def written(
    folder: Path, pipeline: str, batches: list[list[str]], frame: int = 0, partition: int = 0
) -> RowFile:
    task = Task(PipelineId(pipeline), BATCH, ATTEMPT, frame, partition, 0, 1_000_000 + partition)
    writer = RowFileWriter(folder, task)
    for values in batches:
        writer.write(pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string())}))
    name = writer.pre_commit()
    writer.close()
    assert [file.name for file in folder.glob("*.part")] == []
    return RowFile.of(name)


def test_a_full_disk_is_named_and_the_part_that_was_written_makes_room(tmp_path: Path):
    task = Task(PipelineId("p"), BATCH, ATTEMPT, 0, 0, 0, 1)
    rows = pa.RecordBatch.from_pydict({"value": [os.urandom(9_000) for _ in range(9)]})

    def open_writer(_: object) -> RowFileWriter:
        return RowFileWriter(tmp_path, task)

    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1))
    try:
        with pytest.raises(StoreUnreachable):
            task_writer._written(open_writer, TASK_ATTEMPT, [rows])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_says_nothing_of_a_wrong_setting(tmp_path: Path):
    """Whoever removes empty folders takes it between two batches, and leaves the note beside it:
    the next start makes it again.
    """
    folder = tmp_path / "p"
    row_files.note_path(folder).touch()
    with raises(StoreUnreachable, store=str(folder)):
        written(folder, "p", [["a"]])


class Breaks(ow.TaskWriter):
    """What it fails for, and then again as it is closed."""

    def write(self, rows: pa.RecordBatch) -> None:
        raise RowRefused("a row", next_step="mend it")

    def pre_commit(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise OSError("the connection is gone")


def test_what_a_writer_fails_for_first_counts():
    rows = pa.RecordBatch.from_pydict({"value": ["a"]})
    with pytest.raises(RowRefused):
        task_writer._written(lambda _: Breaks(), TASK_ATTEMPT, [rows])


def test_a_file_of_many_blocks_is_read_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(row_files, "_BLOCK_BYTES", 7)
    values = [[f"{number}-{row}" for row in range(50)] for number in range(3)]
    file = written(tmp_path, "p", values)
    looked = file.looked_at(tmp_path)
    assert len(looked.sums) == -(-file.bytes // 7)
    assert [batch.column(0).to_pylist() for batch in file.read(tmp_path, looked)] == values


def test_of_a_file_that_changes_while_it_is_read_nothing_comes_but_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Whichever byte it is."""
    monkeypatch.setattr(row_files, "_BLOCK_BYTES", 64)
    values = [["a", "b"], ["c"], ["d"]]
    file = written(tmp_path, "p", values)
    looked, path = file.looked_at(tmp_path), tmp_path / file.name
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1
        path.write_bytes(changed)
        came: list[list[str]] = []
        with raises(StoreUnreachable):
            came.extend(batch.column(0).to_pylist() for batch in file.read(tmp_path, looked))
        assert came == values[: len(came)]


class Stopped(Exception):
    pass


def test_a_query_that_is_stopped_delivers_no_more_chunks(tmp_path: Path):
    """Of many, each of which takes its time: the next start goes on with the rest."""
    delivered: list[str] = []

    def stop_behind_the_first() -> None:
        if delivered:
            raise Stopped

    ours = sink(tmp_path, deliver=lambda chunk: delivered.append(chunk.key), chunk_rows=1)
    running = ours._new_target(ours._policy)
    assert isinstance(running, target.WriteAheadTarget)
    folder = tmp_path / "s" / "p"
    make(folder)
    assert running.chain.take() is None
    running.chain.begin(None)
    file = written(folder, "p", [["a", "b", "c"]])
    data = {"version": 1, "committables": [file.name]}
    data |= output_data(ATTEMPT, 1, running.settings)
    outputs = {target.KIND: Output(target.KIND, 1, 3, data)}
    record = LedgerRecord(PipelineId("p"), 0, BATCH, (), ATTEMPT, outputs, 0, RecordState.DECIDED)
    running.chain.append(record)
    with patience.asking(stop_behind_the_first), pytest.raises(Stopped):
        running.finish(record)
    assert len(delivered) == 1
    newest = running.chain.newest()
    assert newest is not None
    running.finish(newest)
    assert len(delivered) == 3


texts = st.lists(st.text("abc", min_size=1, max_size=2), min_size=0, max_size=4)
files = st.lists(texts, min_size=1, max_size=3).filter(any)
frames = st.lists(st.lists(files, max_size=3), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None)
@given(frames=frames, chunk_rows=st.integers(1, 7), data=st.data())
def test_chunks_are_the_same_wherever_a_start_goes_on(
    frames: list[Any], chunk_rows: int, data: st.DataObject
):
    """Whatever was delivered already, and whatever is lost: the others have the keys and rows that
    they had.
    """
    with TemporaryDirectory() as made:
        folder = Path(made)
        names: list[str] = []
        wanted: list[list[tuple[str, str]]] = []  # a chunk's rows, each with its file
        for frame, parts in enumerate(frames):
            rows: list[tuple[str, str]] = []
            for partition, batches in enumerate(parts):
                file = written(folder, "p", batches, frame, partition)
                names.append(file.name)
                rows += [(value, file.name) for values in batches for value in values]
            wanted += [
                rows[start : start + chunk_rows] for start in range(0, len(rows), chunk_rows)
            ]
        delivered = data.draw(st.integers(0, len(wanted)))
        lost = data.draw(st.sets(st.sampled_from(names))) if names else set()
        record = LedgerRecord(PipelineId("p"), 30, BATCH, (), AttemptId(0, 0), {}, 0)
        delivery = Delivery(
            record, {**output_data(ATTEMPT, chunk_rows, {}), "delivered": delivered}, names
        )
        needed = {file.name for file in delivery.needed}
        assert needed == {name for rows in wanted[delivered:] for _, name in rows}
        for name in set(names) - needed:
            (folder / name).unlink()
        for name in lost & needed:
            (folder / name).unlink()
        looked = {file: file.looked_at(folder) for file in delivery.needed}
        assert {file.name for file, found in looked.items() if found.wrong} == lost & needed
        chunks = list(delivery.rest(folder, looked))
    assert [chunk.key for chunk in chunks] == [
        f"p@3b6c0de1-17-{1 << 62}.12-{number}" for number in range(delivered, len(wanted))
    ]
    assert {(chunk.of, chunk.batch_id, chunk.sequence) for chunk in chunks} <= {
        (len(wanted), 17, 30)
    }
    assert [[row["value"] for row in chunk.to_pylist()] for chunk in chunks] == [
        [value for value, name in rows if name not in lost] for rows in wanted[delivered:]
    ]
    firsts = [sum(map(len, wanted[:number])) for number in range(len(wanted))]
    assert [chunk.first_row for chunk in chunks] == firsts[delivered:]


def test_a_chunk_of_more_than_arrow_counts_in_a_column_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Lists of nothing, which take no memory; the others are there to be the same afterwards."""
    many = 1_100_000_000
    others = {
        "texts": pa.array([["a", None], None], pa.list_(pa.string())),
        "map": pa.array([[("a", b"1")], []], pa.map_(pa.string(), pa.binary())),
        "struct": pa.array([{"a": "b", "n": 1}, None]),
        "days": pa.array([1, None], pa.date32()),
    }
    whole = pa.record_batch(others)

    def piece(number: int) -> pa.RecordBatch:
        ends = pa.py_buffer(numpy.array([0, many], "i4"))
        long = pa.Array.from_buffers(pa.list_(pa.null()), 1, [None, ends], 0, 0, [pa.nulls(many)])
        row = whole.slice(number, 1)
        return pa.record_batch([long, *row.columns], ["long", *others])

    monkeypatch.setattr(chunks_module, "_read", lambda *arguments: iter([piece(0), piece(1)]))
    record = LedgerRecord(PipelineId("p"), 30, BATCH, (), AttemptId(0, 0), {}, 0)
    data = output_data(ATTEMPT, 2, {})
    (chunk,) = Delivery(record, data, ["q-0-1.1.2.9.00000000.arrow"]).rest(tmp_path, {})
    assert pa.compute.list_value_length(chunk.rows.column("long")).to_pylist() == [many, many]
    assert chunk.rows.select([*others]).to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("has_it", [True, False], ids=["a disk", "another machine's"])
def test_on_macos_what_is_synced_gets_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_it: bool
):
    """Its ``fsync`` gets as far as the drive's memory."""
    asked: list[str] = []

    def full(descriptor: int, command: int) -> None:
        assert command == 51
        asked.append("full")
        if not has_it:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    monkeypatch.setattr(os, "fsync", lambda _: asked.append("fsync"))
    each = ["full"] if has_it else ["full", "fsync"]
    durable.write_new(tmp_path / "file", b"x")
    assert asked == each
    durable.sync(tmp_path)
    assert asked == 2 * each
    asked.clear()
    written(tmp_path, "p", [["a"]])
    assert asked == 2 * each


def test_a_disk_that_fails_is_told_on_macos_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int, command: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full)
    with pytest.raises(OSError, match="Input/output"):
        durable.sync(tmp_path)
