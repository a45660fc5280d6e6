"""The settings of a file sink, checked when it is built, immutable."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import SinkPolicy, check_choice, must_be_decided, whole_number
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.files.ledger import FolderLedger
from onceward.files.values import keeping
from onceward.spark.files.file_system import hidden, local_path, path_scheme, refuse_other_schemes
from onceward.spark.files.file_writer import COMMITTER_OPTIONS, MAX_RECORDS, FileFormat

Format = Literal["parquet", "orc", "json", "csv", "text", "avro"]
Layout = Literal["batches", "flat", "manifest"]

_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^]""")
"""What Spark escapes in folders' names (``ExternalCatalogUtils.charToEscape``), and patterns."""

HIDDEN = "_onceward"
"""Below the sink's path; what begins so is passed over by readers."""


@dataclass(frozen=True, slots=True)
class FileSinkSettings:
    """See :class:`onceward.FileSink`.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    ledger: Ledger
    path: str
    format: Format
    layout: Layout
    partition_by: tuple[str, ...]
    batch_column: str
    options: Mapping[str, str] = field(hash=False)
    commit_timeout_s: float
    target_file_size_bytes: int | None = None

    def __post_init__(self) -> None:
        check_choice("format", self.format, get_args(Format))
        check_choice("layout", self.layout, get_args(Layout))
        refuse_other_schemes(self.path, renames=self.renames)
        must_be_decided(self.ledger, self.commit_timeout_s)
        if self.layout == "manifest" and (
            hidden(self.policy.pipeline) or self.policy.pipeline.startswith("_")
        ):
            raise ConfigurationError(
                f"pipeline_id={self.policy.pipeline!r} names the lists of its batches, and "
                "readers (Spark, Hive) pass over files whose names begin with _ or .",
                next_step='choose another pipeline_id, or layout="batches", whose folders begin '
                "with the batch_column",
            )
        if self.target_file_size_bytes is not None:
            whole_number("target_file_size_bytes", self.target_file_size_bytes, 1)
        folders = [*self.partition_by, *([self.batch_column] if self.batches_have_folders else [])]
        for name in folders:
            _must_name_a_folder(name)
        if self.batches_have_folders and (found := _ESCAPED.search(self.batch_column)):
            raise ConfigurationError(
                f"batch_column={self.batch_column!r} names folders, in which readers take "
                f"{found[0]!r} for something else",
                next_step="pass a name of letters, digits and _",
            )
        if len({name.lower() for name in folders}) < len(folders):
            raise ContradictoryOptions(
                f"folders of one path are named by {', '.join(folders)}, of which two are the "
                "same",
                next_step="name each column once in partition_by, and give batch_column= a name "
                "of its own",
            )

    @property
    def renames(self) -> bool:
        """Files are published by renaming them."""
        return self.layout != "manifest"

    @property
    def batches_have_folders(self) -> bool:
        """Which readers take for a column."""
        return self.layout != "flat"

    @property
    def how(self) -> FileFormat:
        """What Spark is told."""
        return FileFormat(self.format, self.partition_by, keeping(self.format, self.options))


def checked_path(path: str | os.PathLike[str]) -> str:
    """Check a path."""
    if isinstance(path, Path):
        return f"file://{path.absolute()}"
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else ""
    if not isinstance(text, str) or not text.strip():
        raise ConfigurationError(
            f"path={path!r} names no folder", next_step="pass the path of a folder, or its URI"
        )
    return text


def default_ledger(path: str) -> Ledger:
    """Return a ledger beside the files, where these are on a local disk."""
    if path_scheme(path) not in ("", "file"):
        raise ConfigurationError(
            f"path={path!r} is on no local disk, where the ledger would be kept",
            next_step="pass ledger=ow.KafkaLedger(…) or ow.DatabaseLedger(…)",
        )
    return FolderLedger(Path(local_path(path) if path_scheme(path) else path) / HIDDEN / "ledger")


def column_names(partition_by: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of columns: one, several, or none."""
    if partition_by is None:
        return ()
    one = isinstance(partition_by, str) or not isinstance(partition_by, Iterable)
    found: tuple[Any, ...] = (partition_by,) if one else tuple(partition_by)
    if not all(isinstance(each, str) for each in found):
        raise ConfigurationError(
            f"partition_by={partition_by!r} does not name columns",
            next_step="pass a column's name, or a list of different ones",
        )
    return found


def text_options(
    options: Mapping[str, Any] | None, max_records_per_file: int | None
) -> dict[str, str]:
    """Return options as text, as Spark takes them."""
    own = {"path", "maxrecordsperfile", "__partition_columns", *COMMITTER_OPTIONS}
    texts: dict[str, str] = {}
    if not isinstance(options or {}, Mapping):
        raise ConfigurationError(
            f"options={options!r} is no dict",
            next_step="pass Spark's options of the format by their names: "
            '{"compression": "zstd"}',
        )
    for name, value in (options or {}).items():
        if str(name).lower() in own:
            raise ConfigurationError(
                f"options={{{name!r}: …}}: the sink itself says so to Spark",
                next_step="leave it out"
                + ("; pass max_records_per_file=" if "records" in name.lower() else ""),
            )
        if not isinstance(value, (str, bool, int, float)):
            raise ConfigurationError(
                f"options[{name!r}]={value!r} is no text", next_step="pass text or a number"
            )
        texts[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    if max_records_per_file is not None:
        whole_number("max_records_per_file", max_records_per_file, 1)
        texts[MAX_RECORDS] = str(max_records_per_file)
    return texts


def _must_name_a_folder(column: object) -> None:
    if not isinstance(column, str) or not column or hidden(column) or column.startswith("_"):
        raise ConfigurationError(
            f"column {column!r} would name folders, and readers (Hive, pyarrow) pass over those "
            "that begin with _ or .",
            next_step="give the column another name in the query, or batch_column=, or partition "
            "by another one",
        )
