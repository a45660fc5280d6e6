"""Which write of a key replaces which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import onceward as ow
from onceward.delivery.row_files import RowFile
from onceward.engine.task_writer import Task
from onceward.errors import DeliveryRefused, RowRefused
from onceward.ids import AttemptId, BatchId, PipelineId
from support.errors import raises


def upsert(
    users: int = 0, sequence: int = 8, row: int = 1, attempt: str = "a", by: str = "p"
) -> ow.delivery.Upsert:
    version = f"{users:019d}.{sequence:012d}.{row:012d}"
    return ow.delivery.Upsert("k", version, attempt, by, {})


@pytest.mark.parametrize(
    ("stored", "replaces"),
    [
        ({}, True),  # the very same write, of which a crash may have left a part
        ({"row": 0}, True),
        ({"row": 2}, False),  # of a later chunk of the batch, which was delivered already
        ({"sequence": 7, "attempt": "b"}, True),
        ({"sequence": 7, "row": 2, "attempt": "b"}, True),
        ({"users": 6, "sequence": 8, "attempt": "b"}, True),
        ({"users": 6, "sequence": 9, "attempt": "b"}, True),
        ({"users": 8, "sequence": 7, "attempt": "b"}, False),
        ({"users": 8, "sequence": 8, "attempt": "b"}, False),
        ({"users": 8, "sequence": 9, "attempt": "b"}, False),
    ],
)
def test_what_is_later_stays(stored: dict[str, Any], replaces: bool):
    assert upsert(users=7).replaces(upsert(**{"users": 7, **stored}).mark) is replaces


def test_what_is_new_is_written():
    assert upsert().replaces(None)


@pytest.mark.parametrize("users", [0, 7])
@pytest.mark.parametrize(
    ("stored", "why"),
    [
        ({"sequence": 9, "row": 0, "attempt": "b"}, "newer version"),
        ({"sequence": 9}, "newer version"),
        ({"attempt": "b"}, "another batch"),
        ({"attempt": "b", "row": 0}, "another batch"),
        ({"attempt": "b", "row": 2}, "another batch"),
        ({"by": "q"}, "something else"),
        ({"by": "q", "sequence": 7}, "something else"),
        ({"by": "q", "users": 9}, "something else"),
        ({"by": "p integer x"}, "something else"),
    ],
)
def test_what_cannot_be_compared_is_refused(users: int, stored: dict[str, Any], why: str):
    with pytest.raises(DeliveryRefused, match=why) as caught:
        upsert(users=users).replaces(upsert(**{"users": users, **stored}).mark)
    assert caught.value.next_step


@pytest.mark.parametrize(
    "stored", ["", "7", "1 2 3", upsert().version, f"{upsert().version} a ", f"x{upsert().mark}"]
)
def test_what_is_no_mark_is_refused(stored: str):
    with raises(DeliveryRefused, key="k"):
        upsert().replaces(stored)


BEYOND = pa.array([2_932_897], pa.int32()).cast(pa.date32())
NO_TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"))


@pytest.mark.parametrize("value", [BEYOND, NO_TEXT], ids=["year 10000", "no UTF-8"])
def test_of_a_delete_only_its_key_and_version_are_stored(tmp_path: Path, value: pa.Array):
    """Its row may be one that was never written."""
    sink = ow.UpsertSink(
        key="id", version="at", op_column="op", write=print, pipeline_id="p",
        ledger=ow.FolderLedger(tmp_path / "ledger"), store=tmp_path / "store",
    )  # fmt: skip
    sink.folder.mkdir(parents=True)
    task = Task(PipelineId("p"), BatchId("q", 0), AttemptId(1, 1), 0, 0, 0, 1)
    writer = sink.begin(task)

    def rows(op: str, value: pa.Array) -> pa.RecordBatch:
        columns = {"id": [op], "at": [7], "x": value, "op": [op]}
        return pa.RecordBatch.from_pydict({name: pa.array(it) for name, it in columns.items()})

    writer.write(rows("u", pa.nulls(1, value.type)))
    writer.write(rows("d", value))
    with pytest.raises(RowRefused, match="'x'"):
        writer.write(rows("u", value))
    file = RowFile.of(writer.pre_commit())
    read = list(file.read(sink.folder, file.looked_at(sink.folder)))
    assert [row for batch in read for row in batch.to_pylist()] == [
        {"id": op, "at": 7, "x": None, "op": op} for op in ("u", "d")
    ]
