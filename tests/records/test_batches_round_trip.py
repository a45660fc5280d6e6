"""What is encoded is read back the same, by our reader and by kafka-python's, whatever the codec
and the shapes.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from record_strategies import (
    IDENTITY,
    NOW_MS,
    Plain,
    as_plain,
    columns_of,
    expected,
    on_the_wire,
    record_lists,
    sliced,
)

from onceward.kafka.records.batch import encode_fragments, encode_runs, next_sequence, stamp
from onceward.kafka.records.checksum import ContentChecksum, Stretch
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.partitioner import group_by_partition
from onceward.kafka.records.reader import read_batches
from support.plain_checksum import checksum_of


def encode(records, codec=Codec.NONE, batch_bytes=1_000_000, *, padded=False):
    return encode_fragments(
        columns_of(records, padded=padded), codec=codec, batch_bytes=batch_bytes, now_ms=NOW_MS
    )


@given(record_lists, st.sampled_from(Codec), st.integers(1500, 20_000), st.booleans())
def test_our_reader_reads_what_was_encoded(records, codec, batch_bytes, padded):
    batches = list(read_batches(on_the_wire(encode(records, codec, batch_bytes, padded=padded))))
    assert [as_plain(record) for batch in batches for record in batch.records] == expected(records)
    assert [record.offset for batch in batches for record in batch.records] == list(
        range(len(records))
    )


@given(record_lists, st.sampled_from(Codec), st.integers(1500, 20_000))
def test_kafka_pythons_reader_reads_what_was_encoded(records, codec, batch_bytes):
    if codec in (
        Codec.SNAPPY,
        Codec.LZ4,
        Codec.ZSTD,
    ):  # kafka-python needs packages for these that we do without
        codec = Codec.GZIP
    read = []
    memory = MemoryRecords(on_the_wire(encode(records, codec, batch_bytes)))
    while memory.has_next():
        batch = memory.next_batch()
        assert batch.validate_crc()
        read += [as_plain(record) for record in batch]
    assert read == expected(records)


@given(record_lists, st.sampled_from(Codec))
def test_a_batchs_header_says_what_is_in_it(records, codec):
    fragments = encode(records, codec, 3000)
    batches = list(read_batches(on_the_wire(fragments, base_sequence=(1 << 31) - 5)))
    sequence = (1 << 31) - 5
    for fragment, batch in zip(fragments, batches, strict=True):
        times = [record.timestamp_ms for record in batch.records]
        assert (batch.producer_id, batch.producer_epoch) == IDENTITY
        assert batch.is_transactional
        assert not batch.is_control
        assert batch.base_sequence == sequence
        assert batch.count == fragment.count == len(batch.records)
        assert batch.base_timestamp_ms == fragment.base_timestamp_ms == times[0]
        assert batch.max_timestamp_ms == fragment.max_timestamp_ms == max(times)
        assert batch.size == fragment.size
        assert batch.partition_leader_epoch == -1
        sequence = next_sequence(sequence, fragment.count)


@given(record_lists, st.integers(1500, 20_000), st.booleans())
def test_the_checksum_is_that_of_the_plain_records(records, batch_bytes, padded):
    combined = ContentChecksum(*[Stretch(0, 0)] * 4)
    for fragment in encode(records, batch_bytes=batch_bytes, padded=padded):
        combined = ContentChecksum.combine(combined, fragment.checksum)
    assert combined == checksum_of((row.key, row.value, row.headers) for row in records)


@given(record_lists, st.data())
def test_encoding_all_partitions_at_once_equals_one_call_for_each(records, data):
    import numpy as np

    partitions = np.array(
        data.draw(
            st.lists(st.sampled_from([0, 1, 7]), min_size=len(records), max_size=len(records))
        )
    )
    columns = columns_of(records)
    settings = {"codec": Codec.NONE, "batch_bytes": 2000, "now_ms": NOW_MS}
    groups = [rows for _, rows in group_by_partition(columns, partitions)]
    ends = np.cumsum([len(rows) for rows in groups]).tolist()
    at_once = encode_runs(RecordColumns.concat(groups), ends, **settings) if groups else []
    for ours, theirs in zip(
        at_once, (encode_fragments(rows, **settings) for rows in groups), strict=True
    ):
        # Where batches part may differ by a few bytes of estimate; what is in them may not.
        assert [as_plain(r) for b in read_batches(on_the_wire(ours)) for r in b.records] == [
            as_plain(r) for b in read_batches(on_the_wire(theirs)) for r in b.records
        ]


@pytest.mark.parametrize("count", [1, 63, 64, 65, 8191, 8192, 8193, 20_000, 70_000])
def test_offset_deltas_of_every_width_count_up(count):
    records = [Plain(None, b"%d" % i) for i in range(count)]
    (batch,) = read_batches(on_the_wire(encode(records, batch_bytes=100_000_000)))
    assert [(r.offset, r.value) for r in batch.records] == [(i, b"%d" % i) for i in range(count)]


@pytest.mark.parametrize(
    "size", [0, 1, 11, 12, 13, 63, 64, 65, 8190, 8191, 8192, 8193, 1_048_576, 2_000_000]
)
def test_lengths_of_every_width_survive(size):
    records = [
        Plain(b"k" * size, b"v" * size, (("h", b"w" * size),)),
        Plain(b"", None),
        Plain(None, b"v" * size),
    ]
    read = [
        r
        for b in read_batches(on_the_wire(encode(records, batch_bytes=9_000_000)))
        for r in b.records
    ]
    assert [as_plain(r) for r in read] == expected(records)


def test_a_batch_outside_transactions_has_no_transactional_bit():
    (fragment,) = encode([Plain(b"k", b"v")])
    (batch,) = read_batches(on_the_wire([fragment], transactional=False))
    assert not batch.is_transactional


def test_stamping_does_not_copy_the_records():
    (fragment,) = encode([Plain(b"k", b"v")])
    assert stamp(fragment, IDENTITY, 0, transactional=True)[1] is fragment.records


def test_sequences_wrap_from_the_largest_int_to_zero():
    assert next_sequence(0, 7) == 7
    assert next_sequence((1 << 31) - 2, 1) == (1 << 31) - 1
    assert next_sequence((1 << 31) - 1, 1) == 0
    assert next_sequence((1 << 31) - 3, 10) == 7


def test_nothing_to_encode_gives_no_fragments():
    empty = sliced(columns_of([Plain(b"k", b"v")]), 0, 0)
    assert encode_fragments(empty, codec=Codec.NONE, batch_bytes=1000, now_ms=0) == []
    assert encode_runs(empty, [], codec=Codec.NONE, batch_bytes=1000, now_ms=0) == []
