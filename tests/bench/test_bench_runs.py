"""``make bench`` on a broker and in Sparks of its own, with a few thousand records."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import onceward
from benchmarks.contender_process import ContenderFailed, ContenderProcesses
from benchmarks.contenders import (
    Contender,
    latency_contenders,
    nexmark_contenders,
    own_package_root,
    sink_contenders,
    throughput_contenders,
)
from benchmarks.figures import summarise
from benchmarks.latency import run_latency
from benchmarks.local_broker import LocalBroker
from benchmarks.nexmark import made_events, run_nexmark, summarise_nexmark
from benchmarks.nexmark_kills import run_under_kills
from benchmarks.nexmark_queries import QUERIES
from benchmarks.plan import (
    BEFORE,
    FLINK,
    LOOP,
    ONCEWARD,
    QUIX,
    SPARK_DEFAULTS,
    SPARK_TUNED,
    STREAMS,
    LatencyPlan,
    Shape,
    SinkPlan,
)
from benchmarks.rounds import run_sinks
from benchmarks.scale import Cut, run_scale, summarise_scale
from benchmarks.start import run_start
from benchmarks.state import run_state, stateful_queries, summarise_state
from onceward.errors import ConfigurationError

RECORDS = 4_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The package in another place, without the command line: an older one has no benchmark like
    this.
    """
    source = Path(onceward.__file__).parent
    shutil.copytree(
        source, tmp_path / "src" / "onceward", ignore=shutil.ignore_patterns("cli", "__pycache__")
    )
    return tmp_path


@pytest.mark.timeout(600)
def test_every_contender_copies(broker: LocalBroker, checkout: Path) -> None:
    contenders = [
        c for c in throughput_contenders(checkout) if c.name in (SPARK_DEFAULTS, BEFORE, ONCEWARD)
    ]
    names = tuple(contender.name for contender in contenders)
    plan = SinkPlan((Shape(3, 2_000, RECORDS),), names, 1, 0, "4.3.1")
    said: list[str] = []

    runs = run_sinks(plan, contenders, broker, said.append)

    assert [run.contender for run in runs] == list(names)
    # Only Onceward has Python workers, the older as well as this one; the driver's Python and the
    # JVM everybody has.
    assert {run.contender for run in runs if run.workers_cpu_s > 0} <= {BEFORE, ONCEWARD}
    assert all(run.jvm_cpu_s > 0 and run.broker_cpu_s > 0 and run.batch_s > 0 for run in runs)
    assert [set(figures.onceward_to) for figures in summarise(plan, runs)] == [
        {SPARK_DEFAULTS, BEFORE}
    ]
    assert any(f"{BEFORE}: 4,000 records" in line for line in said)


@pytest.mark.timeout(900)
def test_other_engines_copy_each_record_once(broker: LocalBroker) -> None:
    contenders = [each for each in throughput_contenders(None, peers=True) if not each.is_spark]
    names = tuple(contender.name for contender in contenders)
    plan = SinkPlan((Shape(3, 2_000, RECORDS),), names, 1, 0, "4.3.1", 200, "lz4")

    runs = run_sinks(plan, contenders, broker, lambda _: None)

    assert [run.contender for run in runs] == [FLINK, STREAMS, LOOP, QUIX]
    assert [(run.jvm_cpu_s > 0, run.driver_cpu_s > 0) for run in runs] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]
    assert all(run.broker_cpu_s > 0 and math.isnan(run.batch_s) for run in runs)


@pytest.mark.timeout(900)
def test_other_engines_are_timed_from_send_to_visible(broker: LocalBroker) -> None:
    contenders = [each for each in latency_contenders(None, peers=True) if not each.is_spark]
    plan = LatencyPlan(tuple(each.name for each in contenders), 100, 3, 1, 1, 2, "4.3.1")

    turns = run_latency(plan, contenders, broker, lambda _: None)

    assert [turn.contender for turn in turns] == [FLINK, STREAMS, LOOP, QUIX]
    for turn in turns:
        assert (turn.audit.lost, turn.audit.repeated, turn.audit.unknown) == (0, 0, 0)
        assert min(turn.latencies_ms) > 0


@pytest.mark.timeout(600)
def test_latency_counts_every_record(broker: LocalBroker) -> None:
    contender = Contender(ONCEWARD, "onceward", "onceward", own_package_root())
    plan = LatencyPlan((ONCEWARD,), 100, 3, 1, 1, 2, "4.3.1")

    (turn,) = run_latency(plan, [contender], broker, lambda _: None)

    assert (turn.audit.lost, turn.audit.repeated, turn.audit.unknown) == (0, 0, 0)
    assert (
        0 < len(turn.latencies_ms) < turn.audit.records
    )  # warm-up and the trickle before it are not measured
    assert min(turn.latencies_ms) > 0
    assert {"plan", "send", "offsets", "ledger", "commit"} <= set(turn.steps_ms)
    assert turn.phases_ms["triggerExecution"] >= turn.steps_ms["commit"]


