"""What may become of a table of a lake between the decision and its commit, and what its sinks
refuse. On Spark.
"""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lake_kits import DeltaKit, IcebergKit, LakeKit
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import onceward as ow
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.engine.two_phase import CommitResult
from onceward.errors import (
    ColumnMismatch,
    ConfigurationError,
    ContradictoryOptions,
    InvalidColumn,
    LedgerBehind,
    PreparedDataLost,
    Recovery,
    ReportMismatch,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    TableMissing,
    TargetUnreachable,
)
from onceward.ids import pipeline_id
from onceward.lake.iceberg import Iceberg
from onceward.spark.tables import iceberg_table
from onceward.spark.tables.delta_table import DeltaTable
from onceward.spark.tables.iceberg_table import IcebergTable
from onceward_testing.free_ports import free_ports
from onceward_testing.sink_contract import FIRST, SECOND, Process, assert_holds
from support.lake_packages import needs_iceberg

pytestmark = pytest.mark.lengthy("ci")

_DEFAULTS = "TBLPROPERTIES ('delta.feature.allowColumnDefaults'='supported')"
KITS: dict[str, Callable[[Any, Path], LakeKit]] = {"delta": DeltaKit, "iceberg": IcebergKit}


@pytest.fixture(autouse=True)
def _in_the_lake(in_the_lake: None) -> None:
    """As inside a batch of a query of that session."""


@pytest.fixture(params=KITS)
def kit(request: pytest.FixtureRequest, lake: Any, tmp_path: Path) -> Iterator[LakeKit]:
    made = KITS[request.param](lake, tmp_path)
    yield made
    made.close()


@pytest.fixture
def delta(lake: Any, tmp_path: Path) -> Iterator[DeltaKit]:
    made = DeltaKit(lake, tmp_path)
    yield made
    made.close()


@pytest.fixture
def iceberg(lake: Any, tmp_path: Path) -> Iterator[IcebergKit]:
    made = IcebergKit(lake, tmp_path)
    yield made
    made.close()


def decided(kit: LakeKit, values: list[str]) -> Process:
    """A batch that is decided, and of which the process has published nothing."""
    process = Process(kit).open()
    process.decide(values)
    assert kit.visible() == Counter()
    return process


@pytest.mark.fault("lake-published-again")
def test_a_batch_that_the_table_has_is_not_published_again(kit: LakeKit):
    """By an older copy, which comes late, also when the table has forgotten how it came by the
    batch.
    """
    process = decided(kit, FIRST)
    record = process.target.chain.newest()
    assert record is not None
    (committable,) = record.outputs[process.target.kind].data["committables"]
    Process(kit).open().commit(SECOND)
    late = kit.sink()
    assert late.commit(committable) is CommitResult.ALREADY_DONE
    if isinstance(kit, IcebergKit):
        table = process.target._table._table._table
        table.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
        assert late.commit(committable) is CommitResult.ALREADY_DONE
    assert_holds(kit, FIRST + SECOND, 1)


def test_an_older_copy_that_wakes_up_does_not_put_the_tables_number_back(
    iceberg: IcebergKit, monkeypatch: pytest.MonkeyPatch
):
    """It stands still between its look at the number and its commit, which has nothing to publish
    any more.
    """
    record = decided(iceberg, FIRST).target.chain.newest()
    assert record is not None
    (committable,) = record.outputs[iceberg.new_target().kind].data["committables"]
    waiting, newer = Iceberg._waiting, Process(iceberg)

    def stands_still(*asked: Any) -> Any:
        monkeypatch.setattr(Iceberg, "_waiting", waiting)
        newer.open().commit(SECOND)
        return waiting(*asked)

    late = iceberg.sink()
    monkeypatch.setattr(Iceberg, "_waiting", stands_still)
    assert late.commit(committable) is CommitResult.ALREADY_DONE
    newer.commit(["more"])
    Process(iceberg).open()
    assert_holds(iceberg, [*FIRST, *SECOND, "more"], 2)


def test_others_append_in_between(kit: LakeKit):
    decided(kit, FIRST)
    theirs = kit.frame(["theirs"])
    if isinstance(kit, DeltaKit):
        theirs.write.format("delta").mode("append").save(kit.path)
    else:
        theirs.writeTo(kit.table).append()
    Process(kit).open().commit(SECOND)
    assert kit.visible() == Counter([*FIRST, *SECOND, "theirs"])


@pytest.mark.fault("lake-lost")
def test_prepared_files_that_are_gone_stop_the_pipeline_by_name(kit: LakeKit):
    """Removed by the table's maintenance, say."""
    decided(kit, FIRST)
    if isinstance(kit, DeltaKit):
        for file in Path(kit.path).glob("*.parquet"):
            file.unlink()
    else:
        table = Process(kit).target._table._table
        table.drop(list(table.staged("contract@").values()))
    with pytest.raises(PreparedDataLost):
        Process(kit).open()
    # Once, with nothing to write: the next start does not look for what was left out
    without(kit).open()
    Process(kit).open().commit(SECOND)
    assert kit.visible() == Counter(SECOND)


@pytest.mark.fault("lake-lost")
def test_files_that_are_gone_while_a_process_waits_to_publish_stop_it_by_name(kit: LakeKit):
    """Even one that has written them a moment ago: VACUUM may be told to keep nothing."""
    process = decided(kit, FIRST)
    for file in data_files(kit):
        file.unlink()
    with pytest.raises(PreparedDataLost):
        process.finish()
    assert kit.visible() == Counter()


@pytest.mark.fault("lake-lost")
def test_a_batch_whose_files_are_gone_is_not_decided(kit: LakeKit):
    """Somebody's VACUUM, or remove_orphan_files, took them for left over while others were being
    written.
    """
    process = Process(kit).open()
    process.commit(FIRST)
    before = set(data_files(kit))
    process.write(kit.frame(SECOND))
    for file in sorted(set(data_files(kit)) - before)[:1]:
        file.unlink()
    with pytest.raises(ReportMismatch, match="are gone before it was decided") as gone:
        process.stage_what_is_written()
    assert gone.value.recovery is Recovery.RUN_AGAIN
    process.attempt.abort()
    process.commit(SECOND)
    assert_holds(kit, FIRST + SECOND, 1)


@pytest.mark.fault("lake-lost")
def test_a_batch_whose_snapshot_has_expired_is_not_decided(iceberg: IcebergKit):
    """The table's usual ``expire_snapshots`` ran while another frame was written."""
    process = Process(iceberg).open()
    process.write(iceberg.frame(FIRST), iceberg.frame(SECOND))
    table = process.target._table._table
    staged, _ = table.staged("contract@").values()
    table._table.expireSnapshots().expireSnapshotId(staged).commit()
    with pytest.raises(ReportMismatch, match=f"snapshot {staged}"):
        process.stage_what_is_written()
    process.attempt.abort()
    process.commit(FIRST + SECOND)
    assert_holds(iceberg, FIRST + SECOND, 0)


def gone(table: Any, snapshots: list[int]) -> list[int]:
    """Those of ``snapshots`` that no longer exist, published or not."""
    missing = table.missing(snapshots)
    return [one for one in snapshots if f"snapshot {one}" in missing]


@pytest.mark.lengthy("chaos")
def test_a_table_that_is_moved_while_a_batch_waits_gets_it_there(lake: Any, tmp_path: Path):
    """It is known by its id. Nobody advises what would lose the batch."""
    was, now, other = (
        DeltaKit(lake, tmp_path, f"{tmp_path}/{name}") for name in ("was", "now", "other")
    )
    for kit in (was, other):
        lake.createDataFrame([], "value string").write.format("delta").save(kit.path)
    process = decided(was, FIRST)
    shutil.move(was.path, now.path)
    for resume in ("checkpoint", "skip_missing"):
        astray = Process(other)
        astray.target._policy = SinkPolicy(astray.target._policy.pipeline, resume=resume)
        with pytest.raises(
            TableMissing, match=r"is decided and not yet published.*if it was renamed or moved"
        ):
            astray.open()
    with pytest.raises(TableMissing, match="renamed or moved"):
        process.finish()
    with pytest.raises(TableMissing, match="if it was moved"):
        Process(was).open()
    lake.createDataFrame([], "value string").write.format("delta").save(
        was.path
    )  # a new one in its place
    Process(now).open().commit(SECOND)
    assert now.visible() == Counter(FIRST + SECOND)
    assert was.visible() == other.visible() == Counter()
    for kit in (was, now, other):
        kit.close()


