"""The tables of the demo, and their rows as MySQL's client has them and as Debezium writes them.
Pure.

A row is a tuple of plain values, in the order of the columns, the same from wherever it was read;
so that two can be compared, the one that was written, the one that came out, and the one that a
``SELECT`` shows.
"""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]
Key = tuple[Any, ...]

DATABASE = "test"
_EPOCH_DAY = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1)  # without a zone, as MySQL's DATETIME is


def _same(value: Any) -> Any:
    return value


def _json_text(value: str) -> str:
    """One text for one document, whoever wrote it: servers order the fields by themselves."""
    return json.dumps(json.loads(value), sort_keys=True, ensure_ascii=False)


def _micros_of(text: str) -> str:
    """A moment with six digits after the seconds."""
    whole, _, fraction = text.partition(".")
    return f"{whole}.{fraction:0<6}"


@dataclass(frozen=True, slots=True)
class Column:
    """``declared``: in SQL. ``selected`` and ``told``: what the client, and what Debezium's JSON
    has, as a plain value; null stays null.
    """

    name: str
    declared: str
    selected: Callable[[Any], Any] = _same
    told: Callable[[Any], Any] = _same


@dataclass(frozen=True, slots=True)
class Table:
    """``key``: how many of its first columns are the primary key."""

    name: str
    columns: tuple[Column, ...]
    key: int

    @property
    def created_by(self) -> str:
        """The statement that makes it."""
        columns = ", ".join(f"{column.name} {column.declared}" for column in self.columns)
        key = ", ".join(column.name for column in self.columns[: self.key])
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({key})) DEFAULT CHARSET=utf8mb4"

    def key_of(self, row: Row) -> Key:
        """Of one of its rows."""
        return row[: self.key]

    def row_selected(self, values: Sequence[Any]) -> Row:
        """What ``SELECT *`` gave."""
        return tuple(
            None if value is None else column.selected(value)
            for column, value in zip(self.columns, values, strict=True)
        )

    def row_told(self, values: Mapping[str, Any]) -> Row:
        """What Debezium's JSON has. It has the columns that the table had then: the first ones.

        :raises ValueError: it has others, or a value that cannot be one.
        """
        columns = self.columns[: len(values)]
        if values.keys() != {column.name for column in columns}:
            raise ValueError(f"table {self.name} never had the columns {', '.join(values)}")
        told = [(column, values[column.name]) for column in columns]
        return tuple(None if value is None else column.told(value) for column, value in told)


PEOPLE = Table(
    "people",
    (
        Column("id", "BIGINT NOT NULL"),
        Column("version", "INT NOT NULL"),
        Column("name", "VARCHAR(80) NOT NULL"),
        Column("number", "CHAR(18)"),
        Column("born", "DATE", str, lambda days: str(_EPOCH_DAY + datetime.timedelta(days))),
        Column("balance", "DECIMAL(12,2) NOT NULL", str, lambda text: str(Decimal(text))),
        Column("kind", "ENUM('guest','member','friend') NOT NULL"),
        Column("notes", "JSON", _json_text, _json_text),
        Column(
            "photo",
            "VARBINARY(16)",
            bytes.hex,
            lambda text: base64.b64decode(text, validate=True).hex(),
        ),
        Column(
            "registered",
            "DATETIME(6) NOT NULL",
            lambda moment: moment.isoformat(" ", "microseconds"),
            lambda micros: (_EPOCH + datetime.timedelta(microseconds=micros)).isoformat(
                " ", "microseconds"
            ),
        ),
        Column(
            "seen",
            "TIMESTAMP(3) NOT NULL",
            lambda moment: moment.isoformat(" ", "microseconds"),
            lambda text: _micros_of(text.removesuffix("Z").replace("T", " ")),
        ),
    ),
    key=1,
)
"""As it is made. :data:`PEOPLE_LATER` is what becomes of it."""

_EMAIL = Column("email", "VARCHAR(60) NOT NULL DEFAULT 'none'")
EMAIL_UNSAID = "none"
ADD_EMAIL = f"ALTER TABLE people ADD COLUMN {_EMAIL.name} {_EMAIL.declared}"
PEOPLE_LATER = Table("people", (*PEOPLE.columns, _EMAIL), key=1)

HOMES = Table(
    "homes",
    (
        Column("person", "BIGINT NOT NULL"),
        Column("place", "VARCHAR(8) CHARACTER SET latin1 NOT NULL"),
        Column("version", "INT NOT NULL"),
        Column("city", "VARCHAR(40) NOT NULL"),
    ),
    key=2,
)

TABLES = (PEOPLE_LATER, HOMES)
"""As they are in the end."""
