"""The content checksum of a manifest, recomputed from its definition alone: four running CRC-32C.

Over the records of one partition in offset order: key and value lengths (big-endian int32, -1 for
null), key bytes, value bytes, and each record's headers section (zigzag varint count, then for
each header varint key length, key, varint value length, value). Printed as
``llllllll-kkkkkkkk-vvvvvvvv-hhhhhhhh``. Takes records a stretch at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from onceward_verify.findings import Unavailable

try:
    from crc32c import crc32c
except ImportError as missing:  # pragma: no cover  it is a dependency of the package
    raise Unavailable(
        "the crc32c package is missing", next_step="pip install onceward"
    ) from missing

Headers = Sequence[tuple[str, "bytes | None"]]


class RunningChecksum:
    """Content checksum and number of the records fed so far."""

    __slots__ = ("_crcs", "count")

    def __init__(self) -> None:
        self.count = 0
        self._crcs = [0, 0, 0, 0]

    def feed(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[Headers | None],
    ) -> None:
        """The next records, one item each."""
        lengths: Any = np.empty((len(keys), 2), ">i4")
        lengths[:, 0] = [-1 if key is None else len(key) for key in keys]
        lengths[:, 1] = [-1 if value is None else len(value) for value in values]
        sections = b"".join([headers_section(item) if item else b"\0" for item in headers])
        for index, data in enumerate(
            (lengths.tobytes(), _joined(keys), _joined(values), sections)
        ):
            self._crcs[index] = crc32c(data, self._crcs[index])
        self.count += len(keys)

    def hexdigest(self) -> str:
        return "-".join(f"{crc:08x}" for crc in self._crcs)


def headers_section(headers: Headers) -> bytes:
    """The headers of one record as Kafka's record format has them (KIP-82)."""
    section = varint(len(headers))
    for name, value in headers:
        encoded = name.encode()
        section += varint(len(encoded)) + encoded
        section += varint(-1) if value is None else varint(len(value)) + value
    return section


def varint(number: int) -> bytes:
    """Zigzag, seven bits a byte, least significant first."""
    rest = number * 2 if number >= 0 else -number * 2 - 1
    out = bytearray()
    while rest >= 0x80:
        out.append(rest % 0x80 + 0x80)
        rest //= 0x80
    return bytes([*out, rest])


def _joined(parts: Sequence[bytes | None]) -> bytes:
    return b"".join([part for part in parts if part])
