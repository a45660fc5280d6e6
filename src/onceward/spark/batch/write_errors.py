"""Failures of Spark's own writers and sources as our errors. Driver only; called by what writes
files and tables, and by :func:`onceward.engine.calls.foreach_batch.error_of` after a query has
ended by itself (what Spark's Kafka source was refused, what workers lack).

Spark's source reads through Kafka's Java client, whose refusals reach the user as a
``StreamingQueryException``, often without the name of the topic ("Topic authorization failed.").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import unquote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceward.errors import (
    ColumnMismatch,
    ConfigurationError,
    OncewardError,
    PartitionsAdded,
    RowRefused,
    SendFailed,
    TopicMissing,
)
from onceward.spark.batch.carried import carried_in
from onceward.spark.batch.causes import (
    Thrown,
    catalog_is_away,
    has_condition,
    has_kind,
    thrown_by,
    thrown_from,
)
from onceward.spark.batch.failures import known_failure, refused_reader
from onceward.spark.batch.query import kafka_options


def names_are_utf8(session: SparkSession | None = None) -> bool:
    """Return whether this JVM, and so executors started alike, can write any text in a file's
    name. :param session: None: the active one."""
    session = session or SparkSession.getActiveSession()
    return session is None or _encoding(session).upper() in ("UTF-8", "UTF8")


def must_write_name(session: SparkSession, path: str) -> None:
    """Raise ConfigurationError if ``path`` is on a disk, in letters not of the JVM's locale."""
    if path.isascii() or names_are_utf8(session):
        return
    jvm: Any = session._jvm
    place = jvm.org.apache.hadoop.fs.Path(path)
    system = place.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())
    if str(system.getUri().getScheme()) == "file":
        raise ConfigurationError(
            f"{path} has letters that this JVM cannot write in a file's name: its locale has "
            f"{_encoding(session)}",
            next_step="start Spark's JVMs with a locale of UTF-8 (LC_ALL=C.UTF-8), or choose a "
            "path of ASCII letters",
        )


def _encoding(session: SparkSession) -> str:
    jvm: Any = session._jvm
    return str(jvm.System.getProperty("sun.jnu.encoding"))


# KafkaOffsetReader, of startingOffsets, at batch 0: a Scala assertion, without class or condition.
_OTHER_PARTITIONS = (
    "assertion failed: If startingOffsets contains specific offsets, you must specify all"
)


def source_refusal(query: StreamingQuery) -> OncewardError | None:
    """Return why a query ended, if by its Kafka source or its Python workers; else None."""
    # None in Spark Connect, which the sink refuses anyway
    wrapper = getattr(query, "_jsq", None)
    if wrapper is None:
        return None
    execution = wrapper.streamingQuery()
    exception = execution.exception()
    if exception.isEmpty():
        return None
    causes = thrown_from(exception.get())
    topics, servers = _read_by(execution)
    if has_kind(causes, "UnknownTopicOrPartitionException"):
        return TopicMissing(
            f"Spark's Kafka source reads topic {topics}, which {servers} does not have (or not "
            "all of it)",
            next_step="correct topic= and bootstrap_servers= of kafka_source, or create the "
            "topic, and start the query again; where it was deleted, take it out of topic=, and "
            'start once with kafka_source(spark_options={"failOnDataLoss": False}); `onceward '
            "doctor --bootstrap-servers … --source-topic …` looks for it",
            details={"topics": topics, "bootstrap_servers": servers},
        )
    if any(
        one.is_a("AssertionError") and one.message.startswith(_OTHER_PARTITIONS) for one in causes
    ):
        return PartitionsAdded(
            f"topic {topics} on {servers} has other partitions than when kafka_source looked its "
            "start positions up: some were added, or topics that the pattern finds, or they are "
            "gone",
            next_step="call kafka_source anew, and start the query with that frame (under "
            "supervise, call it inside the function that starts the query); nothing was read yet",
            details={"topics": topics, "bootstrap_servers": servers},
        )
    return refused_reader(causes, topics, servers) or known_failure(causes)


def _read_by(execution: Any) -> tuple[str, str]:
    """Return topics and servers of the query's Kafka relations, as far as its JVM tells."""
    topics: list[str] = []
    servers: list[str] = []
    with suppress(Exception):
        for options in kafka_options(execution.analyzedPlan()):
            topics += [
                str(options.get(key))
                for key in ("subscribe", "subscribePattern", "assign")
                if options.get(key)
            ]
            servers.append(str(options.get("kafka.bootstrap.servers")))
    return ", ".join(topics) or "…", ",".join(dict.fromkeys(servers)) or "its cluster"


