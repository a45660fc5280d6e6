"""Rows on the way to their partitions: in order, in full record batches, and never all of them in
memory twice over.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from onceward.errors import RecordTooLarge
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, stamp
from onceward.kafka.records.partitioner import partition_of_keys
from onceward.kafka.records.reader import read_batches
from onceward.kafka.sink import rows as held
from onceward.kafka.sink.rows import HeldRows, pieces
from onceward.kafka.wire.options.settings import ProducerSettings
from support.errors import raises

PARTITIONS = 5


def arrow(numbers: range, size: int = 100) -> pa.RecordBatch:
    values = [b"%08d" % n + b"x" * (size - 8) for n in numbers]
    keys = [b"key-%d" % (n % 97) for n in numbers]
    return pa.RecordBatch.from_pydict(
        {"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())}
    )


def rows_of(settings: ProducerSettings | None = None, topic: str | None = "out") -> HeldRows:
    return HeldRows(topic, lambda _: PARTITIONS, settings or ProducerSettings(), 0)


def python_values(parts: list[Fragment]) -> list[int]:
    read = []
    for fragment in parts:
        stamped = stamp(fragment, ProducerIdentity(1, 1), 0, transactional=True)
        (batch,) = read_batches(b"".join(bytes(part) for part in stamped))
        read += [int(record.value[:8]) for record in batch.records]
    return read


@pytest.mark.parametrize("size", [1, 700, 20_000])
def test_order_is_kept_within_a_partition(monkeypatch: pytest.MonkeyPatch, size: int):
    monkeypatch.setattr(held, "_PIECE_BYTES", 30_000)
    holder = rows_of()
    for start in range(0, 20_000 if size > 1 else 500, size):
        holder.add(arrow(range(start, start + size)))
    fragments = holder.encode()
    everything = []
    for partition, parts in fragments.items():
        numbers = python_values(parts)
        assert numbers == sorted(numbers)
        keys = pa.array([b"key-%d" % (n % 97) for n in numbers], pa.binary())
        assert set(partition_of_keys(keys, PARTITIONS).tolist()) == {partition.partition}
        everything += numbers
    assert sorted(everything) == list(range(len(everything)))
    assert len(everything) >= 500
    assert holder.held_bytes == 0
    assert holder.encode() == {}


def test_a_record_without_a_timestamp_has_that_of_its_writing():
    """As the source has it of records of before Kafka 0.10, and of producers that send none."""
    holder = rows_of()
    times = pa.array([-1, 5, None, -1], pa.int64())
    values = pa.array([b"%08d" % n for n in range(4)], pa.binary())
    columns = {"value": values, "key": pa.array([b"k"] * 4, pa.binary()), "timestamp_ms": times}
    holder.add(pa.RecordBatch.from_pydict(columns))
    (fragment,) = [part for parts in holder.encode().values() for part in parts]
    stamped = stamp(fragment, ProducerIdentity(1, 1), 0, transactional=True)
    (batch,) = read_batches(b"".join(bytes(part) for part in stamped))
    now, given, null, again = (record.timestamp_ms for record in batch.records)
    assert given == 5
    assert now == null == again > 1_700_000_000_000
    assert holder.oldest_ms == {"out": 5}


def test_record_batches_are_as_full_as_before(monkeypatch: pytest.MonkeyPatch):
    """Pieces are a matter of memory alone: they leave no half-empty record batches behind."""
    monkeypatch.setattr(held, "_PIECE_BYTES", 10_000)
    holder = rows_of(ProducerSettings(batch_bytes=50_000))
    for start in range(0, 20_000, 1_000):
        holder.add(arrow(range(start, start + 1_000)))
    for parts in holder.encode().values():
        assert all(fragment.size > 45_000 for fragment in parts[:-1])
        assert len(parts) > 5


def test_a_partition_with_very_much_is_encoded_in_parts(monkeypatch: pytest.MonkeyPatch):
    """An Arrow column ends at 2 GiB; what a task may hold does not."""
    monkeypatch.setattr(held, "_PIECE_BYTES", 10_000)
    monkeypatch.setattr(held, "_MOST_TOGETHER_BYTES", 50_000)
    together: list[int] = []
    concat = held.RecordColumns.concat

    def watched(parts: list[held.RecordColumns]) -> held.RecordColumns:
        together.append(sum(part.nbytes for part in parts))
        return concat(parts)

    monkeypatch.setattr(held.RecordColumns, "concat", staticmethod(watched))
    holder = HeldRows("out", lambda _: 2, ProducerSettings(), 0)
    for start in range(0, 3_000, 300):
        holder.add(arrow(range(start, start + 300)))
    found = [python_values(parts) for parts in holder.encode().values()]
    assert len(found) == 2
    assert all(numbers == sorted(numbers) for numbers in found)
    assert sorted(n for numbers in found for n in numbers) == list(range(3_000))
    assert len(together) > 4
    assert max(together) < 70_000


def test_a_large_arrow_batch_comes_in_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(held, "_PIECE_BYTES", 10_000)
    batch = arrow(range(1_000))
    parts = list(pieces(batch))
    assert len(parts) > 10
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([batch])
    assert list(pieces(batch.slice(0, 0))) == []


def test_rows_follow_their_topic():
    names = pa.array(np.where(np.arange(1_000) % 3 == 0, "a", "b"), pa.string())
    batch = arrow(range(1_000)).append_column("topic", names)
    holder = rows_of(topic=None)
    holder.add(batch)
    fragments = holder.encode()
    of_a = [n for p, parts in fragments.items() if p.topic == "a" for n in python_values(parts)]
    assert sorted(of_a) == list(range(0, 1_000, 3))
    assert {p.topic for p in fragments} == {"a", "b"}


def test_a_record_too_large_names_its_topic():
    holder = rows_of(ProducerSettings(batch_bytes=1_000, max_request_bytes=5_000))
    holder.add(arrow(range(1), size=4_000))
    assert list(holder.encode()) == [
        TopicPartition("out", int(partition_of_keys(pa.array([b"key-0"]), PARTITIONS)[0]))
    ]
    holder.add(arrow(range(1), size=6_000))
    with raises(RecordTooLarge):
        holder.encode()
