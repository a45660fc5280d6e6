"""``onceward.DatabaseSink``: what the user builds and hands to ``foreachBatch``. Driver only.

Its side of a pipeline is a :class:`DatabaseTarget`, called by ``engine.micro_batch``. One batch is
one :class:`~onceward.sql.sink.attempt.DatabaseAttempt`; what they share is a
:class:`~onceward.sql.sink.run.DatabaseRun`. The chain of the ledger is in the same database as the
tables (:mod:`onceward.sql.ledger.table`), so that its owner, its session and its COMMIT are the
target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from onceward.engine.calls.batch import must_be_a_frame
from onceward.engine.calls.foreach_batch import ForeachBatchSink
from onceward.engine.ledger.admission import Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.policy import Checkpointing, SinkPolicy, names
from onceward.engine.target import AtomicTarget, Target, Write
from onceward.errors import InvalidColumn, UnsupportedQuery
from onceward.ids import pipeline_id as checked_pipeline_id
from onceward.spark.batch.query import RunningBatch
from onceward.sql.ledger.database_ledger import DatabaseLedger
from onceward.sql.ledger.table import DEFAULT_TABLE
from onceward.sql.sink.attempt import DatabaseAttempt
from onceward.sql.sink.columns import staged_columns
from onceward.sql.sink.prepared_target import PreparedTarget
from onceward.sql.sink.run import TABLE_COLUMN, DatabaseRun, DatabaseSinkSettings, Mode


class DatabaseTarget(AtomicTarget):
    """One run's transactions with the database."""

    def __init__(self, settings: DatabaseSinkSettings) -> None:
        self.run = DatabaseRun(settings)
        self.chain = self.run.chain

    def peek(self) -> LedgerRecord | None:
        return self.run.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        self.run.check_table()
        newest = self.run.chain.take()
        self.run.drop_what_is_left()
        return newest

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> DatabaseAttempt:
        attempt_id = self.run.chain.begin(newest)
        self.run.look_again()
        self.run.drop_staging()
        return DatabaseAttempt(self.run, attempt_id)

    def settle(self) -> LedgerRecord | None:
        return self.run.chain.settle()

    def close(self) -> None:
        self.run.chain.close()


