"""Tables, and what a transaction has changed in them and nobody else sees yet."""

from __future__ import annotations

from typing import Any

from simulation.world.database.expressions import Row
from simulation.world.database.locks import Lock


class Table:
    """Rows by their key; or a list of them, where they have none.

    :param made_for: "ledger", "batches", "markers", "target", "staging".
    :param logged: False: a crash of the server empties it (``CREATE UNLOGGED TABLE``).
    """

    __slots__ = (
        "columns",
        "kept_at",
        "key",
        "lock",
        "logged",
        "made_at",
        "made_by",
        "made_for",
        "name",
        "place",
        "row_locks",
        "rows",
        "types",
    )

    def __init__(
        self,
        name: str,
        made_for: str,
        columns: tuple[str, ...],
        key: tuple[str, ...] = (),
        *,
        logged: bool = True,
    ) -> None:
        self.name = name
        self.made_for = made_for
        self.columns = columns
        self.place = {column: number for number, column in enumerate(columns)}
        self.key = tuple(self.place[column] for column in key)
        self.logged = logged
        self.made_at = 0.0
        self.made_by: Any = None
        self.kept_at = -1.0
        """When somebody has last asked to drop it, and others had it locked."""
        self.rows: Any = {} if key else []
        self.types: tuple[str, ...] = ()
        """In the server's words, of tables that rows are written to."""
        self.lock = Lock()
        self.row_locks: dict[Row, Lock] = {}

    def __repr__(self) -> str:
        return self.name

    def key_of(self, row: Row) -> Row:
        return tuple([row[place] for place in self.key])

    def visible(self, transaction: Any) -> dict[Row, Row]:
        """Of a table with a key: what is committed, and what the transaction has changed."""
        changed = transaction.changed.get(self)
        if not changed:
            return self.rows  # type: ignore[no-any-return]
        merged = {**self.rows, **changed}
        return {key: row for key, row in merged.items() if row is not None}

    def all_rows(self, transaction: Any) -> list[Row]:
        """Of one without: the same."""
        rows: list[Row] = self.rows
        for table, added in transaction.appended:
            if table is self:
                rows = rows + added
        return rows


class Change:
    """What a commit did, for a crash that undoes it: where commits are not waited for
    (``synchronous_commit = off``) the last ones before it are gone (at most three times
    ``wal_writer_delay``).
    """

    __slots__ = ("at", "changed", "dropped", "lengths", "made")

    def __init__(self, at: float) -> None:
        self.at = at
        self.changed: list[tuple[Table, Row, Row | None]] = []
        self.lengths: list[tuple[Table, int]] = []
        self.made: list[str] = []
        self.dropped: list[Table] = []

    def undo(self, tables: dict[str, Table]) -> None:
        for table, key, before in reversed(self.changed):
            if before is None:
                table.rows.pop(key, None)
            else:
                table.rows[key] = before
        for table, length in reversed(self.lengths):
            del table.rows[length:]
        for name in self.made:
            tables.pop(name, None)
        for table in self.dropped:
            tables[table.name] = table
