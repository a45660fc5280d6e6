"""``ow.checkpointing``: one set of settings for trigger, sink and session."""

from __future__ import annotations

import queue
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import onceward as ow
from onceward.engine.calls import gate
from onceward.engine.policy import Checkpointing, seconds
from onceward.errors import ConfigurationError, ContradictoryOptions, TransactionTimeoutTooLarge
from onceward.kafka.sink.settings import name_checkpointing
from onceward.operate import stopping
from onceward.spark.batch import progress
from onceward.spark.batch.refused_modes import BY_FILE_SYSTEM, FILE_MANAGER

WHERE = {"bootstrap_servers": "broker:9092", "topic": "out", "pipeline_id": "p"}
FIVE = ow.checkpointing(
    interval="10 s", min_pause="500 ms", timeout="5 min", attempts=2, retain=50
)


def test_each_part_takes_what_it_has_a_name_for():
    assert Checkpointing(10, 0.5, 300, 2, 50) == FIVE
    assert FIVE.trigger == {"processingTime": "10000 milliseconds"}
    assert FIVE.spark_conf == {"spark.sql.streaming.minBatchesToRetain": "50"}
    on_a_disk = ow.checkpointing(local_disk=True).spark_conf
    assert on_a_disk[FILE_MANAGER].endswith(f".{BY_FILE_SYSTEM}")
    policy = ow.KafkaSink(**WHERE, checkpointing=FIVE).settings.policy
    assert (policy.batch_attempts, policy.batch_timeout_s, policy.min_pause_s) == (2, 300, 0.5)


def test_defaults_are_sparks_and_flinks():
    assert ow.checkpointing() == Checkpointing(0, 0, 600, 3, 100)
    policy = ow.KafkaSink(**WHERE).settings.policy
    assert (policy.batch_attempts, policy.batch_timeout_s, policy.min_pause_s) == (3, None, 0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (3, 3), (0.5, 0.5), ("3", 3), ("500ms", 0.5), ("1.5 s", 1.5), ("2 seconds", 2),
        ("10 min", 600), ("10m", 600), ("2 Hours", 7200), ("1d", 86400), ("3 secs", 3),
        (timedelta(minutes=2), 120),
    ],
)  # fmt: skip
def test_durations_are_read(text: object, value: float):
    assert seconds("interval", text) == value


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "-1 s", -1, True, None, "1 s 2", "s"])
def test_what_is_no_duration_is_refused_by_name(text: object):
    with pytest.raises(ConfigurationError, match="min_pause=") as refused:
        ow.checkpointing(min_pause=text)  # type: ignore[arg-type]
    assert "min_pause" in refused.value.next_step


@pytest.mark.parametrize(
    ("setting", "value"),
    [("attempts", 0), ("attempts", True), ("retain", 0), ("retain", 1.5), ("timeout", 0)],
)
def test_what_makes_no_sense_is_refused_by_name(setting: str, value: Any):
    with pytest.raises(ConfigurationError, match=setting) as refused:
        ow.checkpointing(**{setting: value})
    assert setting in refused.value.next_step


def test_concurrency_is_one_by_design():
    ow.checkpointing(max_concurrent=1)
    for value in (0, 2, True, "2"):
        with pytest.raises(ContradictoryOptions, match="one after the other"):
            ow.checkpointing(max_concurrent=value)  # type: ignore[arg-type]


def test_the_transaction_outlives_the_timeout_by_a_minute():
    producer = ow.KafkaSink(**WHERE, checkpointing=FIVE).settings.producer
    assert producer.transaction_timeout_ms == 360_000
    assert ow.KafkaSink(**WHERE).settings.producer.transaction_timeout_ms is None
    longer = {"transaction.timeout.ms": 900_000}
    given = ow.KafkaSink(**WHERE, checkpointing=FIVE, options=longer).settings.producer
    assert given.transaction_timeout_ms == 900_000


