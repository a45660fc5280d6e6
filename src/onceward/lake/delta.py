"""A Delta table: data files are written, and one commit names them. Driver only.

A file that no commit names is no part of the table, and ``VACUUM`` removes it in time. The commit
has an application id (``txn`` in Delta's protocol, *Transaction Identifiers*) of pipeline, ledger
and, in a fan-out, sink, and the batch's number as its version, so that it is carried out once.

A table may change while a batch waits to be published: much of that changes nothing for files that
are there already (new columns, comments, other names where columns are mapped, wider types), and
Delta reads those as it reads its own. :func:`changed` tells the other changes.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from onceward import patience
from onceward.engine.two_phase import CommitResult
from onceward.errors import ConfigurationError, ServerMisconfigured, TableMissing
from onceward.ids import PipelineId
from onceward.lake.target import LakeTable, Staged
from onceward.spark.files import path_scheme
from onceward.spark.tables.delta_table import (
    DeltaTable,
    DeltaTransaction,
    Shape,
    table_location,
)
from onceward.spark.types import quoted

log = logging.getLogger(__name__)


_IN_FILES = "delta.columnMapping.physicalName"
_WIDER = {
    "byte": {"short", "integer", "long", "double"},
    "short": {"integer", "long", "double"},
    "integer": {"long", "double"},
    "float": {"double"},
    "date": {"timestamp_ntz"},
}
"""What ``ALTER COLUMN … TYPE`` takes, and Delta's readers read, beside decimals."""
_DIGITS = {"byte": (10, 0), "short": (10, 0), "integer": (10, 0), "long": (20, 0)}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")


def column_texts(shape: Shape) -> dict[str, str]:
    """Return each column's type and its place in the files, as text."""
    return {
        name: json.dumps(
            [column["type"], {k: v for k, v in column["metadata"].items() if "columnMapping" in k}]
        )
        for name, column in shape.columns.items()
    }


def changed(then: Mapping[str, Any], shape: Shape) -> str:
    """Return what is not as it was, as far as files care, if anything.

    :param then: with ``"columns"``, as :func:`column_texts`, and ``"partition_by"``.
    """
    columns = {name: json.loads(column) for name, column in then["columns"].items()}
    were = {
        metadata.get(_IN_FILES, name): (name, kind) for name, (kind, metadata) in columns.items()
    }
    are = {_place(column): column["type"] for column in shape.columns.values()}
    places = [columns[name][1].get(_IN_FILES, name) for name in then["partition_by"]]
    if places != [_place(shape.columns[name]) for name in shape.partition_by]:
        return "its partitions"
    misfits = [
        name
        for place, (name, kind) in were.items()
        if place not in are or not _reads(are[place], kind)
    ]
    return f"its columns {', '.join(misfits)}" if misfits else ""


def _place(field: Mapping[str, Any]) -> str:
    """Return the column's name in the files."""
    return str(field["metadata"].get(_IN_FILES, field["name"]))


def _reads(now: Any, then: Any) -> bool:
    """Return whether a column of type ``now`` has the values that were written as ``then``."""
    if isinstance(now, str) or isinstance(then, str):
        return now == then or (
            isinstance(now, str) and isinstance(then, str) and _is_wider(now, then)
        )
    if now["type"] != then["type"]:
        return False
    if now["type"] == "struct":
        fields = {_place(field): field["type"] for field in now["fields"]}
        return all(
            _place(field) in fields and _reads(fields[_place(field)], field["type"])
            for field in then["fields"]
        )
    parts = {"array": ["elementType"], "map": ["keyType", "valueType"]}.get(now["type"])
    return now == then if parts is None else all(_reads(now[part], then[part]) for part in parts)


def _is_wider(now: str, then: str) -> bool:
    if now in _WIDER.get(then, ()):
        return True
    digits, fewer = _digits(now), _DIGITS.get(then) or _digits(then)
    if digits is None or fewer is None:
        return False
    return digits[1] >= fewer[1] and digits[0] - digits[1] >= fewer[0] - fewer[1]


