"""From which batch on? ``--since`` leaves out what came before it, for a CI gate behind a
migration or an old finding.

Pure functions of the batches as told; called by ``checker`` and by the command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from onceward_verify.findings import CannotTell, WrongUsage
from onceward_verify.ledger import Batch


@dataclass(frozen=True)
class Since:
    """``batch``: the first record of the newest query with that batch number or a later one.
    ``sequence``: of the ledger's own numbering, over all queries. ``time``: committed then or
    later (milliseconds since the epoch).
    """

    kind: Literal["batch", "sequence", "time"]
    number: int
    text: str


@dataclass(frozen=True)
class Selection:
    """``batches``: those to judge. ``before``: those left out. ``complete``: of what was asked for
    none is missing.
    """

    batches: tuple[Batch, ...]
    before: tuple[Batch, ...]
    complete: bool


def since_of(text: str) -> Since:
    """``12`` or ``batch:12``, ``sequence:40``, or a time as ISO 8601 has it, with its zone.

    :raises WrongUsage: none of these.
    """
    kind, separator, number = text.partition(":")
    if text.isascii() and text.isdecimal():
        return Since("batch", int(text), text)
    if separator and number.isascii() and number.isdecimal():
        if kind == "batch":
            return Since("batch", int(number), text)
        if kind == "sequence":
            return Since("sequence", int(number), text)
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise WrongUsage(
            f"--since {text} is no batch, no sequence and no time with a zone",
            next_step="pass a batch number such as 12, sequence:40, or a time such as "
            "2030-01-31T06:00Z",
        )
    return Since("time", int(time.timestamp() * 1000), text)


def select(read: Sequence[Batch], since: Since | None) -> Selection:
    """The batches of ``read`` that ``since`` asks for, in the order in which they were read.

    :raises CannotTell: it asks for something, and the ledger has nothing that late.
    """
    if since is None or not read:
        return Selection(tuple(read), (), complete=False)
    ordered = sorted(read, key=lambda batch: batch.sequence)
    newest = ordered[-1]
    wanted = [batch for batch in ordered if _is_wanted(batch, since, newest.query_id)]
    if not wanted:
        raise CannotTell(
            f"the ledger has no batch since {since.text}: it ends with batch {newest.batch_id} of "
            f"query "
            f"{newest.query_id}, sequence {newest.sequence}",
            next_step="name an earlier one with --since, or wait for the next batch",
        )
    first = wanted[0]
    exact = {"batch": first.batch_id, "sequence": first.sequence, "time": first.committed_at_ms}[
        since.kind
    ]
    has_the_one_before = any(batch.sequence == first.sequence - 1 for batch in ordered)
    return Selection(
        tuple(batch for batch in read if batch.sequence >= first.sequence),
        tuple(batch for batch in read if batch.sequence < first.sequence),
        complete=exact == since.number or has_the_one_before,
    )


def _is_wanted(batch: Batch, since: Since, newest_query: str) -> bool:
    if since.kind == "batch":
        return batch.query_id == newest_query and batch.batch_id >= since.number
    return (batch.sequence if since.kind == "sequence" else batch.committed_at_ms) >= since.number
