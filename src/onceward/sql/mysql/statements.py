"""The SQL of a batch, for MySQL and MariaDB: :class:`onceward.sql.sink.dialect.Statements`. Pure:
text and parameters, in PyMySQL's manner (``%s``).

Each statement reads the rows once: a temporary table cannot be opened twice by one. Names of
tables and ``op`` are compared as bytes, for in a collation 'd' and 'd ' may be the same; keys by
the collation of the table's own column.

An upsert is an UPDATE of the rows that are there, and an INSERT of the others. ``ON DUPLICATE KEY
UPDATE`` would take *any* unique index of the table for the key, and replace another row where a
value of it comes twice; so that is an error of the server's here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onceward.engine.policy import DELETES, WRITES
from onceward.sql.mysql.catalogue import MOMENT, TEXT
from onceward.sql.sink.columns import TASK, Merge, Rows, Table, Written

ROW = "onceward_row"
"""Column of a staging table: the row's number in its task attempt. With it every row has a key,
which some servers require of every table, and tasks do not wait for each other's.
"""

_TYPES = {TEXT: "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", MOMENT: "datetime(6)"}


def quoted(name: str) -> str:
    """Quote ``name`` for a statement with parameters."""
    return "`" + name.replace("`", "``").replace("%", "%%") + "`"


def staging_table(sql_name: str, staged: Mapping[str, str], temporary: bool = False) -> str:
    """A temporary one belongs to the session."""
    columns = [f"{quoted(name)} {_TYPES.get(kind, kind)} NULL" for name, kind in staged.items()]
    columns += [
        f"{TASK} bigint NOT NULL",
        f"{ROW} bigint NOT NULL",
        f"PRIMARY KEY ({TASK}, {ROW})",
    ]
    return (
        f"CREATE {'TEMPORARY ' if temporary else ''}TABLE {sql_name} ({', '.join(columns)}) "
        "ENGINE = InnoDB"
    )


def staged_rows(
    sql_name: str,
    staged: Mapping[str, str],
    tasks: Sequence[int],
    only: tuple[str, str] | None = None,
) -> Rows:
    """Select what these task attempts have staged; ``only`` where a column has a value."""
    columns = ", ".join(quoted(name) for name in staged)
    numbers = ", ".join(str(int(task)) for task in tasks) or "NULL"
    sql = f"SELECT {columns} FROM {sql_name} WHERE {TASK} IN ({numbers})"
    if only is not None:
        return Rows(f"{sql} AND {_bytes(quoted(only[0]))} = {_bytes('%s')}", (only[1],))
    return Rows(sql, ())


def count(rows: Rows) -> Rows:
    """Count the rows."""
    return Rows(f"SELECT COUNT(*) FROM ({rows.sql}) AS staged", rows.parameters)


def number_steps(
    name: str, staged: Mapping[str, str], rows: Rows, order_by: Sequence[str]
) -> list[Rows]:
    columns = [
        f"{quoted(column)} {_TYPES.get(kind, kind)} NULL" for column, kind in staged.items()
    ]
    columns += [
        f"{ROW} bigint NOT NULL AUTO_INCREMENT PRIMARY KEY",
        f"{_STEP} bigint NOT NULL",
        f"KEY ({_STEP})",
    ]
    order = ", ".join(_sorted(column, staged) for column in order_by)  # nulls come first
    names = ", ".join(quoted(column) for column in staged)
    return [
        Rows(f"DROP TEMPORARY TABLE IF EXISTS {name}", ()),
        Rows(f"CREATE TEMPORARY TABLE {name} ({', '.join(columns)}) ENGINE = InnoDB", ()),
        Rows(
            f"INSERT INTO {name} ({names}, {_STEP}) SELECT {names}, "
            f"RANK() OVER (ORDER BY {order}) FROM ({rows.sql}) AS staged",
            rows.parameters,
        ),
    ]


def steps(name: str, first: int, last: int, only: tuple[str, str] | None) -> Rows:
    """Select the rows of these steps; ``only`` where a column has a value."""
    sql = f"SELECT * FROM {name} WHERE {_STEP} BETWEEN {first:d} AND {last:d}"
    if only is not None:
        return Rows(f"{sql} AND {_bytes(quoted(only[0]))} = {_bytes('%s')}", (only[1],))
    return Rows(sql, ())


def by_table(rows: Rows, column: str) -> Rows:
    """Count the rows for each value of ``column``, which names tables."""
    name = quoted(column)
    return Rows(
        f"SELECT MIN({name}), COUNT(*) FROM ({rows.sql}) AS staged GROUP BY {_bytes(name)}",
        rows.parameters,
    )


def longest(rows: Rows, limited: Sequence[Written]) -> Rows:
    """Select the length of the longest value of each of these columns."""
    lengths = ", ".join(f"MAX(CHAR_LENGTH({quoted(column.name)}))" for column in limited)
    return Rows(f"SELECT {lengths} FROM ({rows.sql}) AS staged", rows.parameters)


def most_bytes(rows: Rows, limited: Sequence[Written]) -> Rows:
    """Select the bytes of the longest value of each of these columns, as the table stores it."""
    lengths = ", ".join(f"MAX(OCTET_LENGTH({_stored_value(column)}))" for column in limited)
    return Rows(f"SELECT {lengths} FROM ({rows.sql}) AS staged", rows.parameters)


def kept(rows: Rows, merge: Merge) -> Rows:
    """Select the rows that are written: a delete has no more than its key."""
    if merge.op_column is None:
        return rows
    return Rows(
        f"SELECT * FROM ({rows.sql}) AS staged WHERE NOT {_deletes(merge)}", rows.parameters
    )


def nulls(rows: Rows, written: Sequence[Written]) -> Rows:
    """Count the nulls of each of these columns."""
    counts = ", ".join(f"COALESCE(SUM({quoted(column.name)} IS NULL), 0)" for column in written)
    return Rows(f"SELECT {counts} FROM ({rows.sql}) AS staged", rows.parameters)


def no_label(rows: Rows, column: Written) -> Rows:
    """Count the values that are none of the column's labels, letter by letter."""
    labels = ", ".join(_bytes("%s") for _ in column.labels)
    return Rows(
        f"SELECT COUNT(*) FROM (SELECT {_bytes(quoted(column.name))} AS label FROM ({rows.sql}) "
        f"AS staged) AS labels WHERE label NOT IN ({labels})",
        (*rows.parameters, *column.labels),
    )


