"""What must have come out of a topic of changes, beside what did. Pure.

Of each key we know every change that the writer made, and see a list of records in the order of
their offsets. It must be one row of the snapshot (``r``), as the row was at some moment, and then
every later change once; or every change from an insert on, if at the moment of the snapshot there
was no such row; and a tombstone behind each deletion. Which moment the snapshot's was the job
alone knows. So of a key that had changes before the first one that we see we ask no more than
this: what was committed after the last row of the snapshot came out must be there. And whatever
the model says, ``before`` must be the ``after`` of the record in front of it, and the last
``after`` what a ``SELECT`` shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from onceward_testing.demo.changes.deed import Change
from onceward_testing.demo.changes.rows import EMAIL_UNSAID, Key, Row
from onceward_testing.verdict import Verdict, exactly_once

Where = tuple[str, Key]
"""A table and a key in it."""


class Told(NamedTuple):
    """One record. ``tombstone``: it has a key and no value. ``at_ms``: when the broker got it, in
    milliseconds since the epoch.
    """

    op: Literal["r", "c", "u", "d", "tombstone"]
    before: Row | None
    after: Row | None
    partition: int
    at_ms: int


@dataclass(frozen=True)
class Findings:
    """``verdict``: each change that had to come out against each that did, by their names.
    ``broken``: where a key's records are no chain, in words; the first few.
    """

    verdict: Verdict[str]
    snapshot_rows: int
    broken: list[str] = field(default_factory=list)


_BROKEN_NAMED = 5


def compare(
    histories: Mapping[Where, Sequence[Change]],
    told: Mapping[Where, Sequence[Told]],
    rows: Mapping[Where, Row],
) -> Findings:
    """
    :param histories: every change of each key, in the order of their commits.
    :param told: the records of each key, in the order of their offsets.
    :param rows: what a ``SELECT`` shows when all is done.
    """
    snapshot = [
        record.at_ms for records in told.values() for record in records if record.op == "r"
    ]
    broken = (
        []
        if snapshot
        else ["INVALID: no row of a snapshot came out, so nothing shows how changes join it"]
    )
    expected: list[str] = []
    visible: list[str] = []
    for where in {**histories, **told, **rows}:
        key = _OneKey(histories.get(where, ()), told.get(where, ()), max(snapshot, default=0))
        name = f"{where[0]} {'/'.join(map(str, where[1]))}"
        expected += [f"{name}: {what}" for what in key.expected()]
        visible += [f"{name}: {what}" for what in key.visible()]
        broken += [f"{name}: {what}" for what in key.breaks(rows.get(where))]
    unnamed = len(broken) - _BROKEN_NAMED
    told_broken = (
        broken if unnamed <= 0 else [*broken[:_BROKEN_NAMED], f"and {unnamed} more like these"]
    )
    return Findings(exactly_once(expected, visible), len(snapshot), told_broken)


class _OneKey:
    """Versions grow from change to change of a key, over its deletion, too: so no two changes of
    it are alike.
    """

    def __init__(
        self, history: Sequence[Change], records: Sequence[Told], snapshot_over_ms: int
    ) -> None:
        self._history = history
        self._records = records
        self._snapshot_over_ms = snapshot_over_ms
        self._places = [self._place_of(record) for record in records]

    def expected(self) -> list[str]:
        """The names of what must have come out."""
        begins = self._places[0] if self._places else None
        if begins is None or self._records[0].op not in ("r", "c"):
            required = _names(self._after_the_snapshot(self._history))
            lives = bool(self._history) and self._history[-1].after is not None
            return required or ([f"as of {_version(self._history[-1].after)}"] if lives else [])
        if self._records[0].op == "r":
            return [_name(self._records[0]), *_names(self._history[begins + 1 :])]
        return _names([*self._after_the_snapshot(self._history[:begins]), *self._history[begins:]])

    def visible(self) -> Iterator[str]:
        """The names of what did."""
        for number, (place, record) in enumerate(zip(self._places, self._records, strict=True)):
            if record.op == "tombstone":
                yield (
                    _tombstone(self._records[number - 1])
                    if number
                    else "a tombstone, first of all"
                )
                continue
            never = f", which never was: {record.before} → {record.after}" if place is None else ""
            yield f"{_name(record)}{never}"

    def breaks(self, row: Row | None) -> Iterator[str]:
        """:param row: of this key, at the end."""
        if len({record.partition for record in self._records}) > 1:
            yield "its records are in several partitions"
        records = [record for record in self._records if record.op != "tombstone"]
        if any(
            one >= other
            for one, other in pairwise(place for place in self._places if place is not None)
        ):
            yield f"not in order: {', '.join(map(_name, records))}"
        was: Row | None = None
        for number, record in enumerate(records):
            if record.op == "r" and number:
                yield f"{_name(record)}, behind {_name(records[number - 1])}"
            if record.op in ("c", "r") and was is not None:
                yield f"{_name(record)}, of a row that is there"
            elif record.op in ("u", "d") and not _is_seen_as(was, record.before):
                yield (
                    f"{_name(record)} has before={record.before}, and the record in front of it "
                    f"after={was}"
                )
            was = record.after
        if not _is_seen_as(was, row):
            yield f"a SELECT shows {row}, and the last record {was}"

    def _after_the_snapshot(self, changes: Sequence[Change]) -> list[Change]:
        return [change for change in changes if change.not_before_ms > self._snapshot_over_ms]

    def _place_of(self, record: Told) -> int | None:
        """Which change of the history this record is; of a row of the snapshot: after which it was
        read.
        """
        for place, change in enumerate(self._history):
            if (
                record.op == "r"
                and change.after is not None
                and _is_seen_as(change.after, record.after)
            ):
                return place
            if (record.op, record.before, record.after) == change[:3]:
                return place
        return None


def _is_seen_as(row: Row | None, later: Row | None) -> bool:
    """Whether they are the same; the later one may have the column that was added."""
    return row == later or (row is not None and later == (*row, EMAIL_UNSAID))


def _names(changes: Sequence[Change]) -> list[str]:
    """With what Debezium writes behind deletions."""
    return [
        name
        for change in changes
        for name in (_name(change), *([_tombstone(change)] if change.op == "d" else []))
    ]


def _tombstone(behind: Change | Told) -> str:
    return f"tombstone behind {_name(behind)}"


def _name(one: Change | Told) -> str:
    if one.op == "r":
        return f"as of {_version(one.after)}"
    return f"{one.op} {_version(one.before)}→{_version(one.after)}"


def _version(row: Row | None) -> str:
    """Of rows of either table; ``-`` where there is none."""
    if row is None:
        return "-"
    return f"v{row[1] if isinstance(row[1], int) else row[2]}"