def _digits(kind: str) -> tuple[int, int] | None:
    """Return the digits of a decimal: in all, and behind the point."""
    found = _DECIMAL.fullmatch(kind)
    return (int(found[1]), int(found[2])) if found else None


def rules(shape: Shape) -> dict[str, str]:
    """Return what each row has to keep, and how ``ALTER TABLE`` drops that. The same rule is the
    same text for ever."""
    prefix = "delta.constraints."
    checks = {
        f"CHECK ({text})": f"DROP CONSTRAINT {quoted(name.removeprefix(prefix))}"
        for name, text in shape.settings.items()
        if name.startswith(prefix)
    }
    return checks | {
        f"NOT NULL {'.'.join(places)}": (
            f"ALTER COLUMN {'.'.join(map(quoted, names))} DROP NOT NULL"
        )
        for places, names in _without_nulls(list(shape.columns.values()))
    }


def _without_nulls(fields: list[Any]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield columns without nulls: in the files, and in the table."""
    for field in fields:
        place, name, kind = _place(field), str(field["name"]), field["type"]
        if not field["nullable"]:
            yield (place,), (name,)
        inner = kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else []
        for places, names in _without_nulls(inner):
            yield (place, *places), (name, *names)


def rows_in(actions: Sequence[str]) -> int:
    """Count the rows in ``actions``, as counted by the tasks that have written them.

    :raises ConfigurationError: the session does not let them count.
    """
    try:
        return sum(
            int(json.loads(json.loads(action)["add"]["stats"])["numRecords"]) for action in actions
        )
    except (KeyError, TypeError) as error:
        raise ConfigurationError(
            "Delta has not said how many rows it has written",
            next_step="leave spark.databricks.delta.stats.collect at true",
        ) from error


_WRITER = "onceward:"
_S3 = ("s3", "s3a", "s3n")
_ONE_DRIVERS = "S3SingleDriverLogStore"
"""It looks whether a commit of that number is there, and then puts its own."""


class Delta(LakeTable):
    """The table at ``path``, or by that ``name`` in the session's catalog."""

    kind = "delta"

    def __init__(self, pipeline: PipelineId, *, path: str | None, name: str | None) -> None:
        super().__init__(pipeline, str(name or path))
        self._path = path
        self._name = name

    def __str__(self) -> str:
        return f"the Delta table {self._name or self._path}"

    @patience.OpenedOnce
    def _table(self) -> DeltaTable:
        """Asked for inside a batch."""
        session = SparkSession.active()
        return DeltaTable(session, self._path or table_location(session, str(self._name)))

    def look_anew(self) -> None:
        # A name may have been given to another table, or the table another place
        if self._name:
            vars(self).pop("_table", None)

    @property
    def id(self) -> str:
        return self._table.begin().shape.table_id

    def check(self) -> None:
        self._table.must_be_plain()
        scheme = path_scheme(self._table.path)
        stores = ("delta.logStore.class", f"delta.logStore.{scheme}.impl")
        if scheme in _S3 and not any(
            name.endswith(stores) and not value.endswith(_ONE_DRIVERS)
            for name, value in SparkSession.active().conf.getAll.items()
        ):
            self._warn_of_lost_commits(
                f"its log store is {_ONE_DRIVERS}, Delta's default in S3",
                f"set spark.delta.logStore.{scheme}.impl to "
                "io.delta.storage.S3DynamoDBLogStore for all who commit",
            )

    def newest(self) -> dict[str, int]:
        """Read the newest batches from the table's transaction identifiers (``txn`` actions)."""
        ours, found = self._writer("", ""), dict[str, int]()
        for writer, version in self._table.begin().writers().items():
            if writer.startswith(ours):
                chain, _, _ = writer.removeprefix(ours).partition("@")
                found[chain] = max(version, found.get(chain, -1))
        return found

    def newest_batch(self, chain: str, branch: str) -> int:
        return self._table.begin().newest(self._writer(chain, branch))

    def _writer(self, chain: str, branch: str) -> str:
        """Return the writer's name: of two sinks in a fan-out to one table each has its own."""
        return f"{_WRITER}{self._pipeline}@{chain}" + (f"@{branch}" if branch else "")

    def fitting(self, frame: DataFrame) -> DataFrame:
        return self._table.fitting(frame)

    def stage(self, frame: DataFrame, name: str, number: int) -> Staged:
        """Write files without a commit, and return the actions that would add them."""
        actions, shape = self._table.write(frame)
        table = {
            "table": self._table.path,
            "id": shape.table_id,
            "columns": column_texts(shape),
            "partition_by": list(shape.partition_by),
            "rules": sorted(rules(shape)),
        }
        return Staged(rows_in(actions), actions, table)

    def missing(self, staged: Sequence[Any]) -> list[str]:
        return self._table.missing(staged)

    def commit(self, committable: Mapping[str, Any]) -> CommitResult:
        writer = self._writer(committable["chain"], committable["branch"])
        sequence = int(committable["sequence"])
        table, transaction = self._written_for(committable)
        if transaction.newest(writer) >= sequence:
            return CommitResult.ALREADY_DONE
        if wrong := self._wrong(table, transaction.shape, committable):
            log.error(
                "%s cannot have what %s has prepared: %s", self, committable["attempt"], wrong
            )
            return CommitResult.LOST
        self._must_have_kept(rules(transaction.shape), committable)
        transaction.commit(committable["staged"], writer, sequence, committable["attempt"])
        return CommitResult.DONE

    def _written_for(self, then: Mapping[str, Any]) -> tuple[DeltaTable, DeltaTransaction]:
        """Return the table where it was, or by the name that the sink has for it now: renaming
        moves its files along.
        """
        place = str(then["table"])
        where_it_was = (
            self._table if place == self._table.path else DeltaTable(SparkSession.active(), place)
        )
        found = []
        for table in dict.fromkeys((where_it_was, self._table)):
            with suppress(TableMissing):
                found.append((table, table.begin()))
        for table, transaction in found:
            if transaction.shape.table_id == then["id"]:
                return table, transaction
        if found and found[0][0] is where_it_was:
            return found[0]  # another table
        raise TableMissing(
            f"{then['attempt']} is decided and not yet published, and the Delta table that it was "
            f"written for (id {then['id']}) is no longer at {place}",
            next_step="if it was renamed or moved, build the sink with the name or path that it "
            "has now, or put it back; a new table in its place cannot have the batch",
        )

    def _wrong(self, table: DeltaTable, shape: Shape, then: Mapping[str, Any]) -> str:
        """Return why the files cannot be read, if so: VACUUM may be told to keep nothing new."""
        if shape.table_id != then["id"]:
            return (
                "the table was made anew since; or it was renamed, and another one has its name: "
                "then put it back"
            )
        if what := changed(then, shape):
            return f"{what} were changed since"
        missing = table.missing(then["staged"])
        return f"files are gone (by VACUUM?): {', '.join(missing[:10])}" if missing else ""

    def _must_have_kept(self, now: Mapping[str, str], then: Mapping[str, Any]) -> None:
        """Check that the table has no rules: its rows were never checked by them."""
        new = {rule: drop for rule, drop in now.items() if rule not in then.get("rules", now)}
        if new:
            raise ServerMisconfigured(
                f"{self} has had {', '.join(new)} only since {then['attempt']} was written and "
                "decided: nobody has asked whether its rows keep that",
                next_step=f"{'; '.join(f'ALTER TABLE … {drop}' for drop in new.values())}, start "
                "the query once, which publishes the batch, then add it again: Delta asks the "
                "rows that are there",
            )

    def abort(self, committable: Mapping[str, Any]) -> None:
        self._table.remove(committable.get("staged", []))

    def recover(self) -> list[dict[str, Any]]:
        """Return nothing: no list has uncommitted files, which nobody sees and VACUUM removes."""
        return []
