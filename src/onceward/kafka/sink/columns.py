"""The columns of a frame, checked and brought to one shape. Driver only; called for every frame by
:mod:`sink`, which checks it, and by :mod:`attempt`, which prepares it.

Columns are those of Spark's own Kafka sink (``KafkaWriter.scala``) plus ``timestamp``:

===========  =========================================  ===========================================
column       type                                       meaning
===========  =========================================  ===========================================
value        binary or string, required                 the record's value; null is a tombstone
key          binary or string                           null keys spread evenly over the partitions
topic        string                                     required when the sink has no ``topic``
partition    int                                        overrides the partitioner; null leaves it
                                                        to the key
headers      array<struct<key: string, value: binary>>  null is no headers
timestamp    timestamp                                  record timestamp; null is the time of
                                                        writing
===========  =========================================  ===========================================

With ``KafkaSink(lineage=True)`` also ``source_topic`` (string), ``source_partition`` and
``source_offset`` (int or bigint), of which the last three headers of each record are made:
``onceward.topic``, ``onceward.partition`` and ``onceward.offset``, numbers as ASCII decimals. A
row in which one of the columns is null came from no source record, and gets none of them. With
``KafkaSink(order_by=…)`` also the columns that it names: they travel beside the record's, under
names of their own, and are left out when they have done their work. Only types whose values Spark
and Arrow sort alike are taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from onceward.errors import InvalidColumn
from onceward.ids import PipelineId
from onceward.kafka.sink.dead_letters import (
    HEADERS,
    LINEAGE,
    output_headers,
    too_large,
    with_headers,
)
from onceward.kafka.source import lineage as source
from onceward.spark.types import quoted

TIMESTAMP_MS = "timestamp_ms"
"""``timestamp`` travels to the tasks as a long: milliseconds since the epoch, as Kafka has it."""

_EXPRESSIONS = {
    "value": "CAST(value AS BINARY) AS value",
    "key": "CAST(key AS BINARY) AS key",
    "topic": "topic",
    "partition": "partition",
    "headers": "headers",
    "timestamp": f"unix_millis(timestamp) AS {TIMESTAMP_MS}",
}
KNOWN = tuple(_EXPRESSIONS)

_PART_BYTES = {
    "value": "COALESCE(OCTET_LENGTH(value), 0)",
    "key": "COALESCE(OCTET_LENGTH(key), 0)",
    "topic": "COALESCE(OCTET_LENGTH(topic), 0)",
    "headers": "COALESCE(AGGREGATE(headers, 0, (size, header) -> size + OCTET_LENGTH(header.key) "
    "+ COALESCE(OCTET_LENGTH(header.value), 0) + 8), 0)",
}

OrderWithin = Literal["key", "topic"]

_SORTED = "onceward_order_"
_SORTABLE = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    ShortType,
    TimestampNTZType,
    TimestampType,
)


class DeadLetterRoute(NamedTuple):
    """Where records go that are too large before compression, and which pipeline sends them."""

    topic: str
    pipeline: PipelineId
    limit_bytes: int


class RecordFrame(NamedTuple):
    """A frame as its records are written: rows with the columns of the table above, and those to
    sort by. ``topic`` is the one that the sink or the write names, by whose limits record batches
    are filled; ``only_topic`` the one that all rows go to. None: the column ``topic`` says."""

    rows: DataFrame
    topic: str | None
    only_topic: str | None


def prepare(
    frame: DataFrame,
    topic: str | None,
    *,
    lineage: bool = False,
    oversized: DeadLetterRoute | None = None,
    order_by: Sequence[str] = (),
) -> RecordFrame:
    """Return ``frame`` with the columns of the table above, ``key`` and ``value`` as binary, and
    those to sort by. One that has just these is returned as it is: Spark takes milliseconds to
    analyze another one, in every batch.

    :param topic: the sink's static topic; it wins over a ``topic`` column, as in Spark's own sink.
    :param lineage: the source columns become headers, behind those that a record has.
    :param oversized: for a static topic; the column ``topic`` then says where each record goes.
    :param order_by: columns to sort by, under the names of :func:`sort_columns`.
    :raises InvalidColumn: naming the column, what it is, and what it should be.
    """
    types = check(frame, topic, lineage=lineage, order_by=order_by)
    expressions = {
        # Bytes of Arrow's binaries and of its texts are the same
        name: name
        if isinstance(types[name], BinaryType) or _is_plain_text(types[name])
        else _EXPRESSIONS[name]
        for name in KNOWN
        if name in types and (name != "topic" or topic is None)
    }
    own_headers = "headers" if "headers" in types else f"CAST(NULL AS {HEADERS})"
    if oversized is not None and topic is not None:
        own_headers = _route_oversized(expressions, types, own_headers, topic, oversized)
    if lineage:
        expressions["headers"] = _with_lineage(own_headers)
    # As SQL text: column objects would cost a dozen calls into the JVM each, in every batch.
    sorting = [f"{quoted(name)} AS {_SORTED}{number}" for number, name in enumerate(order_by)]
    columns = [*expressions.values(), *sorting]
    return RecordFrame(
        frame if sorted(columns) == sorted(types) else frame.selectExpr(*columns),
        topic,
        None if oversized is not None else topic,
    )


def sort_columns(names: Sequence[str]) -> list[str]:
    """Return those of ``names`` that a prepared frame is sorted by, the first counting most."""
    return [name for name in names if name.startswith(_SORTED)]


def row_bytes(names: Sequence[str]) -> str:
    """Return SQL for the bytes of a prepared frame's row: payload, and what it is sorted by."""
    sorting = [
        f"COALESCE(OCTET_LENGTH(CAST({name} AS STRING)), 0)" for name in sort_columns(names)
    ]
    return " + ".join([*(_PART_BYTES[name] for name in names if name in _PART_BYTES), *sorting])


