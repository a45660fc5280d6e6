"""``ow.debezium.encode`` and ``ow.debezium.structs``: changes become records of Kafka. Driver
only; called by users where they define a query.

What a record looks like, Debezium's documentation says ("Debezium connector for MySQL": *Data
change events*, *Topic names*, *Tombstone events*, *Truncate events*); names of topics are those of
its ``DefaultTopicNamingStrategy``.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import StructType

from onceward.engine.decoding import TAG
from onceward.engine.policy import check_choice, names
from onceward.errors import ConfigurationError, InvalidColumn
from onceward.formats.debezium.changes import check_columns, check_values, checked_op, select_table
from onceward.formats.debezium.images import Images
from onceward.formats.json.decoding import parse_schema

Connector = Literal["mysql", "mariadb"]

_PREFIX = re.compile(r"[A-Za-z0-9._-]+")
_TOMBSTONE = "onceward_tombstone"
_BEFORE, _AFTER = "onceward_before", "onceward_after"
VERSION = "onceward"
"""Of the connector, in ``source.version``."""


def encode(
    changes: DataFrame, *, prefix: str, tombstones: bool = True, connector: Connector = "mysql"
) -> DataFrame:
    """Encode ``changes`` as records in Debezium's envelope: ``topic``, ``key``, ``value``,
    ``position``.

    ::

        changes = ow.mysql_changes(spark, url=…, tables=["shop.*"], values="debezium")
        sink = ow.KafkaSink(bootstrap_servers=…, pipeline_id="shop", order_by="position")
        ow.debezium.encode(changes, prefix="prod").writeStream.foreachBatch(sink)

    Texts of JSON, as Kafka Connect's ``JsonConverter`` writes them with ``schemas.enable=false``.
    The topic is ``<prefix>.<database>.<table>``, each character that a topic's name cannot have a
    ``_``; the key has the columns of the primary key, and is null where the table has none.
    ``ts_ms`` is the time of the change, outside of ``source``, too, so that a batch that is run
    again has the same records. ``source.snapshot`` is ``"true"`` or ``"false"``. A ``TRUNCATE`` is
    a record of ``op`` ``t`` without a key.

    :param changes: a frame of ``ow.mysql_changes(values="debezium")``.
    :param prefix: Debezium's ``topic.prefix``, also ``source.name``.
    :param tombstones: after each delete a record with its key and no value, by which compaction
        forgets the key (``tombstones.on.delete``). Its ``position`` is just behind the delete's.
    :param connector: ``source.connector``.
    :raises InvalidColumn: the frame is none of changes.
    :raises ConfigurationError: it has other values; or a parameter is wrong.
    """
    _check(changes, prefix, connector, "ow.debezium.encode(…)")
    source = F.to_json(_source(prefix, connector), {"ignoreNullFields": "false"})
    parts = (
        ('{"before":', F.coalesce("before", F.lit("null"))),
        (',"after":', F.coalesce("after", F.lit("null"))),
        (',"source":', source),
        (',"op":"', checked_op(TAG + uuid.uuid4().hex)),
        ('","ts_ms":', F.coalesce(F.col("ts_ms").cast("string"), F.lit("null"))),
    )
    value = F.concat(
        *(piece for text, part in parts for piece in (F.lit(text), part)),
        F.lit(',"transaction":null}'),
    )
    return _records(changes, prefix, F.col("key"), value, tombstones)


def structs(
    changes: DataFrame,
    *,
    table: str,
    schema: StructType | str,
    key: str | Sequence[str],
    prefix: str,
    tombstones: bool = True,
    connector: Connector = "mysql",
) -> DataFrame:
    """Convert the changes of one table to records with key and value as structs, for
    ``ow.avro.encode``.

    ::

        records = ow.debezium.structs(
            changes,
            table="shop.orders",
            schema="id BIGINT NOT NULL, total DECIMAL(10,2)",
            key="id",
            prefix="prod",
        )
        valued = ow.avro.encode(records, registry=registry, subject="prod.shop.orders-value")
        keyed = ow.avro.encode(
            valued, registry=registry, subject="prod.shop.orders-key", column="key"
        )

    ``value`` has the type of :func:`envelope`. A row that is not what ``schema`` says stops the
    query, as in :func:`rows`.

    :param changes: a frame of ``ow.mysql_changes``. With ``values="text"`` columns may have all
        types of :func:`rows`; with ``values="debezium"`` dates and times are the numbers that
        Debezium writes.
    :param table: ``database.table``. Changes of others are left out.
    :param schema: the table's columns.
    :param key: the columns of its primary key.
    :raises InvalidColumn: the frame is none of changes, or ``schema`` lacks a column of the key.
    :raises ConfigurationError: ``table`` is none of the tables that ``mysql_changes`` reads.
    :raises UnsupportedSchema: ``schema`` is none, or has a type that is not read.
    """
    function = "ow.debezium.structs(…)"
    _check(changes, prefix, connector, function, any_values=True)
    columns, keys = parse_schema(schema, function), names("key", key)
    missing = [name for name in keys if name not in columns.names]
    if missing:
        raise InvalidColumn(
            f"key= names {', '.join(missing)}, and schema= has {', '.join(columns.names)}",
            next_step="name columns of the table's primary key",
        )
    tag = TAG + uuid.uuid4().hex
    images = Images(columns, tag)
    read = images.added(select_table(changes, table, tag, function), F.col("before"), _BEFORE)
    read = images.added(read, F.col("after"), _AFTER)
    row = F.coalesce(_AFTER, _BEFORE)
    key_of = F.when(row.isNotNull(), F.struct(*(row.getField(name).alias(name) for name in keys)))
    value = F.struct(
        F.col(_BEFORE).alias("before"),
        F.col(_AFTER).alias("after"),
        _source(prefix, connector).alias("source"),
        checked_op(tag).alias("op"),
        F.col("ts_ms").cast("bigint").alias("ts_ms"),
    )
    return _records(read, prefix, key_of, value, tombstones)


def _check(
    changes: DataFrame, prefix: str, connector: str, function: str, *, any_values: bool = False
) -> None:
    check_columns(changes, function)
    if not any_values:
        check_values(changes, "debezium", function)
    check_choice("connector", connector, ("mysql", "mariadb"))
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise ConfigurationError(
            f"prefix={prefix!r} cannot begin the name of a topic",
            next_step="use letters, digits, '.', '_' and '-'",
        )


def _source(prefix: str, connector: str) -> Column:
    return F.struct(
        F.lit(VERSION).alias("version"),
        F.lit(connector).alias("connector"),
        F.lit(prefix).alias("name"),
        F.col("ts_ms").cast("bigint").alias("ts_ms"),
        F.when(F.col("op") == "r", F.lit("true")).otherwise(F.lit("false")).alias("snapshot"),
        F.col("db"),
        F.col("table"),
        F.col("server_id").cast("bigint").alias("server_id"),
        F.col("gtid"),
        F.col("file"),
        F.col("pos").cast("bigint").alias("pos"),
        F.col("row").cast("int").alias("row"),
    )


def _records(
    changes: DataFrame, prefix: str, key: Column, value: Column, tombstones: bool
) -> DataFrame:
    topic = F.regexp_replace(
        F.concat_ws(".", F.lit(prefix), "db", "table"), r"[^A-Za-z0-9._-]", "_"
    )
    has_tombstone = (F.col("op") == "d") & key.isNotNull() & F.lit(tombstones)
    once, twice = F.array(F.lit(False)), F.array(F.lit(False), F.lit(True))
    times = F.when(has_tombstone, twice).otherwise(once)
    each = changes.select("*", F.explode(times).alias(_TOMBSTONE))
    position, tombstone = F.col("position"), F.concat("position", F.lit("-tombstone"))
    behind = F.when(F.col(_TOMBSTONE), tombstone).otherwise(position)
    return each.select(
        topic.alias("topic"),
        key.alias("key"),
        F.when(~F.col(_TOMBSTONE), value).alias("value"),
        behind.alias("position"),
    )
