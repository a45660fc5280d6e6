"""A place in the order of a table's primary key: as JSON, as SQL, and compared with keys in Arrow.
Driver and tasks.

The order is exactly the server's. Numbers, bytes, dates and timestamps are compared here, all keys
of a column at once; texts by the server, because their order and equality are a matter of
collations and of padding.

A place is a list of texts, one for each column of the key: digits, a time as the server writes it,
or the bytes of a text in its own charset, in hexadecimal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceward.mysql.binlog.column_types import ColumnKind
from onceward.mysql.binlog.sql_tables import quote

Query = Callable[[str], Sequence[tuple[Any, ...]]]
"""Runs a statement and returns its rows."""
KeyPlace = list[str]
Mask = npt.NDArray[np.bool_]

_DIGITS = frozenset({ColumnKind.INTEGER, ColumnKind.YEAR, ColumnKind.DECIMAL})
_DATES = {ColumnKind.DATE, ColumnKind.DATETIME, ColumnKind.TIMESTAMP}
SORTED_HERE = _DIGITS | _DATES | {ColumnKind.BINARY}
"""Dates and timestamps by their texts, which sort as they do."""
SORTED_THERE = frozenset({ColumnKind.TEXT, ColumnKind.TIME})
_INTEGER_WIDTH = re.compile(r"^((?:tiny|small|medium|big)?int)\(\d+\)")
_UTF8 = re.compile(r"^utf8(?=_|$)")
_AT_ONCE = 500
"""Keys in one query, some 100 bytes each."""


@dataclass(frozen=True)
class KeyColumn:
    """A column of a primary key, in the key's order."""

    name: str
    type: str
    """As the server writes it. Places of before a change of it mean nothing."""
    kind: ColumnKind
    charset: str = ""
    collation: str = ""

    @property
    def meaning(self) -> tuple[str, ...]:
        """What places depend on, in one server's words: since 8.0.19 MySQL leaves out how wide an
        integer is shown, and since 8.0.30 it calls ``utf8`` ``utf8mb3``, as MariaDB does since
        10.6.
        """
        type = _INTEGER_WIDTH.sub(r"\1", self.type)
        names = (_UTF8.sub("utf8mb3", each) for each in (self.charset, self.collation))
        return self.name, type, self.kind.value, *names

    def to_json(self) -> dict[str, str]:
        """Return JSON."""
        return {**asdict(self), "kind": self.kind.value}

    @classmethod
    def from_json(cls, value: dict[str, str]) -> KeyColumn:
        return cls(**{**value, "kind": ColumnKind(value["kind"])})  # type: ignore[arg-type]

    @property
    def quoted(self) -> str:
        return quote(self.name)

    @property
    def expression(self) -> str:
        """The expression that selects a place."""
        if self.kind in (ColumnKind.TEXT, ColumnKind.BINARY):
            return f"HEX({self.quoted})"
        return f"CAST({self.quoted} AS CHAR)"

    def place(self, answer: Any) -> str:
        """Return the place from the answer to :attr:`expression`."""
        text = answer.decode() if isinstance(answer, bytes) else str(answer)
        # Without the zeros of ZEROFILL.
        return str(Decimal(text)) if self.kind in _DIGITS else text

    def literal(self, place: str) -> str:
        """Return SQL, which the server compares in the collation of the column beside it."""
        if self.kind in _DIGITS:
            return format(Decimal(place), "f")
        if self.kind in (ColumnKind.TEXT, ColumnKind.BINARY):
            return f"_{self.charset or 'binary'} X'{bytes.fromhex(place).hex()}'"
        return f"'{_check_temporal(place)}'"

    def value(self, place: str, kind: pa.DataType) -> pa.Scalar:
        """Return Arrow's value.

        :raises pa.ArrowException: the column has another type now.
        """
        if self.kind in _DIGITS:
            return pa.scalar(Decimal(place) if pa.types.is_decimal(kind) else int(place), kind)
        return pa.scalar(bytes.fromhex(place) if self.kind is ColumnKind.BINARY else place, kind)

    def typed_literal(self, value: Any) -> str:
        """Return SQL of Arrow's value alone, with a collation and a type of its own."""
        if self.kind is ColumnKind.TEXT:
            text = f"_utf8mb4 X'{value.encode().hex()}'"
            text = text if self.charset == "utf8mb4" else f"CONVERT({text} USING {self.charset})"
            return f"{text} COLLATE {self.collation}"
        if self.kind is ColumnKind.BINARY:
            return f"_binary X'{value.hex()}'"
        if self.kind is ColumnKind.TIME:
            return f"CAST('{_check_temporal(value)}' AS TIME(6))"
        return self.literal(value)


