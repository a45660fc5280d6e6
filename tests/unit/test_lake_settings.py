"""What the sinks for tables of a lake are told: refused by name before anything is touched."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

import onceward as ow
from onceward import patience
from onceward.engine.spark_jobs import attempt_name
from onceward.engine.two_phase import CommitResult
from onceward.errors import (
    ConfigurationError,
    ContradictoryOptions,
    SendFailed,
    TargetUnreachable,
)
from onceward.ids import AttemptId, pipeline_id
from onceward.lake.delta import Delta, rows_in
from onceward.lake.iceberg import Iceberg
from onceward.lake.target import Staged
from onceward.spark.tables import delta_table
from onceward.spark.types import is_same_type
from support.errors import raises

LEDGER = ow.KafkaLedger("localhost:9092")


def delta(**settings: Any) -> ow.DeltaSink:
    return ow.DeltaSink(
        **{"path": "/tables/orders", "pipeline_id": "orders", "ledger": LEDGER, **settings}
    )


def iceberg(**settings: Any) -> ow.IcebergSink:
    return ow.IcebergSink(
        **{"table": "lake.shop.orders", "pipeline_id": "orders", "ledger": LEDGER, **settings}
    )


@pytest.mark.parametrize("make", [delta, iceberg])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("pipeline_id", "an id with blanks"),
        ("ledger", "localhost:9092"),
        ("resume", "start"),
        ("batch_attempts", 0),
        ("commit_timeout_s", -1),
        ("commit_timeout_s", float("nan")),
        ("batch_timeout_s", 0),
    ],
)
def test_a_wrong_setting_is_named(make: Any, setting: str, value: object):
    with pytest.raises(ConfigurationError, match=setting):
        make(**{setting: value})


def test_a_table_is_named_once():
    with raises(ContradictoryOptions):
        delta(table="orders")
    with raises(ContradictoryOptions):
        delta(path=None)
    with raises(ConfigurationError):
        iceberg(table=" ")
    with raises(ConfigurationError, "path=''"):
        delta(path="")
    assert (
        repr(delta(path=Path("/tables/orders")))
        == "DeltaSink(pipeline_id='orders', path='/tables/orders')"
    )
    assert repr(iceberg()) == "IcebergSink(pipeline_id='orders', table='lake.shop.orders')"


def test_a_fan_out_takes_them_at_different_places_only():
    ow.FanOut({"one": delta(), "other": iceberg()})
    with raises(ContradictoryOptions):
        ow.FanOut({"one": delta(), "other": delta()})


def test_attempts_of_two_branches_have_two_names():
    assert attempt_name(pipeline_id("orders"), "mark", AttemptId(3, 4), "") == "orders@mark-3.4"
    assert (
        attempt_name(pipeline_id("orders"), "mark", AttemptId(3, 4), "archive")
        == "orders@mark-3.4-archive"
    )


def test_a_writer_is_of_one_pipeline_and_one_ledger():
    """And of one sink of a fan-out. ``orders@…`` is no prefix of another pipeline's: no id has an
    ``@``.
    """
    table = Delta(pipeline_id("orders"), path="/p", name=None)
    assert table._writer("a", "").startswith(table._writer("", ""))
    assert table._writer("a", "one") != table._writer("a", "other")
    another = Delta(pipeline_id("orders-too"), path="/p", name=None)
    assert not another._writer("a", "").startswith(table._writer("", ""))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("long", "long", True),
        ("long", "integer", False),
        ("decimal(10,2)", "decimal(10,3)", False),
        (
            {"type": "array", "elementType": "long", "containsNull": True},
            {"type": "array", "elementType": "long", "containsNull": False},
            True,
        ),
        (
            {
                "type": "struct",
                "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
            },
            {
                "type": "struct",
                "fields": [{"name": "b", "type": "long", "nullable": True, "metadata": {}}],
            },
            False,
        ),
        (
            {
                "type": "struct",
                "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {"x": 1}}],
            },
            {
                "type": "struct",
                "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {}}],
            },
            True,
        ),
        ({"type": "struct", "fields": []}, "long", False),
    ],
)
def test_types_are_the_same_whatever_they_say_of_nulls(one: Any, other: Any, same: bool):
    assert is_same_type(one, other) is same


def test_rows_are_counted_or_it_is_said_why_not():
    def action(stats: Any) -> str:
        return json.dumps({"add": {"path": "x", "stats": stats}})

    assert rows_in([]) == 0
    assert (
        rows_in([action(json.dumps({"numRecords": 2})), action(json.dumps({"numRecords": 3}))])
        == 5
    )
    for wrong in (action(None), json.dumps({"add": {"path": "x"}}), json.dumps({"cdc": {}})):
        with raises(ConfigurationError, "stats.collect"):
            rows_in([wrong])


def test_each_batch_asks_the_catalog_where_a_delta_table_is(monkeypatch: pytest.MonkeyPatch):
    """Two tables may have swapped their names, and readers of the name see the other one."""
    places, opened = iter(["/visits", "/visits", "/visits_new"]), list[str]()

    class Opened:
        def __init__(self, session: Any, path: str) -> None:
            self.path = path

        def fitting(self, frame: Any) -> Any:
            opened.append(self.path)
            return frame

    monkeypatch.setattr("onceward.lake.delta.SparkSession", SimpleNamespace(active=lambda: None))
    monkeypatch.setattr("onceward.lake.delta.table_location", lambda *asked: next(places))
    monkeypatch.setattr("onceward.lake.delta.DeltaTable", Opened)
    target = delta(path=None, table="shop.visits").new_target()
    monkeypatch.setattr(target, "_inherited_last", -1)
    for number in range(3):
        target._attempt(AttemptId(1, number), None)
        target._table.fitting(None)
        target._table.fitting(None)
    assert opened == ["/visits"] * 4 + ["/visits_new"] * 2


def test_a_catalog_that_does_not_answer_holds_up_no_table_of_another(
    monkeypatch: pytest.MonkeyPatch,
):
    answers, asked = threading.Event(), threading.Event()

    def location(_: Any, name: str) -> str:
        if name == "away":
            asked.set()
            answers.wait(60)
        return f"/{name}"

    monkeypatch.setattr("onceward.lake.delta.SparkSession", SimpleNamespace(active=lambda: None))
    monkeypatch.setattr("onceward.lake.delta.table_location", location)
    monkeypatch.setattr("onceward.lake.delta.DeltaTable", lambda session, path: path)
    away, well = (Delta(pipeline_id("orders"), path=None, name=name) for name in ("away", "well"))
    waits = patience.in_a_thread(lambda: away._table, "away")
    assert asked.wait(60)
    opened: Any = patience.in_a_thread(lambda: well._table, "well")
    try:
        assert opened.result(10) == "/well"
        assert not waits.done()
    finally:
        answers.set()
    assert waits.result(60) == "/away"
    assert away._table is away._table


@pytest.mark.parametrize("where", ["begin", "write", "prepare"])
def test_a_storage_that_fails_within_an_attempt_lets_the_batch_run_again(
    monkeypatch: pytest.MonkeyPatch, where: str
):
    """Nothing of it is decided. At a start, before there is an attempt, the query ends instead."""

    def fail(*_: Any, **__: Any) -> Any:
        raise TargetUnreachable("storage", next_step="see that it answers")

    target = delta().new_target()
    monkeypatch.setattr(target, "_inherited_last", None if where == "begin" else -1)
    for name in ("newest", "fitting", "missing"):
        monkeypatch.setattr(target._table, name, fail)
    with raises(SendFailed):
        attempt: Any = target._attempt(AttemptId(1, 0), None)
        if where == "write":
            batch = SimpleNamespace(query_id="q", batch_id=0)
            attempt.write(SimpleNamespace(frame=None), SimpleNamespace(batch=batch))
        attempt._staged.append(Staged(1, ["a"], {}))
        attempt._committable()
    monkeypatch.setattr(target.chain, "identity", lambda: "c")
    with pytest.raises(TargetUnreachable):
        target.must_be_of_this_chain()


def test_a_catalog_that_is_away_for_a_moment_ends_no_query(monkeypatch: pytest.MonkeyPatch):
    """A name is looked up for each batch, and not at starts alone."""
    answers: list[Any] = [AnalysisException("refused"), AnalysisException("refused"), "/visits"]

    def sql(text: str) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(collect=lambda: [{"location": answer}])

    monkeypatch.setattr(delta_table, "thrown_by", lambda error: (str(error),))
    monkeypatch.setattr(delta_table, "catalog_is_away", lambda causes: True)
    monkeypatch.setattr(delta_table, "asked_apart", lambda jvm, ask, *_: ask())
    session: Any = SimpleNamespace(sql=sql, sparkContext=SimpleNamespace(_jvm=None))
    assert delta_table.table_location(session, "shop.visits") == "/visits"
    monkeypatch.setattr(delta_table, "_CATALOG_SECONDS", 0.0)
    answers.append(AnalysisException("refused"))
    with pytest.raises(TargetUnreachable, match="refused"):
        delta_table.table_location(session, "shop.visits")


S3_STORE = "spark.delta.logStore.s3a.impl"
BY_HADOOP = "org.apache.iceberg.hadoop.HadoopTableOperations"
IN_S3 = "s3a://lake/visits"


@pytest.mark.parametrize(
    ("by", "place", "settings", "warns"),
    [
        ("", IN_S3, {}, True),
        ("", IN_S3, {S3_STORE: "io.delta.storage.S3SingleDriverLogStore"}, True),
        ("", IN_S3, {S3_STORE: "io.delta.storage.S3DynamoDBLogStore"}, False),
        ("", IN_S3, {"spark.delta.logStore.class": "com.shop.LogStore"}, False),
        ("", "/visits", {}, False),
        ("", "abfss://lake@shop/visits", {}, False),
        (BY_HADOOP, IN_S3, {}, True),
        (BY_HADOOP, "gs://lake/visits", {"spark.sql.catalog.lake.type": "hadoop"}, True),
        (BY_HADOOP, IN_S3, {"spark.sql.catalog.lake.lock-impl": "DynamoDbLockManager"}, False),
        (BY_HADOOP, "hdfs://name/visits", {}, False),
        ("org.apache.iceberg.rest.RESTTableOperations", IN_S3, {}, False),
    ],
)
def test_where_a_commit_may_replace_another_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    by: str,
    place: str,
    settings: dict[str, str],
    warns: bool,
):
    session = SimpleNamespace(conf=SimpleNamespace(getAll=settings))
    monkeypatch.setattr("onceward.lake.delta.SparkSession.active", lambda: session)
    fine, pipeline = (lambda: None), pipeline_id("orders")
    table: Delta | Iceberg
    if by:
        table = Iceberg(pipeline, name="visits")
        opened = SimpleNamespace(must_stage=fine, committer=(by, place))
    else:
        table = Delta(pipeline, path=place, name=None)
        opened = SimpleNamespace(must_be_plain=fine, path=place)
    vars(table)["_table"] = opened
    table.check()
    assert ("one may replace the other" in caplog.text) is warns


def test_an_iceberg_table_is_loaded_anew_behind_a_failure(monkeypatch: pytest.MonkeyPatch):
    """The credentials that its catalog has handed out with it have expired."""
    calls = list[str]()

    class Opened:
        id = "id"

        def __init__(self, session: Any, name: str) -> None:
            calls.append("load")

        def forget(self) -> None:
            calls.append("forget")

        def staged(self, prefix: str) -> dict[str, int]:
            return {}

        def drop(self, snapshots: Any) -> None: ...

        def missing(self, snapshots: Any) -> list[str]:
            if calls.count("load") < 3:
                raise RuntimeError("The provided token has expired")
            return []

        properties = fields = lambda self: dict[str, str]()

        def metadata(self) -> Any:
            return SimpleNamespace(lack=lambda staged: list(staged))

        def publish(self, snapshots: Any, properties: Any) -> None:
            calls.append("publish")

    monkeypatch.setattr("onceward.lake.iceberg.SparkSession.active", lambda: None)
    monkeypatch.setattr("onceward.lake.iceberg.IcebergTable", Opened)
    table = Iceberg(pipeline_id("orders"), name="visits")
    batch = {"table": "visits", "id": "id", "attempt": "a", "chain": "c", "branch": ""}
    batch |= {"sequence": 3, "staged": [7]}
    with pytest.raises(RuntimeError):
        table.missing([7])
    table.abort(batch)
    assert calls == ["load", "forget", "load"]
    with pytest.raises(RuntimeError):
        table.commit(batch)
    assert table.commit(batch) is CommitResult.DONE
    assert calls == ["load", "forget", "load", "forget", "load", "publish"]
