"""The comparison of a topic of changes with the model of what was committed. Pure.

Of each key the model has every change that was committed, and the topic a list of records in the
order of their offsets. They must be one row of the snapshot (``r``), as the row was at some
moment, and then every later change once; or every change from an insert on, if at the moment of
the snapshot there was no such row; and a tombstone behind each deletion. Which moment the
snapshot's was the job alone knows. So of a key that had changes before the first one that is in
the topic no more is required than this: what was committed after the last row of the snapshot came
out must be there. And whatever the model says, ``before`` must be the ``after`` of the record in
front of it, and the last ``after`` what a ``SELECT`` shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from onceward_testing.demo.changes.tables import DATABASE, DEFAULT_EMAIL, Row, RowId, SourceTable
from onceward_testing.demo.changes.workload import RowChange
from onceward_testing.topic_reader import ReadRecord
from onceward_testing.verdict import Verdict, exactly_once

_BROKEN_SHOWN = 5


class ChangeRecord(NamedTuple):
    """A record of the topic. ``tombstone``: it has a key and no value. ``at_ms``: when the broker
    got it, in milliseconds since the epoch."""

    op: Literal["r", "c", "u", "d", "tombstone"]
    before: Row | None
    after: Row | None
    partition: int
    at_ms: int


@dataclass(frozen=True)
class ChangesVerdict:
    """``verdict``: each change that had to come out against each that did, by their names.
    ``broken``: where a key's records are no chain, in words; the first few."""

    verdict: Verdict[str]
    snapshot_rows: int
    broken: list[str] = field(default_factory=list)


def read_change(table: SourceTable, record: ReadRecord) -> tuple[RowId, ChangeRecord]:
    """Return the row and the change of a record in Debezium's form.

    :raises ValueError: it has another one, or contradicts itself. (Also KeyError, TypeError.)
    """
    key_document = json.loads(record.key or b"null")
    columns = [column.name for column in table.columns[: table.key]]
    row_id = table.name, tuple(key_document[name] for name in columns)
    if record.value is None:
        return row_id, ChangeRecord("tombstone", None, None, record.partition, record.timestamp_ms)
    value = json.loads(record.value)
    before, after = (
        value[name] and table.row_from_debezium(value[name]) for name in ("before", "after")
    )
    if key_document.keys() != set(columns) or any(
        table.row_id(row) != row_id for row in (before, after) if row
    ):
        raise ValueError(f"key {key_document} is not that of the row")
    if (value["source"]["db"], value["source"]["table"]) != (DATABASE, table.name):
        raise ValueError(f"source {value['source']} is not this topic's table")
    return row_id, ChangeRecord(value["op"], before, after, record.partition, record.timestamp_ms)


def compare(
    histories: Mapping[RowId, Sequence[RowChange]],
    records: Mapping[RowId, Sequence[ChangeRecord]],
    rows: Mapping[RowId, Row],
) -> ChangesVerdict:
    """Compare key by key.

    :param histories: every change of each key, in the order of their commits.
    :param records: of each key, in the order of their offsets.
    :param rows: what a ``SELECT`` shows when all is done.
    """
    snapshot = [
        record.at_ms for of_key in records.values() for record in of_key if record.op == "r"
    ]
    broken = (
        []
        if snapshot
        else ["INVALID: no row of a snapshot came out, so nothing shows how changes join it"]
    )
    expected: list[str] = []
    visible: list[str] = []
    for row_id in {**histories, **records, **rows}:
        key = _OneKey(histories.get(row_id, ()), records.get(row_id, ()), max(snapshot, default=0))
        name = f"{row_id[0]} {'/'.join(map(str, row_id[1]))}"
        expected += [f"{name}: {change}" for change in key.expected()]
        visible += [f"{name}: {change}" for change in key.visible()]
        broken += [f"{name}: {problem}" for problem in key.problems(rows.get(row_id))]
    if len(broken) > _BROKEN_SHOWN:
        broken[_BROKEN_SHOWN:] = [f"and {len(broken) - _BROKEN_SHOWN} more like these"]
    return ChangesVerdict(exactly_once(expected, visible), len(snapshot), broken)


