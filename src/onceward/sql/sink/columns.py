"""Does a frame fit a table? Pure: values in, values out, and errors that name the column.

A column fits if *every* value of its type can be stored in the table's and read back the same.
Whatever depends on the value is left to the server where it refuses what does not fit, and looked
at before where it would not. Which types fit which is a matter of the server:
:mod:`postgresql.catalogue`, :mod:`mysql.catalogue`.

Rows that tasks write straight into a table are looked at here, too
(:func:`must_stay_as_they_are`): the server would change some of their values without a word. Those
of a staging table the server looks at: :meth:`onceward.sql.sink.dialect.Dialect.look_closer`.

Here are also the words that all dialects share (rows on their way, and how they are applied), and
the order in which the tables of a batch are written. A foreign key wants the row that it points at
to be there: parents are written before their children, and rows are deleted the other way round.
In a circle somebody has to be first; then it takes keys that are checked at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructType

from onceward.errors import ColumnMismatch, InvalidColumn, RowRefused, ServerMisconfigured

OWN_TABLE = re.compile(r"\bonceward_(?:(?:staging|rows|held)_\w+|prepared)(?![\w.-]|[\"'`]\.)")
"""In a server's words that a table is missing, in whatever language: one that the sink makes and
drops, and no database or schema of such a name."""

TASK = "onceward_task"
"""Column of a staging table: the row's task attempt. One that no report names does not count."""


class Rows(NamedTuple):
    """A query for a frame's rows, or those for one table; or a statement, with parameters."""

    sql: str
    parameters: tuple[Any, ...]


class Merge(NamedTuple):
    """How rows with a key are applied."""

    key: tuple[str, ...]
    order_by: tuple[str, ...]
    op_column: str | None
    staged: Mapping[str, str]
    """How the columns of the frame are staged."""


def python_values(column: pa.ChunkedArray, name: str) -> list[Any]:
    """Return the values of a column as Python objects."""
    try:
        values: list[Any] = column.to_pylist()
    except UnicodeDecodeError as error:
        raise RowRefused(
            f"a value of column {name!r} is no text: {error}",
            next_step="mend it in the query; is_valid_utf8 finds such",
        ) from error
    return values


def must_stay_as_they_are(rows: pa.Table, written: Sequence[Written], table: str) -> None:
    """Check that the server stores the rows' values unchanged.

    :raises RowRefused: a value would change, naming its column.
    """
    for column in written:
        values = rows.column(column.name)
        if column.longest is not None:
            length = pc.max(pc.utf8_length(values)).as_py()
            must_take(table, column, length, column.longest, "characters")
        if column.most_bytes is not None:
            length = pc.max(pc.binary_length(values)).as_py()
            must_take(table, column, length, column.most_bytes, "bytes")
        if column.never_null and values.null_count:
            raise null_error(table, column, values.null_count)
        if column.labels and not pc.all(_known(values, column.labels), min_count=0).as_py():
            raise label_error(table, column)
        if column.pattern:
            matches = pc.match_substring_regex(values, column.pattern)
            if not pc.all(matches, min_count=0).as_py():
                raise form_error(table, column)


def _known(values: pa.ChunkedArray, labels: Sequence[str]) -> pa.ChunkedArray:
    return pc.or_(pc.is_in(values, value_set=pa.array(labels, values.type)), pc.is_null(values))


def must_take(
    table: str, column: Written, length: int | None, limit: int | None, unit: str
) -> None:
    """:raises RowRefused: the column's longest value is longer than the table's column takes."""
    if length is not None and limit is not None and length > limit:
        raise RowRefused(
            f"a value of column {column.name!r} has {length} {unit}, and table {table} takes "
            f"{limit}",
            next_step="widen the column, or shorten the value in the query; nothing of the batch "
            "was written",
        )


def null_error(table: str, column: Written, count: int) -> RowRefused:
    return RowRefused(
        f"{count} rows for table {table} have a null in column {column.name!r}, for which the "
        "server would put a value of its own",
        next_step="filter them, or leave the column out with drop(…)",
    )


def label_error(table: str, column: Written) -> RowRefused:
    return RowRefused(
        f"rows for table {table} have a value in column {column.name!r} that is none of its "
        f"labels: {', '.join(map(repr, column.labels))}",
        next_step="mend or filter such rows in the query, or change the table",
    )


def form_error(table: str, column: Written) -> RowRefused:
    return RowRefused(
        f"rows for table {table} have a text in column {column.name!r} that is more or less than "
        f"a {column.cast}: the server would drop its zone or its date, round it, or put its own "
        "clock in the place of 'now'",
        next_step="mend or filter such rows in the query: date_format(…, 'HH:mm:ss.SSSSSS') "
        "writes a time of day as it is taken; nothing of the batch was written",
    )


def type_error(name: str, kind: DataType, json_type: str) -> InvalidColumn:
    """:param json_type: the server's type for JSON."""
    return InvalidColumn(
        f"column {name!r} has the type {kind.simpleString()}, which no column of a table can hold "
        "without loss",
        next_step=f"make a string of it with to_json(…), for a column of type {json_type}, or "
        "CAST(… AS STRING), for one of text; map keys that are neither text nor numbers have to "
        "become text before (transform_keys, and hex of bytes), and to_json needs a "
        "timestampFormat where there are microseconds; or leave it out with drop(…)",
    )


