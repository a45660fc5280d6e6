"""Kafka's framings, to the byte where the format fixes them, and decompression that cannot be
talked into memory.
"""

from __future__ import annotations

import contextlib
import gzip
import random
import struct
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.errors import ConfigurationError
from onceward.kafka.records.compression import (
    Codec,
    CorruptRecords,
    check_level,
    compress,
    decompress,
)
from onceward.kafka.wire.options.settings import ProducerSettings
from support.errors import raises

REAL = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]
LIMIT = 10_000_000


def sample(size, seed=1):
    """Half text, half noise: compressible, and with blocks that are not."""
    rng = random.Random(seed)
    return b"".join(
        rng.choice((b"exactly once ", rng.randbytes(13))) for _ in range(size // 13 + 1)
    )[:size]


@given(
    st.binary(max_size=3000) | st.integers(0, 400_000).map(sample), st.sampled_from(list(Codec))
)
def test_what_was_compressed_comes_back(data, codec):
    assert decompress(codec, compress(codec, data), max(len(data), 1)) == data


@pytest.mark.parametrize("codec", list(Codec))
def test_any_buffer_will_do(codec):
    data = sample(1000)
    for buffer in (data, bytearray(data), memoryview(data), pa.py_buffer(data)):
        assert decompress(codec, compress(codec, buffer), LIMIT) == data


@pytest.mark.parametrize(
    ("codec", "levels"), [(Codec.GZIP, (1, 9)), (Codec.LZ4, (1, 9, 17)), (Codec.ZSTD, (-5, 1, 22))]
)
def test_levels_are_taken(codec, levels):
    for level in levels:
        assert decompress(codec, compress(codec, sample(100_000), level), LIMIT) == sample(100_000)


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        (Codec.GZIP, 0),
        (Codec.GZIP, 10),
        (Codec.LZ4, 18),
        (Codec.ZSTD, 23),
        (Codec.SNAPPY, 1),
        (Codec.NONE, 1),
    ],
)
def test_levels_out_of_range_are_refused(codec, level):
    with raises(ConfigurationError):
        check_level(codec, level)


def test_codecs_have_kafkas_names():
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    assert [ProducerSettings(name).codec for name in names] == list(Codec)


def test_gzip_is_one_plain_member():
    assert gzip.decompress(compress(Codec.GZIP, b"abc" * 99)) == b"abc" * 99


def test_several_gzip_members_are_one_stream():
    assert decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd"), 4) == b"abcd"


def test_snappy_is_framed_as_snappy_java_does():
    data = sample(100_000)
    framed = compress(Codec.SNAPPY, data)
    assert framed[:16] == b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    at, blocks = 16, []
    while at < len(framed):
        (size,) = struct.unpack_from(">i", framed, at)
        blocks.append(framed[at + 4 : at + 4 + size])
        at += 4 + size
    assert len(blocks) == 4  # 32 KiB each
    assert (
        b"".join(pa.Codec("snappy").decompress(b, 32768, asbytes=True) for b in blocks[:3])
        == data[: 3 * 32768]
    )


def test_raw_snappy_as_librdkafka_writes_it_is_read():
    data = sample(100_000)
    assert decompress(Codec.SNAPPY, pa.Codec("snappy").compress(data, asbytes=True), LIMIT) == data


def test_lz4_frames_have_independent_blocks_and_the_right_header_checksum():
    framed = compress(Codec.LZ4, sample(200_000))
    assert (
        framed[:7].hex() == "04224d18604082"
    )  # magic, version 1 + independent blocks, 64 KiB, xxHash32 >> 8
    at, blocks = 7, 0
    while size := struct.unpack_from("<I", framed, at)[0] & 0x7FFF_FFFF:
        at += 4 + size
        blocks += 1
    assert blocks == 4
    assert at + 4 == len(framed)


def test_lz4_blocks_that_do_not_shrink_are_stored():
    noise = random.Random(3).randbytes(70_000)
    framed = compress(Codec.LZ4, noise)
    assert len(framed) == 7 + 2 * 4 + len(noise) + 4
    assert decompress(Codec.LZ4, framed, LIMIT) == noise


def test_lz4_frames_with_linked_blocks_are_read():
    data = sample(300_000)
    assert decompress(Codec.LZ4, pa.Codec("lz4").compress(data, asbytes=True), LIMIT) == data


@pytest.mark.parametrize("codec", REAL)
def test_the_limit_is_the_last_length_allowed(codec):
    packed = compress(codec, bytes(1000))
    assert decompress(codec, packed, 1000) == bytes(1000)
    with raises(CorruptRecords):
        decompress(codec, packed, 999)


@pytest.mark.parametrize("codec", REAL)
def test_bombs_are_refused_without_their_memory(codec):
    bomb = compress(codec, bytes(50_000_000))
    assert len(bomb) < 3_000_000
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with raises(CorruptRecords):
            decompress(codec, bomb, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
        assert pa.total_allocated_bytes() - before < 5_000_000
    finally:
        tracemalloc.stop()


def snappy_claiming(length):
    preamble = bytearray()
    while length > 0x7F:
        preamble.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*preamble, length]) + b"\x00a"


@pytest.mark.parametrize(
    "packed",
    [
        snappy_claiming(1 << 31),
        snappy_claiming(9_000_000),
        b"\xff" * 20,
        b"",
        b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, 2**31 - 1) + b"a",
        b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, -1) + b"a",
        b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"\0",
    ],
)
def test_snappy_lengths_are_not_believed(packed):
    with pytest.raises(CorruptRecords):
        decompress(Codec.SNAPPY, packed, LIMIT)


def test_a_snappy_block_may_not_claim_more_than_it_can_hold():
    with raises(CorruptRecords):
        decompress(Codec.SNAPPY, snappy_claiming(9_000_000), LIMIT)


@pytest.mark.parametrize("codec", REAL)
@given(data=st.data())
def test_damaged_and_cut_data_are_refused_or_read_but_never_anything_else(codec, data):
    packed = bytearray(compress(codec, sample(data.draw(st.sampled_from([10, 500, 70_000])))))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed) - 1)) :]
    for _ in range(data.draw(st.integers(0, 3))):
        if packed:
            packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptRecords):
        assert len(decompress(codec, packed, 100_000)) <= 100_000


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_stream_cut_before_its_end_is_refused(codec):
    packed = compress(codec, sample(100_000))
    for cut in (1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CorruptRecords):
            decompress(codec, packed[:cut], LIMIT)


def test_zlib_without_a_gzip_member_is_refused():
    with pytest.raises(CorruptRecords):
        decompress(Codec.GZIP, zlib.compress(b"abc"), LIMIT)