@pytest.mark.fault("lake-lost")
def test_a_table_that_was_made_anew_stops_the_pipeline_by_name(kit: LakeKit):
    decided(kit, FIRST)
    if isinstance(kit, DeltaKit):
        kit.lake.createDataFrame([], "value int").write.format("delta").mode("overwrite").option(
            "overwriteSchema", "true"
        ).save(kit.path)
    else:
        kit.lake.sql(f"DROP TABLE {kit.table} PURGE")
        kit.lake.sql(
            f"CREATE TABLE {kit.table} (value int) USING iceberg TBLPROPERTIES "
            f"('write.wap.enabled'='true')"
        )
    with pytest.raises(PreparedDataLost):
        Process(kit).open()


@pytest.mark.lengthy("chaos")
def test_changes_that_files_do_not_care_about_lose_no_batch(lake: Any, tmp_path: Path):
    """A column that is gone, they do."""
    columns = "value STRING, s STRUCT<a: INT NOT NULL>, n INT, d DECIMAL(5,2)"
    lake.sql(f"CREATE TABLE delta.`{tmp_path}/t` ({columns}) USING delta PARTITIONED BY (value)")
    kit = DeltaKit(lake, tmp_path, f"{tmp_path}/t")
    frame = kit.frame(["a"]).selectExpr(
        "value", "struct(1 AS a) AS s", "2 AS n", "CAST(3.5 AS DECIMAL(5,2)) AS d"
    )
    process = Process(kit).open()
    process.newest = process.stage(frame)
    process.attempt.commit()
    features = "'delta.enableTypeWidening'='true', 'delta.columnMapping.mode'='name'"
    for change in (
        *(
            "ALTER COLUMN s.a COMMENT 'hello'",
            "ADD COLUMNS (s.b INT, more INT)",
            "ALTER COLUMN s.a DROP NOT NULL",
        ),
        *(
            f"SET TBLPROPERTIES({features})",
            "ALTER COLUMN n TYPE BIGINT",
            "ALTER COLUMN d TYPE DECIMAL(10,4)",
        ),
        *("RENAME COLUMN n TO renamed", "RENAME COLUMN value TO part"),
    ):
        lake.sql(f"ALTER TABLE delta.`{kit.path}` {change}")
    process = Process(kit).open()
    (row,) = lake.read.format("delta").load(kit.path).collect()
    was = {"part": "a", "s": {"a": 1, "b": None}, "renamed": 2, "d": Decimal("3.5"), "more": None}
    assert row.asDict(recursive=True) == was
    names = [
        "value AS part",
        "named_struct('a', 1, 'b', 2) AS s",
        "2L AS renamed",
        "CAST(3 AS DECIMAL(10,4)) AS d",
    ]
    process.newest = process.stage(kit.frame(["b"]).selectExpr(*names, "4 AS more"))
    process.attempt.commit()
    lake.sql(f"ALTER TABLE delta.`{kit.path}` DROP COLUMN s.b")
    with pytest.raises(PreparedDataLost):
        Process(kit).open()


@pytest.mark.lengthy("chaos")
def test_rows_that_never_met_a_rule_of_the_table_are_not_published_past_it(delta: DeltaKit):
    """What the error advises publishes them. Those who were decided before rules were noted go as
    they went.
    """
    add = f"ALTER TABLE delta.`{delta.path}` ADD CONSTRAINT {{}} CHECK (length(value) {{}})"
    delta.lake.sql(add.format("any", ">= 0"))
    record = decided(delta, FIRST).newest
    assert record is not None
    delta.lake.sql(add.format("short", "< 5"))
    for resume in ("checkpoint", "skip_missing"):
        process = Process(delta)
        process.target._policy = SinkPolicy(process.target._policy.pipeline, resume=resume)
        with pytest.raises(
            ConfigurationError,
            match=r"CHECK \(.* < 5\) only since.* DROP CONSTRAINT `short`, start",
        ):
            process.open()
    assert delta.visible() == Counter()
    delta.lake.sql(f"ALTER TABLE delta.`{delta.path}` DROP CONSTRAINT short")
    process = Process(delta).open()
    assert delta.visible() == Counter(FIRST)
    delta.lake.sql(add.format("short", "< 5"))
    process.commit(SECOND)
    delta.lake.sql(add.format("shorter", "< 4"))
    (committable,) = record.outputs[process.target.kind].data["committables"]
    older = {name: what for name, what in committable.items() if name != "rules"} | {"sequence": 7}
    assert delta.sink().commit(older) is CommitResult.DONE


@pytest.mark.fault("lake-lost")
@pytest.mark.parametrize(
    ("column", "reads"),
    [("value int", False), ("other string", False), ("value string, more int", True)],
)
def test_a_table_that_was_replaced_since_has_to_read_what_was_staged(
    iceberg: IcebergKit, column: str, reads: bool
):
    """It has the same id all the same."""
    decided(iceberg, FIRST)
    wap = "USING iceberg TBLPROPERTIES ('write.wap.enabled'='true')"
    iceberg.lake.sql(f"CREATE OR REPLACE TABLE {iceberg.table} ({column}) {wap}")
    if reads:
        Process(iceberg).open()
        assert iceberg.visible() == Counter(FIRST)
    else:
        with pytest.raises(PreparedDataLost):
            Process(iceberg).open()


def test_a_table_that_was_renamed_since_gets_the_batch(
    iceberg: IcebergKit, monkeypatch: pytest.MonkeyPatch
):
    """Whatever has its old name now."""
    iceberg.lake.conf.set("spark.sql.catalog.renames", "org.apache.iceberg.spark.SparkCatalog")
    iceberg.lake.conf.set(
        "spark.sql.catalog.renames.catalog-impl", "org.apache.iceberg.inmemory.InMemoryCatalog"
    )
    monkeypatch.setattr(
        "pyspark.sql.SparkSession.active", lambda: iceberg.lake
    )  # it is in the memory of one session
    create = (
        "CREATE TABLE {} (value string) USING iceberg TBLPROPERTIES ('write.wap.enabled'='true')"
    )
    before, after, third = (f"renames.shop.{name}" for name in ("before", "after", "third"))
    iceberg.lake.sql("CREATE NAMESPACE renames.shop")
    iceberg.lake.sql(create.format(before))
    iceberg.table = before
    decided(iceberg, FIRST)
    iceberg.lake.sql(f"ALTER TABLE {before} RENAME TO {after.removeprefix('renames.')}")
    with pytest.raises(TableMissing, match="pass its new name if it was renamed"):
        Process(iceberg).open()
    iceberg.lake.sql(create.format(third))
    iceberg.table = third
    with pytest.raises(TableMissing, match=f"{before} .* not there any more.* rename it back"):
        Process(iceberg).open()
    iceberg.lake.sql(create.format(before))
    with pytest.raises(TableMissing, match=f"{before} .* another one by now.* rename it back"):
        Process(iceberg).open()
    iceberg.table = after
    Process(iceberg).open()
    assert_holds(iceberg, FIRST, 0)


