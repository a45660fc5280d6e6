"""Kafka's varints, written out: for tests that make records by themselves."""

from __future__ import annotations


def varint(value: int) -> bytes:
    """Write a signed number as records have it: ZigZag, seven bits a byte, lowest first (Kafka,
    *Record format*; Protocol Buffers, *Encoding*).
    """
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)
