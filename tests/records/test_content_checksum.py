"""The manifest's checksum: recomputable by anyone, combinable without the data."""

from __future__ import annotations

import pickle
import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from record_strategies import record_lists

from onceward.kafka.records.checksum import ContentChecksum, Stretch
from support.plain_checksum import checksum_of, headers_section


def of(records):
    return checksum_of((row.key, row.value, row.headers) for row in records)


@given(record_lists, st.data())
def test_combining_equals_computing_over_both(records, data):
    cut = data.draw(st.integers(0, len(records)))
    assert ContentChecksum.combine(of(records[:cut]), of(records[cut:])) == of(records)


@given(record_lists)
def test_the_empty_checksum_changes_nothing(records):
    empty = ContentChecksum(*[Stretch(0, 0)] * 4)
    assert ContentChecksum.combine(empty, of(records)) == of(records)
    assert ContentChecksum.combine(of(records), empty) == of(records)


@pytest.mark.parametrize("size", [1, 255, 256, 65_537, 3_000_001])
def test_stretches_of_any_length_combine(size):
    first, second = b"first" * 7, bytes(range(251)) * (size // 251 + 1)
    second = second[:size]
    assert Stretch.of(first).then(Stretch.of(second)) == Stretch(
        crc32c.crc32c(first + second), 35 + size
    )


def test_it_is_what_the_documentation_says():
    checksum = checksum_of([(b"k", None, None), (None, b"value", [("h", b"x"), ("n", None)])])
    wanted = [
        struct.pack(">iiii", 1, -1, -1, 5),
        b"k",
        b"value",
        b"\0" + b"\x04\x02h\x02x\x02n\x01",
    ]
    assert checksum.stretches == tuple((crc32c.crc32c(part), len(part)) for part in wanted)
    assert checksum.hexdigest() == "-".join(f"{crc32c.crc32c(part):08x}" for part in wanted)


def test_an_empty_payload_is_not_a_null_one():
    assert of_one(b"", b"") != of_one(None, b"") != of_one(b"", None)


def of_one(key, value):
    return checksum_of([(key, value, None)])


def test_long_headers_take_longer_lengths():
    assert (
        headers_section([("n" * 70, b"v" * 9000)])
        == b"\x02\x8c\x01" + b"n" * 70 + b"\xd0\x8c\x01" + b"v" * 9000
    )


@given(record_lists)
def test_it_goes_through_pickle(records):
    checksum = of(records)
    assert pickle.loads(pickle.dumps(checksum)) == checksum  # noqa: S301 - our own bytes