def test_columns_may_change_before_what_was_staged_is_published(iceberg: IcebergKit):
    """So that Iceberg reads it; also what an earlier version has staged, of whose columns nothing
    is said.
    """
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} ADD COLUMNS (more int, less int)")
    process = Process(iceberg).open()
    process.stage(iceberg.frame(FIRST).selectExpr("value", "1 AS more", "2 AS less"))
    (committable,) = process.attempt.record.outputs["iceberg"].data["committables"]
    process.attempt.commit()
    for change in ("ALTER COLUMN more TYPE bigint", "DROP COLUMN less", "ADD COLUMN last string"):
        iceberg.lake.sql(f"ALTER TABLE {iceberg.table} {change}")
    assert set(committable.pop("fields").values()) == {"string", "int"}
    late = iceberg.sink()
    assert late.commit(committable) is CommitResult.DONE
    assert iceberg.visible() == Counter(FIRST)
    Process(iceberg).open()
    assert_holds(iceberg, FIRST, 0)


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("how", ["cherrypick", "behind another", "current", "and expired"])
def test_what_somebody_publishes_by_hand_is_published_once(iceberg: IcebergKit, how: str):
    process = Process(iceberg).open()
    process.stage(iceberg.frame(FIRST), iceberg.frame(SECOND))
    process.attempt.commit()
    theirs = ["theirs"] if how in ("behind another", "and expired") else []
    if theirs:  # so that publishing makes another snapshot
        iceberg.frame(theirs).writeTo(iceberg.table).append()
    table = process.target._table._table
    first = min(table.staged("contract@").items())[1]
    by_hand = table._table.manageSnapshots()
    (by_hand.setCurrentSnapshot(first) if how == "current" else by_hand.cherrypick(first)).commit()
    if how == "and expired":
        table._table.expireSnapshots().expireSnapshotId(first).commit()
    assert iceberg.visible() == Counter([*theirs, *FIRST])
    Process(iceberg).open()
    assert iceberg.visible() == Counter([*theirs, *FIRST, *SECOND])
    Process(iceberg).open().commit(["more"])
    assert_holds(iceberg, [*theirs, *FIRST, *SECOND, "more"], 1)


def test_what_was_staged_and_not_decided_is_dropped_with_its_files(iceberg: IcebergKit):
    process = Process(iceberg).open()
    process.commit(FIRST)
    process.stage(iceberg.frame(SECOND))
    Process(iceberg).open().commit(SECOND)
    table = process.target._table._table
    assert table.staged("contract@") == {}
    assert len(files := list(data_files(iceberg))) == 2 + 2, files
    assert_holds(iceberg, FIRST + SECOND, 1)


def test_what_somebody_has_rolled_back_is_not_dropped(iceberg: IcebergKit):
    """It is no part of the table any more, and can be again, with its files."""
    Process(iceberg).open().commit(["before"])
    table = Process(iceberg).target._table._table
    before = history(table)[-1]
    Process(iceberg).open().commit(FIRST)
    after = history(table)[-1]
    table._table.manageSnapshots().rollbackTo(before).commit()
    Process(iceberg).open().commit(SECOND)
    assert iceberg.visible() == Counter(["before", *SECOND])
    table._table.manageSnapshots().setCurrentSnapshot(after).commit()
    assert iceberg.visible() == Counter(["before", *FIRST])


def test_dropping_a_snapshot_takes_no_other(iceberg: IcebergKit):
    """Neither one that is published, nor what the settings of the table or of a branch call
    old.
    """
    process = decided(iceberg, FIRST)
    iceberg.frame(["theirs"]).writeTo(
        iceberg.table
    ).append()  # so that publishing makes another snapshot
    table = process.target._table._table
    decided_one = list(table.staged("contract@").values())
    process.finish()
    process.begin()
    process.stage(iceberg.frame(SECOND))
    (undecided,) = table.staged("contract@").values()
    table._table.manageSnapshots().createBranch("side", history(table)[0]).commit()
    old = ("max-snapshot-age-ms", "max-ref-age-ms")
    settings = ", ".join(f"'history.expire.{name}'='1'" for name in old)
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} SET TBLPROPERTIES ({settings})")
    before, files = history(table), set(data_files(iceberg))
    table.drop([*decided_one, undecided])
    assert history(table) == before
    assert set(table._table.refs()) == {"main", "side"}
    assert gone(table, [*decided_one, undecided]) == [undecided]
    assert len(files - set(data_files(iceberg))) == 2
    assert not list(files_of(iceberg, f"metadata/snap-{undecided}-*"))
    assert iceberg.visible() == Counter([*FIRST, "theirs"])


@pytest.mark.parametrize("keeps_on", [False, True])
def test_dropping_goes_on_when_somebody_else_commits(
    iceberg: IcebergKit, monkeypatch: pytest.MonkeyPatch, keeps_on: bool
):
    process = Process(iceberg).open()
    process.stage(iceberg.frame(FIRST))
    table = process.target._table._table
    staged = list(table.staged("contract@").values())
    its_files, theirs = table._snapshot_files, iceberg.frame(["theirs"])

    def busy(dropped: Any, base: Any) -> Any:
        if keeps_on or iceberg.visible() == Counter():
            theirs.writeTo(iceberg.table).append()
        return its_files(dropped, base)

    monkeypatch.setattr(table, "_snapshot_files", busy)
    if keeps_on:
        with pytest.raises(Exception, match="CommitFailedException"):
            table.drop(staged)
    else:
        table.drop(staged)
    assert gone(table, staged) == ([] if keeps_on else staged)
    assert len(list(data_files(iceberg))) == (2 + 5 if keeps_on else 1)


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_is_dropped_takes_no_file_that_was_published(iceberg: IcebergKit, version: str):
    """Nothing but the files tells of it, once the snapshot has expired that published them."""
    iceberg.lake.sql(f"DROP TABLE {iceberg.table}")
    settings = f"'write.wap.enabled'='true', 'format-version'='{version}'"
    iceberg.lake.sql(
        f"CREATE TABLE {iceberg.table} (value string) USING iceberg TBLPROPERTIES ({settings})"
    )
    process = decided(iceberg, FIRST)
    iceberg.frame(["theirs"]).writeTo(iceberg.table).append()
    table = process.target._table._table
    staged = list(table.staged("contract@").values())
    process.finish()
    published = history(table)[-1]
    Process(iceberg).open().commit(SECOND)
    table._table.expireSnapshots().expireSnapshotId(published).commit()
    assert list(table.staged("contract@").values()) == staged
    Process(iceberg).open().commit(["more"])
    assert gone(table, staged) == staged
    assert iceberg.visible() == Counter([*FIRST, *SECOND, "theirs", "more"])


def test_files_stay_where_nobody_may_delete_any(iceberg: IcebergKit):
    """Another table may have been registered over them."""
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} SET TBLPROPERTIES ('gc.enabled'='false')")
    process = Process(iceberg).open()
    process.stage(iceberg.frame(FIRST))
    process.attempt.abort()
    assert process.target._table._table.staged("contract@") == {}
    assert len(list(data_files(iceberg))) == 2


def test_a_session_keeps_its_own_audit_id(iceberg: IcebergKit):
    """``spark.wap.id`` is set for one write, and is then what it was."""
    iceberg.lake.conf.set("spark.wap.id", "mine")
    try:
        Process(iceberg).open().commit(FIRST)
        assert iceberg.lake.conf.get("spark.wap.id") == "mine"
    finally:
        iceberg.lake.conf.unset("spark.wap.id")
    Process(iceberg).open().commit(SECOND)
    assert iceberg.lake.conf.get("spark.wap.id", None) is None
    assert_holds(iceberg, FIRST + SECOND, 1)