def no_place(rows: Rows, column: Written) -> Rows:
    """Count the texts with a character outside the column's character set, which a server would
    store as ``?``.
    """
    name = quoted(column.name)
    back = f"CONVERT(CONVERT({name} USING {column.charset}) USING utf8mb4)"
    # Not cast to bytes: MariaDB cuts what is longer than max_allowed_packet then.
    return Rows(
        f"SELECT COUNT(*) FROM ({rows.sql}) AS staged WHERE {back} COLLATE utf8mb4_bin <> {name}",
        rows.parameters,
    )


def append(rows: Rows, table: Table, written: Sequence[Written]) -> Rows:
    """Add them all."""
    names = ", ".join(quoted(column.name) for column in written)
    return Rows(
        f"INSERT INTO {_in_statement(table)} ({names}) SELECT {names} FROM ({rows.sql}) AS staged",
        rows.parameters,
    )


def looked_at(rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
    null = " OR ".join(f"{_key(number)} IS NULL" for number in range(len(merge.key)))
    keys = ", ".join(_key(number) for number in range(len(merge.key)))
    return Rows(
        f"SELECT COUNT(*), COALESCE(SUM({null}), 0), COALESCE(SUM(onceward_odd), 0), "
        f"COALESCE(SUM(onceward_late = 1), 0), COUNT(DISTINCT {keys}), COALESCE(SUM(onceward_late "
        f"= 1 AND {_DELETED}), 0) FROM ({_ranked(rows, written, merge)}) AS ranked",
        rows.parameters,
    )


def sorted_bytes(rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
    """Select, for the key's columns as the table compares them and for those that order, the sort
    bytes of the longest value; null for columns that are not text.
    """
    columns = {column.name: column for column in written}
    values = [f"WEIGHT_STRING({_compared(columns[name])})" for name in merge.key]
    for name in merge.order_by:
        by_bytes = merge.staged[name] == TEXT
        values.append(quoted(name) if by_bytes else f"WEIGHT_STRING({quoted(name)})")
    most = ", ".join(f"MAX(OCTET_LENGTH({value}))" for value in values)
    return Rows(f"SELECT {most} FROM ({rows.sql}) AS staged", rows.parameters)


def delete(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
    """Delete the rows whose last change is a delete."""
    return Rows(
        f"DELETE target FROM {_in_statement(table)} AS target JOIN ({_last(rows, written, merge)} "
        f"AND {_DELETED}) AS latest ON {_same(merge)}",
        rows.parameters,
    )


def upsert(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> list[Rows]:
    """Update the rows that are there, then insert the others."""
    names = [quoted(column.name) for column in written]
    first_key = f"target.{quoted(merge.key[0])}"
    news = [quoted(column.name) for column in written if column.name not in merge.key]
    values = (
        ", ".join(f"target.{name} = latest.{name}" for name in news)
        or f"{first_key} = {first_key}"
    )
    latest = f"({_last(rows, written, merge)} AND NOT {_DELETED}) AS latest"
    return [
        Rows(
            f"UPDATE {_in_statement(table)} AS target JOIN {latest} ON {_same(merge)} SET "
            f"{values}",
            rows.parameters,
        ),
        Rows(
            f"INSERT INTO {_in_statement(table)} ({', '.join(names)}) SELECT "
            f"{', '.join(f'latest.{name}' for name in names)} FROM {latest} LEFT JOIN "
            f"{_in_statement(table)} AS target ON {_same(merge)} WHERE {first_key} IS NULL ORDER "
            "BY latest.onceward_place",
            rows.parameters,
        ),
    ]


def present(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
    return Rows(
        f"SELECT COALESCE(SUM({_DELETED}), 0), COALESCE(SUM(NOT {_DELETED}), 0) FROM "
        f"({_last(rows, written, merge)}) AS latest JOIN {_in_statement(table)} AS target ON "
        f"{_same(merge)}",
        rows.parameters,
    )


_DELETED = "onceward_deletes"
_STEP = "onceward_step"


def _key(number: int) -> str:
    return f"onceward_key_{number}"


def _same(merge: Merge) -> str:
    pairs = enumerate(quoted(name) for name in merge.key)
    return " AND ".join(f"target.{name} = latest.{_key(number)}" for number, name in pairs)


def _last(rows: Rows, written: Sequence[Written], merge: Merge) -> str:
    """Select the last row of each key; all of equally late ones. Ends in a WHERE."""
    return f"SELECT * FROM ({_ranked(rows, written, merge)}) AS ranked WHERE onceward_late = 1"


def _deletes(merge: Merge) -> str:
    """Say whether a row is a delete."""
    if merge.op_column is None:
        return "0"
    return f"COALESCE({_bytes(quoted(merge.op_column))} IN ({_words(DELETES)}), 0)"


def _ranked(rows: Rows, written: Sequence[Written], merge: Merge) -> str:
    """Select the rows with their keys, as the table compares them, and ranks from the last."""
    columns = {column.name: column for column in written}
    keys = [_compared(columns[name]) for name in merge.key]
    key_columns = [f"{key} AS {_key(number)}" for number, key in enumerate(keys)]
    values = [quoted(column.name) for column in written]
    late = place = "1"
    if merge.order_by:  # nulls come first
        sorted_by = [_sorted(name, merge.staged) for name in merge.order_by]
        order = ", ".join(f"{column} DESC" for column in sorted_by)
        late = f"RANK() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order})"
        place = f"RANK() OVER (ORDER BY {', '.join(sorted_by)})"
    odd = "0"
    if merge.op_column is not None:
        op = _bytes(quoted(merge.op_column))
        odd = f"({op} IS NULL OR {op} NOT IN ({_words((*DELETES, *WRITES))}))"
    flags = [
        f"{_deletes(merge)} AS {_DELETED}",
        f"{odd} AS onceward_odd",
        f"{late} AS onceward_late",
    ]
    return (
        f"SELECT {', '.join([*values, *key_columns, *flags])}, {place} AS onceward_place FROM "
        f"({rows.sql}) AS staged"
    )


def _compared(column: Written) -> str:
    value = _stored_value(column)
    return value if column.collation is None else f"{value} COLLATE {column.collation}"


def _stored_value(column: Written) -> str:
    return (
        f"CONVERT({quoted(column.name)} USING {column.charset})"
        if column.charset
        else quoted(column.name)
    )


def _words(words: Sequence[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)


def _sorted(name: str, staged: Mapping[str, str]) -> str:
    """Sort texts by their bytes, as Spark does: to their collation a space may follow or not."""
    return _bytes(quoted(name)) if staged[name] == TEXT else quoted(name)


def _bytes(expression: str) -> str:
    return f"CAST({expression} AS BINARY)"


def _in_statement(table: Table) -> str:
    return table.sql.replace("%", "%%")
