"""Kafka's five codecs in Kafka's own framings, both ways, over pyarrow's codecs and the standard
library's zlib.

A record batch compresses its records section as a whole (KIP-98). The framings are those that the
Java client and librdkafka read and write:

* gzip: one gzip member (RFC 1952);
* snappy: xerial blocks, as ``SnappyOutputStream`` of snappy-java writes them; read also raw, as
  librdkafka writes it;
* lz4: LZ4 frames of *independent* blocks with the right header checksum (KIP-57,
  ``Lz4BlockOutputStream``);
* zstd: one Zstandard frame (KIP-110).

Decompression never allocates by a length that the data claim: it stops at the caller's limit while
it works. Called by ``kafka.records.batch`` (executor) and ``kafka.records.reader``.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pyarrow as pa

from onceward.errors import ConfigurationError, OncewardError


class CorruptRecords(OncewardError):
    """Bytes that are no valid record batch: damaged, cut off, or made to look too large."""


class Codec(IntEnum):
    """The codec bits of a record batch's attributes (``CompressionType``)."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_LEVELS = {Codec.GZIP: (1, 9), Codec.LZ4: (1, 17), Codec.ZSTD: (-(1 << 17), 22)}  # KIP-390
# What the Java client and librdkafka use when nothing is said
_ZSTD_LEVEL = 3

# zlib: the largest window, wrapped in a gzip member
_GZIP = 31

_XERIAL_MAGIC = b"\x82SNAPPY\0"
# Version, lowest compatible version
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK = 32 * 1024  # snappy-java's default

# Version 1, independent blocks, no checksums; blocks of at most 64 KB; the descriptor's checksum
# (xxHash32 >> 8). Written here because LZ4F_compressFrame, behind pyarrow's "lz4", links blocks
# beyond 64 KB and Kafka's Lz4BlockInputStream refuses linked blocks.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK = 64 * 1024
# The block's size with this bit: not compressed
_LZ4_STORED = 0x8000_0000
_LZ4_END = b"\0\0\0\0"

# Bytes asked of a streaming decompressor at a time
_STEP = 256 * 1024
# A copy of 64 bytes takes 3 at least, so nothing honest expands more
_SNAPPY_MAX_RATIO = 22


def check_level(codec: Codec, level: int | None) -> None:
    """Raise ConfigurationError unless ``codec`` takes ``level`` (KIP-390). None: its default."""
    if level is None:
        return
    if codec not in _LEVELS:
        raise ConfigurationError(
            f"compression.type={codec.name.lower()} has no levels",
            next_step="remove the compression level",
        )
    low, high = _LEVELS[codec]
    if not low <= level <= high:
        raise ConfigurationError(
            f"compression level {level} is outside {low} to {high} of {codec.name.lower()}",
            next_step=f"choose a compression.{codec.name.lower()}.level between {low} and {high}",
        )


def compress(codec: Codec, buf: Any, level: int | None = None) -> bytes:
    """Return ``buf`` compressed in Kafka's framing of ``codec``. Raises ConfigurationError for a
    level that ``codec`` does not take."""
    check_level(codec, level)
    view = memoryview(buf).cast("B")
    if codec is Codec.GZIP:
        member = zlib.compressobj(-1 if level is None else level, wbits=_GZIP)
        return member.compress(view) + member.flush()
    if codec is Codec.SNAPPY:
        return b"".join(_xerial_blocks(view))
    if codec is Codec.LZ4:
        return b"".join(_lz4_blocks(view, level))
    if codec is Codec.ZSTD:
        zstd = pa.Codec("zstd", compression_level=_ZSTD_LEVEL if level is None else level)
        frame: bytes = zstd.compress(view, asbytes=True)
        return frame
    return bytes(view)