@pytest.mark.timeout(600)
def test_a_contender_that_fails_says_why(broker: LocalBroker, tmp_path: Path) -> None:
    here = own_package_root()
    with ContenderProcesses(
        [Contender(SPARK_DEFAULTS, "kafka", "spark", here)], tmp_path
    ) as processes:
        process = processes[SPARK_DEFAULTS]

        with pytest.raises(ContenderFailed, match="TopicMissing"):
            process.tell(
                "copy",
                name="out",
                bootstrap_servers=broker.bootstrap_servers,
                source="no-such-topic",
                batch_records=10,
            )
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ContenderFailed, match="its process ended"):
            process.tell("collect_garbage")


def test_another_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the row is called must be what was measured."""
    (tmp_path / "processes").mkdir()
    (tmp_path / "empty").mkdir()
    wrong = Contender(BEFORE, "onceward", "onceward", tmp_path / "empty")
    monkeypatch.setenv("PYTHONPATH", str(own_package_root()))

    with (
        pytest.raises(ConfigurationError, match="instead of"),
        ContenderProcesses([wrong], tmp_path / "processes"),
    ):
        raise AssertionError("a contender with the wrong package is ready")


@pytest.mark.timeout(600)
def test_every_way_into_a_table_is_counted() -> None:
    """In a process of its own: it has a Spark of its own."""
    program = (
        "from benchmarks.database import run_database\n"
        "print(len(run_database('PostgreSQL', 2_000, 1, print)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "5"


@pytest.mark.timeout(600)
def test_every_way_into_files_is_counted() -> None:
    """In a process of its own: it has a Spark of its own."""
    program = "from benchmarks.files import run_files; print(len(run_files(2_000, 1, print)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "6"


@pytest.mark.timeout(900)
def test_a_start_and_one_after_a_kill_are_timed(broker: LocalBroker) -> None:
    contenders = latency_contenders(None)

    turns = run_start(contenders, broker.bootstrap_servers, 1, lambda _: None)

    assert {name: len(of) for name, of in turns.items()} == {
        contender.name: 1 for contender in contenders
    }
    assert all(
        0 < turn.session_s < turn.first_s and turn.again_s > 0
        for of in turns.values()
        for turn in of
    )


@pytest.mark.timeout(900)
def test_batches_are_cut_into_tasks_and_partitions(broker: LocalBroker) -> None:
    cuts = Cut(4, 1, 2_000, 2), Cut(20, 30, 2_000, 2), Cut(4, 4, 500, 2, pipelines=3)

    turns = run_scale(sink_contenders(), broker, 1, lambda _: None, cuts)

    assert [{name: len(made) for name, made in of.items()} for of in turns.values()] == [
        {SPARK_TUNED: 1, ONCEWARD: 1}
    ] * 3
    figures = summarise_scale(turns)
    assert [row.cut for row in figures] == [*cuts]
    assert all(row.batch_s > 0 and {"plan", "commit"} <= set(row.steps_ms) for row in figures)


@pytest.mark.timeout(900)
def test_queries_that_keep_state_count_each_record_once(broker: LocalBroker) -> None:
    queries = stateful_queries(4_000)

    turns = run_state(sink_contenders(), broker, queries, 1, lambda _: None)

    assert [{name: len(made) for name, made in of.items()} for of in turns.values()] == [
        {SPARK_TUNED: 1, ONCEWARD: 1}
    ] * 3
    assert [row.query.kind for row in summarise_state(turns)] == ["windows", "join", "sessions"]


@pytest.mark.timeout(900)
def test_nexmark_is_answered_as_sqlite_answers_it(broker: LocalBroker) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo, which compiles the generator of Nexmark's events")
    contenders = nexmark_contenders()
    events = made_events(20_000, lambda _: None)

    turns = run_nexmark(contenders, broker, events, 1, lambda _: None)

    assert [{name: len(made) for name, made in of.items()} for of in turns.values()] == [
        {contender.name: 1 for contender in contenders}
    ] * len(QUERIES)
    assert [row.query for row in summarise_nexmark(turns, ONCEWARD)] == [*QUERIES]


@pytest.mark.timeout(1800)
def test_nexmark_is_answered_so_when_each_query_is_killed_twice(broker: LocalBroker) -> None:
    if shutil.which("cargo") is None:
        pytest.skip("needs cargo, which compiles the generator of Nexmark's events")
    (ours,) = (each for each in nexmark_contenders() if each.name == ONCEWARD)
    events = made_events(20_000, lambda _: None)

    done = run_under_kills(ours, broker, events, 2, 1, lambda _: None)

    assert [each.query for each in done] == [*QUERIES]
    for each in done:
        first, second = each.begun_at_kills
        assert 0 <= first < second < each.batches
