"""Random transactions on the demo's tables, with the model of what they change. Pure, the same for
the same seed.

Each session of the writer has a workload of its own, with keys of its own: so the order of the
changes of a key is that of its session, however two transactions overlap.
"""

from __future__ import annotations

import datetime
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from onceward_testing.demo.changes.tables import (
    DEFAULT_EMAIL,
    HOMES,
    PEOPLE,
    PEOPLE_WITH_EMAIL,
    Key,
    Row,
    RowId,
    SourceTable,
    moment_text,
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
_DAY = 86_400_000
_IDS_PER_SESSION = 1_000_000_000
_FEW_PEOPLE = 50

_UPDATE = "UPDATE people SET version = version + 1"
_VERSION, _NAME, _BALANCE, _KIND, _NOTES, _PHOTO, _SEEN = 1, 2, 5, 6, 7, 8, 10


class RowChange(NamedTuple):
    """``before`` is None for ``c``, ``after`` for ``d``. ``not_before_ms``: when it was asked to
    be committed, in milliseconds since the epoch: it was not there any earlier."""

    op: Literal["c", "u", "d"]
    before: Row | None
    after: Row | None
    not_before_ms: int = 0


@dataclass
class SourceTransaction:
    """``statements``: with their parameters, as the client takes them. ``alone``: no other
    transaction may be open, for it may meet rows of others. ``rolls_back``: it ends with ROLLBACK,
    and changes nothing."""

    statements: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    changes: list[tuple[RowId, RowChange]] = field(default_factory=list)
    alone: bool = False
    rolls_back: bool = False

    def execute(self, statement: str, *parameters: Any) -> None:
        """Add one statement."""
        self.statements.append((statement, parameters))

    def change(self, table: SourceTable, before: Row | None, after: Row | None) -> None:
        """Add what becomes of a row. Under another key it is two changes, as Debezium has it."""
        if before and after and table.row_id(before) != table.row_id(after):
            self.change(table, before, None)
            self.change(table, None, after)
            return
        op: Literal["c", "u", "d"] = "c" if before is None else "d" if after is None else "u"
        row = after or before
        assert row is not None  # noqa: S101
        self.changes.append((table.row_id(row), RowChange(op, before, after)))


class Workload:
    """People who are registered, change, move, are deleted and come back.

    :param number: of the session, from 0; its people have ids from ``number`` billion on.
    """

    def __init__(self, number: int, seed: int) -> None:
        self._rng = random.Random(f"{seed} {number}")  # noqa: S311  names, not secrets
        self._rolled_back_id = -1 - number
        self._next_id = number * _IDS_PER_SESSION + 1
        self._people: dict[Key, Row] = {}
        self._homes: dict[Key, Row] = {}
        self._keys: list[Key] = []  # of people, to draw from; some are gone
        self._deleted: dict[RowId, int] = {}  # and their last versions
        self._table = PEOPLE
        self._kinds: dict[Callable[[SourceTransaction], None], int] = {
            self._register: 30,
            self._rename: 20,
            self._pay: 20,
            self._move: 12,
            self._leave: 10,
            self._renumber: 6,
            self._come_back: 5,
            self._change_one_row_again: 5,
            self._roll_back: 3,
            self._roll_back_to_savepoint: 2,
        }

    @property
    def rows(self) -> dict[RowId, Row]:
        """Return all rows as they are now."""
        people = {(PEOPLE.name, key): row for key, row in self._people.items()}
        return people | {(HOMES.name, key): row for key, row in self._homes.items()}

    @property
    def people(self) -> int:
        """Return the number of people."""
        return len(self._people)

    def transaction(self) -> SourceTransaction:
        """Return the next transaction."""
        transaction = SourceTransaction()
        kinds = self._kinds if len(self._people) >= _FEW_PEOPLE else {self._register: 1}
        self._rng.choices(list(kinds), list(kinds.values()))[0](transaction)
        return transaction

    def bulk_insert(self, count: int) -> SourceTransaction:
        """Return a transaction that inserts so many people in one statement."""
        transaction = SourceTransaction()
        self._insert(
            transaction, self._table, [self._person(self._draw_id(), 1) for _ in range(count)]
        )
        return transaction

    def add_emails(self) -> None:
        """Follow the server, which has added the column: every row has it."""
        self._table = PEOPLE_WITH_EMAIL
        self._people = {key: (*row, DEFAULT_EMAIL) for key, row in self._people.items()}

    # ── kinds of transactions ──

    def _register(self, transaction: SourceTransaction) -> None:
        """Insert some people, and homes of some of them: two tables."""
        people = [self._person(self._draw_id(), 1) for _ in range(self._rng.randint(1, 20))]
        self._insert(transaction, self._table, people)
        homes = [
            (row[0], self._rng.choice(_PLACES), 1, self._rng.choice(_CITIES))
            for row in people[::2]
        ]
        self._insert(transaction, HOMES, homes)

    def _rename(self, transaction: SourceTransaction) -> None:
        before = self._draw_person()
        after = _next_version(
            before, {_NAME: self._name(), _NOTES: self._notes(), _KIND: self._rng.choice(_KINDS)}
        )
        statement = f"{_UPDATE}, name = %s, notes = %s, kind = %s WHERE id = %s"
        transaction.execute(statement, after[_NAME], after[_NOTES], after[_KIND], before[0])
        self._change(transaction, self._table, before, after)

    def _pay(self, transaction: SourceTransaction) -> None:
        """Update many rows by one statement."""
        transaction.alone = True
        amount, seen = Decimal(self._rng.randint(-9_999, 9_999)) / 100, self._seen()
        many = {
            row[0]: row for row in (self._draw_person() for _ in range(self._rng.randint(2, 40)))
        }
        statement = f"{_UPDATE}, balance = balance + %s, seen = %s WHERE id IN %s"
        transaction.execute(statement, amount, seen, tuple(many))
        for before in many.values():
            balance = str(Decimal(before[_BALANCE]) + amount)
            self._change(
                transaction,
                self._table,
                before,
                _next_version(before, {_BALANCE: balance, _SEEN: seen}),
            )

    def _move(self, transaction: SourceTransaction) -> None:
        """Insert or update a row, and update one of the other table."""
        key = (self._draw_person()[0], self._rng.choice(_PLACES))
        before = self._homes.get(key)
        version = self._deleted.get((HOMES.name, key), 0) if before is None else before[HOMES.key]
        after = (*key, version + 1, self._rng.choice(_CITIES))
        upsert = "ON DUPLICATE KEY UPDATE version = VALUES(version), city = VALUES(city)"
        transaction.execute(f"INSERT INTO homes VALUES %s {upsert}", after)  # noqa: S608
        self._change(transaction, HOMES, before, after)
        self._rename(transaction)

    def _leave(self, transaction: SourceTransaction) -> None:
        transaction.alone = True
        leaving = {
            row[0]: row for row in (self._draw_person() for _ in range(self._rng.randint(1, 8)))
        }
        homes = [home for identity in leaving for home in self._homes_of_person(identity)]
        for home in homes:  # MySQL 8.0.12 finds no 'été' in a list of pairs
            transaction.execute("DELETE FROM homes WHERE person = %s AND place = %s", *home[:2])
        transaction.execute("DELETE FROM people WHERE id IN %s", tuple(leaving))
        for home in homes:
            self._change(transaction, HOMES, home, None)
        for row in leaving.values():
            self._change(transaction, self._table, row, None)

    def _renumber(self, transaction: SourceTransaction) -> None:
        """Change a primary key, in two tables."""
        before = self._draw_person()
        after = (self._draw_id(), before[_VERSION] + 1, *before[2:])
        transaction.execute(f"{_UPDATE}, id = %s WHERE id = %s", after[0], before[0])
        self._change(transaction, self._table, before, after)
        for home in self._homes_of_person(before[0]):
            update = "UPDATE homes SET version = version + 1, person = %s"
            transaction.execute(f"{update} WHERE person = %s AND place = %s", after[0], *home[:2])
            self._change(transaction, HOMES, home, (after[0], home[1], home[2] + 1, home[3]))

    def _come_back(self, transaction: SourceTransaction) -> None:
        """Insert under a key that was there before."""
        deleted = [key for table, key in list(self._deleted)[-100:] if table == PEOPLE.name]
        if not deleted:
            return self._register(transaction)
        key = self._rng.choice(deleted)
        person = self._person(key[0], self._deleted.pop((PEOPLE.name, key)) + 1)
        return self._insert(transaction, self._table, [person])

    def _change_one_row_again(self, transaction: SourceTransaction) -> None:
        """Change one row several times in a transaction."""
        stays, leaves = (self._person(self._draw_id(), 1) for _ in range(2))
        self._insert(transaction, self._table, [stays, leaves])
        after = _next_version(stays, {_NAME: self._name()})
        statement = f"{_UPDATE}, name = %s WHERE id = %s"
        transaction.execute(statement, after[_NAME], stays[0])
        self._change(transaction, self._table, stays, after)
        transaction.execute("DELETE FROM people WHERE id = %s", leaves[0])
        self._change(transaction, self._table, leaves, None)
        version = self._deleted.pop(self._table.row_id(leaves)) + 1
        self._insert(transaction, self._table, [self._person(leaves[0], version)])

    def _roll_back(self, transaction: SourceTransaction) -> None:
        transaction.rolls_back = True
        statement = f"{_UPDATE}, name = 'never' WHERE id = %s"
        transaction.execute(statement, self._draw_person()[0])
        _execute_insert(transaction, self._table, [self._person(self._rolled_back_id, 1)])

    def _roll_back_to_savepoint(self, transaction: SourceTransaction) -> None:
        self._rename(transaction)
        transaction.execute("SAVEPOINT half")
        transaction.execute("DELETE FROM people WHERE id = %s", self._draw_person()[0])
        transaction.execute("ROLLBACK TO SAVEPOINT half")
        self._rename(transaction)

    # ── rows ──

    def _insert(self, transaction: SourceTransaction, table: SourceTable, rows: list[Row]) -> None:
        _execute_insert(transaction, table, rows)
        for row in rows:
            self._change(transaction, table, None, row)

    def _change(
        self,
        transaction: SourceTransaction,
        table: SourceTable,
        before: Row | None,
        after: Row | None,
    ) -> None:
        transaction.change(table, before, after)
        rows = self._homes if table is HOMES else self._people
        if before is not None and (after is None or after[: table.key] != before[: table.key]):
            del rows[before[: table.key]]
            self._deleted[table.row_id(before)] = before[table.key]
        if after is not None:
            key = after[: table.key]
            if table is not HOMES and key not in rows:
                self._keys.append(key)
            rows[key] = after

    def _homes_of_person(self, identity: int) -> list[Row]:
        return [
            self._homes[identity, place] for place in _PLACES if (identity, place) in self._homes
        ]

    def _draw_person(self) -> Row:
        while True:
            place = self._rng.randrange(len(self._keys))
            row = self._people.get(self._keys[place])
            if row is not None:
                return row
            self._keys[place] = self._keys[-1]
            self._keys.pop()

    def _draw_id(self) -> int:
        self._next_id += self._rng.randint(1, 3)
        return self._next_id

    def _person(self, identity: int, version: int) -> Row:
        rng = self._rng
        registered = _FIRST_DAY + datetime.timedelta(
            rng.randrange(_DAYS), milliseconds=rng.random() * _DAY
        )
        born = str((_FIRST_DAY + datetime.timedelta(rng.randrange(_DAYS))).date())
        row = (
            identity,
            version,
            self._name(),
            f"{rng.randrange(10**17, 10**18)}" if rng.random() < 0.9 else None,
            born if rng.random() < 0.9 else None,
            str(Decimal(rng.randrange(-(10**8), 10**8)) / 100 + Decimal("0.00")),
            rng.choice(_KINDS),
            self._notes(),
            rng.randbytes(rng.randrange(16)).hex() if rng.random() < 0.8 else None,
            moment_text(registered),
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
        return moment_text(
            _FIRST_SEEN + datetime.timedelta(milliseconds=self._rng.randrange(60 * 365 * _DAY))
        )


def _next_version(row: Row, values: dict[int, Any]) -> Row:
    return tuple(
        row[1] + 1 if place == _VERSION else values.get(place, value)
        for place, value in enumerate(row)
    )


def _execute_insert(transaction: SourceTransaction, table: SourceTable, rows: list[Row]) -> None:
    """Insert all rows by one statement."""
    if table is not HOMES:
        rows = [tuple(map(_parameter, range(len(row)), row)) for row in rows]
    places = ", ".join(["%s"] * len(rows))
    transaction.execute(f"INSERT INTO {table.name} VALUES {places}", *rows)  # noqa: S608


def _parameter(place: int, value: Any) -> Any:
    return bytes.fromhex(value) if place == _PHOTO and value is not None else value
