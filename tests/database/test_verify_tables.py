"""``onceward verify`` about tables: every way to be wrong that can be made for real, and none
accused that is well.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from database_place import Place, three_batches

import onceward as ow
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.engine.two_phase import CommitResult
from onceward.errors import PublishIncomplete
from onceward.ids import BatchId
from onceward.sql.ledger import table
from onceward.sql.sink.prepared_target import PreparedTarget
from onceward_testing import LocalPostgres
from onceward_testing.sink_contract import batch
from support.tasks_here import ArrowFrame

STATUS = {"exactly_once": 0, "violated": 1, "inconclusive": 2}


def rows(*values: int) -> pa.Table:
    return pa.table({"value": pa.array(values, pa.int64())})


def verified(place: Place, *options: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "onceward_verify", "--database-url", place.postgres.url]
    command += [
        "--pipeline-id",
        place.pipeline,
        "--ledger-table",
        f"{place.schema}.ledger",
        "--output",
        "json",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == answer["exit_status"] == STATUS[answer["verdict"]], done.stderr
    return answer


def anomalies(answer: dict[str, Any]) -> set[str]:
    return {one["name"] for one in answer["anomalies"]}


@pytest.fixture
def three(place: Place) -> Place:
    return three_batches(place)


def test_a_pipeline_that_is_well(three: Place):
    answer = verified(three)
    assert answer["verdict"] == "exactly_once", answer
    assert answer["facts"]["judged_by"] == "transactions"
    assert answer["facts"]["ledger"]["batches"] == 3
    assert answer["facts"]["ledger"]["records"] == 6
    assert answer["facts"]["tables"] == {
        f"{three.schema}.t": {
            "rows": 6,
            "batches": 2,
            "replaced_rows": 0,
            "unaccounted_rows": 0,
            "anomalies": [],
        }
    }


def test_frozen_rows_and_rewritten_tables_are_the_same_rows(three: Place):
    three.sql("VACUUM (FREEZE) {s}.t")
    assert verified(three)["verdict"] == "exactly_once"
    three.sql("VACUUM (FULL, FREEZE) {s}.t")
    three.sql("VACUUM (FULL, FREEZE) {s}.ledger_batches")
    assert verified(three)["verdict"] == "exactly_once"


def test_a_row_that_is_gone(three: Place):
    three.sql("DELETE FROM {s}.t WHERE value = 2")
    answer = verified(three)
    assert anomalies(answer) == {"lost-write"}
    assert answer["anomalies"][0]["where"] == f"{three.schema}.t@0"
    shared = verified(three, "--shared-table")
    assert (shared["verdict"], shared["anomalies"]) == ("inconclusive", [])


def test_a_row_that_is_there_once_more(three: Place):
    """As a writer leaves it that repeats what it did not know to be done."""
    three.sql("INSERT INTO {s}.t SELECT * FROM {s}.t WHERE value = 3")
    answer = verified(three)
    assert anomalies(answer) == {"unaccounted-write"}
    assert verified(three, "--shared-table")["verdict"] == "exactly_once"


def test_a_lost_row_is_not_made_up_for_by_one_that_is_there_twice(three: Place):
    three.sql("DELETE FROM {s}.t WHERE value = 1")
    three.sql("INSERT INTO {s}.t VALUES (2)")
    assert anomalies(verified(three)) == {"lost-write", "unaccounted-write"}


def test_more_rows_of_a_batch_than_it_is_told_to_have_written(place: Place):
    place.sql("CREATE TABLE {s}.t (value bigint)")
    place.sql(
        "CREATE FUNCTION {s}.twice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF pg_trigger_depth() = 1 THEN INSERT INTO {s}.t VALUES (NEW.value); END IF; RETURN "
        "NULL; END $$"
    )
    place.sql(
        "CREATE TRIGGER twice AFTER INSERT ON {s}.t FOR EACH ROW EXECUTE FUNCTION {s}.twice()"
    )
    place.write("t", rows(1, 2))
    assert anomalies(verified(place)) == {"duplicate-write"}


def test_a_record_that_is_gone(three: Place):
    three.sql("DELETE FROM {s}.ledger_batches WHERE sequence = 1")
    assert anomalies(verified(three)) == {"ledger-gap", "unaccounted-write"}


def test_a_row_of_the_ledger_that_was_put_back(three: Place):
    three.sql("UPDATE {s}.ledger SET sequence = 0")
    assert anomalies(verified(three)) == {"ledger-gap"}


def test_replaced_and_deleted_rows_are_no_loss_and_others_are_not_excused(place: Place):
    place.sql("CREATE TABLE {s}.t (id bigint PRIMARY KEY, at bigint)")
    keyed = {"mode": "changes", "key": "id", "order_by": "at"}

    def changes(at: int, **ops: str) -> pa.Table:
        ids = pa.array([int(name[1:]) for name in ops], pa.int64())
        return pa.table(
            {"id": ids, "at": pa.array([at] * len(ops), pa.int64()), "op": list(ops.values())}
        )

    place.write("t", changes(0, _1="c", _2="c", _3="c"), **keyed)
    place.write("t", changes(1, _1="u", _2="d"), **keyed)
    answer = verified(place)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", []), (
        "a lost row would look the same"
    )
    assert answer["facts"]["tables"][f"{place.schema}.t"]["replaced_rows"] == 3
    assert verified(place, "--ignore-expired")["verdict"] == "exactly_once"
    place.sql("UPDATE {s}.t SET at = 9 WHERE id = 3")
    assert anomalies(verified(place)) == {"unaccounted-write"}


KEYED = {"mode": "changes", "key": "id", "order_by": "n"}


def keyed(place: Place, *told: tuple[str, str, int, int | None]) -> pa.Table:
    ops, tables, ids, values = zip(*told, strict=True)
    return pa.table(
        {
            "op": list(ops),
            "table": [f"{place.schema}.{name}" for name in tables],
            "id": pa.array(ids, pa.int64()),
            "v": pa.array(values, pa.int64()),
            "n": pa.array(range(len(told)), pa.int64()),
        }
    )


def test_rows_that_take_more_than_one_try_are_the_batchs(place: Place):
    """A child gets another parent, and its old one is deleted; two rows exchange a value."""
    place.sql("CREATE TABLE {s}.p (id bigint PRIMARY KEY, v bigint UNIQUE)")
    place.sql("CREATE TABLE {s}.c (id bigint PRIMARY KEY, v bigint REFERENCES {s}.p)")
    for told in (
        [("c", "p", 1, 10), ("c", "p", 2, 20), ("c", "c", 5, 1)],
        [("u", "c", 5, 2), ("d", "p", 1, None)],
        [("c", "p", 3, 30), ("d", "c", 5, None)],
        [("u", "p", 2, 0), ("u", "p", 3, 20), ("u", "p", 2, 30)],
    ):
        place.write(None, keyed(place, *told), **KEYED)
    assert sorted(place.sql("SELECT * FROM {s}.p")) == [(2, 30), (3, 20)]
    assert verified(place, "--ignore-expired")["verdict"] == "exactly_once"


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("ON DELETE SET NULL", ("d", "p", 1, None)),
        ("ON DELETE CASCADE", ("d", "p", 1, None)),
        ("ON UPDATE CASCADE", ("u", "p", 1, 11)),
    ],
)
def test_rows_that_a_foreign_key_changes_accuse_nobody(
    place: Place, rule: str, told: tuple[str, str, int, int | None]
):
    place.sql("CREATE TABLE {s}.p (id bigint PRIMARY KEY, v bigint UNIQUE)")
    references = f"REFERENCES {{s}}.p (v) {rule}"
    place.sql(f"CREATE TABLE {{s}}.c (id bigint PRIMARY KEY, v bigint {references})")
    place.write(None, keyed(place, ("c", "p", 1, 10), ("c", "p", 2, 20)), **KEYED)
    place.write("c", pa.table({"id": [5, 6, 7], "v": [10, 10, 20]}))
    place.write(None, keyed(place, told), **KEYED)
    answer = verified(place, "--ignore-expired")
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    place.sql("INSERT INTO {s}.c VALUES (9, 20)")
    assert anomalies(verified(place, "--ignore-expired")) == {"unaccounted-write"}


@pytest.mark.parametrize("how", ["TRUNCATE {s}.t", "DELETE FROM {s}.t"])
def test_what_nobody_can_have_replaced_is_lost(place: Place, how: str):
    place.sql("CREATE TABLE {s}.t (value bigint PRIMARY KEY)")
    place.write("t", rows(1, 2), mode="upsert", key="value")
    place.sql(how)
    assert anomalies(verified(place, "--ignore-expired")) == {"lost-write"}


def test_a_batch_replaces_no_more_rows_than_it_has(place: Place):
    place.sql("CREATE TABLE {s}.t (value bigint PRIMARY KEY)")
    place.write("t", rows(1, 2, 3, 4))
    place.write("t", rows(1), mode="upsert", key="value")
    assert verified(place, "--ignore-expired")["verdict"] == "exactly_once"
    place.sql("DELETE FROM {s}.t WHERE value > 2")
    assert anomalies(verified(place, "--ignore-expired")) == {"lost-write"}


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE {s}.t ALTER value TYPE numeric",
        "ALTER TABLE {s}.t ADD u uuid DEFAULT gen_random_uuid()",
    ],
)
def test_a_table_that_was_rewritten_is_not_accused(three: Place, change: str):
    three.sql(change)
    answer = verified(three)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    assert "as ALTER TABLE may" in answer["facts"]["not_covered"][0]
    three.sql("INSERT INTO {s}.t (value) VALUES (1)")
    assert anomalies(verified(three)) == {"unaccounted-write"}


def test_a_rewritten_table_that_has_fewer_rows_is(three: Place):
    three.sql("DELETE FROM {s}.t WHERE value = 1")
    three.sql("ALTER TABLE {s}.t ALTER value TYPE numeric")
    assert "lost-write" in anomalies(verified(three))


def test_a_table_and_a_part_of_it(place: Place):
    place.sql("CREATE TABLE {s}.t (value bigint) PARTITION BY RANGE (value)")
    for low in (0, 10):
        place.sql(
            f"CREATE TABLE {{s}}.t{low} PARTITION OF {{s}}.t FOR VALUES FROM ({low}) TO "
            f"({low + 10})"
        )
    named = [f"{place.schema}.{name}" for name in ("t", "t", "t10")]
    place.write(None, pa.table({"value": pa.array([1, 11, 12], pa.int64()), "table": named}))
    assert verified(place)["verdict"] == "exactly_once"
    place.sql("DELETE FROM {s}.t WHERE value = 12")
    assert anomalies(verified(place)) == {"lost-write"}


@pytest.mark.parametrize("name", ["a%", "a%s", "a%%b"])
def test_odd_names(place: Place, name: str):
    place.sql('CREATE TABLE {s}."a%b" (value bigint)')
    place.sql(f'CREATE TABLE {{s}}."{name}" (value bigint)')
    place.write(f'"{name}"', rows(1, 2))
    assert verified(place)["verdict"] == "exactly_once"


def test_a_ledger_of_files_is_not_taken_for_one_of_tables(place: Place):
    chain = place.new_target().run.chain
    newest = chain.take()
    files = {"version": 1, "format": "json", "committables": []}
    made = LedgerRecord(
        place.pipeline, 0, BatchId("q", 0), (), chain.begin(newest),
        {"files": Output("files", 1, 0, files)}, 0,
        RecordState.DECIDED,
    )  # fmt: skip
    chain.append(made)
    chain.progress(replace(made, state=RecordState.FINISHED))
    answer = verified(place)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


def test_what_the_ledger_has_removed_is_not_asked_for(
    three: Place, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(table, "BATCHES_KEPT", 2)
    three.write("t", rows(9))
    three.write("t", rows(10))
    assert [found.sequence for found in three.new_target().run.chain.history()] == [4, 3]
    answer = verified(three)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    left = verified(three, "--ignore-expired")
    assert left["verdict"] == "exactly_once", left
    three.sql("INSERT INTO {s}.t VALUES (10)")
    assert anomalies(verified(three, "--ignore-expired")) == {"unaccounted-write"}


def test_a_copy_of_the_database_is_not_judged(three: Place):
    three.sql("UPDATE {s}.ledger_batches SET record = record")
    three.sql("UPDATE {s}.t SET value = value")
    answer = verified(three)
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])
    assert "copy of the database" in answer["facts"]["not_covered"][0]


def test_rows_that_a_policy_hides_are_not_called_lost(three: Place):
    """A login that is not shown every row cannot tell."""
    role = f"reader_{three.schema}"
    three.sql(f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    three.sql(f"GRANT USAGE ON SCHEMA {three.schema} TO {role}")
    three.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA {three.schema} TO {role}")
    three.sql("ALTER TABLE {s}.t ENABLE ROW LEVEL SECURITY")
    try:
        server = three.postgres.url.split("@")[1]
        done = subprocess.run(
            [sys.executable, "-m", "onceward_verify", "--database-url",
            f"postgresql://{role}:x@{server}",
             "--pipeline-id", three.pipeline, "--ledger-table", f"{three.schema}.ledger"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == STATUS["inconclusive"], done
        assert "row-level security" in done.stderr
    finally:
        three.sql(f"DROP OWNED BY {role}")
        three.sql(f"DROP ROLE {role}")


def test_a_pipeline_that_runs_on_is_seen_as_of_one_moment(three: Place):
    """What is not committed yet is not there: neither its record nor its rows."""
    with psycopg.connect(three.postgres.url) as running:
        running.execute(f"INSERT INTO {three.schema}.t VALUES (99)")  # noqa: S608
        assert verified(three)["verdict"] == "exactly_once"
        running.rollback()


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--database-url", "oracle://a@b/c"], 64, "no address of a PostgreSQL"),
        (["--database-url", "mysql://nobody@127.0.0.1:1/x"], 69, "does not let us in"),
        (["--database-url", "postgresql://nobody@127.0.0.1:1/x"], 69, "does not let us in"),
        (["--database-url", "postgresql://a@b/c", "--topic", "t"], 64, "leave one of them out"),
        (
            ["--database-url", "postgresql://a@b/c", "--expect-caught-up"],
            64,
            "--bootstrap-servers",
        ),
        ([], 64, "nothing says where to look"),
    ],
)
def test_a_question_that_cannot_be_asked(options: list[str], status: int, said: str):
    command = [sys.executable, "-m", "onceward_verify", "--pipeline-id", "p", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done
    assert said in done.stderr


def test_a_pipeline_or_a_ledger_that_is_not_there(three: Place, postgres: LocalPostgres):
    answer = verified(three, "--ledger-table", f"{three.schema}.other")
    assert answer["verdict"] == "inconclusive"
    answer = verified(three, "--pipeline-id", "nobody")
    assert (answer["verdict"], answer["anomalies"]) == ("inconclusive", [])


def test_rows_of_transactions_that_tasks_have_prepared(place: Place):
    """Each batch by itself, as its transactions' names end with their numbers; and decided is not
    yet committed.
    """
    place.sql("CREATE TABLE {s}.t (value bigint)")
    target = PreparedTarget(place.sink("t", xa=True).settings)
    batches = MicroBatches(target, SinkPolicy(place.pipeline, batch_attempts=1))
    for number, values in enumerate([rows(1, 2, 3), rows(4, 5), rows()]):
        batches.process([Write(ArrowFrame(values), None)], batch(number))  # type: ignore[arg-type]
    answer = verified(place)
    assert answer["verdict"] == "exactly_once", answer
    assert answer["facts"]["tables"][f"{place.schema}.t"]["batches"] == 2
    place.sql("INSERT INTO {s}.t VALUES (6)")
    assert anomalies(verified(place)) == {"unaccounted-write"}
    assert verified(place, "--shared-table")["verdict"] == "exactly_once"
    place.sql("DELETE FROM {s}.t WHERE value = 1")
    assert anomalies(verified(place)) == {"lost-write", "unaccounted-write"}, (
        "as many rows as before, and others"
    )
    assert anomalies(verified(place, "--since", "sequence:1")) == {"unaccounted-write"}
    target.close()


def test_what_is_decided_and_not_committed_accuses_nobody(place: Place):
    place.sql("CREATE TABLE {s}.t (value bigint)")
    target = PreparedTarget(place.sink("t", xa=True).settings)
    batches = MicroBatches(target, SinkPolicy(place.pipeline, batch_attempts=1))
    target.commit_timeout_s = 0.0
    commit, target.committer.commit = (
        target.committer.commit,
        lambda name: CommitResult.RETRY_LATER,
    )  # type: ignore[method-assign]
    with pytest.raises(PublishIncomplete):
        batches.process([Write(ArrowFrame(rows(1, 2)), None)], batch(0))  # type: ignore[arg-type]
    answer = verified(place)
    assert (answer["verdict"], anomalies(answer)) == ("inconclusive", set())
    record = target.peek()
    assert record is not None
    for name in record.outputs["prepared"].data["committables"]:
        commit(name)
    assert verified(place)["verdict"] == "exactly_once", (
        "committed, and only the ledger does not say so yet"
    )
    target.close()


def test_a_fan_out_into_two_tables_is_accused_of_nothing(place: Place):
    """One sink decides by its own transaction; tasks of the other prepare theirs, which are
    committed afterwards.
    """
    place.sql("CREATE TABLE {s}.t (value bigint); CREATE TABLE {s}.u (value bigint)")
    ledger = ow.DatabaseLedger(place.server.url, f"{place.schema}.ledger")
    target = ow.FanOut(
        {"t": place.sink("t"), "u": place.sink("u", xa=True, ledger=ledger)}
    ).new_target()
    for number in range(2):
        frame = ArrowFrame(rows(number, number))
        writes = [Write(frame, "@u"), Write(frame, f"{place.schema}.t")]  # type: ignore[arg-type]
        MicroBatches(target, SinkPolicy(place.pipeline)).process(writes, batch(number))
    target.close()
    answer = verified(place)
    assert answer["verdict"] == "exactly_once", answer
    assert {name: told["rows"] for name, told in answer["facts"]["tables"].items()} == {
        f"{place.schema}.t": 4,
        f"{place.schema}.u": 4,
    }
    for table_of_it in ("t", "u"):
        place.sql(f"DELETE FROM {{s}}.{table_of_it} WHERE value = 1")  # noqa: S608
    answer = verified(place)
    assert anomalies(answer) == {"lost-write"}
    assert len(answer["anomalies"]) == 2
