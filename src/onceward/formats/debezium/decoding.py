"""``ow.debezium.decode``: records that Debezium wrote become columns. Driver only; called by users
where they define a query.

The verdicts are those of :mod:`onceward.formats.json` and :mod:`onceward.formats.avro`: whatever
is no :func:`envelope` stops the query by name, or is a dead letter. ``schemas.enable`` puts it
into the field ``payload`` of another object (Kafka Connect's ``JsonConverter``).
"""

from __future__ import annotations

import os
from typing import Literal

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.types import (
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from onceward.engine.policy import check_choice
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    UnsupportedSchema,
)
from onceward.formats.avro.decoding import decode_with as decode_avro_with
from onceward.formats.avro.memory import Registry
from onceward.formats.avro.plan import Whole
from onceward.formats.debezium.types import PLACEHOLDER, TableTypes, why_unavailable
from onceward.formats.json.decoding import decode_with as decode_json_with
from onceward.formats.json.decoding import parse_schema
from onceward.formats.validation import refuse_frame
from onceward.spark.types import column_named, contains_type, quoted

_LONG = ("ts_ms", "server_id", "pos")
SOURCE = StructType([
    StructField(
        name, LongType() if name in _LONG else IntegerType() if name == "row" else StringType()
    )
    for name in (
        "version", "connector", "name", "ts_ms", "snapshot", "db", "table", "server_id", "gtid",
        "file", "pos", "row",
    )
])  # fmt: skip
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
    columns = StructType([StructField(field.name, field.dataType) for field in table.fields])
    return StructType(
        [
            StructField("before", columns),
            StructField("after", table),
            StructField("source", parse_schema(source, "debezium.envelope(…)")),
            StructField("op", StringType(), nullable=False),
            StructField("ts_ms", LongType()),
        ]
    )


_MISFIT = (
    "its op is none of Debezium's (c, r, u, d, t, m), or is a change without the row behind it in "
    "after; a flattened record (ExtractNewRecordState) is read by {}"
)


class _EnvelopeTypes(TableTypes):
    """An envelope has an ``op`` that is known, and the whole row that it leaves behind: a
    flattened record, which has an ``op`` beside its columns, would else be a change of nothing.
    """

    def __init__(
        self, table: StructType, placeholder: str, text: Column, *, wrapped: bool, decimals: bool
    ) -> None:
        super().__init__(utc=False, decimals=decimals, text=text)
        self._table = table
        self._placeholder = placeholder
        self._wrapped = wrapped

    def hint(self, field: str) -> str:
        if field == "op":
            return (
                "; where the envelope is in the field payload (schemas.enable=true, the default "
                "of the converter), pass wrapped=True"
            )
        other = "; a record that is the envelope itself is read with wrapped=False"
        found = other if field == "payload" else ""
        if field in ("before", "after", "payload") and contains_type(self._table, DecimalType):
            found += (
                "; a DECIMAL with an exponent is read where no number with one in the record has "
                "more than 15 digits, or three in its exponent (decimal.handling.mode=string "
                "writes none)"
            )
        return found

    def misfit(self, record: Column) -> Column:
        envelope = record.getField("payload") if self._wrapped else record
        op = self.convert(envelope.getField("op"), StringType())
        after = envelope.getField("after")
        return F.coalesce(
            _why_no_row(_has_its_row(op, after), "ow.json.decode(…)"),
            why_unavailable(self.convert(after, self._table), self._table, self._placeholder),
        )


def _envelope_in_avro(placeholder: str) -> Whole:
    def misfit(record: Column, kind: DataType) -> Column:
        if not isinstance(kind, StructType) or not {*_FIELDS} <= {*kind.names}:
            # Refused by name, once all is read
            return F.lit(None).cast("string")
        op = record.getField("op").cast("string")
        after, row = record.getField("after"), kind["after"].dataType
        has_its_row = _has_its_row(op, after)
        if isinstance(row, StructType):
            why = why_unavailable(after, row, placeholder)
            return F.coalesce(_why_no_row(has_its_row, "ow.avro.decode(…)"), why)
        # MongoDB's document is a text, and an update may have its description alone
        return _why_no_row(has_its_row | (op == "u"), "ow.avro.decode(…)")

    return misfit


