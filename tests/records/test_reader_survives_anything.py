"""The reader against hostile bytes: CorruptRecords or right answers, within the memory that the
input justifies.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_strategies import NOW_MS, Plain, as_plain, columns_of, expected, on_the_wire

from onceward.kafka.records.batch import encode_fragments
from onceward.kafka.records.compression import Codec, CorruptRecords
from onceward.kafka.records.reader import TimestampType, read_batches
from support.errors import raises

RECORDS = [Plain(b"k%d" % i, b"v" * i, (("h", b"x"),) if i % 3 == 0 else ()) for i in range(40)]
LIMIT = 1_000_000


def wire(codec=Codec.NONE, batch_bytes=400):
    return on_the_wire(
        encode_fragments(columns_of(RECORDS), codec=codec, batch_bytes=batch_bytes, now_ms=NOW_MS),
        base_sequence=3,
    )


def with_crc(batch):
    """One batch whose CRC is made to fit, so that damage reaches the code behind it."""
    return batch[:17] + crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big") + batch[21:]


def patched(batch, at, kind, value):
    changed = bytearray(batch)
    struct.pack_into(kind, changed, at, value)
    return with_crc(bytes(changed))


def one_batch(body, *, count, last_delta=None, attributes=0):
    """A well-formed header around ``body`` as the records section."""
    inner = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_delta is None else last_delta,
        5,
        9,
        -1,
        -1,
        -1,
        count,
    )
    return with_crc(struct.pack(">qiibI", 0, 9 + len(inner) + len(body), -1, 2, 0) + inner + body)


def read_all(data, **options):
    return [
        record
        for batch in read_batches(data, limit_bytes=LIMIT, **options)
        for record in batch.records
    ]


def test_every_cut_gives_the_whole_batches_before_it():
    data = wire()
    whole = list(read_batches(data))
    assert len(whole) > 3
    ends = [0]
    for batch in whole:
        ends.append(ends[-1] + batch.size)
    for cut in range(len(data)):
        got = list(read_batches(data[:cut]))
        assert len(got) == sum(end <= cut for end in ends[1:])


@settings(max_examples=400)
@given(st.sampled_from(list(Codec)), st.data())
def test_mutations_are_refused_or_read(codec, data):
    mutated = bytearray(wire(codec, 100_000))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated) - 1))
        how = data.draw(st.sampled_from(["set", "delete", "insert", "long"]))
        if how == "set":
            mutated[at] = data.draw(st.integers(0, 255))
        elif how == "delete":
            del mutated[at]
        elif how == "insert":
            mutated[at:at] = data.draw(st.binary(max_size=4))
        else:
            mutated[at : at + 4] = data.draw(
                st.sampled_from([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80" * 4])
            )
    candidate = (
        with_crc(bytes(mutated))
        if data.draw(st.booleans()) and len(mutated) > 21
        else bytes(mutated)
    )
    tracemalloc.start()
    try:
        read_all(candidate, check_crc=data.draw(st.booleans()))
    except CorruptRecords:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3 * LIMIT


@given(st.binary(max_size=400), st.booleans())
def test_noise_is_refused_or_read(noise, framed):
    data = one_batch(noise, count=3) if framed else noise
    with contextlib.suppress(CorruptRecords):
        read_all(data)


def test_one_flipped_bit_anywhere_under_the_crc_is_found():
    data = wire(batch_bytes=100_000)
    for at in range(17, len(data), 7):
        damaged = bytearray(data)
        damaged[at] ^= 4
        with raises(CorruptRecords, "CRC"):
            list(read_batches(bytes(damaged)))


@pytest.mark.parametrize(
    ("at", "kind", "value", "reason"),
    [
        (8, ">i", 48, "less than a header"),
        (8, ">i", -1, "less than a header"),
        (8, ">i", -(1 << 31), "less than a header"),
        (16, ">b", 1, "format is 1"),
        (16, ">b", 3, "format is 3"),
        (21, ">h", 5, "codec 5"),
        (21, ">h", 7, "codec 7"),
        (23, ">i", -1, "claims"),
        (57, ">i", -1, "claims"),
        (57, ">i", (1 << 31) - 1, "claims"),
        (57, ">i", 39, "left after"),
    ],
)
def test_header_fields_that_cannot_be_are_named(at, kind, value, reason):
    with pytest.raises(CorruptRecords, match=reason):
        read_all(patched(wire(batch_bytes=100_000), at, kind, value))


def test_counts_that_the_bytes_cannot_hold_are_refused_before_reading():
    data = patched(wire(batch_bytes=100_000), 57, ">i", (1 << 31) - 1)
    with raises(CorruptRecords):
        read_all(patched(data, 23, ">i", (1 << 31) - 2))


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\x0c\0\0\0\x01\x01\0", "ok"),
        (b"\x80\x80\x80\x80\x10\0\0\0\x01\x01\0", "longer than the batch"),
        (b"\x01\0\0\0\x01\x01\0", "longer than the batch"),
        (b"\x0e\0\0\0\x01\x01\0", "longer than the batch"),
        (b"\x0a\0\0\0\x01\x01\0", "not as long as it says"),
        (b"\x0c\0\0\x02\x01\x01\0", "out of order"),
        (b"\x0c\0\0\x01\x01\x01\0", "out of order"),
        (b"\x0c\0\0\0\x03\x01\0", "a length is -2"),
        (b"\x0c\0\0\0\x7e\x01\0", "past its end"),
        (b"\x0c\0\0\0\x01\x01\x7e", "headers"),
        (b"\x0c\0\0\0\x01\x01\x01", "headers"),
        (b"\x10\0\0\0\x01\x01\x02\x01\x01", "header has no key"),
        (b"\xff" * 12, "more than ten bytes"),
    ],
)
def test_records_that_cannot_be_are_named(record, reason):
    data = one_batch(record, count=1)
    if reason == "ok":
        assert len(read_all(data)) == 1
    else:
        with pytest.raises(CorruptRecords, match=reason):
            read_all(data)


def test_a_headers_name_may_be_any_bytes():
    """Somebody else's, among the pipelines' records in a ledger topic, say."""
    (record,) = read_all(one_batch(b"\x12\0\0\0\x01\x01\x02\x02\xff\x01", count=1))
    assert record.headers == (("\ufffd", None),)


def test_compressed_records_may_not_pass_the_limit():
    (fragment,) = encode_fragments(
        columns_of([Plain(None, bytes(3_000_000))]),
        codec=Codec.ZSTD,
        batch_bytes=4_000_000,
        now_ms=0,
    )
    with raises(CorruptRecords):
        read_all(on_the_wire([fragment]))


def test_offsets_with_gaps_left_by_compaction_are_read():
    data = one_batch(b"\x0c\0\0\x04\x01\x01\0" + b"\x0c\0\0\x0a\x01\x01\0", count=2, last_delta=9)
    (batch,) = read_batches(data)
    assert [record.offset for record in batch.records] == [2, 5]
    assert batch.last_offset == 9


def test_an_emptied_batch_that_compaction_kept_is_read():
    (batch,) = read_batches(one_batch(b"", count=0, last_delta=4))
    assert batch.records == []
    assert batch.last_offset == 4


def test_an_emptied_control_batch_is_no_marker_and_no_damage():
    """As Java's consumer has it (``CompletedFetch.containsAbortMarker``)."""
    (batch,) = read_batches(one_batch(b"", count=0, last_delta=0, attributes=0x30))
    assert batch.is_control
    assert batch.control_type is None


def test_log_append_time_is_every_records_time():
    (batch,) = read_batches(one_batch(b"\x0c\0\x14\0\x01\x01\0", count=1, attributes=8))
    assert batch.timestamp_type is TimestampType.LOG_APPEND_TIME
    assert batch.records[0].timestamp_ms == 9


def test_a_control_record_without_a_type_is_refused():
    (batch,) = read_batches(one_batch(b"\x0c\0\0\0\x01\x01\0", count=1, attributes=0x20))
    with raises(CorruptRecords):
        _ = batch.control_type


def test_unknown_markers_keep_their_number():
    record = b"\x14\0\0\0\x08\0\0\0\x05\x01\0"  # key: version 0, type 5
    (batch,) = read_batches(one_batch(record, count=1, attributes=0x20))
    assert batch.control_type == 5


def test_reading_keeps_the_buffer_and_copies_no_batch():
    data = wire()
    assert all(batch.payload.obj is data for batch in read_batches(data))
    assert [as_plain(record) for record in read_all(memoryview(data))] == expected(RECORDS)