def decompress(codec: Codec, buf: Any, limit_bytes: int) -> bytes:
    """Return the bytes that were compressed into ``buf``, at most ``limit_bytes`` of them. Raises
    CorruptRecords for damaged or truncated data, and for data that expand beyond the limit."""
    view = memoryview(buf).cast("B")
    if codec is Codec.NONE:
        _refuse_beyond(limit_bytes, len(view))
        return bytes(view)
    if codec is Codec.GZIP:
        return _gunzip(view, limit_bytes)
    if codec is Codec.SNAPPY:
        return _unsnappy(view, limit_bytes)
    return _unstream("lz4" if codec is Codec.LZ4 else "zstd", view, limit_bytes)


def _xerial_blocks(view: memoryview) -> Iterator[bytes]:
    yield _XERIAL_HEADER
    codec = pa.Codec("snappy")
    for start in range(0, len(view), _XERIAL_BLOCK):
        block = codec.compress(view[start : start + _XERIAL_BLOCK], asbytes=True)
        yield struct.pack(">i", len(block))
        yield block


def _lz4_blocks(view: memoryview, level: int | None) -> Iterator[bytes | memoryview]:
    yield _LZ4_HEADER
    codec = pa.Codec("lz4_raw", compression_level=level)
    for start in range(0, len(view), _LZ4_BLOCK):
        plain = view[start : start + _LZ4_BLOCK]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            yield struct.pack("<I", len(block))
            yield block
        else:
            yield struct.pack("<I", len(plain) | _LZ4_STORED)
            yield plain
    yield _LZ4_END


def _gunzip(view: memoryview, limit_bytes: int) -> bytes:
    out = bytearray()
    rest: Any = view
    while len(rest):
        member = zlib.decompressobj(wbits=_GZIP)
        try:
            out += member.decompress(rest, limit_bytes + 1 - len(out))
        except zlib.error as error:
            raise _damaged("gzip", error) from error
        _refuse_beyond(limit_bytes, len(out))
        if not member.eof:
            raise _damaged("gzip", "it ends in the middle")
        rest = member.unused_data
    return bytes(out)


def _unsnappy(view: memoryview, limit_bytes: int) -> bytes:
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _raw_unsnappy(view, 0, limit_bytes)
    out = bytearray()
    at = len(_XERIAL_HEADER)
    while at < len(view):
        size = int.from_bytes(view[at : at + 4], "big")
        at += 4
        if size > len(view) - at:
            raise _damaged("snappy", "a block is longer than the data")
        out += _raw_unsnappy(view[at : at + size], len(out), limit_bytes)
        at += size
    return bytes(out)


def _raw_unsnappy(view: memoryview, already: int, limit_bytes: int) -> bytes:
    declared = _snappy_length(view)
    _refuse_beyond(limit_bytes, already + declared)
    if declared > len(view) * _SNAPPY_MAX_RATIO:
        raise _damaged("snappy", "it claims more than its bytes can hold")
    try:
        plain: bytes = pa.Codec("snappy").decompress(
            view, decompressed_size=declared, asbytes=True
        )
    except (OSError, ValueError) as error:
        raise _damaged("snappy", error) from error
    return plain


def _snappy_length(view: memoryview) -> int:
    """Return the preamble of a raw snappy block: the plain length, a varint of at most 5 bytes."""
    length = 0
    for i, byte in enumerate(view[:5]):
        length |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return length
    raise _damaged("snappy", "its length is no varint")


def _unstream(name: str, view: memoryview, limit_bytes: int) -> bytes:
    out = bytearray()
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(view)), name) as stream:
            while chunk := stream.read(min(_STEP, limit_bytes + 1 - len(out))):
                out += chunk
                _refuse_beyond(limit_bytes, len(out))
    except (OSError, ValueError) as error:
        raise _damaged(name, error) from error
    return bytes(out)


def _refuse_beyond(limit_bytes: int, length: int) -> None:
    if length > limit_bytes:
        raise CorruptRecords(
            f"compressed records expand beyond {limit_bytes} bytes",
            next_step="raise the limit if batches of this size are expected, otherwise treat the "
            "data as hostile",
        )


def _damaged(codec: str, reason: object) -> CorruptRecords:
    return CorruptRecords(
        f"{codec} data of a record batch are damaged: {reason}",
        next_step="read the partition again from the broker",
    )
