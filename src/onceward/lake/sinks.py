"""``onceward.DeltaSink``, ``onceward.IcebergSink``: what users build. Driver only."""

from __future__ import annotations

import os
from dataclasses import replace

from pyspark.sql import DataFrame

from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import Checkpointing, SinkPolicy
from onceward.engine.target import SinkPlace, Write
from onceward.errors import ContradictoryOptions
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.lake.delta import Delta
from onceward.lake.iceberg import Iceberg
from onceward.lake.target import LakeSettings, LakeTarget
from onceward.spark.files import canonical_folder


class _LakeSink(ForeachBatchSink):
    """What both have in common."""

    def __init__(self, settings: LakeSettings, writes_to: SinkPlace) -> None:
        self.settings = settings
        self.writes_to = writes_to
        super().__init__(settings.policy, ledger=settings.ledger.where, settings=settings)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        must_be_a_frame(frame)
        return Write(frame)


class DeltaSink(_LakeSink):
    """Appends each micro-batch exactly once to a Delta table.

    Delta's own writer writes the data files, which no reader sees. The ledger record, which names
    every file, is the decision; after it one commit makes them part of the table, under an
    application id and a version (``txnAppId``, ``txnVersion``) by which Delta carries it out once.

    Guarantee: after any crash the table has the rows of every batch exactly once, and readers see
    a batch whole or not at all. Files of attempts that failed are no part of the table, and go
    with ``VACUUM``.

    :param path: where the table is, as Delta takes it; or
    :param table: its name in the session's catalog. It has to be there, with the frame's columns
        and types.
    :param pipeline_id: the stable name of this query: its key in the ledger and in the table. One
        running query per id; a second one takes over.
    :param ledger: where decisions are kept: ``ow.FolderLedger``, ``ow.DatabaseLedger``,
        ``ow.KafkaLedger``.
    :param resume: as for :class:`onceward.KafkaSink`. ``"skip_missing"`` also goes on without what
        is lost of the batch that an earlier run has decided, and without batches that the table
        has lost.
    :param skipped_batches: as for :class:`onceward.KafkaSink`.
    :param batch_attempts, batch_timeout_s, checkpointing, commit_timeout_s: as for
        :class:`onceward.FileSink`.
    :raises ConfigurationError: any of these is wrong. Nothing is touched before the first batch.
    """

    def __init__(
        self,
        *,
        path: str | os.PathLike[str] | None = None,
        table: str | None = None,
        pipeline_id: str,
        ledger: Ledger,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        if (path is None) == (table is None):
            raise ContradictoryOptions(
                "a Delta table is named by path= or by table=",
                next_step="pass one of the two, and not both",
            )
        place = os.fspath(path) if isinstance(path, os.PathLike) else path
        policy = SinkPolicy(
            checked_pipeline_id(pipeline_id),
            resume=resume,
            skipped_batches=skipped_batches,
            batch_attempts=batch_attempts,
            batch_timeout_s=batch_timeout_s,
            checkpointing=checkpointing,
        )
        super().__init__(
            LakeSettings(policy, ledger, table, place, commit_timeout_s),
            _place("delta", table, place),
        )

    def _new_target(self, policy: SinkPolicy) -> LakeTarget:
        settings = replace(self.settings, policy=policy)
        table = Delta(policy.pipeline, path=settings.path, name=settings.table)
        return LakeTarget(settings, table)

    def __repr__(self) -> str:
        settings = self.settings
        place = f"path={settings.path!r}" if settings.path else f"table={settings.table!r}"
        return f"DeltaSink(pipeline_id={settings.policy.pipeline!r}, {place})"


class IcebergSink(_LakeSink):
    """Appends each micro-batch exactly once to an Iceberg table.

    Iceberg's own writer stages a snapshot, which no reader sees (*write, audit, publish*). The
    ledger record, which names it, is the decision; after it one commit publishes it, and notes in
    the table which batch that was.

    Guarantee: after any crash the table has the rows of every batch exactly once, and readers see
    a batch whole or not at all. Snapshots of attempts that failed are dropped, with their files,
    at the next start.

    :param table: its name in the session's catalogs. It has to be there, with
        ``write.wap.enabled=true``.
    :param pipeline_id: as for :class:`DeltaSink`, and so are the others.
    :raises ConfigurationError: any of these is wrong. Nothing is touched before the first batch.
    """

    def __init__(
        self,
        *,
        table: str,
        pipeline_id: str,
        ledger: Ledger,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        policy = SinkPolicy(
            checked_pipeline_id(pipeline_id),
            resume=resume,
            skipped_batches=skipped_batches,
            batch_attempts=batch_attempts,
            batch_timeout_s=batch_timeout_s,
            checkpointing=checkpointing,
        )
        super().__init__(
            LakeSettings(policy, ledger, table, None, commit_timeout_s), _place("iceberg", table)
        )

    def _new_target(self, policy: SinkPolicy) -> LakeTarget:
        table = Iceberg(policy.pipeline, name=str(self.settings.table))
        return LakeTarget(replace(self.settings, policy=policy), table)

    def __repr__(self) -> str:
        return (
            f"IcebergSink(pipeline_id={self.settings.policy.pipeline!r}, "
            f"table={self.settings.table!r})"
        )


def _place(kind: str, table: str | None, path: str | None = None) -> SinkPlace:
    if path is None:
        # Spark tells no cases apart
        return SinkPlace((kind, str(table).lower().replace("`", "")))
    return SinkPlace(("files",), canonical_folder(path))
