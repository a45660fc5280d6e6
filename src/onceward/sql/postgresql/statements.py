"""The SQL of a batch, for PostgreSQL: :class:`onceward.sql.sink.dialect.Statements`. Pure: text
and parameters, in psycopg's manner (``%s``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.engine.policy import DELETES, WRITES
from onceward.sql.sink.columns import TASK, Merge, Rows, Table, Written


def quoted(name: str) -> str:
    """Quote ``name`` for a statement with parameters."""
    return '"' + name.replace('"', '""').replace("%", "%%") + '"'


def staging_table(sql_name: str, staged: Mapping[str, str]) -> str:
    # The frame's types, not the target's: a binary COPY does not convert, and stores other values
    # without an error where widths agree (eight bytes are a bigint, a double or a timestamp). The
    # INSERT … SELECT from here casts.
    columns = [f"{quoted(name)} {kind}" for name, kind in staged.items()]
    return f"CREATE UNLOGGED TABLE {sql_name} ({', '.join([*columns, f'{TASK} bigint NOT NULL'])})"


def staged_rows(
    sql_name: str,
    staged: Mapping[str, str],
    tasks: Sequence[int],
    only: tuple[str, str] | None = None,
) -> Rows:
    """Select what these task attempts have staged; ``only`` where a column has a value."""
    columns = ", ".join(quoted(name) for name in staged)
    sql, parameters = f"SELECT {columns} FROM {sql_name} WHERE {TASK} = ANY(%s)", [list(tasks)]
    if only is not None:
        return Rows(f"{sql} AND {quoted(only[0])} = %s", (*parameters, only[1]))
    return Rows(sql, tuple(parameters))


def held_rows(staged: Mapping[str, str], values: Mapping[str, Sequence[Any]]) -> Rows:
    """Select the driver's rows: one list for each column, times as numbers."""
    arrays: list[str] = []
    columns: list[str] = []
    casts: list[str] = []
    parameters: list[list[Any]] = []
    for name, kind in staged.items():
        column = quoted(name)
        time = _TIMES.get(kind)
        for place, (sent_as, numbers) in enumerate(_sent(kind, values[name])):
            arrays.append(f"%s::{sent_as}[]")
            columns.append(f'"onceward_{len(columns)}"' if place else column)
            parameters.append(numbers)
        casts.append(column if time is None else f"{time.format(column, columns[-1])} AS {column}")
    selection = ", ".join(casts) if any(kind in _TIMES for kind in staged.values()) else "*"
    return Rows(
        f"SELECT {selection} FROM unnest({', '.join(arrays)}) AS held({', '.join(columns)})",
        tuple(parameters),
    )


_DAY_US = 86_400_000_000
_TIMES = {
    "date": "(date '1970-01-01' + {0})",
    "timestamp without time "
    "zone": "((date '1970-01-01' + {0})::timestamp + {1} * interval '1 microsecond')",
    "timestamp with time "
    "zone": "(((date '1970-01-01' + {0})::timestamp + {1} * interval '1 microsecond') "
    "AT TIME ZONE 'UTC')",
}
"""Of a day, and the microseconds in it: an interval is multiplied as a double, which has those."""


