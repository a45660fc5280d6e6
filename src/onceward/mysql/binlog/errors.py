"""Errors of everything that reads binlogs: damaged bytes, and changes that cannot be passed on.
Pure.

Code that has an event at hand uses :func:`damaged_event` and :func:`unreadable_event`. Code below
it, which sees a table map or rows, uses :func:`damaged_data` and :func:`unreadable_change`; the
decoder adds the event's place by :func:`add_event`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from onceward.errors import BinlogCorrupted, ChangeUnreadable, OncewardError
from onceward.mysql.binlog.event import BinlogEvent

ON_DAMAGE = (
    "the query reads it again by itself; if that fails at the same place, run mysqlbinlog "
    "--verify-binlog-checksum on the file, and read from another server, or from a new checkpoint "
    "with a snapshot"
)


def event_id(event: BinlogEvent) -> str:
    """Return an event's name in errors and ``pass_over``: ``file:position#inner``."""
    return f"{event.file}:{event.position}" + (f"#{event.inner}" if event.inner else "")


def row_id(event: BinlogEvent, row: int) -> str:
    """Return a row's name, by its number in the event, as in the column ``row``."""
    return f"{event_id(event)}/{row}"


@dataclass(frozen=True)
class Skippable:
    """The events and rows of ``pass_over``, by name: the user lets the reader skip them if they
    cannot be read. What can be read is read all the same.
    """

    names: frozenset[str] = frozenset()

    def has_event(self, event: BinlogEvent) -> bool:
        """Check whether the event as a whole may be skipped."""
        return bool(self.names) and event_id(event) in self.names

    def has_row(self, event: BinlogEvent, row: int) -> bool:
        """Check whether one row may be skipped; of an update, the row before or the one after."""
        return bool(self.names) and row_id(event, row) in self.names


NOTHING_SKIPPABLE = Skippable()


def add_skip_hint(next_step: str, names: Sequence[str], loss: str) -> str:
    """Return ``next_step`` and how to go on by ``pass_over``.

    :param loss: what is lost by it.
    """
    text = ", ".join(f'"{name}"' for name in names)
    return (
        f"{next_step}; once the tables are known to agree, go on without {loss} by "
        f"pass_over=[{text}]"
    )


def damaged_event(event: BinlogEvent, what: str) -> BinlogCorrupted:
    """Return the error of an event that no server writes, although its checksum may be right."""
    at = event_id(event)
    return BinlogCorrupted(
        f"at {at} of the binlog there is {what}", next_step=ON_DAMAGE, details={"at": at}
    )


def unreadable_event(
    event: BinlogEvent,
    reason: str,
    what: str,
    next_step: str,
    *,
    gtid: str | None = None,
    loss: str = "this one event",
) -> ChangeUnreadable:
    """Return the error of an event that cannot be passed on.

    :param reason: one word, as listed in the documentation, for ``details``.
    :param what: follows "there is".
    :param next_step: what has to be done first; how to skip the event then is added.
    :param loss: what is lost by that.
    """
    at = event_id(event)
    details: dict[str, Any] = {"reason": reason, "at": at, **({"gtid": gtid} if gtid else {})}
    in_transaction = f" (transaction {gtid})" if gtid else ""
    return ChangeUnreadable(
        f"at {at} of the binlog{in_transaction} there is {what}",
        next_step=add_skip_hint(next_step, [at], loss),
        details=details,
    )


AnyError = TypeVar("AnyError", bound=OncewardError)

SET_GTIDS = (
    "set enforce_gtid_consistency=ON, then gtid_mode=ON (by way of OFF_PERMISSIVE and "
    "ON_PERMISSIVE, without a restart)"
)
SET_FULL_METADATA = (
    "SET PERSIST binlog_row_metadata = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its configuration), then start from a position after that: what was written before "
    "has no names of columns"
)
SET_FULL_IMAGE = (
    "SET PERSIST binlog_row_image = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its configuration), take care that no session sets it otherwise, and start from a "
    "position after that"
)


DROP_SYSTEM_VERSIONING = (
    "ALTER TABLE … DROP SYSTEM VERSIONING, or leave the table out of tables=; then start from a "
    "position after that: what is deleted stays in the table as history, and no change tells it "
    "from what is there"
)


class InvalidCell(Exception):
    """A value of a row does not fit its column's type. Never leaves this package: the caller that
    knows the row's event raises ``error`` with its place.
    """

    def __init__(self, row: int, error: OncewardError) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


def damaged_data(what: str) -> BinlogCorrupted:
    """Return the error of bytes that no server writes."""
    return BinlogCorrupted(what, next_step=ON_DAMAGE)


def unreadable_change(reason: str, what: str, next_step: str) -> ChangeUnreadable:
    """Return the error of something that a server may write, and that is no change of a row.

    :param next_step: what has to be done first; how to skip the place then is added with the
        place.
    """
    return ChangeUnreadable(what, next_step=next_step, details={"reason": reason})


def add_event(
    error: AnyError,
    event: BinlogEvent,
    gtid: str | None,
    *,
    rows: Sequence[str] = (),
    loss: str = "this one event",
) -> AnyError:
    """Return ``error`` with the place of ``event`` at the beginning of its message.

    :param rows: the names of all rows that it is true of, where it is of rows.
    :param loss: else, what is lost by going on without the event.
    """
    at = rows[0] if rows else event_id(event)
    transaction = f" (transaction {gtid})" if gtid else ""
    next_step = error.next_step
    if isinstance(error, ChangeUnreadable):
        loss = f"{len(rows)} rows" if len(rows) > 1 else "this one row" if rows else loss
        next_step = add_skip_hint(next_step, rows or [at], loss)
    return type(error)(
        f"at {at} of the binlog{transaction}: {error.message}",
        next_step=next_step,
        details={**error.details, "at": at, **({"gtid": gtid} if gtid else {})},
    )
