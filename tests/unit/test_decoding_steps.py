"""Which formats a query has, and what they may say of an error."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from onceward import patience
from onceward.engine import decoding, ending
from onceward.engine.calls import foreach_batch
from onceward.errors import (
    BrokerUnreachable,
    Fenced,
    NewSchemaId,
    OncewardError,
    UnsupportedQuery,
)
from onceward.operate.restart import may_pass
from onceward.spark.batch.job import JobInterrupted
from support.errors import raises


class Step(decoding.DecodingStep):
    def __init__(self, says: OncewardError | None = None) -> None:
        self.tag, self.sets_aside, self.says = decoding.TAG + uuid.uuid4().hex, True, says

    def dead_letters(self, rows: Any) -> Any:
        raise AssertionError("nobody asks")

    def explain(self, error: OncewardError, rows: Any) -> OncewardError | None:
        return self.says


FRAME: Any = None


def test_nobody_explains_fencing_away() -> None:
    word = BrokerUnreachable("try again")
    met: OncewardError
    for met, told in (
        (Fenced("a newer copy"), Fenced),
        (UnsupportedQuery("no"), BrokerUnreachable),
    ):
        assert isinstance(decoding.explain(met, (Step(), Step(word)), FRAME), told)
    met = UnsupportedQuery("no")
    assert decoding.explain(met, (Step(),), FRAME) is met


def test_a_stop_is_heard_while_a_step_looks_for_a_better_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Patient(Step):
        def explain(self, error: OncewardError, rows: Any) -> OncewardError | None:
            patience.pause(60)
            return self.says

    is_stopped = iter([False])
    monkeypatch.setattr(foreach_batch, "is_being_stopped", lambda _: next(is_stopped, True))
    monkeypatch.setattr(ending, "_MOMENT_SECONDS", 0.0)
    steps = (Patient(BrokerUnreachable("after a minute")),)
    end = foreach_batch._error_at_end(NewSchemaId("a new id"), steps, FRAME)
    assert isinstance(end, JobInterrupted)


def test_a_step_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known, unknown, run = Step(), Step(), uuid.uuid4().hex
    decoding.register(known)
    monkeypatch.setattr(decoding, "tags_in", lambda *_: [unknown.tag, known.tag])
    with raises(OncewardError) as refused:
        decoding.find_steps(FRAME, run)
    assert may_pass(refused.value, worked_before=False), "the next start defines it anew"
    decoding.register(unknown)
    assert decoding.find_steps(FRAME, run) == (unknown, known)
    monkeypatch.setattr(decoding, "tags_in", lambda *_: [])
    assert decoding.find_steps(FRAME, run) == (unknown, known), "looked up once a run"


def test_steps_of_long_ago_are_forgotten_and_the_newer_ones_are_not() -> None:
    old = Step()
    decoding.register(old)
    newer = [Step() for _ in range(decoding._REMEMBERED)]
    for step in newer:
        decoding.register(step)
    assert old.tag not in decoding._registered
    assert all(step.tag in decoding._registered for step in newer)
