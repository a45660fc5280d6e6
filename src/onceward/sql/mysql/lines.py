"""Arrow columns as the lines that ``LOAD DATA`` reads. Pure: columns in, bytes out.

One line a row, fields between tabs, ``\\`` before what would end a field, ``\\N`` for null: the
statement's defaults (*LOAD DATA Statement* in MySQL's manual). Texts and binaries are both sent as
they are. A float goes with all digits of the double that it is, so that it is read back as the
same.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import RowRefused

_ESCAPED = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
_BYTES = pa.large_binary()
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""From 1970 on: of the years 1 to 9999."""


def lines(rows: pa.Table) -> bytes:
    """Encode rows as lines for LOAD DATA.

    :raises RowRefused: a value that the server cannot hold, naming its column.
    """
    if rows.num_rows == 0:
        return b""
    fields = [_field(name, rows.column(name).combine_chunks()) for name in rows.column_names]
    end = pa.scalar(b"", _BYTES)
    ended = pc.binary_join_element_wise(*fields, pa.scalar(b"\t", _BYTES))
    ended = pc.binary_join_element_wise(ended, end, pa.scalar(b"\n", _BYTES))
    return b"".join(
        _data(part) for part in (ended.chunks if isinstance(ended, pa.ChunkedArray) else [ended])
    )


def _data(column: pa.Array) -> memoryview:
    """Return the bytes of all values, concatenated."""
    _, offsets, values = column.buffers()
    places = memoryview(offsets).cast("b").cast("q")
    return memoryview(values)[places[column.offset] : places[column.offset + len(column)]]


def _field(name: str, column: pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = (
            pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        )
    return pc.fill_null(_text(name, column), pa.scalar(b"\\N", _BYTES))


def _text(name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _escaped(column.cast(pa.large_string()).cast(_BYTES))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _escaped(column.cast(_BYTES))
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_floating(kind):
        if not pc.all(pc.is_finite(column), skip_nulls=True, min_count=0).as_py():
            raise RowRefused(
                f"column {name!r} has infinity or NaN, which the server has not",
                next_step="mend or filter such rows in the query; nullif(x, 'NaN') makes nulls of "
                "them",
            )
        column = column.cast(pa.float64())
    elif pa.types.is_date32(kind):
        _must_be_within(name, column.cast(pa.int32()), _DAYS)
    elif pa.types.is_timestamp(kind):
        # In UTC, if it is a moment
        number = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
        _must_be_within(name, number, _MICROSECONDS)
        column = number.cast(pa.timestamp("us"))
    return column.cast(pa.string()).cast(pa.large_string()).cast(_BYTES)


def _must_be_within(name: str, numbers: pa.Array, limits: tuple[int, int]) -> None:
    found = pc.min_max(numbers)
    if (
        found["min"].is_valid
        and not limits[0] <= found["min"].as_py() <= found["max"].as_py() <= limits[1]
    ):
        raise RowRefused(
            f"column {name!r} has dates before the year 1 or after the year 9999, which the "
            "server has not",
            next_step="mend or filter such rows in the query",
        )


def _escaped(column: pa.Array) -> pa.Array:
    for plain, escaped in _ESCAPED:
        if pc.any(pc.match_substring(column, plain), min_count=0).as_py():
            column = pc.replace_substring(column, plain, escaped)
    return column
