"""The frame's columns, checked and brought to one shape. Driver only; called by ``target`` for every batch.

Columns are those of Spark's own Kafka sink (``KafkaWriter.scala``) plus ``timestamp``:

===========  =========================================  =====================================================
column       type                                       meaning
===========  =========================================  =====================================================
value        binary or string, required                 the record's value; null is a tombstone
key          binary or string                           null keys spread evenly over the partitions
topic        string                                     required when the sink has no ``topic``
partition    int                                        overrides the partitioner; null leaves it to the key
headers      array<struct<key: string, value: binary>>  null is no headers
timestamp    timestamp                                  record timestamp; null is the time of writing
===========  =========================================  =====================================================
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from onceward.errors import BadColumn

TIMESTAMP_MS = "timestamp_ms"
"""``timestamp`` travels to the tasks as a long: milliseconds since the epoch, the resolution of Kafka records."""

_EXPRESSIONS = {
    "value": "CAST(value AS BINARY) AS value",
    "key": "CAST(key AS BINARY) AS key",
    "topic": "topic",
    "partition": "partition",
    "headers": "headers",
    "timestamp": f"unix_millis(timestamp) AS {TIMESTAMP_MS}",
}
KNOWN = tuple(_EXPRESSIONS)


def prepare(frame: DataFrame, topic: str | None) -> DataFrame:
    """``frame`` with the columns above and no others, ``key`` and ``value`` as binary.

    :param topic: the sink's static topic; it wins over a ``topic`` column, as in Spark's own sink.
    :raises BadColumn: naming the column, what it is, and what it should be.
    """
    types = check(frame, topic)
    wanted = [name for name in KNOWN if name in types and (name != "topic" or topic is None)]
    # As SQL text: column objects would cost a dozen calls into the JVM each, in every batch.
    return frame.selectExpr(*(_EXPRESSIONS[name] for name in wanted))


def check(frame: DataFrame, topic: str | None) -> dict[str, DataType]:
    """The frame's columns, or :class:`BadColumn` for the first that cannot be written."""
    fields = frame.schema.fields
    types = {field.name: field.dataType for field in fields}
    if len(types) < len(fields):
        twice = next(name for name in types if [field.name for field in fields].count(name) > 1)
        raise BadColumn(f"the frame has two columns '{twice}'", next_step="drop or rename one of them")
    if "value" not in types:
        raise BadColumn(
            f"the frame has no column 'value' (it has: {', '.join(types) or 'none'})",
            next_step="select the record's value AS value, as binary or string (for example to_json(struct(*)))",
        )
    if topic is None and "topic" not in types:
        raise BadColumn(
            "there is neither KafkaSink(topic=…) nor a column 'topic'",
            next_step="pass topic= to KafkaSink or add a string column 'topic'",
        )
    for name, kind in types.items():
        _check_type(name, kind)
    unknown = [name for name in types if name not in KNOWN]
    if unknown:
        # Left out silently, a column `Key` for `key` would give every record a null key.
        raise BadColumn(
            f"the frame has columns that no part of a record is made of: {', '.join(unknown)}",
            next_step=f"rename them to one of {', '.join(KNOWN)}, or leave them out: frame.select('key', 'value')",
            details={"columns": unknown},
        )
    return types


def _check_type(name: str, kind: DataType) -> None:
    wanted = {
        "value": "binary or string",
        "key": "binary or string",
        "topic": "string",
        "partition": "int",
        "headers": "array<struct<key: string, value: binary>>",
        "timestamp": "timestamp",
    }
    good = {
        "value": isinstance(kind, (BinaryType, StringType)),
        "key": isinstance(kind, (BinaryType, StringType)),
        "topic": isinstance(kind, StringType),
        "partition": isinstance(kind, IntegerType),
        "headers": _are_headers(kind),
        "timestamp": isinstance(kind, TimestampType),
    }
    if name in wanted and not good[name]:
        raise BadColumn(
            f"column '{name}' is {kind.simpleString()}, not {wanted[name]}",
            next_step=f"cast it: .withColumn('{name}', …) as {wanted[name]}",
            details={"column": name, "type": kind.simpleString()},
        )


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