def test_a_transaction_shorter_than_the_timeout_is_refused():
    with pytest.raises(ContradictoryOptions, match=r"transaction\.timeout\.ms=60000.*timeout=300"):
        ow.KafkaSink(**WHERE, checkpointing=FIVE, options={"transaction.timeout.ms": 60_000})


@pytest.mark.parametrize(
    ("setting", "word"), [({"batch_attempts": 5}, "attempts"), ({"batch_timeout_s": 9}, "timeout")]
)
def test_a_setting_that_is_there_twice_is_refused(setting: dict[str, Any], word: str):
    with pytest.raises(ContradictoryOptions, match=next(iter(setting))) as refused:
        ow.KafkaSink(**WHERE, checkpointing=FIVE, **setting)
    assert f"set {word}=" in refused.value.next_step


def test_something_else_is_refused():
    with pytest.raises(ConfigurationError, match=r"ow\.checkpointing"):
        ow.KafkaSink(**WHERE, checkpointing="10 s")  # type: ignore[arg-type]


def test_all_sinks_take_it(tmp_path: Any):
    ledger = ow.FolderLedger(tmp_path)
    more: dict[str, Any] = {"pipeline_id": "p", "checkpointing": FIVE}
    sinks = [
        ow.FileSink(path=str(tmp_path / "out"), format="json", **more),
        ow.DatabaseSink(url="postgresql://writer@db/shop", table="t", **more),
        ow.DeltaSink(path=str(tmp_path / "delta"), ledger=ledger, **more),
        ow.IcebergSink(table="lake.t", ledger=ledger, **more),
        ow.WriteAheadSink(
            deliver=lambda chunk: None, store=str(tmp_path / "store"), ledger=ledger, **more
        ),
        ow.UpsertSink(
            url="redis://cache:6379/0",
            prefix="p:",
            key="id",
            store=str(tmp_path / "s"),
            ledger=ledger,
            **more,
        ),
    ]
    for sink in sinks:
        assert sink._policy.min_pause_s == 0.5, sink
        assert (sink._policy.batch_attempts, sink._policy.batch_timeout_s) == (2, 300), sink


def test_a_timeout_that_brokers_do_not_allow_names_both_settings():
    error = TransactionTimeoutTooLarge(
        "transaction.timeout.ms=360000 is above the brokers' transaction.max.timeout.ms=300000"
    )
    name_checkpointing(error, None)
    assert "checkpointing" not in str(error)
    name_checkpointing(error, FIVE)
    assert "transaction.max.timeout.ms=300000" in error.message
    assert "timeout=300 s of ow.checkpointing" in error.message
    assert "lower timeout= of ow.checkpointing" in error.next_step


# ── the pause between batches ──


class Running:
    """A run of a query as far as the gate knows it, in virtual time."""

    def __init__(self) -> None:
        self.now, self.slept, self.is_stopped = 100.0, 0.0, False

    def sleep(self, for_s: float) -> None:
        assert for_s > 0
        self.now += for_s
        self.slept += for_s
        if self.slept > 60:
            self.is_stopped = True

    def batch(self, number: int, *, min_pause_s: float = 5, takes: float = 1) -> float:
        """How long a batch has waited before it began."""
        before = self.slept
        gate.wait(self, number, min_pause_s)  # type: ignore[arg-type]
        gate.begin("run", number)
        self.now += takes
        gate.end("run", number)
        return round(self.slept - before, 6)


@pytest.fixture
def query(monkeypatch: pytest.MonkeyPatch) -> Any:
    found = Running()
    monkeypatch.setattr(gate.surroundings, "monotonic", lambda: found.now)
    monkeypatch.setattr(gate.surroundings, "sleep", found.sleep)
    monkeypatch.setattr(gate, "current_run_id", lambda frame: "run")
    monkeypatch.setattr(gate, "is_being_stopped", lambda frame: frame.is_stopped)
    monkeypatch.setattr(gate, "_batches", {})
    yield found
    gate.close(False)
    gate._waiting.clear()


