"""``onceward.read_files``: what a file sink has published below a path, as a frame; and what all
files of one path have in common, so that whoever reads the path reads all of them, and right.

Readers take folders for columns only where all folders are alike, read all files as one format,
and tell neither a header nor another order of CSV columns from rows. So the shape is kept once for
a path, by whoever writes there first, in files that nobody replaces: ``_onceward/shape.json``, and
for CSV ``_onceward/columns.json``. Driver only.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from onceward.errors import ConfigurationError, InvalidColumn, TargetUnreachable
from onceward.files.manifest import ATTEMPT, DATA, MANIFESTS
from onceward.files.settings import HIDDEN, FileSinkSettings, checked_path
from onceward.spark.files import refuse_other_schemes
from onceward.spark.files.file_system import Files, files_at, hidden

log = logging.getLogger(__name__)

SHAPE = f"{HIDDEN}/shape.json"
COLUMNS = f"{HIDDEN}/columns.json"
# FileStreamSink.metadataDir, and SQLConf.FILESTREAM_SINK_METADATA_IGNORED
_SPARKS_LIST, _IGNORE = "_spark_metadata", "spark.sql.streaming.fileStreamSink.ignoreMetadata"
_DELTAS_LOG = "_delta_log"

# the others' files say themselves how they are to be read
_READ_BY_OPTIONS = ("csv", "json", "text")
_FOR_WRITERS_ONLY = {"compression", "codec", "maxrecordsperfile"}
# Spark's two names of one option
_SAME = {"delimiter": "sep", "charset": "encoding"}


def reader_shape(settings: FileSinkSettings) -> dict[str, Any]:
    """Return what a reader has to know, as JSON, and nothing else."""
    shape: dict[str, Any] = {"format": settings.format, "layout": settings.layout}
    if settings.batches_have_folders:
        shape["batch_column"] = settings.batch_column
    shape["partition_by"] = list(settings.partition_by)
    if settings.format in _READ_BY_OPTIONS:
        options = {name.lower(): value for name, value in settings.how.options.items()}
        by_name = {
            _SAME.get(name, name): value.lower() if value.lower() in ("true", "false") else value
            for name, value in options.items()
            if name not in _FOR_WRITERS_ONLY
        }
        shape["options"] = dict(sorted(by_name.items()))
    return shape


def must_be_there(files: Files, settings: FileSinkSettings) -> None:
    """Check that a path that was written to has its shape: else another is in its place.

    A disk that is away leaves an empty folder; what is written there is hidden when it is back.

    :raises TargetUnreachable: there is none.
    :raises OSError: the file system does not do its part.
    """
    if files.size(SHAPE) is None:
        raise TargetUnreachable(
            f"{files.uri(SHAPE)} is not there, though this pipeline has written below "
            f"{files.root}: its disk may not be mounted, or somebody has removed that file",
            next_step="mount it, or, if the folder was moved, pass where it is now as path=; "
            "nothing was written here. Where only that file is gone, or the path was emptied on "
            f"purpose, write {json.dumps(reader_shape(settings))} into {files.uri(SHAPE)}",
            details={"path": files.root, "shape": reader_shape(settings)},
        )


def keep(files: Files) -> None:
    """Make the shape of a path as young as its newest batch: else a retention of the path's files
    would remove it first. Never raises: another login may own it.
    """
    try:
        files.renew(SHAPE)
        files.renew(COLUMNS)
    except OSError as error:
        log.warning(
            "%s and %s stay as old as they are, and a retention that goes by age must leave them "
            "out: %s", files.uri(SHAPE), COLUMNS, error,
        )  # fmt: skip


def must_fit(files: Files, settings: FileSinkSettings) -> None:
    """Check that the shape is that of the path, which has it from now on if it had none.

    :raises ConfigurationError: it has another.
    :raises OSError: the file system does not do its part.
    """
    ours = reader_shape(settings)
    existing = _read(files, SHAPE, ours)
    if existing == ours:
        return
    names = [name for name in {**ours, **existing} if existing.get(name) != ours.get(name)]
    raise ConfigurationError(
        f"the files below {files.root} are written with {_settings_text(existing, names)}, and "
        f"this sink has {_settings_text(ours, names)}: readers of the path would pass over files "
        "of one of them, or read them wrongly",
        next_step="give the sink what the path has, or another path (the pipeline_id and the "
        "ledger may stay); or, where nothing below the path is wanted any more, empty it, write "
        f"{json.dumps(ours)} into {files.uri(SHAPE)}, and delete {COLUMNS}, if that is there",
        details={"kept": existing, "asked": ours},
    )


def must_list_nothing_else(files: Files) -> None:
    """Check that nobody else keeps a list of the files of the path, by which readers go.

    :raises ConfigurationError: Spark's own file sink does, or Delta.
    :raises OSError: the file system does not do its part.
    """
    if _spark_reads_a_list(files, SparkSession.getActiveSession()):
        raise ConfigurationError(
            f"Spark's own file sink has written to {files.root}, and has left {_SPARKS_LIST} "
            "there: Spark's readers see the files that this lists, and none of this sink's",
            next_step="write to another path; or stop that query for good, and "
            f"{_moved(files)}; docs/how-to/migration.md has the steps. Where Spark does not read "
            f"the path, or with {_IGNORE}=true, set that in the query's session, too",
            details={"path": files.root},
        )
    if files.size(_DELTAS_LOG) is not None:
        raise ConfigurationError(
            f"{files.root} is a Delta table: its readers see the files that {_DELTAS_LOG} names, "
            "none of this sink's, and its VACUUM removes all others",
            next_step="write to another path; or into the table, with ow.DeltaSink",
            details={"path": files.root},
        )


def _spark_reads_a_list(files: Files, session: SparkSession | None) -> bool:
    """Return whether Spark reads a list in place of the folder (``FileStreamSink.hasMetadata``),
    be it an empty one. What is in it is not looked at: it may be thousands of files."""
    ignored = session is not None and str(session.conf.get(_IGNORE, "false")).lower() == "true"
    return not ignored and files.size(_SPARKS_LIST) is not None


def _moved(files: Files) -> str:
    return (
        f"move {files.uri(_SPARKS_LIST)} out of the path (from then on readers also see files "
        "that failed attempts of that sink have left)"
    )


def columns_must_fit(files: Files, columns: Sequence[str]) -> None:
    """Check the columns of CSV files, whose values are told by their places only.

    :raises InvalidColumn: the path has others, or in another order.
    :raises OSError: the file system does not do its part.
    """
    ours = list(columns)
    existing = _read(files, COLUMNS, ours)
    if existing != ours:
        raise InvalidColumn(
            f"the frame has the columns {', '.join(ours)}, and the CSV files below {files.root} "
            f"have {', '.join(map(str, existing))}: readers go by their order",
            next_step="select these in this order, or write the frame to another path; or, where "
            f"there are no such files yet, delete {files.uri(COLUMNS)}",
        )


def _read(files: Files, path: str, ours: Any) -> Any:
    """Return what is kept at ``path``: ``ours``, or what somebody else has put there before."""
    text = files.put_if_absent(path, json.dumps(ours) + "\n")
    try:
        existing = json.loads(text)
    except ValueError:
        existing = None
    if not isinstance(existing, type(ours)):
        raise ConfigurationError(
            f"{files.uri(path)} is damaged: {text[:100]!r}",
            next_step=f"restore it; or, once it is certain that the files below {files.root} are "
            f"like this, write {json.dumps(ours)} into it",
            details={"asked": ours},
        )
    return existing


def _settings_text(shape: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name}={shape[name]!r}" if name in shape else f"no {name}" for name in names
    )


# Spark takes a path with one of these for a pattern (SparkHadoopUtil.isGlobPath)
_OF_PATTERNS = re.compile(r"[{}\[\]*?\\]")

_OWN_COLUMN = {"columnNameOfCorruptRecord": "onceward_corrupt_record"}
"""Rows may well have a column of Spark's usual name, as from ``from_json``."""


