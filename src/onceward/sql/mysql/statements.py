"""The SQL of a batch, for MySQL and MariaDB. Pure: text and parameters (``%s``).

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
from onceward.sql.sink.dialect import DELETED, STEP, Statements, in_statement, words

ROW = "onceward_row"
"""Column of a staging table: the row's number in its task attempt. With it every row has a key,
which some servers require of every table, and tasks do not wait for each other's.
"""

_TYPES = {TEXT: "longtext CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", MOMENT: "datetime(6)"}


class MySQLStatements(Statements):
    """See the module."""

    mark = "`"

    def exact(self, text: str) -> str:
        return f"CAST({text} AS BINARY)"

    def value(self, column: Written) -> str:
        return self.quoted(column.name)

    def staging_table(
        self, sql_name: str, staged: Mapping[str, str], temporary: bool = False
    ) -> str:
        kind = "TEMPORARY TABLE" if temporary else "TABLE"
        columns = [
            *self._columns(staged),
            f"{TASK} bigint NOT NULL",
            f"{ROW} bigint NOT NULL",
            f"PRIMARY KEY ({TASK}, {ROW})",
        ]
        return f"CREATE {kind} {sql_name} ({', '.join(columns)}) ENGINE = InnoDB"

    def _columns(self, staged: Mapping[str, str]) -> list[str]:
        return [
            f"{self.quoted(name)} {_TYPES.get(kind, kind)} NULL" for name, kind in staged.items()
        ]

    def staged_by(self, tasks: Sequence[int]) -> Rows:
        numbers = ", ".join(str(int(task)) for task in tasks) or "NULL"
        return Rows(f"{TASK} IN ({numbers})", ())

    def number_steps(
        self, name: str, staged: Mapping[str, str], rows: Rows, order_by: Sequence[str]
    ) -> list[Rows]:
        columns = [
            *self._columns(staged),
            f"{ROW} bigint NOT NULL AUTO_INCREMENT PRIMARY KEY",
            f"{STEP} bigint NOT NULL",
            f"KEY ({STEP})",
        ]
        order = ", ".join(self._sorted(column, staged) for column in order_by)  # nulls come first
        names = ", ".join(map(self.quoted, staged))
        return [
            Rows(f"DROP TEMPORARY TABLE IF EXISTS {name}", ()),
            Rows(f"CREATE TEMPORARY TABLE {name} ({', '.join(columns)}) ENGINE = InnoDB", ()),
            Rows(
                f"INSERT INTO {name} ({names}, {STEP}) SELECT {names}, "
                f"RANK() OVER (ORDER BY {order}) FROM ({rows.sql}) AS staged",
                rows.parameters,
            ),
        ]

    def most_bytes(self, rows: Rows, limited: Sequence[Written]) -> Rows:
        """Select the bytes of each of these columns' longest value, as the table stores it."""
        lengths = ", ".join(f"MAX(OCTET_LENGTH({self._stored(column)}))" for column in limited)
        return Rows(f"SELECT {lengths} FROM ({rows.sql}) AS staged", rows.parameters)

    def nulls(self, rows: Rows, written: Sequence[Written]) -> Rows:
        """Count the nulls of each of these columns."""
        names = (self.quoted(column.name) for column in written)
        counts = ", ".join(f"COALESCE(SUM({name} IS NULL), 0)" for name in names)
        return Rows(f"SELECT {counts} FROM ({rows.sql}) AS staged", rows.parameters)

    def no_label(self, rows: Rows, column: Written) -> Rows:
        """Count the values that are none of the column's labels, letter by letter."""
        labels = ", ".join(self.exact("%s") for _ in column.labels)
        return Rows(
            f"SELECT COUNT(*) FROM (SELECT {self.exact(self.quoted(column.name))} AS label FROM "
            f"({rows.sql}) AS staged) AS labels WHERE label NOT IN ({labels})",
            (*rows.parameters, *column.labels),
        )

    def no_place(self, rows: Rows, column: Written) -> Rows:
        """Count texts with a character outside the column's character set, stored as ``?``."""
        name = self.quoted(column.name)
        back = f"CONVERT({self._stored(column)} USING utf8mb4)"
        # Not cast to bytes: MariaDB cuts what is longer than max_allowed_packet then.
        return Rows(
            f"SELECT COUNT(*) FROM ({rows.sql}) AS staged WHERE {back} COLLATE utf8mb4_bin <> "
            f"{name}",
            rows.parameters,
        )

    def looked_at(self, rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
        keys = [_key(number) for number in range(len(merge.key))]
        null = " OR ".join(f"{key} IS NULL" for key in keys)
        return Rows(
            f"SELECT COUNT(*), COALESCE(SUM({null}), 0), COALESCE(SUM(onceward_odd), 0), "
            f"COALESCE(SUM(onceward_late = 1), 0), COUNT(DISTINCT {', '.join(keys)}), "
            f"COALESCE(SUM(onceward_late = 1 AND {DELETED}), 0) FROM "
            f"({self._ranked(rows, written, merge)}) AS ranked",
            rows.parameters,
        )

    def sorted_bytes(self, rows: Rows, written: Sequence[Written], merge: Merge) -> Rows:
        """Select, for the key's columns as the table compares them and for those that order, the
        sort bytes of the longest value; null for columns that are not text.
        """
        columns = {column.name: column for column in written}
        values = [f"WEIGHT_STRING({self._compared(columns[name])})" for name in merge.key]
        for name in merge.order_by:
            by_bytes = merge.staged[name] == TEXT
            values.append(self.quoted(name) if by_bytes else f"WEIGHT_STRING({self.quoted(name)})")
        most = ", ".join(f"MAX(OCTET_LENGTH({value}))" for value in values)
        return Rows(f"SELECT {most} FROM ({rows.sql}) AS staged", rows.parameters)

    def delete(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        return Rows(
            f"DELETE target FROM {in_statement(table)} AS target JOIN "
            f"({self._last(rows, written, merge)} AND {DELETED}) AS latest ON {self._same(merge)}",
            rows.parameters,
        )

    def upsert(
        self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge
    ) -> list[Rows]:
        names = [self.quoted(column.name) for column in written]
        first_key = f"target.{self.quoted(merge.key[0])}"
        news = [self.quoted(column.name) for column in written if column.name not in merge.key]
        values = (
            ", ".join(f"target.{name} = latest.{name}" for name in news)
            or f"{first_key} = {first_key}"
        )
        latest = f"({self._last(rows, written, merge)} AND NOT {DELETED}) AS latest"
        same = self._same(merge)
        return [
            Rows(
                f"UPDATE {in_statement(table)} AS target JOIN {latest} ON {same} SET {values}",
                rows.parameters,
            ),
            Rows(
                f"INSERT INTO {in_statement(table)} ({', '.join(names)}) SELECT "
                f"{', '.join(f'latest.{name}' for name in names)} FROM {latest} LEFT JOIN "
                f"{in_statement(table)} AS target ON {same} WHERE {first_key} IS NULL ORDER "
                "BY latest.onceward_place",
                rows.parameters,
            ),
        ]

    def present(self, rows: Rows, table: Table, written: Sequence[Written], merge: Merge) -> Rows:
        return Rows(
            f"SELECT COALESCE(SUM({DELETED}), 0), COALESCE(SUM(NOT {DELETED}), 0) FROM "
            f"({self._last(rows, written, merge)}) AS latest JOIN {in_statement(table)} AS target "
            f"ON {self._same(merge)}",
            rows.parameters,
        )

    def _same(self, merge: Merge) -> str:
        pairs = enumerate(map(self.quoted, merge.key))
        return " AND ".join(f"target.{name} = latest.{_key(number)}" for number, name in pairs)

    def _last(self, rows: Rows, written: Sequence[Written], merge: Merge) -> str:
        """Select the last row of each key; all of equally late ones. Ends in a WHERE."""
        ranked = self._ranked(rows, written, merge)
        return f"SELECT * FROM ({ranked}) AS ranked WHERE onceward_late = 1"

    def _ranked(self, rows: Rows, written: Sequence[Written], merge: Merge) -> str:
        """Select the rows with their keys, as the table compares them, and ranks from the last."""
        columns = {column.name: column for column in written}
        keys = [self._compared(columns[name]) for name in merge.key]
        key_columns = [f"{key} AS {_key(number)}" for number, key in enumerate(keys)]
        late = place = "1"
        if merge.order_by:  # nulls come first
            sorted_by = [self._sorted(name, merge.staged) for name in merge.order_by]
            order = ", ".join(f"{column} DESC" for column in sorted_by)
            late = f"RANK() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order})"
            place = f"RANK() OVER (ORDER BY {', '.join(sorted_by)})"
        odd = "0"
        if merge.op_column is not None:
            op = self.exact(self.quoted(merge.op_column))
            odd = f"({op} IS NULL OR {op} NOT IN ({words((*DELETES, *WRITES))}))"
        values = [
            self.names(written),
            *key_columns,
            f"{self.deletes(merge)} AS {DELETED}",
            f"{odd} AS onceward_odd",
            f"{late} AS onceward_late",
        ]
        return f"SELECT {', '.join(values)}, {place} AS onceward_place FROM ({rows.sql}) AS staged"

    def _compared(self, column: Written) -> str:
        value = self._stored(column)
        return value if column.collation is None else f"{value} COLLATE {column.collation}"

    def _stored(self, column: Written) -> str:
        name = self.quoted(column.name)
        return f"CONVERT({name} USING {column.charset})" if column.charset else name

    def _sorted(self, name: str, staged: Mapping[str, str]) -> str:
        """Sort texts by their bytes, as Spark does: a collation may ignore spaces at the end."""
        return self.exact(self.quoted(name)) if staged[name] == TEXT else self.quoted(name)


STATEMENTS = MySQLStatements()


def _key(number: int) -> str:
    return f"onceward_key_{number}"
