"""What a user's ``read`` returned, as Arrow in exactly the declared schema, or refused by name.
Pure.

Called by :mod:`onceward.custom.resettable.ranges` and by tasks. Nothing becomes null, is cut or is
left out: Spark itself would fill in null for a key that a dict lacks, and take columns by place
where Arrow has them by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from onceward.custom.resettable.values import Check, Unfit, field_check, struct_check
from onceward.errors import InvalidColumn, InvalidRow, SourceContractViolated

_ADVICE = "correct what read() returns, or the schema; nothing of these rows was written"


class Fitting:
    """Makes tables of one schema.

    :raises InvalidColumn: a column has a type that a source cannot have.
    """

    def __init__(self, schema: StructType) -> None:
        self._names = schema.fieldNames()
        self._checks = {field.name: field_check(field) for field in schema.fields}
        unknown = [field.name for field in schema.fields if self._checks[field.name] is None]
        row_check = struct_check(schema)
        if unknown or row_check is None or not self._names:
            raise InvalidColumn(
                f"the schema {schema.simpleString()} has columns that a source cannot have: "
                f"{', '.join(unknown)}"
                if unknown
                else f"the schema {schema.simpleString()} has no column, or two of one name",
                next_step="use booleans, numbers, strings, binary, dates, timestamps, intervals "
                "of days, arrays, maps and structs; each column once",
            )
        self._row_check: Check = row_check
        self.arrow: pa.Schema = arrow_schema(schema)

    def table(self, rows: Any, at_most: int) -> pa.Table:
        """Convert ``rows`` (a Table, a RecordBatch, or an iterable of tuples, dicts or Rows) to
        the schema.

        Of an iterable no more than ``at_most`` and one are taken: the caller counts them.

        :raises InvalidRow: a row does not fit.
        :raises SourceContractViolated: ``rows`` is none of these.
        """
        if isinstance(rows, pa.RecordBatch):
            rows = pa.Table.from_batches([rows])
        if isinstance(rows, pa.Table):
            return self._from_arrow(_copied(rows))
        if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
            raise SourceContractViolated(
                f"read() returned {type(rows).__name__} for rows",
                next_step="return a pyarrow Table or RecordBatch, or a list of tuples or dicts",
            )
        fitting = [
            self._row(row, number)
            for number, row in enumerate(itertools.islice(rows, at_most + 1))
        ]
        columns = [self._column(name, [row[name] for row in fitting]) for name in self._names]
        return pa.Table.from_arrays(columns, schema=self.arrow)

    def _row(self, row: Any, number: int) -> Any:
        try:
            return self._row_check(row)
        except Unfit as unfit:
            raise _unfit(number, unfit) from None

    def _column(self, name: str, values: list[Any]) -> pa.Array:
        kind = self.arrow.field(name).type
        try:
            return pa.array(values, type=kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            number = next((n for n, value in enumerate(values) if not _is_taken(value, kind)), 0)
            raise _unfit(number, Unfit(f"does not fit {kind}: {error}", f".{name}")) from None

    # Arrow

    def _from_arrow(self, table: pa.Table) -> pa.Table:
        if sorted(table.column_names) != sorted(self._names):
            raise InvalidRow(
                f"read() returned the columns {', '.join(table.column_names)}, and the schema has "
                f"{', '.join(self._names)}",
                next_step=_ADVICE,
            )
        return pa.Table.from_arrays(
            [self._arrow_column(name, table.column(name)) for name in self._names],
            schema=self.arrow,
        )

    def _arrow_column(self, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
        wanted = self.arrow.field(name)
        kind = wanted.type
        if column.null_count and not wanted.nullable:
            number = column.is_null().to_pylist().index(True)
            raise _unfit(number, Unfit("is null, and the schema says NOT NULL", f".{name}"))
        try:
            # Of a string that is not UTF-8 the JVM would make something else
            column.validate(full=True)
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            if pa.types.is_nested(kind):
                safe = _without_nanoseconds(column.type, kind)
                values = column if column.type.equals(safe) else column.cast(safe, safe=True)
                return pa.chunked_array([self._nested(name, values.to_pylist(), kind)])
            _must_keep_values(column.type, kind)
            return column if column.type.equals(kind) else column.cast(kind, safe=True)
        except Unfit as unfit:
            raise _unfit(None, unfit.inside(f".{name}")) from None
        # Python's years end at 9999
        except (pa.ArrowException, ArithmeticError, ValueError) as error:
            raise _unfit(None, Unfit(f"does not fit {kind}: {error}", f".{name}")) from None

    def _nested(self, name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
        check = self._checks[name]
        assert check is not None  # noqa: S101 — no schema has such a column
        number = 0
        fitting = []
        try:
            for number, value in enumerate(values):  # noqa: B007 — said in the refusal
                fitting.append(check(value))
        except Unfit as unfit:
            raise _unfit(number, unfit.inside(f".{name}")) from None
        return pa.array(fitting, type=kind)


def _copied(table: pa.Table) -> pa.Table:
    """Copy rows to memory of our own: ``read`` may fill numpy's buffer beneath them again."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


