"""The rows on their way to Kafka, as columns: what a task got from Spark, in the only shape
``records`` works on.

Called by the Kafka sink's tasks (executor); everything else in ``records`` takes and gives
:class:`RecordColumns`. Nothing here copies a payload unless it must (`take`, `concat`, and columns
of strings with 64-bit offsets).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import InvalidColumn

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

NOW = np.iinfo(np.int64).min
"""In ``timestamp_ms``: no time of its own; the row takes ``now_ms`` when it is encoded."""

# Arrow binary columns have 32-bit offsets
_MAX_COLUMN_BYTES = (1 << 31) - 1
_SMALLER = (
    "lower spark.sql.execution.arrow.maxRecordsPerBatch so that one Arrow batch holds less than 2 "
    "GiB"
)


@dataclass(frozen=True, slots=True, eq=False)
class RecordColumns:
    """n rows of one or more topics' records. Arrays may be slices (offset other than 0); all have
    the same length. ``value`` is null for a tombstone, ``key`` None when all keys are null,
    ``headers`` None when no row has any (a null list means the same for one row), ``timestamp_ms``
    None when every row takes the time of encoding."""

    key: Any  # pa.BinaryArray | None
    value: Any  # pa.BinaryArray
    # pa.ListArray of HEADERS_TYPE | None
    headers: Any = None
    timestamp_ms: npt.NDArray[np.int64] | None = None

    @staticmethod
    def of(
        value: Any, *, key: Any = None, headers: Any = None, timestamp: Any = None
    ) -> RecordColumns:
        """Return columns of any Arrow shape, normalised.

        ``value`` and ``key``: binary or string, also large, view or fixed-size, arrays or chunked
        arrays. ``headers``: list<struct<key: string, value: binary>>. ``timestamp``: an Arrow
        timestamp of any unit, or int64 milliseconds since 1970 (Arrow or NumPy); null means "the
        time of encoding". Raises InvalidColumn naming the column for other types, unequal lengths,
        or more than 2 GiB in one column.
        """
        columns = RecordColumns(
            key=None if key is None else _binary("key", key),
            value=_binary("value", value),
            headers=None if headers is None else _converted("headers", headers, HEADERS_TYPE),
            timestamp_ms=None if timestamp is None else _milliseconds(timestamp),
        )
        for name in ("key", "headers", "timestamp_ms"):
            column = getattr(columns, name)
            if column is not None and len(column) != len(columns):
                raise InvalidColumn(
                    f"column {name!r} has {len(column)} rows and 'value' has {len(columns)}",
                    next_step="give columns of the same Arrow batch",
                )
        return columns

    def __len__(self) -> int:
        return len(self.value)

    def take(self, indices: npt.NDArray[Any]) -> RecordColumns:
        """Return the rows at ``indices``, in that order; copies them."""
        where = pa.array(indices)
        return RecordColumns(
            key=None if self.key is None else self.key.take(where),
            value=self.value.take(where),
            headers=None if self.headers is None else self.headers.take(where),
            timestamp_ms=None if self.timestamp_ms is None else self.timestamp_ms[indices],
        )

    @staticmethod
    def concat(parts: Sequence[RecordColumns]) -> RecordColumns:
        """Return all rows of ``parts`` (at least one), copied. Raises InvalidColumn beyond 2 GiB a
        column."""
        if len(parts) == 1:
            return parts[0]
        lengths = [len(part) for part in parts]
        return RecordColumns(
            key=_concat("key", [part.key for part in parts], lengths, pa.binary()),
            value=_concat("value", [part.value for part in parts], lengths, pa.binary()),
            headers=_concat("headers", [part.headers for part in parts], lengths, HEADERS_TYPE),
            timestamp_ms=_concat_timestamps([part.timestamp_ms for part in parts], lengths),
        )

    @property
    def nbytes(self) -> int:
        """Payload bytes of keys and values (headers not counted)."""
        return payload_bytes(self.value) + (0 if self.key is None else payload_bytes(self.key))


def binary_offsets(array: Any) -> npt.NDArray[np.int32]:
    """Return the n + 1 offsets of a binary array into its data buffer, slices respected."""
    if len(array) == 0:
        return np.zeros(1, np.int32)
    offsets = np.frombuffer(array.buffers()[1], np.int32)
    return offsets[array.offset : array.offset + len(array) + 1]


def payload_bytes(array: Any) -> int:
    """Return the number of bytes that the rows of a binary array hold."""
    offsets = binary_offsets(array)
    return int(offsets[-1]) - int(offsets[0])


_TEXT_OR_BYTES = (
    pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary,
    pa.types.is_string, pa.types.is_large_string,
    pa.types.is_binary_view, pa.types.is_string_view, pa.types.is_null,
)  # fmt: skip


def _binary(name: str, column: Any) -> Any:
    kind = column.type
    if not any(is_kind(kind) for is_kind in _TEXT_OR_BYTES):
        raise InvalidColumn(
            f"column {name!r} has type {kind}; it must be binary or string",
            next_step=f"cast {name} to binary or string in the query",
        )
    return _converted(name, column, pa.binary())


def _converted(name: str, column: Any, arrow_type: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        column = _one_chunk(name, column)
    if column.type == arrow_type:
        return column
    try:
        return column.cast(arrow_type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        too_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
        raise InvalidColumn(
            f"column {name!r} of type {column.type} cannot become {arrow_type}",
            next_step=_SMALLER if too_large else f"give {name} the type {arrow_type}",
        ) from error


def _one_chunk(name: str, column: Any) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    try:
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    except pa.ArrowInvalid as error:
        raise InvalidColumn(
            f"column {name!r} holds more than 2 GiB in one Arrow batch", next_step=_SMALLER
        ) from error


def _milliseconds(column: Any) -> npt.NDArray[np.int64]:
    if isinstance(column, np.ndarray):
        return column.astype(np.int64, copy=False)
    if pa.types.is_timestamp(column.type):
        # Cut towards the past, as Spark does for its own Kafka sink; Arrow's unsafe cast cuts
        # towards 1970, which differs only for times that Kafka refuses anyway.
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    elif not pa.types.is_int64(column.type):
        raise InvalidColumn(
            f"column 'timestamp' has type {column.type}; it must be a timestamp",
            next_step="cast timestamp to a timestamp in the query",
        )
    if isinstance(column, pa.ChunkedArray):
        column = _one_chunk("timestamp", column)
    if column.null_count:
        column = pc.fill_null(column, NOW)
    milliseconds: npt.NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
    return milliseconds


def _concat(name: str, columns: list[Any], lengths: list[int], kind: Any) -> Any:
    if all(column is None for column in columns):
        return None
    full = [
        pa.nulls(n, kind) if column is None else column
        for column, n in zip(columns, lengths, strict=True)
    ]
    if kind == pa.binary() and sum(map(payload_bytes, full)) > _MAX_COLUMN_BYTES:
        raise InvalidColumn(f"column {name!r} would hold more than 2 GiB", next_step=_SMALLER)
    return pa.concat_arrays(full)


def _concat_timestamps(
    columns: list[npt.NDArray[np.int64] | None], lengths: list[int]
) -> npt.NDArray[np.int64] | None:
    if all(column is None for column in columns):
        return None
    return np.concatenate(
        [
            np.full(n, NOW) if column is None else column
            for column, n in zip(columns, lengths, strict=True)
        ]
    )
