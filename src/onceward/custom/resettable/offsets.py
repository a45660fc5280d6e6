"""What Spark logs of a resettable source before each batch: the range it is made of. Pure: JSON
values in and out.

Runs wherever the source is read: in the process that Spark keeps beside the driver, and in tests.

``{"onceward": 1, "position": …}`` is a beginning. What a batch ends at has more, so that a later
run can tell whether it reads the same rows again: ``{"onceward": 1, "from": …, "position": …,
"rows": 7, "checksum": "…", "identity": "…"}``. ``from`` is there because Spark does not log where
a query's first batch begins: it asks the source again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from onceward.errors import SourceContractViolated

VERSION = 1
# its value is a number, so that no offset of ours looks like one of Kafka's, whatever a position
# is
_MARK = "onceward"
# it goes into Spark's log twice, and into each ledger record four times; a Kafka topic takes 1 MB,
# of which this is a part once it is compressed. A snapshot's has the names of all tables left
_POSITION_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Offset:
    """Where a batch ends, and how what lies before it was read.

    ``rows`` is None for a beginning, and ``checksum``, too, where tasks read the rows
    (``PartitionedSource``).
    """

    position: Any
    begins: Any = None
    rows: int | None = None
    checksum: str | None = None
    identity: str | None = None
    first: bool = True
    """A beginning: no batch ends here."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset as Spark logs it; equal ones are one text, which Spark compares."""
        value: dict[str, Any] = {_MARK: VERSION}
        if not self.first:
            value["from"] = self.begins
        value["position"] = self.position
        optional = {"rows": self.rows, "checksum": self.checksum, "identity": self.identity}
        return value | {name: what for name, what in optional.items() if what is not None}

    @classmethod
    def from_json(cls, value: Any) -> Offset:
        """Parse an offset.

        :raises SourceContractViolated: a checkpoint (or a ledger record) has something else,
        another source's or a newer version's.
        """
        if not is_ours(value):
            raise SourceContractViolated(
                f"the checkpoint has {_short(value)} for this source, which is no offset of a "
                "resettable source of this version of Onceward",
                next_step="start this query with a checkpoint of its own, and do not change the "
                "order of its sources",
            )
        return cls(
            position=value["position"],
            begins=value.get("from"),
            rows=value.get("rows"),
            checksum=value.get("checksum"),
            identity=value.get("identity"),
            first="from" not in value,
        )


def is_ours(value: Any) -> bool:
    """Return whether ``value`` is what :meth:`Offset.to_json` makes."""
    return isinstance(value, dict) and value.get(_MARK) == VERSION and "position" in value


def logged_position(value: Any, said_by: str) -> Any:
    """Return ``value`` as it will come back from the checkpoint (a tuple as a list).

    :raises SourceContractViolated: it is no JSON, or too long for a log.
    """
    text = _json_text(value, said_by, "position")
    if len(text) > _POSITION_CHARACTERS:
        raise SourceContractViolated(
            f"{said_by} gave a position of {len(text)} characters; Spark's log and the ledger "
            "keep it for each batch",
            next_step=f"keep it below {_POSITION_CHARACTERS} characters: a cursor, not what was "
            "read",
        )
    return json.loads(text)


def as_partition(value: Any, said_by: str) -> Any:
    """Return ``value`` as a task will get it: of any length, for no log has it.

    :raises SourceContractViolated: it is no JSON.
    """
    return json.loads(_json_text(value, said_by, "partition"))


def _json_text(value: Any, said_by: str, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise SourceContractViolated(
            f"{said_by} gave {_short(value)} as a {what}, which is not JSON: {error}",
            next_step=f"make {what}s of strings, numbers, true, false, null, lists and objects",
        ) from None


def copied(position: Any) -> Any:
    """Copy a position for the user's code, which may change a dict or a list in place."""
    return json.loads(json.dumps(position))


def same(one: Any, other: Any) -> bool:
    """Return whether two positions are the same JSON. (To Python, 1, 1.0 and True are equal.)"""
    return position_text(one) == position_text(other)


def goes_back(at: Offset, after: Any) -> bool:
    """Return whether ``after`` lies before ``at``, as far as positions of the user's can tell: it
    is where the range before began; or that range went up, and now numbers are smaller, none is
    larger, and all else is the same. Texts have no order: cursors are opaque, and digits are of
    any length. A source that reads from the newest row on counts down from the beginning.
    """
    if at.first:
        return False
    went_up = any(change > 0 for change in _changes(at.begins, at.position))
    changes = list(_changes(at.position, after))
    is_down = bool(changes) and all(change < 0 for change in changes)
    return same(after, at.begins) or (went_up and is_down)


def has_passed(end: Offset, position: Any) -> bool:
    """Return whether ``position`` lies behind the end of a range, as far as positions can tell."""
    return goes_back(replace(end, position=position), end.position)


def _changes(before: Any, after: Any) -> Iterator[float]:
    """Yield the difference of each number that has changed; 1 for anything else that has."""
    if type(before) is type(after) is dict and before.keys() == after.keys():
        before, after = list(before.values()), [after[name] for name in before]
    if type(before) is type(after) is list and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _changes(one, other)
    elif not same(before, after):
        is_smaller = _is_number(before) and _is_number(after) and after < before
        yield -1 if is_smaller else 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def position_text(position: Any) -> str:
    """Return one text for one position, whatever the order of keys."""
    return json.dumps(position, sort_keys=True)


def shown(position: Any) -> str:
    """Return a position's text as messages have it."""
    return _cut(position_text(position), 1_000)


def _short(value: Any) -> str:
    return _cut(repr(value), 200)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
