"""``ow.avro.encode``: a column becomes framed Avro. Driver only; called by users where they define
a query.
"""

from __future__ import annotations

import json
import operator
import uuid
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.avro.functions import to_avro
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    DayTimeIntervalType,
    MapType,
    StructType,
    TimestampNTZType,
    TimestampType,
    YearMonthIntervalType,
)

from onceward.engine.decoding import TAG, DecodingStep, register
from onceward.errors import ConfigurationError, InvalidColumn, SchemaUnknown, UnsupportedSchema
from onceward.formats.avro.memory import (
    Registry,
    SchemaMemory,
    as_registry,
    in_context,
)
from onceward.formats.avro.schemas import prefix, why_not_plain_avro
from onceward.formats.avro.step import RegistryMonitor
from onceward.formats.avro.types import Type, parse_types
from onceward.formats.avro.values import all_hold, or_true, texts_are_valid
from onceward.formats.registry.answers import WRITING
from onceward.formats.validation import in_place
from onceward.spark.batch.failures import RAISED
from onceward.spark.session.connector import must_have_avro
from onceward.spark.tables.avro_java import (
    schema_for,
    why_not_a_schema,
    why_not_writable,
    with_valid_namespaces,
)
from onceward.spark.types import column_named, must_keep_dates

_REFRESH_S = 30.0
_WAIT_S = 10.0
_COUNTED = (DateType, DayTimeIntervalType, YearMonthIntervalType)
"""Of which Spark writes the number of days, microseconds or months, whatever the schema counts."""
_COUNTED_AS: dict[type[DataType], str] = {DateType: "date"}


def encode(
    frame: DataFrame,
    *,
    registry: Registry | str,
    subject: str,
    column: str = "value",
    schema: str | int | None = None,
    auto_register_schemas: bool = False,
) -> DataFrame:
    """Encode ``column`` as Avro in the frame of a schema registry: binary, ready for a sink.

    ::

        rows = people.select("key", F.struct("name", "born").alias("value"))
        records = ow.avro.encode(rows, registry=registry, subject="people-clean-value")

    The column's fields are those of the schema, by name, in any order. A null in ``column`` stays
    a null, Kafka's deletion. Timestamps are written as precisely as the schema has them.

    A value that the schema cannot take (a null where it has none, a text that is no symbol of an
    enum or not UTF-8, two members of a union) fails the batch with
    :class:`~onceward.errors.UnencodableValue`; nothing is left out and nothing becomes null.

    :param registry: a :class:`onceward.SchemaRegistry`, or its address.
    :param subject: where the schema is registered; by default serializers use ``<topic>-value``.
    :param schema: Avro as JSON, the number of a version of ``subject``, or None for its newest
        version now.
    :param auto_register_schemas: register ``schema`` if it is not; without a ``schema`` one that
        Spark makes of the column's type. The registry refuses what is not compatible with older
        versions.
    :raises InvalidColumn: the column is missing, or its type is not the schema's.
    :raises ConfigurationError: the session has no spark-avro, or writes dates by another calendar.
    :raises SchemaUnknown: the registry has no such subject, version or schema.
    :raises UnsupportedSchema: it is no Avro, or the registry refuses it. :raises
        RegistryUnreachable: it does not answer.
    """
    must_have_avro(frame.sparkSession)
    registry = in_context(as_registry(registry), subject)
    kinds = {field.name: field for field in frame.schema.fields}
    if column not in kinds:
        raise InvalidColumn(
            f"column={column!r} is none of {', '.join(kinds)}",
            next_step="name the column that is to be encoded",
        )
    kind = kinds[column].dataType
    must_keep_dates(frame.sparkSession, kind, "avro")
    if auto_register_schemas and schema is None:
        schema = _derived(frame, column, kind, subject)
    number, text = _schema(frame, registry, subject, schema, auto_register_schemas)
    name = f"schema id {number} of subject {subject}"
    # A copy of the registry that lags may lack what was just registered
    SchemaMemory().ask(registry, [number], _WAIT_S)
    if (why := why_not_plain_avro(registry.schema(number), text, WRITING)) is not None:
        raise UnsupportedSchema(
            f"records of {name} cannot be written: {why}",
            next_step="register a schema without such rules (and with bytes in a record), or "
            "write by Confluent's serializer",
        )
    _check(frame, column, kind, text, name)
    step = _Encoding(registry, number)
    register(step)
    value = column_named(column)
    body = F.concat(F.lit(prefix(number)), to_avro(value, with_valid_namespaces(text)))
    for fits, why in (
        (texts_are_valid(value, kind), f"a text in column {column} is not UTF-8"),
        (
            _members_are_single(value, kind, parse_types(text)),
            f"column {column} has more than one member of a union",
        ),
    ):
        if fits is not None:
            unfit = {"raised": "unfit", "id": number, "message": why}
            stops = F.raise_error(F.lit(RAISED + json.dumps(unfit)))
            body = F.when(F.coalesce(fits, F.lit(True)), body).otherwise(stops)
    record = F.when(value.isNotNull(), body).alias(column)
    return frame.alias(step.tag).select(*in_place(frame, column, record))


class _Encoding(DecodingStep):
    """What is written under an id is read by what the registry has then: it has to stay."""

    sets_aside = False

    def __init__(self, registry: Registry, schema_id: int) -> None:
        self.tag = TAG + uuid.uuid4().hex
        self._monitor = RegistryMonitor(registry, [schema_id], _REFRESH_S)

    def before_batch(self) -> None:
        self._monitor.check()

    def dead_letters(self, rows: DataFrame) -> DataFrame:
        raise NotImplementedError


