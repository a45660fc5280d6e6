"""A row's text, one object of JSON, becomes the columns of its table, or a verdict that names the
column. Driver only; called by :mod:`encoding` and :mod:`table_rows` for the columns ``before`` and
``after`` of ``ow.mysql_changes``.

Unlike records that others wrote, a row has just the columns of its table: one that the schema does
not have is no surplus but a schema that is out of date. One that is missing is one that was not
there yet, or not any more: a batch may have rows from before an ALTER TABLE and from after it. So
it is null, or an error where it must not be.
"""

from __future__ import annotations

import uuid

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from onceward.errors import UnsupportedSchema
from onceward.formats.debezium.changes import stop
from onceward.formats.debezium.types import TEXT
from onceward.formats.json.plan import STRICTLY
from onceward.formats.validation import quoted, with_one


class Images:
    """The rows of one table.

    :param schema: its columns.
    :raises UnsupportedSchema: a type that a column's text cannot be.
    """

    def __init__(self, schema: StructType, tag: str) -> None:
        if (why := TEXT.why_not(schema)) is not None:
            raise UnsupportedSchema(
                f"rows of a table are not read by this schema: {why}",
                next_step="take another type for the column",
            )
        self._schema = schema
        self._tag = tag
        self._bad = f"onceward_{uuid.uuid4().hex}"
        read = TEXT.read_as(schema)
        assert isinstance(read, StructType)  # noqa: S101 — it was one
        self._read_as = StructType([*read.fields, StructField(self._bad, StringType())])

    def added(self, changes: DataFrame, text: Column, name: str) -> DataFrame:
        """Add a column ``name``: the struct of the row that is ``text``, null where that is null.

        A row that is none of this table fails the job that meets it.
        """
        beside = f"{name}_read"
        how = {**STRICTLY, "columnNameOfCorruptRecord": self._bad}
        value = F.col(quoted(f"{name}_text"))
        read = with_one(
            changes.withColumn(f"{name}_text", text),
            F.from_json(value, self._read_as, how),
            beside,
        )
        row = F.col(quoted(beside))
        fields = F.struct(*TEXT.convert_fields(row, self._schema))
        checked = F.when(value.isNull(), F.lit(None)).when(self._fits(row, value), fields)
        stops = F.raise_error(stop(self._tag, "schema", self._why(row, value), _NEXT_STEP))
        return with_one(read, checked.otherwise(stops), name).drop(beside, f"{name}_text")

    # below

    def _fits(self, row: Column, text: Column) -> Column:
        # One expression, so that the text is walked through once: again only where a row lacks a
        # column. By bytes, as Spark sorts, and not by code units.
        keys = F.sort_array(F.json_object_keys(text))
        judged = row.getField(self._bad).isNull()
        judged &= (
            keys == F.array(*map(F.lit, sorted(self._schema.names)))
        ) | self._is_older_or_later(keys)
        for field in self._schema.fields:
            condition = TEXT.fits(row.getField(field.name), field.dataType, field.nullable)
            judged = judged if condition is None else judged & condition
        return F.coalesce(judged, F.lit(False))

    def _names(self) -> Column:
        return F.array(*(F.lit(name) for name in self._schema.names))

    def _is_older_or_later(self, keys: Column) -> Column:
        """Return whether it is a row of the table before a column was added, or after it was
        dropped."""
        no_others = F.size(F.array_except(keys, self._names())) == 0
        enough = F.size(F.array_except(self._required(), keys)) == 0
        return no_others & enough & (F.size(keys) == F.size(F.array_distinct(keys)))

    def _required(self) -> Column:
        names = [F.lit(field.name) for field in self._schema.fields if not field.nullable]
        return F.array(*names).cast("array<string>")

    def _why(self, row: Column, text: Column) -> Column:
        keys = F.json_object_keys(text)
        surplus = F.array_except(keys, self._names())
        missing = F.array_except(self._required(), keys)
        reason = (
            F.when(keys.isNull(), F.lit("the row is no object of JSON"))
            .when(
                F.size(surplus) > 0,
                F.concat(F.lit("schema= has no column "), F.array_join(surplus, ", ")),
            )
            .when(
                F.size(missing) > 0,
                F.concat(F.lit("the row has no column "), F.array_join(missing, ", ")),
            )
        )
        values = F.from_json(text, "map<string, variant>", STRICTLY)
        for field in self._schema.fields:
            value, read = values.getItem(field.name), row.getField(field.name)
            condition = TEXT.fits(read, field.dataType, field.nullable)
            unread = read.isNull() & value.isNotNull() & ~F.is_variant_null(value)
            bad = unread if condition is None else unread | ~F.coalesce(condition, F.lit(False))
            message = f"column {field.name} is not {field.dataType.simpleString()}"
            reason = reason.when(
                F.coalesce(bad, F.lit(False)),
                F.lit(message if field.nullable else f"{message} NOT NULL"),
            )
        return reason.otherwise(F.lit("the row is not what schema= says"))


_NEXT_STEP = (
    "correct schema= to what the table's columns are and start again; nothing of the batch was "
    "written. A column that was added or dropped stands there as one that may be null: rows from "
    "before or after have no such column"
)
