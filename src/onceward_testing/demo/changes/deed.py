"""One transaction of the demo's writer: what it says to the server, and which changes it comes to.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from onceward_testing.demo.changes.rows import Key, Row, Table

Op = Literal["c", "u", "d"]


class Change(NamedTuple):
    """Of one row: ``before`` is None for ``c``, ``after`` for ``d``. ``not_before_ms``: when it
    was asked to be committed, in milliseconds since the epoch: it was not there any earlier.
    """

    op: Op
    before: Row | None
    after: Row | None
    not_before_ms: int = 0


class Done(NamedTuple):
    """A change of the row with this key of this table."""

    table: str
    key: Key
    change: Change


@dataclass
class Deed:
    """``statements``: with their parameters, as the client takes them. ``alone``: no other
    transaction may be open, for it may come across rows of others. ``regretted``: it ends with
    ROLLBACK, and comes to nothing.
    """

    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    done: list[Done] = field(default_factory=list)
    alone: bool = False
    regretted: bool = False

    def say(self, statement: str, *parameters: Any) -> None:
        """One statement more."""
        self.statements.append((statement, parameters))

    def came(self, table: Table, after: Row) -> None:
        """A row that was not there is there."""
        self.done.append(Done(table.name, table.key_of(after), Change("c", None, after)))

    def became(self, table: Table, before: Row, after: Row) -> None:
        """A row is another. Under another key it is two changes, as Debezium has it."""
        if table.key_of(before) == table.key_of(after):
            self.done.append(Done(table.name, table.key_of(after), Change("u", before, after)))
            return
        self.went(table, before)
        self.came(table, after)

    def went(self, table: Table, before: Row) -> None:
        """A row that was there is not there."""
        self.done.append(Done(table.name, table.key_of(before), Change("d", before, None)))
