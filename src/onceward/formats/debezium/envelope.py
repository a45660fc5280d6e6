"""Debezium's envelope: which fields a change event has. Driver only.

The Debezium documentation, "Debezium connector for MySQL", *Data change events*
(debezium.io/documentation/reference); ``io.debezium.data.Envelope``,
``io.debezium.connector.binlog.BinlogSourceInfo`` and its struct maker in its sources.
"""

from __future__ import annotations

from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from onceward.formats.json.decoding import parse_schema

SOURCE = StructType(
    [
        StructField("version", StringType()),
        StructField("connector", StringType()),
        StructField("name", StringType()),
        StructField("ts_ms", LongType()),
        StructField("snapshot", StringType()),
        StructField("db", StringType()),
        StructField("table", StringType()),
        StructField("server_id", LongType()),
        StructField("gtid", StringType()),
        StructField("file", StringType()),
        StructField("pos", LongType()),
        StructField("row", IntegerType()),
    ]
)
"""What a record says of where it came from, as the connectors for MySQL and MariaDB have it, as
far as we know it, too: ``sequence``, ``thread`` and ``query`` are left out, and so are ``ts_us``
and ``ts_ns``, which a binlog has not.
"""


def envelope(schema: StructType | str, *, source: StructType | str = SOURCE) -> StructType:
    """Return the type of Debezium's envelope of a table with the columns of ``schema``.

    ::

        ow.debezium.envelope("id INT NOT NULL, name STRING")

    ``before``, ``after``, ``source``, ``op``, ``ts_ms``. Columns in ``before`` may be null:
    connectors for other databases may know the key alone there.

    :param schema: the table's columns; a type, or Spark's DDL.
    :param source: of connectors for other databases: the fields of ``source`` that you need.
    :raises UnsupportedSchema: one of them is no struct.
    """
    table = parse_schema(schema, "debezium.envelope(…)")
    known = StructType([StructField(field.name, field.dataType) for field in table.fields])
    return StructType(
        [
            StructField("before", known),
            StructField("after", table),
            StructField("source", parse_schema(source, "debezium.envelope(…)")),
            StructField("op", StringType(), nullable=False),
            StructField("ts_ms", LongType()),
        ]
    )