def _has_its_row(op: Column, after: Column) -> Column:
    # Of a delete, connectors for other databases may know the key of the record alone; TRUNCATE
    # and messages (m) have no row
    return (op.isin("c", "r", "u") & after.isNotNull()) | op.isin("d", "t", "m")


def _why_no_row(has_its_row: Column, read_by: str) -> Column:
    return F.when(~F.coalesce(has_its_row, F.lit(False)), F.lit(_MISFIT.format(read_by)))


_FIELDS = ("op", "before", "after", "source", "ts_ms")


def decode(
    frame: DataFrame,
    *,
    schema: StructType | str | None = None,
    wrapped: bool = False,
    decimals: Literal["string"] | None = None,
    source: StructType | str = SOURCE,
    registry: Registry | str | None = None,
    subject: str | None = None,
    reader_schema: str | int | None = None,
    tombstones: Literal["skip", "delete"] = "skip",
    column: str = "value",
    on_error: Literal["stop", "dead_letter"] = "stop",
    refresh_s: float = 30.0,
    unknown_id_wait_s: float = 10.0,
    checkpoint: str | os.PathLike[str] | None = None,
    placeholder: str = PLACEHOLDER,
) -> DataFrame:
    """Decode ``column``, records of Debezium's, to ``op``, ``before``, ``after``, ``source`` and
    ``ts_ms``.

    ::

        records = ow.kafka_source(spark, topic="prod.shop.orders", …)
        schema = "id BIGINT NOT NULL, total STRING"
        orders = ow.debezium.decode(records, schema=schema, on_error="dead_letter")
        orders.where("after IS NOT NULL").select("after.id", "after.total")

    An ``op`` is ``c``, ``u``, ``r`` (of a snapshot), ``d``, ``t`` (TRUNCATE) or ``m`` (a message);
    the last three have no ``after``.

    Of JSON say the table's columns by ``schema``; of Avro, pass the ``registry``, and the columns
    are those of its schema. The flattened records of ``ExtractNewRecordState`` have no envelope:
    ``ow.json.decode`` and ``ow.avro.decode`` read them as they are.

    :param schema: of JSON, as a type or in Spark's DDL: the types of ``ow.json.decode``, and DATE
        (days since 1970, or a text), TIMESTAMP (``ZonedTimestamp``), BINARY (Base64:
        ``binary.handling.mode`` ``bytes`` or ``base64``), DECIMAL with ``decimals="string"``. A
        DATETIME is BIGINT: milliseconds or microseconds, by its precision. Fields that it lacks
        are left out; columns in ``before`` may be missing.
    :param wrapped: the envelope is in the field ``payload`` (``schemas.enable=true``, the
        converter's default).
    :param decimals: ``"string"``: the connector has ``decimal.handling.mode=string``, or
        ``double``. A number with an exponent is read where no such number in its record has more
        than 15 digits, or three in its exponent.
    :param source: of connectors for other databases: the fields of ``source`` that you need.
    :param registry: records are Avro; with ``subject`` and ``reader_schema`` as for
        ``ow.avro.decode``.
    :param tombstones: records without a value, which Debezium writes behind each delete.
        ``"skip"``: left out. ``"delete"``: rows of ``op`` ``d``, of which only the record's key
        says what was deleted.
    :param column: binary. :param on_error: as for ``ow.json.decode``.
    :param refresh_s: with ``registry``; it, ``unknown_id_wait_s`` and ``checkpoint`` as for
        ``ow.avro.decode``.
    :param placeholder: ``unavailable.value.placeholder`` of the connector, which it writes for
        values that its database did not log (PostgreSQL's TOASTed columns). A record that has it
        in ``after`` is poison: a sink would write it over the value.
    :raises InvalidColumn: there is no such column, it is not binary, or the frame has a column of
        one of those names.
    :raises ContradictoryOptions: both ``schema`` and ``registry``, or neither; or an option of the
        other one.
    :raises UnsupportedSchema: a schema cannot be read by, or the registry's is no envelope.
    """
    check_choice("tombstones", tombstones, ("skip", "delete"))
    check_choice("decimals", decimals, (None, "string"))
    check_choice("wrapped", wrapped, (True, False))
    if not isinstance(placeholder, str) or not placeholder:
        raise ConfigurationError(
            f"placeholder={placeholder!r} is no text",
            next_step="pass what the connector has as unavailable.value.placeholder, or leave it "
            "out",
        )
    _check(frame, column, on_error, schema, registry)
    if registry is not None:
        if wrapped or decimals or source is not SOURCE:
            raise ContradictoryOptions(
                "wrapped=, decimals= and source= are of records in JSON, and registry= says that "
                "they are Avro",
                next_step="leave them out; the registry's schema says it",
            )
        read = decode_avro_with(
            frame,
            whole=_envelope_in_avro(placeholder),
            registry=registry,
            column=column,
            subject=subject,
            reader_schema=reader_schema,
            on_error=on_error,
            refresh_s=refresh_s,
            unknown_id_wait_s=unknown_id_wait_s,
            checkpoint=checkpoint,
        )
        _must_be_envelope(read.schema[column].dataType)
    else:
        if (subject, reader_schema, checkpoint) != (None, None, None):
            raise ContradictoryOptions(
                "subject=, reader_schema= and checkpoint= are of Avro, and there is no registry=",
                next_step="pass registry= in the place of schema=, or leave them out",
            )
        assert schema is not None  # noqa: S101 — or there is a registry
        whole = envelope(schema, source=source)
        table = whole["after"].dataType
        assert isinstance(table, StructType)  # noqa: S101 — envelope() made it
        if wrapped:
            whole = StructType([StructField("payload", whole, nullable=False)])
        types = _EnvelopeTypes(
            table, placeholder, column_named(column).cast("string"),
            wrapped=wrapped, decimals=decimals is not None,
        )  # fmt: skip
        read = decode_json_with(frame, whole, column, on_error, types)
    return _flat(
        read, column, f"{quoted(column)}.payload" if wrapped else quoted(column), tombstones
    )


