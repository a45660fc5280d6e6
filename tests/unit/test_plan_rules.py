"""What ``onceward plan`` says of each admission, and of sources before and now. Pure; what Spark says
is in ``tests/spark/test_plans.py``.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typer.testing import CliRunner

import onceward as ow
from onceward.cli import app
from onceward.engine.calls.foreach_batch import named_sinks
from onceward.engine.ledger.admission import CallHistory
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import AccessDenied, RegistryRefused, UnsupportedQuery, UnsupportedSchema
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange, TopicPartition
from onceward.kafka.source import identity
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ClientSettings
from onceward.operate import plan
from onceward.operate.plan import _plan, _retained, plan_job
from onceward.operate.plan_lines import (
    Line,
    QueryPlan,
    Weight,
    compare_kept,
    compare_sources,
    decide,
    gone_on,
)
from onceward.operate.plan_queries import (
    Definition,
    _connect_refused,
    for_good,
    queries_intercepted,
)
from onceward.operate.run_job import is_at_work
from onceward.spark.batch.query import KafkaSource, RunningBatch
from support.hostile_http import HostileServer, answer

AS_BEFORE, _, CHANGES, REFUSED = Weight


def at(offset: int, topic: str = "people") -> dict[str, dict[str, int]]:
    return {topic: {"0": offset}}


def record(batch_id: int, query: str = "q") -> LedgerRecord:
    end = at(batch_id * 10 + 10)
    return LedgerRecord(
        PipelineId("p"), batch_id, BatchId(query, batch_id), (SourceRange(None, end),),
        AttemptId(1, 1), {}, 0,
    )  # fmt: skip


def batch(number: int, start: int | None = None, *, stateful: bool = False) -> RunningBatch:
    begin = number * 10 if start is None else start
    source = SourceRange(at(begin), at(begin + 10))
    return RunningBatch(BatchId("q", number), "run", "", (source,), (), stateful, None)


@pytest.mark.parametrize(
    ("running", "newest", "resume", "planned", "weight", "words"),
    [
        (batch(0), None, "checkpoint", -1, AS_BEFORE, "a new pipeline"),
        (batch(3), record(2), "checkpoint", 2, AS_BEFORE, "batch 3 is next, behind batch 2"),
        (batch(3), record(2), "checkpoint", 3, AS_BEFORE, "batch 3 runs again, with the offsets"),
        (batch(2), record(2), "checkpoint", 2, AS_BEFORE, "is committed already"),
        (batch(3), None, "checkpoint", 3, REFUSED, "LedgerBehind"),
        (batch(3), None, "adopt", 3, CHANGES, "begins a new ledger"),
        (batch(0, 30), record(2, "old"), "ledger", -1, CHANGES, "goes on, behind batch 2"),
        (
            batch(0, 30, stateful=True),
            record(2, "old"),
            "ledger",
            -1,
            REFUSED,
            "CheckpointReplaced",
        ),
        (batch(0), record(2, "old"), "checkpoint", -1, REFUSED, "CheckpointReplaced"),
        (batch(0, 20), record(2, "old"), "ledger", -1, REFUSED, "stop the copy that still runs"),
        (batch(1), record(2), "checkpoint", 1, REFUSED, "CheckpointRewound"),
        (batch(5), record(2), "checkpoint", 5, REFUSED, "BatchNotWritten"),
    ],
)
def test_each_admission_has_its_words(
    running: RunningBatch, newest: LedgerRecord | None, resume: str, planned: int, weight: Weight,
    words: str,
) -> None:  # fmt: skip
    line = decide(running, newest, resume, CallHistory(), planned)
    assert (line.weight, line.topic) == (weight, "start")
    assert words in line.text


@pytest.mark.parametrize(
    ("known", "newest", "says"),
    [
        (2, 2, None), (2, 3, "up to batch 3"), (2, 10, "up to batch 10"), (3, 4, "up to batch 4"),
        (4, 5, None), (None, 3, None),
    ],
)  # fmt: skip
def test_a_pipeline_that_runs_may_go_on_while_it_is_planned(
    known: int | None, newest: int, says: str | None
) -> None:
    """The logs were copied behind batch 2. What was ahead of them before is another matter."""

    def record(number: int) -> LedgerRecord:
        ends = (SourceRange(None, {"people": {"0": number * 10 + 10}}),)
        query = BatchId("q", number)
        return LedgerRecord(PipelineId("p"), number, query, ends, AttemptId(1, 1), {}, 0)

    start, end = ({"people": {"0": offset}} for offset in (30, 45))
    planned = RunningBatch(BatchId("q", 3), "run", "", (SourceRange(start, end),), (), False, None)
    line = gone_on(None if known is None else record(known), record(newest), planned)
    assert (line is None) is (says is None)
    if line is not None:
        assert line.weight is Weight.AS_BEFORE
        assert says is not None
        assert says in line.text
    other = replace(planned, batch=BatchId("another", 3))
    assert gone_on(record(2), record(newest), other) is None


def test_batches_that_may_be_left_out_are_a_change() -> None:
    line = decide(batch(5), record(2), "checkpoint", CallHistory("allow"), 5)
    assert (line.weight, "follows batches that are left out" in line.text) == (CHANGES, True)


def lines(ends: list[Any], *now: SourceRange) -> list[Line]:
    return list(compare_sources(ends, now))


def test_topics_that_are_new_or_gone_are_changes() -> None:
    now = SourceRange({**at(5), **at(0, "more")}, {**at(9), **at(2, "more")})
    first, gone, new = lines([{**at(5), **at(7, "old")}], now)
    assert first == Line(
        AS_BEFORE, "sources",
        "source 0: more, people; the first batch reads 6 offsets, from more-0 at 0, people-0 at 5",
    )  # fmt: skip
    assert gone == Line(CHANGES, "sources", "no longer read: old")
    assert new == Line(CHANGES, "sources", "new topics: more")


def test_sources_in_another_order_are_a_change() -> None:
    """Spark knows them by their places."""
    swapped = [SourceRange(at(5), at(0, "more")), SourceRange(at(7, "more"), at(0))]
    found = [line for line in lines([at(5), at(7, "more")], *swapped) if "order" in line.text]
    assert [line.weight for line in found] == [CHANGES, CHANGES]
    assert found[0].text.startswith("topic more was source 1's and is source 0's now")
    kept = [SourceRange(at(5), at(9)), SourceRange(at(7, "more"), at(8, "more"))]
    assert len(lines([at(5), at(7, "more")], *kept)) == 2


def test_what_has_expired_is_a_change() -> None:
    zero, one = TopicPartition("people", 0), TopicPartition("people", 1)
    assert list(compare_kept({zero: 10, one: 20}, {zero: 10, one: 5})) == []
    (line,) = compare_kept({zero: 10, one: 20}, {zero: 1_010, one: 21})
    assert line.weight is CHANGES
    assert "1,001 offsets have expired" in line.text
    assert "people-0 from 10 to 1010, people-1 from 20 to 21" in line.text


def test_sources_that_are_not_kafkas_are_shown_as_they_are() -> None:
    only, kafka = lines([], SourceRange(None, {"logOffset": 4}), SourceRange(None, at(9)))
    assert only.text == 'source 0: {"logOffset": 4}'
    assert "reads 0 offsets" in kafka.text


def test_a_query_by_spark_connect_is_not_started_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs grpcio, so that Connect's writer is put where it would be."""

    class ConnectWriter:
        def start(self) -> str:
            return "runs"

        toTable = start  # noqa: N815 — PySpark's name

    name = "pyspark.sql.connect.streaming.readwriter"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(DataStreamWriter=ConnectWriter))  # type: ignore[arg-type]
    monkeypatch.setattr("onceward.operate.plan_queries.find_spec", lambda name: name)
    with _connect_refused(), pytest.raises(UnsupportedQuery):
        ConnectWriter().start()
    assert ConnectWriter().start() == "runs"


