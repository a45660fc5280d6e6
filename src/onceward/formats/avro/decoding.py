"""``ow.avro.decode``: framed Avro becomes a column. Driver only; called by users where they define
a query.
"""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import replace
from functools import partial
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, StructType

from onceward.engine.decoding import TAG
from onceward.errors import ConfigurationError, SchemaUnknown, UnsupportedSchema
from onceward.formats.avro.memory import (
    Registry,
    Schemas,
    as_registry,
    id_file,
    in_context,
    memory_for,
)
from onceward.formats.avro.plan import AvroPlan, Whole
from onceward.formats.avro.resolution import why_some_are_lost, why_values_would_change
from onceward.formats.avro.schemas import (
    why_not_plain_avro,
    without_java_texts,
    without_times,
)
from onceward.formats.avro.step import MOST_IDS, AvroDecoding
from onceward.formats.avro.types import (
    why_names_collide,
    why_spark_cannot_read,
    with_nulls_first,
    without_unfit_defaults,
)
from onceward.formats.registry.answers import DOWNWARD, READING, UPWARD, Version, topic_subject
from onceward.formats.validation import refuse_frame
from onceward.spark.batch.kafka_reader import read_topics
from onceward.spark.session.connector import must_have_avro
from onceward.spark.session.settings import is_on
from onceward.spark.tables.avro_java import (
    avro_column,
    keep_within_limits,
    why_not_a_column,
    why_not_a_schema,
    why_not_readable_as,
)

log = logging.getLogger(__name__)


def decode(
    frame: DataFrame,
    *,
    registry: Registry | str,
    column: str = "value",
    subject: str | None = None,
    reader_schema: str | int | None = None,
    on_error: Literal["stop", "dead_letter"] = "stop",
    refresh_s: float = 30.0,
    unknown_id_wait_s: float = 10.0,
    checkpoint: str | os.PathLike[str] | None = None,
) -> DataFrame:
    """Decode ``column``, records in the frame of a schema registry: to a struct where they are
    records.

    ::

        source = ow.kafka_source(spark, topic="people", …)
        registry = ow.SchemaRegistry("http://registry:8081")
        people = ow.avro.decode(source, registry=registry, on_error="dead_letter")
        people.select("key", "value.name", "value.born")

    Each record is read by the schema that it was written with, as the reader's schema: records and
    fields are found by name or alias, what is missing has its default, what is new is left out
    (Avro 1.12, "Schema Resolution"). All columns inside may be null. A null value, Kafka's
    deletion, stays: the row has a null there.

    A record that is not framed, names a schema that the registry does not have, ends before or
    after its bytes, holds a text that is not UTF-8, an int of more than 32 bits, or a value that
    the reader's schema does not take, is *poison*. An id that was unknown when the query was
    defined stops the query with :class:`~onceward.errors.NewSchemaId`, whatever ``on_error`` says,
    and the next definition in this process knows it: :func:`onceward.supervise` sees to that. One
    in another process knows it by ``checkpoint``.

    :param registry: a :class:`onceward.SchemaRegistry`, or its address. It is asked when the query
        is defined, and when a new id is met.
    :param column: binary.
    :param subject: the schemas of all its versions are known from the start, those of others are
        learnt when they are met. Default: ``<topic>-value`` (or ``-key``), if ``frame`` comes from
        one topic of Kafka.
    :param reader_schema: as which schema records are read: Avro as JSON, the number of a version
        of ``subject``, or None for its newest version now. Columns may be others then when the
        query is started again.
    :param on_error: what poison does. ``"stop"``: the batch fails with
        :class:`~onceward.errors.InvalidRecord`, which says where the record is. ``"dead_letter"``:
        it goes to ``KafkaSink(dead_letter_topic=…)`` in the batch's own transaction, and only the
        others are in the result. For streams, directly on the source's frame.
    :param refresh_s: how often, at most, a batch begins with a look whether the registry is still
        the same.
    :param unknown_id_wait_s: how long an id is asked for that the registry does not have, before
        it counts as unknown; where the query is defined, of an id that it had before.
    :param checkpoint: the query's ``checkpointLocation``. Ids that its batches meet are kept there
        for the next process; without it each process has to meet them itself, and one that is
        ended by :class:`~onceward.errors.NewSchemaId` meets them for ever. Under ``onceward run``
        its next process knows them in any case.

    Of a frame that is no stream, the ids are looked for first, by a job of its own.

    :raises ConfigurationError: the session has no spark-avro, or a setting contradicts another.
    :raises InvalidColumn: there is no such column, or it is not binary.
    :raises SchemaUnknown: the registry has no such subject or version. :raises
        RegistryUnreachable: it does not answer.
    :raises UnsupportedSchema: the reader's schema is no Avro, or Spark has no column for it (a
        record within itself).
    :raises UnsupportedQuery: dead letters of a frame that is no stream.
    :raises CheckpointUnreachable: what is kept beside ``checkpoint`` cannot be read.
    """
    return decode_with(
        frame,
        registry=registry,
        column=column,
        subject=subject,
        reader_schema=reader_schema,
        on_error=on_error,
        refresh_s=refresh_s,
        unknown_id_wait_s=unknown_id_wait_s,
        checkpoint=checkpoint,
    )


