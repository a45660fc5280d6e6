"""An Iceberg table, written in two steps: a snapshot that is staged, then published. Driver only.

It is what Iceberg calls *write, audit, publish*: with ``write.wap.enabled`` on the table and
``spark.wap.id`` in the session a write makes a snapshot which no reader finds
(``SnapshotProducer.stageOnly``), and ``cherrypick`` makes it part of the table. Iceberg refuses to
publish one id twice (``WapUtil.validateWapPublish``), and looks anew whenever somebody else has
committed in between.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import Any, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from onceward.errors import (
    ColumnMismatch,
    ConfigurationError,
    OncewardError,
    ReportMismatch,
    ServerMisconfigured,
    TableMissing,
    TargetUnreachable,
)
from onceward.spark.batch.causes import has_kind, is_verdict, thrown_by
from onceward.spark.batch.job import asked_apart
from onceward.spark.batch.shuffles import planned_once
from onceward.spark.batch.write_errors import failures_told
from onceward.spark.session.connector import must_have_lake
from onceward.spark.tables.iceberg_values import Metadata, guarded, misfit, parse_fields

T = TypeVar("T")

_WAP_ENABLED = "write.wap.enabled"
_WAP_ID = "spark.wap.id"
_WAP_BRANCH = "spark.wap.branch"
_CASTS = "spark.sql.storeAssignmentPolicy"
"""By default Spark cuts the time off a timestamp for a column of dates, and rounds decimals;
STRICT refuses that, and what else it lets through :func:`misfit` does not."""

_STAGED_AS = "wap.id"
_OPTIONS = {
    # Else Iceberg sends rows through a shuffle of its own, behind the plan and out of sight of
    # checks; and without its sorting a task has a file open for each partition that it meets.
    "use-table-distribution-and-ordering": "false",
    "fanout-enabled": "true",
}

_NO_SUCH_TABLE = (
    "NoSuchTableException", "NoSuchNamespaceException", "NoSuchDatabaseException",
    "NoSuchIcebergTableException",
    "CatalogNotFoundException", "ParseException", "IllegalArgumentException",
)  # fmt: skip
"""What Spark and Iceberg say of a name that is none of theirs (Iceberg's
``Spark3Util.loadIcebergTable``). All else is of a catalog that does not answer as it should: for a
time."""

_GONE = (
    "NoSuchTableException", "NoSuchIcebergTableException", "NotFoundException",
    "ValidationException",
)  # fmt: skip
"""What Iceberg throws where a table was dropped, or an older copy is in its place
(``HadoopTableOperations.refresh``). All else may pass, but for :data:`_ANOTHER`.
"""
_ANOTHER = "Table UUID does not match"
"""How the message begins of the ``IllegalStateException`` where another table has its name
(``BaseMetastoreTableOperations.refreshFromMetadataLocation``). One of another kind comes from
whatever was closed: a client, Spark's context.
"""

_REST = ("rest", "org.apache.iceberg.rest.restcatalog")
_ANSWER_SECONDS = 120.0
# A catalog in Hive waits three minutes for its lock (iceberg.hive.lock-timeout-ms)
_COMMIT_SECONDS = 600.0
_AT_ONCE = 1_000  # files that are looked for in that time
_MILLISECONDS = {"jdbc.connectTimeout": "60000", "jdbc.socketTimeout": "60000"}
_JDBC: Mapping[str, Mapping[str, str]] = {
    # In seconds; of a connection that breaks Iceberg makes another, once
    "jdbc:postgresql:": {"jdbc.socketTimeout": "60"},
    "jdbc:mysql:": _MILLISECONDS,
    "jdbc:mariadb:": _MILLISECONDS,
}

_TRIES = 5
_CHANGED_MEANWHILE = "CommitFailedException"

_SELECTS = re.compile(r"branch_|tag_|snapshot_id_\d|at_timestamp_\d")
"""So begins what a catalog of Spark's takes behind a table's name to mean a part of its history,
unless there is a table of that name."""

_SEE_THE_CATALOG = (
    "see that the catalog (spark.sql.catalog.…) and the storage of its tables answer"
)
_CLASS = "org.apache.iceberg.spark.Spark3Util"
_INTO_TABLE = "into an Iceberg table"


class IcebergTable:
    """The table ``name`` of the session's catalogs.

    :raises ConfigurationError: the session has no Iceberg, or it is a branch or a snapshot.
    :raises TableMissing: there is no such table.
    :raises TargetUnreachable: the catalog, or what is behind it, does not answer.
    """

    def __init__(self, session: SparkSession, name: str) -> None:
        self._session: Any = session
        jvm: Any = session.sparkContext._jvm
        self._jvm = jvm
        self.name = name
        must_have_lake(session, "Iceberg", _CLASS, "a catalog (spark.sql.catalog.…)")
        self._iceberg = self._jvm.org.apache.iceberg
        try:
            self._table, self._named = self._answered(self._loaded)
        except OncewardError:
            raise
        except Exception as error:
            causes = thrown_by(error)
            if causes and has_kind(causes, *_NO_SUCH_TABLE) is None and self._names_a_catalog():
                raise TargetUnreachable(
                    f"the catalog of {name} does not say what table that is: "
                    f"{'; '.join(map(str, causes))}",
                    next_step=_SEE_THE_CATALOG,
                ) from error
            # The line to the JVM may break, or its memory be full for a moment
            if not is_verdict(error):
                raise
            raise TableMissing(
                f"{name} is no Iceberg table of this session's catalogs: "
                f"{str(error).strip().splitlines()[0]}",
                next_step="pass its new name if it was renamed, and a decided batch is published "
                f"there; or create it first: CREATE TABLE {name} (…) USING iceberg TBLPROPERTIES "
                f"('{_WAP_ENABLED}'='true')",
            ) from error
        last = str(self._named.identifier().name())
        if _SELECTS.match(last) and not str(self._table.name()).endswith(last):
            raise ConfigurationError(
                f"{name} is a branch, a tag or a snapshot of an Iceberg table; batches are "
                "published to the table",
                next_step=f"pass the name of the table itself, without {last}",
            )

    def _loaded(self) -> tuple[Any, Any]:
        """Return the table, and its catalog and identifier."""
        java, jvm = self._session._jsparkSession, self._jvm
        _limit_waits(self._session.conf.getAll, jvm.org.apache.spark.sql.internal.SQLConf.get())
        spark3 = self._iceberg.spark.Spark3Util
        table = spark3.loadIcebergTable(java, self.name)
        return table, spark3.catalogAndIdentifier(java, self.name)

    def forget(self) -> None:
        """Let the session's catalog load the table anew when somebody asks for it next."""
        self._named.catalog().invalidateTable(self._named.identifier())

    def _answered(self, ask: Callable[[], T], seconds: float | None = None) -> T:
        """Return what the catalog answers. :raises TargetUnreachable: not in time."""
        seconds = seconds or _ANSWER_SECONDS
        late = TargetUnreachable(
            f"the catalog of {self.name} has not answered for {seconds:g} s",
            next_step=_SEE_THE_CATALOG,
        )
        return asked_apart(self._jvm, ask, seconds, late)

    def _names_a_catalog(self) -> bool:
        """Return whether the session has the catalog; without it, or while it is away, Spark asks
        its own (``REQUIRES_SINGLE_PART_NAMESPACE``)."""
        first, *more = self.name.split(".")
        catalog = f"spark.sql.catalog.{first}"
        return len(more) < 2 or self._session.conf.get(catalog, None) is not None

    @property
    def id(self) -> str:
        """Which no other table has, also none that is made in its place."""
        return str(self._table.uuid())

    @property
    def committer(self) -> tuple[str, str]:
        """Return the class that carries commits out, and the table's location."""
        return str(self._table.operations().getClass().getName()), str(self._table.location())

    def _refresh(self) -> None:
        """Look at the table as it is now; see :meth:`_asked`."""
        with self._asked():
            self._answered(lambda: self._table.refresh())

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Raise what a catalog says of a table that was found before as typed errors.

        :raises TableMissing: it is gone, or another one has its name.
        :raises TargetUnreachable: the catalog, or what is behind it, does not answer.
        """
        try:
            yield
        except Exception as error:
            causes = thrown_by(error)
            if not causes:
                raise
            is_another = any(
                each.is_a("IllegalStateException") and each.message.startswith(_ANOTHER)
                for each in causes
            )
            if is_another or has_kind(causes, *_GONE) is not None:
                raise TableMissing(
                    f"the Iceberg table {self.name} is not there any more, or another one has its "
                    f"name, or it was put back from an older copy: {causes[0]}",
                    next_step="put it back as it was, or pass its new name if it was renamed; "
                    "then start the query again, which says what the table lacks",
                ) from error
            raise TargetUnreachable(
                f"the catalog of {self.name} does not say what has become of the table: "
                f"{'; '.join(map(str, causes))}",
                next_step=_SEE_THE_CATALOG,
            ) from error

    def properties(self) -> dict[str, str]:
        """Return the table's properties as they are now."""
        self._refresh()
        return {str(name): str(value) for name, value in self._table.properties().items()}

    def must_stage(self) -> None:
        """Check that writes to the table are staged.

        :raises ServerMisconfigured: what is written to the table is visible at once.
        :raises ConfigurationError: the session writes to a branch.
        """
        if branch := self._session.conf.get(_WAP_BRANCH, None):
            raise ConfigurationError(
                f"this session has {_WAP_BRANCH}={branch}, and batches are published to the table "
                f"{self.name}: Iceberg stages nothing for a branch",
                next_step=f"unset {_WAP_BRANCH} in the session that the query starts in",
            )
        if self.properties().get(_WAP_ENABLED) != "true":
            raise ServerMisconfigured(
                f"the Iceberg table {self.name} does not have {_WAP_ENABLED}=true, without which "
                "nothing can be written that is not seen at once",
                next_step=f"ALTER TABLE {self.name} SET TBLPROPERTIES ('{_WAP_ENABLED}'='true'); "
                "it changes nothing for those who do not set spark.wap.id",
            )

    def fields(self) -> dict[str, str]:
        """See :func:`parse_fields`; as they are now."""
        self._refresh()
        return parse_fields(str(self._iceberg.SchemaParser.toJson(self._table.schema())))

    def fitting(self, frame: DataFrame) -> DataFrame:
        """Return ``frame``, whose job fails with ``RowRefused`` at values the table does not keep.

        :raises ColumnMismatch: a column cannot take the values of ``frame`` as they are.
        """
        self._refresh()
        schema = self._table.schema()
        with failures_told(_INTO_TABLE, self.name):
            columns = StructType.fromJson(
                json.loads(self._iceberg.spark.SparkSchemaUtil.convert(schema).json())
            )
        if found := misfit(frame.schema, columns):
            raise ColumnMismatch(
                f"{found} in the Iceberg table {self.name}, where its values might be others",
                next_step="cast it in the query: a value that does not fit is yours to decide on",
            )
        return guarded(
            frame, json.loads(str(self._iceberg.SchemaParser.toJson(schema))), self.name
        )

    def write(self, frame: DataFrame, name: str) -> tuple[int, int]:
        """Write ``frame`` by one job into a staged snapshot of that name; return its id and rows.

        :raises ColumnMismatch, RowRefused, SendFailed: see :func:`failures_told`.
        """
        self.must_stage()
        planned = planned_once(frame)
        partitions = [str(field.name()) for field in self._table.spec().fields()]
        with (
            _set(planned.sparkSession.conf, {_WAP_ID: name, _CASTS: "STRICT"}),
            failures_told(_INTO_TABLE, self.name, partition_by=partitions),
        ):
            planned.writeTo(self.name).options(**_OPTIONS).append()
        if (snapshot := self._newest_as(name)) is not None:
            summary = dict(snapshot.summary())
            if "added-data-files" not in summary or "added-records" in summary:
                return int(snapshot.snapshotId()), int(summary.get("added-records", 0))
        raise ReportMismatch(
            f"Iceberg has written to {self.name}, and no staged snapshot with the id {name} says "
            "how many rows",
            next_step=f"see that nobody changes {_WAP_ENABLED} of the table, and look at its "
            "newest snapshots: what was written may be visible",
        )

    def _newest_as(self, name: str) -> Any:
        """Find the snapshot that was just written, from the end of a list that may be long."""
        self._refresh()
        of = self._jvm.org.apache.iceberg.relocated.com.google.common.collect.Iterables
        # Of a REST catalog the table may have loaded the current ones only
        with self._asked():
            every = self._answered(lambda: self._table.snapshots())
        found = (of.get(every, place) for place in reversed(range(int(of.size(every)))))
        return next((one for one in found if one.summary().get(_STAGED_AS) == name), None)

    def metadata(self) -> Metadata:
        """Read the table's snapshots as they are now. All of them: much, if the table has many."""
        with self._asked():
            return self._parsed(self._answered(lambda: self._table.operations().refresh()))

    def _parsed(self, metadata: Any) -> Metadata:
        return Metadata(str(self._iceberg.TableMetadataParser.toJson(metadata)))

    def staged(self, prefix: str) -> dict[str, int]:
        """Return the staged snapshots, never part of the table, by their names."""
        return self.metadata().staged(prefix)

    def missing(self, snapshots: Sequence[int]) -> list[str]:
        """List which of ``snapshots`` are gone, published or not, and of others lost files."""
        self._refresh()
        io, table = self._table.io(), self._table

        def listed() -> tuple[list[str], list[str]]:
            found = {one: table.snapshot(one) for one in snapshots}
            files = (one.addedDataFiles(io) for one in found.values() if one is not None)
            there = [str(file.location()) for file in chain.from_iterable(files)]
            return [f"snapshot {one}" for one in snapshots if found[one] is None], there

        def gone(files: Sequence[str]) -> list[str]:
            return [file for file in files if not io.newInputFile(file).exists()]

        with self._asked():
            missing, files = self._answered(listed, _COMMIT_SECONDS)
            for at in range(0, len(files), _AT_ONCE):
                some = partial(gone, files[at : at + _AT_ONCE])
                missing += self._answered(some, _COMMIT_SECONDS)
        return missing

    def publish(self, snapshots: Sequence[int], properties: Mapping[str, str]) -> None:
        """Publish all ``snapshots`` (at least one) and set ``properties`` in one commit.

        :raises Exception: Iceberg's own: one of them is published already, for instance.
        """
        # It begins with a look at the table as it is now (Transactions.newTransaction)
        with self._asked():
            transaction = self._answered(lambda: self._table.newTransaction())

        def pick(snapshot: int) -> None:
            transaction.manageSnapshots().cherrypick(snapshot).commit()

        for snapshot in snapshots:
            self._answered(partial(pick, snapshot), _COMMIT_SECONDS)
        for name, value in properties.items():
            transaction.updateProperties().set(name, value).commit()
        self._answered(transaction.commitTransaction, _COMMIT_SECONDS)
        # this session's own readers
        self._answered(lambda: self._session._jsparkSession.catalog().refreshTable(self.name))

    def note(self, name: str, value: str, has: Callable[[str | None], bool]) -> bool:
        """Set a property, unless the table ``has`` it by what it says now; whether it was set.

        A commit of properties alone is never refused (:meth:`publish` is, at a snapshot that is
        published): of two copies the older one would have the last word.
        """
        was_set = False

        def noted(base: Any) -> Any:
            nonlocal was_set
            was_set = not has(dict(base.properties()).get(name))
            if not was_set:
                return None
            builder = self._iceberg.TableMetadata.buildFrom(base)
            return builder.setProperties({name: value}).build()

        self._change(noted)
        return was_set

    def _change(self, made_of: Callable[[Any], Any]) -> None:
        """Commit what ``made_of`` makes of the table's metadata, anew where somebody else has
        committed in between; nothing if that is None."""
        operations = self._table.operations()
        for tries_left in reversed(range(_TRIES)):
            with self._asked():
                base = self._answered(operations.refresh)
            made = made_of(base)
            if made is None:
                return
            try:
                # Refused if the table is another one by now
                self._answered(partial(operations.commit, base, made), _COMMIT_SECONDS)
                return
            except Exception as error:
                if not tries_left or has_kind(thrown_by(error), _CHANGED_MEANWHILE) is None:
                    raise

    def drop(self, snapshots: Sequence[int]) -> None:
        """Drop those of ``snapshots`` that are staged, with their files, and nothing else.

        Not by ``expireSnapshots``, which at the same time ends all that the settings of the table
        or of one of its branches call old, other people's branches and tags among it.
        """
        files: Any = []

        def without(base: Any) -> Any:
            nonlocal files
            staged = set(self._parsed(base).staged("").values())
            # whatever is dropped, nobody has published meanwhile
            dropped = [base.snapshot(one) for one in snapshots if one in staged]
            keeps = str(self._table.properties().get("gc.enabled")).lower() == "false"
            ask = partial(self._snapshot_files, dropped, base)
            files = [] if keeps or not dropped else self._answered(ask, _COMMIT_SECONDS)
            if not dropped:
                return None
            return self._iceberg.TableMetadata.buildFrom(base).removeSnapshots(dropped).build()

        self._change(without)
        if files:
            delete, io = self._iceberg.CatalogUtil.deleteFiles, self._table.io()
            self._answered(lambda: delete(io, files, "staged", True), _COMMIT_SECONDS)

    def _snapshot_files(self, dropped: Sequence[Any], base: Any) -> Any:
        """Return the files that came with ``dropped`` and belong to no other snapshot.

        Iceberg publishes by a snapshot of its own if somebody else has committed in between. When
        that one has expired before what it was made of, nothing tells of it but the table's files.
        """
        io, iceberg, files = self._table.io(), self._iceberg, self._jvm.java.util.HashSet()
        names = {int(one.snapshotId()) for one in dropped}
        for one in dropped:
            files.add(one.manifestListLocation())
            for file in one.addedDataFiles(io):
                files.add(file.location())
            for manifest in one.dataManifests(io):
                if manifest.snapshotId() in names:
                    files.add(manifest.path())
        # What is older names none of these files
        first = min(int(one.sequenceNumber()) for one in dropped)
        read = set[str]()
        for other in base.snapshots():
            if int(other.sequenceNumber()) < first or int(other.snapshotId()) in names:
                continue
            for manifest in other.dataManifests(io):
                path = str(manifest.path())
                if int(manifest.sequenceNumber()) >= first and path not in read:
                    read.add(path)
                    with closing(iceberg.ManifestFiles.readPaths(manifest, io)) as paths:
                        theirs = iceberg.relocated.com.google.common.collect.Sets.newHashSet(paths)
                    theirs.add(path)
                    files.removeAll(theirs)
        return files


