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
RowId = tuple[str, Key]
"""A table's name and a key in it."""

DATABASE = "test"
_EPOCH_DAY = datetime.date(1970, 1, 1)
_EPOCH = datetime.datetime(1970, 1, 1)  # without a zone, as MySQL's DATETIME is


def _unchanged(value: Any) -> Any:
    return value


def normal_json(value: str) -> str:
    """Return one text for one document, whoever wrote it: servers order the fields by
    themselves."""
    return json.dumps(json.loads(value), sort_keys=True, ensure_ascii=False)


def moment_text(moment: datetime.datetime) -> str:
    """Return a moment with six digits after the seconds."""
    return moment.isoformat(" ", "microseconds")


def _moment_from_debezium(text: str) -> str:
    whole, _, fraction = text.removesuffix("Z").replace("T", " ").partition(".")
    return f"{whole}.{fraction:0<6}"


@dataclass(frozen=True, slots=True)
class SourceColumn:
    """``declaration``: in SQL. ``from_client`` and ``from_debezium``: make a plain value of what
    MySQL's client, and what Debezium's JSON has; null stays null."""

    name: str
    declaration: str
    from_client: Callable[[Any], Any] = _unchanged
    from_debezium: Callable[[Any], Any] = _unchanged


@dataclass(frozen=True, slots=True)
class SourceTable:
    """``key``: how many of its first columns are the primary key.

    The column behind them is the row's version.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    key: int

    @property
    def create(self) -> str:
        """Return the statement that creates it."""
        columns = ", ".join(f"{column.name} {column.declaration}" for column in self.columns)
        key = ", ".join(column.name for column in self.columns[: self.key])
        return f"CREATE TABLE {self.name} ({columns}, PRIMARY KEY ({key})) DEFAULT CHARSET=utf8mb4"

    def row_id(self, row: Row) -> RowId:
        """Return the table's name and the row's key."""
        return self.name, row[: self.key]

    def row_from_client(self, values: Sequence[Any]) -> Row:
        """Return the row that ``SELECT *`` gave as ``values``."""
        return tuple(
            None if value is None else column.from_client(value)
            for column, value in zip(self.columns, values, strict=True)
        )

    def row_from_debezium(self, values: Mapping[str, Any]) -> Row:
        """Return the row in Debezium's JSON. It has the columns that the table had then: the first
        ones.

        :raises ValueError: it has others, or a value that cannot be one.
        """
        columns = self.columns[: len(values)]
        if values.keys() != {column.name for column in columns}:
            raise ValueError(f"table {self.name} never had the columns {', '.join(values)}")
        found = [(column, values[column.name]) for column in columns]
        return tuple(
            None if value is None else column.from_debezium(value) for column, value in found
        )


PEOPLE = SourceTable(
    "people",
    (
        SourceColumn("id", "BIGINT NOT NULL"),
        SourceColumn("version", "INT NOT NULL"),
        SourceColumn("name", "VARCHAR(80) NOT NULL"),
        SourceColumn("number", "CHAR(18)"),
        SourceColumn("born", "DATE", str, lambda days: str(_EPOCH_DAY + datetime.timedelta(days))),
        SourceColumn("balance", "DECIMAL(12,2) NOT NULL", str, lambda text: str(Decimal(text))),
        SourceColumn("kind", "ENUM('guest','member','friend') NOT NULL"),
        SourceColumn("notes", "JSON", normal_json, normal_json),
        SourceColumn(
            "photo",
            "VARBINARY(16)",
            bytes.hex,
            lambda text: base64.b64decode(text, validate=True).hex(),
        ),
        SourceColumn(
            "registered",
            "DATETIME(6) NOT NULL",
            moment_text,
            lambda micros: moment_text(_EPOCH + datetime.timedelta(microseconds=micros)),
        ),
        SourceColumn("seen", "TIMESTAMP(3) NOT NULL", moment_text, _moment_from_debezium),
    ),
    key=1,
)
"""The first table when it is created; :data:`PEOPLE_WITH_EMAIL` later."""

_EMAIL = SourceColumn("email", "VARCHAR(60) NOT NULL DEFAULT 'none'")
DEFAULT_EMAIL = "none"
ADD_EMAIL = f"ALTER TABLE people ADD COLUMN {_EMAIL.name} {_EMAIL.declaration}"
PEOPLE_WITH_EMAIL = SourceTable("people", (*PEOPLE.columns, _EMAIL), key=1)

HOMES = SourceTable(
    "homes",
    (
        SourceColumn("person", "BIGINT NOT NULL"),
        SourceColumn("place", "VARCHAR(8) CHARACTER SET latin1 NOT NULL"),
        SourceColumn("version", "INT NOT NULL"),
        SourceColumn("city", "VARCHAR(40) NOT NULL"),
    ),
    key=2,
)

TABLES = (PEOPLE_WITH_EMAIL, HOMES)
"""The tables in the end."""