def decode_with(
    frame: DataFrame,
    *,
    registry: Registry | str,
    column: str,
    subject: str | None,
    reader_schema: str | int | None,
    on_error: Literal["stop", "dead_letter"],
    refresh_s: float,
    unknown_id_wait_s: float,
    checkpoint: str | os.PathLike[str] | None,
    whole: Whole | None = None,
) -> DataFrame:
    """Decode as :func:`decode` does.

    :param whole: asked of each record.
    :raises OncewardError: as :func:`decode`.
    """
    _check(frame, column, on_error, refresh_s, unknown_id_wait_s)
    registry = as_registry(registry)
    session = frame.sparkSession
    must_have_avro(session)
    keep_within_limits(session)
    subject = _subject(frame, column, subject, required=not isinstance(reader_schema, str))
    registry = in_context(registry, subject)
    memory = memory_for(registry, subject)
    file = id_file(session, checkpoint, registry, subject)
    versions = _versions(registry, subject, reader_schema)
    ids = [version.id for version in versions]
    others = file.recall(memory) if file is not None else []
    schemas = memory.schemas(registry, ids, unknown_id_wait_s, others)
    reader, name, number = _reader(registry, subject, reader_schema)
    _refuse_reader(session, reader, name)
    if frame.isStreaming and on_error == "stop":
        # It had them: records of them are asked for by name, and are not invalid
        missing = schemas.missing - memory.fingerprints().keys()
        schemas = replace(schemas, missing=missing)
    tag = TAG + uuid.uuid4().hex
    migrated = _migrated(versions, number)
    new_plan = partial(
        _plan, session, tag, column, migrated, reader, whole, _id_header(frame, column)
    )
    plan = new_plan(schemas)
    if not frame.isStreaming and (unseen := plan.unseen(frame, MOST_IDS)):
        memory.ask(registry, unseen, unknown_id_wait_s)
        plan = new_plan(memory.schemas(registry, ids))
    step = AvroDecoding(
        tag, plan, registry, memory,
        sets_aside=on_error == "dead_letter", refresh_s=refresh_s, wait_s=unknown_id_wait_s,
        id_file=file,
    )  # fmt: skip
    return step.apply(frame)


def _check(
    frame: DataFrame, column: str, on_error: str, refresh_s: float, unknown_id_wait_s: float
) -> None:
    refuse_frame(frame, column, on_error)
    for name, seconds in (("refresh_s", refresh_s), ("unknown_id_wait_s", unknown_id_wait_s)):
        if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
            raise ConfigurationError(
                f"{name}={seconds!r}", next_step=f"set {name} to 0 or more seconds"
            )


def _subject(frame: DataFrame, column: str, subject: str | None, *, required: bool) -> str | None:
    if subject is not None:
        return subject
    topics = read_topics(frame) if column in ("key", "value") else []
    if len(topics) == 1:
        return topic_subject(topics[0], "key" if column == "key" else "value")
    if not required:
        return None
    raise ConfigurationError(
        "subject= is not given, and cannot be told from the frame "
        f"({', '.join(topics) or 'no topic of Kafka'})",
        next_step="pass subject= (by default serializers use <topic>-value), or the text of the "
        "reader's schema as reader_schema=",
    )


