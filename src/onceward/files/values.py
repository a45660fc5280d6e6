"""Values that a format would change on the way: options that keep them, and rows that no option
keeps. Driver only.

Spark's own options for CSV and JSON write timestamps to milliseconds, and CSV without the spaces
around a text. What the user sets himself stays as he has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType

from onceward.errors import ConfigurationError
from onceward.spark.batch.carried import unless
from onceward.spark.files.times import must_keep_dates, must_keep_instants, must_keep_microseconds
from onceward.spark.session.settings import is_on

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
    """Return the options of a format that change no value, and over them those that were
    ``given``."""
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
    value = _column(name)
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
    value = _column(name)
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
    def column(name: str) -> Column:
        value = _column(name)
        return (
            unless(condition, value, message, next_step).alias(name)
            if name == guarded_column
            else value
        )

    return frame.select(*(column(name) for name in frame.columns))


def _column(name: str) -> Column:
    return f.col("`" + name.replace("`", "``") + "`")
