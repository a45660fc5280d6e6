"""``ow.json.decode``: texts of JSON become a column. Driver only; called by users where they
define a query.
"""

from __future__ import annotations

import uuid
from typing import Literal

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from onceward.engine.decoding import TAG
from onceward.errors import ConfigurationError, UnsupportedSchema
from onceward.formats.json.plan import JsonPlan
from onceward.formats.json.types import JSON, Types
from onceward.formats.validation import ValidatingStep, refuse_frame

_EMPTY_IS_NULL = "spark.sql.legacy.json.allowEmptyString.enabled"


def decode(
    frame: DataFrame,
    *,
    schema: StructType | str,
    column: str = "value",
    on_error: Literal["stop", "dead_letter"] = "stop",
) -> DataFrame:
    """Decode ``column``, texts of JSON as bytes, to a struct of the fields of ``schema``.

    ::

        source = ow.kafka_source(spark, topic="people", …)
        schema = "name STRING NOT NULL, born DATE"
        people = ow.json.decode(source, schema=schema, on_error="dead_letter")
        people.select("key", "value.name", "value.born")

    A record that is not one object of JSON (RFC 8259) in UTF-8, or has a value that its field does
    not take, is *poison*: nothing becomes a null because it could not be read. A field that is
    missing is null, unless the schema says ``NOT NULL``; one that the schema does not have is left
    out. A null value, Kafka's deletion, stays: the row has a null there. The page on JSON has the
    whole table of what is taken.

    :param schema: BOOLEAN, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, STRING, DATE, TIMESTAMP,
        TIMESTAMP_NTZ, VARIANT, and STRUCT, ARRAY and MAP (by STRING) of them; as a type, or as
        Spark's DDL.
    :param column: binary.
    :param on_error: what poison does. ``"stop"``: the batch fails with
        :class:`~onceward.errors.InvalidRecord`, which says where the record is. ``"dead_letter"``:
        it goes to ``KafkaSink(dead_letter_topic=…)`` in the batch's own transaction, and only the
        others are in the result. For streams, directly on the source's frame.

    :raises InvalidColumn: there is no such column, or it is not binary.
    :raises UnsupportedSchema: ``schema`` is none, or has a type that Spark would not read exactly.
    :raises UnsupportedQuery: dead letters of a frame that is no stream.
    """
    return decode_with(frame, parse_schema(schema), column, on_error)


def decode_with(
    frame: DataFrame, schema: StructType, column: str, on_error: str, types: Types = JSON
) -> DataFrame:
    """Decode with ``types``, for a schema whose fields are read in a way of their own.

    :raises OncewardError: as :func:`decode`.
    """
    refuse_frame(frame, column, on_error)
    if (why := types.why_not(schema)) is not None:
        raise UnsupportedSchema(
            f"JSON is not read by this schema: {why}",
            next_step="take another type for the field there",
        )
    if str(frame.sparkSession.conf.get(_EMPTY_IS_NULL, "false")).lower() == "true":
        raise ConfigurationError(
            f"{_EMPTY_IS_NULL}=true makes nulls of empty texts where a number is wanted",
            next_step=f"set {_EMPTY_IS_NULL} to false, its default",
        )
    plan = JsonPlan(tag := TAG + uuid.uuid4().hex, column, schema, types)
    return ValidatingStep(tag, plan, sets_aside=on_error == "dead_letter").apply(frame)


def parse_schema(schema: object, function: str = "json.decode(…)") -> StructType:
    """Parse a schema.

    :raises UnsupportedSchema: it is no struct, and no columns in DDL.
    """
    step = (
        "pass a StructType, or its columns as DDL (name STRING NOT NULL, born DATE), as schema= "
        f"of {function}"
    )
    if isinstance(schema, str):
        try:
            schema = DataType.fromDDL(schema)
        except Exception as error:  # Spark's ParseException
            raise UnsupportedSchema(
                f"schema={schema!r} is no DDL: {str(error).split(chr(10))[0]}", next_step=step
            ) from error
    if not isinstance(schema, StructType):
        raise UnsupportedSchema(f"schema={schema!r} is no struct", next_step=step)
    return schema
