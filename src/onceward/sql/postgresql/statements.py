"""The SQL of a batch, for PostgreSQL. Pure: text and parameters, in psycopg's manner (``%s``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.engine.policy import DELETES, WRITES
from onceward.sql.sink.columns import TASK, Merge, Rows, Table, Written
from onceward.sql.sink.dialect import DELETED, STEP, Statements, in_statement, words


class PostgreSQLStatements(Statements):
    """See the module."""

    mark = '"'

    def exact(self, text: str) -> str:
        return text

    def value(self, column: Written) -> str:
        name = self.quoted(column.name)
        return name if column.cast is None else f"{name}::{column.cast.replace('%', '%%')}"

    def staging_table(self, sql_name: str, staged: Mapping[str, str]) -> str:
        # The frame's types, not the target's: a binary COPY does not convert, and stores other
        # values without an error where widths agree (eight bytes are a bigint, a double or a
        # timestamp). The INSERT … SELECT from here casts.
        columns = [f"{self.quoted(name)} {kind}" for name, kind in staged.items()]
        columns.append(f"{TASK} bigint NOT NULL")
        return f"CREATE UNLOGGED TABLE {sql_name} ({', '.join(columns)})"

    def staged_by(self, tasks: Sequence[int]) -> Rows:
        return Rows(f"{TASK} = ANY(%s)", (list(tasks),))

    def held_rows(self, staged: Mapping[str, str], values: Mapping[str, Sequence[Any]]) -> Rows:
        """Select the driver's rows: one list for each column, times as numbers."""
        arrays: list[str] = []
        columns: list[str] = []
        casts: list[str] = []
        parameters: list[list[Any]] = []
        for name, kind in staged.items():
            column = self.quoted(name)
            time = _TIMES.get(kind)
            for place, (sent_as, numbers) in enumerate(_sent(kind, values[name])):
                arrays.append(f"%s::{sent_as}[]")
                columns.append(f'"onceward_{len(columns)}"' if place else column)
                parameters.append(numbers)
            casts.append(
                column if time is None else f"{time.format(column, columns[-1])} AS {column}"
            )
        selection = ", ".join(casts) if any(kind in _TIMES for kind in staged.values()) else "*"
        return Rows(
            f"SELECT {selection} FROM unnest({', '.join(arrays)}) AS held({', '.join(columns)})",
            tuple(parameters),
        )

    def number_steps(
        self, name: str, staged: Mapping[str, str], rows: Rows, order_by: Sequence[str]
    ) -> list[Rows]:
        columns = [f"{self.quoted(column)} {kind}" for column, kind in staged.items()]
        order = ", ".join(f"{self._sorted(column, staged)} NULLS FIRST" for column in order_by)
        names = ", ".join(map(self.quoted, staged))
        return [
            Rows(
                f"CREATE TEMPORARY TABLE {name} ({', '.join([*columns, f'{STEP} bigint'])}) "
                "ON COMMIT DROP",
                (),
            ),
            Rows(
                f"INSERT INTO {name} SELECT {names}, rank() OVER (ORDER BY {order}) FROM "
                f"({rows.sql}) AS rows",
                rows.parameters,
            ),
            Rows(f"CREATE INDEX ON {name} ({STEP})", ()),
            Rows(f"ANALYZE {name}", ()),
        ]

    def out_of_form(self, rows: Rows, written: Sequence[Written]) -> Rows:
        """Count the texts of each of these columns that do not match its pattern."""
        counts = ", ".join(
            f"count(*) FILTER (WHERE {self.quoted(one.name)} !~ %s)" for one in written
        )
        patterns = (one.pattern for one in written)
        return Rows(f"SELECT {counts} FROM ({rows.sql}) AS rows", (*patterns, *rows.parameters))

    def looked_at(self, rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
        null = " OR ".join(f"{self.quoted(name)} IS NULL" for name in merge.key)
        keys = ", ".join(map(self.quoted, merge.key))
        odd = "false"
        if merge.op_column is not None:
            op = self.quoted(merge.op_column)
            odd = f"{op} IS NULL OR {op} NOT IN ({words((*DELETES, *WRITES))})"
        return Rows(
            f"{self._last(rows, written, merge)} SELECT (SELECT count(*) FROM rows), (SELECT "
            f"count(*) FROM rows WHERE {null}), (SELECT count(*) FILTER (WHERE {odd}) FROM rows), "
            f"count(*), count(DISTINCT ({keys})), count(*) FILTER (WHERE {DELETED}) FROM last",
            rows.parameters,
        )

    def delete(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        return Rows(
            f"{self._last(rows, written, merge)} DELETE FROM {in_statement(table)} AS target "
            f"USING last WHERE {self._same(merge)} AND {DELETED}",
            rows.parameters,
        )

    def upsert(
        self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge
    ) -> list[Rows]:
        names, keys = self.names(written), ", ".join(map(self.quoted, merge.key))
        # Only a key: DO NOTHING would leave the row another batch's, and not count it.
        news = [column.name for column in written if column.name not in merge.key]
        then = ", ".join(
            f"{name} = excluded.{name}" for name in map(self.quoted, news or merge.key[:1])
        )
        sql = (
            f"{self._last(rows, written, merge)} INSERT INTO {in_statement(table)} ({names}) "
            f"SELECT {names} FROM last WHERE NOT {DELETED} ORDER BY onceward_place ON CONFLICT "
            f"({keys}) DO UPDATE SET {then}"
        )
        return [Rows(sql, rows.parameters)]

    def present(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        return Rows(
            f"{self._last(rows, written, merge)} SELECT count(*) FILTER (WHERE {DELETED}), "
            f"count(*) FILTER (WHERE NOT {DELETED}) FROM last JOIN {in_statement(table)} AS "
            f"target ON {self._same(merge)}",
            rows.parameters,
        )

    def _same(self, merge: Merge) -> str:
        names = map(self.quoted, merge.key)
        return " AND ".join(f"target.{name} = last.{name}" for name in names)

    def _last(self, rows: Rows, written: Sequence[Written], merge: Merge) -> str:
        """Return two CTEs: ``rows``, and of them the ``last`` of each key, in the table's types.
        Equally late rows are all kept, so that a tie can be detected.
        """
        deletes = self.deletes(merge)
        values = ", ".join(
            f"{self.value(column) if column.name in merge.key else self._unless(deletes, column)} "
            f"AS {self.quoted(column.name)}"
            for column in written
        )
        casts = {column.name: column for column in written}
        keys = ", ".join(self.value(casts[name]) for name in merge.key)
        sorted_by = [self._sorted(name, merge.staged) for name in merge.order_by]
        order = f" ORDER BY {', '.join(f'{value} DESC NULLS LAST' for value in sorted_by)}"
        first = ", ".join(f"{value} NULLS FIRST" for value in sorted_by)
        place = f"rank() OVER ({'ORDER BY ' if first else ''}{first}) AS onceward_place"
        late = f"rank() OVER (PARTITION BY {keys}{order if merge.order_by else ''})"
        ranked = (
            f"SELECT {values}, {deletes} AS {DELETED}, {late} AS onceward_late, {place} FROM rows"
        )
        return (
            f"WITH rows AS ({rows.sql}), ranked AS ({ranked}), last AS (SELECT * FROM ranked "
            "WHERE onceward_late = 1)"
        )

    def _unless(self, deletes: str, column: Written) -> str:
        """Leave a delete's values alone: what stands beside its key need not fit the table."""
        if column.cast is None or deletes == "false":
            return self.value(column)
        return f"CASE WHEN NOT {deletes} THEN {self.value(column)} END"

    def _sorted(self, name: str, staged: Mapping[str, str]) -> str:
        """Sort texts by their bytes, as Spark does, and not by the language of the database."""
        is_text = staged[name].removesuffix("[]") == "text"
        return f'{self.quoted(name)} COLLATE "C"' if is_text else self.quoted(name)


STATEMENTS = PostgreSQLStatements()

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
