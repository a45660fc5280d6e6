"""The content checksum of plain records, one by one: slow, and easy to believe. Encoding goes
another way, and tests compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

import crc32c

from onceward.kafka.records.checksum import ContentChecksum, Stretch
from support.varints import varint

Headers = Sequence[tuple[str, "bytes | None"]]


def checksum_of(
    records: Iterable[tuple[bytes | None, bytes | None, Headers | None]],
) -> ContentChecksum:
    """Return the checksum of ``(key, value, headers)`` records."""
    crcs, sizes = [0, 0, 0, 0], [0, 0, 0, 0]
    for key, value, headers in records:
        lengths = struct.pack(
            ">ii", -1 if key is None else len(key), -1 if value is None else len(value)
        )
        for i, part in enumerate(
            (lengths, key or b"", value or b"", headers_section(headers or ()))
        ):
            crcs[i] = crc32c.crc32c(part, crcs[i])
            sizes[i] += len(part)
    return ContentChecksum(*map(Stretch, crcs, sizes))


def headers_section(headers: Headers) -> bytes:
    """Return one record's headers in the record format (KIP-82, ``DefaultRecord.writeTo``)."""
    section = bytearray(varint(len(headers)))
    for key, value in headers:
        name = key.encode()
        section += varint(len(name)) + name
        section += varint(-1) if value is None else varint(len(value)) + value
    return bytes(section)