def _flat(read: DataFrame, column: str, place: str, tombstones: str) -> DataFrame:
    value = column_named(column)
    if tombstones == "skip":
        read = read.where(value.isNotNull())
    fields = {name: F.col(f"{place}.{name}") for name in _FIELDS}
    fields["op"] = F.when(value.isNull(), F.lit("d")).otherwise(fields["op"])
    others = [column_named(name) for name in read.columns if name != column]
    return read.select(*others, *(field.alias(name) for name, field in fields.items()))


def _check(frame: DataFrame, column: str, on_error: str, schema: object, registry: object) -> None:
    refuse_frame(frame, column, on_error)
    if (schema is None) == (registry is None):
        both = "neither schema= nor registry=" if schema is None else "both schema= and registry="
        raise ContradictoryOptions(
            f"{both} is given to debezium.decode(…)",
            next_step="pass schema=, the table's columns, where records are JSON, or registry= "
            "where they are Avro",
        )
    there = [name for name in frame.columns if name in _FIELDS and name != column]
    if there:
        raise InvalidColumn(
            f"the frame has a column {there[0]!r} already, which debezium.decode(…) adds",
            next_step="rename it, or call decode(…) directly on the source's frame",
        )


def _must_be_envelope(kind: object) -> None:
    found = kind.names if isinstance(kind, StructType) else []
    if missing := [name for name in _FIELDS if name not in found]:
        raise UnsupportedSchema(
            f"the schema has no field {', '.join(missing)}, so that it is not Debezium's envelope "
            f"(it has {', '.join(found) or 'no fields'})",
            next_step="pass the subject of a topic that Debezium writes; read flattened records "
            "(ExtractNewRecordState) by ow.avro.decode(…)",
        )
