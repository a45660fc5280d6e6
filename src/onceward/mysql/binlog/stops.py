"""The two errors of all that reads events: bytes that make no sense, and changes that cannot be
passed on. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onceward.errors import BinlogDamaged, ChangeUnreadable
from onceward.mysql.binlog.event import Event

ON_DAMAGE = (
    "the query reads it again by itself; if that fails at the same place, run mysqlbinlog "
    "--verify-binlog-checksum on "
    "the file, and read from another server, or from a new checkpoint with a snapshot"
)


def place(event: Event) -> str:
    """An event's name in errors and ``pass_over``: ``file:position``, and ``#number`` of one in a
    payload.
    """
    return f"{event.file}:{event.position}" + (f"#{event.inner}" if event.inner else "")


def row_place(event: Event, row: int) -> str:
    """A row's, by its number in the event, as the column ``row`` has it."""
    return f"{place(event)}/{row}"


@dataclass(frozen=True)
class Passes:
    """What a person has said may be left out if it cannot be read, by name: nothing else is. What
    can be read is.
    """

    names: frozenset[str] = frozenset()

    def event(self, event: Event) -> bool:
        """The event as a whole."""
        return bool(self.names) and place(event) in self.names

    def row(self, event: Event, row: int) -> bool:
        """One row; of an update, the row before or the one after."""
        return bool(self.names) and row_place(event, row) in self.names


NO_PASSES = Passes()


def going_on(next_step: str, names: Sequence[str], left_out: str) -> str:
    """``next_step``, and how a query is told to go on.

    :param left_out: what is lost by it.
    """
    said = ", ".join(f'"{name}"' for name in names)
    return (
        f"{next_step}; once the tables are known to agree, go on without {left_out} by "
        f"pass_over=[{said}]"
    )


def damaged(event: Event, what: str) -> BinlogDamaged:
    """Its checksum may be right, and yet it is none that a server writes."""
    at = place(event)
    return BinlogDamaged(
        f"at {at} of the binlog there is {what}", next_step=ON_DAMAGE, details={"at": at}
    )


def unreadable(
    event: Event,
    reason: str,
    what: str,
    next_step: str,
    *,
    gtid: str | None = None,
    left_out: str = "this one event",
) -> ChangeUnreadable:
    """A named stop.

    :param reason: one word, as listed in the documentation, for ``details``.
    :param what: follows "there is".
    :param next_step: what has to be done first; that the place can be passed over then is added.
    :param left_out: what is lost then.
    """
    at = place(event)
    details: dict[str, Any] = {"reason": reason, "at": at, **({"gtid": gtid} if gtid else {})}
    in_transaction = f" (transaction {gtid})" if gtid else ""
    return ChangeUnreadable(
        f"at {at} of the binlog{in_transaction} there is {what}",
        next_step=going_on(next_step, [at], left_out),
        details=details,
    )
