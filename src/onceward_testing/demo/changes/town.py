"""Who writes what: a town's people come, change, move, leave and come back. Pure, and the same for
the same seed.

Each session of the writer has a town of its own, with keys of its own: so the order of the changes
of a key is that of its session, however two transactions lie across each other.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from onceward_testing.demo.changes.deed import Deed
from onceward_testing.demo.changes.rows import (
    EMAIL_UNSAID,
    HOMES,
    PEOPLE,
    PEOPLE_LATER,
    Key,
    Row,
    Table,
)

_NAMES = (
    "Ada",
    "Bo",
    "Dilnoza",
    "Émile",
    "Grace",
    "Hiroshi",
    "João",
    "李娜",
    "O’Neill",
    'a "b" \\ c',
    "😀",
    "",
)
_CITIES = ("Oslo", "Łódź", "İzmir", "São Paulo", "大阪", "Nuuk")
_KINDS = ("guest", "member", "friend")
_PLACES = ("post", "work", "été")
_FIRST_DAY = datetime.datetime(1901, 1, 1)  # without a zone, as MySQL's DATETIME is
_FIRST_SEEN = datetime.datetime(1971, 1, 1)
_DAYS = 40_000
_SEEN_MILLIS = 60 * 365 * 86_400_000
_SPREAD = 1_000_000_000
_MANY_ROWS = 500

_NAME, _BALANCE, _KIND, _NOTES, _SEEN = 2, 5, 6, 7, 10
_CITY = 3


class Town:
    """``number``: from 0; its people have ids from ``number`` billion on."""

    def __init__(self, number: int, seed: int) -> None:
        self._rng = random.Random(f"{seed} {number}")  # noqa: S311  names, not secrets
        self._next_id = number * _SPREAD + 1
        self._people: dict[int, Row] = {}
        self._homes: dict[Key, Row] = {}
        self._ids: list[int] = []  # of the living, to draw from; those that left are still in it
        self._left: dict[int, int] = {}  # and the version that they left with
        self._left_homes: dict[Key, int] = {}
        self._table = PEOPLE
        self._kinds, self._weights = zip(*self._deeds(), strict=True)

    @property
    def rows(self) -> dict[tuple[str, Key], Row]:
        """All that is there now."""
        people = {(PEOPLE.name, (identity,)): row for identity, row in self._people.items()}
        return people | {(HOMES.name, key): row for key, row in self._homes.items()}

    @property
    def people(self) -> int:
        """How many there are."""
        return len(self._people)

    def deed(self) -> Deed:
        """The next transaction."""
        deed = Deed()
        if len(self._people) < 50:
            self._register(deed)
        else:
            self._rng.choices(self._kinds, self._weights)[0](deed)
        return deed

    def many_come(self, count: int = _MANY_ROWS) -> Deed:
        """So many new people in one statement."""
        deed = Deed()
        self._insert(deed, self._table, [self._newcomer() for _ in range(count)])
        return deed

    def has_emails(self) -> None:
        """The column was added: every row has it."""
        self._table = PEOPLE_LATER
        self._people = {identity: (*row, EMAIL_UNSAID) for identity, row in self._people.items()}

    def _deeds(self) -> list[tuple[Callable[[Deed], None], int]]:
        return [
            (self._register, 30),
            (self._rename, 20),
            (self._pay, 20),
            (self._move, 12),
            (self._leave, 10),
            (self._renumber, 6),
            (self._come_back, 5),
            (self._change_ones_mind, 5),
            (self._regret, 3),
            (self._regret_half, 2),
        ]

    # ── the deeds ──

    def _register(self, deed: Deed) -> None:
        """Some people, and the homes of some of them: two tables."""
        people = [self._newcomer() for _ in range(self._rng.randint(1, 20))]
        self._insert(deed, self._table, people)
        homes = [
            (row[0], self._rng.choice(_PLACES), 1, self._rng.choice(_CITIES))
            for row in people[::2]
        ]
        self._insert(deed, HOMES, homes)

    def _rename(self, deed: Deed) -> None:
        before = self._somebody()
        after = self._later(
            before, {_NAME: self._name(), _NOTES: self._notes(), _KIND: self._rng.choice(_KINDS)}
        )
        deed.say(
            "UPDATE people SET version = version + 1, name = %s, notes = %s, kind = %s WHERE id = "
            "%s",
            after[_NAME], after[_NOTES], after[_KIND], before[0],
        )  # fmt: skip
        self._update(deed, before, after)

    def _pay(self, deed: Deed) -> None:
        """Many rows by one statement."""
        deed.alone = True
        amount, seen = Decimal(self._rng.randint(-9_999, 9_999)) / 100, self._seen()
        many = {row[0]: row for row in (self._somebody() for _ in range(self._rng.randint(2, 40)))}
        deed.say(
            "UPDATE people SET version = version + 1, balance = balance + %s, seen = %s WHERE id "
            "IN %s",
            amount, seen, tuple(many),
        )  # fmt: skip
        for before in many.values():
            balance = str(Decimal(before[_BALANCE]) + amount)
            self._update(deed, before, self._later(before, {_BALANCE: balance, _SEEN: seen}))

    def _move(self, deed: Deed) -> None:
        """A row that is there or not, and one of the other table."""
        person = self._somebody()
        key = (person[0], self._rng.choice(_PLACES))
        before = self._homes.get(key)
        version = self._left_homes.get(key, 0) if before is None else before[2]
        after = (*key, version + 1, self._rng.choice(_CITIES))
        deed.say(
            "INSERT INTO homes VALUES %s ON DUPLICATE KEY UPDATE version = VALUES(version), city "
            "= VALUES(city)",
            after,
        )
        if before is None:
            deed.came(HOMES, after)
        else:
            deed.became(HOMES, before, after)
        self._homes[key] = after
        self._rename(deed)

    def _leave(self, deed: Deed) -> None:
        deed.alone = True
        leaving = {
            row[0]: row for row in (self._somebody() for _ in range(self._rng.randint(1, 8)))
        }
        homes = [key for identity in leaving for key in self._homes_of(identity)]
        for key in homes:  # MySQL 8.0.12 finds no 'été' in a list of pairs
            deed.say("DELETE FROM homes WHERE person = %s AND place = %s", *key)
        deed.say("DELETE FROM people WHERE id IN %s", tuple(leaving))
        for key in homes:
            self._empty(deed, key)
        for row in leaving.values():
            self._delete(deed, row)

    def _renumber(self, deed: Deed) -> None:
        """Another primary key, in two tables."""
        before = self._somebody()
        after = (self._drawn_id(), before[1] + 1, *before[2:])
        deed.say(
            "UPDATE people SET id = %s, version = version + 1 WHERE id = %s", after[0], before[0]
        )
        del self._people[before[0]]
        self._left[before[0]] = before[1]
        deed.became(self._table, before, after)
        self._settle(after)
        for key in self._homes_of(before[0]):
            home = self._homes.pop(key)
            moved = (after[0], key[1], home[2] + 1, home[3])
            deed.say("UPDATE homes SET person = %s, version = version + 1 WHERE person = %s AND "
                     "place = %s",
                     after[0], *key)  # fmt: skip
            deed.became(HOMES, home, moved)
            self._left_homes[key] = home[2]
            self._homes[moved[:2]] = moved

    def _come_back(self, deed: Deed) -> None:
        """Under a key that was there before."""
        if not self._left:
            return self._register(deed)
        identity = self._rng.choice(list(self._left)[-50:])
        return self._insert(
            deed, self._table, [self._person(identity, self._left.pop(identity) + 1)]
        )

    def _change_ones_mind(self, deed: Deed) -> None:
        """One row several times in a transaction."""
        self._insert(deed, self._table, [stays := self._newcomer(), leaves := self._newcomer()])
        after = self._later(stays, {_NAME: self._name()})
        deed.say(
            "UPDATE people SET version = version + 1, name = %s WHERE id = %s",
            after[_NAME],
            stays[0],
        )
        self._update(deed, stays, after)
        deed.say("DELETE FROM people WHERE id = %s", leaves[0])
        self._delete(deed, leaves)
        again = self._person(leaves[0], self._left.pop(leaves[0]) + 1)
        self._insert(deed, self._table, [again])

    def _regret(self, deed: Deed) -> None:
        deed.regretted = True
        deed.say(
            "UPDATE people SET version = version + 1, name = 'never' WHERE id = %s",
            self._somebody()[0],
        )
        never = self._person(-1, 1)
        _say_insert(deed, self._table, [never])

    def _regret_half(self, deed: Deed) -> None:
        self._rename(deed)
        deed.say("SAVEPOINT half")
        deed.say("DELETE FROM people WHERE id = %s", self._somebody()[0])
        deed.say("ROLLBACK TO SAVEPOINT half")
        self._rename(deed)

    # ── one row ──

    def _insert(self, deed: Deed, table: Table, rows: list[Row]) -> None:
        _say_insert(deed, table, rows)
        for row in rows:
            deed.came(table, row)
            if table is HOMES:
                self._homes[row[:2]] = row
            else:
                self._settle(row)

    def _settle(self, row: Row) -> None:
        self._people[row[0]] = row
        self._ids.append(row[0])

    def _update(self, deed: Deed, before: Row, after: Row) -> None:
        deed.became(self._table, before, after)
        self._people[before[0]] = after

    def _delete(self, deed: Deed, row: Row) -> None:
        deed.went(self._table, row)
        del self._people[row[0]]
        self._left[row[0]] = row[1]

    def _empty(self, deed: Deed, key: Key) -> None:
        home = self._homes.pop(key)
        self._left_homes[key] = home[2]
        deed.went(HOMES, home)

    def _later(self, row: Row, values: dict[int, Any]) -> Row:
        return tuple(
            row[1] + 1 if place == 1 else values.get(place, value)
            for place, value in enumerate(row)
        )

    def _homes_of(self, identity: int) -> list[Key]:
        return [key for place in _PLACES if (key := (identity, place)) in self._homes]

    # ── what is drawn ──

    def _somebody(self) -> Row:
        while True:
            place = self._rng.randrange(len(self._ids))
            row = self._people.get(self._ids[place])
            if row is not None:
                return row
            self._ids[place] = self._ids[-1]
            self._ids.pop()

    def _newcomer(self) -> Row:
        return self._person(self._drawn_id(), 1)

    def _drawn_id(self) -> int:
        self._next_id += self._rng.randint(1, 3)
        return self._next_id

    def _person(self, identity: int, version: int) -> Row:
        rng = self._rng
        moment = _FIRST_DAY + datetime.timedelta(
            days=rng.randrange(_DAYS), microseconds=rng.randrange(86_400_000_000)
        )
        row = (
            identity,
            version,
            self._name(),
            f"{rng.randrange(10**17, 10**18)}" if rng.random() < 0.9 else None,
            str((_FIRST_DAY + datetime.timedelta(days=rng.randrange(_DAYS))).date())
            if rng.random() < 0.9
            else None,
            str(Decimal(rng.randrange(-(10**8), 10**8)) / 100 + Decimal("0.00")),
            rng.choice(_KINDS),
            self._notes(),
            rng.randbytes(rng.randrange(16)).hex() if rng.random() < 0.8 else None,
            moment.isoformat(" ", "microseconds"),
            self._seen(),
        )
        return row if self._table is PEOPLE else (*row, f"{identity}@example.org")

    def _name(self) -> str:
        return f"{self._rng.choice(_NAMES)} {self._rng.randrange(1_000_000)}"

    def _notes(self) -> str | None:
        if self._rng.random() < 0.5:
            return None
        draw = self._rng.randrange(1 << 40)
        notes = {
            "seen": draw,
            "by": self._rng.choice(_NAMES),
            "tags": [draw % 7, None, True, -1.5],
            "of": {"a": {}},
        }
        return json.dumps(notes, sort_keys=True, ensure_ascii=False)

    def _seen(self) -> str:
        moment = _FIRST_SEEN + datetime.timedelta(milliseconds=self._rng.randrange(_SEEN_MILLIS))
        return moment.isoformat(" ", "microseconds")


def _say_insert(deed: Deed, table: Table, rows: Iterable[Row]) -> None:
    """One statement for them all."""
    binary = next(
        (place for place, column in enumerate(table.columns) if column.name == "photo"), None
    )
    values = [
        tuple(
            bytes.fromhex(value) if place == binary and value is not None else value
            for place, value in enumerate(row)
        )
        for row in rows
    ]
    places = ", ".join(["%s"] * len(values))
    deed.say(f"INSERT INTO {table.name} VALUES {places}", *values)  # noqa: S608