def test_another_ledger_is_refused(kit: LakeKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    Process(kit).open().commit(FIRST)
    monkeypatch.setattr(type(kit), "ledger", ow.FolderLedger(tmp_path / "another"))
    with pytest.raises(ConfigurationError, match="another ledger"):
        Process(kit).open()
    assert kit.visible() == Counter(FIRST)


@pytest.mark.fault("lake-ledger-restored")
def test_a_ledger_that_was_put_back_is_refused(kit: LakeKit, tmp_path: Path):
    """What would be decided anew under a number that the table has would be taken for what it
    has.
    """
    Process(kit).open().commit(FIRST)
    shutil.copytree(tmp_path / "ledger", tmp_path / "kept")
    Process(kit).open().commit(SECOND)
    shutil.rmtree(tmp_path / "ledger")
    shutil.move(tmp_path / "kept", tmp_path / "ledger")
    process = Process(kit).open()
    with pytest.raises(LedgerBehind, match=r"has batch number 1 .* ends with 0"):
        process.begin()
    assert kit.visible() == Counter(FIRST + SECOND)


@pytest.mark.lengthy("chaos")
@pytest.mark.fault("lake-lost")
@pytest.mark.parametrize("how", ["put back", "made anew"])
def test_a_table_that_lost_what_was_published_stops_the_pipeline_by_name(
    kit: LakeKit, tmp_path: Path, how: str
):
    """The next batch would be appended over the hole. What the error advises goes on, with the
    table or without the batches.
    """
    process, copy = Process(kit).open(), tmp_path / "copy"
    process.commit(FIRST)
    shutil.copytree(folder_of(kit), copy / "before")
    for values in (SECOND, []):
        process.commit(values)
    shutil.copytree(folder_of(kit), copy / "after")
    if how == "put back":
        swap(kit, copy / "before")
        expected = r"ends with batch number 0 .* has published number 1 into it: number 1 is gone"
    else:
        make_anew(kit)
        expected = r"ends with no batch .* numbers 0 to 1 are gone, .* \(its id was \S+, and is"
    # A running query is told by Iceberg itself
    with pytest.raises((PreparedDataLost, TableMissing), match="put back from an older copy"):
        process.begin()
    with pytest.raises(PreparedDataLost, match=expected) as stop:
        Process(kit).open().begin()
    assert stop.value.details["last_missing"] == 1
    assert kit.visible() == Counter(FIRST if how == "put back" else [])
    if how == "put back":
        swap(kit, copy / "after")
        Process(kit).open().commit(["more"])
        assert kit.visible() == Counter([*FIRST, *SECOND, "more"])
    else:
        for values in ([], ["more"]):
            without(kit).open().commit(values)
        Process(kit).open().commit(["again"])
        assert kit.visible() == Counter(["more", "again"])


def test_what_was_lost_in_this_run_is_not_left_out(delta: DeltaKit):
    """Of that, nobody has said that it may be."""
    process = without(delta).open()
    process.commit(FIRST)
    make_anew(delta)
    with pytest.raises(PreparedDataLost, match="number 0 is gone"):
        process.begin()


@pytest.mark.lengthy("chaos")
def test_a_delta_table_goes_on_whatever_its_users_do_with_its_rows(delta: DeltaKit):
    """It remembers its batches all the same; also behind a checkpoint of its log."""
    process = Process(delta).open()
    process.commit(FIRST)
    for change in (
        "RESTORE TABLE {} TO VERSION AS OF 0",
        "DELETE FROM {}",
        "OPTIMIZE {}",
        "VACUUM {}",
        "CREATE OR REPLACE TABLE {} (value STRING) USING delta",
    ):
        delta.lake.sql(change.format(f"delta.`{delta.path}`"))
        process.commit(SECOND)
        assert Counter(SECOND) <= delta.visible()
    logs = delta.lake._jvm.org.apache.spark.sql.delta.DeltaLog
    logs.forTable(delta.lake._jsparkSession, delta.path).checkpoint()
    for entry in sorted(Path(delta.path, "_delta_log").glob("*.json"))[:-1]:
        entry.unlink()
    logs.clearCache()
    Process(delta).open().commit(["more"])
    assert Counter([*SECOND, "more"]) <= delta.visible()


@pytest.mark.lengthy("chaos")
def test_an_iceberg_table_goes_on_whatever_its_users_do_with_its_rows(iceberg: IcebergKit):
    process = Process(iceberg).open()
    process.commit(FIRST)
    table = process.target._table._table
    first = history(table)[-1]
    process.commit(SECOND)
    for change in (
        table._table.manageSnapshots().rollbackTo(first),
        table._table.expireSnapshots().expireOlderThan(2**62).retainLast(1),
        table._table.newDelete().deleteFromRowFilter(
            iceberg.lake._jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue()
        ),
    ):
        change.commit()
        process.commit(SECOND)
    iceberg.lake.sql(
        f"CREATE OR REPLACE TABLE {iceberg.table} (value STRING) USING iceberg "
        "TBLPROPERTIES ('write.wap.enabled'='true')"
    )
    process.commit(["more"])
    Process(iceberg).open().commit(["again"])
    assert iceberg.visible() == Counter(["more", "again"])


@pytest.mark.lengthy("chaos")
def test_a_sink_may_be_pointed_at_another_table(
    kit: LakeKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """That has none of the batches before, which are where they are."""
    Process(kit).open().commit(FIRST)
    other = KITS["delta" if isinstance(kit, DeltaKit) else "iceberg"](kit.lake, tmp_path / "other")
    monkeypatch.setattr(type(kit), "ledger", kit.ledger)
    for values in ([], SECOND):
        Process(other).open().commit(values)
    Process(kit).open().commit(["more"])
    assert (kit.visible(), other.visible()) == (Counter([*FIRST, "more"]), Counter(SECOND))
    other.close()


@pytest.mark.parametrize("columns", [["value", "1 AS more"], ["value AS another"], ["1 AS value"]])
def test_a_frame_that_does_not_fit_is_refused_before_anything_is_written(
    kit: LakeKit, columns: list[str]
):
    process, before = Process(kit).open(), list(data_files(kit))
    with pytest.raises(ColumnMismatch):
        process.write(kit.frame(FIRST).selectExpr(*columns))
    assert list(data_files(kit)) == before


@pytest.mark.lengthy("chaos")
def test_columns_go_by_their_names(lake: Any, tmp_path: Path, kit: LakeKit):
    add = "ADD COLUMNS (length int)"
    lake.sql(
        f"ALTER TABLE delta.`{kit.path}` {add}"
        if isinstance(kit, DeltaKit)
        else f"ALTER TABLE {kit.table} {add}"
    )
    process = Process(kit).open()
    process.newest = process.stage(
        kit.frame(["four"]).selectExpr("length(value) AS length", "value")
    )
    process.attempt.commit()
    process.finish()
    table = (
        lake.read.format("delta").load(kit.path)
        if isinstance(kit, DeltaKit)
        else lake.table(kit.table)
    )
    assert [row.asDict() for row in table.collect()] == [{"value": "four", "length": 4}]


@pytest.mark.parametrize(
    ("column", "value", "fits"),
    [
        ("date", "timestamp'2026-11-23 10:00:00'", False),
        ("decimal(10,2)", "1.2345BD", False),
        ("float", "0.1D", False),
        ("int", "5L", False),
        ("bigint", "5", True),
        ("double", "9007199254740993L", False),
        ("float", "16777217", False),
        ("array<double>", "array(9007199254740993L)", False),
        ("string", "X'ff'", False),
        ("string", "timestamp'2026-10-25 01:30:00Z'", False),
        ("timestamp_ntz", "timestamp'2026-10-25 01:30:00Z'", False),
        ("timestamp", "timestamp_ntz'2026-03-29 02:30:00'", False),
        ("double", "5", True),
    ],
)
def test_iceberg_stores_a_value_as_it_is_or_refuses(
    iceberg: IcebergKit, column: str, value: str, fits: bool
):
    """Spark would cut, round, narrow or move it for the table, without a word."""
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} ADD COLUMNS (more {column})")
    frame = iceberg.frame(["a"]).selectExpr("value", f"{value} AS more")
    process = Process(iceberg).open()
    if not fits:
        with pytest.raises(ColumnMismatch, match="more"):
            process.write(frame)
        return
    assert process.write(frame) == (1,)


def add_column(iceberg: IcebergKit, kind: str) -> None:
    """As Iceberg's other writers can: to Spark's SQL some of its types have no name.

    :param kind: as JSON.
    """
    field = f'{{"id": 1, "name": "more", "required": false, "type": {kind}}}'
    parser, util = (
        iceberg.lake._jvm.org.apache.iceberg.SchemaParser,
        iceberg.lake._jvm.org.apache.iceberg.spark.Spark3Util,
    )
    made = parser.fromJson(f'{{"type": "struct", "schema-id": 0, "fields": [{field}]}}')
    table = util.loadIcebergTable(iceberg.lake._jsparkSession, iceberg.table)
    table.updateSchema().addColumn("more", made.findType("more")).commit()


WAYS_TO_A_VALUE = {
    "{0}": "{0}",
    '{{"type": "list", "element-id": 2, "element": {0}, "element-required": false}}': "array({0})",
    '{{"type": "struct", "fields": [{{"id": 2, "name": "a.`b", "required": false, "type": {0}}}]}}'
    "": "named_struct('a.`b', {0})",
    '{{"type": "map", "key-id": 2, "key": {0}, "value-id": 3, "value": "int", '
    '"value-required": false}}': "map({0}, 1)",
    '{{"type": "map", "key-id": 2, "key": "int", "value-id": 3, "value": {0}, '
    '"value-required": false}}': "map(1, {0})",
}


@pytest.mark.parametrize("way", WAYS_TO_A_VALUE, ids=WAYS_TO_A_VALUE.values())
@pytest.mark.parametrize(
    ("kind", "fits", "others"),
    [
        (
            "uuid",
            "'0123abcd-00ef-00ef-00ef-0123456789ab'",
            ["'1-2-3-4-5'", "'AAAAAAAA-BBBB-CCCC-DDDD-EEEEEEEEEEEE'", "'no uuid'"],
        ),
        ("fixed[2]", "X'00ff'", ["X'00'", "X'000000'"]),
    ],
)
def test_a_value_that_iceberg_would_make_another_one_is_refused(
    iceberg: IcebergKit, way: str, kind: str, fits: str, others: list[str]
):
    """To Spark a UUID is any text: Java takes some for it that come back as others."""
    add_column(iceberg, way.format(f'"{kind}"'))
    process = Process(iceberg).open()
    value = WAYS_TO_A_VALUE[way]
    # and a null, where a value may be one
    null = f"IF(value = 'a', NULL, {fits})" if value != "map({0}, 1)" else fits
    frame = iceberg.frame(["a", "b"]).selectExpr("value", f"{value.format(null)} AS more")
    assert process.write(frame) == (2,)
    for one in others:
        frame = iceberg.frame(["a"]).selectExpr("value", f"{value.format(one)} AS more")
        with pytest.raises(RowRefused, match="column more is none that the Iceberg table"):
            process.write(frame)


def test_a_type_of_iceberg_that_spark_has_not_is_refused_by_name(iceberg: IcebergKit):
    add_column(iceberg, '"time"')
    process = Process(iceberg).open()
    with pytest.raises(ColumnMismatch, match="Spark does not support time fields"):
        process.write(iceberg.frame(["a"]))


def test_a_rule_of_the_table_refuses_a_row_before_the_decision(delta: DeltaKit):
    delta.lake.sql(
        f"ALTER TABLE delta.`{delta.path}` ADD CONSTRAINT short CHECK (length(value) < 5)"
    )
    process = Process(delta).open()
    with pytest.raises(RowRefused, match="short") as refused:
        process.write(delta.frame(["a", "a long one"]))
    assert "a long one" not in str(refused.value)
    process.attempt.abort()
    assert delta.visible() == Counter()


@pytest.mark.lengthy("chaos")
def test_tables_that_forget_their_writers_are_refused(delta: DeltaKit):
    name = "delta.setTransactionRetentionDuration"
    delta.lake.sql(
        f"ALTER TABLE delta.`{delta.path}` SET TBLPROPERTIES ('{name}'='interval 1 days')"
    )
    with pytest.raises(ConfigurationError, match="forgotten which batches"):
        Process(delta).open()
    delta.lake.sql(
        f"ALTER TABLE delta.`{delta.path}` UNSET TBLPROPERTIES ('{name}')"
    )  # as it advises
    Process(delta).open()


@pytest.mark.lengthy("chaos")
def test_a_table_that_needs_a_newer_delta_is_refused_before_the_decision(delta: DeltaKit):
    """For its writers alone: this Delta reads it, and writes files of it, but commits nothing."""

    def needs(writer: int, **features: Any) -> None:
        commits = Path(delta.path) / "_delta_log"
        version = max(int(one.stem) for one in commits.glob("*.json")) + 1
        protocol = {"minReaderVersion": 1, "minWriterVersion": writer, **features}
        (commits / f"{version:020}.json").write_text(json.dumps({"protocol": protocol}))

    tomorrow: dict[str, Any] = {"writer": 7, "writerFeatures": ["appendOnly", "fromTomorrow"]}
    process = Process(delta).open()
    needs(**tomorrow)
    with pytest.raises(ServerMisconfigured, match="fromTomorrow"):
        process.begin()
    needs(2)
    process.decide(FIRST)
    needs(**tomorrow)
    with pytest.raises(ServerMisconfigured, match="fromTomorrow"):
        Process(delta).open()
    needs(2)
    Process(delta).open().commit(SECOND)
    assert_holds(delta, FIRST + SECOND, 1)


@pytest.mark.lengthy("chaos")
def test_a_table_that_forgets_while_a_query_runs_has_lost_no_batches(delta: DeltaKit):
    """It says that it forgets, and once it does not, knows what it has not dropped for good."""
    name, process = "delta.setTransactionRetentionDuration", Process(delta).open()
    process.commit(FIRST)
    alter = f"ALTER TABLE delta.`{delta.path}`"
    delta.lake.sql(f"{alter} SET TBLPROPERTIES ('{name}'='interval 0 days')")
    with pytest.raises(ConfigurationError, match="forgotten which batches"):
        process.begin()
    delta.lake.sql(f"{alter} UNSET TBLPROPERTIES ('{name}')")
    process.commit(SECOND)
    assert delta.visible() == Counter(FIRST + SECOND)
    delta.lake.sql(f"{alter} SET TBLPROPERTIES ('{name}'='interval 1 days')")
    process.begin()
    with pytest.raises(ConfigurationError, match="forgotten which batches"):
        process.write(delta.frame(FIRST))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("value STRING DEFAULT 'none'", "column value .* is filled by the table"),
        ("value VARCHAR(5)", "column value .* is text of a length"),
    ],
)
def test_tables_whose_columns_are_more_than_types_are_refused(
    lake: Any, tmp_path: Path, columns: str, said: str
):
    lake.sql(f"CREATE TABLE delta.`{tmp_path}/t` ({columns}) USING delta {_DEFAULTS}")
    sink = ow.DeltaSink(
        path=tmp_path / "t", pipeline_id="p", ledger=ow.FolderLedger(tmp_path / "ledger")
    )
    with pytest.raises(ConfigurationError, match=said):
        sink.new_target().list_prepared()


