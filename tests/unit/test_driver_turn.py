"""Which batches the driver sends itself, and what it may be given: pure decisions."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa
import pytest

from onceward.engine.driver_rows import Bound, DriverTurn, within
from onceward.ids import BatchId, TopicPartition
from onceward.kafka.records.batch import Fragment, encode_fragments
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.sink.driver_path import send
from onceward.kafka.sink.task_reports import check
from onceward.kafka.wire.appends.producer import Append, Appended
from onceward.spark.batch.query import RunningBatch

RECORDS, BYTES = 10_000, 4 << 20


def batch(records: int | None, *, stateful: bool = False) -> RunningBatch:
    return RunningBatch(BatchId("query", 1), "run", "", (), (), stateful, records)


def rows(count: int, *, oversized: bool = False, size: int = 10) -> pa.Table:
    flags = [False] * count
    if oversized:
        flags[count // 2] = True
    return pa.table(
        {
            "value": pa.array([b"x" * size] * count, pa.binary()),
            "onceward_oversized": pa.array(flags, pa.bool_()),
        }
    )


@pytest.mark.parametrize(
    ("running", "taken"),
    [
        (batch(0), True),
        (batch(10_000), True),
        (batch(10_001), False),
        (batch(None), False),  # a source that does not tell
        (batch(5, stateful=True), False),
    ],
)
def test_small_batches_without_state(running: RunningBatch, taken: bool):
    assert DriverTurn(RECORDS, BYTES).takes(running) is taken


@pytest.mark.parametrize(("records", "size"), [(0, BYTES), (RECORDS, 0)])
def test_zero_is_never(records: int, size: int):
    assert not DriverTurn(records, size).takes(batch(0))


@pytest.mark.parametrize("seen", [None, rows(1, size=5 << 20)])
def test_too_much_is_left_to_tasks(seen: pa.Table | None):
    """And looked at again after a while: a plan may come to its senses."""
    turn = DriverTurn(RECORDS, BYTES)
    turn.note(rows(10), 2)
    assert turn.takes(batch(5))
    turn.note(seen, 2)
    taken = [turn.takes(batch(5)) for _ in range(60)]
    assert taken.index(True) == 50


@pytest.mark.parametrize("tasks", [1, 4, 64, 1_000])
@pytest.mark.parametrize("records", [0, 1, 50, 500, 9_000, 10_000])
def test_a_bound_lets_the_batch_pass_and_no_flood(records: int, tasks: int):
    bound = Bound.for_batch(records, tasks, RECORDS, BYTES)
    assert records <= bound.rows <= RECORDS
    assert bound.rows * bound.record_bytes * tasks <= max(64 * BYTES, bound.rows * 1_000 * tasks)
    assert bound.record_bytes >= 1_000


@pytest.mark.parametrize(
    ("records", "rows"), [(0, 100), (50, 100), (51, 1_000), (500, 1_000), (501, RECORDS)]
)
def test_bounds_are_those_of_the_page(records: int, rows: int):
    """docs/reference/configuration.md, "driver_records and driver_bytes"."""
    assert Bound.for_batch(records, 4, RECORDS, BYTES).rows == rows
    assert Bound.for_batch(records, 4, 80, BYTES).rows == 80


def test_few_bounds_so_that_code_is_compiled_once():
    assert len({Bound.for_batch(n, 4, RECORDS, BYTES) for n in range(RECORDS + 1)}) <= 3


def test_only_everything_is_sent():
    bound = Bound(100, 1_000)
    whole = within(rows(100), bound)
    assert whole is not None
    assert whole.column_names == ["value"]
    assert whole.num_rows == 100
    assert within(rows(101), bound) is None  # a task may have left rows out
    assert within(rows(50, oversized=True), bound) is None
    assert within(rows(0), bound) is not None


class Rows:
    """Held rows of one partition, encoded."""

    oldest_ms: ClassVar[dict[str, int]] = {}

    def encode(self) -> dict[TopicPartition, list[Fragment]]:
        values = RecordColumns.of(pa.array([b"a", b"b"], pa.binary()))
        return {
            TopicPartition("out", 0): list(
                encode_fragments(values, codec=Codec.NONE, batch_bytes=10_000, now_ms=1)
            )
        }


class Producer:
    """Acknowledges everything, and keeps what it was given."""

    def __init__(self) -> None:
        self.appends: list[Append] = []

    def send(self, appends: list[Append], *, should_stop: object) -> list[Appended]:
        self.appends += appends
        return [Appended(a.partition, a.base_sequence, a.fragment.count, 40, 41) for a in appends]


def test_the_driver_goes_on_where_a_job_ended() -> None:
    producer = Producer()
    report, turns = send(
        Rows(), producer, {TopicPartition("out", 0): 7}, lambda _: None, lambda: None
    )  # type: ignore[arg-type]
    assert [append.base_sequence for append in producer.appends] == [7]
    assert [(turn.base_sequence, turn.next_sequence) for turn in turns] == [(7, 9)]
    assert (
        check([report], turns, 1, {TopicPartition("out", 0): 7})[TopicPartition("out", 0)].count
        == 2
    )
