"""Rules by which a frame fits the files that a sink writes. Values only; what a format itself
refuses, Spark says.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from onceward.errors import InvalidColumn
from onceward.files.manifest import ATTEMPT
from onceward.files.settings import FileSinkSettings
from onceward.spark.types import contains_type, field_names, map_key_types

_TEXT_GIVES_BACK = (StringType, NumericType, BooleanType)
"""Types of map keys that a cast makes of their text in JSON again."""


def check(schema: StructType, settings: FileSinkSettings) -> None:
    """Check a frame's columns as it is handed over, before anything is computed.

    :raises InvalidColumn: a column is missing, or in the way.
    """
    # readers take two spellings for one, whatever spark.sql.caseSensitive is where it is written
    kinds = {field.name.lower(): field.dataType for field in schema.fields}
    for column in settings.partition_by:
        if column.lower() not in kinds:
            raise InvalidColumn(
                f"the frame has no column {column!r} to partition by; it has "
                f"{', '.join(schema.names) or 'none'}",
                next_step="select it in the query, or correct partition_by",
            )
    for column in settings.partition_by:
        _check_folder(column, kinds[column.lower()])
        spellings = [name for name in schema.names if name.lower() == column.lower()]
        if len(spellings) > 1:
            raise InvalidColumn(
                f"the frame has the columns {', '.join(spellings)}, and {column!r} of "
                "partition_by becomes a folder: readers would see one of them",
                next_step="rename the others in the query",
            )
    if settings.batches_have_folders and settings.batch_column.lower() in kinds:
        raise InvalidColumn(
            f"the frame has a column {settings.batch_column!r}, and so has each batch's folder "
            f"({settings.batch_column}=…): readers would see one of them",
            next_step="pass another name as batch_column=, or rename the column",
        )
    if settings.layout == "manifest" and ATTEMPT in kinds:
        raise InvalidColumn(
            f"the frame has a column {ATTEMPT!r}, and so has each attempt's folder ({ATTEMPT}=…)",
            next_step="rename the column in the query",
        )
    names = columns_in_files(schema.names, settings.partition_by)
    if not names:
        raise InvalidColumn(
            "the frame has no columns but those of partition_by, which become folders",
            next_step="leave at least one column to the files",
        )
    if settings.format == "text" and [type(schema[name].dataType) for name in names] != [
        StringType
    ]:
        raise InvalidColumn(
            f"text files take one column of type string, and the frame has {', '.join(names)}",
            next_step="make one string of each row, or use another format",
        )
    if settings.format == "orc" and any(not name or "`" in name for name in field_names(schema)):
        raise InvalidColumn(
            "a column, or a field inside of one, has no name, or a name with a backtick, for "
            "which ORC files have no place",
            next_step="rename it in the query, or use another format",
        )
    for name in names:
        _check_written(name, schema[name].dataType, settings.format)


def _check_folder(column: str, kind: DataType) -> None:
    if isinstance(kind, (BinaryType, TimestampType)):
        is_bytes = isinstance(kind, BinaryType)
        why = "bytes need be no text" if is_bytes else "it would be a time without its zone"
        raise InvalidColumn(
            f"column {column!r} of partition_by is of type {kind.simpleString()}, and no "
            f"folder's name gives its values back: {why}",
            next_step="partition by a date or a text that the query makes of it (to_date, "
            "date_format, hex)",
        )


def _check_written(name: str, kind: DataType, file_format: str) -> None:
    if file_format == "csv" and isinstance(kind, BinaryType):
        raise InvalidColumn(
            f"column {name} is of type binary, of which a CSV file would have the bytes' "
            "numbers, as text",
            next_step="select base64(…) or hex(…) of it in the query, or use another format",
        )
    if file_format == "avro" and contains_type(kind, ByteType, ShortType):
        raise InvalidColumn(
            f"column {name} is of type {kind.simpleString()}, and Avro has "
            "no tinyint and no smallint: readers refuse the file with this schema",
            next_step="cast it to int in the query",
        )
    keys = [one for one in map_key_types(kind) if not isinstance(one, _TEXT_GIVES_BACK)]
    if file_format == "json" and keys:
        raise InvalidColumn(
            f"column {name} has a map with keys of type {keys[0].simpleString()}, of which a JSON "
            "file would have texts that do not give them back",
            next_step="make texts of the keys in the query, transform_keys(…, (k, v) -> CAST(k AS "
            "STRING)), hex(k) of bytes, say; or use another format",
        )


def columns_in_files(names: Sequence[str], partition_by: Sequence[str]) -> list[str]:
    """Return the columns that are in the files, in their order: the others become folders."""
    folders = {column.lower() for column in partition_by}
    return [name for name in names if name.lower() not in folders]