def read_files(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    schema: StructType | str | None = None,
    options: Mapping[str, Any] | None = None,
) -> DataFrame:
    """Read the rows of all batches that a :class:`onceward.FileSink` has published below ``path``
    by now.

    With ``layout="manifest"`` the lists are read first, and the frame has the files that they
    name: whole batches, the same ones however often it is computed. With the other layouts it is
    ``spark.read.load(path)``, once there is a file. Format, and for CSV, JSON and text the
    options, are those that the path was written with.

    :param spark: the session.
    :param path: as the sink has it.
    :param schema: of the rows, as ``DataFrameReader.schema`` takes it; needed where nothing may be
        published yet.
    :param options: of the reader, over those that the path was written with, such as
        ``mergeSchema``, or for CSV ``multiLine``, ``lineSep`` and ``nullValue``
        (docs/how-to/files.md tells when).
    :returns: the columns of the rows, for all layouts but "flat" ``batch`` (``batch_column``),
        which is ``<pipeline_id>@<number>``, and those of ``partition_by`` (texts, where nothing is
        published yet).
    :raises ConfigurationError: no file sink has written there, or Spark's own has, too; or nothing
        is published yet, and there is no ``schema``.
    :raises TargetUnreachable: the path cannot be read.
    """
    place = checked_path(path)
    refuse_other_schemes(place, renames=False)
    try:
        files = files_at(place, renames=False, session=spark)
        shape = _shape(files)
        if shape["layout"] == "manifest":
            published = _listed(spark, files)
        else:
            _must_read_the_folder(spark, files)
            published = [files.root] if _has_files(files) else []
    except OSError as error:
        raise TargetUnreachable(
            f"{place} cannot be read: {error}",
            next_step="check the path, and that this session may read there",
        ) from error
    reader = spark.read.format(shape["format"]).options(
        **{**_OWN_COLUMN, **shape.get("options", {}), **(options or {})}
    )
    if schema is not None:
        reader = reader.schema(schema)
    if published:
        paths = [_literal(path) for path in published]
        if shape["layout"] == "manifest":
            return reader.option("basePath", files.uri(DATA)).load(paths).drop(ATTEMPT)
        return reader.load(paths)
    if schema is None:
        raise ConfigurationError(
            f"nothing is published below {files.root} yet, so that nothing is known of its "
            "columns",
            next_step="pass schema=, or read it again once there is a batch",
        )
    nothing = spark.createDataFrame([], schema)
    folders = [shape.get("batch_column"), *shape.get("partition_by", [])]
    known = [name.lower() for name in nothing.columns]
    missing = [name for name in folders if name and name.lower() not in known]
    return nothing.withColumns({name: f.lit(None).cast("string") for name in missing})


