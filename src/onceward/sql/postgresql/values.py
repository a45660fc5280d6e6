"""Values that PostgreSQL has not, and those that it has another type for. Pure; executors, and the
driver.

Whoever writes a batch, tasks or the driver, looks at its values here: which of them it is hangs on
the batch's size alone, and shall change no verdict.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import RowRefused

_NEXT = "mend or filter such rows in the query"


def storable(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows`` in types that PostgreSQL has: it has no integer of one byte.

    :raises RowRefused: a date or time that it has not, where the binary COPY would make another of
        it, or infinity; a text that is none to it.
    """
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        values = column.flatten() if pa.types.is_list(column.type) else column
        _must_be_a_time_of_its_own(name, values)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            _must_be_texts(name, values)
    columns = [
        column.cast(pa.int16()) if pa.types.is_int8(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def must_be_storable(rows: pa.Table) -> None:
    """Check that PostgreSQL can store the rows.

    :raises RowRefused: as :func:`storable`.
    """
    for part in rows.to_batches():
        storable(part)


def _must_be_a_time_of_its_own(name: str, values: pa.Array) -> None:
    least, most = _TIMES.get(_family(values.type), (None, None))
    if least is None or values.null_count == len(values):
        return
    span = pc.min_max(numbers(values))
    if span["min"].as_py() < least or span["max"].as_py() > most:
        raise RowRefused(
            f"column {name!r} has dates before 4713 BC, or after all that PostgreSQL has",
            next_step=_NEXT,
        )


def _must_be_texts(name: str, values: pa.Array) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid as error:
        raise RowRefused(
            f"a value of column {name!r} is no text: {error}",
            next_step=f"{_NEXT}; is_valid_utf8 finds such",
        ) from error
    if pc.any(pc.match_substring(values, "\0"), min_count=0).as_py():
        raise RowRefused(
            f"a text of column {name!r} has the character of code 0, which PostgreSQL has not in "
            "texts",
            next_step=_NEXT,
        )


def numbers(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Convert times to days since 1970, or to microseconds in UTC."""
    return times.cast(pa.int64() if times.type.bit_width == 64 else pa.int32())


def _family(kind: pa.DataType) -> str:
    return (
        "date" if pa.types.is_date32(kind) else "timestamp" if pa.types.is_timestamp(kind) else ""
    )


_TIMES = {"date": (-2_440_588, 2_145_000_000), "timestamp": (-210_866_803_200_000_000, 2**63 - 1)}
"""Days and microseconds from 1970 on: from 4713 BC, the server's first day, to the year 5,874,000,
or Arrow's end.
"""