def _derived(frame: DataFrame, column: str, kind: DataType, subject: str) -> str:
    """Return the schema that Spark makes of the column's type."""
    text, why = schema_for(frame.sparkSession, kind, *_record_name(subject))
    if why is not None:
        raise InvalidColumn(
            f"no Avro schema can be made of column {column}: {why}",
            next_step="rename the field (select it by F.struct(…) with another alias), CAST it to "
            "a type that Avro has, or pass schema=",
            details={"column": column},
        )
    return text


def _schema(
    frame: DataFrame,
    registry: Registry,
    subject: str,
    schema: str | int | None,
    register_it: bool,
) -> tuple[int, str]:
    """Return the schema's id, and its text as self-contained Avro."""
    if isinstance(schema, str) and (why := why_not_a_schema(frame.sparkSession, schema)):
        raise UnsupportedSchema(
            f"schema= is no Avro schema: {why}", next_step="pass the text of an Avro schema"
        )
    if register_it and isinstance(schema, str):
        return registry.register(subject, schema), schema
    if register_it:
        raise ConfigurationError(
            f"schema={schema} is a version that is registered, and auto_register_schemas=True "
            "asks to register one",
            next_step="leave one of the two out, or pass schema= as the text of a schema",
        )
    if isinstance(schema, str):
        try:
            return registry.lookup(subject, schema), schema
        except SchemaUnknown as error:
            raise SchemaUnknown(
                f"schema= is not registered under {subject}: {error.message}",
                next_step="register it there (as a step of your deployment), or pass "
                "auto_register_schemas=True",
                details=error.details,
            ) from error
    version = registry.latest(subject) if schema is None else registry.version(subject, schema)
    return version.id, registry.resolved_text(version.id)


def _record_name(subject: str) -> tuple[str, str]:
    """Return a name and a namespace that Avro takes, for a schema that Spark makes."""
    stem = "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in subject)
    return f"r_{stem}" if not stem[:1].isalpha() else stem, "onceward"


def _check(frame: DataFrame, column: str, kind: DataType, text: str, name: str) -> None:
    """Compare the column with the schema."""
    why = "; ".join(_differences(kind, parse_types(text), column)) or why_not_writable(
        frame.sparkSession, kind, text
    )
    if why:
        raise InvalidColumn(
            f"column {column} cannot be written by {name}: {why}",
            next_step="select the column with the schema's fields and types (F.struct(…), CAST; "
            "F.lit(None) where it is to be null), or pass another schema=",
            details={"column": column},
        )


def _differences(kind: DataType, schema: Type, where: str) -> list[str]:
    """List what Spark would write as something else: of fields that only one of the two has nulls,
    and of a timestamp whose schema says nothing of time milliseconds, cut off."""
    schema, members = _without_null(schema)
    if members:
        fields = kind.fields if isinstance(kind, StructType) else []
        inside = [
            _differences(field.dataType, member, f"{where}.{field.name}")
            for field, member in zip(fields, members, strict=False)
        ]
        return [why for each in inside for why in each]
    if isinstance(kind, StructType) and schema.kind == "record":
        ours = {field.name: field.dataType for field in kind.fields}
        theirs = {field.names[0]: field.type for field in schema.fields}
        found = [f"{where}.{name} is missing" for name in theirs if name not in ours]
        found += [f"{where}.{name} is not in the schema" for name in ours if name not in theirs]
        for name in ours.keys() & theirs.keys():
            found += _differences(ours[name], theirs[name], f"{where}.{name}")
        return found
    if isinstance(kind, TimestampType | TimestampNTZType) and schema.kind == "long":
        why = f"{where} is a timestamp, and in the schema a long that stands for no time"
        return [] if schema.logical else [why]
    if isinstance(kind, _COUNTED) and schema.logical not in ("", _COUNTED_AS.get(type(kind))):
        return [f"{where} is {kind.simpleString()}, and in the schema {schema.logical}"]
    inner: Any = None
    if isinstance(kind, ArrayType) and schema.kind == "array":
        inner = kind.elementType
    elif isinstance(kind, MapType) and schema.kind == "map":
        inner = kind.valueType
    return [] if inner is None else _differences(inner, schema.inside[0], f"{where}[]")


def _without_null(schema: Type) -> tuple[Type, list[Type]]:
    """Return the one type of ``schema`` beside null; of a union of several these, too."""
    if schema.kind != "union":
        return schema, []
    others = [member for member in schema.inside if member.kind != "null"]
    return (others[0], []) if len(others) == 1 else (schema, others)


def _members_are_single(value: Column, kind: DataType, schema: Type) -> Column | None:
    """Return a condition that is false where a union in ``value`` has more than one member, of
    which Spark would write the first; None: it has no unions of several types."""
    schema, members = _without_null(schema)
    if isinstance(kind, StructType):
        by_name = {field.names[0]: field.type for field in schema.fields}
        inside = members or [by_name[field.name] for field in kind.fields]
        parts = [value.getField(field.name) for field in kind.fields]
        there = [F.when(part.isNotNull(), 1).otherwise(0) for part in parts]
        each = zip(parts, kind.fields, inside, strict=True)
        return all_hold(
            [
                reduce(operator.add, there) <= 1 if members else None,
                *(_members_are_single(part, field.dataType, inner) for part, field, inner in each),
            ]
        )
    if isinstance(kind, MapType):
        value, kind = F.map_values(value), ArrayType(kind.valueType)
    if not isinstance(kind, ArrayType):
        return None
    inner, items = kind.elementType, schema.inside[0]
    if _members_are_single(value, inner, items) is None:
        return None
    return F.forall(value, lambda item: or_true(_members_are_single(item, inner, items)))
