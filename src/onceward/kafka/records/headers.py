"""Headers of many records at once: each row's list becomes its headers section (KIP-82,
``DefaultRecord.writeTo``).

Called by ``kafka.records.layout``; runs in executor tasks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import InvalidColumn
from onceward.kafka.records.payload import Payload
from onceward.kafka.records.pieces import side_by_side
from onceward.kafka.records.varint import varints


def header_sections(headers: Any) -> Payload:
    """For each row (at least one) of a ``list<struct<key: string, value: binary>>`` its section.

    A null or empty list gives one zero byte. Raises InvalidColumn for a header without a key.
    """
    counts = (
        pc.fill_null(pc.list_value_length(headers), 0)
        .to_numpy(zero_copy_only=False)
        .astype(np.int64)
    )
    every = (
        headers.flatten()
    )  # the headers of all rows, without those under null lists or outside the slice
    if len(every) == 0:
        return Payload.of(_binary(*side_by_side(len(counts), [varints(counts)])))
    names, values = every.flatten()
    if every.null_count or names.null_count:
        raise InvalidColumn(
            "column 'headers' holds a header without a key",
            next_step="drop headers whose key is null in the query; only a header's value may be "
            "null",
        )
    name, value = Payload.of(names.cast(pa.binary())), Payload.of(values)
    _refuse_too_much(name, value)
    joined, ends = side_by_side(
        len(every), [varints(name.lengths), name.array, varints(value.lengths), value.array]
    )
    by_row = _binary(joined, ends[np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])])
    return Payload.of(_binary(*side_by_side(len(counts), [varints(counts), by_row])))


def _refuse_too_much(name: Payload, value: Payload) -> None:
    metadata = 16 * (
        len(name.lengths) + 1
    )  # two lengths a header, one count a row: more than they can take
    if (
        int(np.maximum(name.lengths, 0).sum()) + int(np.maximum(value.lengths, 0).sum()) + metadata
        >= 1 << 31
    ):
        raise InvalidColumn(
            "column 'headers' holds more than 2 GiB in one Arrow batch",
            next_step="lower spark.sql.execution.arrow.maxRecordsPerBatch",
        )


def _binary(data: Any, offsets: Any) -> Any:
    return pa.Array.from_buffers(
        pa.binary(), len(offsets) - 1, [None, pa.py_buffer(np.ascontiguousarray(offsets)), data]
    )
