"""Is a stream of changes exactly what happened? The stream beside another reader's list of the
same binlog. Pure.

The model of one key: nothing, then the row as of its snapshot (or an insert), then each change of
it in order. The witness's list is complete from before the query began, so what the stream has of
a key must be the *end* of what the witness has of it: nothing in the middle or at the end is
missing, nothing comes twice, nothing is in another order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Row = dict[str, Any]
Key = tuple[str, str]
"""Table, and the primary key as text."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row's: ``op`` is c, u, d, or r of a snapshot."""

    key: Key
    op: str
    before: Row | None
    after: Row | None


def amiss(witness: Iterable[Change], stream: Iterable[Change], rows: dict[Key, Row]) -> list[str]:
    """What is wrong, in words; nothing if all is right.

    :param witness: all changes since before the query began, in the binlog's order, moved keys as
        d and c.
    :param stream: what came out, in the order of each key.
    :param rows: what is in the tables at the end.
    """
    happened, came = _by_key(witness), _by_key(stream)
    return [why for key in happened.keys() | came.keys() | rows.keys()
            if (why := _of_one_key(key, happened.get(key, []), came.get(key, []),
            rows.get(key)))]  # fmt: skip


def _of_one_key(key: Key, happened: list[Change], came: list[Change], row: Row | None) -> str:
    if not came:
        return f"{key}: is in the table, and nothing came of it" if row is not None else ""
    first, rest = came[0], came[1:]
    if Counter(change.op == "r" for change in came)[True] > (first.op == "r"):
        return f"{key}: a snapshot's row behind others"
    changes = rest if first.op == "r" else came
    if changes != happened[len(happened) - len(changes) :]:
        return f"{key}: {_difference(happened, changes)}"
    if first.op == "r" and changes and changes[0].before != first.after:
        return (
            f"{key}: the snapshot has {first.after}, and what follows changes {changes[0].before}"
        )
    for one, following in pairwise(came):
        if one.after != following.before:
            return (
                f"{key}: after {one.op} it is {one.after}, before {following.op} "
                f"{following.before}"
            )
    if first.op not in ("r", "c"):
        return f"{key}: begins with {first.op}"
    return (
        ""
        if came[-1].after == row
        else f"{key}: ends as {came[-1].after}, and in the table it is {row}"
    )


def _difference(happened: list[Change], changes: list[Change]) -> str:
    wanted = (
        happened[len(happened) - len(changes) :] if len(changes) <= len(happened) else happened
    )
    for number, (one, other) in enumerate(zip(wanted, changes, strict=False)):
        if one != other:
            return (
                f"change {number} of {len(changes)} (of {len(happened)} that happened) is "
                f"{other}, not {one}"
            )
    return f"{len(changes)} changes came, {len(happened)} happened"


def never_came(witness: list[Change], stream: Iterable[Change], since: int) -> list[str]:
    """Keys of whose changes from the ``since``-th on (all snapshots were done by then) nothing
    came at all.

    ``amiss`` cannot know them: a key that was gone before its snapshot has no change that must
    come.
    """
    came = {change.key for change in stream}
    return sorted({str(change.key) for change in witness[since:] if change.key not in came})


def _by_key(changes: Iterable[Change]) -> dict[Key, list[Change]]:
    found: dict[Key, list[Change]] = defaultdict(list)
    for change in changes:
        found[change.key].append(change)
    return found
