"""``onceward verify`` about tables of MySQL and MariaDB, whose rows can be counted and not be told
apart.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from database_place import Place, three_batches

from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.engine.two_phase import CommitResult
from onceward.errors import PublishIncomplete
from onceward.sql.ledger import table
from onceward.sql.sink.prepared_target import PreparedTarget
from onceward_testing.sink_contract import batch
from onceward_verify.findings import CannotTell
from onceward_verify.mysql import MySQLSnapshot
from support.mysql_client import transaction_at
from support.tasks_here import ArrowFrame

STATUS = {"exactly_once": 0, "violated": 1, "inconclusive": 2}


def rows(*values: int) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def asked(
    place: Place, *options: str, url: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onceward_verify", "--database-url", url or place.server.url]
    command += [
        "--pipeline-id",
        place.pipeline,
        "--ledger-table",
        f"{place.schema}.ledger",
        *options,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )


def verified(place: Place, *options: str) -> dict[str, Any]:
    done = asked(place, "--output", "json", *options)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == answer["exit_status"] == STATUS[answer["verdict"]], done.stderr
    return answer


def anomalies(answer: dict[str, Any]) -> list[str]:
    return sorted(one["name"] for one in answer["anomalies"])


def not_covered(answer: dict[str, Any]) -> str:
    (what,) = answer["facts"]["not_covered"]
    return str(what)


@pytest.fixture
def three(my_place: Place) -> Place:
    return three_batches(my_place)


def test_a_pipeline_that_is_well(three: Place):
    answer = verified(three)
    assert answer["verdict"] == "exactly_once", answer
    assert answer["facts"]["judged_by"] == "totals"
    assert answer["facts"]["ledger"]["batches"] == 3
    assert answer["facts"]["ledger"]["records"] == 6
    assert answer["facts"]["staging_tables"] == three.staging()
    assert answer["facts"]["tables"] == {
        f"{three.schema}.t": {"rows": 6, "told_rows": 6, "batches": 2, "anomalies": []}
    }


def test_what_people_read_claims_no_more_than_was_counted(three: Place):
    said = asked(three).stdout
    assert said.startswith(
        f"EXACTLY ONCE, BY TOTALS: pipeline {three.pipeline}: there are as many rows as 3 batches"
    )
    assert "a lost one that one too many outweighs would not be seen" in said
    assert "are visible exactly as they were committed" not in said


@pytest.mark.parametrize("since", [(), ("--since", "sequence:1")], ids=["all", "since"])
def test_a_row_that_is_gone(three: Place, since: Sequence[str]):
    three.sql("DELETE FROM {s}.t WHERE value < 5")
    three.sql("DELETE FROM {s}.t LIMIT 1")
    answer = verified(three, *since)
    assert anomalies(answer) == ["lost-write"]
    assert answer["anomalies"][0]["where"] == f"{three.schema}.t"
    shared = verified(three, "--shared-table", *since)
    assert (shared["verdict"], shared["anomalies"]) == ("inconclusive", [])


def test_a_row_that_is_there_once_more(three: Place):
    """As a writer leaves it that repeats what it did not know to be done, or as another one's:
    nobody can tell.
    """
    three.sql("INSERT INTO {s}.t VALUES (3)")
    answer = verified(three)
    assert anomalies(answer) == ["unaccounted-write"]
    assert (
        "7 rows are there, and batches are told to have written 6"
        in answer["anomalies"][0]["detail"]
    )


def test_what_others_write_as_well_cannot_be_judged(three: Place):
    """Their rows could outweigh a lost one."""
    assert "which are whose" in not_covered(verified(three, "--shared-table"))
    three.sql("INSERT INTO {s}.t VALUES (3)")
    assert verified(three, "--shared-table")["verdict"] == "inconclusive"


def test_a_record_that_is_gone(three: Place):
    """How many rows it told of, nobody knows."""
    three.sql("DELETE FROM {s}.ledger_batches WHERE sequence = 1")
    answer = verified(three)
    assert anomalies(answer) == ["ledger-gap"]
    assert "missing records" in not_covered(answer)


def test_the_newest_record_that_is_gone(three: Place):
    three.sql("DELETE FROM {s}.ledger_batches WHERE sequence > 0")
    assert anomalies(verified(three)) == ["ledger-gap"]


def test_a_row_of_the_ledger_that_was_put_back(three: Place):
    three.sql("UPDATE {s}.ledger SET sequence = 0")
    assert anomalies(verified(three)) == ["ledger-gap"]


def test_of_an_upsert_there_are_bounds(my_place: Place):
    my_place.sql("CREATE TABLE {s}.t (value bigint PRIMARY KEY)")
    my_place.write("t", rows(1, 2, 3))
    my_place.write("t", rows(3, 4), mode="upsert", key="value")
    assert "it has 4 rows, and it may have 3 to 5" in not_covered(verified(my_place))
    my_place.sql("DELETE FROM {s}.t WHERE value > 3")
    assert verified(my_place, "--ignore-expired")["verdict"] == "inconclusive", (
        "the lost one may have been replaced"
    )
    my_place.sql("DELETE FROM {s}.t WHERE value > 2")
    assert anomalies(verified(my_place)) == ["lost-write"]
    my_place.sql("INSERT INTO {s}.t VALUES (11), (12), (13), (14)")
    assert anomalies(verified(my_place)) == ["unaccounted-write"]


def test_of_changes_there_are_bounds(my_place: Place):
    my_place.sql("CREATE TABLE {s}.t (value bigint PRIMARY KEY)")
    for op in ("c", "d"):
        changes = rows(1, 2).append_column("op", pa.array([op, op]))
        my_place.write("t", changes, mode="changes", key="value", order_by="value")
    assert "it has 0 rows, and it may have 0 to 4" in not_covered(verified(my_place))
    my_place.sql("INSERT INTO {s}.t VALUES (1), (2), (3), (4), (5)")
    assert anomalies(verified(my_place)) == ["unaccounted-write"]


def test_rows_that_a_foreign_key_deletes_accuse_nobody(my_place: Place):
    my_place.sql("CREATE TABLE {s}.p (value bigint PRIMARY KEY)")
    my_place.sql(
        "CREATE TABLE {s}.c (value bigint, FOREIGN KEY (value) REFERENCES {s}.p (value) "
        "ON DELETE CASCADE)"
    )
    for op in ("c", "d"):
        changes = rows(1).append_column("op", pa.array([op]))
        my_place.write("p", changes, mode="changes", key="value", order_by="value")
        if op == "c":
            my_place.write("c", rows(1, 1))
    answer = verified(my_place)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


def test_where_it_begins_later_earlier_rows_cannot_be_told_from_those_that_are_asked_for(
    three: Place,
):
    assert "which are of earlier ones" in not_covered(verified(three, "--since", "sequence:1"))
    assert verified(three, "--since", "sequence:0")["verdict"] == "exactly_once"


def test_what_the_ledger_has_removed_leaves_no_total(
    three: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(table, "BATCHES_KEPT", 2)
    three.write("t", rows(9))
    three.write("t", rows(10))
    answer = verified(three, "--ignore-expired")
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", []), (
        "older rows could outweigh a lost one"
    )
    assert "which are of earlier ones" in not_covered(answer)
    three.sql("DELETE FROM {s}.t")
    assert anomalies(verified(three)) == ["lost-write"]


def test_each_table_by_itself_however_it_is_spelled(my_place: Place):
    odd = "`a%s ``b`"
    my_place.sql("CREATE TABLE {s}.t (value bigint)")
    my_place.sql(f"CREATE TABLE {{s}}.{odd} (value bigint)")
    spelled = [f"{my_place.schema}.t", f"`{my_place.schema}` . `t`", f"{my_place.schema}.{odd}"]
    my_place.write(None, pa.table({"value": pa.array([1, 2, 3], pa.int64()), "table": spelled}))
    answer = verified(my_place)
    assert answer["verdict"] == "exactly_once", answer
    assert {name: facts["rows"] for name, facts in answer["facts"]["tables"].items()} == {
        f"{my_place.schema}.t": 2,
        f"{my_place.schema}.a%s `b": 1,
    }
    my_place.sql("INSERT INTO {s}.t VALUES (9)")
    my_place.sql(f"DELETE FROM {{s}}.{odd}")  # noqa: S608
    assert anomalies(verified(my_place)) == ["lost-write", "unaccounted-write"], (
        "one does not make up for the other"
    )


@pytest.mark.parametrize("change", ["DROP TABLE {s}.t", "RENAME TABLE {s}.t TO {s}.u"])
def test_a_table_that_is_gone(three: Place, change: str):
    three.sql(change)
    answer = verified(three)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


@pytest.mark.parametrize(
    "instead", ["VIEW {s}.t AS SELECT * FROM {s}.u", "TABLE {s}.t (value bigint) ENGINE = MyISAM"]
)
def test_what_has_no_snapshot_is_not_counted(three: Place, instead: str):
    three.sql("RENAME TABLE {s}.t TO {s}.u")
    three.sql(f"CREATE {instead}")
    answer = verified(three)
    assert answer["verdict"] == "inconclusive"
    assert "view, or kept by an engine" in not_covered(answer)


def test_transactions_that_tasks_prepare_are_counted(mariadb_place: Place):
    """A batch that is decided, and not finished, may have rows or not."""
    mariadb_place.sql("CREATE TABLE {s}.t (value bigint)")
    target = PreparedTarget(mariadb_place.sink("t", xa=True).settings)
    batches = MicroBatches(target, SinkPolicy(mariadb_place.pipeline, batch_attempts=1))
    batches.process([Write(ArrowFrame(rows(1, 2)), None)], batch(0))  # type: ignore[arg-type]
    assert verified(mariadb_place)["verdict"] == "exactly_once"
    target.commit_timeout_s = 0.0
    commit, target.committer.commit = (
        target.committer.commit,
        lambda name: CommitResult.RETRY_LATER,
    )  # type: ignore[method-assign]
    with pytest.raises(PublishIncomplete):
        batches.process([Write(ArrowFrame(rows(3, 4)), None)], batch(1))  # type: ignore[arg-type]
    answer = verified(mariadb_place)
    target.committer.commit = commit  # type: ignore[method-assign]
    target.finish(target.peek())  # type: ignore[arg-type]
    target.close()
    assert (answer["verdict"], anomalies(answer)) == ("inconclusive", [])
    assert verified(mariadb_place)["verdict"] == "exactly_once"
    mariadb_place.sql("DELETE FROM {s}.t WHERE value = 1")
    assert anomalies(verified(mariadb_place)) == ["lost-write"]


def test_nobody_waits_for_the_checker(three: Place):
    """Not even who alters a table that it has counted; and it does not take what it sees then for
    its snapshot.
    """
    with MySQLSnapshot(three.server.url) as database:
        counted = database.find_table(f"{three.schema}.t")
        assert counted is not None
        assert database.row_counts(counted) == {0: 6}
        three.sql("INSERT INTO {s}.t VALUES (7)")
        assert database.row_counts(counted) == {0: 6}
        altering = threading.Thread(
            target=three.sql, args=("ALTER TABLE {s}.t ADD more bigint, ALGORITHM = COPY",)
        )
        altering.start()
        altering.join(30)
        assert not altering.is_alive()
        with pytest.raises(CannotTell, match="definition has changed"):
            database.row_counts(counted)


def test_a_pipeline_that_runs_on_is_seen_as_of_one_moment(three: Place):
    """What is not committed yet is not there: neither its record nor its rows. And nobody waits
    for the other.
    """
    with transaction_at(three.server.url, f"INSERT INTO {three.schema}.t VALUES (99)"):  # noqa: S608
        assert verified(three)["verdict"] == "exactly_once"


def test_a_server_that_gives_fewer_rows_than_there_are_hides_no_record(three: Place):
    three.sql("SET GLOBAL sql_select_limit = 1")
    try:
        assert verified(three)["verdict"] == "exactly_once"
    finally:
        three.sql("SET GLOBAL sql_select_limit = DEFAULT")


def test_a_pipeline_or_a_ledger_that_is_not_there(three: Place):
    answer = verified(three, "--ledger-table", f"{three.schema}.other")
    assert answer["verdict"] == "inconclusive"
    answer = verified(three, "--pipeline-id", "nobody")
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


def test_the_password_may_stand_in_the_environment(three: Place):
    login, _, server = three.server.url.partition("@")
    start, _, password = login.rpartition(":")
    assert asked(three, url=f"{start}@{server}").returncode == 69
    assert asked(three, url=f"{start}@{server}", MYSQL_PWD=password).returncode == 0


@pytest.mark.parametrize(
    "url",
    ["mysql://a@b", "mariadb://a@b:x/c", "mysql://a@b/c?no=1", "mysql://a@b/c?ssl_disabled=?"],
)
def test_an_address_that_is_none(url: str):
    command = [
        sys.executable,
        "-m",
        "onceward_verify",
        "--pipeline-id",
        "p",
        "--database-url",
        url,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 64, done
    assert "no address of a MySQL" in done.stderr
