"""A table's definition as a table map would have it, and whether there can be a snapshot of it.
Driver and tasks.

A row must come out of a SELECT as it comes out of the binlog. So each column is described as a
table map describes it (:class:`onceward.mysql.binlog.table_map.TableColumn`), and selected by an
expression that the server answers without rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onceward.errors import ServerMisconfigured
from onceward.mysql.binlog.column_types import ColumnKind, TableColumn
from onceward.mysql.binlog.event import Dialect
from onceward.mysql.binlog.sql_tables import quote_table
from onceward.mysql.binlog.table_map import TableMap
from onceward.mysql.binlog.values import select_expression
from onceward.mysql.snapshot.keys import SORTED_HERE, SORTED_THERE, Key, KeyColumn, Query
from onceward.mysql.source.connection import Server
from onceward.mysql.source.settings import ChangesSettings

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_MOMENTS = {
    "date": ColumnKind.DATE,
    "time": ColumnKind.TIME,
    "datetime": ColumnKind.DATETIME,
    "timestamp": ColumnKind.TIMESTAMP,
}
_SHAPES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geomcollection",
    "geometrycollection",
)  # fmt: skip
_OTHERS = {"json": ColumnKind.JSON, "vector": ColumnKind.VECTOR}
_LABELS = {"enum": ColumnKind.ENUM, "set": ColumnKind.SET}
_ADDRESSES = {"inet4": 4, "inet6": 16, "uuid": 16}
"""MariaDB's types that are bytes in the binlog."""


@dataclass(frozen=True)
class TableDescription:
    """A table as it is now."""

    map: TableMap
    """As the binlog would describe it."""
    key: Key
    row_bytes: int
    """On average, by the server's statistics; 0 if they are not known."""
    expressions: tuple[str, ...]
    """Of a SELECT, one for each column."""

    @property
    def quoted(self) -> str:
        return quote_table(self.map.db, self.map.table)


def describe_table(query: Query, dialect: Dialect, database: str, table: str) -> TableDescription:
    """Describe a table that is there, by ``information_schema``.

    :raises ServerMisconfigured: there can be no snapshot of it.
    """
    where = f"TABLE_SCHEMA = {_literal(database)} AND TABLE_NAME = {_literal(table)}"
    columns = query(
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, "  # noqa: S608
        "NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME "
        f"FROM information_schema.COLUMNS WHERE {where} ORDER BY ORDINAL_POSITION"
    )
    found = {
        str(row[0]): _describe_column(dialect, f"{database}.{table}", *row[:8]) for row in columns
    }
    kinds = {str(row[0]): (str(row[1]), str(row[2]), str(row[8] or "")) for row in columns}
    names = list(found)
    key = _describe_key(query, where, f"{database}.{table}", found, kinds)
    row_bytes = _describe_row_bytes(query, where, database, table)
    places = tuple(names.index(column.name) for column in key)
    return TableDescription(
        TableMap(database, table, tuple(found.values()), places, dialect),
        key,
        row_bytes,
        tuple(map(select_expression, found.values())),
    )


def _describe_row_bytes(query: Query, where: str, database: str, table: str) -> int:
    name = f"{database}.{table}"
    rows = query(
        f"SELECT TABLE_TYPE, ENGINE, AVG_ROW_LENGTH "  # noqa: S608
        f"FROM information_schema.TABLES WHERE {where}"
    )
    kind, engine, row_bytes = rows[0] if rows else ("not visible", None, None)
    if kind != "BASE TABLE":
        raise _no_snapshot_error(
            name,
            f"it is {str(kind).lower()}, and no plain table",
            "leave it out of tables, or use another start than initial: its changes alone can be "
            "read",
        )
    if str(engine).lower() != "innodb":
        raise _no_snapshot_error(
            name,
            f"its engine is {engine}, which has no consistent view of rows that others change",
            f"ALTER TABLE {quote_table(database, table)} ENGINE = InnoDB, or use another start "
            "than initial",
        )
    return int(row_bytes or 0)