Key = tuple[KeyColumn, ...]


def range_condition(key: Key, after: KeyPlace | None, up_to: KeyPlace | None) -> str:
    """Return the condition of being behind ``after`` and not behind ``up_to``; None: no limit."""
    sides = [_condition(key, after, ">", ">")] if after else []
    sides += [_condition(key, up_to, "<", "<=")] if up_to else []
    return " AND ".join(sides) or "TRUE"


def is_behind(key: Key, place: KeyPlace, columns: Sequence[pa.Array], query: Query) -> Mask:
    """Return a mask of the keys, one column of them each, that are behind ``place``."""
    if all(column.kind in SORTED_HERE for column in key):
        found = np.zeros(len(columns[0]), np.bool_)
        for column, limit_text, values in reversed(list(zip(key, place, columns, strict=True))):
            limit = column.value(limit_text, values.type)
            found = _to_mask(pc.greater(values, limit)) | (
                _to_mask(pc.equal(values, limit)) & found
            )
        return found
    return _compare_on_server(key, place, columns, query)


def _to_mask(found: pa.Array) -> Mask:
    answer: Mask = found.to_numpy(zero_copy_only=False).astype(np.bool_)
    return answer


def _compare_on_server(
    key: Key, place: KeyPlace, columns: Sequence[pa.Array], query: Query
) -> Mask:
    keys = list(zip(*(column.to_pylist() for column in columns), strict=True))
    different = {each: number for number, each in enumerate(dict.fromkeys(keys))}
    found = np.zeros(len(different), np.bool_)
    for statement in _comparison_queries(key, place, list(different)):
        for (number,) in query(statement):
            found[int(number)] = True
    return found[[different[each] for each in keys]] if keys else np.zeros(0, np.bool_)


def _comparison_queries(key: Key, place: KeyPlace, keys: list[tuple[Any, ...]]) -> Iterator[str]:
    condition = _condition(key, place, ">", ">")
    for first in range(0, len(keys), _AT_ONCE):
        rows: list[str] = []
        for number, each in enumerate(keys[first : first + _AT_ONCE], first):
            values = (
                f"{column.typed_literal(value)}{'' if rows else f' AS {column.quoted}'}"
                for column, value in zip(key, each, strict=True)
            )
            rows.append(
                f"SELECT {number}{'' if rows else ' AS `onceward number`'}, {', '.join(values)}"
            )
        union = " UNION ALL ".join(rows)
        yield f"SELECT `onceward number` FROM ({union}) AS asked WHERE {condition}"  # noqa: S608


# Row constructors, ``(a, b) > (1, 2)``, mean the same as these OR conditions, but no server looks
# them up in an index (MySQL manual, "Range Optimization of Row Constructor Expressions").
def _condition(key: Key, place: KeyPlace, sign: str, last_sign: str) -> str:
    """Compare a key with ``place``, its last column by ``last_sign``."""
    first, literal = key[0].quoted, key[0].literal(place[0])
    if len(key) == 1:
        return f"{first} {last_sign} {literal}"
    rest = _condition(key[1:], place[1:], sign, last_sign)
    return f"({first} {sign} {literal} OR ({first} = {literal} AND {rest}))"


def _check_temporal(moment: str) -> str:
    """Check that nothing in a date or time could end a literal."""
    if not set(moment) <= set("0123456789-: ."):
        raise ValueError(f"{moment!r} is no moment")
    return moment