def test_a_pause_is_from_the_end_of_a_batch_to_the_next(query: Running):
    assert query.batch(0) == 0, "nothing comes before the first"
    assert query.batch(1) == 5
    query.now += 3
    assert query.batch(2) == 2
    query.now += 30
    assert query.batch(3) == 0
    assert query.batch(3) == 0, "a second call for the same batch"
    assert query.batch(4, min_pause_s=0) == 0


def test_a_pause_ends_when_the_query_is_stopped(query: Running):
    query.batch(0)
    query.is_stopped = True
    with pytest.raises(gate.JobInterrupted):
        query.batch(1, min_pause_s=3_600)
    assert query.slept < 1


def test_a_closed_gate_holds_the_next_batch_and_not_the_one_that_has_begun(query: Running):
    query.batch(7, min_pause_s=0)
    gate.close()
    assert query.batch(7, min_pause_s=0) == 0
    assert not gate.holds("run")
    with pytest.raises(gate.JobInterrupted):
        query.batch(8, min_pause_s=0)
    assert gate.holds("run")
    assert query.slept > 60, "it has waited for the query to be stopped"


def test_a_closed_gate_lets_a_batch_through_whose_function_had_not_come_to_its_sink(
    query: Running,
):
    """It may have filled a persisted frame; from Spark 4.1 on stages run before the function."""
    query.batch(7, min_pause_s=0)
    gate.close(begun={"run": 8, "another": 9})
    assert query.batch(8) == 0
    assert query.batch(8) == 0, "a second call for the same batch"
    assert not gate.holds("run")
    with pytest.raises(gate.JobInterrupted):
        query.batch(9)
    assert gate.holds("run")


def test_a_closed_gate_holds_the_batch_that_was_in_its_pause(
    query: Running, monkeypatch: pytest.MonkeyPatch
):
    def sleep(for_s: float) -> None:
        gate.close(begun={"run": 8})
        query.sleep(for_s)

    query.batch(7)
    monkeypatch.setattr(gate.surroundings, "sleep", sleep)
    with pytest.raises(gate.JobInterrupted):
        query.batch(8)
    assert gate.holds("run")


def test_the_newest_batch_of_each_query_is_known_where_it_has_one(monkeypatch: pytest.MonkeyPatch):
    def query(run_id: str, batch_id: int | None) -> Any:
        last = None if batch_id is None else SimpleNamespace(currentBatchId=lambda: batch_id)
        return SimpleNamespace(runId=run_id, _jsq=SimpleNamespace(lastExecution=lambda: last))

    queries = [query("new", None), query("a", 7), query("b", 0)]
    monkeypatch.setattr(progress, "running_queries", lambda: queries)
    assert progress.newest_batches() == {"a": 7, "b": 0}


def test_the_first_sigterm_closes_the_gate_behind_the_batches_that_have_begun(
    monkeypatch: pytest.MonkeyPatch,
):
    closed: list[Any] = []

    def close(**how: Any) -> None:
        closed.append(how)
        raise InterruptedError("what follows needs Spark")

    def fail() -> dict[str, int]:
        raise OSError("the JVM is gone")

    # Not that of this process, which may have a thread at it
    monkeypatch.setattr(stopping, "_requests", queue.SimpleQueue())
    monkeypatch.setattr(gate, "close", close)
    for newest in (lambda: {"a": 7}, fail):
        monkeypatch.setattr(progress, "newest_batches", newest)
        stopping.request()
        with pytest.raises(InterruptedError):
            stopping._serve()
    assert closed == [{"begun": {"a": 7}}, {"begun": {}}]
    assert not stopping.is_requested()


@pytest.mark.parametrize("said", ["no", "yes", 1, None])
def test_what_is_no_truth_value_says_nothing_of_a_disk(said: Any):
    with pytest.raises(ConfigurationError, match="local_disk="):
        ow.checkpointing(local_disk=said)
