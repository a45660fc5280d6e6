"""Whoever does what the error of a setting says is done: each next step is followed by its words,
and then it works.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward.engine.policy import SinkPolicy, must_be_decided, names
from onceward.errors import ConfigurationError
from onceward.ids import PipelineId
from onceward.operate import supervise as supervising
from onceward.operate.restart import Failure
from support.next_steps import AnsweringSink


def policy(**settings: Any) -> SinkPolicy:
    return SinkPolicy(PipelineId("p"), **settings)


def advice(wrong: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        wrong()
    return refused.value.next_step


@pytest.mark.parametrize("setting", ["delivery", "resume"])
def test_each_of_the_words_that_are_offered_is_taken(setting: str):
    offered = advice(lambda: policy(**{setting: "once"})).removeprefix("use one of ").split(", ")
    assert len(offered) > 1
    for word in offered:
        policy(**{setting: word})


def test_a_whole_number_as_it_is_asked_for():
    assert (
        advice(lambda: policy(batch_attempts=0))
        == "set batch_attempts to a whole number of at least 1"
    )
    assert policy(batch_attempts=1).batch_attempts == 1


@pytest.mark.parametrize("value", [0.5, None])
def test_a_limit_of_time_as_it_is_asked_for(value: float | None):
    assert advice(lambda: policy(batch_timeout_s=0)) == "pass seconds, or None for no limit"
    policy(batch_timeout_s=value)


@pytest.mark.parametrize(
    "settings", [{"delivery": "exactly_once", "resume": "skip_missing"}, {"delivery": "none"}]
)
def test_two_settings_that_contradict_each_other(settings: dict[str, Any]):
    """'use delivery="exactly_once", or leave resume out'"""
    offered = advice(lambda: policy(delivery="none", resume="skip_missing"))
    assert 'delivery="exactly_once"' in offered
    assert "leave resume out" in offered
    policy(**settings)


def test_each_ledger_that_is_offered_is_one(tmp_path: Path):
    offered = re.findall(r"ow\.(\w+)\(", advice(lambda: must_be_decided("/ledger", 1)))
    given: dict[str, str] = {
        "FolderLedger": str(tmp_path),
        "DatabaseLedger": "postgresql://app@db/app",
        "KafkaLedger": "broker:9092",
    }
    assert set(offered) == set(given)
    for name in offered:
        must_be_decided(getattr(ow, name)(given[name]), 0)
    assert advice(lambda: must_be_decided(ow.FolderLedger(tmp_path), -1)) == "pass 0 or more"


def test_a_column_or_a_list_of_different_ones():
    assert (
        advice(lambda: names("keys", ["a", "a"]))
        == "pass a column's name, or a list of different ones"
    )
    assert names("keys", "a") == ("a",)
    assert names("keys", ["a", "b"]) == ("a", "b")


WRONG: dict[str, list[dict[str, Any]]] = {
    "FixedDelay": [{"attempts": 0}, {"delay_s": -1}],
    "ExponentialDelay": [
        {"initial_s": 0}, {"max_s": 0.1}, {"multiplier": 0.5}, {"jitter": 2},
        {"reset_after_s": -1}, {"attempts": 0},
    ],
    "FailureRate": [{"max_failures": 0}, {"interval_s": 0}, {"delay_s": -1}],
}  # fmt: skip


def as_told(step: str) -> Iterator[tuple[str, Any]]:
    """``set attempts to 1 or more, or None`` and the like: the setting, and each end of what is
    allowed.
    """
    found = re.fullmatch(
        r"set (\w+) to (a number from (\d+) to (\d+)|more than 0 seconds|initial_s or more|(\d+) or "
        r"more.*)",
        step,
    )
    assert found, step
    setting, allowed, low, high, least = found.groups()
    if low is not None:
        yield from ((setting, float(low)), (setting, float(high)))
    elif least is not None:
        yield setting, int(least)
        if allowed.endswith("or None"):
            yield setting, None
    else:
        yield (
            setting,
            0.1 if allowed.startswith("more") else ow.restart.ExponentialDelay().initial_s,
        )


@pytest.mark.parametrize(
    ("strategy", "wrong"),
    [(name, wrong) for name, every in WRONG.items() for wrong in every],
    ids=str,
)
def test_a_setting_of_a_strategy_as_it_is_asked_for(strategy: str, wrong: dict[str, Any]):
    kind = getattr(ow.restart, strategy)
    for setting, value in as_told(advice(lambda: kind(**wrong))):
        assert setting in wrong
        assert kind(**{setting: value}).delay([Failure(0, 1)]) is not None


def test_a_strategy_as_it_is_asked_for(monkeypatch: pytest.MonkeyPatch):
    """``pass … ow.restart.ExponentialDelay()``; and a start that returns the query, as the next error says."""

    class Ended:
        id = name = "ended"
        isActive = False  # noqa: N815 — Spark's name

        def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
            return True

    monkeypatch.setattr(supervising, "newest_committed", lambda query: None)
    for wrong in (ow.restart.ExponentialDelay, "fixed-delay"):
        step = advice(lambda wrong=wrong: ow.supervise(lambda: None, wrong))  # type: ignore[arg-type, return-value]
        assert step.endswith("ow.restart.ExponentialDelay()")
    strategy = ow.restart.ExponentialDelay()
    assert "DataStreamWriter.start()" in advice(lambda: ow.supervise(lambda: None, strategy))  # type: ignore[arg-type, return-value]
    query: Any = Ended()

    def start() -> StreamingQuery:
        return query  # type: ignore[no-any-return]

    assert ow.supervise(start, strategy) is query


@pytest.mark.parametrize("now", [None, *ow.CommitResult], ids=str)
def test_commit_answers_as_it_is_asked_to(tmp_path: Path, now: Any):
    """``let it return an ow.CommitResult, or None for DONE``: whatever it says then is
    understood.
    """
    sink = AnsweringSink(pipeline_id="p", ledger=ow.FolderLedger(tmp_path))
    target: Any = sink.new_target()
    sink.answer = True
    assert (
        advice(lambda: target._commit("a", None))
        == "let it return an ow.CommitResult, or None for DONE"
    )
    sink.answer = now
    assert target._commit("a", None) is (ow.CommitResult.DONE if now is None else now)
