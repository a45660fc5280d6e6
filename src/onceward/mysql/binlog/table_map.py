"""A TABLE_MAP event: what a table looked like when the rows behind it were written. Pure.

A server sends one before the rows events of each statement; its bytes are the same as long as the
table is, so what is made of them is kept by them. Names of columns, labels of enums, charsets and
the primary key are in its optional metadata, which ``binlog_row_metadata=FULL`` asks for. Every
length is checked against the bytes there are before anything is made of it.

Source: MySQL ``libbinlogevents/include/rows_event.h`` ("Table_map_event",
"Optional_metadata_field_type"), MariaDB ``sql/log_event_server.cc``
(``Table_map_log_event::init_metadata_fields``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from onceward.mysql.binlog.charsets import charset_of, decoded_name
from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.column_types import CHARACTER, LABELLED, NUMERIC, Stored, stored_types
from onceward.mysql.binlog.packed_bytes import PackedBytes
from onceward.mysql.binlog.refusals import FULL_METADATA, damaged, unreadable

Dialect = Literal["mysql", "mariadb"]

ID_BYTES = 6
_VERSIONS, _MICROSECONDS = ("row_start", "row_end"), 6
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SETS, _ENUMS, _GEOMETRIES = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
)
_KEY, _PREFIXED_KEY, _LABELLED_DEFAULT_CHARSET, _LABELLED_CHARSET, _VISIBILITY = 8, 9, 10, 11, 12


@dataclass(frozen=True)
class TableMap:
    """What the binlog says of a table."""

    id: int
    db: str
    table: str
    columns: tuple[Column, ...]
    key: tuple[int, ...]
    """The columns of its primary key, in the key's order; none has none."""
    dialect: Dialect

    @cached_property
    def name(self) -> str:
        """For messages."""
        return f"{self.db}.{self.table}"

    @cached_property
    def bitmap_bytes(self) -> int:
        """A bit for each column."""
        return (len(self.columns) + 7) // 8

    @property
    def has_system_versions(self) -> bool:
        """MariaDB's ``WITH SYSTEM VERSIONING`` by columns that the server adds: their names, at
        the end, and the second in the key. Columns of one's own are told by who looks at the
        server, and by the statement that makes them.
        """
        if self.dialect != "mariadb" or len(self.columns) < len(_VERSIONS) or not self.key:
            return False
        added = self.columns[-len(_VERSIONS) :]
        moments = all(each.kind is Kind.TIMESTAMP and each.fsp == _MICROSECONDS for each in added)
        return (
            tuple(each.name for each in added) == _VERSIONS
            and moments
            and self.key[-1] == len(self.columns) - 1
        )

    @staticmethod
    def named(body: bytes) -> tuple[str, str]:
        """Database and table alone: of a table that nobody wants, nothing else is read."""
        return _named(PackedBytes(body, "a table map", ID_BYTES + 2))

    @staticmethod
    def shape(body: bytes) -> list[Column]:
        """How its columns lie in rows: what can be said without their names.

        :raises ChangeUnreadable: one has a type that has no place here. :raises BinlogDamaged: see
            :meth:`parse`.
        """
        data = PackedBytes(body, "a table map", ID_BYTES + 2)
        db, table = _named(data)
        types = data.take(data.packed())
        metadata = data.take(data.packed())
        return [
            each.column
            for each in stored_types(types, metadata, [""] * len(types), f"{db}.{table}")
        ]

    @staticmethod
    def parse(body: bytes, dialect: Dialect) -> TableMap:
        """:param body: of the event, behind its header of 19 bytes and without its checksum.

        :raises ChangeUnreadable: there are no names of columns in it, or a type that has no place
            here.
        :raises BinlogDamaged: its lengths do not fit together.
        """
        data = PackedBytes(body, "a table map", ID_BYTES + 2)
        db, table = _named(data)
        count = data.packed()
        types = data.take(count)
        metadata = data.take(data.packed())
        nullable = data.take((count + 7) // 8)
        optional = _Optional(dict(_fields(data)), f"{db}.{table}", types, dialect)
        stored = stored_types(types, metadata, optional.names, f"{db}.{table}")
        columns = tuple(_columns(stored, nullable, optional))
        number = int.from_bytes(body[:ID_BYTES], "little")
        return TableMap(number, db, table, columns, optional.key(), dialect)


def _named(data: PackedBytes) -> tuple[str, str]:
    """The name of a database and of a table: each behind its length, and with a zero at the
    end.
    """
    names = []
    for _ in range(2):
        names.append(decoded_name(data.take(data.byte())))
        data.take(1)
    return names[0], names[1]


def _fields(data: PackedBytes) -> Iterator[tuple[int, bytes]]:
    while data.left:
        kind = data.byte()
        yield kind, data.take(data.packed())


class _Optional:
    """The optional metadata, each part of which speaks of the columns of some types, in their
    order.
    """

    def __init__(
        self, fields: dict[int, bytes], table: str, types: bytes, dialect: Dialect
    ) -> None:
        self._fields = fields
        self._table = table
        self._count = len(types)
        self._numeric, self._character = NUMERIC[dialect], CHARACTER[dialect]
        if _NAMES not in fields:
            raise unreadable(
                "row_metadata",
                f"the changes of {table} do not say what its columns are called",
                FULL_METADATA,
            )
        data = self._reader(_NAMES)
        self.names = [decoded_name(data.take(data.packed())) for _ in types]

    def _reader(self, field: int) -> PackedBytes:
        return PackedBytes(self._fields.get(field, b""), f"the table map of {self._table}")

    def unsigned(self, stored: list[Stored]) -> dict[int, bool]:
        """By the place of a column with numbers: the sign bits are in the order of those alone,
        the first on top.
        """
        places = [place for place, each in enumerate(stored) if each.number in self._numeric]
        bits = self._reader(_SIGNEDNESS).take((len(places) + 7) // 8)
        return {place: bool(bits[n // 8] >> (7 - n % 8) & 1) for n, place in enumerate(places)}

    def charsets(self, stored: list[Stored]) -> dict[int, str]:
        """By the place of a column with characters."""
        characters = [place for place, each in enumerate(stored) if each.number in self._character]
        labelled = [place for place, each in enumerate(stored) if each.number in LABELLED]
        return {
            **self._collations(characters, _DEFAULT_CHARSET, _COLUMN_CHARSET),
            **self._collations(labelled, _LABELLED_DEFAULT_CHARSET, _LABELLED_CHARSET),
        }

    def _collations(self, places: list[int], default: int, each: int) -> dict[int, str]:
        """Either one collation for all and exceptions by number, or one for each."""
        if each in self._fields:
            data = self._reader(each)
            return {place: charset_of(data.packed()) for place in places}
        if default not in self._fields:
            return {}  # MySQL 8.0.12 says nothing of those of enums
        data = self._reader(default)
        found = dict.fromkeys(places, charset_of(data.packed()))
        while data.left:
            number, collation = data.packed(), data.packed()
            if number >= len(places):
                raise damaged(
                    f"the table map of {self._table} has a charset for a column that is not there"
                )
            found[places[number]] = charset_of(collation)
        return found

    def labels(self, field: int) -> Iterator[list[bytes]]:
        """Of the enums, or of the sets, one after the other."""
        data = self._reader(field)
        while data.left:
            yield [data.take(data.packed()) for _ in range(data.at_most(data.packed()))]

    def geometries(self) -> Iterator[int]:
        data = self._reader(_GEOMETRIES)
        while data.left:
            yield data.packed()

    def visible(self, place: int) -> bool:
        bits = self._fields.get(_VISIBILITY)
        return (
            bits is None
            or place // 8 >= len(bits)
            or bool(bits[place // 8] >> (7 - place % 8) & 1)
        )

    def key(self) -> tuple[int, ...]:
        field = _KEY if _KEY in self._fields else _PREFIXED_KEY
        data, places = self._reader(field), []
        while data.left:
            places.append(data.packed())
            if field == _PREFIXED_KEY:
                data.packed()  # how much of it is in the index; rows have all of it
        if any(place >= self._count for place in places):
            raise damaged(
                f"the table map of {self._table} has a key of columns that are not there"
            )
        return tuple(places)

    def decoded(self, labels: list[bytes], charset: str, place: int) -> tuple[str, ...]:
        """They are in the column's charset. A server that does not say which (MySQL 8.0.12) may
        only have such as are the same in most: bytes of one charset are often a text of another.
        """
        if not charset and any(not label.isascii() or b"\0" in label for label in labels):
            raise unreadable(
                "row_metadata",
                f"column {self.names[place]!r} of {self._table} has labels that are not ASCII, "
                f"and this server does "
                "not say in which charset",
                "use a newer server (MySQL 8.0.33 does say so), leave the table out of the wanted "
                "ones, or make the "
                "column a VARCHAR and start from a position after that",
            )
        return tuple(decoded_name(label, charset or "ascii") for label in labels)

    @property
    def label_fields(self) -> dict[Kind, Iterator[list[bytes]]]:
        return {Kind.ENUM: self.labels(_ENUMS), Kind.SET: self.labels(_SETS)}


def _columns(stored: list[Stored], nullable: bytes, optional: _Optional) -> Iterator[Column]:
    unsigned, charsets = optional.unsigned(stored), optional.charsets(stored)
    labels, geometries = optional.label_fields, optional.geometries()
    for place, each in enumerate(stored):
        column = each.column
        shared = {
            "nullable": bool(nullable[place // 8] >> (place % 8) & 1),
            "unsigned": unsigned.get(place, False),
            "visible": optional.visible(place),
        }
        charset = charsets.get(place, "")
        if column.kind in labels:
            found = next(labels[column.kind], None)
            if found is None:
                raise damaged(f"the table map of {optional.names[place]!r} has no labels of it")
            yield _with(
                column,
                labels=optional.decoded(found, charset, place),
                charset=charset or "ascii",
                **shared,
            )
        elif column.kind is Kind.TEXT and charset == "binary":
            yield _with(column, kind=Kind.BINARY, padded=each.is_fixed_string, **shared)
        elif column.kind is Kind.GEOMETRY:
            yield _with(column, geometry=next(geometries, 0), **shared)
        else:
            yield _with(column, charset=charset, **shared)


def _with(column: Column, **changed: object) -> Column:
    return replace(column, **changed)  # type: ignore[arg-type]
