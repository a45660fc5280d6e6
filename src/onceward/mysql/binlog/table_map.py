"""TABLE_MAP events: a table's columns, and how their cells lie in the rows events behind it. Pure.

A server sends one before the rows events of each statement; its bytes stay the same as long as the
table does, so the parsed map is cached by them. Names of columns, labels of enums, charsets and
the primary key are in its optional metadata, which ``binlog_row_metadata=FULL`` asks for. Every
length is checked against the bytes there are before anything is made of it. The Arrow type of each
column is in :mod:`onceward.mysql.binlog.values`.

Source: MySQL ``libbinlogevents/include/rows_event.h`` ("Table_map_event",
"Optional_metadata_field_type"), ``field_types.h``, ``sql/field.cc`` (``do_save_field_metadata`` of
each class), ``sql/rpl_utility.cc`` (``table_def::calc_field_size``); MariaDB
``sql/log_event_server.cc`` (``Table_map_log_event::init_metadata_fields``), its ``field_types.h``
for 140 and 141.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from onceward.mysql.binlog.charsets import charset_by_collation, decode_label, decode_name
from onceward.mysql.binlog.column_types import (
    CHARACTER_TYPES,
    FIXED_STRING,
    LABEL_TYPES,
    ColumnKind,
    StoredColumn,
    TableColumn,
    numeric_types,
    parse_types,
)
from onceward.mysql.binlog.event import SET_FULL_METADATA, Dialect, damaged_data, unreadable_change
from onceward.mysql.binlog.fields import MetadataFields
from onceward.mysql.binlog.sql_tables import TableName, quote_table

ID_BYTES = 6
_SEQUENCE_COLUMNS = (
    "next_not_cached_value", "minimum_value", "maximum_value", "start_value", "increment",
    "cache_size", "cycle_option", "cycle_count",
)  # fmt: skip
# As the metadata has names: each behind its length
_SEQUENCE_NAMES = b"".join(bytes([len(name)]) + name.encode() for name in _SEQUENCE_COLUMNS)
_VERSION_COLUMNS, _MICROSECONDS = ("row_start", "row_end"), 6
_SIGNEDNESS, _DEFAULT_CHARSET, _COLUMN_CHARSET, _NAMES, _SETS, _ENUMS = range(1, 7)
_KEY, _PREFIXED_KEY, _LABELLED_DEFAULT_CHARSET, _LABELLED_CHARSET = range(8, 12)
_ROW_HASH = re.compile(r"DB_ROW_HASH_\d+")


@dataclass(frozen=True)
class TableMap:
    """A parsed TABLE_MAP event."""

    db: str
    table: str
    columns: tuple[TableColumn, ...]
    key: tuple[int, ...]
    """Indexes of the primary key's columns, in the key's order; empty without a key."""
    dialect: Dialect

    @cached_property
    def name(self) -> str:
        """Database and table, for messages."""
        return f"{self.db}.{self.table}"

    @cached_property
    def bitmap_bytes(self) -> int:
        """Size of a bitmap with a bit for each column."""
        return (len(self.columns) + 7) // 8

    @cached_property
    def own_columns(self) -> int:
        """The number of its columns, without those that MariaDB adds behind them and shows to
        nobody: one for each UNIQUE key over texts that are too long for an index.
        """
        count = len(self.columns)
        while self.dialect == "mariadb" and count and _is_row_hash(self.columns[count - 1]):
            count -= 1
        return count

    @property
    def has_system_versions(self) -> bool:
        """MariaDB's ``WITH SYSTEM VERSIONING`` by columns that the server adds: their names, at
        the end, and the second in the key. Versioning by a table's own columns is found on the
        server, and in the statement that creates it.
        """
        if self.dialect != "mariadb" or self.own_columns < len(_VERSION_COLUMNS) or not self.key:
            return False
        last = self.columns[self.own_columns - len(_VERSION_COLUMNS) : self.own_columns]
        moments = all(
            each.kind is ColumnKind.TIMESTAMP and each.fsp == _MICROSECONDS for each in last
        )
        return (
            tuple(each.name for each in last) == _VERSION_COLUMNS
            and moments
            and self.key[-1] == self.own_columns - 1
        )

    @property
    def is_sequence(self) -> bool:
        """MariaDB's ``CREATE SEQUENCE``: each range of numbers that is taken is an insert of its
        one row (``sql/sql_sequence.cc``, ``sequence_structure``). Told by its eight columns, which
        have no key.
        """
        return (
            self.dialect == "mariadb"
            and not self.key
            and tuple(each.name for each in self.columns) == _SEQUENCE_COLUMNS
        )

    @staticmethod
    def may_be_sequence(body: bytes) -> bool:
        """Return whether a table map is worth a look at :attr:`is_sequence`."""
        return _SEQUENCE_NAMES in body

    @staticmethod
    def parse_names(body: bytes) -> tuple[str, str]:
        """Return database and table: nothing else is read of a table that is not selected."""
        return _take_names(MetadataFields(body, "a table map", ID_BYTES + 2))

    @staticmethod
    def parse_shape(body: bytes) -> list[TableColumn]:
        """Return how its columns lie in rows, without their names.

        :raises ChangeUnreadable: a type is not supported.
        :raises BinlogCorrupted: as :meth:`parse`.
        """
        data = MetadataFields(body, "a table map", ID_BYTES + 2)
        name = _take_names(data)
        types, metadata = data.take(data.lenenc_int()), data.take(data.lenenc_int())
        return [each.column for each in parse_types(types, metadata, [""] * len(types), name)]

    @staticmethod
    def parse(body: bytes, dialect: Dialect, writer: tuple[int, ...] | None = ()) -> TableMap:
        """Parse a table map.

        :param body: of the event, behind its header of 19 bytes and without its checksum.
        :param writer: version of the server that wrote it, as its format description has it; None:
            not known. Without it, one of before 8.0.20.
        :raises ChangeUnreadable: it has no names of columns, or a type that is not supported.
        :raises BinlogCorrupted: its lengths do not fit together.
        """
        data = MetadataFields(body, "a table map", ID_BYTES + 2)
        name = _take_names(data)
        count = data.lenenc_int()
        types = data.take(count)
        metadata = data.take(data.lenenc_int())
        nullable = data.take((count + 7) // 8)
        optional = _OptionalMetadata(dict(_fields(data)), name, types, dialect, writer)
        layouts = parse_types(types, metadata, optional.names, name)
        columns = tuple(_parse_columns(layouts, nullable, optional))
        return TableMap(*name, columns, optional.key(), dialect)


def _is_row_hash(column: TableColumn) -> bool:
    is_number = column.kind is ColumnKind.INTEGER and column.width == 8 and column.unsigned
    return is_number and _ROW_HASH.fullmatch(column.name) is not None


def _take_names(data: MetadataFields) -> TableName:
    """Read the names of a database and of a table, each with a length and a zero."""
    names = []
    for _ in range(2):
        names.append(decode_name(data.take(data.take_byte())))
        data.take(1)
    return TableName(*names)


def _fields(data: MetadataFields) -> Iterator[tuple[int, bytes]]:
    while data.remaining:
        kind = data.take_byte()
        yield kind, data.take(data.lenenc_int())


class _OptionalMetadata:
    """The optional metadata: each field is about the columns of some types, in order."""

    def __init__(
        self,
        fields: dict[int, bytes],
        table: TableName,
        types: bytes,
        dialect: Dialect,
        writer: tuple[int, ...] | None,
    ) -> None:
        self._fields = fields
        self._table = table
        self._numeric, self._character = numeric_types(dialect, writer), CHARACTER_TYPES[dialect]
        if _NAMES not in fields:
            raise unreadable_change(
                "row_metadata",
                f"the changes of {table} do not say what its columns are called",
                SET_FULL_METADATA,
            )
        data = self._reader(_NAMES)
        self.names = [decode_name(data.take(data.lenenc_int())) for _ in types]

    def _reader(self, field: int) -> MetadataFields:
        return MetadataFields(self._fields.get(field, b""), f"the table map of {self._table}")

    def unsigned(self, layouts: list[StoredColumn]) -> dict[int, bool]:
        """Return signedness by the index of a numeric column, whose bits come in order."""
        numeric = self._numeric
        if numeric is not None:
            return self._signs(layouts, numeric)
        size = len(self._fields.get(_SIGNEDNESS, b""))
        older, newer = numeric_types("mysql", ()), numeric_types("mariadb", None)
        readings = [
            self._signs(layouts, types)
            for types in (older, newer)
            if types and (sum(each.number in types for each in layouts) + 7) // 8 == size
        ]
        # Of a YEAR itself nobody asks
        if any(one[place] != readings[0][place] for one in readings[1:] for place in readings[0]):
            raise unreadable_change(
                "row_metadata",
                f"the changes of {self._table} have a YEAR before other numbers, and whether this "
                "MySQL (8.0.20 to 8.0.22) writes a sign of a YEAR is not known: those of the "
                "others would be mixed up",
                "upgrade the server to 8.0.23 or later, or make the YEAR a SMALLINT, and begin "
                "behind that",
            )
        return readings[0] if readings else self._signs(layouts, older or frozenset())

    def _signs(self, layouts: list[StoredColumn], numeric: frozenset[int]) -> dict[int, bool]:
        places = _places(layouts, numeric)
        bits = self._reader(_SIGNEDNESS).take((len(places) + 7) // 8)
        return {place: bool(bits[n // 8] >> (7 - n % 8) & 1) for n, place in enumerate(places)}

    def charsets(self, layouts: list[StoredColumn]) -> dict[int, str]:
        """Return charsets by the index of a column with characters."""
        characters = _places(layouts, self._character)
        enums_and_sets = _places(layouts, LABEL_TYPES)
        return {
            **self._collations(characters, _DEFAULT_CHARSET, _COLUMN_CHARSET),
            **self._collations(enums_and_sets, _LABELLED_DEFAULT_CHARSET, _LABELLED_CHARSET),
        }

    def _collations(self, places: list[int], default: int, each: int) -> dict[int, str]:
        """Read either one collation for all with exceptions by number, or one for each."""
        if each in self._fields:
            data = self._reader(each)
            return {place: charset_by_collation(data.lenenc_int()) for place in places}
        if default not in self._fields:
            # MySQL 8.0.12 says nothing of those of enums
            return {}
        data = self._reader(default)
        found = dict.fromkeys(places, charset_by_collation(data.lenenc_int()))
        while data.remaining:
            number, collation = data.lenenc_int(), data.lenenc_int()
            if number >= len(places):
                raise damaged_data(
                    f"the table map of {self._table} has a charset for a column that is not there"
                )
            found[places[number]] = charset_by_collation(collation)
        return found

    def labels(self, field: int) -> Iterator[list[bytes]]:
        """Yield the labels of the enums, or of the sets, one column after the other."""
        data = self._reader(field)
        while data.remaining:
            yield [
                data.take(data.lenenc_int()) for _ in range(data.check_count(data.lenenc_int()))
            ]

    def key(self) -> tuple[int, ...]:
        field = _KEY if _KEY in self._fields else _PREFIXED_KEY
        data, places = self._reader(field), []
        while data.remaining:
            places.append(data.lenenc_int())
            if field == _PREFIXED_KEY:
                # How much of it is in the index; rows have all of it
                data.lenenc_int()
        if any(place >= len(self.names) for place in places):
            raise damaged_data(
                f"the table map of {self._table} has a key of columns that are not there"
            )
        return tuple(places)

    def decode_labels(self, labels: list[bytes], charset: str, place: int) -> tuple[str, ...]:
        """Decode labels, which are in the column's charset. Where the server does not name it
        (MySQL 8.0.12) only ASCII is safe: bytes of one charset are often a text of another.
        """
        if not charset and any(not label.isascii() or b"\0" in label for label in labels):
            raise unreadable_change(
                "row_metadata",
                f"column {self.names[place]!r} of {self._table} has labels that are not ASCII, "
                "and this server does not say in which charset",
                "use a newer server (MySQL 8.0.33 does say so), leave the table out of the wanted "
                "ones, or make the column a VARCHAR and start from a position after that",
            )
        try:
            return tuple(decode_label(label, charset or "ascii") for label in labels)
        except UnicodeDecodeError as error:
            raise unreadable_change(
                "column_type",
                f"column {self.names[place]!r} of {self._table} has the label "
                f"{bytes(error.object)[:64]!r}, which cannot be read here by its charset "
                f"{charset}",
                f"ALTER TABLE {quote_table(*self._table)} MODIFY the column with the labels in "
                "CHARACTER SET utf8mb4, and start from a position after that; or leave the table "
                "out of the wanted ones",
            ) from None


def _places(layouts: list[StoredColumn], types: frozenset[int]) -> list[int]:
    return [place for place, each in enumerate(layouts) if each.number in types]


def _parse_columns(
    layouts: list[StoredColumn], nullable: bytes, optional: _OptionalMetadata
) -> Iterator[TableColumn]:
    unsigned, charsets = optional.unsigned(layouts), optional.charsets(layouts)
    labels = {ColumnKind.ENUM: optional.labels(_ENUMS), ColumnKind.SET: optional.labels(_SETS)}
    for place, each in enumerate(layouts):
        column = each.column
        shared: dict[str, Any] = {
            "nullable": bool(nullable[place // 8] >> (place % 8) & 1),
            "unsigned": unsigned.get(place, False),
        }
        charset = charsets.get(place, "")
        if column.kind in labels:
            found = next(labels[column.kind], None)
            if found is None:
                raise damaged_data(
                    f"the table map of {optional.names[place]!r} has no labels of it"
                )
            texts = optional.decode_labels(found, charset, place)
            yield replace(column, labels=texts, charset=charset or "ascii", **shared)
        elif column.kind is ColumnKind.TEXT and charset == "binary":
            yield replace(
                column, kind=ColumnKind.BINARY, is_padded=each.number == FIXED_STRING, **shared
            )
        elif column.kind is ColumnKind.GEOMETRY:
            yield replace(column, **shared)
        else:
            yield replace(column, charset=charset, **shared)
