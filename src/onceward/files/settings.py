"""The settings of a file sink, checked when it is built, immutable; and values that a format
would change on the way: options that keep them, and rows that no option keeps. Driver only.

Spark's own options for CSV and JSON write timestamps to milliseconds, and CSV without the spaces
around a text. What the user sets himself stays as he has it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import Any, Literal, get_args

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import SinkPolicy, check_choice, must_be_decided, whole_number
from onceward.errors import ConfigurationError, ContradictoryOptions
from onceward.files.ledger import FolderLedger
from onceward.spark.batch.carried import unless
from onceward.spark.files import local_path, path_scheme, refuse_other_schemes
from onceward.spark.files.file_system import hidden
from onceward.spark.files.file_writer import COMMITTER_OPTIONS, MAX_RECORDS, FileFormat
from onceward.spark.session.settings import is_on
from onceward.spark.types import (
    column_named,
    must_keep_dates,
    must_keep_instants,
    must_keep_microseconds,
)

# read back without an option; offsets have seconds where a zone's had them (XXXXX)
_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_PARSER = "spark.sql.legacy.timeParserPolicy"
_SPACES = {"ignoreLeadingWhiteSpace": "false", "ignoreTrailingWhiteSpace": "false"}
_KEEPING: dict[str, Mapping[str, str]] = {"json": _TIMES, "csv": {**_TIMES, **_SPACES}}

_BLANKS = "".join(map(chr, range(ord(" ") + 1)))
"""What Java's ``String.trim`` takes away: with nothing else a line is empty to Spark's CSV reader
(``CSVExprUtils.filterCommentAndEmpty``)."""
# What has a line break is written in quotes
_BLANK = r"^[\x00-\x20&&[^\r\n]]+$"


def keeping(format_name: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return a format's options that change no value, and over them those that were ``given``."""
    set_already = {name.lower() for name in given}
    ours = {
        name: value
        for name, value in _KEEPING.get(format_name, {}).items()
        if name.lower() not in set_already
    }
    return {**ours, **given}


def must_keep_times(frame: DataFrame, format_name: str, given: Mapping[str, str]) -> None:
    """Check how the session writes timestamps.

    :raises ConfigurationError: it writes them without microseconds (by Java's old rules, or to
        Parquet), by another calendar, or to ORC by a clock that is not UTC's.
    """
    session = frame.sparkSession
    must_keep_dates(session, frame.schema, format_name)
    if format_name == "parquet":
        must_keep_microseconds(session, frame.schema)
    if format_name == "orc":
        must_keep_instants(session, frame.schema)
    if format_name not in _KEEPING or "timestampformat" in {name.lower() for name in given}:
        return
    if str(session.conf.get(_PARSER)).upper() == "LEGACY":
        raise ConfigurationError(
            f"{_PARSER}=LEGACY writes timestamps into {format_name} files to milliseconds at most",
            next_step=f"set {_PARSER} to CORRECTED; or say what shall become of timestamps: "
            "options={'timestampFormat': …}",
        )


def guarded(
    frame: DataFrame, format_name: str, options: Mapping[str, str], columns: Sequence[str]
) -> DataFrame:
    """Return ``frame`` with a check: its job fails with :class:`~onceward.errors.RowRefused` at a
    row that could not be read back.

    :param columns: those of the frame that are in the files.
    """
    by_name = {name.lower(): value for name, value in options.items()}
    is_exact = is_on(frame.sparkSession, "spark.sql.caseSensitive")
    names = {name if is_exact else name.lower() for name in frame.columns}
    if len(names) < len(frame.columns):
        return frame  # which Spark refuses
    if format_name == "text":
        return _text(frame, by_name, columns[0])
    return _csv(frame, by_name, columns) if format_name == "csv" else frame


def _text(frame: DataFrame, options: Mapping[str, str], name: str) -> DataFrame:
    value = column_named(name)
    breaks = (
        value.contains(f.lit(options["linesep"]))
        if "linesep" in options
        else value.rlike("[\r\n]")
    )
    return _with(
        frame,
        name,
        value.isNull() | breaks | value.startswith("\ufeff"),
        f"a value of column {name} is null, or has a line break in it, or a byte order mark in "
        "front, none of which a text file can tell",
        "fill and escape such values in the query, or write another format (json keeps all of "
        "them)",
    )


def _csv(frame: DataFrame, options: Mapping[str, str], columns: Sequence[str]) -> DataFrame:
    separator = options.get("sep", options.get("delimiter", ",")).replace("\\t", "\t")
    if options.get("quoteall") == "true" or (len(columns) > 1 and separator.strip(_BLANKS)):
        # Whose lines have more than blanks
        return frame
    texts = {field.name for field in frame.schema.fields if isinstance(field.dataType, StringType)}
    each = [_blank(name, options, is_text=name in texts) for name in columns]
    return _with(
        frame,
        columns[0],
        reduce(and_, each),
        f"a row has nothing but nulls and blanks in {', '.join(columns)}: its CSV line would be "
        "blank, and readers pass over those",
        "fill such rows in the query (coalesce), or leave them out; or pass options={'quoteAll': "
        "True}, with which null and the empty text are written alike",
    )


def _blank(name: str, options: Mapping[str, str], *, is_text: bool) -> Column:
    value = column_named(name)
    blank = [f.lit(False)]
    if not options.get("nullvalue", "").strip(_BLANKS):
        blank.append(value.isNull())
    if is_text:
        blank.append(value.isNotNull() & value.rlike(_BLANK))
        if not options.get("emptyvalue", '""').strip(_BLANKS):
            blank.append(value.isNotNull() & (value == ""))
    return reduce(or_, blank)


def _with(
    frame: DataFrame, guarded_column: str, condition: Column, message: str, next_step: str
) -> DataFrame:
    columns = {name: column_named(name) for name in frame.columns}
    kept = unless(condition, columns[guarded_column], message, next_step)
    columns[guarded_column] = kept.alias(guarded_column)
    return frame.select(*columns.values())


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
            f"options= is {type(options).__name__}, no dict",
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
                f"options[{name!r}] is {type(value).__name__}, no text",
                next_step="pass text or a number",
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
