"""The two errors of all that reads events: bytes that make no sense, and changes that cannot be passed on. Pure."""

from __future__ import annotations

from typing import Any

from onceward.binlog.event import Event
from onceward.errors import BinlogDamaged, ChangeUnreadable

ON_DAMAGE = (
    "the query reads it again by itself; if that fails at the same place, run mysqlbinlog --verify-binlog-checksum on "
    "the file, and read from another server, or from a new checkpoint with a snapshot"
)


def place(event: Event) -> str:
    """``file:position``, as errors and ``pass_over`` say it."""
    return f"{event.file}:{event.position}"


def going_on(next_step: str, at: str) -> str:
    """``next_step``, and how a query is told to go on behind the event at ``at``."""
    return f'{next_step}; once the tables are known to agree, go on behind it with pass_over=["{at}"]'


def damaged(event: Event, what: str) -> BinlogDamaged:
    """Its checksum may be right, and yet it is none that a server writes."""
    at = place(event)
    inside = f", in event {event.inner} of its payload," if event.inner else ""
    return BinlogDamaged(f"at {at} of the binlog{inside} there is {what}", next_step=ON_DAMAGE, details={"at": at})


def unreadable(event: Event, reason: str, what: str, next_step: str, *, gtid: str | None = None) -> ChangeUnreadable:
    """A named stop.

    :param reason: one word, as listed in the documentation, for ``details``.
    :param what: follows "there is".
    :param next_step: what has to be done first; that the place can be passed over then is added.
    """
    at = place(event)
    details: dict[str, Any] = {"reason": reason, "at": at, **({"gtid": gtid} if gtid else {})}
    in_transaction = f" (transaction {gtid})" if gtid else ""
    return ChangeUnreadable(
        f"at {at} of the binlog{in_transaction} there is {what}",
        next_step=going_on(next_step, at),
        details=details,
    )