def _versions(
    registry: Registry, subject: str | None, reader_schema: str | int | None
) -> list[Version]:
    if subject is None:
        return []
    try:
        return registry.versions(subject)
    except SchemaUnknown:
        if not isinstance(reader_schema, str):
            raise
        log.warning(
            "%r has no subject %s yet; the ids of its schemas are learnt when they are met",
            registry,
            subject,
        )
        return []


def _migrated(versions: list[Version], reader: int | None) -> dict[int, str]:
    """Return the ids of versions whose records a rule would migrate to the reader's, and why they
    cannot be read without it.

    :param reader: the reader's version; None: a schema of the user's, which counts as the newest.
    """
    reader = reader or max((version.version for version in versions), default=0)
    found = {}
    for version in versions:
        low, high = sorted((version.version, reader))
        modes = UPWARD if version.version < reader else DOWNWARD
        for step in versions:
            if low < step.version <= high and (rule := step.schema.rule_in(modes)) is not None:
                found[version.id] = (
                    f"rule {rule} of version {step.version} migrates its records to the reader's "
                    "schema in Confluent's deserializers, and is not carried out here"
                )
    return found


def _reader(
    registry: Registry, subject: str | None, reader_schema: str | int | None
) -> tuple[str, str, int | None]:
    """Return the reader's schema, how to call it, and its version."""
    if isinstance(reader_schema, str):
        return reader_schema, "reader_schema=", None
    assert subject is not None  # noqa: S101 — it is required then
    version = (
        registry.latest(subject)
        if reader_schema is None
        else registry.version(subject, reader_schema)
    )
    name = f"version {version.version} of subject {subject}"
    log.debug("records are read as %s (schema id %d)", name, version.id)
    text = registry.resolved_text(version.id)
    if (why := why_not_plain_avro(version.schema, text, READING)) is not None:
        raise UnsupportedSchema(
            f"records of {name} cannot be read: {why}",
            next_step="let producers register a schema without such rules (and with bytes in a "
            "record), or read the topic by their own deserializer",
            details={"reader": name},
        )
    return text, name, version.version


def _refuse_reader(session: SparkSession, reader: str, name: str) -> None:
    why = why_not_a_schema(session, reader) or why_spark_cannot_read(reader)
    why = why or why_not_a_column(session, without_times(reader))
    if why is None and not is_on(session, "spark.sql.caseSensitive"):
        why = why_names_collide(reader)
    if why is not None:
        raise UnsupportedSchema(
            f"{name} cannot be the schema of a column: {why}",
            next_step="pass a schema that Spark can have a column of as reader_schema= (fields "
            "may be left out of it)",
            details={"reader": name},
        )


def _id_header(frame: DataFrame, column: str) -> str | None:
    """Return the header in which Confluent's ``HeaderSchemaIdSerializer`` writes the schema, where
    ``frame`` has headers."""
    headers = frame.schema["headers"].dataType if "headers" in frame.columns else None
    entry = headers.elementType if isinstance(headers, ArrayType) else None
    has_keys = isinstance(entry, StructType) and "key" in entry.names
    return f"__{column}_schema_id" if has_keys and column in ("key", "value") else None


def _plan(
    session: SparkSession,
    tag: str,
    column: str,
    migrated: dict[int, str],
    reader: str,
    whole: Whole | None,
    id_header: str | None,
    schemas: Schemas,
) -> AvroPlan:
    reader = without_unfit_defaults(with_nulls_first(reader))
    texts, unreadable, unfit = {}, dict(schemas.unreadable), {}
    for number, text in schemas.texts.items():
        why = (
            migrated.get(number)
            or why_not_a_schema(session, text)
            or why_spark_cannot_read(text)
            or why_values_would_change(text, reader)
        )
        if why is not None:
            unreadable[number] = why
            log.warning("records of schema id %d cannot be read: %s", number, why)
            continue
        texts[number] = without_java_texts(without_unfit_defaults(text))
        if (lost := why_some_are_lost(text, reader)) is not None:
            log.warning("some records of schema id %d cannot be read: %s", number, lost)
        if (doubt := lost or why_not_readable_as(session, text, reader)) is not None:
            unfit[number] = doubt
    reader = without_java_texts(without_times(reader))
    return AvroPlan(
        tag,
        column,
        Schemas(texts, unreadable, schemas.missing),
        reader,
        avro_column(session, reader),
        unfit,
        whole,
        id_header,
    )
