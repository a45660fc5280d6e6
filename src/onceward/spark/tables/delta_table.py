"""A Delta table, in two steps: files no reader sees, then the commit that names them. Driver only.

``DataFrameWriter`` does both in one go. Delta's own transaction has them apart
(``OptimisticTransaction.writeFiles``, ``commit``), and the second one needs not be by the same
transaction, or the same process, as the first: what it needs of the first is the list of actions,
which Delta itself writes as JSON into its log. Readers know a file by the log alone. The same
methods are there in Delta 4.0 to 4.4.

What ``DataFrameWriter`` does before ``writeFiles`` is not done here, so that it is asked for
instead: columns and their types are exactly the table's (:meth:`DeltaTable.fitting`), and no
column is computed by the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, StringType, StructType, TimestampType

from onceward import patience
from onceward.errors import (
    ColumnMismatch,
    ConfigurationError,
    InvalidColumn,
    ServerMisconfigured,
    TableMissing,
    TargetUnreachable,
)
from onceward.spark.batch.carried import unless
from onceward.spark.batch.causes import catalog_is_away, thrown_by
from onceward.spark.batch.job import asked_apart
from onceward.spark.batch.query import items
from onceward.spark.batch.shuffles import planned_once
from onceward.spark.batch.write_errors import failed_outside, failures_told, must_write_name
from onceward.spark.session.connector import must_have_lake
from onceward.spark.types import (
    column_named,
    is_same_type,
    must_keep_dates,
    must_keep_microseconds,
)

_T = TypeVar("_T")

_ZONE = "spark.sql.session.timeZone"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_CATALOG_SECONDS = 20.0
"""A name is looked up for each batch."""
_ANSWER_SECONDS = 600.0
"""The log of a table of millions of files may take minutes, the first time."""
_AT_ONCE = 1_000  # files that are looked for in that time


def guarded(
    frame: DataFrame, partition_by: Sequence[str], session: SparkSession, table: str
) -> DataFrame:
    """Return ``frame``, whose job fails with :class:`~onceward.errors.RowRefused` at a value that
    would be changed.

    :param session: that writes.
    :param table: in our words.
    :raises InvalidColumn: no value of such a column can be told.
    :raises ConfigurationError: the session's time zone is not the JVM's, and a timestamp would
        become another one.
    """
    kinds = {field.name: field.dataType for field in frame.schema.fields}
    guards = dict[str, Column]()
    for name in partition_by:
        if isinstance(kinds[name], BinaryType):
            raise InvalidColumn(
                f"{table} is partitioned by column {name}, which is binary: Delta writes it as "
                "text, and it comes back as another value",
                next_step=f"write to a table that is partitioned by a column of text, hex({name}) "
                "for one",
            )
        if isinstance(kinds[name], TimestampType):
            _must_be_the_jvms_zone(session, name, table)
            _must_be_the_jvms_zone(frame.sparkSession, name, table)
            guards[name] = _time(name)
        elif isinstance(kinds[name], StringType):
            guards[name] = _text(name)
    columns = (guards.get(name, column_named(name)).alias(name) for name in frame.columns)
    return frame.select(*columns) if guards else frame


def _must_be_the_jvms_zone(session: SparkSession, name: str, table: str) -> None:
    jvm: Any = session.sparkContext._jvm
    of_session, of_jvm = str(session.conf.get(_ZONE)), jvm.java.util.TimeZone.getDefault()
    rules = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(of_session).getRules()
    if not rules.equals(of_jvm.toZoneId().getRules()):
        raise ConfigurationError(
            f"{table} is partitioned by column {name}, a timestamp, which Delta writes by the "
            f"session's time zone ({of_session}) and reads by the JVM's ({of_jvm.getID()}): each "
            "value would become another one",
            next_step=f"set {_ZONE} to {of_jvm.getID()}, or start driver and executors with "
            f"-Duser.timezone={of_session} (spark.driver.extraJavaOptions, "
            "spark.executor.extraJavaOptions); or partition the table by a date",
        )


def _time(name: str) -> Column:
    value = column_named(name)
    return unless(
        ~value.eqNullSafe(value.cast("string").try_cast("timestamp")),
        value,
        f"a value of partition column {name} is a time that the clocks of this time zone show "
        "twice (or never), and Delta would store another one",
        f"set {_ZONE}, and -Duser.timezone of driver and executors, to UTC; or partition the "
        "table by a date",
    )


def _text(name: str) -> Column:
    value = column_named(name)
    return unless(
        (value == "") | (value == _NULL) | ~f.is_valid_utf8(value),
        value,
        f"a value of partition column {name} is the empty text, or {_NULL}, which Delta would "
        "store as null, or has bytes that are no UTF-8",
        f"say in the query what such values shall be (NULLIF({name}, '') for null), or write to a "
        "table that is not partitioned by it",
    )


_CLASS = "org.apache.spark.sql.delta.DeltaLog"
_MORE_THAN_A_TYPE = {
    "delta.generationExpression": "computed by the table",
    "delta.identity.start": "numbered by the table",
    "CURRENT_DEFAULT": "filled by the table where it is missing",
    "__CHAR_VARCHAR_TYPE_STRING": "text of a length that the writer has to see to",
}
"""Of a column's metadata: what ``DataFrameWriter`` would do about it before it writes."""


