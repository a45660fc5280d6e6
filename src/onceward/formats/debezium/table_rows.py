"""``ow.debezium.rows``: the changes of one table with its columns, ready for a database. Driver
only; called by users where they define a query, or in a function of ``foreachBatch``.
"""

from __future__ import annotations

import re
import uuid

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import StructType

from onceward.engine.decoding import TAG
from onceward.errors import ConfigurationError, UnsupportedSchema
from onceward.formats.debezium.changes import check_columns, checked_op, select_table, stop
from onceward.formats.debezium.images import Images
from onceward.formats.json.decoding import parse_schema
from onceward.formats.validation import quoted, with_one

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