def _route_oversized(
    expressions: dict[str, str],
    types: Mapping[str, DataType],
    own_headers: str,
    topic: str,
    aside: DeadLetterRoute,
) -> str:
    """Send elsewhere, in ``expressions``, what ``topic`` would not take; return SQL of headers."""
    large = too_large(
        aside.limit_bytes,
        has_key="key" in types,
        headers="headers" if "headers" in types else None,
    )
    with_error = with_headers(
        own_headers,
        output_headers(
            aside.limit_bytes, topic, aside.pipeline, has_timestamp="timestamp" in types
        ),
    )
    headers = f"CASE WHEN {large} THEN {with_error} ELSE {own_headers} END"
    expressions["topic"] = f"CASE WHEN {large} THEN '{aside.topic}' ELSE '{topic}' END AS topic"
    expressions["headers"] = f"{headers} AS headers"
    # An old one, and the topic's retention would take the record at once
    if "timestamp" in types:
        expressions["timestamp"] = (
            f"unix_millis(CASE WHEN NOT ({large}) THEN timestamp END) AS {TIMESTAMP_MS}"
        )
    # it is meant for the topic
    if "partition" in types:
        expressions["partition"] = (
            f"CASE WHEN {large} THEN CAST(NULL AS INT) ELSE partition END AS partition"
        )
    return headers


def _with_lineage(own: str) -> str:
    """Return the headers ``own`` and those of the lineage. Behind them, because of several of one
    name Kafka's users take the last, and a record may bring its source's own."""
    added = ", ".join(
        f"named_struct('key', '{name}', 'value', {value})" for name, value in LINEAGE.items()
    )
    unknown = " OR ".join(f"{name} IS NULL" for name in source.COLUMNS)
    both = f"concat(coalesce({own}, CAST(array() AS {HEADERS})), array({added}))"
    return f"CASE WHEN {unknown} THEN {own} ELSE {both} END AS headers"