_BY_A_CATALOG = {"catalogManaged", "catalogOwned-preview"}
"""Features of a table whose commits its catalog carries out: Delta refuses one by path."""
# Said as the log is read. Delta 4.0 has no such condition, and does not know the former feature
_NOT_BY_PATH = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"
_TOO_NEW = (
    "DELTA_INVALID_PROTOCOL_VERSION",
    "DELTA_UNSUPPORTED_FEATURES_FOR_READ",
    "DELTA_UNSUPPORTED_FEATURES_FOR_WRITE",
)
_CLASS_OF_4_0 = "org.apache.spark.sql.delta.coordinatedcommits.CatalogOwnedTableUtils"


class Shape(NamedTuple):
    """What a file must have been written for."""

    table_id: str
    columns: Mapping[str, Any]
    partition_by: Sequence[str]
    settings: Mapping[str, str]


def table_location(session: SparkSession, name: str) -> str:
    """Return the path of the table ``name`` of the session's catalog.

    :raises TableMissing: there is none, or it is no Delta table.
    :raises TargetUnreachable: the catalog does not answer.
    """

    def described() -> str:
        return str(session.sql(f"DESCRIBE DETAIL {name}").collect()[0]["location"])

    pauses = patience.GrowingPauses(_CATALOG_SECONDS)
    while True:
        try:
            return _answered(session.sparkContext._jvm, described, f"the catalog of {name}")
        except AnalysisException as error:  # noqa: PERF203
            causes = thrown_by(error)
            if not catalog_is_away(causes):
                raise _no_table(name, error) from error
            if not pauses.wait():
                raise TargetUnreachable(
                    f"the catalog does not say where {name} is: {'; '.join(map(str, causes))}",
                    next_step=_SEE_THE_STORAGE,
                ) from error


_SEE_THE_STORAGE = "see that the metastore and the storage of its tables answer"
_ANOTHER_TABLE = (
    "write to a table of a path, or an external one of the catalog, without that feature; or to "
    "an Iceberg table, with ow.IcebergSink"
)
_ANOTHER_DELTA = (
    "start the query with a release of Delta that knows what the table needs, or let one that does "
    "drop it: ALTER TABLE … DROP FEATURE …"
)