def _limit_waits(settings: Mapping[str, str], conf: Any) -> None:
    """Give catalogs of type rest and jdbc a time limit of their own, where the user has set none:
    their clients wait for an answer for ever, in a thread that nobody has any more. A catalog that
    the session has asked already keeps what it has.

    :param conf: what holds in this thread of Spark's (``SQLConf.get``): by that a catalog is
        made, and within a batch it is not that of the session.
    """
    of_catalogs = {n: value for n, value in settings.items() if n.startswith("spark.sql.catalog.")}
    for name, value in of_catalogs.items():
        catalog, _, what = name.rpartition(".")
        for setting, limit in _limits(what, address := value.lower()).items():
            is_set = (full := f"{catalog}.{setting}") in settings or conf.contains(full)
            if not is_set and f"{setting.rpartition('.')[2].lower()}=" not in address:
                conf.setConfString(full, limit)


def _limits(what: str, value: str) -> Mapping[str, str]:
    if what in ("type", "catalog-impl") and value in _REST:
        return {"rest.client.socket-timeout-ms": str(round(_ANSWER_SECONDS * 1000))}
    # What is in the address holds
    if what != "uri" or "sockettimeout=" in value:
        return {}
    return next((limits for begin, limits in _JDBC.items() if value.startswith(begin)), {})


@contextmanager
def _set(conf: Any, settings: Mapping[str, str]) -> Iterator[None]:
    """Set ``settings`` in a query's session inside the block; nothing else runs in it."""
    before = {name: conf.get(name, None) for name in settings}
    for name, value in settings.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                conf.unset(name)
            else:
                conf.set(name, value)
