"""What a table looks like to a SELECT, in the words of the binlog, and whether there can be a
snapshot of it. Driver and tasks.

A row must come out of a SELECT as it comes out of the binlog. So each column is described as a
table map describes it (:class:`onceward.mysql.binlog.column.Column`), and asked for by an
expression that the server answers without rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.errors import ServerUnfit
from onceward.mysql.binlog.column import Column, Kind
from onceward.mysql.binlog.table_map import Dialect, TableMap
from onceward.mysql.binlog.values.from_text import select_expression
from onceward.mysql.snapshot.keys import SORTED_HERE, SORTED_THERE, Ask, Key, KeyColumn, quoted

_INTEGERS = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_MOMENTS = {
    "date": Kind.DATE,
    "time": Kind.TIME,
    "datetime": Kind.DATETIME,
    "timestamp": Kind.TIMESTAMP,
}
_SHAPES = (
    "geometry", "point", "linestring", "polygon", "multipoint", "multilinestring", "multipolygon",
    "geomcollection",
    "geometrycollection",
)  # fmt: skip
_LABELS = {"enum": Kind.ENUM, "set": Kind.SET}
_ADDRESSES = {"inet4": 4, "inet6": 16, "uuid": 16}
"""MariaDB's, which are bytes in the binlog."""

_ROWS_UNKNOWN = 0


@dataclass(frozen=True)
class Described:
    """A table as it is now."""

    map: TableMap
    """As the binlog would describe it."""
    key: Key
    row_bytes: int
    """On average, by the server's statistics; 0: it does not know."""
    expressions: tuple[str, ...]
    """What a SELECT asks for, one for each column."""

    @property
    def quoted(self) -> str:
        return quoted_table(self.map.db, self.map.table)


def quoted_table(database: str, table: str) -> str:
    return f"{quoted(database)}.{quoted(table)}"


def described(ask: Ask, dialect: Dialect, database: str, table: str) -> Described:
    """What ``information_schema`` says of a table that is there.

    :raises ServerUnfit: there can be no snapshot of it; the error names the table, and what would
        help.
    """
    where = f"TABLE_SCHEMA = {_text(database)} AND TABLE_NAME = {_text(table)}"
    columns = ask(
        "SELECT COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, IS_NULLABLE, NUMERIC_PRECISION, "  # noqa: S608
        "NUMERIC_SCALE, "
        "DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME FROM information_schema.COLUMNS "
        f"WHERE {where} ORDER BY ORDINAL_POSITION"
    )
    found = {str(row[0]): _column(dialect, f"{database}.{table}", *row[:8]) for row in columns}
    kinds = {str(row[0]): (str(row[1]), str(row[2]), str(row[8] or "")) for row in columns}
    names = list(found)
    key, row_bytes = (
        _key(ask, where, f"{database}.{table}", found, kinds),
        _row_bytes(ask, where, f"{database}.{table}"),
    )
    places = tuple(names.index(column.name) for column in key)
    return Described(
        TableMap(0, database, table, tuple(found.values()), places, dialect),
        key,
        row_bytes,
        tuple(map(select_expression, found.values())),
    )


def _row_bytes(ask: Ask, where: str, name: str) -> int:
    rows = ask(
        f"SELECT TABLE_TYPE, ENGINE, AVG_ROW_LENGTH FROM information_schema.TABLES WHERE {where}"  # noqa: S608
    )
    kind, engine, row_bytes = rows[0] if rows else ("not visible", None, None)
    if kind != "BASE TABLE":
        raise _unfit(
            name,
            f"it is {str(kind).lower()}, and no plain table",
            "leave it out of tables, or use another start than initial: its changes alone can be "
            "read",
        )
    if str(engine).lower() != "innodb":
        raise _unfit(
            name,
            f"its engine is {engine}, which has no consistent view of rows that others change",
            f"ALTER TABLE {name} ENGINE = InnoDB, or use another start than initial",
        )
    return int(row_bytes or _ROWS_UNKNOWN)


