"""Rows with a key on their way into their tables: what is replaced, what is deleted, and is it
really? Driver only.

Inside the transaction of the decision. Deletes come first, children before their parents, and then
the other rows, parents before their children: a value of another unique index that a deleted row
had may be taken by a new one. Where foreign keys do not let it be so (a child gets another parent,
and its old one is deleted), all is done once more the other way round, from the savepoint before
it.

What was asked for is compared with what was done: triggers, rules and policies of a table may
leave rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple

from onceward.engine.policy import DELETES, WRITES
from onceward.errors import OncewardError, RowRefused, SendFailed
from onceward.sql.ledger.database import Session
from onceward.sql.sink.columns import Table, Written
from onceward.sql.sink.dialect import Dialect, Statements
from onceward.sql.sink.order import Reference
from onceward.sql.sink.rows import Merge, Rows

_SAVEPOINT = "onceward_merge"


class Part(NamedTuple):
    """The rows of a frame for one table."""

    rows: Rows
    table: Table
    written: Sequence[Written]
    merge: Merge
    expected: int


class _Found(NamedTuple):
    """Of the rows of a part: keys whose last change is known, and of these how many are
    deletes.
    """

    last: int
    deletes: int


class Merging:
    """Of one batch.

    :param parts: parents before their children.
    :param references: the foreign keys between their tables.
    """

    def __init__(
        self,
        statements: Statements,
        dialect: Dialect,
        parts: Sequence[Part],
        references: Sequence[Reference],
        connection: Session,
    ) -> None:
        self._statements = statements
        self._dialect = dialect
        self._parts = parts
        self._references = references
        self._connection = connection
        self._found: dict[object, _Found] = {}  # by table

    def merge(self, writing: Callable[[Part], AbstractContextManager[None]]) -> None:
        """Merge the parts by their keys.

        :param writing: context around the writing of one part.
        :raises RowRefused: the rows, or their tables, cannot be merged.
        """
        self._must_come_once()
        for part in self._parts:
            with self._dialect.named(f"looking at rows for table {part.table.name}"):
                self._found[part.table.oid] = self._looked_at(part)
        if not any(found.deletes for found in self._found.values()):
            self._upsert_all(writing)
        elif not self._references:
            self._delete_all(writing)
            self._upsert_all(writing)
        else:
            self._in_either_order(writing)

    def _in_either_order(self, writing: Callable[[Part], AbstractContextManager[None]]) -> None:
        self._connection.execute(f"SAVEPOINT {_SAVEPOINT}")
        try:
            self._delete_all(writing)
            self._upsert_all(writing)
        except RowRefused as refused:
            self._connection.execute(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            try:
                self._upsert_all(writing)
                self._delete_all(writing)
            except RowRefused:
                raise refused from None

    def _must_come_once(self) -> None:
        reached: set[object] = set()
        for part in self._parts:
            if part.table.oid in reached:
                raise RowRefused(
                    f"the batch comes to table {part.table.name} in two parts (two frames, or two "
                    "spellings of its name), and which row of a key is the last is known within "
                    "one",
                    next_step="hand over one frame for a table, and spell its name in one way",
                )
            reached.add(part.table.oid)

    def _looked_at(self, part: Part) -> _Found:
        rows, table, written, merge, expected = part
        self._dialect.must_tell_keys_apart(rows, written, merge, self._connection)
        found = self._connection.execute(
            *self._statements.looked_at(rows, written, merge)
        ).fetchone()
        assert found is not None  # noqa: S101 — counts
        total, without_key, odd, last, keys, deletes = found
        if total != expected:
            raise _staged_rows_are_gone(expected, total)
        if without_key:
            raise RowRefused(
                f"{without_key} rows for table {table.name} have no key: null in "
                f"{', '.join(merge.key)}",
                next_step="filter them, or give them a key",
            )
        if odd:
            raise RowRefused(
                f"{odd} rows for table {table.name} have a value in column {merge.op_column!r} "
                "that nobody knows",
                next_step=f"use one of {', '.join((*WRITES, *DELETES))}",
            )
        if last < keys:
            raise RowRefused(
                f"table {table.name} has {keys} keys of the batch, of which the server sorts some "
                "as the same",
                next_step="use a key of shorter values, or of numbers",
            )
        if last != keys:
            advice = (
                f"order_by={list(merge.order_by)} must tell rows of one key apart; add a column "
                "to it"
                if merge.order_by
                else "pass order_by=, a column by which the last one can be told, or aggregate "
                "them in the query"
            )
            raise RowRefused(
                f"the batch has {last - keys} rows for table {table.name} that are neither before "
                "nor after another one of the same key, so that which is to stay would be chance",
                next_step=advice,
            )
        return _Found(last, deletes)

    def _upsert_all(self, writing: Callable[[Part], AbstractContextManager[None]]) -> None:
        for part in self._parts:
            with writing(part):
                moved = sum(
                    self._connection.execute(*statement).rowcount
                    for statement in self._statements.upsert(
                        part.rows, part.table, part.written, part.merge
                    )
                )
                last, deletes = self._found[part.table.oid]
                if moved != last - deletes:
                    raise not_all(self._statements, part, last - deletes, moved, self._connection)

    def _delete_all(self, writing: Callable[[Part], AbstractContextManager[None]]) -> None:
        """Delete what the parts delete, and check that nothing else went: a foreign key may
        cascade into another table of the batch.
        """
        looked_at = [
            part for part in self._parts if self._references or self._found[part.table.oid].deletes
        ]
        others_before = [self._present(part)[1] for part in looked_at]
        for part in reversed(self._parts):
            if self._found[part.table.oid].deletes:
                with writing(part):
                    self._connection.execute(
                        *self._statements.delete(part.rows, part.table, part.written, part.merge)
                    )
        for part, before in zip(looked_at, others_before, strict=True):
            still, others = self._present(part)
            _must_be_deleted_alone(part.table, still, before - others)

    def _present(self, part: Part) -> tuple[int, int]:
        with self._dialect.named(f"looking at rows of table {part.table.name}"):
            present = self._statements.present(part.rows, part.table, part.written, part.merge)
            deletes, others = self._connection.execute(*present).fetchone() or (0, 0)
            return int(deletes), int(others)


def _must_be_deleted_alone(table: Table, still: int, more: int) -> None:
    if still:
        raise RowRefused(
            f"{still} rows of table {table.name} are still there when they were deleted: a "
            "trigger or a policy of the table keeps them",
            next_step="filter such changes in the query, or write to a table without it",
        )
    if more:
        raise RowRefused(
            f"with rows that were deleted {more} others of table {table.name} are gone, which the "
            "same batch changes: a foreign key's ON DELETE CASCADE, or a trigger, takes them "
            "although they may have changed before",
            next_step="write to a table without it, or let batches be so small "
            "(max_offsets_per_trigger) that such changes do not meet",
        )


def not_all(
    statements: Statements, part: Part, expected: int, moved: int, connection: Session
) -> OncewardError:
    """Return the error for a server that took ``moved`` of ``expected`` rows."""
    (there,) = connection.execute(*statements.count(part.rows)).fetchone() or (0,)
    if there < part.expected:
        return _staged_rows_are_gone(part.expected, there)
    return RowRefused(
        f"of {expected} rows for table {part.table.name} the server took {moved}: a trigger, a "
        "rule or a policy of the table leaves some out",
        next_step="filter them in the query, or write to a table without it",
    )


def _staged_rows_are_gone(expected: int, there: int) -> SendFailed:
    return SendFailed(
        f"of {expected} staged rows {there} are left: the server has crashed since they were "
        "copied, or somebody else wrote to the staging table",
        next_step="nothing; the batch runs again",
    )