def _describe_key(
    query: Query,
    where: str,
    name: str,
    columns: dict[str, TableColumn],
    kinds: dict[str, tuple[str, str, str]],
) -> Key:
    parts = query(
        "SELECT COLUMN_NAME, SUB_PART, "  # noqa: S608
        f"COLLATION FROM information_schema.STATISTICS WHERE {where} AND INDEX_NAME = 'PRIMARY' "
        "ORDER BY SEQ_IN_INDEX"
    )
    if not parts:
        raise _no_snapshot_error(
            name, "it has no primary key", "add a primary key, or use another start than initial"
        )
    if any(part[1] is not None for part in parts):
        raise _no_snapshot_error(
            name,
            "its primary key has the beginning of a column only",
            "make the whole column the key, or use another start than initial",
        )
    if len({part[2] for part in parts}) > 1:
        raise _no_snapshot_error(
            name,
            "its primary key ascends in one column and descends in another",
            "let all of its columns ascend, or use another start than initial",
        )
    key = []
    for part in parts:
        column, (data_type, whole_type, collation) = columns[str(part[0])], kinds[str(part[0])]
        if column.kind not in SORTED_HERE | SORTED_THERE or data_type in _ADDRESSES:
            raise _no_snapshot_error(
                name,
                f"its primary key has the column {column.name!r} of the type {whole_type}, whose "
                "order we do not know",
                "use another start than initial, or a key of numbers, texts, bytes or moments",
            )
        charset = column.charset if column.kind is ColumnKind.TEXT else ""
        key.append(
            KeyColumn(column.name, whole_type, column.kind, charset, collation if charset else "")
        )
    return tuple(key)


def _describe_column(
    dialect: Dialect, table: str, name: str, data_type: str, whole_type: str, nullable: str,
    precision: Any, scale: Any,
    fsp: Any, charset: Any,
) -> TableColumn:  # fmt: skip
    charset = "utf8mb3" if charset == "utf8" else str(charset or "")
    result = _column_fields(dialect, data_type, precision, scale, fsp, charset)
    if result is None:
        raise _no_snapshot_error(
            table,
            f"its column {name!r} has the type {whole_type}, which cannot be read",
            "leave the table out of tables, or change the column's type",
        )
    unsigned = "unsigned" in whole_type
    return TableColumn(name=name, nullable=nullable == "YES", unsigned=unsigned, **result)


def _column_fields(
    dialect: Dialect, data_type: str, precision: Any, scale: Any, fsp: Any, charset: str
) -> dict[str, Any] | None:
    if data_type in _INTEGERS:
        return {"kind": ColumnKind.INTEGER, "width": _INTEGERS[data_type]}
    if data_type in ("float", "double"):
        return {"kind": ColumnKind.FLOAT, "width": 4 if data_type == "float" else 8}
    if data_type == "decimal":
        return {"kind": ColumnKind.DECIMAL, "precision": int(precision), "scale": int(scale)}
    if data_type == "bit":
        return {"kind": ColumnKind.BIT, "bits": int(precision), "width": (int(precision) + 7) // 8}
    if data_type == "year":
        return {"kind": ColumnKind.YEAR, "width": 1}
    if data_type in _MOMENTS:
        return {"kind": _MOMENTS[data_type], "fsp": int(fsp or 0)}
    if data_type in _TEXTS:
        return {"kind": ColumnKind.TEXT, "charset": charset}
    if data_type in _LABELS:
        # MySQL says nothing of CHARACTER SET binary
        return {"kind": _LABELS[data_type], "charset": charset or "binary"}
    if data_type in _ADDRESSES:
        return {"kind": ColumnKind.BINARY, "size": _ADDRESSES[data_type], "is_padded": True}
    if data_type in _BYTES or (data_type == "vector" and dialect == "mariadb"):
        return {"kind": ColumnKind.BINARY}
    if data_type in _SHAPES:
        return {"kind": ColumnKind.GEOMETRY}
    return {"kind": _OTHERS[data_type]} if data_type in _OTHERS else None


def list_selected_tables(server: Server, settings: ChangesSettings) -> list[tuple[str, str]]:
    """Return database and table of each selected table that is there, sorted by name."""
    rows = server.query(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE NOT IN "
        "('VIEW', 'SYSTEM VIEW', 'SEQUENCE', 'LOCAL TEMPORARY', 'TEMPORARY')"
    )
    return sorted(
        (str(database), str(table))
        for database, table in rows
        if settings.selects(str(database), str(table))
    )


def _literal(text: str) -> str:
    return f"_utf8mb4 X'{text.encode().hex()}'"


def _no_snapshot_error(table: str, why: str, next_step: str) -> ServerMisconfigured:
    return ServerMisconfigured(
        f"there can be no snapshot of {table}: {why}",
        next_step=next_step,
        details={"table": table},
    )
