"""Words that all dialects share: rows on their way, and how they are applied. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from onceward.errors import RowRefused

TASK = "onceward_task"
"""Column of a staging table: the task attempt that wrote the row. Those that no report names do
not count.
"""


class Rows(NamedTuple):
    """A query for the rows of a frame, or of it those for one table; or any statement, with its
    parameters.
    """

    sql: str
    parameters: tuple[Any, ...]


class Merge(NamedTuple):
    """How rows with a key are applied."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    op_column: str | None
    staged: Mapping[str, str]
    """How the columns of the frame are staged."""


def python_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return the values of a column as Python objects."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise RowRefused(
            f"a value of column {name!r} is no text: {error}",
            next_step="mend it in the query; is_valid_utf8 finds such",
        ) from error
    return values
