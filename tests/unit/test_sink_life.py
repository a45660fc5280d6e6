"""A sink object over its runs: closed in between, failed, started again, and called by a run that was replaced."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.engine import foreach_batch
from onceward.engine.foreach_batch import ForeachBatchSink
from onceward.engine.micro_batch import BatchPolicy
from onceward.errors import Fenced, SendFailed, UnsupportedQuery
from onceward.ids import PipelineId


class Running:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.batch = type("Batch", (), {"query_id": run_id.split("/")[-1]})()


class Target:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


class Batches:
    """Stands where the nine steps are: this is about who is called, not about what they do."""

    error: Exception | None = None

    def __init__(self, target: Target, policy: BatchPolicy) -> None:
        self.target = target

    def process(self, frame: Any, running: Running) -> None:
        assert not self.target.closed
        if self.error is not None:
            raise self.error


class Sink(ForeachBatchSink):
    def __init__(self) -> None:
        super().__init__(BatchPolicy(PipelineId("p"), "checkpoint", 1))
        self.targets: list[Target] = []

    def _new_target(self) -> Any:
        self.targets.append(Target())
        return self.targets[-1]


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    monkeypatch.setattr(foreach_batch, "MicroBatches", Batches)
    monkeypatch.setattr(foreach_batch, "running_batch", lambda frame, batch_id: Running(frame))
    monkeypatch.setattr(foreach_batch, "current_run_id", lambda frame: frame)
    monkeypatch.setattr(foreach_batch, "is_running", lambda frame, query_id: query_id != "ended")
    return Sink()


def test_one_target_serves_all_batches_of_a_run(sink: Any) -> None:
    sink("run-1/q", 0)
    sink("run-1/q", 1)
    assert len(sink.targets) == 1


def test_a_sink_that_was_closed_in_between_opens_again(sink: Any) -> None:
    sink("run-1/q", 0)
    sink.close()
    sink("run-1/q", 1)
    sink("run-1/q", 2)
    assert [target.closed for target in sink.targets] == [True, False]


def test_a_new_run_takes_the_sink_over_and_the_old_one_is_fenced(sink: Any) -> None:
    sink("run-1/q", 0)
    sink("run-2/q", 1)
    assert [target.closed for target in sink.targets] == [True, False]
    with pytest.raises(Fenced, match="run-1"):
        sink("run-1/q", 1)
    sink("run-2/q", 2)


def test_another_query_is_refused_while_the_first_one_runs_and_does_not_disturb_it(sink: Any) -> None:
    sink("run-1/q", 0)
    with pytest.raises(UnsupportedQuery, match="given the sink of query q"):
        sink("run-2/other", 0)
    sink("run-1/q", 1)
    assert [target.closed for target in sink.targets] == [False]


def test_another_query_may_have_the_sink_of_one_that_has_ended(sink: Any) -> None:
    sink("run-1/ended", 0)
    sink("run-2/other", 0)
    assert [target.closed for target in sink.targets] == [True, False]


def test_a_failure_gives_everything_back_and_is_remembered(sink: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Batches, "error", SendFailed("lost"))
    with pytest.raises(SendFailed):
        sink("run-9", 0)
    assert sink.targets[0].closed
    query = type("Query", (), {"runId": "run-9"})()
    assert isinstance(foreach_batch.error_of(query), SendFailed)
    assert foreach_batch.error_of(type("Query", (), {"runId": "another"})()) is None
