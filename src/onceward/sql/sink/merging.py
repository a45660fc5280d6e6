"""Rows with a key on their way into their tables: what is replaced, what is deleted, and is it
really? Driver only.

Inside the transaction of the decision. Deletes come first, children before their parents, and then
the other rows, parents before their children: a value of another unique index that a deleted row
had may be taken by a new one. Where foreign keys do not let it be so (a child gets another parent,
and its old one is deleted), all is done once more the other way round, in another transaction.

A row that is in the way of another one (a value of a unique index moves from row to row, a tree of
rows that refer to each other grows or is cut) is so at their source, too, and there the changes
went one after the other: :attr:`Order.OF_CHANGES` makes them so, in stretches as long as the
server takes. Which it takes is tried behind a savepoint and undone: PostgreSQL notes rows that are
written behind one as of another transaction than the batch's, and who asks whose they are finds
nobody's.

What was asked for is compared with what was done: triggers, rules, policies may leave rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from typing import NamedTuple

from onceward.engine.policy import DELETES, WRITES
from onceward.errors import OncewardError, RowRefused, SendFailed
from onceward.sql.ledger.database import Session
from onceward.sql.sink.columns import Merge, Reference, Rows, Table, Written
from onceward.sql.sink.dialect import Dialect, Statements

_TRIAL, _STRETCH = "onceward_trial", "onceward_stretch"


class Order(Enum):
    """In what order a batch's rows are written."""

    DELETES_FIRST = "deletes first"
    WRITES_FIRST = "deletes last"
    OF_CHANGES = "in the order of changes"


class Steps(NamedTuple):
    """The changes of a frame in their order, for all of its tables.

    :cvar frame: parts with the same one have their changes in one order.
    :cvar last: as many steps there are at most.
    :cvar select: those of one table, from a step to another one.
    """

    frame: int
    last: int
    select: Callable[[int, int], Rows]


class Part(NamedTuple):
    """The rows of a frame for one table."""

    rows: Rows
    table: Table
    written: Sequence[Written]
    merge: Merge
    expected: int
    steps: Steps


class _Count(NamedTuple):
    """Of rows with a key, as ``Statements.looked_at`` counts them."""

    total: int
    without_key: int
    odd: int
    last: int
    keys: int
    deletes: int

    @property
    def stay(self) -> int:
        return self.last - self.deletes


Writing = Callable[[Part], AbstractContextManager[None]]