# Of disks, networks, stores and catalogs; a client wraps another's exception, or one of its own
_OUTSIDE = (
    "java.io.", "java.net.", "java.nio.file.", "org.apache.hadoop.", "software.amazon.awssdk.",
    "com.amazonaws.", "com.azure.", "com.google.cloud.", "org.apache.iceberg.exceptions.",
    "org.apache.iceberg.jdbc.",
)  # fmt: skip
# Of Spark's, what writes shuffles, spills and kept blocks (spark.local.dir)
_OF_LOCAL_DISKS = (
    "org.apache.spark.storage.", "org.apache.spark.shuffle.", "org.apache.spark.io.",
    "org.apache.spark.util.collection.",
)  # fmt: skip
# Of Spark's, about a row or a function of the user's: a parser, or that function, has thrown what
# is behind it (EOFException of a record that is cut off, URISyntaxException of parse_url), and
# nothing outside has failed
_OF_ROWS = (
    "CANNOT_DECODE_URL", "CONVERSION_INVALID_INPUT", "FAILED_EXECUTE_UDF", "INVALID_FORMAT",
    "INVALID_URL", "INVALID_UTF8_STRING", "MALFORMED_RECORD_IN_PARSING",
)  # fmt: skip
_PARSES_AVRO = "org.apache.spark.sql.avro.AvroDataToCatalyst"
# Delta's: of its older packages, and the one that it throws.
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_BROKEN_RULE = ("InvariantViolationException", "DeltaInvariantViolationException")
# Spark's own, of a column that is NOT NULL, with the column's path, and then advice on Scala
_NULL_VALUE, _ADVICE = "NOT_NULL_ASSERT_VIOLATION", "\nIf the schema is inferred"
# What compares a frame with a table's schema, or makes one of it, before any task runs
_OTHER_SCHEMA = ("IncompatibleSchemaException", "SchemaParseException")
_COMPARES_SCHEMAS = ("org.apache.iceberg.types.", "org.apache.iceberg.spark.TypeToSparkType")
# Bytes of a name, on the file systems of Linux
_LONGEST_NAME = 255
# ChecksumFileSystem.create, which says no more of why
_REFUSED_FOLDER = re.compile(r"Mkdirs failed to create file:(.*) \(exists=\w+, cwd=", re.DOTALL)
# FSLimitException.PathComponentTooLongException, of HDFS, as the client tells it
_TOO_LONG = re.compile(
    r"The maximum path component name limit of (.*?)=.* in directory ", re.DOTALL
)


@contextmanager
def failures_told(how: str, place: str, partition_by: Sequence[str] = ()) -> Iterator[None]:
    """Raise failures of the one job inside the block, which writes, as typed errors.

    :param how: "as parquet", say.
    :param partition_by: the columns whose values are in the names of folders.
    :raises ColumnMismatch: the frame does not fit, or a table that the query reads is another.
    :raises ConfigurationError: Spark refuses an option.
    :raises RowRefused: the plan (:mod:`onceward.spark.batch.carried`) or the table refuses a row.
    :raises SendFailed: ``place`` cannot be written to, or a catalog does not answer.
    :raises OncewardError: what is known of Spark's failures (:func:`known_failure`).
    :raises Exception: Spark's own, when the job fails for another reason.
    """
    try:
        yield
    except OncewardError:
        raise
    except AnalysisException as error:
        raise _unplanned(error, how, place) from error
    except Exception as error:
        causes = thrown_by(error)
        if causes and (
            causes[0].is_a(*_OTHER_SCHEMA) or causes[0].thrown_in.startswith(_COMPARES_SCHEMAS)
        ):
            raise _unfit_frame(how, " ".join(causes[0].message.split())) from error
        # Outermost: thrown by the driver, before there was a task, or about a row in one. With a
        # condition: Hadoop says a name that is not resolved by the same kind
        first = causes[0] if causes else Thrown("")
        is_setting = first.is_a("SparkIllegalArgumentException") and first.condition
        if is_setting and not _is_of_a_row(first):
            raise ConfigurationError(
                f"Spark does not write {how} with these settings: "
                f"{first.message.strip().splitlines()[0]}",
                next_step="correct it in options= of the sink, or in the frame where it is there",
            ) from error
        if (refused := _row_refused(causes, place, partition_by)) is not None:
            # the rest is a stack trace
            raise refused from None
        # What is known first: a dead worker, or a file that the query reads, has one of these, too
        if (failed := known_failure(causes) or _outside(causes, place)) is not None:
            raise failed from error
        raise


def _unplanned(error: AnalysisException, how: str, place: str) -> OncewardError:
    """Return why Spark could not plan the job: an unfit frame, or what a catalog did not have."""
    causes, why = thrown_by(error), str(error).strip().splitlines()[0]
    if catalog_is_away(causes):
        return SendFailed(
            f"the job that writes to {place} cannot be planned, for a catalog does not answer: "
            f"{why}",
            next_step="nothing, the batch runs again; if it repeats, see that the metastore and "
            "the storage of the tables that the query reads answer",
        )
    if has_condition(causes, _NOT_FOUND) is not None:
        return SendFailed(
            f"{place} is not found any more: {why}",
            next_step="the batch runs again; if it repeats, see that the catalog answers, and "
            "that nobody has renamed or dropped the table",
        )
    return _unfit_frame(how, why)