def _answered(jvm: Any, ask: Callable[[], _T], whom: str) -> _T:
    """Return what is answered.

    :raises TargetUnreachable: a disk, a network or a store fails; or not in time, and what was
        asked may still be carried out.
    :raises ServerMisconfigured: this Delta does not read the table by its path, or is too old.
    :raises Exception: Delta's or Spark's own, about the table.
    """
    late = TargetUnreachable(
        f"{whom} has not answered for {_ANSWER_SECONDS:g} s", next_step=_SEE_THE_STORAGE
    )
    try:
        return asked_apart(jvm, ask, _ANSWER_SECONDS, late)
    except AnalysisException:
        raise
    except Exception as error:
        causes = thrown_by(error)
        for cause in causes:
            is_too_new = cause.condition in _TOO_NEW
            by_path = cause.condition == _NOT_BY_PATH or cause.thrown_in.startswith(_CLASS_OF_4_0)
            if is_too_new or by_path:
                is_managed = by_path or any(name in cause.message for name in _BY_A_CATALOG)
                raise ServerMisconfigured(
                    f"Delta refuses {whom}: {' '.join(cause.message.split())}",
                    next_step=_ANOTHER_TABLE if is_managed else _ANOTHER_DELTA,
                ) from error
        if (failed := failed_outside(causes)) is None:
            raise
        raise TargetUnreachable(
            f"{whom} does not do its part: {failed}", next_step=_SEE_THE_STORAGE
        ) from error


def _no_table(name: str, error: AnalysisException) -> TableMissing:
    return TableMissing(
        f"{name} is no Delta table of this session: {str(error).strip().splitlines()[0]}",
        next_step="if it was renamed, pass the name that it has now; if there was none, "
        f"create it first (CREATE TABLE {name} (…) USING delta), in a session with Delta's "
        "extension and catalog; or pass path=",
    )


