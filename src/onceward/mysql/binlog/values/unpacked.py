"""MariaDB's COMPRESSED columns. Pure; called by the modules beside it.

A byte, whose upper half is the method (0: none, 8: zlib) and whose lower three bits are how many
bytes of length follow, the greatest first; its bit 3 says that it is raw deflate, without zlib's
header. Source: MariaDB ``sql/field_comp.cc``.
"""

from __future__ import annotations

import zlib

import pyarrow as pa

from onceward.mysql.binlog.column import Column
from onceward.mysql.binlog.refusals import BadCell, damaged, unreadable
from onceward.mysql.binlog.rows import Cells
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values.bytes_at import BytesAt

_PLAIN, _ZLIB = 0, 8
_RAW = 8
_MOST = 1032
"""What a byte of deflate becomes at most: a length that says more is none."""


def array(table: TableMap, column: Column, at: BytesAt, cells: Cells) -> pa.Array:
    """The bytes as they were before.

    :raises BadCell: they do not unpack to the length that they say, or are packed in another way.
    """
    found: list[bytes | None] = []
    named = f"a value of the compressed column {column.name!r} of {table.name}"
    try:
        for value in at.slices(cells):
            found.append(value and _unpacked(value))  # noqa: PERF401  says where it stopped
    except (zlib.error, ValueError) as error:
        raise BadCell(len(found), damaged(f"{named} cannot be unpacked: {error}")) from None
    except NotImplementedError as error:
        step = (
            f"ALTER TABLE {table.name} to have it without COMPRESSED, and start from a "
            f"position after that"
        )
        raise BadCell(
            len(found), unreadable("column_type", f"{named} is packed by {error}", step)
        ) from None
    return pa.array(found, pa.binary())


def _unpacked(value: bytes) -> bytes:
    method, width = value[0] >> 4, value[0] & 7
    if method == _PLAIN:
        return value[1:]
    if method != _ZLIB:
        raise NotImplementedError(f"method {method}, which is not known")
    length = int.from_bytes(value[1 : 1 + width], "big")
    packed = value[1 + width :]
    if length > _MOST * len(packed):
        raise ValueError(f"{len(packed)} bytes cannot become {length}")
    inflate = zlib.decompressobj(-zlib.MAX_WBITS if value[0] & _RAW else zlib.MAX_WBITS)
    found = inflate.decompress(packed, length + 1)
    if len(found) != length:
        raise ValueError(f"they are {len(found)} bytes or more, and say {length}")
    return found
