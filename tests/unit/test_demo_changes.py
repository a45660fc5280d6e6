"""The demo's workload, and the verdict on what came out of it: whatever a job could do wrong is
seen."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onceward_testing.demo.changes.comparison import (
    ChangeRecord,
    ChangesVerdict,
    compare,
    read_change,
)
from onceward_testing.demo.changes.tables import (
    DEFAULT_EMAIL,
    PEOPLE,
    PEOPLE_WITH_EMAIL,
    Row,
    RowId,
)
from onceward_testing.demo.changes.workload import RowChange, Workload
from onceward_testing.topic_reader import ReadRecord

SNAPSHOT_MS = 100
"""A moment: changes from here on are after the last row of the snapshot."""


class Scene:
    """A workload over 400 transactions, of which 100 lie before the snapshot; and what a right job
    makes of it."""

    def __init__(self, seed: int) -> None:
        workload, self.histories = Workload(0, seed), defaultdict[RowId, list[RowChange]](list)
        at_snapshot: dict[RowId, Row] = {}
        self.told: dict[RowId, list[ChangeRecord]] = {}
        for number in range(400):
            if number == 200:
                workload.add_emails()
            transaction = workload.transaction()
            at_ms = number if number < 100 else SNAPSHOT_MS + number
            for row_id, change in [] if transaction.rolls_back else transaction.changes:
                self.histories[row_id].append(change._replace(not_before_ms=at_ms))
            if number == 99:
                at_snapshot = workload.rows
        self.rows = workload.rows
        for where, row in at_snapshot.items():
            self.told[where] = [ChangeRecord("r", None, row, hash(where) % 4, SNAPSHOT_MS)]
        for where, history in self.histories.items():
            changes = [change for change in history if change.not_before_ms > SNAPSHOT_MS]
            if changes:
                self.told.setdefault(where, []).extend(_told(changes, hash(where) % 4))

    def found(self) -> ChangesVerdict:
        return compare(self.histories, self.told, self.rows)

    def is_kept(self) -> bool:
        found = self.found()
        return found.verdict.holds and not found.broken


def _told(changes: list[RowChange], partition: int) -> Iterator[ChangeRecord]:
    for change in changes:
        yield ChangeRecord(*change[:3], partition, change.not_before_ms)
        if change.op == "d":
            yield ChangeRecord("tombstone", None, None, partition, change.not_before_ms)


@pytest.fixture(scope="module")
def told() -> Scene:
    return Scene(seed=1)


@pytest.fixture
def scene(told: Scene) -> Scene:
    copied = Scene.__new__(Scene)
    copied.histories, copied.rows = told.histories, told.rows
    copied.told = {where: list(records) for where, records in told.told.items()}
    return copied


def test_a_town_is_the_same_for_the_same_seed_and_another_for_each_session() -> None:
    one, same, other = (
        [workload.transaction() for _ in range(100)]
        for workload in (Workload(0, 3), Workload(0, 3), Workload(1, 3))
    )
    assert one == same
    keys = [
        {row_id for transaction in transactions for row_id, _ in transaction.changes}
        for transactions in (one, other)
    ]
    assert not keys[0] & keys[1]


def test_a_town_does_everything_that_can_be_done_to_a_row(told: Scene) -> None:
    histories = [[change.op for change in history] for history in told.histories.values()]
    assert {op for history in histories for op in history} == {"c", "u", "d"}
    assert any(history.count("c") > 1 for history in histories)  # rows come back
    assert {len(row) for (table, _), row in told.rows.items() if table == "people"} == {
        len(PEOPLE_WITH_EMAIL.columns)
    }
    workload = Workload(0, 1)
    transactions = [workload.transaction() for _ in range(400)]
    assert any(transaction.rolls_back for transaction in transactions)
    assert any(
        {row_id[0] for row_id, _ in transaction.changes} == {"people", "homes"}
        for transaction in transactions
    )
    assert any(
        statement.startswith("UPDATE people SET version = version + 1, id =")
        for transaction in transactions
        for statement, _ in transaction.statements
    )


def test_each_change_of_a_key_goes_on_where_the_last_one_ended_and_is_like_no_other(
    told: Scene,
) -> None:
    for where, history in told.histories.items():
        was: Row | None = None
        for change in history:
            assert change.before in (was, was and (*was, DEFAULT_EMAIL))
            was = change.after
        assert told.rows.get(where) in (was, was and (*was, DEFAULT_EMAIL))
        assert len({change[:3] for change in history}) == len(history)


def test_what_a_right_job_writes_is_found_right(scene: Scene) -> None:
    found = scene.found()
    assert scene.is_kept(), found
    assert found.snapshot_rows > 100
    assert found.verdict.visible > 1_000


def _lose(records: list[ChangeRecord], place: int) -> None:
    del records[place]


def _repeat(records: list[ChangeRecord], place: int) -> None:
    records.insert(place, records[place])


def _repeat_later(records: list[ChangeRecord], place: int) -> None:
    records.append(records[place])


def _spoil(records: list[ChangeRecord], place: int) -> None:
    if records[place].op == "tombstone":
        records[place] = records[place]._replace(op="d")
        return
    name = "after" if records[place].after is not None else "before"
    row = getattr(records[place], name)
    records[place] = records[place]._replace(**{name: (*row[:3], f"{row[3]}?", *row[4:])})


def _begin_late(records: list[ChangeRecord], place: int) -> None:
    """The snapshot has the row as it was later, and the changes until then come out, too."""
    known = records[place - (records[place].op == "tombstone")]
    records.insert(
        0, ChangeRecord("r", None, known.after or known.before, records[0].partition, 1)
    )


def _elsewhere(records: list[ChangeRecord], place: int) -> None:
    records.append(records.pop(place)._replace(partition=9))
    records.insert(0, records[-1]._replace(partition=8))


def _swap(records: list[ChangeRecord], place: int) -> None:
    records[place - 1 : place + 1] = reversed(records[place - 1 : place + 1])


@pytest.mark.parametrize("wrong", [_lose, _repeat, _repeat_later, _spoil, _begin_late, _elsewhere])
def test_one_record_that_is_wrong_is_seen(
    scene: Scene, wrong: Callable[[list[ChangeRecord], int], None]
) -> None:
    rng = random.Random(1)
    for where in rng.sample(sorted(scene.told), 60):
        kept = list(scene.told[where])
        one = OneKey(scene, where)
        wrong(scene.told[where], rng.randrange(len(kept)))
        assert not one.is_kept(), (where, kept, scene.told[where])
        scene.told[where] = kept


def test_two_records_of_a_key_the_wrong_way_round_are_seen(scene: Scene) -> None:
    several = [where for where, records in scene.told.items() if len(records) > 1]
    assert len(several) > 50
    for where in several:
        kept = list(scene.told[where])
        one = OneKey(scene, where)
        _swap(scene.told[where], len(kept) - 1)
        assert not one.is_kept(), (where, scene.told[where])
        scene.told[where] = kept


class OneKey:
    """The same scene, looked at for one key (and one row of the snapshot beside it, to say when
    that was)."""

    def __init__(self, scene: Scene, where: RowId) -> None:
        other = next(
            one for one, records in scene.told.items() if records[0].op == "r" and one != where
        )
        self._story, self._keys = scene, (where, other)

    def is_kept(self) -> bool:
        found = compare(
            *(
                {where: what[where] for where in self._keys if where in what}
                for what in (self._story.histories, self._story.told, self._story.rows)
            )
        )  # type: ignore[attr-defined]
        return found.verdict.holds and not found.broken


def test_a_key_that_never_came_out_is_seen_unless_it_was_gone_before_the_snapshot(
    scene: Scene,
) -> None:
    early = [where for where, history in scene.histories.items() if where not in scene.told]
    assert early  # the right job shows nothing of those
    for where in list(scene.told)[:60]:
        one = OneKey(scene, where)
        kept = scene.told.pop(where)
        assert not one.is_kept(), (where, kept)
        scene.told[where] = kept


def test_a_row_that_never_was_is_seen(scene: Scene) -> None:
    scene.told["people", (-1,)] = [
        ChangeRecord("c", None, (-1, 1, "never"), 0, 500),
        ChangeRecord("d", (-1, 1, "never"), None, 0, 500),
    ]
    assert not scene.found().verdict.holds


def test_a_run_without_a_snapshot_proves_nothing(scene: Scene) -> None:
    for records in scene.told.values():
        if records[0].op == "r":
            records[0] = records[0]._replace(op="c")
    assert any("INVALID" in what for what in scene.found().broken)


# ── records as Debezium writes them ──

_PERSON = {
    "id": 7, "version": 2, "name": "李娜", "number": None, "born": -25_000, "balance": "-0.50",
    "kind": "guest", "notes": '{"b":[1,null],"a":"é"}', "photo": "AP8=",
    "registered": -1, "seen": "2024-02-29T23:59:59.12Z",
}  # fmt: skip
_ROW = (
    7, 2, "李娜", None, "1901-07-22", "-0.50", "guest", '{"a": "é", "b": [1, null]}', "00ff",
    "1969-12-31 23:59:59.999999", "2024-02-29 23:59:59.120000",
)  # fmt: skip
_SOURCE = {"db": "test", "table": "people"}


def record(key: dict[str, Any], **value: Any) -> ReadRecord:
    document = {"before": None, "after": None, "source": _SOURCE, "op": "c", **value}
    return ReadRecord(3, 5, 1_000, json.dumps(key).encode(), json.dumps(document).encode())


def test_debeziums_values_are_those_of_the_client() -> None:
    key, told = read_change(PEOPLE_WITH_EMAIL, record({"id": 7}, after=_PERSON))
    assert key == ("people", (7,))
    assert told == ChangeRecord("c", None, _ROW, 3, 1_000)
    later = _PERSON | {"email": "none"}
    _, told = read_change(
        PEOPLE_WITH_EMAIL, record({"id": 7}, op="u", before=_PERSON, after=later)
    )
    assert (told.before, told.after) == (_ROW, (*_ROW, "none"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ({"id": 8}, {"after": _PERSON}),
        ({"id": 7, "more": 1}, {"after": _PERSON}),
        ({"id": 7}, {"after": _PERSON | {"unknown": 1}}),
        ({"id": 7}, {"after": {"id": 7, "name": "a"}}),
        ({"id": 7}, {"after": _PERSON, "source": {"db": "test", "table": "homes"}}),
        ({"id": 7}, {"after": _PERSON | {"photo": "?"}}),
    ],
)
def test_a_record_of_another_form_is_refused(key: dict[str, Any], value: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_change(PEOPLE_WITH_EMAIL, record(key, **value))


def test_the_client_gives_the_same_plain_row() -> None:
    import datetime
    from decimal import Decimal

    selected: list[Any] = [
        7, 2, "李娜", None, datetime.date(1901, 7, 22), Decimal("-0.50"), "guest",
        '{"b": [1, null], "a": "é"}',
        b"\x00\xff", datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
        datetime.datetime(2024, 2, 29, 23, 59, 59, 120_000),
    ]  # fmt: skip
    assert PEOPLE.row_from_client(selected) == _ROW
    assert PEOPLE.row_id(_ROW) == ("people", (7,))