class Merging:
    """Of one batch.

    :param parts: parents before their children.
    :param references: the foreign keys between their tables.
    :param writing: context around the writing of one part.
    """

    def __init__(
        self,
        dialect: Dialect,
        parts: Sequence[Part],
        references: Sequence[Reference],
        connection: Session,
        writing: Writing,
    ) -> None:
        self._statements = dialect.statements
        self._dialect = dialect
        self._parts = parts
        self._references = references
        self._connection = connection
        self._writing = writing

    def merge(self, order: Order) -> None:
        """Merge the parts by their keys.

        :raises RowRefused: the rows, or their tables, cannot be merged in this order.
        """
        found = self._check()
        if order is Order.OF_CHANGES:
            self._make_all_steps(found)
            return
        ways = [self._delete_all, self._upsert_all]
        for write in ways if order is Order.DELETES_FIRST else reversed(ways):
            write(self._parts, found)

    def _make_all_steps(self, found: Sequence[_Count]) -> None:
        """Make the changes of each frame in their order, those of all its tables together."""
        for frame in dict.fromkeys(part.steps.frame for part in self._parts):
            parts = [part for part in self._parts if part.steps.frame == frame]
            self._connection.execute(f"SAVEPOINT {_TRIAL}")
            stretches = self._try_steps(parts, 1, parts[0].steps.last)
            self._undo(_TRIAL)
            for first, last in stretches:
                self._make_steps(parts, first, last)
        for part, each in zip(self._parts, found, strict=True):
            still, others = self._present(part)
            _must_be_deleted_alone(part.table, still, each.stay - others)

    def _try_steps(self, parts: Sequence[Part], first: int, last: int) -> list[tuple[int, int]]:
        """Make these steps' changes at once; where the server refuses, the first half, then the
        rest. Return the stretches that it has taken.
        """
        self._connection.execute(f"SAVEPOINT {_STRETCH}")
        try:
            self._make_steps(parts, first, last)
        except RowRefused:
            if first == last:
                raise
            self._undo(_STRETCH)
            half = (first + last) // 2
            return [
                *self._try_steps(parts, first, half),
                *self._try_steps(parts, half + 1, last),
            ]
        self._connection.execute(f"RELEASE SAVEPOINT {_STRETCH}")
        return [(first, last)]

    def _undo(self, savepoint: str) -> None:
        self._connection.execute(f"ROLLBACK TO SAVEPOINT {savepoint}")
        self._connection.execute(f"RELEASE SAVEPOINT {savepoint}")

    def _make_steps(self, parts: Sequence[Part], first: int, last: int) -> None:
        some = [part._replace(rows=part.steps.select(first, last)) for part in parts]
        counts = [self._count(part) for part in some]
        some = [
            part._replace(expected=each.total) for part, each in zip(some, counts, strict=True)
        ]
        self._delete_all(some, counts)
        self._upsert_all(some, counts)

    def _check(self) -> list[_Count]:
        """Check all parts before anything is written."""
        self._must_come_once()
        found = []
        for part in self._parts:
            with self._dialect.translate_errors(f"looking at rows for table {part.table.name}"):
                found.append(self._looked_at(part))
        return found

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

    def _looked_at(self, part: Part) -> _Count:
        rows, table, written, merge, expected, _ = part
        self._dialect.must_tell_keys_apart(rows, written, merge, self._connection)
        total, without_key, odd, last, keys, _ = found = self._count(part)
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
        return found

    def _count(self, part: Part) -> _Count:
        found = self._connection.execute(
            *self._statements.looked_at(part.rows, part.written, part.merge)
        ).fetchone()
        assert found is not None  # noqa: S101 — counts
        return _Count(*map(int, found))

    def _upsert_all(self, parts: Sequence[Part], found: Sequence[_Count]) -> None:
        for part, each in zip(parts, found, strict=True):
            with self._writing(part):
                moved = sum(
                    self._connection.execute(*statement).rowcount
                    for statement in self._statements.upsert(
                        part.rows, part.table, part.written, part.merge
                    )
                )
                if moved != each.stay:
                    raise not_all(self._statements, part, each.stay, moved, self._connection)

    def _delete_all(self, parts: Sequence[Part], found: Sequence[_Count]) -> None:
        """Delete, and check that nothing else of the batch went: a foreign key may cascade."""
        deleting = [part for part, each in zip(parts, found, strict=True) if each.deletes]
        if not deleting:
            return
        looked_at = parts if self._references else deleting
        others_before = [self._present(part)[1] for part in looked_at]
        for part in reversed(deleting):
            with self._writing(part):
                self._connection.execute(
                    *self._statements.delete(part.rows, part.table, part.written, part.merge)
                )
        for part, before in zip(looked_at, others_before, strict=True):
            still, others = self._present(part)
            _must_be_deleted_alone(part.table, still, before - others)

    def _present(self, part: Part) -> tuple[int, int]:
        with self._dialect.translate_errors(f"looking at rows of table {part.table.name}"):
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
        next_step="filter them in the query, or write to a table without it; where that is "
        "suppress_redundant_updates_trigger, DROP TRIGGER: rows that change nothing count, too",
    )


def _staged_rows_are_gone(expected: int, there: int) -> SendFailed:
    return SendFailed(
        f"of {expected} staged rows {there} are left: the server has crashed since they were "
        "copied, or somebody else wrote to the staging table",
        next_step="nothing; the batch runs again",
    )
