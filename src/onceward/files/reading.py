"""``onceward.read_files``: what a file sink has published below a path, as a frame. Driver
only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from onceward.errors import ConfigurationError, TargetUnreachable
from onceward.files.manifest import ATTEMPT, DATA, MANIFESTS
from onceward.files.settings import checked_path
from onceward.files.shape import SHAPE
from onceward.spark.files.file_system import Files, files_at, refuse_other_schemes

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
    ``spark.read.load(path)``. Format, and for CSV, JSON and text the options, are those that the
    path was written with.

    :param spark: the session.
    :param path: as the sink has it.
    :param schema: of the rows, as ``DataFrameReader.schema`` takes it; needed where nothing may be
        published yet.
    :param options: of the reader, over those that the path was written with, such as
        ``mergeSchema``, or for CSV ``multiLine``, ``lineSep`` and ``nullValue``
        (docs/how-to/files.md tells when).
    :returns: the columns of the rows, those of ``partition_by``, and for all layouts but "flat"
        ``batch`` (``batch_column``), which is ``<pipeline_id>@<number>``.
    :raises ConfigurationError: no file sink has written there; or nothing is published yet, and
        there is no ``schema``.
    :raises TargetUnreachable: the path cannot be read.
    """
    place = checked_path(path)
    refuse_other_schemes(place, renames=False)
    try:
        files = files_at(place, renames=False)
        shape = _shape(files)
        published = _listed(spark, files) if shape["layout"] == "manifest" else [files.root]
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
    folders = [*shape.get("partition_by", []), shape["batch_column"]]
    missing = [name for name in folders if name.lower() not in map(str.lower, nothing.columns)]
    return nothing.withColumns({name: f.lit(None).cast("string") for name in missing})


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
