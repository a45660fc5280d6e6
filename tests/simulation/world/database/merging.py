"""Rows with a key into a table: what is the last change of each key, and what becomes of the
table's rows.

Read out of the statements of the product: ``rank() OVER (PARTITION BY the key ORDER BY what
grows)`` says which row is the last, of equally late ones all; ``IN ('d', 'delete')`` which of them
delete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.world.database.expressions import Row, Unknown, column_names, unquoted
from simulation.world.database.rows_from import Source

_LATE = re.compile(
    r"rank\(\) OVER \((?:PARTITION BY (?P<keys>.+?))?(?: ORDER BY (?P<order>[^()]+?))?\) AS "
    r"onceward_late",
    re.IGNORECASE,
)
_DELETES = re.compile(
    r"(?:CAST\()?([\"`]\w+[\"`])(?: AS BINARY\))? IN \(([^()]*)\), (?:false|0)\) AS "
    r"onceward_deletes"
)
_KNOWN = re.compile(r"NOT IN \(([^()]*)\)")
_DIRECTION = re.compile(r"(?: COLLATE \"C\")? (?:DESC|ASC)(?: NULLS (?:FIRST|LAST))?")
_ROWS = (
    re.compile(r"WITH rows AS \((?P<rows>SELECT .+?)\), ranked AS \(", re.DOTALL),
    re.compile(
        r"AS onceward_place FROM \((?P<rows>SELECT .+?)\) AS staged\) AS ranked", re.DOTALL
    ),
)


class Merge:
    """What a statement says of which rows are the last."""

    __slots__ = ("_known", "_op", "_words", "key", "order", "source")

    def __init__(self, sql: str, name_of: Callable[[str], str]) -> None:
        rows = next(
            (found for found in (shape.search(sql) for shape in _ROWS) if found is not None), None
        )
        late = _LATE.search(sql)
        if rows is None:
            raise Unknown(sql)
        self.source = Source(rows["rows"], name_of)
        keys = late["keys"] if late is not None else _keys_of_mysql(sql)
        self.key = column_names(keys)
        order = "" if late is None else (late["order"] or "")
        self.order = column_names(_DIRECTION.sub("", order)) if order else ()
        deletes = _DELETES.search(sql)
        self._op = unquoted(deletes[1]) if deletes is not None else ""
        self._words = _words(deletes[2]) if deletes is not None else ()
        known = _KNOWN.search(sql)
        self._known = _words(known[1]) if known is not None else ()

    def ranked(self, rows: list[Row]) -> tuple[list[Row], list[bool]]:
        """The last rows of each key, in the order in which they became so; and which of them
        delete.
        """
        place = {column: number for number, column in enumerate(self.source.columns)}
        keys = [place[column] for column in self.key]
        order = [place[column] for column in self.order]
        latest: dict[Row, list[Row]] = {}
        for row in rows:
            key = tuple([row[number] for number in keys])
            there = latest.get(key)
            if there is None:
                latest[key] = [row]
                continue
            ours, theirs = _late(row, order), _late(there[0], order)
            if ours == theirs:
                there.append(row)
            elif ours > theirs:
                latest[key] = [row]
        last = sorted(
            (row for found in latest.values() for row in found), key=lambda row: _late(row, order)
        )
        if not self._op:
            return last, [False] * len(last)
        op = place[self._op]
        return last, [row[op] in self._words for row in last]

    def looked_at(self, rows: list[Row]) -> Row:
        """Rows, without a key, with an ``op`` that nobody knows; last ones, their keys, those that
        delete.
        """
        place = {column: number for number, column in enumerate(self.source.columns)}
        keys = [place[column] for column in self.key]
        last, deletes = self.ranked(rows)
        without = sum(any(row[number] is None for number in keys) for row in rows)
        odd = (
            sum(row[place[self._op]] not in self._known for row in rows)
            if self._op and self._known
            else 0
        )
        distinct = len({tuple([row[number] for number in keys]) for row in last})
        return len(rows), without, odd, len(last), distinct, sum(deletes)


def _late(row: Row, order: Sequence[int]) -> Any:
    return [(row[number] is not None, row[number] or 0) for number in order]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip().strip("'") for word in text.split(","))


def _keys_of_mysql(sql: str) -> str:
    """Without an order every row is the last, and the key is only named."""
    found = re.findall(r"([\"`]\w+[\"`]) AS onceward_key_\d+", sql)
    if not found:
        raise Unknown(sql)
    return ", ".join(found)
