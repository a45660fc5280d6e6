"""The order in which the tables of a batch are written. Pure.

A foreign key wants the row that it points at to be there: parents are written before their
children, and rows are deleted the other way round. In a circle somebody has to be first; then it
takes keys that are checked at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from onceward.sql.sink.columns import Table


class Reference(NamedTuple):
    """A table and one that a foreign key of it points at, as the server knows them
    (``Table.oid``).

    :cvar waits: the key is checked at the end of the transaction, so that no order has to be kept.
    """

    child: object
    parent: object
    waits: bool = False


class Written(Protocol):
    """Something that is written to a table."""

    @property
    def table(self) -> Table: ...


P = TypeVar("P", bound=Written)


def parents_first(parts: Iterable[P], references: Sequence[Reference]) -> list[P]:
    """Sort ``parts`` by their tables' foreign keys, parents first; otherwise, and within a table,
    keep their order.
    """
    parts = list(parts)
    tables = dict.fromkeys(part.table.oid for part in parts)
    parents: dict[object, list[object]] = {oid: [] for oid in tables}
    for child, parent, waits in references:
        if child in tables and parent in tables and child != parent and not waits:
            parents[child].append(parent)
    places: dict[object, int] = {}
    for oid in tables:
        # Without recursion: a chain of references may be long. A table is left once all that it
        # points at have been.
        waiting, visited = [oid], set(places)
        while waiting:
            table = waiting[-1]
            visited.add(table)
            missing = [parent for parent in parents[table] if parent not in visited]
            if missing:
                waiting.append(missing[0])
            else:
                places.setdefault(waiting.pop(), len(places))
    return sorted(parts, key=lambda part: places[part.table.oid])


def circle(references: Sequence[Reference]) -> bool:
    """Do foreign keys between different tables, none of which waits, lead back to where they
    began?
    """
    left = {
        (child, parent) for child, parent, waits in references if child != parent and not waits
    }
    while left:
        pointing = {child for child, _ in left}
        rest = {(child, parent) for child, parent in left if parent in pointing}
        if rest == left:
            return True
        left = rest
    return False
