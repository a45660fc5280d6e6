"""Columns of any Arrow shape become the one shape that encoding works on, or are refused by
name.
"""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import columns_of, plain_records, sliced

from onceward.errors import InvalidColumn
from onceward.kafka.records.columns import HEADERS_TYPE, NOW, RecordColumns
from support.errors import raises

ROWS = ["a", None, "ccc"]


def rows_of(columns):
    count = len(columns)
    keys = [None] * count if columns.key is None else columns.key.to_pylist()
    listed = [None] * count if columns.headers is None else columns.headers.to_pylist()
    stamps = [NOW] * count if columns.timestamp_ms is None else columns.timestamp_ms.tolist()
    return list(
        zip(keys, columns.value.to_pylist(), [one or [] for one in listed], stamps, strict=True)
    )


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.large_binary(),
        pa.string(),
        pa.large_string(),
        pa.binary_view(),
        pa.string_view(),
    ],
)
@pytest.mark.parametrize("chunked", [False, True])
def test_every_kind_of_bytes_and_text_is_taken(kind, chunked):
    column = pa.array(ROWS, pa.string()).cast(kind)
    if chunked:
        column = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    columns = RecordColumns.of(column, key=column)
    assert columns.value.type == columns.key.type == pa.binary()
    assert columns.value.to_pylist() == columns.key.to_pylist() == [b"a", None, b"ccc"]


def test_fixed_size_bytes_nothing_but_nulls_and_no_chunks_are_taken():
    assert RecordColumns.of(pa.array([b"ab", None], pa.binary(2))).value.to_pylist() == [
        b"ab",
        None,
    ]
    assert RecordColumns.of(pa.nulls(2)).value.to_pylist() == [None, None]
    assert len(RecordColumns.of(pa.chunked_array([], pa.string()))) == 0


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.binary()), pa.timestamp("us"), pa.bool_()]
)
@pytest.mark.parametrize("name", ["key", "value"])
def test_other_types_are_refused_by_name(kind, name):
    columns = {"value": pa.nulls(2, pa.binary()), name: pa.nulls(2, kind)}
    with pytest.raises(InvalidColumn, match=f"'{name}'") as refused:
        RecordColumns.of(columns.pop("value"), **columns)
    assert "cast" in refused.value.next_step


def test_headers_of_another_type_are_refused():
    with raises(InvalidColumn):
        RecordColumns.of(pa.nulls(1, pa.binary()), headers=pa.array([["x"]]))


def test_headers_with_large_types_are_taken():
    kind = pa.list_(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
    columns = RecordColumns.of(
        pa.nulls(1, pa.binary()), headers=pa.array([[{"key": "k", "value": b"v"}]], kind)
    )
    assert columns.headers.type == HEADERS_TYPE
    assert columns.headers.to_pylist() == [[{"key": "k", "value": b"v"}]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Shanghai"])
def test_timestamps_of_any_unit_and_zone_become_milliseconds(unit, zone):
    moment = datetime.datetime(
        2024, 6, 7, 8, 9, 10, tzinfo=datetime.timezone.utc if zone else None
    )
    stamps = pa.array([moment, None], pa.timestamp(unit, zone))
    wanted = int(moment.replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
    assert RecordColumns.of(pa.nulls(2, pa.binary()), timestamp=stamps).timestamp_ms.tolist() == [
        wanted,
        NOW,
    ]


def test_milliseconds_are_cut_not_rounded():
    stamps = pa.array([1_999, 2_000], pa.timestamp("us"))
    assert RecordColumns.of(pa.nulls(2, pa.binary()), timestamp=stamps).timestamp_ms.tolist() == [
        1,
        2,
    ]


def test_plain_integers_are_milliseconds():
    for stamps in (pa.array([7, 8]), pa.chunked_array([[7], [8]]), np.array([7, 8])):
        assert RecordColumns.of(
            pa.nulls(2, pa.binary()), timestamp=stamps
        ).timestamp_ms.tolist() == [7, 8]
    with raises(InvalidColumn):
        RecordColumns.of(pa.nulls(2, pa.binary()), timestamp=pa.array(["1", "2"]))


def test_unequal_lengths_are_refused():
    with raises(InvalidColumn):
        RecordColumns.of(pa.nulls(2, pa.binary()), key=pa.nulls(1, pa.binary()))


@given(st.lists(st.lists(plain_records, min_size=1, max_size=5), min_size=1, max_size=4))
def test_concatenation_keeps_every_row(groups):
    parts = [columns_of(group, padded=True) for group in groups]
    assert rows_of(RecordColumns.concat(parts)) == [row for part in parts for row in rows_of(part)]


@given(st.lists(plain_records, min_size=1, max_size=20), st.data())
def test_take_and_slice_pick_rows(records, data):
    columns = columns_of(records, padded=True)
    start = data.draw(st.integers(0, len(records)))
    length = data.draw(st.integers(0, len(records) - start))
    assert rows_of(sliced(columns, start, length)) == rows_of(columns)[start : start + length]
    order = data.draw(st.lists(st.integers(0, len(records) - 1)))
    assert rows_of(columns.take(np.array(order, np.int64))) == [rows_of(columns)[i] for i in order]


def test_the_payload_is_counted_for_the_slice_alone():
    columns = RecordColumns(
        pa.array([b"k", b"kk"], pa.binary()), pa.array([b"vvv", b"vvvv"], pa.binary())
    )
    assert columns.nbytes == 10
    assert sliced(columns, 1, 1).nbytes == 6
    assert sliced(columns, 1, 0).nbytes == 0


def test_columns_beyond_two_gigabytes_are_refused_by_name():
    # 2 GiB of rows that all point at one buffer of 64 KiB: nothing is copied before the refusal.
    payload = pa.py_buffer(bytes(1 << 16))
    offsets = pa.py_buffer(np.array([0, 1 << 16], np.int32))
    one = RecordColumns(None, pa.Array.from_buffers(pa.binary(), 1, [None, offsets, payload]))
    with raises(InvalidColumn) as refused:
        RecordColumns.concat([one] * (1 << 15))
    assert "maxRecordsPerBatch" in refused.value.next_step
