"""Keys land where the Java client, kafka-python and librdkafka put them; records without a key
spread evenly.
"""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2
from record_strategies import Plain, columns_of, sliced

from onceward.kafka.records.partitioner import (
    assign_partitions,
    group_by_partition,
    murmur2,
    partition_of_keys,
)

# UtilsTest.testMurmur2 of kafka-clients.
JAVA_VECTORS = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def hashes(keys):
    return murmur2(pa.array(keys, pa.binary())).tolist()


def test_murmur2_gives_the_vectors_of_the_java_clients_own_test():
    assert np.array(hashes(list(JAVA_VECTORS)), np.uint32).astype(np.int32).tolist() == list(
        JAVA_VECTORS.values()
    )


@given(
    st.lists(
        st.binary(max_size=40) | st.integers(0, 2000).map(lambda n: b"k" * n),
        min_size=1,
        max_size=80,
    )
)
def test_murmur2_equals_kafka_pythons(keys):
    assert hashes(keys) == [kafka_python_murmur2(key) & 0xFFFF_FFFF for key in keys]


@given(st.integers(0, 25), st.integers(1, 60))
def test_murmur2_of_keys_of_one_length_equals_kafka_pythons(length, count):
    rng = random.Random(length * 100 + count)
    keys = [rng.randbytes(length) for _ in range(count)]
    assert hashes(keys) == [kafka_python_murmur2(key) & 0xFFFF_FFFF for key in keys]


def test_a_few_very_long_keys_among_short_ones_are_hashed_right():
    rng = random.Random(5)
    keys = [rng.randbytes(9) for _ in range(50)] + [rng.randbytes(100_001), rng.randbytes(33_333)]
    rng.shuffle(keys)
    assert hashes(keys) == [kafka_python_murmur2(key) & 0xFFFF_FFFF for key in keys]


@pytest.mark.parametrize("partition_count", [1, 2, 3, 7, 16, 100_000])
def test_the_partition_is_the_positive_hash_modulo_the_count(partition_count):
    keys = [b"key-%d" % i for i in range(500)]
    wanted = [(kafka_python_murmur2(key) & 0x7FFF_FFFF) % partition_count for key in keys]
    got = partition_of_keys(pa.array(keys, pa.binary()), partition_count)
    assert got.dtype == np.int32
    assert got.tolist() == wanted


def test_slices_of_a_column_are_hashed_by_their_own_rows():
    keys = pa.array([b"not this", b"abc", b"foobar", b"nor this"], pa.binary()).slice(1, 2)
    assert murmur2(keys).astype(np.int32).tolist() == [
        JAVA_VECTORS[b"abc"],
        JAVA_VECTORS[b"foobar"],
    ]


def test_no_keys_at_all_and_no_rows_at_all():
    assert murmur2(pa.array([], pa.binary())).tolist() == []
    assert assign_partitions(None, 0, 4, 0).tolist() == []
    assert assign_partitions(None, 5, 4, 2).tolist() == [2, 3, 0, 1, 2]


@given(
    st.lists(st.none() | st.binary(max_size=5), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(0, 100),
)
def test_rows_without_a_key_go_round_and_rows_with_one_stay(keys, partition_count, first):
    column = pa.array(keys, pa.binary())
    assigned = assign_partitions(column, len(keys), partition_count, first)
    by_key = partition_of_keys(column, partition_count)
    without = [int(p) for p, key in zip(assigned, keys, strict=True) if key is None]
    assert without == [(first + i) % partition_count for i in range(len(without))]
    for given_partition, own, key in zip(assigned, by_key, keys, strict=True):
        assert key is None or given_partition == own


@given(st.lists(st.sampled_from([0, 1, 2, 5, 300, 4_464, 70_000]), min_size=1, max_size=100))
def test_groups_hold_every_row_once_in_input_order(partitions):  # 4,464 is 70,000 in 16 bits
    columns = columns_of([Plain(b"%d" % i, b"v%d" % i, (), i) for i in range(len(partitions))])
    groups = group_by_partition(columns, np.array(partitions, np.int32))
    assert [p for p, _ in groups] == sorted(set(partitions))
    for partition, rows in groups:
        wanted = [i for i, p in enumerate(partitions) if p == partition]
        assert rows.key.to_pylist() == [b"%d" % i for i in wanted]
        assert rows.value.to_pylist() == [b"v%d" % i for i in wanted]
        assert rows.timestamp_ms.tolist() == wanted


def test_rows_of_one_partition_are_not_copied():
    columns = columns_of([Plain(b"a", b"b"), Plain(b"c", b"d")])
    ((partition, rows),) = group_by_partition(columns, np.array([3, 3], np.int32))
    assert rows is columns
    assert partition == 3


def test_no_rows_make_no_groups():
    assert (
        group_by_partition(sliced(columns_of([Plain(b"a", b"b")]), 0, 0), np.empty(0, np.int32))
        == []
    )