def test_a_table_that_changes_while_a_batch_is_written(
    delta: DeltaKit, monkeypatch: pytest.MonkeyPatch
):
    """Between two frames; and when one was made to fit, before it is written. Nothing of the batch
    is decided.
    """
    alter = f"ALTER TABLE delta.`{delta.path}` ADD COLUMNS"
    process = Process(delta).open()
    process.write(delta.frame(FIRST))
    delta.lake.sql(f"{alter} (more int)")
    process.attempt.write(
        Write(delta.frame(SECOND).selectExpr("value", "1 AS more")), process.next_batch()
    )
    with pytest.raises(ReportMismatch, match="was changed while a batch was written"):
        process.attempt.prepared()
    process.attempt.abort()

    table = process.target._table._table
    fitting = table.fitting
    monkeypatch.setattr(
        table, "fitting", lambda frame: (fitting(frame), delta.lake.sql(f"{alter} (last int)"))[0]
    )
    process.begin()
    with pytest.raises(ColumnMismatch, match="last"):
        process.attempt.write(
            Write(delta.frame(SECOND).selectExpr("value", "1 AS more")), process.next_batch()
        )
    assert delta.visible() == Counter()


def test_nulls_where_the_table_has_none_are_refused_before_the_decision(lake: Any, tmp_path: Path):
    lake.sql(f"CREATE TABLE delta.`{tmp_path}/t` (value STRING NOT NULL) USING delta")
    kit = DeltaKit(lake, tmp_path, f"{tmp_path}/t")
    process = Process(kit).open()
    with pytest.raises(RowRefused, match="NOT NULL"):
        process.write(lake.createDataFrame([("a",), (None,)], "value string"))
    process.attempt.abort()
    assert kit.visible() == Counter()