def _key(
    ask: Ask,
    where: str,
    name: str,
    columns: dict[str, Column],
    kinds: dict[str, tuple[str, str, str]],
) -> Key:
    parts = ask(
        "SELECT COLUMN_NAME, SUB_PART, "  # noqa: S608
        "COLLATION FROM information_schema.STATISTICS "
        f"WHERE {where} AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX"
    )
    if not parts:
        raise _unfit(
            name, "it has no primary key", "add a primary key, or use another start than initial"
        )
    if any(part[1] is not None for part in parts):
        raise _unfit(
            name,
            "its primary key has the beginning of a column only",
            "make the whole column the key, or use another start than initial",
        )
    if len({part[2] for part in parts}) > 1:
        raise _unfit(
            name,
            "its primary key ascends in one column and descends in another",
            "let all of its columns ascend, or use another start than initial",
        )
    key = []
    for part in parts:
        column, (data_type, whole_type, collation) = columns[str(part[0])], kinds[str(part[0])]
        if column.kind not in SORTED_HERE | SORTED_THERE or data_type in _ADDRESSES:
            raise _unfit(
                name,
                f"its primary key has the column {column.name!r} of the type {whole_type}, whose "
                f"order we do not know",
                "use another start than initial, or a key of numbers, texts, bytes or moments",
            )
        charset = column.charset if column.kind is Kind.TEXT else ""
        key.append(
            KeyColumn(column.name, whole_type, column.kind, charset, collation if charset else "")
        )
    return tuple(key)


def _column(
    dialect: Dialect, table: str, name: str, data_type: str, whole_type: str, nullable: str,
    precision: Any, scale: Any,
    fsp: Any, charset: Any,
) -> Column:  # fmt: skip
    shared: dict[str, Any] = {
        "name": name,
        "nullable": nullable == "YES",
        "unsigned": "unsigned" in whole_type,
    }
    charset = "utf8mb3" if charset == "utf8" else str(charset or "")
    made = _of_type(dialect, data_type, precision, scale, fsp, charset)
    if made is None:
        raise _unfit(
            table,
            f"its column {name!r} has the type {whole_type}, which cannot be read",
            "leave the table out of tables, or change the column's type",
        )
    return Column(**{**made, **shared})


def _of_type(
    dialect: Dialect, data_type: str, precision: Any, scale: Any, fsp: Any, charset: str
) -> dict[str, Any] | None:
    if data_type in _INTEGERS:
        return {"kind": Kind.INTEGER, "width": _INTEGERS[data_type]}
    if data_type in ("float", "double"):
        return {"kind": Kind.FLOAT, "width": 4 if data_type == "float" else 8}
    if data_type == "decimal":
        return {"kind": Kind.DECIMAL, "precision": int(precision), "scale": int(scale)}
    if data_type == "bit":
        return {"kind": Kind.BIT, "bits": int(precision), "width": (int(precision) + 7) // 8}
    if data_type == "year":
        return {"kind": Kind.YEAR, "width": 1}
    if data_type in _MOMENTS:
        return {"kind": _MOMENTS[data_type], "fsp": int(fsp or 0)}
    if data_type in _TEXTS or data_type in _LABELS:
        return {"kind": _LABELS.get(data_type, Kind.TEXT), "charset": charset}
    if data_type in _ADDRESSES:
        return {"kind": Kind.BINARY, "size": _ADDRESSES[data_type], "padded": True}
    if data_type in _BYTES or (data_type == "vector" and dialect == "mariadb"):
        return {"kind": Kind.BINARY}
    if data_type in _SHAPES:
        return {"kind": Kind.GEOMETRY}
    return (
        {"kind": {"json": Kind.JSON, "vector": Kind.VECTOR}[data_type]}
        if data_type in ("json", "vector")
        else None
    )


def listed(ask: Ask, wanted: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """The tables that there are, of those that are wanted."""
    rows: Sequence[tuple[Any, ...]] = ask(
        "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES WHERE TABLE_TYPE NOT IN "
        "('VIEW', "
        "'SYSTEM VIEW', 'SEQUENCE', 'LOCAL TEMPORARY', 'TEMPORARY') ORDER BY TABLE_SCHEMA, "
        "TABLE_NAME"
    )
    return [
        (str(database), str(table))
        for database, table in rows
        if wanted(str(database), str(table))
    ]


def _text(said: str) -> str:
    return f"_utf8mb4 X'{said.encode().hex()}'"


def _unfit(table: str, why: str, next_step: str) -> ServerUnfit:
    return ServerUnfit(
        f"there can be no snapshot of {table}: {why}",
        next_step=next_step,
        details={"table": table},
    )
