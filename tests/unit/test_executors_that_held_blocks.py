"""Which executors are missed after the jobs of an attempt, where several of them read a persisted
frame.
"""

from __future__ import annotations

from collections import Counter
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