class _OneKey:
    """Versions grow from change to change of a key, over its deletion, too: so no two changes of
    it are alike."""

    def __init__(
        self, history: Sequence[RowChange], records: Sequence[ChangeRecord], snapshot_end_ms: int
    ) -> None:
        self._history = history
        self._records = records
        self._snapshot_end_ms = snapshot_end_ms
        self._places = [self._place(record) for record in records]

    def expected(self) -> list[str]:
        """Return the names of what must have come out."""
        begins = self._places[0] if self._places else None
        if begins is None or self._records[0].op not in ("r", "c"):
            required = _names(self._after_snapshot(self._history))
            exists = bool(self._history) and self._history[-1].after is not None
            return required or ([f"as of {_version(self._history[-1].after)}"] if exists else [])
        if self._records[0].op == "r":
            return [_name(self._records[0]), *_names(self._history[begins + 1 :])]
        return _names([*self._after_snapshot(self._history[:begins]), *self._history[begins:]])

    def visible(self) -> Iterator[str]:
        """Yield the names of what did."""
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

    def problems(self, row: Row | None) -> Iterator[str]:
        """Yield where the records are no chain.

        :param row: of this key, at the end.
        """
        if len({record.partition for record in self._records}) > 1:
            yield "its records are in several partitions"
        records = [record for record in self._records if record.op != "tombstone"]
        if any(
            one >= other
            for one, other in pairwise(place for place in self._places if place is not None)
        ):
            yield f"not in order: {', '.join(map(_name, records))}"
        previous: Row | None = None
        for number, record in enumerate(records):
            if record.op == "r" and number:
                yield f"{_name(record)}, behind {_name(records[number - 1])}"
            if record.op in ("c", "r") and previous is not None:
                yield f"{_name(record)}, of a row that is there"
            elif record.op in ("u", "d") and not _equal(previous, record.before):
                yield (
                    f"{_name(record)} has before={record.before}, the one before after={previous}"
                )
            previous = record.after
        if not _equal(previous, row):
            yield f"a SELECT shows {row}, and the last record {previous}"

    def _after_snapshot(self, changes: Sequence[RowChange]) -> list[RowChange]:
        return [change for change in changes if change.not_before_ms > self._snapshot_end_ms]

    def _place(self, record: ChangeRecord) -> int | None:
        """Find the change of the history that this record is; of a row of the snapshot, the one
        after which it was read."""
        for place, change in enumerate(self._history):
            if (
                record.op == "r"
                and change.after is not None
                and _equal(change.after, record.after)
            ):
                return place
            if (record.op, record.before, record.after) == change[:3]:
                return place
        return None


def _equal(row: Row | None, later: Row | None) -> bool:
    """Return whether they are the same; the later one may have the column that was added."""
    return row == later or (row is not None and later == (*row, DEFAULT_EMAIL))


def _names(changes: Sequence[RowChange]) -> list[str]:
    """Return the names of changes and of the tombstones behind deletions."""
    return [
        name
        for change in changes
        for name in (_name(change), *([_tombstone(change)] if change.op == "d" else []))
    ]


def _tombstone(behind: RowChange | ChangeRecord) -> str:
    return f"tombstone behind {_name(behind)}"


def _name(one: RowChange | ChangeRecord) -> str:
    if one.op == "r":
        return f"as of {_version(one.after)}"
    return f"{one.op} {_version(one.before)}→{_version(one.after)}"


def _version(row: Row | None) -> str:
    """Return the version of a row of either table; ``-`` where there is none."""
    if row is None:
        return "-"
    return f"v{row[1] if isinstance(row[1], int) else row[2]}"