def check(
    frame: DataFrame, topic: str | None, *, lineage: bool = False, order_by: Sequence[str] = ()
) -> dict[str, DataType]:
    """Return the types of the frame's columns. :raises InvalidColumn: one cannot be written."""
    fields = frame.schema.fields
    types = {field.name: field.dataType for field in fields}
    if len(types) < len(fields):
        twice = next(name for name in types if [field.name for field in fields].count(name) > 1)
        raise InvalidColumn(
            f"the frame has two columns '{twice}'", next_step="drop or rename one of them"
        )
    if "value" not in types:
        raise InvalidColumn(
            f"the frame has no column 'value' (it has: {', '.join(types) or 'none'})",
            next_step="select the record's value AS value, as binary or string (for example "
            "to_json(struct(*)))",
        )
    if topic is None and "topic" not in types:
        raise InvalidColumn(
            "there is neither KafkaSink(topic=…) nor a column 'topic'",
            next_step="pass topic= to KafkaSink or add a string column 'topic'",
        )
    missing = [name for name in source.COLUMNS if lineage and name not in types]
    if missing:
        raise InvalidColumn(
            f"KafkaSink(lineage=True), and the frame has no column {', '.join(missing)}",
            next_step="keep where rows came from while the frame still has the source's topic, "
            "partition and offset: rows.select('key', 'value', *onceward.lineage()); or leave "
            "lineage out",
            details={"columns": missing},
        )
    for name, kind in types.items():
        _check_type(name, kind)
    check_order(order_by, types)
    allowed = (*KNOWN, *source.COLUMNS) if lineage else KNOWN
    unknown = [name for name in types if name not in allowed and name not in order_by]
    if unknown:
        # Left out silently, a column `Key` for `key` would give every record a null key.
        for_lineage = (
            ", or pass lineage=True to KafkaSink" if set(unknown) & set(source.COLUMNS) else ""
        )
        raise InvalidColumn(
            f"the frame has columns that no part of a record is made of: {', '.join(unknown)}",
            next_step=f"rename them to one of {', '.join(allowed)}, or leave them out: "
            f"frame.select('key', 'value'){for_lineage}",
            details={"columns": unknown},
        )
    return types


def check_order(order_by: Sequence[str], types: Mapping[str, DataType]) -> None:
    """Raise InvalidColumn unless the columns to sort by are there and sorted alike by everyone."""
    for name in order_by:
        if name not in types:
            raise InvalidColumn(
                f"order_by= names column {name!r}, and the frame has {', '.join(types)}",
                next_step="keep the column in the frame: select('key', 'value', …)",
                details={"column": name},
            )
        kind = types[name]
        if not isinstance(kind, _SORTABLE) and not _is_plain_text(kind):
            raise InvalidColumn(
                f"column {name!r} of order_by= is {kind.simpleString()}, which is not sorted the "
                "same everywhere",
                next_step="order by whole numbers, decimals, texts without a collation, binaries, "
                "dates or timestamps",
                details={"column": name, "type": kind.simpleString()},
            )


def _is_plain_text(kind: DataType) -> bool:
    """Return whether it is a string without a collation or a length."""
    return type(kind) is StringType and kind.simpleString() == "string"


_TYPES: Mapping[str, tuple[str, tuple[type[DataType], ...]]] = {
    "value": ("binary or string", (BinaryType, StringType)),
    "key": ("binary or string", (BinaryType, StringType)),
    "topic": ("string", (StringType,)),
    "partition": ("int", (IntegerType,)),
    "headers": (HEADERS, (ArrayType,)),
    "timestamp": ("timestamp", (TimestampType,)),
    source.TOPIC: ("string", (StringType,)),
    source.PARTITION: ("int", (IntegerType, LongType)),
    source.OFFSET: ("bigint", (IntegerType, LongType)),
}


def _check_type(name: str, kind: DataType) -> None:
    wanted, kinds = _TYPES.get(name, ("", (DataType,)))
    if not isinstance(kind, kinds) or (name == "headers" and not _are_headers(kind)):
        raise InvalidColumn(
            f"column '{name}' is {kind.simpleString()}, not {wanted}",
            next_step=f"make it one: .withColumn('{name}', {_conversion(name, kind, wanted)})",
            details={"column": name, "type": kind.simpleString()},
        )


def _conversion(name: str, kind: DataType, wanted: str) -> str:
    """Return what makes of a column of type ``kind`` one of the type that is ``wanted``."""
    if name == "headers":
        if isinstance(kind, MapType):
            entries = "struct(CAST(e.key AS STRING) AS key, CAST(e.value AS BINARY) AS value)"
            return f"F.expr('transform(map_entries({name}), e -> {entries})')"
        return f"… of type {wanted}"
    if name in ("key", "value"):
        if isinstance(kind, StructType | ArrayType | MapType):
            return f"F.to_json('{name}')"
        return f"F.col('{name}').cast('string')"
    if name == "timestamp":
        if isinstance(kind, LongType):
            # A cast would take milliseconds for seconds
            return f"F.timestamp_millis('{name}')"
        # spark.sql.timestampType decides what "timestamp" alone is
        return f"F.col('{name}').cast('timestamp_ltz')"
    return f"F.col('{name}').cast('{wanted.partition(' ')[0]}')"


def _are_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]
