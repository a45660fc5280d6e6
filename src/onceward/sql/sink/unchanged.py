"""Would the server change a value on its way into the table, without a word? Executors; values in,
errors out.

Rows that are written straight into a table are looked at here. Those of a staging table the server
looks at: :meth:`onceward.sql.sink.dialect.Dialect.look_closer`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from onceward.errors import RowRefused
from onceward.sql.sink.columns import Written

_NEXT = "widen the column, or shorten the value in the query; nothing of the batch was written"


def must_stay_as_they_are(rows: pa.Table, written: Sequence[Written], table: str) -> None:
    """Check that the server stores the rows' values unchanged.

    :raises RowRefused: a value would change, naming its column.
    """
    for column in written:
        values = rows.column(column.name)
        if column.longest is not None:
            length = pc.max(pc.utf8_length(values)).as_py()
            if length is not None and length > column.longest:
                raise RowRefused(
                    f"a value of column {column.name!r} has {length} characters, and table "
                    f"{table} takes {column.longest}",
                    next_step=_NEXT,
                )
        if column.most_bytes is not None:
            most = pc.max(pc.binary_length(values)).as_py()
            if most is not None and most > column.most_bytes:
                raise RowRefused(
                    f"a value of column {column.name!r} has {most} bytes, and table {table} takes "
                    f"{column.most_bytes}",
                    next_step=_NEXT,
                )
        if column.never_null and values.null_count:
            raise RowRefused(
                f"{values.null_count} rows for table {table} have a null in column "
                f"{column.name!r}, for which the server would put a value of its own",
                next_step="filter them, or leave the column out with drop(…)",
            )
        if column.labels and not pc.all(_known(values, column.labels), min_count=0).as_py():
            raise RowRefused(
                f"rows for table {table} have a value in column {column.name!r} that is none of "
                f"its labels: {', '.join(map(repr, column.labels))}",
                next_step="mend or filter such rows in the query, or change the table",
            )


def _known(values: pa.ChunkedArray, labels: Sequence[str]) -> pa.ChunkedArray:
    return pc.or_(pc.is_in(values, value_set=pa.array(labels, values.type)), pc.is_null(values))