def arrow_schema(schema: StructType) -> pa.Schema:
    """Convert a schema as Spark's data sources do; since 4.2 with a zone that the JVM ignores."""
    options: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    )
    return to_arrow_schema(schema, **options)


_LISTS = (
    (pa.types.is_list, pa.list_),
    (pa.types.is_large_list, pa.large_list),
    (pa.types.is_list_view, pa.list_view),
    (pa.types.is_large_list_view, pa.large_list_view),
)


def _without_nanoseconds(source: pa.DataType, target: pa.DataType) -> pa.DataType:
    """Return the nested type ``source`` with the times and dates of ``target``: as Python values
    they might be cut, or not be there at all.

    :raises Unfit: times or floating-point numbers in it are of another type than ``target``'s.
    """
    kinds = pa.types
    for is_kind, list_of in _LISTS:
        if is_kind(source) and kinds.is_list(target):
            return list_of(_inner(source.value_field, target.value_type, "[]"))
    if kinds.is_fixed_size_list(source) and kinds.is_list(target):
        inner = _inner(source.value_field, target.value_type, "[]")
        return pa.list_(inner, source.list_size)
    if kinds.is_map(source) and kinds.is_map(target):
        return pa.map_(
            _inner(source.key_field, target.key_type, "[key]"),
            _inner(source.item_field, target.item_type, "[]"),
        )
    if kinds.is_struct(source) and kinds.is_struct(target):
        wants = {field.name: field.type for field in target}
        return pa.struct(
            _inner(field, wants[field.name], f".{field.name}") if field.name in wants else field
            for field in source
        )
    plain = source.value_type if kinds.is_dictionary(source) else source
    if kinds.is_timestamp(plain) or kinds.is_duration(plain):
        _must_keep_values(plain, target)
        return target
    if kinds.is_date(plain) and kinds.is_date(target):
        return target
    if kinds.is_floating(plain) and kinds.is_floating(target):
        _must_keep_values(plain, target)
    # Whatever else does not fit is said of the first value that does not
    return source


def _inner(field: pa.Field, target: pa.DataType, step: str) -> pa.Field:
    try:
        return field.with_type(_without_nanoseconds(field.type, target))
    except Unfit as unfit:
        raise unfit.inside(step) from None


def _must_keep_values(source: pa.DataType, target: pa.DataType) -> None:
    """Refuse a type unless a safe cast of it either keeps every value or raises."""
    kinds = pa.types
    keeps = source.equals(target) or kinds.is_null(source)
    keeps = keeps or any(is_kind(source) and wanted(target) for is_kind, wanted in _KEPT)
    if kinds.is_floating(source) and kinds.is_floating(target):
        keeps = source.bit_width <= target.bit_width
    if kinds.is_timestamp(source) and kinds.is_timestamp(target):
        keeps = (source.tz is None) == (target.tz is None)
    if not keeps:
        raise Unfit(f"is {source}, and the schema wants {target}")


_KEPT = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_string, pa.types.is_string),
    (pa.types.is_large_string, pa.types.is_string),
    (pa.types.is_string_view, pa.types.is_string),
    (pa.types.is_binary, pa.types.is_binary),
    (pa.types.is_large_binary, pa.types.is_binary),
    (pa.types.is_binary_view, pa.types.is_binary),
    (pa.types.is_fixed_size_binary, pa.types.is_binary),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_duration, pa.types.is_duration),
)


def _is_taken(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], type=kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True


def _unfit(number: int | None, unfit: Unfit) -> InvalidRow:
    where = "" if number is None else f"row {number} of what read() returned"
    column = unfit.path.removeprefix(".")
    place = f"column {column}" + (f" in {where}" if where else "") if column else where
    return InvalidRow(
        f"{place} {unfit.why}",
        next_step=_ADVICE,
        details={"column": column, "row": number},
    )