def _outside(causes: Sequence[Thrown], place: str) -> SendFailed | None:
    """Return the error for a disk, a network, a store or a catalog that has failed, of the target
    or of an executor; None for others."""
    cause = failed_outside(causes)
    if cause is None:
        return None
    what = f"the job that writes to {place} has failed"
    if causes[-1].called_by.startswith(_OF_LOCAL_DISKS):
        return SendFailed(
            f"{what} at an executor's own disk, where Spark keeps shuffles and spills: "
            f"{cause.kind}: {cause.message}",
            next_step="nothing, the batch runs again; if it repeats, see that the folders of "
            "spark.local.dir (or SPARK_LOCAL_DIRS) are there and have room",
        )
    return SendFailed(
        f"{what}: {cause.kind}: {cause.message}",
        next_step="nothing, the batch runs again; if it repeats, see that the file system (or "
        "store, or catalog) is there, has room, and lets executors write",
    )


def failed_outside(causes: Sequence[Thrown]) -> Thrown | None:
    """Return the outermost exception of a disk, a network, a store or a catalog; None: none, or
    one that is behind what Spark says of a row, or a function of the user's."""
    if any(map(_is_of_a_row, causes)):
        return None
    return next((one for one in causes if one.kind.startswith(_OUTSIDE)), None)


def _is_of_a_row(cause: Thrown) -> bool:
    return (
        cause.condition.partition(".")[0] in _OF_ROWS
        or cause.is_a("PythonException")
        or cause.thrown_in.startswith(_PARSES_AVRO)
    )


def _unfit_frame(how: str, why: str) -> ColumnMismatch:
    return ColumnMismatch(
        f"the frame cannot be written {how}: {why}",
        next_step="select and cast columns in the query so that they fit",
    )


def _broken_rule(causes: Sequence[Thrown]) -> str:
    """Return which rule of a table a row breaks, without its values; else nothing."""
    if (broken := has_kind(causes, *_BROKEN_RULE)) is not None:
        return broken.message.strip().partition("\n")[0].rstrip(":")
    null = has_condition(causes, _NULL_VALUE)
    return "" if null is None else " ".join(null.message.partition(_ADVICE)[0].split())


def _unwritable(causes: Sequence[Thrown]) -> Thrown | None:
    """Return what says that a name cannot be written, if the JVM's locale lacks letters. A task
    that tries again under the mangled name says that the file is there."""
    there = has_kind(causes, "FileAlreadyExistsException")
    if there is not None and there.message.isascii() and "?" not in there.message:
        there = None
    return has_kind(causes, "InvalidPathException") or there


def _row_refused(
    causes: Sequence[Thrown], place: str, partition_by: Sequence[str]
) -> OncewardError | None:
    """Return the error, if a row is refused by the frame's plan, the table or the file system."""
    refused = next(filter(None, (carried_in(one.message) for one in causes)), None)
    if refused is not None:
        return refused
    if broken := _broken_rule(causes):
        return RowRefused(
            f"{place} refuses a row: {broken}",
            next_step="let the query leave such rows out or mend them, or change the table's rule",
        )
    if (column := _names_no_folder(causes, partition_by)) is not None:
        return RowRefused(
            f"a value of the partition column {column!r} cannot be the name of a folder below "
            f"{place}: with the column's name it has more than {_LONGEST_NAME} bytes (or than "
            "HDFS is told to take; an S3 key has 1,024 at most), or it has the character NUL",
            next_step="partition by something shorter, a hash or a prefix of the column that "
            "the query makes; or let the query leave such rows out",
        )
    unwritable = _unwritable(causes)
    if partition_by and unwritable is not None and not names_are_utf8():
        return RowRefused(
            f"a value of a partition column cannot be written in a file's name below {place}: "
            f"{unwritable.message}",
            next_step="start Spark's JVMs with a locale of UTF-8 (LC_ALL=C.UTF-8); or "
            "partition by another text: url_encode or hex in the query makes some of "
            "everything",
        )
    return None


def _names_no_folder(causes: Sequence[Thrown], partition_by: Sequence[str]) -> str | None:
    """Return the partition column whose value is no name of a folder, as a disk has refused it.
    S3 has no folders, and tells of no column that makes its keys too long."""
    for one in causes:
        if (found := _TOO_LONG.match(one.message)) and unquote(found[1]) in partition_by:
            return unquote(found[1])
        if one.is_a("AWSBadRequestException") and "KeyTooLongError" in one.message:
            return ", ".join(partition_by) or None
    refused = filter(None, (_REFUSED_FOLDER.match(one.message) for one in causes))
    for piece in "/".join(found[1] for found in refused).split("/"):
        column = unquote(piece.partition("=")[0])
        is_too_long = len(piece.encode("utf-8", "replace")) > _LONGEST_NAME
        if column in partition_by and ("\0" in piece or is_too_long):
            return column
    return None
