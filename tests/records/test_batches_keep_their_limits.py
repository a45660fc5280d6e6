"""No batch passes its size limit; what Kafka cannot take is refused by size, limit and column,
never with its data.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import (
    NOW_MS,
    Plain,
    as_plain,
    columns_of,
    expected,
    on_the_wire,
    record_lists,
)

from onceward.errors import ConfigurationError, InvalidColumn, RecordTooLarge
from onceward.kafka.records.batch import HEADER_BYTES, encode_fragments
from onceward.kafka.records.columns import RecordColumns
from onceward.kafka.records.compression import Codec
from onceward.kafka.records.reader import read_batches
from support.errors import raises


def encode(columns, *, codec=Codec.NONE, batch_bytes=1000, **more):
    return encode_fragments(columns, codec=codec, batch_bytes=batch_bytes, now_ms=NOW_MS, **more)


LARGEST = 2_000
"""No record of ``record_lists`` is larger: its key, its value and four headers have 300 bytes
each, and names of 24.
"""


@given(record_lists, st.sampled_from(list(Codec)), st.integers(LARGEST, 5000))
def test_no_batch_passes_the_limit(records, codec, batch_bytes):
    assert all(
        f.size <= batch_bytes
        for f in encode(columns_of(records), codec=codec, batch_bytes=batch_bytes)
    )


def test_batches_are_filled():
    records = [Plain(b"key", b"v" * 80)] * 1000
    fragments = encode(columns_of(records), batch_bytes=10_000)
    assert len(fragments) == 10
    assert all(fragment.size > 9_600 for fragment in fragments[:-1])


def test_a_record_of_exactly_the_limit_passes_and_one_byte_more_does_not():
    (fragment,) = encode(columns_of([Plain(None, b"v" * 500)]))
    assert (
        encode(columns_of([Plain(None, b"v" * 500)]), batch_bytes=fragment.size)[0].size
        == fragment.size
    )
    with pytest.raises(RecordTooLarge) as refused:
        encode(columns_of([Plain(None, b"v" * 500)]), batch_bytes=fragment.size - 1)
    assert refused.value.details == {
        "record_bytes": fragment.size,
        "limit_bytes": fragment.size - 1,
    }
    assert "max.request.size" in refused.value.next_step


def test_a_record_above_batch_bytes_travels_alone():
    """Kafka's batch.size limits no record; max.request.size does."""
    records = [Plain(b"k", b"small"), Plain(b"k", b"x" * 5_000), Plain(b"k", b"small")]
    fragments = encode(columns_of(records), batch_bytes=1_000, record_bytes=6_000)
    assert [fragment.count for fragment in fragments] == [1, 1, 1]
    assert [
        as_plain(r) for b in read_batches(on_the_wire(fragments)) for r in b.records
    ] == expected(records)
    with pytest.raises(RecordTooLarge):
        encode(columns_of(records), batch_bytes=1_000, record_bytes=5_000)


def test_a_record_too_large_between_others_is_refused_without_telling_its_data():
    records = [
        Plain(b"k", b"small"),
        Plain(b"secret-key", b"secret" * 1000),
        Plain(b"k", b"small"),
    ]
    with pytest.raises(RecordTooLarge) as refused:
        encode(columns_of(records))
    assert "secret" not in str(refused.value)


def test_a_large_record_that_compresses_below_the_limit_travels_alone():
    records = [Plain(b"k", b"small"), Plain(b"k", b"x" * 50_000), Plain(b"k", b"small")]
    fragments = encode(columns_of(records), codec=Codec.ZSTD)
    assert [fragment.count for fragment in fragments] == [1, 1, 1]
    read = [as_plain(r) for b in read_batches(on_the_wire(fragments)) for r in b.records]
    assert read == expected(records)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_compression_would_enlarge_stays_plain(codec):
    rng = random.Random(1)
    (noise,) = encode(columns_of([Plain(None, rng.randbytes(500))]), codec=codec)
    (text,) = encode(columns_of([Plain(None, b"text" * 125)]), codec=codec)
    assert noise.codec is Codec.NONE
    assert text.codec is codec


@pytest.mark.parametrize("batch_bytes", [0, -1, HEADER_BYTES, 1 << 31])
def test_batch_sizes_that_cannot_be_are_refused(batch_bytes):
    with raises(ConfigurationError, "batch.size"):
        encode(columns_of([Plain(b"k", b"v")]), batch_bytes=batch_bytes)


def test_a_level_that_the_codec_does_not_take_is_refused_before_encoding():
    with raises(ConfigurationError):
        encode(columns_of([Plain(b"k", b"v")]), codec=Codec.GZIP, compression_level=99)


@pytest.mark.parametrize("moment", [-1, -(10**12), 1 << 54])
def test_times_that_no_record_can_have_are_refused(moment):
    columns = RecordColumns(None, pa.array([b"a", b"b"]), None, np.array([NOW_MS, moment]))
    with pytest.raises(InvalidColumn, match=f"'timestamp' holds {moment} ms"):
        encode(columns)


@pytest.mark.parametrize("listed", [[{"key": None, "value": b"v"}], [None]])
def test_headers_without_a_key_are_refused(listed):
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = RecordColumns(None, pa.array([b"a"], pa.binary()), pa.array([listed], kind))
    with raises(InvalidColumn):
        encode(columns)


def test_bytes_that_lie_under_nulls_are_not_written():
    # Arrow lets a null row cover bytes; such arrays come from masks laid over data.
    covered = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 2, 20, 22], np.int32)),
            pa.py_buffer(b"aa" + b"?" * 18 + b"bb"),
        ],
    )
    assert covered.to_pylist() == [b"aa", None, b"bb"]
    fragments = encode(RecordColumns(covered, covered))
    assert [f.checksum.values.length for f in fragments] == [4]
    read = [as_plain(r) for b in read_batches(on_the_wire(fragments)) for r in b.records]
    assert [(r.key, r.value) for r in read] == [(b"aa", b"aa"), (None, None), (b"bb", b"bb")]


def test_records_that_arrow_could_not_hold_are_refused_before_encoding():
    huge = (1 << 31) - 100
    value = pa.Array.from_buffers(
        pa.binary(),
        1,
        [None, pa.py_buffer(np.array([0, huge], np.int32)), pa.foreign_buffer(1, huge, None)],
    )  # never read: an address that would crash
    with pytest.raises(RecordTooLarge):
        encode(RecordColumns(pa.array([b"k" * 200], pa.binary()), value), batch_bytes=1_000_000)
