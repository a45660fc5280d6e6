"""One short text for the rows of a range, the same whenever the rows are the same. Pure.

Called by :mod:`onceward.custom.resettable.ranges`. It stands in a checkpoint, so it must not
depend on how the rows came (chunks, dictionaries, slices), on the time zone, or on versions: it is
made of plain Python values.
"""

from __future__ import annotations

import hashlib
from datetime import date, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)


def checksum(table: pa.Table) -> str:
    """Return 32 hexadecimal digits of SHA-256, over names, types and values, column by column, in
    the rows' order."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(repr((name, str(column.type), table.num_rows)).encode())
        digest.update(repr(_plain_column(column)).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()[:32]


def _plain_column(column: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.int64()).to_pylist())
    values: list[Any] = column.to_pylist()
    return [_plain(value) for value in values] if _may_hide_time(column.type) else values


def _may_hide_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind) or pa.types.is_temporal(kind))


def _plain(value: Any) -> Any:
    """Replace objects whose ``repr`` depends on a library: time zones have one of several."""
    if isinstance(value, datetime):
        naive = (
            value if value.tzinfo is None else value.astimezone(timezone.utc).replace(tzinfo=None)
        )
        return ["time", (naive - _EPOCH) // _MICROSECOND]
    if isinstance(value, date):
        return ["date", value.toordinal()]
    if isinstance(value, timedelta):
        return ["interval", value // _MICROSECOND]
    if isinstance(value, dict):
        return [[key, _plain(inner)] for key, inner in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
