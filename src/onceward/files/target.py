"""The file sink's side of a pipeline: a two-phase target whose tasks are Spark's own. Driver only.

Called by ``engine.micro_batch``; the order of things is :mod:`onceward.engine.two_phase`'s. A
batch is a :class:`FileAttempt`: a Spark job for each frame, all into one hidden folder. Spark's
writers begin a new file after so many rows, and know no other reason, so a size is turned into
rows. :func:`check` has the rules by which a frame fits; what a format itself refuses, Spark says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    MapType,
    NumericType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from onceward import patience
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.spark_jobs import SparkJobsAttempt
from onceward.engine.target import Write
from onceward.engine.two_phase import CommitResult, MarkedTarget
from onceward.errors import InvalidColumn, PublishIncomplete
from onceward.files.manifest import ATTEMPT
from onceward.files.publishing import Publisher
from onceward.files.settings import FileSinkSettings
from onceward.ids import AttemptId, chain_prefix
from onceward.spark.batch.query import RunningBatch
from onceward.spark.files import file_writer
from onceward.spark.files.file_writer import (
    MAX_RECORDS,
    FileFormat,
    WrittenFiles,
    guessed_row_bytes,
)
from onceward.spark.types import contains_type, field_names, types_inside

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
    if file_format == "json" and contains_type(kind, VariantType):
        raise InvalidColumn(
            f"column {name} has a VARIANT, of which a JSON file would have the text: a date in it "
            "would be read back as a string, a double as a decimal",
            next_step=f"make a text of it in the query, to_json(`{name}`), or use format="
            '"parquet"',
        )
    maps = [one for one in types_inside(kind) if isinstance(one, MapType)]
    keys = [one.keyType for one in maps if not isinstance(one.keyType, _TEXT_GIVES_BACK)]
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


def _format_for(
    frame: DataFrame, settings: FileSinkSettings, known_row_bytes: float | None
) -> FileFormat:
    """Return the format for ``frame``, with files of about the size that is wanted.

    :param known_row_bytes: the size of a row in the files of the batch before, on the average.
    """
    how, file_bytes = settings.how, settings.target_file_size_bytes
    if file_bytes is None:
        return how
    row_bytes = known_row_bytes or guessed_row_bytes(frame)
    rows = max(1, round(file_bytes / row_bytes)) if row_bytes > 0 else 1
    limit = int(how.options.get(MAX_RECORDS, rows))
    return how._replace(options={**how.options, MAX_RECORDS: str(min(rows, limit))})


KIND = "files"
"""Of a ledger record's output: ``{"version": …, "format": …, "committables": [at most one]}``,
whose form is :class:`~onceward.files.manifest.Committable`.
"""


class FileAttempt(SparkJobsAttempt):
    """One batch into files: a Spark job for each frame, all into one hidden folder, which has its
    name.

    :param row_bytes: as :func:`_format_for` takes it.
    """

    def __init__(
        self,
        target: FileTarget,
        attempt_id: AttemptId,
        newest: LedgerRecord | None,
        row_bytes: float | None,
    ) -> None:
        super().__init__(target, attempt_id, newest)
        self._publisher = target._publisher
        self._settings = target._settings
        self._row_bytes = row_bytes
        self._jobs: list[WrittenFiles] = []

    def _written(self, write: Write, running: RunningBatch) -> int:
        if self._settings.format == "csv":
            self._publisher.must_have(
                columns_in_files(write.frame.columns, self._settings.partition_by)
            )
        written = file_writer.write(
            write.frame,
            self._publisher.opened(self._name, self._sequence),
            _format_for(write.frame, self._settings, self._row_bytes),
            self._computation,
            self._limit.passed,
        )
        self._jobs.append(written)
        return written.rows

    def _committable(self) -> dict[str, Any]:
        return self._publisher.prepare(self._name, self._sequence, self._jobs).as_told()

    def _extra_data(self) -> Mapping[str, Any]:
        return {"format": self._settings.format, "root": self._publisher.files.root}

    def _summary(self, committables: Sequence[Mapping[str, Any]]) -> str:
        return (
            f"in {sum(len(committable['files']) for committable in committables)} files of "
            f"{self.id}"
        )

    def _drop(self) -> None:
        self._publisher.abort({"folder": self._name})


class FileTarget(MarkedTarget):
    """One run of a query, writing files below one path."""

    kind = KIND

    def __init__(self, settings: FileSinkSettings, publisher: Publisher) -> None:
        policy = settings.policy
        chain = settings.ledger.chain(policy.pipeline)
        super().__init__(publisher, chain, policy, commit_timeout_s=settings.commit_timeout_s)
        self._settings = settings
        self._publisher = publisher
        self._row_bytes: float | None = None

    def list_prepared(self) -> list[Any]:
        self._publisher.must_be_beside_its_ledger()
        return super().list_prepared()

    def look_at_place(self, newest: LedgerRecord | None) -> None:
        self._publisher.check("" if newest is None else self._written_to(newest))

    def _written_to(self, record: LedgerRecord) -> str:
        """Return the path below which a batch was written; "" where its record does not tell."""
        output = record.outputs.get(self.kind)
        if output is None or output.kind != KIND:
            return ""
        roots = [str(one["root"]) for one in output.data["committables"]]
        return str(output.data.get("root") or next(iter(roots), ""))

    def _name_of(self, recovered: Any) -> str:
        return str(recovered["folder"])

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> FileAttempt:
        if newest is not None:
            self._row_bytes = self._size_of_a_row(newest) or self._row_bytes
        self._publisher.remove_marks(chain_prefix(self._policy.pipeline, self.mark))
        return FileAttempt(self, attempt_id, newest, self._row_bytes)

    def _size_of_a_row(self, record: LedgerRecord) -> float | None:
        """Return a row's average size in files; None: the batch has no rows, or it is not told."""
        output = record.outputs.get(self.kind)
        if output is None or output.kind != KIND or not output.records:
            return None
        total = sum(
            int(size) for one in output.data["committables"] for size in one["files"].values()
        )
        return total / output.records

    def as_recovered(self, record: LedgerRecord) -> list[Any]:
        """List an attempt's folder by its name; what becomes of it, the ledger alone says."""
        return [{"folder": committable["folder"]} for committable in self._committables(record)]

    def _must_not_be_lost(self, lost: Sequence[Any], record: LedgerRecord) -> LedgerRecord:
        record = super()._must_not_be_lost(lost, record)
        # it may be left out: what is still there need not be
        for committable in lost:
            pauses = patience.GrowingPauses(self.commit_timeout_s)
            done = (CommitResult.DONE, CommitResult.ALREADY_DONE)
            while self._publisher.commit_what_is_left(committable) not in done:
                if not pauses.wait():
                    raise PublishIncomplete(
                        f"{record.batch} is decided, and what is left of it could not be "
                        f"published below {committable['root']}",
                        next_step="see that nobody else writes below the path; start the query "
                        'again with resume="skip_missing"',
                        details={"pipeline": record.pipeline},
                    )
        return record
