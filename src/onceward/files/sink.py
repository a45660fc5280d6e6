"""``onceward.FileSink``: what the user builds and hands to ``foreachBatch``. Driver only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame

from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import Checkpointing, SinkPolicy
from onceward.engine.target import SinkPlace, Write
from onceward.files import target
from onceward.files.publishing import Publisher
from onceward.files.settings import (
    FileSinkSettings,
    Format,
    Layout,
    checked_path,
    column_names,
    default_ledger,
    guarded,
    must_keep_times,
    text_options,
)
from onceward.files.target import FileTarget
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.spark.batch.write_errors import must_write_name
from onceward.spark.files import canonical_folder
from onceward.spark.files.file_writer import must_know


class FileSink(ForeachBatchSink):
    """Writes each micro-batch exactly once as files: Parquet, ORC, JSON, CSV, text or Avro.

    Spark's own writers write into a hidden folder of the attempt. The ledger record, which names
    every file, is the decision; after it the files are renamed to where readers look.

    Guarantee: after any crash the path holds the files of every batch exactly once, and none that
    is not decided. With ``layout="batches"`` whoever lists the path sees all of a batch or nothing
    of it, with ``layout="manifest"`` whoever reads by its lists (:func:`onceward.read_files`);
    with ``layout="flat"`` a batch appears file by file. What a crash leaves is hidden from
    readers, and removed at the next start.

    :param path: the folder, on a local disk that driver and executors share, on HDFS, or with
        ``layout="manifest"`` in S3: a path, or a URI with ``file:``, ``hdfs:`` or ``s3a:``. Made
        when it is missing. It keeps the shape that it is first written with: format, layout,
        partitions, and what readers have to know of the options.
    :param pipeline_id: the stable name of this query: its key in the ledger. One running query per
        id; a second one takes over.
    :param format: ``"parquet"``, ``"orc"``, ``"json"``, ``"csv"``, ``"text"``, or ``"avro"``,
        which needs spark-avro.
    :param partition_by: columns whose values become folders, as ``DataFrameWriter.partitionBy``
        has it.
    :param layout: ``"batches"``: a folder for each batch, ``batch=<pipeline_id>@<number>``, which
        readers who know partitions take for a column; ``"flat"``: files, or the folders of
        ``partition_by``, right below the path; ``"manifest"``: files that nobody sees who lists
        the path, and for each batch one list of them.
    :param batch_column: the name of that column.
    :param options: Spark's options of the format, such as ``compression``. Where they leave it
        open, CSV and JSON are written so that microseconds, and spaces around texts, are kept.
    :param max_records_per_file: begin a new file after so many rows.
    :param target_file_size_bytes: begin a new file about after so many bytes: after as many rows
        as had that size in the batch before, and in a pipeline's first batch by the size that
        Spark guesses of its columns' types. A file ends with its task all the same. With
        ``max_records_per_file`` whichever comes first.
    :param ledger: where decisions are kept: ``ow.FolderLedger``, ``ow.DatabaseLedger``,
        ``ow.KafkaLedger``. None: a folder ledger below a local ``path``, hidden.
    :param resume: as for :class:`onceward.KafkaSink`. ``"skip_missing"`` also goes on without
        files that are lost of the batch that an earlier run has decided.
    :param skipped_batches: as for :class:`onceward.KafkaSink`.
    :param batch_attempts: how often one batch is tried before the query fails.
    :param batch_timeout_s: abort an attempt whose Spark jobs run longer, in seconds; None: no
        limit.
    :param checkpointing: what :func:`onceward.checkpointing` returns; sets ``batch_attempts`` and
        ``batch_timeout_s``, and the pause between batches.
    :param commit_timeout_s: how long publishing is tried again without progress before the query
        fails with :class:`~onceward.errors.PublishIncomplete`; started again (``ow.supervise``) it
        goes on with that first.
    :raises ConfigurationError: any of these is wrong. Nothing is touched before the first batch.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str],
        pipeline_id: str,
        format: Format = "parquet",
        partition_by: str | Sequence[str] | None = None,
        layout: Layout = "batches",
        batch_column: str = "batch",
        options: Mapping[str, Any] | None = None,
        max_records_per_file: int | None = None,
        target_file_size_bytes: int | None = None,
        ledger: Ledger | None = None,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        place = checked_path(path)
        self.settings = FileSinkSettings(
            policy=SinkPolicy(
                checked_pipeline_id(pipeline_id),
                resume=resume,
                skipped_batches=skipped_batches,
                batch_attempts=batch_attempts,
                batch_timeout_s=batch_timeout_s,
                checkpointing=checkpointing,
            ),
            path=place,
            ledger=default_ledger(place) if ledger is None else ledger,
            format=format,
            layout=layout,
            partition_by=column_names(partition_by),
            batch_column=batch_column,
            options=text_options(options, max_records_per_file),
            commit_timeout_s=commit_timeout_s,
            target_file_size_bytes=target_file_size_bytes,
        )
        self._ledger_is_beside = ledger is None
        self.writes_to = SinkPlace(("files",), canonical_folder(place))
        at = self.settings.ledger.where
        super().__init__(self.settings.policy, ledger=at, settings=self.settings)

    def _new_target(self, policy: SinkPolicy) -> FileTarget:
        settings = replace(self.settings, policy=policy)
        publisher = Publisher(settings, ledger_is_beside=self._ledger_is_beside)
        return FileTarget(settings, publisher)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        must_be_a_frame(frame)
        must_write_name(frame.sparkSession, self.settings.path)
        must_know(frame.sparkSession, self.settings.format)
        must_keep_times(frame, self.settings.format, self.settings.options)
        target.check(frame.schema, self.settings)
        in_files = target.columns_in_files(frame.columns, self.settings.partition_by)
        return Write(guarded(frame, self.settings.format, self.settings.options, in_files))

    def __repr__(self) -> str:
        settings = self.settings
        return (
            f"FileSink(pipeline_id={settings.policy.pipeline!r}, path={settings.path!r}, "
            f"layout={settings.layout!r})"
        )
