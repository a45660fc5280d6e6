"""The frame of ``ow.mysql_changes``, as far as formats look at it. Driver only; called by the
functions of users.
"""

from __future__ import annotations

import re

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import DataType, IntegerType, LongType, StringType

from onceward.errors import ConfigurationError, InvalidColumn
from onceward.formats.validation import error_text

VALUES = "onceward.values"
"""In the metadata of the columns ``before`` and ``after``: as what values are written, ``text`` or
``debezium``.
"""

TABLES = "onceward.tables"
"""In the metadata of the column ``table``: which tables the source reads, as the user named
them.
"""

_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    **dict.fromkeys(
        ("op", "db", "table", "key", "before", "after", "position", "gtid", "file"), (StringType,)
    ),
    **dict.fromkeys(("ts_ms", "pos", "row", "server_id"), (LongType, IntegerType)),
}


def check_columns(frame: DataFrame, function: str) -> None:
    """Check the frame's columns.

    :raises InvalidColumn: it lacks a column of changes, or has another type there.
    """
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    for name, kind in _COLUMNS.items():
        if not isinstance(kinds.get(name), kind):
            what = (
                f"is {kinds[name].simpleString()}"
                if name in kinds
                else f"is none of {', '.join(kinds)}"
            )
            raise InvalidColumn(
                f"column {name!r} {what}, and changes of tables have it as "
                f"{kind[0]().simpleString()}",
                next_step=f"pass the frame of ow.mysql_changes(…) to {function}, with all of its "
                "columns",
                details={"column": name},
            )


def check_values(frame: DataFrame, wanted: str, function: str) -> None:
    """Check how the source writes values.

    :raises ConfigurationError: it writes them in another way.
    """
    values = frame.schema["after"].metadata.get(VALUES)
    if values not in (None, wanted):
        raise ConfigurationError(
            f"the changes were made with values={values!r}, and {function} writes "
            f"values={wanted!r}: readers of Debezium's records would take dates and times for "
            "something else",
            next_step=f"pass values={wanted!r} to ow.mysql_changes(…)",
        )


def select_table(frame: DataFrame, table: str, tag: str, function: str) -> DataFrame:
    """Select the changes of one table, ``database.table``.

    Whether ``Shop.Orders`` is ``shop.orders`` is for the server to say
    (``lower_case_table_names``), and the source asks it. So where the source was given this very
    name, and no pattern, all that differs in case only is this table. Else a row of a name that
    does stops the query: it may be another table, or this one, misspelled.

    :raises ConfigurationError: ``table`` is no such name, or none that the source reads.
    """
    database, dot, name = table.partition(".") if isinstance(table, str) else ("", "", "")
    if not (database and dot and name):
        raise ConfigurationError(
            f"table={table!r} does not name a table of a database",
            next_step='pass table="database.table"',
        )
    read: list[str] | None = frame.schema["table"].metadata.get(TABLES)
    fitting = [one for one in read or () if _fits(table, one)]
    if read is not None and not fitting:
        raise ConfigurationError(
            f"table={table!r} is none of the tables that the source reads: {', '.join(read)}",
            next_step=f"pass to {function} a table that ow.mysql_changes(tables=…) names, spelled "
            "as it is there",
        )
    same = [
        F.lower(column) == F.lower(F.lit(part))
        for column, part in (("db", database), ("table", name))
    ]
    changes_of_table = frame.where(same[0] & same[1])
    if len(fitting) == 1 and "*" not in fitting[0]:
        return changes_of_table
    exactly = (F.col("db") == database) & (F.col("table") == name)
    return changes_of_table.withColumn(
        "op",
        F.when(exactly, F.col("op")).otherwise(F.raise_error(_case_error(tag, table, function))),
    )


def _fits(table: str, pattern: str) -> bool:
    expression = ".*".join(map(re.escape, pattern.lower().split("*")))
    return re.fullmatch(expression, table.lower(), re.DOTALL) is not None


def _case_error(tag: str, table: str, function: str) -> Column:
    why = (
        f"{function} was asked for table={table!r}, which differs from it in upper and lower case "
        "only"
    )
    spelled = F.concat(
        F.lit('if it is the same table, pass table="'),
        F.concat_ws(".", "db", "table"),
        F.lit('"; '),
    )
    keep = (
        f"if the server has both, leave this one out before: changes.where(\"concat(db, '.', "
        f"`table`) = '{table}'\")"
    )
    return stop(tag, "name", F.lit(why), F.concat(spelled, F.lit(keep)))


def checked_op(tag: str) -> Column:
    """Check that a change has a known ``op``, and the rows that it is about; else return the text
    of the error."""
    op = F.col("op")
    there = F.col("db").isNotNull() & F.col("table").isNotNull() & F.col("position").isNotNull()
    before, after = F.col("before").isNotNull(), F.col("after").isNotNull()
    rows = F.when(op.isin("c", "r"), after).when(op == "u", after & before).when(op == "d", before)
    good = there & rows.when(op == "t", ~before & ~after).otherwise(F.lit(False))
    why = F.concat(
        F.lit("op "), F.coalesce("op", F.lit("null")), F.lit(" is unknown, or it lacks a row")
    )
    next_step = "pass the frame of ow.mysql_changes(…) as it is; if it is, report it"
    return F.when(F.coalesce(good, F.lit(False)), op).otherwise(
        F.raise_error(stop(tag, "op", why, next_step))
    )


def stop(tag: str, reason: str, why: Column, next_step: str | Column) -> Column:
    """Return the text of the error that names a change by its table and its place in the
    binlog.
    """
    name, place = (
        F.concat_ws(".", "db", "table"),
        F.concat_ws(":", "file", F.col("pos").cast("string")),
    )
    table = F.concat(F.lit("a change of table "), name, F.lit(" at "), place, F.lit(": "))
    advice = F.lit(next_step) if isinstance(next_step, str) else next_step
    return error_text(
        tag,
        "change",
        F.lit(reason).alias("reason"),
        F.concat(table, why).alias("message"),
        advice.alias("next_step"),
        place.alias("at"),
        F.col("gtid"),
    )
