"""In the place of Arrow where rows go to a database: rows of the simulation, and columns that are
added to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from simulation.world.database.tables import Table as ServersTable


class Columns:
    """What the columns of a frame are made of: each from ``(branch, partition, offset)``."""

    __slots__ = ("made_by", "names", "types")

    def __init__(
        self, names: Sequence[str], types: Sequence[str], made_by: Callable[[Any], tuple[Any, ...]]
    ) -> None:
        self.names = tuple(names)
        self.types = tuple(types)
        """As staged."""
        self.made_by = made_by


class RowsTable:
    """As much of an Arrow table as the sink's tasks ask."""

    __slots__ = ("_columns", "_more", "_rows", "nbytes")

    def __init__(
        self, rows: Iterable[Any], columns: Columns, more: tuple[tuple[str, Any], ...] = ()
    ) -> None:
        self._rows = rows if isinstance(rows, list) else list(rows)
        self._columns = columns
        self._more = more
        self.nbytes = 100 * len(self._rows)

    @property
    def num_rows(self) -> int:
        return len(self._rows)

    @property
    def column_names(self) -> tuple[str, ...]:
        return (*self._columns.names, *(name for name, _ in self._more))

    def append_column(self, name: str, values: Any) -> RowsTable:
        """:param values: one for all rows, or a range."""
        return RowsTable(self._rows, self._columns, (*self._more, (name, values)))

    def column(self, name: str) -> list[Any]:
        place = self._columns.names.index(name)
        return [self._columns.made_by(row)[place] for row in self._rows]

    def filter(self, mask: list[bool]) -> RowsTable:
        return RowsTable(
            [row for row, kept in zip(self._rows, mask, strict=True) if kept],
            self._columns,
            self._more,
        )

    def rows_of(self, table: ServersTable) -> list[tuple[Any, ...]]:
        """As rows of ``table``."""
        made_by, names, more = self._columns.made_by, self._columns.names, self._more
        if more and isinstance(more[-1][1], range):  # MySQL's staging numbers its rows
            (_, task), (_, numbers) = more
            return [
                (*made_by(row), task, number)
                for row, number in zip(self._rows, numbers, strict=True)
            ]
        if more:
            task = more[0][1]
            return [(*made_by(row), task) for row in self._rows]
        if names == table.columns:
            return [made_by(row) for row in self._rows]
        places = [names.index(column) for column in table.columns]
        return [tuple([made_by(row)[place] for place in places]) for row in self._rows]


class Arrow:
    """``pyarrow``, as the modules of the sink's tasks name it.

    :param columns: of the frames of the world that is current.
    """

    RecordBatch = RowsTable

    def __init__(self, columns: Callable[[], Columns]) -> None:
        class Table(RowsTable):
            __slots__ = ()

            @staticmethod
            def from_batches(batches: Sequence[Any]) -> RowsTable:
                return RowsTable([row for batch in batches for row in batch], columns())

        self.Table = Table

    def scalar(self, value: Any, kind: Any = None) -> Any:
        return value

    def int64(self) -> None:
        return None

    def repeat(self, value: Any, number: int) -> Any:
        return value

    def array(self, values: Any, kind: Any = None) -> Any:
        return values