THREADS = """
import threading
import time
from pathlib import Path

import onceward as ow
from pyspark.sql.streaming.readwriter import DataStreamWriter

def pipeline(name, seconds):
    time.sleep(seconds)
    while name == "late" and not Path("planned").exists():
        time.sleep(0.05)
    writer = object.__new__(DataStreamWriter)
    writer._df = None
    ow.supervise(lambda: writer.queryName(name).option("x", name).foreachBatch(print).start())

threads = [
    threading.Thread(target=pipeline, args=(name, seconds), name=name, daemon=name == "late")
    for name, seconds in (("a", 0.0), ("b", 0.1), ("c", 1.0), ("late", 0.0))
]
for thread in threads:
    thread.start()
pipeline("main", 0.2)
"""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_no_thread_of_a_job_starts_a_query(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not beside one that is looked at, nor when its file has ended, nor behind the plan."""
    started: list[str] = []
    for name in ("queryName", "option", "foreachBatch"):
        monkeypatch.setattr(DataStreamWriter, name, lambda writer, *_: writer)
    monkeypatch.setattr(DataStreamWriter, "start", lambda *_, **__: started.append("really"))

    def look(definition: Definition) -> QueryPlan:
        time.sleep(0.3)
        return QueryPlan(definition.name, definition.options["x"], ())

    monkeypatch.setattr("onceward.operate.plan._plan", look)
    job = tmp_path / "job.py"
    job.write_text(THREADS)
    monkeypatch.chdir(tmp_path)
    with for_good:
        before = set(threading.enumerate())
        plans = plan_job(str(job), [], 60)
        goes_on = any(map(is_at_work, set(threading.enumerate()) - before))
        (late,) = [each for each in threading.enumerate() if each.name == "late"]
        (tmp_path / "planned").touch()
        late.join(30)
    assert sorted((each.name, each.checkpoint) for each in plans) == [
        (name, name) for name in ("a", "b", "c", "main")
    ]
    assert (started, goes_on, late.is_alive()) == ([], False, False)


FAILING = """
import threading
from onceward.operate import plan, plan_lines
from pyspark.sql.streaming.readwriter import DataStreamWriter

plan._plan = lambda query: plan_lines.QueryPlan(query.name, "here", ())

def wrong():
    raise TypeError("of the job")

threading.Thread(target=wrong).start()
writer = object.__new__(DataStreamWriter)
writer._df = None
writer.start(queryName="orders")
"""


def test_what_a_thread_of_a_job_raises_ends_the_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("onceward.operate.plan._plan", None)
    job = tmp_path / "job.py"
    job.write_text(FAILING)
    with for_good, pytest.raises(TypeError, match="of the job"):
        plan_job(str(job), [], 60)


POOL = """
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql.streaming.readwriter import DataStreamWriter

pool = ThreadPoolExecutor(1)
pool.submit(print).result()
writer = object.__new__(DataStreamWriter)
writer._df = None
pool.submit(writer.start, queryName="orders")
"""


def test_a_pipeline_in_a_pool_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its thread may not have taken its work yet when the file has ended."""
    monkeypatch.setattr("onceward.operate.plan._plan", lambda d: QueryPlan(d.name, "here", ()))
    job = tmp_path / "job.py"
    job.write_text(POOL)
    for _ in range(10):
        with for_good:
            assert [each.name for each in plan_job(str(job), [], 60)] == ["orders"]


ENDLESS = """
import threading
from onceward.operate import plan, plan_lines
from pyspark.sql.streaming.readwriter import DataStreamWriter

plan._plan = lambda query: plan_lines.QueryPlan(query.name, "here", ())
threading.Thread(target=threading.Event().wait).start()
writer = object.__new__(DataStreamWriter)
writer._df = None
writer.start(queryName="orders")
"""


@pytest.mark.parametrize(
    ("more", "status", "out", "err"),
    [
        ("", 0, "orders (here)\n", ""),
        ("raise ValueError('of the job')", 1, "", "ValueError: of the job"),
        ("import sys; sys.exit(3)", 64, "", "ended itself before"),
    ],
    ids=["well", "raises", "ends itself"],
)
def test_a_thread_that_goes_on_holds_up_no_end(
    tmp_path: Path, more: str, status: int, out: str, err: str
) -> None:
    """Python would wait for it."""
    (tmp_path / "job.py").write_text(ENDLESS + more)
    command = "from onceward.cli import app; app(['plan', '--timeout', '1', 'job.py'])"
    ended = subprocess.run(
        [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (status, out), ended.stderr
    assert err in ended.stderr


def test_what_a_job_raises_is_printed_as_python_does(tmp_path: Path) -> None:
    """From the job's own line on, and of that error alone."""
    job = tmp_path / "job.py"
    job.write_text("def start():\n    raise ValueError('the job itself')\n\nstart()\n")
    with for_good:
        ended = CliRunner().invoke(app, ["plan", str(job)])
    assert ended.exit_code == 1
    lines = ended.stderr.splitlines()
    assert lines[0].startswith("Traceback")
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{job}", line 4, in <module>', f'  File "{job}", line 2, in start',
    ]  # fmt: skip
    assert lines[-1] == "ValueError: the job itself"
    assert "ImportError" not in ended.stderr


def test_a_plan_leaves_the_metrics_of_the_copy_that_runs_alone() -> None:
    """A push replaces what the gateway has of the same job and instance, by nothing here."""
    with HostileServer([answer()]) as gateway:
        with queries_intercepted(lambda _: None):
            pushed = ow.push_metrics(gateway.url, job="orders", interval_s=0.05)
            served = ow.serve_metrics(0)
            time.sleep(0.3)
        pushed.stop()
        served.stop()
        assert gateway.requests == []
    assert served.port is None


@pytest.mark.parametrize(
    ("compatible", "weight", "says"),
    [
        (answer(200, {"is_compatible": True}), CHANGES, "it fits the newest version there"),
        (answer(404, {"error_code": 40401, "message": "none"}), CHANGES, "it fits"),
        (answer(200, {"is_compatible": False}), REFUSED, "it does not fit"),
        (answer(403, {"error_code": 403, "message": "no"}), CHANGES, "is not known: the schema"),
    ],
    ids=["fits", "the first", "does not fit", "not to be asked"],
)
def test_a_plan_registers_no_schema(compatible: Any, weight: Weight, says: str) -> None:
    """`auto_register_schemas=True` did, while the job was only looked at."""
    unknown = answer(404, {"error_code": 40403, "message": "Schema not found"})
    with HostileServer([unknown, unknown, compatible]) as server:
        registry = ow.SchemaRegistry(server.url)
        with queries_intercepted(lambda _: None) as writers:
            number = registry.register("orders-value", '"string"')
        asked = [request.split(b" HTTP")[0].decode() for request in server.requests]
    assert asked == [
        "POST /subjects/orders-value",
        "POST /subjects/orders-value?normalize=true",
        "POST /compatibility/subjects/orders-value/versions/latest",
    ]
    assert (registry.schema(number).text, registry.resolved_text(number)) == ('"string"',) * 2
    (line,) = writers.take_lines()
    assert (line.weight, line.topic) == (weight, "schemas")
    assert line.text.startswith("a schema would be registered under orders-value; ")
    assert says in line.text
    assert writers.take_lines() == ()


@pytest.mark.parametrize(
    ("compatible", "says"),
    [
        (answer(200, {"is_compatible": False}), "it does not fit the newest version there"),
        (answer(403, {"error_code": 403, "message": "no"}), "whether the registry takes it"),
    ],
)
def test_who_may_register_and_not_look_up_has_a_plan(compatible: Any, says: str) -> None:
    """As it has a start: what is there already is not compared with anything."""
    with HostileServer([answer(403, {"message": "no Read on it"}), compatible]) as server:
        registry = ow.SchemaRegistry(server.url)
        with queries_intercepted(lambda _: None) as writers:
            registry.register("orders-value", '"string"')
    (line,) = writers.take_lines()
    assert line.weight is CHANGES
    assert "under orders-value, if it is not there, which is not known: " in line.text
    assert "no Read on it" in line.text
    assert says in line.text


def test_a_plan_is_refused_for_a_schema_that_the_registry_takes_for_none() -> None:
    """Its start would be, whatever the versions there are."""
    unknown = answer(404, {"error_code": 40403, "message": "Schema not found"})
    none = answer(422, {"error_code": 42201, "message": "Invalid schema"})
    with HostileServer([unknown, unknown, none]) as server:
        registry = ow.SchemaRegistry(server.url)
        with (
            queries_intercepted(lambda _: None) as writers,
            pytest.raises(UnsupportedSchema, match="42201 Invalid schema"),
        ):
            registry.register("orders-value", '"string"')
    assert writers.take_lines() == ()


def test_each_schema_that_a_plan_does_not_register_has_an_id_of_its_own() -> None:
    none = answer(404, {"error_code": 40401, "message": "none"})
    with HostileServer([none]) as server:
        registry = ow.SchemaRegistry(server.url)
        with queries_intercepted(lambda _: None):
            numbers = [registry.register("orders-value", text) for text in ('"string"', '"int"')]
    assert [registry.schema(number).text for number in numbers] == ['"string"', '"int"']


def test_a_plan_with_a_wrong_login_at_the_registry_is_refused() -> None:
    with HostileServer([answer(401, {"message": "who?"})]) as server:
        registry = ow.SchemaRegistry(server.url)
        with queries_intercepted(lambda _: None), pytest.raises(RegistryRefused, match="who"):
            registry.register("orders-value", '"string"')


REGISTERING = """
import onceward as ow
from pyspark.sql.streaming.readwriter import DataStreamWriter

registry = ow.SchemaRegistry("{url}")
for name in "orders", "people":
    registry.register(f"{{name}}-value", '"string"')
    writer = object.__new__(DataStreamWriter)
    writer._df = None
    writer.start(queryName=name)
registry.register("last-value", '"string"')
"""


def test_a_schema_is_said_with_the_query_that_is_defined_behind_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("onceward.operate.plan._plan", lambda d: QueryPlan(d.name, "here", ()))
    none = answer(404, {"error_code": 40401, "message": "none"})
    with HostileServer([none]) as server:
        (tmp_path / "job.py").write_text(REGISTERING.format(url=server.url))
        with for_good:
            plans = plan_job(str(tmp_path / "job.py"), [], 60)
        assert not [each for each in server.requests if b"/versions HTTP" in each]
    said = [(p.name, [line.text.split()[6].strip(";") for line in p.lines]) for p in plans]
    assert said == [("orders", ["orders-value"]), ("people", ["people-value", "last-value"])]
    assert {each.weight for each in plans} == {CHANGES}


def test_a_plan_takes_the_id_of_a_schema_that_is_registered() -> None:
    with HostileServer([answer(200, {"id": 7})]) as server:
        registry = ow.SchemaRegistry(server.url)
        with queries_intercepted(lambda _: None) as writers:
            assert registry.register("orders-value", '"string"') == 7
        assert len(server.requests) == 1
    assert writers.take_lines() == ()


SINK = ow.KafkaSink(topic="t", pipeline_id="p", bootstrap_servers="h:1")


def write(sink: Any, frame: Any, batch_id: int) -> None:
    sink(frame, batch_id)


class Job:
    def __init__(self) -> None:
        self.sink = SINK

    def __call__(self, frame: Any, batch_id: int) -> None:
        self.sink(frame, batch_id)


def in_two() -> Any:
    def inner(frame: Any, batch_id: int) -> None:
        SINK(frame, batch_id)

    return lambda frame, batch_id: inner(frame, batch_id)


JOB = Job()


@pytest.mark.parametrize(
    "function",
    [
        SINK, functools.partial(write, SINK), functools.partial(write, sink=SINK), JOB,
        JOB.__call__, lambda frame, batch_id: JOB(frame, batch_id), in_two(),
        lambda frame, batch_id: SINK(frame, batch_id),
        functools.wraps(write)(lambda frame, batch_id: SINK(frame, batch_id)),
    ],
)  # fmt: skip
def test_a_sink_is_found_through_what_calls_it(function: Any) -> None:
    assert named_sinks(function) == [SINK]


@pytest.mark.parametrize("function", [None, 5, [SINK], {"a": SINK}, print, time.sleep, write, Job])
def test_what_calls_no_sink_that_can_be_told_has_none(function: Any) -> None:
    assert named_sinks(function) == []


def test_a_function_without_a_sink_is_no_start_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.operate.plan._checkpoint", lambda definition: "/c")
    frame: Any = None
    assert _plan(Definition(frame, function=write)).weight is Weight.UNKNOWN
    # By Spark alone
    assert _plan(Definition(frame)).weight is AS_BEFORE


@pytest.mark.parametrize(
    ("may", "found"),
    [("ab", []), ("a", []), ("b", []), ("", [Weight.UNKNOWN])],
)
def test_what_one_login_may_not_see_refuses_no_start(
    monkeypatch: pytest.MonkeyPatch, may: str, found: list[Weight]
) -> None:
    def offsets(client: KafkaClient, places: Any, *_: Any, **__: Any) -> Any:
        if str(client.settings.security.username) not in may:
            raise AccessDenied("people-etl may not Describe topic orders", next_step="grant it")
        return dict.fromkeys(places, 0)

    monkeypatch.setattr(plan, "list_offsets", offsets)
    monkeypatch.setattr(identity, "_known", {})
    here = ClientSettings(("plan.example:1",))
    for user in ("a", "b"):
        identity.remember(replace(here, security=replace(here.security, username=user)))
    source = KafkaSource(0, frozenset(here.bootstrap_servers))
    lines = _retained(replace(batch(1), kafka_sources=(source,)))
    assert [line.weight for line in lines] == found