def _must_read_the_folder(spark: SparkSession, files: Files) -> None:
    if _spark_reads_a_list(files, spark):
        raise ConfigurationError(
            f"Spark's own file sink has written to {files.root}, too, and Spark would read the "
            f"files alone that {_SPARKS_LIST} there lists",
            next_step=f"{_moved(files)}; or set {_IGNORE}=true in this session, at the same price",
            details={"path": files.root},
        )


def _has_files(files: Files) -> bool:
    """Return whether readers of the path find a file. Of a file there is no list, and of a folder
    that is empty, as one whose files were taken away, an empty one."""
    return any(files.listed(name) != {} for name in files.names("") if not hidden(name))


def _shape(files: Files) -> dict[str, Any]:
    text = files.text(SHAPE)
    try:
        shape = json.loads(text) if text is not None else None
        if isinstance(shape, dict) and {"format", "layout"} <= shape.keys():
            return shape
    except ValueError:
        pass
    raise ConfigurationError(
        f"no file sink has written below {files.root}: there is no {SHAPE} that tells how",
        next_step="pass the path that the sink has; files of others are read with spark.read",
    )


def _listed(spark: SparkSession, files: Files) -> list[str]:
    """Read the lists by Spark's own tasks: there is one for each batch."""
    if not files.names(MANIFESTS):
        return []
    lists = spark.read.text(_literal(files.uri(MANIFESTS)))
    return [row.value for row in lists.collect() if row.value]


def _literal(path: str) -> str:
    """Return the pattern that ``path`` alone fits (Hadoop's ``GlobPattern``)."""
    return _OF_PATTERNS.sub(r"\\\g<0>", path)
