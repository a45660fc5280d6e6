"""Which executors are missed after the jobs of an attempt, where several of them read a persisted
frame.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.errors import ComputationsMixed
from onceward.spark.batch import shuffles
from onceward.spark.batch.shuffles import Readers, count_rows

Executors = list[set[str]]


def read_twice(monkeypatch: pytest.MonkeyPatch, there: Executors) -> Readers:
    """Two jobs read one persisted frame. ``there``: at the beginning, after each job, and at the
    end.
    """
    known = iter(there)
    monkeypatch.setattr(shuffles, "_executors", lambda context: frozenset(next(known)))
    monkeypatch.setattr(shuffles, "_persisted_behind", lambda frame: Counter({7: 1}))
    monkeypatch.setattr(shuffles, "_drop", lambda context, rdds: None)
    context: Any = None
    readers = Readers(context)
    for _ in range(2):
        readers.add(context)
    return readers


@pytest.mark.parametrize(
    "there",
    [
        [{"a", "b"}, {"a"}, {"a"}, {"a"}],
        [{"a"}, {"a", "b"}, {"a", "b"}, {"a"}],
        [set(), {"a"}, {"b"}, {"b"}],
        [{"a"}, {"a"}, {"a", "b"}, {"a"}],
    ],
    ids=[
        "there from the beginning",
        "came for the first job",
        "none at the beginning",
        "came for the second job",
    ],
)
def test_whoever_may_have_held_a_block_is_missed(
    monkeypatch: pytest.MonkeyPatch, there: Executors
):
    with pytest.raises(ComputationsMixed):
        read_twice(monkeypatch, there).must_have_seen_the_same()


def test_whoever_came_and_stayed_is_not_missed(monkeypatch: pytest.MonkeyPatch):
    read_twice(
        monkeypatch, [{"a"}, {"a", "b"}, {"a", "b"}, {"a", "b", "c"}]
    ).must_have_seen_the_same()


class Operator:
    """Of a physical plan, whose whole text Spark cuts off (``spark.sql.maxPlanStringLength``)."""

    def __init__(self, text: str, *children: Operator) -> None:
        self.simpleString = lambda most_fields: text
        inside = SimpleNamespace(size=lambda: len(children), apply=children.__getitem__)
        self.children = lambda: inside
        self.toString = lambda: "Truncated plan of 2 operators"


def test_state_is_looked_for_operator_by_operator(monkeypatch: pytest.MonkeyPatch):
    def option(value: str) -> Any:
        return SimpleNamespace(isEmpty=lambda: not value, get=lambda: value)

    info = "state info [ checkpoint = c, runId = r, opId = {}, ver = 3, numPartitions = 1] None"
    plan = Operator("Project", Operator(info.format(4), Operator(info.format(0))))
    coordinator = SimpleNamespace(
        getLocation=lambda store: option("" if "left" in store else f"executor_h_{store[1]}")
    )
    state = SimpleNamespace(
        StateStoreId=lambda *store: store, StateStoreProviderId=lambda store, run: store
    )
    execution: Any = SimpleNamespace(
        sparkSession=lambda: SimpleNamespace(
            streams=lambda: SimpleNamespace(stateStoreCoordinator=lambda: coordinator)
        ),
        resolvedCheckpointRoot=lambda: "c",
        runId=lambda: "r",
        lastExecution=lambda: SimpleNamespace(executedPlan=lambda: plan),
    )
    streaming = SimpleNamespace(state=state)
    jvm = SimpleNamespace(org=_package("apache.spark.sql.execution.streaming", streaming))
    monkeypatch.setattr(
        shuffles, "SparkSession", SimpleNamespace(active=lambda: SimpleNamespace(_jvm=jvm))
    )
    monkeypatch.setattr(shuffles, "_STORES", ("default", "left"))
    running: Any = SimpleNamespace(history=SimpleNamespace(execution=execution))
    assert shuffles._state_places(running) == {
        (0, 0, "default"): "executor_h_0",
        (4, 0, "default"): "executor_h_4",
    }


def _package(path: str, inside: Any) -> Any:
    for name in reversed(path.split(".")):
        inside = SimpleNamespace(**{name: inside})
    return inside


@pytest.mark.parametrize("lost", [True, False])
def test_frames_are_counted_of_one_computation(monkeypatch: pytest.MonkeyPatch, lost: bool):
    known = iter(
        [{"a", "b"}, {"a", "b"}, {"b"} if lost else {"a", "b"}, {"b"} if lost else {"a", "b"}]
    )
    monkeypatch.setattr(shuffles, "_executors", lambda context: frozenset(next(known)))
    monkeypatch.setattr(shuffles, "_persisted_behind", lambda frame: Counter({7: 1}))
    monkeypatch.setattr(shuffles, "_drop", lambda context, rdds: None)
    monkeypatch.setattr(shuffles, "_counted", lambda frame: (frame.rows, frame))

    class Frame:
        sparkSession: Any = type("Session", (), {"sparkContext": None})  # noqa: N815 — Spark's name

        def __init__(self, rows: int) -> None:
            self.rows = rows

    frames: Any = [Frame(2), Frame(3)]
    if lost:
        with pytest.raises(ComputationsMixed):
            count_rows(frames)
    else:
        assert count_rows(frames) == [2, 3]


def test_a_frame_alone_is_only_counted():
    class Frame:
        def count(self) -> int:
            return 4

    alone: Any = Frame()
    assert count_rows([]) == []
    assert count_rows([alone]) == [4]