def test_a_null_that_iceberg_has_no_room_for_is_refused_before_the_decision(iceberg: IcebergKit):
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} ADD COLUMNS (s struct<a: int not null>)")
    process = Process(iceberg).open()
    frame = iceberg.frame(["a", "b"])
    with pytest.raises(RowRefused, match=r"refuses a row: .*non-nullable field: s a\. Next"):
        process.write(
            frame.selectExpr("value", "named_struct('a', nullif(length(value), 1)) AS s")
        )


@pytest.mark.parametrize(
    "columns", [["1 AS n", "value"], ["value", "'x' AS n"], ["value", "1 AS n", "2 AS more"]]
)
def test_a_frame_for_a_table_that_takes_any_schema_has_its_columns(
    iceberg: IcebergKit, columns: list[str]
):
    """There Spark leaves to Iceberg what fits, which goes by the columns' order."""
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} ADD COLUMNS (n int)")
    iceberg.lake.sql(
        f"ALTER TABLE {iceberg.table} SET TBLPROPERTIES ('write.spark.accept-any-schema'='true')"
    )
    process = Process(iceberg).open()
    with pytest.raises(ColumnMismatch, match="n "):
        process.write(iceberg.frame(["a"]).selectExpr(*columns))
    process.begin()
    assert process.write(iceberg.frame(["a"]).selectExpr("value", "1 AS n")) == (1,)


@pytest.mark.lengthy("chaos")
def test_partitions_with_odd_names_are_published_by_another_process(lake: Any, tmp_path: Path):
    lake.sql(
        f"CREATE TABLE delta.`{tmp_path}/t` (value STRING, part STRING) USING delta PARTITIONED "
        f"BY (part)"
    )
    kit = DeltaKit(lake, tmp_path, f"{tmp_path}/t")
    odd = ["a b", "12:00", "50%", "x/y", "ü=1", " ", "q?"]
    process = Process(kit).open()
    process.newest = process.stage(kit.frame(odd).selectExpr("value", "value AS part"))
    process.attempt.commit()
    assert kit.visible() == Counter()
    Process(kit).open()
    assert kit.visible() == Counter(odd)
    assert lake.read.format("delta").load(kit.path).where("part = value").count() == len(odd)


@pytest.mark.parametrize("value", ["''", "'__HIVE_DEFAULT_PARTITION__'", "CAST(X'ff' AS STRING)"])
def test_a_text_that_delta_takes_for_another_partition_is_refused(
    lake: Any, tmp_path: Path, value: str
):
    """It has null there, also where the table has none. Null itself is told."""
    kit = partitioned(lake, tmp_path, "STRING")
    process = Process(kit).open()
    with pytest.raises(RowRefused, match="column part is the empty text"):
        process.write(kit.frame(["a"]).selectExpr("value", f"{value} AS part"))
    process.attempt.abort()
    process.begin()
    assert process.write(kit.frame(["a"]).selectExpr("value", "NULLIF('', '') AS part")) == (1,)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_value_that_can_name_no_folder_is_the_rows_fault(lake: Any, tmp_path: Path, kind: str):
    if kind == "delta":
        kit: DeltaKit | IcebergKit = partitioned(lake, tmp_path, "STRING")
    else:
        kit = IcebergKit(lake, tmp_path)
        lake.sql(f"DROP TABLE {kit.table}")
        lake.sql(
            f"CREATE TABLE {kit.table} (value string, part string) USING iceberg PARTITIONED BY "
            "(part) TBLPROPERTIES ('write.wap.enabled'='true')"
        )
    process = Process(kit).open()
    with pytest.raises(RowRefused, match="partition column 'part'"):
        process.write(kit.frame(["a"]).selectExpr("value", "repeat('x', 300) AS part"))
    process.attempt.abort()
    process.begin()
    assert process.write(kit.frame(["a"]).selectExpr("value", "repeat('x', 30) AS part")) == (1,)


def test_a_table_partitioned_by_bytes_is_refused(lake: Any, tmp_path: Path):
    kit = partitioned(lake, tmp_path, "BINARY")
    with pytest.raises(InvalidColumn, match="column part, which is binary"):
        Process(kit).open().write(kit.frame(["a"]).selectExpr("value", "X'ff' AS part"))
    assert not list(data_files(kit))


@pytest.mark.lengthy("chaos")
def test_times_that_partition_a_table_by_another_zones_clock_are_refused(
    lake: Any, tmp_path: Path
):
    """Delta takes what the session's clock says for the JVM's. Nor does a clock tell the hour that
    it shows twice.
    """
    kit, zones = partitioned(lake, tmp_path, "TIMESTAMP"), lake._jvm.java.util.TimeZone
    jvms, sessions = zones.getDefault(), lake.conf.get("spark.sql.session.timeZone")
    frame = kit.frame(["a"]).selectExpr("value", "timestamp'2025-11-02 05:30:00.123456Z' AS part")
    twice = kit.frame(["a"]).selectExpr("value", "timestamp'2025-11-02 06:30:00Z' AS part")
    process = Process(kit).open()
    try:
        zones.setDefault(zones.getTimeZone("Etc/UTC"))
        lake.conf.set("spark.sql.session.timeZone", "America/New_York")
        with pytest.raises(
            ConfigurationError, match=r"timeZone to Etc/UTC, or .*timezone=America/New_York"
        ):
            process.write(frame)
        assert not list(data_files(kit))
        lake.conf.set("spark.sql.session.timeZone", "UTC")
        process.newest = process.stage(frame.unionAll(twice))
        process.attempt.commit()
        process.finish()
        lake.conf.set("spark.sql.session.timeZone", "America/New_York")
        zones.setDefault(zones.getTimeZone("America/New_York"))
        process.begin()
        assert process.write(frame) == (1,)
        with pytest.raises(RowRefused, match="show twice"):
            process.write(twice)
    finally:
        zones.setDefault(jvms)
        lake.conf.set("spark.sql.session.timeZone", sessions)
    written = (
        lake.read.format("delta").load(kit.path).selectExpr("unix_micros(part) AS t").collect()
    )
    assert sorted(row["t"] for row in written) == [1762061400123456, 1762065000000000]