class DatabaseSink(ForeachBatchSink):
    """Writes each micro-batch as one transaction of a database: rows, source offsets, progress in
    one step.

    Columns of the frame go to the table's columns of the same names; which types fit is said in
    :mod:`onceward.sql.postgresql.catalogue` and :mod:`onceward.sql.mysql.catalogue`. What does not
    fit is named before anything is written.

    Guarantee: after any crash the tables hold every micro-batch exactly once; whoever reads sees
    all of a batch, over all its tables, or nothing of it. The ledger is a table of the same
    database, changed by the same transaction.

    Tasks copy their rows into a staging table of the attempt, in parallel (COPY from Arrow, or
    LOAD DATA LOCAL); the driver moves them in one transaction, which also changes the ledger's row
    and so fences older copies of the pipeline. Rows of a small batch go from the driver without
    staging.

    :param url: ``postgresql://user:password@host:port/database?sslmode=…``, as libpq takes it;
        also what executors connect with; or ``mysql://…``, ``mariadb://…``, as
        :class:`onceward.DatabaseLedger` says. PostgreSQL 12, MySQL 8.0, MariaDB 10.6 or later. The
        login needs SELECT and INSERT on the table (for ``upsert`` and ``changes`` UPDATE and
        DELETE, too) and CREATE in the schema of the ledger's table, for staging tables (MySQL:
        also DROP and CREATE TEMPORARY TABLES).
    :param table: where rows go, spelled as in SQL (``table``, ``schema.table``, ``"Name"``); leave
        it out to follow the column ``table``, which must not be null then.
    :param pipeline_id: the stable name of this query: its key in the ledger. One running query per
        id; a second one takes over.
    :param mode: ``"append"``: add every row. ``"upsert"``: add it, or replace the columns of the
        row with the same key; of several rows of one key in a batch the last by ``order_by``
        stays. ``"changes"``: apply the changes of a change stream in order per key; the column
        ``op`` says what a row is (``c``, ``r``, ``u``, ``insert``, ``update``, ``upsert``; or
        ``d``, ``delete``).
    :param key: the columns by which rows are the same; the table needs a unique index on just
        these, and no nulls.
    :param order_by: columns that grow from change to change of one key (the first counts most;
        nulls come first). They are written, too, if the table has them.
    :param op_column: the name of the column ``op``.
    :param ledger_table: the ledger, created when missing.
    :param resume: as for :class:`onceward.KafkaSink`.
    :param skipped_batches: as for :class:`onceward.KafkaSink`.
    :param batch_attempts: how often one batch is tried before the query fails.
    :param batch_timeout_s: abort an attempt whose Spark job runs longer, in seconds; None: no
        limit.
    :param checkpointing: what :func:`onceward.checkpointing` returns; sets ``batch_attempts`` and
        ``batch_timeout_s``, and the pause between batches.
    :param driver_records: a batch of a query without state that spans at most so many source
        records is written by the driver, without Python workers and staging. 0: never. With ``xa``
        tasks write all batches.
    :param driver_bytes: the driver goes on to do so as long as batches have at most so many bytes.
        0: never.
    :param xa: each task writes straight into the table, in a transaction of its own, and prepares
        it; the ledger record decides, and then each is committed. Rows are written once, and seen
        task by task. Only for ``mode="append"`` into one ``table``. PostgreSQL must have
        ``max_prepared_transactions`` of at least the tasks of a batch; on MySQL the login needs
        XA_RECOVER_ADMIN.
    :param ledger: with ``xa``: where decisions are kept, ``ow.DatabaseLedger``,
        ``ow.KafkaLedger``, ``ow.FolderLedger``; None: ``ledger_table`` of the same database.
    :param commit_timeout_s: with ``xa``: how long transactions are tried to be committed without
        progress before the query fails with :class:`~onceward.errors.PublishIncomplete`; started
        again it goes on with them first.
    :raises ConfigurationError: any of these is wrong. Nothing is connected before the first batch.
    """

    place_word = "table"
    is_atomic = True

    def __init__(
        self,
        *,
        url: str,
        pipeline_id: str,
        table: str | None = None,
        mode: Mode = "append",
        key: str | Sequence[str] | None = None,
        order_by: str | Sequence[str] | None = None,
        op_column: str = "op",
        ledger_table: str = DEFAULT_TABLE,
        resume: Resume = "checkpoint",
        skipped_batches: SkippedBatches = "refuse",
        batch_attempts: int = 3,
        batch_timeout_s: float | None = None,
        checkpointing: Checkpointing | None = None,
        driver_records: int = 10_000,
        driver_bytes: int = 4 << 20,
        xa: bool = False,
        ledger: Ledger | None = None,
        commit_timeout_s: float = 60.0,
    ) -> None:
        self.settings = DatabaseSinkSettings(
            policy=SinkPolicy(
                checked_pipeline_id(pipeline_id),
                resume=resume,
                skipped_batches=skipped_batches,
                batch_attempts=batch_attempts,
                batch_timeout_s=batch_timeout_s,
                checkpointing=checkpointing,
            ),
            ledger=DatabaseLedger(url, ledger_table),
            table=table,
            mode=mode,
            key=names("key", key),
            order_by=names("order_by", order_by),
            op_column=op_column,
            driver_records=driver_records,
            driver_bytes=driver_bytes,
            xa=xa,
            another_ledger=ledger,
            commit_timeout_s=commit_timeout_s,
        )
        self.is_atomic = not xa
        place = self.settings.decided_in.where
        super().__init__(self.settings.policy, ledger=place, settings=self.settings)

    def _checked(self, frame: DataFrame, where: str | None) -> Write:
        must_be_a_frame(frame)
        dialect = self.settings.dialect
        staged = staged_columns(frame.schema, dialect.catalogue.staged)
        if self.settings.xa and where not in (None, self.settings.table):
            raise UnsupportedQuery(
                f"batch.write(…, table={where!r}): with xa=True a sink writes to its own table, "
                f"{self.settings.table}",
                next_step="leave table= out, and write to several tables by several sinks in an "
                "ow.FanOut; or leave xa= out",
            )
        table = self.settings.table if where is None else where
        if table is None and staged.get(TABLE_COLUMN) != dialect.text:
            raise InvalidColumn(
                f"the sink has no table=, and the frame no column {TABLE_COLUMN!r} of type string",
                next_step="pass table= to the sink or to batch.write, or add the column "
                f"{TABLE_COLUMN!r}",
            )
        return Write(frame, table)

    def _new_target(self, policy: SinkPolicy) -> Target:
        settings = replace(self.settings, policy=policy)
        return PreparedTarget(settings) if settings.xa else DatabaseTarget(settings)

    def __repr__(self) -> str:
        where, policy = self.settings.table or f"column {TABLE_COLUMN!r}", self.settings.policy
        xa = ", xa=True" if self.settings.xa else ""
        return (
            f"DatabaseSink(pipeline_id={policy.pipeline!r}, table={where}, "
            f"mode={self.settings.mode!r}{xa})"
        )