class DeltaTable:
    """The table at ``path``. :raises ConfigurationError: no Delta, or a path not for this JVM."""

    def __init__(self, session: SparkSession, path: str) -> None:
        self._session: Any = session
        jvm: Any = session.sparkContext._jvm
        self._jvm = jvm
        self.path = path
        must_have_lake(
            session,
            "Delta",
            _CLASS,
            'spark.sql.extensions="io.delta.sql.DeltaSparkSessionExtension" and '
            'spark.sql.catalog.spark_catalog="org.apache.spark.sql.delta.catalog.DeltaCatalog"',
        )
        must_write_name(session, path)
        self._delta = self._jvm.org.apache.spark.sql.delta
        java = self._session._jsparkSession
        self._log = self._answered(lambda: self._delta.DeltaLog.forTable(java, path))

    def _answered(self, ask: Callable[[], _T]) -> _T:
        return _answered(self._jvm, ask, f"the storage of the Delta table {self.path}")

    def begin(self) -> DeltaTransaction:
        """Begin a transaction. :raises TableMissing: there is no table. :raises
        ServerMisconfigured: this Delta cannot commit to it."""

        def begun() -> tuple[Any, int]:
            transaction = self._log.startTransaction()
            # Read with the rest of the log, where it is asked for
            transaction.metadata()
            # Else Delta asks no earlier than at the commit, and by then the batch is decided
            self._log.protocolWrite(transaction.protocol())
            return transaction, int(transaction.snapshot().version())

        transaction, version = self._answered(begun)
        if version < 0:
            raise TableMissing(
                f"there is no Delta table at {self.path}",
                next_step="if it was moved, pass the path that it has now; if there was none, "
                f"create it first: CREATE TABLE delta.`{self.path}` (…) USING delta",
            )
        return DeltaTransaction(self, transaction)

    def must_be_plain(self) -> Shape:
        """Check that the table can be written exactly once, and return its shape.

        :raises ServerMisconfigured: columns are generated or constrained, the table drops
            application ids, is to be read as Iceberg, or is its catalog's to commit to.
        """
        transaction = self.begin()
        if managed := sorted(_BY_A_CATALOG & transaction.features):
            raise ServerMisconfigured(
                f"the Delta table {self.path} has the feature {managed[0]}: its catalog carries "
                "commits out, and Onceward commits by the table's log",
                next_step=_ANOTHER_TABLE,
            )
        shape = transaction.shape
        for name, column in shape.columns.items():
            if more := [
                feature for key, feature in _MORE_THAN_A_TYPE.items() if key in column["metadata"]
            ]:
                raise ServerMisconfigured(
                    f"column {name} of the Delta table {self.path} is {more[0]}, which Onceward "
                    "does not do",
                    next_step="do it in the query, and write to a table whose columns have plain "
                    "types",
                )
        forgets = "delta.setTransactionRetentionDuration"
        if forgets in shape.settings:
            raise ServerMisconfigured(
                f"the Delta table {self.path} has {forgets}={shape.settings[forgets]}: after that "
                "time it has forgotten which batches it has, and could take one twice",
                next_step=f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{forgets}')",
            )
        others = "delta.universalFormat.enabledFormats"
        if "iceberg" in shape.settings.get(others, ""):
            # Of a commit by path Delta makes no Iceberg metadata ("Skip iceberg conversion")
            raise ServerMisconfigured(
                f"the Delta table {self.path} has {others}={shape.settings[others]}, and whoever "
                "reads it as an Iceberg table would have none of Onceward's batches",
                next_step=f"ALTER TABLE delta.`{self.path}` UNSET TBLPROPERTIES ('{others}'); for "
                "readers of Iceberg write to an Iceberg table, with ow.IcebergSink",
            )
        return shape

    def fitting(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` with its columns in the table's order. Its job fails with
        ``RowRefused`` at a row whose partition value the table would change.

        :raises ColumnMismatch: it has other columns, or other types.
        :raises InvalidColumn: a partition column of it keeps no value.
        :raises ServerMisconfigured: as :meth:`must_be_plain`.
        :raises ConfigurationError: this session changes values on their way into the table.
        """
        # It may have been altered since the run began
        shape = self.must_be_plain()
        schema = self._must_fit(frame, shape)
        must_keep_microseconds(self._session, frame.schema)
        must_keep_dates(self._session, frame.schema, "parquet")
        in_order = frame.select(*map(column_named, schema))
        return guarded(in_order, shape.partition_by, self._session, f"the Delta table {self.path}")

    def _must_fit(self, frame: DataFrame, shape: Shape) -> list[str]:
        """Check that ``frame`` fits; return the table's columns."""
        schema = StructType.fromJson({"type": "struct", "fields": list(shape.columns.values())})
        types = {field.name: field.dataType for field in frame.schema}
        if len(types) != len(frame.columns) or types.keys() != set(schema.names):
            raise ColumnMismatch(
                f"the frame has the columns {', '.join(frame.columns)}, and the Delta table "
                f"{self.path} has {', '.join(schema.names)}",
                next_step="select exactly the table's columns in the query, or ALTER TABLE … ADD "
                "COLUMN first",
            )
        for field in schema:
            if not is_same_type(types[field.name].jsonValue(), field.dataType.jsonValue()):
                raise ColumnMismatch(
                    f"column {field.name} is {types[field.name].simpleString()} in the frame, and "
                    f"{field.dataType.simpleString()} in the Delta table {self.path}",
                    next_step="cast it in the query: a value that does not fit is yours to decide "
                    "on",
                )
        return list(schema.names)

    def write(self, frame: DataFrame) -> tuple[list[str], Shape]:
        """Write ``frame`` by one job into files that no reader knows; Delta's actions, as JSON,
        and what the table was that the files were written for.

        :raises ColumnMismatch, RowRefused, SendFailed: see :func:`failures_told`.
        """
        options = self._delta.DeltaOptions(
            # It would have a shuffle of its own, behind the plan and out of sight of checks.
            self._jvm.PythonUtils.toScalaMap({"optimizeWrite": "false"}),
            self._session._jsparkSession.sessionState().conf(),
        )
        transaction = self.begin()
        # The table may have changed since the frame was made to fit
        self._must_fit(frame, transaction.shape)
        partitions = transaction.shape.partition_by
        with failures_told("into a Delta table", self.path, partition_by=partitions):
            return transaction.write(frame, options), transaction.shape

    def missing(self, actions: Sequence[str]) -> list[str]:
        """List the files of ``actions`` that are gone."""

        def gone(some: Sequence[str]) -> list[str]:
            system = self._system()
            return [str(path) for path in self._paths(some) if not system.exists(path)]

        found = list[str]()
        for at in range(0, len(actions), _AT_ONCE):
            found += self._answered(partial(gone, actions[at : at + _AT_ONCE]))
        return found

    def remove(self, actions: Sequence[str]) -> None:
        """Remove the files of ``actions`` that were never committed."""

        def delete() -> None:
            system = self._system()
            for path in self._paths(actions):
                system.delete(path, False)

        self._answered(delete)

    def _paths(self, actions: Sequence[str]) -> list[Any]:
        path, uri = self._jvm.org.apache.hadoop.fs.Path, self._jvm.java.net.URI
        return [
            path(path(self.path), path(uri(json.loads(action)["add"]["path"])))
            for action in actions
        ]

    def _system(self) -> Any:
        configuration = self._session._jsparkSession.sessionState().newHadoopConf()
        return self._jvm.org.apache.hadoop.fs.Path(self.path).getFileSystem(configuration)


class DeltaTransaction:
    """One of Delta's: the table as it was when it began. It commits only if nobody has changed
    what it has read (``MetadataChangedException``, ``ConcurrentTransactionException``).
    """

    def __init__(self, table: DeltaTable, transaction: Any) -> None:
        self._jvm = table._jvm
        self._answered = table._answered
        self._transaction = transaction

    @cached_property
    def shape(self) -> Shape:
        """Of the table."""
        metadata = json.loads(self._transaction.metadata().json())["metaData"]
        columns = {
            column["name"]: column for column in json.loads(metadata["schemaString"])["fields"]
        }
        return Shape(
            metadata["id"],
            columns,
            metadata["partitionColumns"],
            metadata.get("configuration") or {},
        )

    @property
    def features(self) -> set[str]:
        """Return the names of the table's writer features."""
        protocol = json.loads(self._transaction.protocol().json())["protocol"]
        return set(protocol.get("writerFeatures") or ())

    def newest(self, writer: str) -> int:
        """Return the last version committed by ``writer`` (Delta's application id); -1: none."""
        return int(self._answered(lambda: self._transaction.txnVersion(writer)))

    def writers(self) -> dict[str, int]:
        """Return all application ids that have committed, and the last version of each."""
        found = items(self._answered(lambda: self._transaction.snapshot().setTransactions()))
        return {str(one.appId()): int(one.version()) for one in found}

    def write(self, frame: DataFrame, options: Any) -> list[str]:
        """Write the rows to files without committing them; return the actions that would."""
        written = self._transaction.writeFiles(
            planned_once(frame)._jdf, self._jvm.scala.Some(options)
        )
        return [str(action.json()) for action in items(written)]

    def commit(self, actions: Sequence[str], writer: str, version: int, query_id: str) -> None:
        """Commit ``actions``, and ``version`` as the newest of ``writer``. Once, if :meth:`newest`
        was asked before: of two that have read the same version one fails.

        :raises Exception: Delta's own, or that of a storage that does not answer; whether it is
            committed, another transaction tells.
        """
        delta, some, nothing = (
            self._jvm.org.apache.spark.sql.delta,
            self._jvm.scala.Some,
            self._jvm.scala.Option.empty,
        )
        read = delta.actions.Action.fromJson
        now = self._jvm.java.lang.Long.valueOf(self._jvm.java.lang.System.currentTimeMillis())
        all_of_it = [*map(read, actions), delta.actions.SetTransaction(writer, version, some(now))]
        append = self._jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        how = getattr(delta, "DeltaOperations$StreamingUpdate")(
            append, query_id, version, nothing()
        )
        commit, actions_of_it = self._transaction.commit, self._jvm.PythonUtils.toSeq(all_of_it)
        # 1. It takes too long, and is left behind; 2. another one commits the batch; 3. the first
        # comes through and finds that its writer has moved on (ConcurrentTransactionException).
        self._answered(lambda: commit(actions_of_it, how))