def generated_error(table: str, name: str) -> ColumnMismatch:
    return ColumnMismatch(
        f"column {name!r} of table {table} is generated by the server",
        next_step=f"leave it out with drop({name!r})",
    )


def misfit_error(table: str, name: str, ours: str, theirs: str) -> ColumnMismatch:
    return ColumnMismatch(
        f"column {name!r} does not fit: the frame's becomes {ours}, and table {table} has "
        f"{theirs}, which cannot hold all of its values as they are",
        next_step="cast it in the frame to a type that fits, so that what to do with the others "
        "is said there; or change the table's",
    )


def columns_error(message: str) -> InvalidColumn:
    """Return the error for a frame that no table of the server can have the columns of."""
    return InvalidColumn(
        f"{message}: the frame has columns that no table of this server can have",
        next_step="give its columns the names of the table's (alias, withColumnRenamed), and "
        "leave out with drop(…) what is not written",
    )


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, as the server tells it (a domain as what it stands for)."""

    name: str
    type: str
    """In the server's words: ``numeric(10,2)``, ``character varying(3)``, ``bigint unsigned`` …"""
    required: bool = False
    """Rows without it are refused: neither nullable nor with a default."""
    not_null: bool = False
    generated: bool = False
    """The server writes it, and refuses whoever else does."""
    own_equality: bool = False
    """Different values may be the same to the table: by case, or a non-deterministic collation."""
    enum: bool = False
    replaces_null: bool = False
    """The server may put a value of its own in the place of a null."""
    collation: str | None = None
    """By which its values are compared, where that has to be said."""
    charset: str | None = None
    """In which it keeps texts, where not every text has a place in it."""
    no_key: str = ""
    """Why it cannot be part of a key, if so."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the database."""

    name: str
    """As the user calls it."""
    sql: str
    """Schema and name, quoted."""
    columns: tuple[Column, ...]
    unique: tuple[frozenset[str], ...] = ()
    """The columns of each unique index on which a conflict can be found."""
    oid: object = 0
    """What it is to the server, however it is spelled."""
    has_children: bool = False
    """Other tables inherit from it, and no unique index holds for all of them."""
    quote: str = '"'
    """Around a column's name in SQL, for advice."""
    hides_rows: bool = False
    """A policy may keep rows from this login: a DELETE passes over them without a word."""


@dataclass(frozen=True, slots=True)
class Written:
    """A column of the frame on its way into a table."""

    name: str
    cast: str | None = None
    """To what the staged value is cast, where assigning it does not do."""
    longest: int | None = None
    """How many characters the table's column takes; None: any number."""
    most_bytes: int | None = None
    """The same in bytes, where it is counted so and the server does not look."""
    labels: tuple[str, ...] = ()
    """What alone the table's column takes; nothing: whatever its type says."""
    never_null: bool = False
    """The server would put a value of its own in the place of a null."""
    collation: str | None = None
    """By which the table compares it, where that has to be said."""
    charset: str | None = None
    """In which the table keeps it, where not every text has a place in it."""
    pattern: str = ""
    """A regular expression of the texts that keep their meaning, where the server parses others,
    too: in a form that Arrow and the server read alike.
    """


def staged_columns(schema: StructType, staged: Callable[[str, DataType], str]) -> dict[str, str]:
    """Return the columns of a frame, and the types by which they are staged.

    :param staged: the type for a column of that name and type.
    """
    found: dict[str, str] = {}
    for field in schema.fields:
        if field.name in found or field.name.startswith("onceward_"):
            raise InvalidColumn(
                f"column {field.name!r} cannot be written: "
                + (
                    "there are two of that name"
                    if field.name in found
                    else "names with 'onceward_' are the sink's own"
                ),
                next_step="rename it (withColumnRenamed)",
            )
        found[field.name] = staged(field.name, field.dataType)
    return found


def has_room(theirs: Iterable[int], ours: Iterable[int]) -> bool:
    """Return whether a decimal of their digits (in all, behind the point) takes all of ours."""
    (digits, scale), (our_digits, our_scale) = theirs, ours
    return scale >= our_scale and digits - scale >= our_digits - our_scale


Fitting = Callable[[str, str, Column, Table], Written]
"""How a column of that name, staged with that type, goes into the table's column.

Raises :class:`~onceward.errors.InvalidColumn` where it does not.
"""