@pytest.mark.parametrize(
    "column", ["more timestamp", "more array<struct<at: map<timestamp, int>>>"]
)
def test_a_session_that_cuts_timestamps_or_has_another_calendar_is_refused(
    delta: DeltaKit, column: str
):
    setting, (name, kind) = "spark.sql.parquet.outputTimestampType", column.split(" ", 1)
    delta.lake.sql(f"ALTER TABLE delta.`{delta.path}` ADD COLUMNS ({column})")
    process, frame = (
        Process(delta).open(),
        delta.frame(["a"]).selectExpr("value", f"CAST(NULL AS {kind}) AS {name}"),
    )
    before = delta.lake.conf.get(setting)
    try:
        delta.lake.conf.set(setting, "TIMESTAMP_MILLIS")
        with pytest.raises(ConfigurationError, match=r"cuts the microseconds.*TIMESTAMP_MICROS"):
            process.write(frame)
    finally:
        delta.lake.conf.set(setting, before)
    try:
        delta.lake.conf.set(calendar := "spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY")
        with pytest.raises(ConfigurationError, match=r"Julian calendar.*to CORRECTED"):
            process.write(frame)
        delta.lake.conf.set(calendar, "EXCEPTION")
        delta.lake.conf.set(setting, "TIMESTAMP_MICROS")
        ancient = "timestamp'1500-01-01 00:00:00'"
        nested = f"array(named_struct('at', map({ancient}, 1)))"
        long_ago = ancient if kind == "timestamp" else nested
        with pytest.raises(ConfigurationError, match=f"{calendar} to CORRECTED"):
            process.write(delta.frame(["a"]).selectExpr("value", f"{long_ago} AS {name}"))
    finally:
        delta.lake.conf.unset(calendar)
        delta.lake.conf.set(setting, before)
    process.begin()
    assert process.write(frame) == (1,)


def test_a_table_that_publishes_at_once_is_refused(iceberg: IcebergKit):
    iceberg.lake.sql(f"ALTER TABLE {iceberg.table} UNSET TBLPROPERTIES ('write.wap.enabled')")
    with pytest.raises(
        ConfigurationError,
        match=r"ALTER TABLE .* SET TBLPROPERTIES \('write\.wap\.enabled'='true'\)",
    ):
        Process(iceberg).open()


def test_a_session_that_writes_to_a_branch_is_refused(iceberg: IcebergKit):
    iceberg.lake.conf.set("spark.wap.branch", "audit")
    try:
        with pytest.raises(ConfigurationError, match=r"unset spark\.wap\.branch"):
            Process(iceberg).open()
    finally:
        iceberg.lake.conf.unset("spark.wap.branch")


def test_a_branch_or_a_snapshot_is_no_table_to_write_to(iceberg: IcebergKit):
    """Batches would be published to the table all the same."""
    process = Process(iceberg).open()
    process.commit(FIRST)
    table = process.target._table._table._table
    snapshot = int(table.currentSnapshot().snapshotId())
    table.manageSnapshots().createBranch("audit", snapshot).createTag("kept", snapshot).commit()
    assert iceberg.visible() == Counter(FIRST)
    ledger = ow.FolderLedger(iceberg.folder / "of another")
    for selected in (
        "branch_audit",
        "tag_kept",
        f"snapshot_id_{snapshot}",
        f"at_timestamp_{2**42}",
    ):
        sink = ow.IcebergSink(table=f"{iceberg.table}.{selected}", pipeline_id="p", ledger=ledger)
        with pytest.raises(ConfigurationError, match=f"without {selected}"):
            sink.new_target().list_prepared()
    iceberg.table = "lake.contract.branch_of_a_bank"
    iceberg.lake.sql(
        f"CREATE TABLE {iceberg.table} (value string) USING iceberg TBLPROPERTIES "
        f"('write.wap.enabled'='true')"
    )
    ow.IcebergSink(
        table=iceberg.table, pipeline_id="p", ledger=ledger
    ).new_target().list_prepared()


@needs_iceberg
def test_tables_that_are_not_there(lake: Any, tmp_path: Path):
    ledger = ow.FolderLedger(tmp_path / "ledger")
    for sink in (
        ow.DeltaSink(path=tmp_path / "none", pipeline_id="p", ledger=ledger),
        ow.DeltaSink(table="none_of_it", pipeline_id="p", ledger=ledger),
        ow.IcebergSink(table="lake.none.of_it", pipeline_id="p", ledger=ledger),
        ow.IcebergSink(
            table="misspelt.none.of_it", pipeline_id="p", ledger=ledger
        ),  # no such catalog
    ):
        with pytest.raises(TableMissing, match="CREATE TABLE"):
            sink.new_target().list_prepared()