def _sent(kind: str, values: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    if kind == "date":
        return [("integer", list(values))]
    if kind not in _TIMES:
        return [(kind, list(values))]
    split = [(None, None) if value is None else divmod(value, _DAY_US) for value in values]
    return [("integer", [day for day, _ in split]), ("bigint", [rest for _, rest in split])]


def count(rows: Rows) -> Rows:
    """Count the rows."""
    return Rows(f"SELECT count(*) FROM ({rows.sql}) AS rows", rows.parameters)


def number_steps(
    name: str, staged: Mapping[str, str], rows: Rows, order_by: Sequence[str]
) -> list[Rows]:
    columns = [f"{quoted(column)} {kind}" for column, kind in staged.items()]
    order = ", ".join(f"{_sorted(column, staged)} NULLS FIRST" for column in order_by)
    names = ", ".join(quoted(column) for column in staged)
    return [
        Rows(
            f"CREATE TEMPORARY TABLE {name} ({', '.join([*columns, f'{_STEP} bigint'])}) "
            "ON COMMIT DROP",
            (),
        ),
        Rows(
            f"INSERT INTO {name} SELECT {names}, rank() OVER (ORDER BY {order}) FROM ({rows.sql}) "
            "AS rows",
            rows.parameters,
        ),
        Rows(f"CREATE INDEX ON {name} ({_STEP})", ()),
        Rows(f"ANALYZE {name}", ()),
    ]


def steps(name: str, first: int, last: int, only: tuple[str, str] | None) -> Rows:
    """Select the rows of these steps; ``only`` where a column has a value."""
    sql = f"SELECT * FROM {name} WHERE {_STEP} BETWEEN {first:d} AND {last:d}"
    return Rows(sql, ()) if only is None else Rows(f"{sql} AND {quoted(only[0])} = %s", (only[1],))


def by_table(rows: Rows, column: str) -> Rows:
    """Count the rows for each value of ``column``, which names tables."""
    named_in = quoted(column)
    return Rows(
        f"SELECT {named_in}, count(*) FROM ({rows.sql}) AS rows GROUP BY {named_in}",
        rows.parameters,
    )


def kept(rows: Rows, merge: Merge) -> Rows:
    """Select the rows that are written: a delete has no more than its key."""
    if merge.op_column is None:
        return rows
    return Rows(f"SELECT * FROM ({rows.sql}) AS rows WHERE NOT {_deletes(merge)}", rows.parameters)


def longest(rows: Rows, limited: Sequence[Written]) -> Rows:
    """A server cuts spaces beyond a limit silently."""
    lengths = ", ".join(f"max(char_length({quoted(column.name)}))" for column in limited)
    return Rows(f"SELECT {lengths} FROM ({rows.sql}) AS rows", rows.parameters)


def out_of_form(rows: Rows, written: Sequence[Written]) -> Rows:
    """Count the texts of each of these columns that do not match its pattern."""
    counts = ", ".join(f"count(*) FILTER (WHERE {quoted(one.name)} !~ %s)" for one in written)
    patterns = (one.pattern for one in written)
    return Rows(f"SELECT {counts} FROM ({rows.sql}) AS rows", (*patterns, *rows.parameters))


def append(rows: Rows, table: Table, written: Sequence[Written]) -> Rows:
    """Add them all."""
    names = ", ".join(quoted(column.name) for column in written)
    return Rows(
        f"INSERT INTO {_in_statement(table)} ({names}) SELECT {_values(written)} FROM "
        f"({rows.sql}) AS rows",
        rows.parameters,
    )


def looked_at(rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
    null = " OR ".join(f"{quoted(name)} IS NULL" for name in merge.key)
    keys = ", ".join(quoted(name) for name in merge.key)
    op = "NULL" if merge.op_column is None else quoted(merge.op_column)
    operations = ", ".join(f"'{word}'" for word in (*DELETES, *WRITES))
    odd = (
        "count(*) FILTER (WHERE false)"
        if merge.op_column is None
        else f"count(*) FILTER (WHERE {op} IS NULL OR {op} NOT IN ({operations}))"
    )
    return Rows(
        f"{_last(rows, written, merge)} SELECT (SELECT count(*) FROM rows), (SELECT count(*) FROM "
        f"rows WHERE {null}), (SELECT {odd} FROM rows), count(*), count(DISTINCT ({keys})), "
        f"count(*) FILTER (WHERE {_DELETED}) FROM last",
        rows.parameters,
    )


def delete(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
    """Delete the rows whose last change is a delete."""
    return Rows(
        f"{_last(rows, written, merge)} DELETE FROM {_in_statement(table)} AS target USING last "
        f"WHERE {_same(merge)} AND {_DELETED}",
        rows.parameters,
    )


def upsert(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> list[Rows]:
    """Upsert the last row of each key, except deletes."""
    names = ", ".join(quoted(column.name) for column in written)
    keys = ", ".join(quoted(name) for name in merge.key)
    # Where there is nothing but a key, that: DO NOTHING would leave the row another batch's, and
    # not count it.
    news = [quoted(column.name) for column in written if column.name not in merge.key] or [
        quoted(merge.key[0])
    ]
    then = ", ".join(f"{name} = excluded.{name}" for name in news)
    sql = (
        f"{_last(rows, written, merge)} INSERT INTO {_in_statement(table)} ({names}) SELECT "
        f"{names} FROM last WHERE NOT {_DELETED} ORDER BY onceward_place ON CONFLICT ({keys}) DO "
        f"UPDATE SET {then}"
    )
    return [Rows(sql, rows.parameters)]


def present(rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
    return Rows(
        f"{_last(rows, written, merge)} SELECT count(*) FILTER (WHERE {_DELETED}), count(*) "
        f"FILTER (WHERE NOT {_DELETED}) FROM last JOIN {_in_statement(table)} AS target ON "
        f"{_same(merge)}",
        rows.parameters,
    )


_DELETED = "onceward_deletes"
_STEP = "onceward_step"


def _same(merge: Merge) -> str:
    return " AND ".join(f"target.{quoted(name)} = last.{quoted(name)}" for name in merge.key)


def _last(rows: Rows, written: Sequence[Written], merge: Merge) -> str:
    """Return two CTEs: ``rows``, and of them the ``last`` of each key, in the table's types.
    Equally late rows are all kept, so that a tie can be detected.
    """
    deletes = _deletes(merge)
    values = ", ".join(
        f"{_value(column) if column.name in merge.key else _unless(deletes, column)} AS "
        f"{quoted(column.name)}"
        for column in written
    )
    casts = {column.name: column for column in written}
    keys = ", ".join(_value(casts[name]) for name in merge.key)
    sorted_by = [_sorted(name, merge.staged) for name in merge.order_by]
    order = f" ORDER BY {', '.join(f'{value} DESC NULLS LAST' for value in sorted_by)}"
    first = ", ".join(f"{value} NULLS FIRST" for value in sorted_by)
    place = f"rank() OVER ({'ORDER BY ' if first else ''}{first}) AS onceward_place"
    late = f"rank() OVER (PARTITION BY {keys}{order if merge.order_by else ''})"
    ranked = (
        f"SELECT {values}, {deletes} AS {_DELETED}, {late} AS onceward_late, {place} FROM rows"
    )
    return (
        f"WITH rows AS ({rows.sql}), ranked AS ({ranked}), last AS (SELECT * FROM ranked WHERE "
        "onceward_late = 1)"
    )


def _deletes(merge: Merge) -> str:
    """Say whether a row is a delete."""
    if merge.op_column is None:
        return "false"
    words = ", ".join(f"'{word}'" for word in DELETES)
    return f"coalesce({quoted(merge.op_column)} IN ({words}), false)"


def _unless(deletes: str, column: Written) -> str:
    """Leave a delete's values alone: what stands beside its key need not fit the table."""
    if column.cast is None or deletes == "false":
        return _value(column)
    return f"CASE WHEN NOT {deletes} THEN {_value(column)} END"


def _sorted(name: str, staged: Mapping[str, str]) -> str:
    """Sort texts by their bytes, as Spark does, and not by the language of the database."""
    is_text = staged[name].removesuffix("[]") == "text"
    return f'{quoted(name)} COLLATE "C"' if is_text else quoted(name)


def _values(written: Sequence[Written]) -> str:
    return ", ".join(_value(column) for column in written)


def _value(column: Written) -> str:
    return (
        quoted(column.name)
        if column.cast is None
        else f"{quoted(column.name)}::{column.cast.replace('%', '%%')}"
    )


def _in_statement(table: Table) -> str:
    return table.sql.replace("%", "%%")
