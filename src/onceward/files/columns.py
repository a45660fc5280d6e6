"""Rules by which a frame fits the files that a sink writes. Values only; what a format itself
refuses, Spark says.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    ByteType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onceward.errors import InvalidColumn
from onceward.files.manifest import ATTEMPT
from onceward.files.settings import FileSinkSettings
from onceward.spark.types import contains_type


def check(schema: StructType, settings: FileSinkSettings) -> None:
    """Check a frame's columns as it is handed over, before anything is computed.

    :raises InvalidColumn: a column is missing, or in the way.
    """
    for rule in _RULES:
        error = rule(schema, settings)
        if error is not None:
            raise error


def _partition_is_missing(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    for column in settings.partition_by:
        if column.lower() not in _lower(schema):
            return InvalidColumn(
                f"the frame has no column {column!r} to partition by; it has "
                f"{', '.join(schema.names) or 'none'}",
                next_step="select it in the query, or correct partition_by",
            )
    return None


def _folder_loses_values(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    for column in settings.partition_by:
        kind = kinds[column.lower()]
        if isinstance(kind, (BinaryType, TimestampType)):
            is_bytes = isinstance(kind, BinaryType)
            why = "bytes need be no text" if is_bytes else "it would be a time without its zone"
            return InvalidColumn(
                f"column {column!r} of partition_by is of type {kind.simpleString()}, and no "
                f"folder's name gives its values back: {why}",
                next_step="partition by a date or a text that the query makes of it (to_date, "
                "date_format, hex)",
            )
    return None


def _batch_column_is_taken(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    if not settings.batches_have_folders or settings.batch_column.lower() not in _lower(schema):
        return None
    return InvalidColumn(
        f"the frame has a column {settings.batch_column!r}, and so has each batch's folder "
        f"({settings.batch_column}=…): readers would see one of them",
        next_step="pass another name as batch_column=, or rename the column",
    )


def _attempt_is_taken(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    if settings.layout != "manifest" or ATTEMPT not in _lower(schema):
        return None
    return InvalidColumn(
        f"the frame has a column {ATTEMPT!r}, and so has each attempt's folder ({ATTEMPT}=…)",
        next_step="rename the column in the query",
    )


def _files_are_empty(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    if columns_in_files(schema.names, settings.partition_by):
        return None
    return InvalidColumn(
        "the frame has no columns but those of partition_by, which become folders",
        next_step="leave at least one column to the files",
    )


def _is_no_text(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    names = columns_in_files(schema.names, settings.partition_by)
    kinds = [type(schema[name].dataType) for name in names]
    if settings.format != "text" or kinds == [StringType]:
        return None
    return InvalidColumn(
        f"text files take one column of type string, and the frame has {', '.join(names)}",
        next_step="make one string of each row, or use another format",
    )


def _is_no_csv(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    for name in columns_in_files(schema.names, settings.partition_by):
        if settings.format == "csv" and isinstance(schema[name].dataType, BinaryType):
            return InvalidColumn(
                f"column {name} is of type binary, of which a CSV file would have the bytes' "
                "numbers, as text",
                next_step="select base64(…) or hex(…) of it in the query, or use another format",
            )
    return None


def _is_no_avro(schema: StructType, settings: FileSinkSettings) -> InvalidColumn | None:
    for name in columns_in_files(schema.names, settings.partition_by):
        if settings.format == "avro" and contains_type(schema[name].dataType, ByteType, ShortType):
            return InvalidColumn(
                f"column {name} is of type {schema[name].dataType.simpleString()}, and Avro has "
                "no tinyint and no smallint: readers refuse the file with this schema",
                next_step="cast it to int in the query",
            )
    return None


_RULES = (
    _partition_is_missing,
    _folder_loses_values,
    _batch_column_is_taken,
    _attempt_is_taken,
    _files_are_empty,
    _is_no_text,
    _is_no_csv,
    _is_no_avro,
)


def _lower(schema: StructType) -> set[str]:
    # Spark's own rule, unless spark.sql.caseSensitive is set
    return {name.lower() for name in schema.names}


def columns_in_files(names: Sequence[str], partition_by: Sequence[str]) -> list[str]:
    """Return the columns that are in the files, in their order: the others become folders."""
    folders = {column.lower() for column in partition_by}
    return [name for name in names if name.lower() not in folders]
