"""A row's text, one object of JSON, becomes the columns of its table, or a verdict that names the
column: of ``before`` and ``after`` of ``ow.mysql_changes``, for :mod:`encoding`, and for
``ow.debezium.rows``, the changes of one table with its columns, ready for a database. Driver only.

Unlike records that others wrote, a row has just the columns of its table: one that the schema does
not have is no surplus but a schema that is out of date. One that is missing is one that was not
there yet, or not any more: a batch may have rows from before an ALTER TABLE and from after it. So
it is null, or an error where it must not be.
"""

from __future__ import annotations

import re
import uuid

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import StringType, StructField, StructType

from onceward.engine.decoding import TAG
from onceward.errors import ConfigurationError, UnsupportedSchema
from onceward.formats.debezium.changes import check_columns, checked_op, select_table, stop
from onceward.formats.debezium.types import TEXT
from onceward.formats.json.decoding import STRICTLY, parse_schema, refuse_settings
from onceward.formats.validation import with_one
from onceward.spark.types import column_named, quoted


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

        :raises ConfigurationError: the session reads values as others.
        """
        refuse_settings(changes, self._schema)
        beside = f"{name}_read"
        how = {**STRICTLY, "columnNameOfCorruptRecord": self._bad}
        value = column_named(f"{name}_text")
        read = with_one(
            changes.withColumn(f"{name}_text", text),
            F.from_json(value, self._read_as, how),
            beside,
        )
        row = column_named(beside)
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


_ROW = "onceward_row"
_OP = "onceward_op"
_CALLED = "ow.debezium.rows(…)"
_POSITION = re.compile(r"\d{6}(-\d{10,20})+", re.ASCII)


def rows(
    changes: DataFrame,
    *,
    table: str,
    schema: StructType | str,
    op_column: str = "op",
    position_column: str = "position",
    emptied_at: str | None = None,
) -> DataFrame:
    """Select the changes of one table: ``op``, the table's columns, ``position``.

    ::

        changes = ow.mysql_changes(spark, url=…, tables=["shop.orders"])
        schema = "id BIGINT NOT NULL, total DECIMAL(10,2)"
        orders = ow.debezium.rows(changes, table="shop.orders", schema=schema)
        sink = ow.DatabaseSink(
            url=…,
            table="orders",
            mode="changes",
            key="id",
            order_by="position",
            pipeline_id="orders",
        )

    The columns are those of the row after the change, or of the one that was deleted. ``op`` is
    ``c``, ``u``, ``r`` or ``d``.

    A row that has a column which ``schema`` has not, lacks one that is NOT NULL there, or has a
    value that its type does not take, stops the query with
    :class:`~onceward.errors.ChangeUnreadable`, which names the column; nothing is left out or
    rounded. A column that the row lacks and that may be null is null: the table did not have it
    then. A ``TRUNCATE`` (``op`` ``t``), which has no row, stops the query, too: the next step says
    how to go on behind it.

    :param changes: a frame of ``ow.mysql_changes``; with ``values="text"``, its default, every
        type below can be read.
    :param table: ``database.table``, as the server spells it, or as ``mysql_changes(tables=…)``
        names it. Changes of others are left out.
    :param schema: the table's columns, as a type or in Spark's DDL: BOOLEAN (of BIT(1)), SMALLINT,
        INT, BIGINT, FLOAT, DOUBLE, DECIMAL (exact; up to 38 digits), STRING (also of TIME),
        BINARY, DATE, TIMESTAMP (of TIMESTAMP), TIMESTAMP_NTZ (of DATETIME), VARIANT (of JSON).
    :param op_column: what to call it, where the table has a column ``op``.
    :param position_column: what to call it, where the table has a column ``position``.
    :param emptied_at: the position of a ``TRUNCATE``, as its error gives it: you have emptied the
        target, and changes up to there are left out.
    :raises InvalidColumn: the frame is none of changes.
    :raises ConfigurationError: ``table`` is none of the tables that ``mysql_changes`` reads;
        ``emptied_at`` is no position.
    :raises UnsupportedSchema: ``schema`` is none, has a type that is not read, or a column that is
        called like one of ours.
    """
    check_columns(changes, _CALLED)
    columns = parse_schema(schema, _CALLED)
    for ours, parameter in ((op_column, "op_column"), (position_column, "position_column")):
        if ours.lower() in (name.lower() for name in columns.names):
            raise UnsupportedSchema(
                f"the table has a column {ours!r}, and {_CALLED} adds another one of that name",
                next_step=f"pass another name as {parameter}=, and the same one to the sink",
            )
    tag = TAG + uuid.uuid4().hex
    selection = select_table(changes, table, tag, _CALLED)
    if emptied_at is not None:
        if not _POSITION.fullmatch(emptied_at):
            raise ConfigurationError(
                f"emptied_at={emptied_at!r} is no position: all changes may be on one side of it",
                next_step='pass the text of the column "position" that the error named, as it is',
            )
        selection = selection.where(F.col("position") > F.lit(emptied_at))
    with_operation = with_one(selection, _op(tag), _OP)
    image = F.when(F.col(_OP) == "d", F.col("before")).otherwise(F.col("after"))
    read = Images(columns, tag).added(with_operation, image, _ROW)
    values = [F.col(f"{_ROW}.{quoted(name)}").alias(name) for name in columns.names]
    return read.select(
        F.col(_OP).alias(op_column), *values, F.col("position").alias(position_column)
    )


def _op(tag: str) -> Column:
    """Return the ``op`` of a change with a row; the others stop the query."""
    passed = F.concat(
        F.lit("empty the target's table (all changes before this batch are in it), and pass "
              "emptied_at=\""),
        F.col("position"),
        F.lit(f'" to {_CALLED}: changes up to there, which the TRUNCATE has undone, are left out '
              "then; nothing of the batch was written"),
    )  # fmt: skip
    truncated = stop(tag, "truncate", F.lit("TRUNCATE TABLE has removed all of its rows"), passed)
    return F.when(F.col("op") == "t", F.raise_error(truncated)).otherwise(checked_op(tag))
