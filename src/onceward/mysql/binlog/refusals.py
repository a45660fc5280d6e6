"""The errors of what a binlog says of tables and rows, each built in one place. Pure; called by
all that reads rows.

Nothing here knows where in the binlog it is read: :mod:`changes` adds that, by :func:`located`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from onceward.errors import BinlogDamaged, ChangeUnreadable, OncewardError
from onceward.mysql.binlog.event import Event
from onceward.mysql.binlog.stops import ON_DAMAGE, going_on, place

Refusal = TypeVar("Refusal", bound=OncewardError)

FULL_METADATA = (
    "SET PERSIST binlog_row_metadata = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its "
    "configuration), then start from a position after that: what was written before has no names "
    "of columns"
)
FULL_IMAGE = (
    "SET PERSIST binlog_row_image = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same "
    "line in its "
    "configuration), take care that no session sets it otherwise, and start from a position after "
    "that"
)


UNVERSIONED = (
    "ALTER TABLE … DROP SYSTEM VERSIONING, or leave the table out of tables=; then start from a "
    "position after that: "
    "what is deleted stays in the table as history, and no change tells it from what is there"
)


class BadCell(Exception):
    """One value of one row is not what its column's type has. Never leaves this package:
    :mod:`changes` knows which event the row is of, and raises what the reader is told.
    """

    def __init__(self, row: int, error: OncewardError) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


def damaged(what: str) -> BinlogDamaged:
    """Bytes that no server writes."""
    return BinlogDamaged(what, next_step=ON_DAMAGE)


def unreadable(reason: str, what: str, next_step: str) -> ChangeUnreadable:
    """What a server may write, and what is no change of a row that could be handed on.

    :param next_step: what has to be done first; that the place can be passed over then is added
        with the place.
    """
    return ChangeUnreadable(what, next_step=next_step, details={"reason": reason})


def located(
    error: Refusal,
    event: Event,
    gtid: str | None,
    *,
    rows: Sequence[str] = (),
    left_out: str = "this one event",
) -> Refusal:
    """``error`` with the place of ``event``, which its message begins with.

    :param rows: the names of all rows that it is true of, where it is of rows. :param left_out:
        else, what is lost by going on without the event.
    """
    at = rows[0] if rows else place(event)
    transaction = f" (transaction {gtid})" if gtid else ""
    next_step = error.next_step
    if isinstance(error, ChangeUnreadable):
        left_out = f"{len(rows)} rows" if len(rows) > 1 else "this one row" if rows else left_out
        next_step = going_on(next_step, rows or [at], left_out)
    return type(error)(
        f"at {at} of the binlog{transaction}: {error.message}",
        next_step=next_step,
        details={**error.details, "at": at, **({"gtid": gtid} if gtid else {})},
    )
