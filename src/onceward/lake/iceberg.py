"""An Iceberg table: a snapshot is staged, and one commit publishes it. Driver only.

The commit also notes, in a property of the table, which batch it brought: snapshots expire, and
with them what Iceberg itself knows of what was published.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onceward import patience
from onceward.engine.two_phase import CommitResult
from onceward.errors import TableMissing
from onceward.ids import PipelineId
from onceward.lake.target import LakeTable, Staged
from onceward.spark.files import path_scheme
from onceward.spark.tables.iceberg_table import IcebergTable
from onceward.spark.tables.iceberg_values import unreadable

log = logging.getLogger(__name__)

# and the pipeline, in a fan-out also @ and the sink: "<ledger>@<number of the batch>"
_NEWEST = "onceward.newest."
_NONE = "@-1"
_RENAMING = ("", "file", "hdfs", "abfs", "abfss")
"""Renaming is one step there, or other machines do not commit."""


class Iceberg(LakeTable):
    """The table ``name`` of the session's catalogs."""

    kind = "iceberg"

    def __init__(self, pipeline: PipelineId, *, name: str) -> None:
        super().__init__(pipeline, name)
        # Attempts that this process has staged, and not tried to publish
        self._new: set[str] = set()

    def __str__(self) -> str:
        return f"the Iceberg table {self.place}"

    @patience.OpenedOnce
    def _table(self) -> IcebergTable:
        """Asked for inside a batch."""
        return IcebergTable(SparkSession.active(), self.place)

    @property
    def id(self) -> str:
        return self._table.id

    def check(self) -> None:
        self._table.must_stage()
        by, location = self._table.committer
        scheme = path_scheme(location)
        settings = SparkSession.active().conf.getAll
        locks = any(name.endswith(".lock-impl") for name in settings)
        if by.endswith(".HadoopTableOperations") and scheme not in _RENAMING and not locks:
            self._warn_of_lost_commits(
                "its catalog is of type hadoop and commits by renaming a file, which on "
                f"{scheme}: may be a copy",
                "keep the table in another catalog (rest, hive, jdbc, glue), or set "
                "spark.sql.catalog.….lock-impl for all who commit "
                "(org.apache.iceberg.aws.dynamodb.DynamoDbLockManager)",
            )

    def newest(self) -> dict[str, int]:
        """Read the newest batches from the table's properties."""
        ours, found = self._property(""), dict[str, int]()
        for name, value in self._table.properties().items():
            if name == ours or name.startswith(f"{ours}@"):
                chain, number = _batch(value)
                found[chain] = max(number, found.get(chain, -1))
        return found

    def newest_batch(self, chain: str, branch: str) -> int:
        newest = self._table.properties().get(self._property(branch), _NONE)
        of_chain, number = _batch(newest)
        return number if of_chain == chain else -1

    def _property(self, branch: str) -> str:
        """Return the property's name: of two sinks in a fan-out to one table each has its own."""
        return f"{_NEWEST}{self._pipeline}" + (f"@{branch}" if branch else "")

    def fitting(self, frame: DataFrame) -> DataFrame:
        # Which columns there are, Iceberg's own writer finds out
        return self._table.fitting(frame)

    def stage(self, frame: DataFrame, name: str, number: int) -> Staged:
        """Append to a snapshot that is staged only, and return its id."""
        fields = self._table.fields()
        snapshot, rows = self._table.write(frame, f"{name}/{number}")
        self._new.add(name)
        table = {"table": self.place, "id": self._table.id, "fields": fields}
        return Staged(rows, [snapshot] if rows else [], table)

    def missing(self, staged: Sequence[Any]) -> list[str]:
        return self._table.missing(staged)

    def _forget(self) -> None:
        """Have the table loaded anew: with it a catalog hands out the credentials of its storage,
        which expire, and a table that is kept has those of its first day."""
        opened: IcebergTable | None = vars(self).pop("_table", None)
        try:
            if opened is not None:
                opened.forget()
        except Exception as error:  # noqa: BLE001 — what has failed before is the one to hear of
            log.debug("%s stays in the session's cache: %s", self, error)

    def commit(self, committable: Mapping[str, Any]) -> CommitResult:
        try:
            return self._published(committable)
        except Exception:
            self._forget()
            raise

    def _published(self, committable: Mapping[str, Any]) -> CommitResult:
        table = self._table_with_snapshots(committable)
        chain, sequence = str(committable["chain"]), int(committable["sequence"])
        branch = committable["branch"]
        name, value = self._property(branch), f"{chain}@{sequence}"

        def has(newest: str | None) -> bool:
            of_chain, number = _batch(newest or _NONE)
            return of_chain == chain and number >= sequence

        if has(table.properties().get(name)):
            return CommitResult.ALREADY_DONE
        waiting = self._waiting(table, committable)
        if wrong := self._wrong(table, waiting, committable):
            log.error("%s cannot have what %s has staged: %s", self, committable["attempt"], wrong)
            return CommitResult.LOST
        if waiting:
            table.publish(waiting, {name: value})
            return CommitResult.DONE
        return CommitResult.DONE if table.note(name, value, has) else CommitResult.ALREADY_DONE

    def _table_with_snapshots(self, then: Mapping[str, Any]) -> IcebergTable:
        """Return the table that has its snapshots; it may have been renamed, and the sink too."""
        where = str(then["table"])
        if where == self.place or self._table.id == then["id"]:
            return self._table
        advice = (
            f"pass its name to the sink, or rename it back to {where}; without it the batch would "
            "be lost"
        )
        try:
            table = IcebergTable(SparkSession.active(), where)
        except TableMissing as error:
            raise TableMissing(
                f"{_staged_in(then)}, is not there any more", next_step=advice
            ) from error
        if table.id != then["id"]:
            raise TableMissing(f"{_staged_in(then)}, is another one by now", next_step=advice)
        return table

    def _wrong(self, table: IcebergTable, waiting: Sequence[int], then: Mapping[str, Any]) -> str:
        """Return why it cannot have the snapshots, or readers could not read their files."""
        if table.id != then["id"]:
            return (
                "it is another table than the one that has them (was that renamed? then pass its "
                "new name)"
            )
        if missing := table.missing(waiting):
            return f"gone are {', '.join(missing[:10])}"
        if (
            waiting
            and "fields" in then
            and (changed := unreadable(then["fields"], table.fields()))
        ):
            return (
                f"the table was replaced since, or its columns were changed: {', '.join(changed)}"
            )
        return ""

    def _waiting(self, table: IcebergTable, committable: Mapping[str, Any]) -> list[int]:
        """Return its snapshots, except for those that were published by hand.

        That is asked when it was not just staged, or not published at the first try.
        """
        attempt, staged = committable["attempt"], list(committable["staged"])
        if attempt in self._new:
            self._new.discard(attempt)
            return staged
        return table.metadata().lack(staged)

    def abort(self, committable: Mapping[str, Any]) -> None:
        self._forget()
        self._new.discard(committable["attempt"])
        staged = self._table.staged(f"{self._pipeline}@")
        self._table.drop(
            [one for name, one in staged.items() if _attempt(name) == committable["attempt"]]
        )

    def recover(self) -> list[dict[str, Any]]:
        return [
            {"attempt": name}
            for name in sorted(set(map(_attempt, self._table.staged(f"{self._pipeline}@"))))
        ]


def _staged_in(then: Mapping[str, Any]) -> str:
    return (
        f"the Iceberg table {then['table']} (table-uuid {then['id']}), to which a decided batch "
        "is to be published"
    )


def _batch(text: str) -> tuple[str, int]:
    """Return the ledger and the number of the batch that was published last."""
    chain, _, number = text.rpartition("@")
    return chain, int(number)


def _attempt(written_as: str) -> str:
    return written_as.rpartition("/")[0]