def fit(
    staged: Mapping[str, str],
    table: Table,
    control: Sequence[str],
    ordering: Sequence[str],
    key: Sequence[str],
    fitting: Fitting,
) -> tuple[Written, ...]:
    """Return which columns of a frame go into ``table``, and how.

    :param staged: as :func:`staged_columns` gives them.
    :param control: columns that are never written.
    :param ordering: columns that are written where the table has them.
    """
    theirs = {column.name: column for column in table.columns}
    for name in (*control, *ordering, *key):
        if name not in staged:
            raise InvalidColumn(
                f"the frame has no column {name!r}",
                next_step=f"add it; the frame has {', '.join(map(repr, staged))}",
            )
    written = []
    for name, kind in staged.items():
        if name in control or (name in ordering and name not in theirs and name not in key):
            continue
        if name not in theirs:
            raise ColumnMismatch(
                f"table {table.name} has no column {name!r}",
                next_step=_alike(name, theirs)
                or f"add it to the table, or leave it out with drop({name!r})",
            )
        written.append(fitting(name, kind, theirs[name], table))
    if not written:
        raise InvalidColumn(
            f"the frame has no column for table {table.name}",
            next_step="add the columns that are to be written",
        )
    for column in table.columns:
        if column.required and column.name not in {one.name for one in written}:
            raise ColumnMismatch(
                f"the frame has no column {column.name!r}, which table {table.name} requires",
                next_step="add it to the frame, or give it a default in the table",
            )
    must_be_a_key(key, table)
    return tuple(written)


def _alike(name: str, theirs: Mapping[str, Column]) -> str | None:
    near = next((other for other in theirs if other.lower() == name.lower()), None)
    return near and f"rename it to {near!r}, as the table spells it"


def must_be_a_key(key: Sequence[str], table: Table) -> None:
    """Check that rows of ``table`` can be told apart by ``key``.

    :raises ServerMisconfigured: not as the table is now.
    :raises InvalidColumn: not by a column of that type.
    """
    if not key:
        return
    if frozenset(key) not in table.unique:
        names = ", ".join(f"{table.quote}{name}{table.quote}" for name in key)
        raise ServerMisconfigured(
            f"table {table.name} has no unique index on just the columns of key=({names}), by "
            "which the server could tell that a row is there",
            next_step=f"ALTER TABLE {table.sql} ADD UNIQUE ({names}); or pass the columns of an "
            "index that it has",
        )
    if table.has_children:
        raise ServerMisconfigured(
            f"other tables inherit from table {table.name}, and no unique index holds over all of "
            "them",
            next_step="use a partitioned table, or one that stands alone; a hypertable of "
            'TimescaleDB, from which its chunks inherit, takes rows with mode="append" alone',
        )
    for column in table.columns:
        if column.name not in key:
            continue
        what = f"column {column.name!r} of table {table.name} is part of the key"
        if column.own_equality:
            raise InvalidColumn(
                f"{what}, and to its type or collation values that differ are the same",
                next_step="use a column of type text or varchar with a deterministic collation as "
                "the key, such as a lower-cased copy",
            )
        if column.no_key:
            raise InvalidColumn(
                f"{what}, and {column.no_key}",
                next_step="use a column of integers, varchar in utf8mb4, varbinary, decimal or "
                "date as the key",
            )
        if not column.not_null:
            raise ServerMisconfigured(
                f"{what} and may be null, and a null is never the same as another",
                next_step=f"declare it NOT NULL, by an ALTER TABLE {table.sql}",
            )


def must_show_all(table: Table) -> None:
    """Check that the login sees all rows of ``table``."""
    if table.hides_rows:
        raise ServerMisconfigured(
            f"table {table.name} has row-level security for this login, so that a row that it may "
            "not see would stay where it is to be deleted, without an error",
            next_step="ALTER ROLE … BYPASSRLS for the login of the sink's url; or CREATE POLICY … "
            "USING (true) for it",
        )


class Reference(NamedTuple):
    """A table and one that a foreign key of it points at, as the server knows them
    (``Table.oid``).

    :cvar waits: the key is checked at the end of the transaction, so that no order has to be kept.
    """

    child: object
    parent: object
    waits: bool = False


class InTable(Protocol):
    """Something that is written to a table."""

    @property
    def table(self) -> Table: ...


P = TypeVar("P", bound=InTable)


def parents_first(parts: Iterable[P], references: Sequence[Reference]) -> list[P]:
    """Sort ``parts`` by their tables' foreign keys, parents first; all else keeps its order."""
    parts = list(parts)
    tables = dict.fromkeys(part.table.oid for part in parts)
    parents: dict[object, list[object]] = {oid: [] for oid in tables}
    for child, parent, waits in references:
        if child in tables and parent in tables and child != parent and not waits:
            parents[child].append(parent)
    places: dict[object, int] = {}
    for oid in tables:
        # Without recursion: chains may be long. A table is left once all its parents have been.
        waiting, visited = [oid], set(places)
        while waiting:
            table = waiting[-1]
            visited.add(table)
            missing = [parent for parent in parents[table] if parent not in visited]
            if missing:
                waiting.append(missing[0])
            else:
                places.setdefault(waiting.pop(), len(places))
    return sorted(parts, key=lambda part: places[part.table.oid])


def circle(references: Sequence[Reference]) -> bool:
    """Return whether foreign keys of different tables, none of which waits, make a circle."""
    tables = TopologicalSorter[object]()
    for child, parent, waits in references:
        if child != parent and not waits:
            tables.add(child, parent)
    try:
        tables.prepare()
    except CycleError:
        return True
    return False