def test_a_path_that_the_jvm_cannot_write_is_the_settings_fault(
    lake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Delta would write to another one, and find no table at this one."""
    monkeypatch.setattr("onceward.spark.batch.write_errors._encoding", lambda _: "ANSI_X3.4-1968")
    with pytest.raises(ConfigurationError, match="this JVM cannot write"):
        DeltaTable(lake, f"{tmp_path}/\xe9t\xe9")


@needs_iceberg
def test_a_catalog_that_does_not_answer_is_waited_for(lake: Any):
    """Each start looks at its table: an outage would end every pipeline with the advice to create
    it.
    """
    catalog = "spark.sql.catalog.away"
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": nobody}
    for name, value in settings.items():
        lake.conf.set(catalog + name, value)
    try:
        with pytest.raises(TargetUnreachable, match="does not say what table"):
            IcebergTable(lake, "away.shop.visits")
    finally:
        for name in settings:
            lake.conf.unset(catalog + name)


def test_limits_of_catalogs_are_those_of_their_clients():
    set_by_us: dict[str, str] = {}
    conf = SimpleNamespace(contains=lambda name: False, setConfString=set_by_us.__setitem__)
    given = {
        "a.type": "rest",
        "b.uri": "jdbc:postgresql://host/db",
        "c.uri": "jdbc:mysql://host/db?socketTimeout=1",
        "d.uri": "jdbc:mariadb://host/db",
        "d.jdbc.connectTimeout": "1",
    }
    catalogs = "spark.sql.catalog."
    iceberg_table._limit_waits({catalogs + name: value for name, value in given.items()}, conf)
    assert {name.removeprefix(catalogs): value for name, value in set_by_us.items()} == {
        "a.rest.client.socket-timeout-ms": "120000",
        "b.jdbc.socketTimeout": "60",
        "d.jdbc.socketTimeout": "60000",
    }


@needs_iceberg
@pytest.mark.parametrize("kind", ["type", "catalog-impl"])
def test_a_catalog_that_is_silent_is_waited_for_in_bounds(
    lake: Any, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """It, or what stands before it, takes the connection and never answers."""
    monkeypatch.setattr(iceberg_table, "_ANSWER_SECONDS", 1.0)
    catalog = f"spark.sql.catalog.silent_{kind[:4]}"
    with socket.create_server(("127.0.0.1", 0)) as server:
        lake.conf.set(catalog, "org.apache.iceberg.spark.SparkCatalog")
        lake.conf.set(
            f"{catalog}.{kind}",
            "rest" if kind == "type" else "org.apache.iceberg.rest.RESTCatalog",
        )
        lake.conf.set(f"{catalog}.uri", f"http://127.0.0.1:{server.getsockname()[1]}")
        try:
            with pytest.raises(TargetUnreachable, match="has not answered for 1 s"):
                IcebergTable(lake, f"silent_{kind[:4]}.shop.visits")
        finally:
            for name in dict(lake.conf.getAll):
                if name.startswith(catalog):
                    lake.conf.unset(name)


def test_a_catalog_that_goes_away_while_a_query_runs_is_waited_for(
    iceberg: IcebergKit, monkeypatch: pytest.MonkeyPatch
):
    """Each batch asks it what the table is like by now."""
    process = Process(iceberg).open()
    process.commit(FIRST)
    table = process.target._table._table
    opened, (port,) = table._table, free_ports(1)

    class Away:
        def refresh(self) -> Any:
            return iceberg.lake._jvm.java.net.Socket("127.0.0.1", port)

    table._table = Away()
    with pytest.raises(SendFailed, match="has become of the table: ConnectException"):
        process.begin()
    # As a client does that was closed, and Spark's context that has ended
    closed = iceberg.lake._jvm.java.util.ArrayList().iterator()
    table._table = SimpleNamespace(refresh=closed.remove)
    with pytest.raises(SendFailed, match="IllegalStateException"):
        process.begin()
    # Whatever the catalog is, and whoever has asked it first
    monkeypatch.setattr(iceberg_table, "_ANSWER_SECONDS", 0.2)
    answers = threading.Event()
    table._table = SimpleNamespace(refresh=lambda: answers.wait(20))
    with pytest.raises(SendFailed, match=r"has not answered for 0\.2 s"):
        process.begin()
    answers.set()
    monkeypatch.undo()
    table._table = opened
    folder = Path(folder_of(iceberg))
    folder.rename(folder.with_name("hidden"))
    with pytest.raises(TableMissing, match="is not there any more"):
        process.begin()
    folder.with_name("hidden").rename(folder)
    process.commit(SECOND)
    assert iceberg.visible() == Counter(FIRST + SECOND)


def test_a_delta_table_by_its_name(lake: Any, tmp_path: Path):
    lake.sql(
        f"CREATE TABLE IF NOT EXISTS by_name (value string) USING delta LOCATION "
        f"'{tmp_path}/by_name'"
    )
    sink = ow.DeltaSink(
        table="by_name", pipeline_id="p", ledger=ow.FolderLedger(tmp_path / "ledger")
    )
    frame = lake.createDataFrame([("a",), ("b",)], "value string")
    stream_of_one(lake, tmp_path, frame, sink)
    try:
        assert sorted(row["value"] for row in lake.table("by_name").collect()) == ["a", "b"]
    finally:
        lake.sql("DROP TABLE by_name")


@pytest.mark.lengthy("chaos")
def test_two_lakes_and_files_in_one_batch(lake: Any, tmp_path: Path):
    """Each is its own table's commit, of one decision; and once more, after another start."""
    delta, iceberg = DeltaKit(lake, tmp_path), IcebergKit(lake, tmp_path)
    ledger = ow.FolderLedger(tmp_path / "ledger")
    sinks = {
        "delta": ow.DeltaSink(path=delta.path, pipeline_id="p", ledger=ledger),
        "iceberg": ow.IcebergSink(table=iceberg.table, pipeline_id="p", ledger=ledger),
        "files": ow.FileSink(path=tmp_path / "files", pipeline_id="p", ledger=ledger),
    }
    fan_out = ow.FanOut(sinks)
    stream_of_one(lake, tmp_path, lake.createDataFrame([("a",), ("b",)], "value string"), fan_out)
    stream_of_one(lake, tmp_path, lake.createDataFrame([("c",)], "value string"), fan_out)
    in_files = lake.read.parquet(str(tmp_path / "files"))
    assert (
        delta.values()
        == iceberg.values()
        == Counter(row["value"] for row in in_files.collect())
        == Counter("abc")
    )
    newest = ledger.chain(pipeline_id("p")).peek()
    assert newest is not None
    assert newest.state.value == "finished"
    assert set(newest.outputs) == {"@delta", "@iceberg", "@files"}
    make_anew(delta)
    with pytest.raises(StreamingQueryException, match=r"PreparedDataLost: .*numbers 0 to 1 are"):
        stream_of_one(lake, tmp_path, lake.createDataFrame([("d",)], "value string"), fan_out)


@pytest.mark.lengthy("chaos")
def test_two_sinks_of_a_fan_out_at_one_table_by_two_names_lose_nothing(lake: Any, tmp_path: Path):
    """That it is one table, not all names tell (a bind mount, a catalog's default)."""
    delta, iceberg = DeltaKit(lake, tmp_path), IcebergKit(lake, tmp_path)
    ledger = ow.FolderLedger(tmp_path / "ledger")
    sinks: dict[str, Any] = {
        f"delta{number}": ow.DeltaSink(path=path, pipeline_id="p", ledger=ledger)
        for number, path in enumerate((delta.path, f"file:{delta.path}"))
    }
    sinks |= {
        f"iceberg{number}": ow.IcebergSink(table=table, pipeline_id="p", ledger=ledger)
        for number, table in enumerate(
            (iceberg.table, iceberg.table.replace(".", ".`", 1).replace(".t", "`.t"))
        )
    }
    with pytest.raises(ContradictoryOptions):
        ow.FanOut(sinks)
    for sink in sinks.values():
        sink.writes_to = None
    for value in ("a", "b"):
        stream_of_one(
            lake, tmp_path, lake.createDataFrame([(value,)], "value string"), ow.FanOut(sinks)
        )
    assert delta.values() == iceberg.values() == Counter("aabb")


def test_a_session_without_the_formats(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Named with what it takes to have them."""
    monkeypatch.setattr(
        "onceward.spark.tables.delta_table._CLASS", "org.apache.spark.sql.delta.None"
    )
    monkeypatch.setattr("onceward.spark.tables.iceberg_table._CLASS", "org.apache.iceberg.None")
    ledger = ow.FolderLedger(tmp_path / "ledger")
    with pytest.raises(ConfigurationError, match=r"no Delta.*ow\.spark_conf"):
        ow.DeltaSink(path=tmp_path, pipeline_id="p", ledger=ledger).new_target().list_prepared()
    with pytest.raises(ConfigurationError, match=r"no Iceberg.*ow\.spark_conf"):
        ow.IcebergSink(table="t", pipeline_id="p", ledger=ledger).new_target().list_prepared()


def partitioned(lake: Any, folder: Path, kind: str) -> DeltaKit:
    lake.sql(
        f"CREATE TABLE delta.`{folder}/t` (value STRING, part {kind}) USING delta PARTITIONED BY "
        f"(part)"
    )
    return DeltaKit(lake, folder, f"{folder}/t")


def history(table: Any) -> list[int]:
    """The snapshots that a reader can travel back to."""
    table._table.refresh()
    return [int(entry.snapshotId()) for entry in table._table.history()]


def stream_of_one(lake: Any, folder: Path, frame: Any, sink: Any) -> None:
    """A query that writes ``frame`` in one batch."""
    frame.write.mode("append").parquet(f"{folder}/in")
    query = (
        lake.readStream.schema(frame.schema)
        .parquet(f"{folder}/in")
        .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .foreachBatch(sink)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert ow.FolderLedger(folder / "ledger").chain(pipeline_id("p")).peek() is not None


def without(kit: LakeKit) -> Process:
    """A process that may leave out what an earlier one has lost."""
    process = Process(kit)
    process.target._policy = SinkPolicy(process.target._policy.pipeline, resume="skip_missing")
    return process


def folder_of(kit: LakeKit) -> str:
    if isinstance(kit, DeltaKit):
        return kit.path
    location = str(Process(kit).target._table._table._table.location())
    return location.removeprefix("file:")


def swap(kit: LakeKit, copy: Path) -> None:
    """Put the table back as it was."""
    folder = folder_of(kit)
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    # a new query has a session of its own, whose catalogs remember nothing
    if isinstance(kit, IcebergKit):
        for session in (kit.lake, SparkSession.active()):
            session.sql(f"REFRESH TABLE {kit.table}")
    kit.lake._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


def make_anew(kit: LakeKit) -> None:
    if isinstance(kit, DeltaKit):
        shutil.rmtree(kit.path)
        empty = kit.lake.createDataFrame([], "value string")
        empty.write.format("delta").save(kit.path)
        return
    kit.lake.sql(f"DROP TABLE {kit.table} PURGE")
    kit.lake.sql(
        f"CREATE TABLE {kit.table} (value string) USING iceberg TBLPROPERTIES "
        f"('write.wap.enabled'='true')"
    )


def data_files(kit: LakeKit) -> Iterator[Path]:
    return (
        Path(kit.path).glob("*.parquet")
        if isinstance(kit, DeltaKit)
        else files_of(kit, "data/*.parquet")
    )


def files_of(kit: LakeKit, pattern: str) -> Iterator[Path]:
    location = str(Process(kit).target._table._table._table.location())
    return Path(location.removeprefix("file:")).glob(pattern)
