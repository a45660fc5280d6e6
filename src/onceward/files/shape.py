"""What all files of one path have in common, so that whoever reads the path reads all of them, and
reads them right.

Readers take folders for columns only where all folders are alike, read all files as one format,
and tell neither a header nor another order of CSV columns from rows. So the shape is kept once for
a path, by whoever writes there first, in files that nobody replaces: ``_onceward/shape.json``, and
for CSV ``_onceward/columns.json``. Driver only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.errors import ConfigurationError, InvalidColumn, TargetUnreachable
from onceward.files.settings import HIDDEN, FileSinkSettings
from onceward.spark.files.file_system import Files

SHAPE = f"{HIDDEN}/shape.json"
COLUMNS = f"{HIDDEN}/columns.json"

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
            _SAME.get(name, name): _as_said(value)
            for name, value in options.items()
            if name not in _FOR_WRITERS_ONLY
        }
        shape["options"] = dict(sorted(by_name.items()))
    return shape


def _as_said(value: str) -> str:
    return value.lower() if value.lower() in ("true", "false") else value


def must_be_there(files: Files, settings: FileSinkSettings) -> None:
    """Check that a path that has been written to has its shape: without it, another path is in its
    place.

    A disk that is not mounted leaves an empty folder, and what is written there is hidden once it
    is mounted again.

    :raises TargetUnreachable: there is none.
    :raises OSError: the file system does not do its part.
    """
    if files.size(SHAPE) is None:
        raise TargetUnreachable(
            f"{files.uri(SHAPE)} is not there, though this pipeline has written below "
            f"{files.root}: its disk may not be mounted",
            next_step="mount it; nothing was written in its place. Where the path was emptied on "
            f"purpose, write {_text(reader_shape(settings))} into {files.uri(SHAPE)}",
            details={"path": files.root, "shape": reader_shape(settings)},
        )


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
        f"{_text(ours)} into {files.uri(SHAPE)}, and delete {COLUMNS}, if that is there",
        details={"kept": existing, "asked": ours},
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
    text = files.put_if_absent(path, _text(ours) + "\n")
    try:
        existing = json.loads(text)
    except ValueError:
        existing = None
    if not isinstance(existing, type(ours)):
        raise ConfigurationError(
            f"{files.uri(path)} is damaged: {text[:100]!r}",
            next_step=f"restore it; or, once it is certain that the files below {files.root} are "
            f"like this, write {_text(ours)} into it",
            details={"asked": ours},
        )
    return existing


def _text(value: Any) -> str:
    """Format it as one line, so that it can be written by hand."""
    return json.dumps(value)


def _settings_text(shape: Mapping[str, Any], names: Sequence[str]) -> str:
    return ", ".join(
        f"{name}={shape[name]!r}" if name in shape else f"no {name}" for name in names
    )
