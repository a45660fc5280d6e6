"""Where a statement's rows come from: a staging table, or arrays that the driver has sent
along.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from simulation.world.database.expressions import Expression, Row, Unknown, column_names, parts
from simulation.world.database.locks import SHARED

_STAGED = re.compile(
    r"SELECT (?P<columns>[^()]+?) FROM (?P<table>\S+)(?: WHERE (?P<condition>.+))?", re.DOTALL
)
_HELD = re.compile(
    r"SELECT \* FROM unnest\((?P<arrays>.+)\) AS held\((?P<columns>.+)\)", re.DOTALL
)

Find = Callable[[Any, Any, Sequence[Any]], list[Row]]
"""For session, transaction and parameters: the rows."""

_conditions: dict[tuple[str, tuple[str, ...]], Any] = {}


class Source:
    """A query for rows, as :class:`onceward.sql.sink.columns.Rows` has it.

    :param text: its SQL, with the first of the statement's parameters.
    """

    __slots__ = ("_condition", "_held", "_table", "columns")

    def __init__(self, text: str, name_of: Callable[[str], str]) -> None:
        held = _HELD.fullmatch(text)
        self._held = 0
        self.columns: tuple[str, ...] = ()
        if held is not None:
            self.columns = column_names(held["columns"])
            self._held = len(parts(held["arrays"]))
            return
        staged = _STAGED.fullmatch(text)
        if staged is None:
            raise Unknown(f"rows from {text!r}")
        self._table = name_of(staged["table"])
        self._condition = staged["condition"] or ""
        if staged["columns"] != "*":
            self.columns = column_names(staged["columns"])

    def find(self, session: Any, transaction: Any, parameters: Sequence[Any]) -> list[Row]:
        if self._held:
            return list(zip(*parameters[: self._held], strict=True))
        table = session.server.table(self._table, transaction)
        session.lock(table.lock, transaction, SHARED)
        table = session.server.table(self._table, transaction)
        rows = table.all_rows(transaction)
        if not self.columns:
            self.columns = tuple(
                column for column in table.columns if not column.startswith("onceward_")
            )
        if self._condition:
            rows = _compiled(self._condition, table.columns)(rows, parameters)
        if self.columns == table.columns[: len(self.columns)]:
            width = len(self.columns)
            return [row[:width] for row in rows]
        chosen = itemgetter(*(table.place[column] for column in self.columns), 0)
        return [chosen(row)[:-1] for row in rows]


def _compiled(condition: str, columns: tuple[str, ...]) -> Any:
    known = _conditions.get((condition, columns))
    if known is None:
        place = {column: number for number, column in enumerate(columns)}
        source = Expression(condition, place).source
        known = eval(f"lambda rows, p: [r for r in rows if {source}]", {})  # noqa: S307 — of tokens that are known
        _conditions[condition, columns] = known
    return known
