"""The errors of what a binlog says of tables and rows, each built in one place. Pure; called by all that reads rows.

Nothing here knows where in the binlog it is read: :mod:`changes` adds that, by :func:`located`.
"""

from __future__ import annotations

from typing import TypeVar

from onceward.binlog.event import Event
from onceward.errors import BinlogDamaged, ChangeUnreadable, OncewardError

Refusal = TypeVar("Refusal", bound=OncewardError)

FULL_METADATA = (
    "SET PERSIST binlog_row_metadata = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same line in its "
    "configuration), then start from a position after that: what was written before has no names of columns"
)
FULL_IMAGE = (
    "SET PERSIST binlog_row_image = 'FULL' on the server (in MariaDB: SET GLOBAL, and the same line in its "
    "configuration), take care that no session sets it otherwise, and start from a position after that"
)


class BadCell(Exception):
    """One value of one row is not what its column's type has. Never leaves this package: :mod:`changes` knows which
    event the row is of, and raises what the reader is told."""

    def __init__(self, row: int, error: OncewardError) -> None:
        super().__init__(row, error)
        self.row = row
        self.error = error


def damaged(what: str) -> BinlogDamaged:
    """Bytes that no server writes."""
    return BinlogDamaged(
        what,
        next_step="the next attempt reads it again; if it fails at the same place, the file on the server is damaged: "
        "compare with mysqlbinlog --verify-binlog-checksum, and start again from a snapshot",
    )


def unreadable(reason: str, what: str, next_step: str) -> ChangeUnreadable:
    """What a server may write, and what is no change of a row that could be handed on."""
    return ChangeUnreadable(what, next_step=next_step, details={"reason": reason})


def located(error: Refusal, event: Event, gtid: str | None) -> Refusal:
    """``error`` with the place of ``event``, which its message begins with."""
    at = f"{event.file}:{event.position}"
    details = {**error.details, "at": at, **({"gtid": gtid} if gtid else {})}
    return type(error)(f"binlog {at}: {error.message}", next_step=error.next_step, details=details)
