"""Records of one key in the order of columns: ``KafkaSink(order_by=…)``. Driver only; called by
:mod:`attempt`.

A batch's rows come out of several tasks, which lease partitions from each other in any order: of
two rows of one key in two tasks either may be appended first. So rows of one key are brought into
one task, and sorted there; a task appends its rows in the order in which it has them, and of its
attempts one writes (:mod:`tasks`). Batches come one after the other by themselves, and so do the
frames of one. The rows of a small batch are sorted by the driver, which has them all.

Records without a key have no order among the partitions that they are spread over; in each of them
they keep theirs, because all of a topic's come through one task.

What the rows are sorted by travels beside the record's columns, under names of its own, and is
left out when it has done its work. Only types whose values Spark and Arrow sort alike are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from onceward.errors import BadColumn

OrderWithin = Literal["key", "topic"]

_SORTED = "onceward_order_"
_SORTABLE = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)


def check(order_by: Sequence[str], types: Mapping[str, DataType]) -> None:
    """:raises BadColumn: a column that is missing, or whose values two programs may sort in two
    ways.
    """
    for name in order_by:
        if name not in types:
            raise BadColumn(
                f"order_by= names column {name!r}, and the frame has {', '.join(types)}",
                next_step="keep the column in the frame: select('key', 'value', …)",
                details={"column": name},
            )
        kind = types[name]
        if not isinstance(kind, _SORTABLE) and not (
            type(kind) is StringType and kind.simpleString() == "string"
        ):
            raise BadColumn(
                f"column {name!r} of order_by= is {kind.simpleString()}, which is not sorted the "
                f"same everywhere",
                next_step="order by whole numbers, decimals, texts without a collation, binaries, "
                "dates or timestamps",
                details={"column": name, "type": kind.simpleString()},
            )


def columns(order_by: Sequence[str]) -> list[str]:
    """SQL of the columns to sort by, beside the record's."""
    return [
        f"`{name.replace('`', '``')}` AS {_SORTED}{number}" for number, name in enumerate(order_by)
    ]


def row_bytes(names: Sequence[str]) -> str:
    """SQL for the bytes that they have in a row; a frame's ``names``."""
    return "".join(f" + COALESCE(OCTET_LENGTH(CAST({name} AS STRING)), 0)" for name in _in(names))


def by_tasks(rows: DataFrame, within: OrderWithin) -> DataFrame:
    """``rows``, as :func:`columns.prepare` makes them, without what they are sorted by: each key's
    (or each topic's) in one task, in order, nulls first. A frame that is not sorted is returned as
    it is.
    """
    names = _in(rows.columns)
    if not names:
        return rows
    together = [
        name for name in ("topic", "key")[: 1 if within == "topic" else 2] if name in rows.columns
    ]
    # Without a key, and of one topic, there is nothing by which tasks could share.
    gathered = rows.repartition(*together) if together else rows.repartition(1)
    return gathered.sortWithinPartitions(*names).drop(*names)


def by_driver(rows: pa.Table) -> pa.Table:
    """The same for rows that the driver has."""
    names = _in(rows.column_names)
    if not names:
        return rows
    keys: dict[str, pa.ChunkedArray] = {}
    for name in names:  # nulls first, in the words of every version of Arrow
        keys |= {f"{name} is there": rows.column(name).is_valid(), name: rows.column(name)}
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    return rows.take(order).drop_columns(names)


def _in(names: Sequence[str]) -> list[str]:
    """Those to sort by, the first counting most: they come in that order."""
    return [name for name in names if name.startswith(_SORTED)]
