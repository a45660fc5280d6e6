"""Whoever does what an error of the engine says is done; and the words that next steps of the
engine, of Kafka and of Spark offer for a setting are taken by it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import onceward as ow
from onceward.engine import policy
from onceward.engine.calls import runs
from onceward.engine.calls.batch import Batch, must_be_a_frame
from onceward.engine.decoding import find_steps
from onceward.engine.ending import TimeLimit
from onceward.engine.ledger.admission import RESUME_CHOICES
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.policy import SinkPolicy
from onceward.engine.task_writer import OpenTaskWriter, _NamedWriter, check_each_task_once
from onceward.engine.two_phase import KIND
from onceward.errors import OncewardError, Recovery
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward.kafka.source import source
from support.next_steps import AnsweringSink, advice, follow

PACKAGE = Path(ow.__file__).parent
MODULES = [
    path
    for part in ("engine", "kafka", "spark")
    for path in sorted((PACKAGE / part).rglob("*.py"))
]


def strings(node: ast.expr) -> list[str]:
    """Return the texts in an expression, in order of the tree."""
    constants = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
    return [each for each in constants if isinstance(each, str)]


def texts_of(module: Path) -> Iterator[str]:
    """Yield what stands behind each ``next_step=``, as far as it is written there, and the texts
    of constants, of which some next steps are made.
    """
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "next_step":
            yield "".join(strings(node.value))
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            yield from strings(node.value)


@cache
def texts() -> list[str]:
    """Return all of them; not at import, which each worker does."""
    return [text for path in MODULES for text in texts_of(path)]


def said(pattern: str) -> list[Any]:
    """Return what next steps have where ``pattern`` has groups; not nothing."""
    found = sorted({words for text in texts() for words in re.findall(pattern, text)})
    assert found, pattern
    return found


CHOICES: dict[str, tuple[str, ...]] = {
    "resume": RESUME_CHOICES,
    "skipped_batches": ("refuse", "allow"),
    "delivery": ("exactly_once", "at_least_once", "none"),
    "on_error": ("stop", "dead_letter"),
    "layout": ("batches", "manifest", "flat"),
    "starting": source._NAMES,
    "otherwise": source._OTHERWISE,
}


def test_the_words_of_settings_are_taken() -> None:
    for setting, word in said(rf'\b({"|".join(CHOICES)})="(\w+)"'):
        assert word in CHOICES[setting], setting
        if setting == "resume":
            SinkPolicy(PipelineId("p"), resume=word)
        elif setting == "skipped_batches":
            SinkPolicy(PipelineId("p"), skipped_batches=word)


def test_options_of_the_client_are_there() -> None:
    for name in said(r"\b((?:transaction|delivery|request)\.timeout\.ms|batch\.size)\b"):
        ow.KafkaSink(bootstrap_servers="b:1", pipeline_id="p", topic="t", options={name: 30_000})


# What functions and sinks hand over.


class Told:
    """As much of a sink as a block asks."""

    def __init__(self, place_word: str) -> None:
        self.place_word = place_word

    def _checked_writes(self, frame: Any, where: str | None) -> list[Any]:
        return []

    def _write(self, *written: Any) -> None:
        pass

    def _fail(self, *failed: Any) -> None:
        pass


def handed_over(word: str, **where: str) -> None:
    sink, frame = Told(word), SimpleNamespace()
    with Batch(sink, frame, 0) as batch:  # type: ignore[arg-type]
        batch.write(frame, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("word", "wrong"), [("table", "topic"), ("topic", "table"), ("", "topic"), ("", "table")]
)
def test_where_a_frame_goes(word: str, wrong: str) -> None:
    def done(out: str, instead: str | None) -> None:
        assert out == wrong
        handed_over(word)
        if word:
            handed_over(word, **{str(instead): "t"})

    follow(
        lambda: handed_over(word, **{wrong: "t"}),
        r"^leave (\w+)= out(?:, or use (\w+)=|; what goes where is for the rows to say)$",
        done,
    )


def test_a_block_that_is_used_as_it_is_told() -> None:
    outside = Batch(Told("topic"), SimpleNamespace(), 0)  # type: ignore[arg-type]

    def twice() -> None:
        with outside, outside:
            pass

    for wrong in (partial(outside.write, SimpleNamespace()), twice):  # type: ignore[arg-type]
        follow(
            wrong,
            r"`with sink\.batch\(frame, batch_id\) as batch:` once and call batch\.write",
            partial(handed_over, "topic"),
        )
    assert "hand over a DataFrame" in advice(partial(must_be_a_frame, [1]))


def test_two_sinks_in_one_query(monkeypatch: pytest.MonkeyPatch) -> None:
    one: Any = SimpleNamespace(settings="one")
    monkeypatch.setattr(runs, "_open", {("run", "p"): one})

    def done() -> None:
        assert runs.find(("run", "p"), "one") is one  # type: ignore[arg-type]
        assert runs.find(("run", "other"), "two") is None  # type: ignore[arg-type]

    follow(
        lambda: runs.find(("run", "p"), "two"),  # type: ignore[arg-type]
        r"use one sink, .*; or give each sink a pipeline_id of its own$",
        done,
    )


def test_a_step_that_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.engine.decoding.tags_in", lambda frame, tag: ["gone"])
    monkeypatch.setattr("onceward.engine.decoding._registered", {"known": object()})
    frame: Any = None

    def anew() -> None:
        monkeypatch.setattr("onceward.engine.decoding._registered", {"gone": object()})
        assert find_steps(frame, "another run")

    follow(lambda: find_steps(frame, "a run"), r"^start the query again, calling decode", anew)


# Checkpoint settings, limits and tasks.


@pytest.mark.parametrize("setting", ["interval", "min_pause", "timeout"])
def test_a_duration_as_it_is_asked_for(setting: str) -> None:
    def done(name: str, *texts: str) -> None:
        for value in (10, *texts):
            policy.checkpointing(**{name: value})  # type: ignore[arg-type]

    wrong: dict[str, Any] = {setting: "soon"}
    follow(
        lambda: policy.checkpointing(**wrong),
        r'set (\w+) to seconds, or to a text such as "(.*?)", "(.*?)" or "(.*?)"$',
        done,
    )


@pytest.mark.parametrize("setting", ["attempts", "retain"])
def test_a_count_as_it_is_asked_for(setting: str) -> None:
    wrong: dict[str, Any] = {setting: 0}
    follow(
        lambda: policy.checkpointing(**wrong),
        r"set (\w+) to a whole number of at least (\d)",
        lambda name, least: policy.checkpointing(**{name: int(least)}),
    )


def test_a_timeout_and_concurrency_as_they_are_asked_for() -> None:
    follow(
        lambda: policy.checkpointing(timeout=0),
        r"set timeout to more than a batch takes",
        partial(policy.checkpointing, timeout="1 ms"),
    )
    follow(
        lambda: policy.checkpointing(max_concurrent=2),
        r"leave max_concurrent out",
        policy.checkpointing,
    )


def raising(error: OncewardError | None) -> None:
    assert error is not None
    raise error


def test_the_time_of_a_batch() -> None:
    def limit(**settings: Any) -> TimeLimit:
        made = TimeLimit(SinkPolicy(PipelineId("p"), **settings))
        made._began -= 60
        return made

    follow(
        lambda: raising(limit(batch_timeout_s=1).passed()),
        r"raise (\w+), or make batches smaller",
        lambda name: limit(**{name: 100}).passed() is None or pytest.fail(name),
    )


VALUES: dict[str, Any] = {"texts": "a", "whole numbers": 1, "booleans": True, "None": None}


def test_what_a_task_may_return() -> None:
    def returned(value: Any) -> None:
        opened: Any = OpenTaskWriter(
            SimpleNamespace(),
            PipelineId("p"),
            BatchId("q", 0),
            AttemptId(1, 1),
            0,
        )
        writer: Any = SimpleNamespace(pre_commit=lambda: value)
        assert _NamedWriter(writer, opened).pre_commit() == value

    def done(kinds: str) -> None:
        for kind in kinds.split(", "):
            for value in (VALUES[kind], [VALUES[kind]], {"a": [VALUES[kind]]}):
                returned(value)

    for wrong in (object(), float("nan"), {1, 2}):
        follow(partial(returned, wrong), r"let it return (.*), or lists and dicts of them$", done)


class Later(AnsweringSink):
    committable_version = 2


def decided(kind: str = KIND, version: int = 1) -> LedgerRecord:
    outputs = {kind: Output(kind, 1, 1, {"version": version, "committables": ["a"]})}
    return LedgerRecord(
        PipelineId("p"), 0, BatchId("q", 0), (), AttemptId(1, 1), outputs, 0, RecordState.DECIDED
    )


def target(folder: Path, kind: type[AnsweringSink] = AnsweringSink, **settings: Any) -> Any:
    ledger = ow.FolderLedger(folder)
    return kind(pipeline_id="p", ledger=ledger, commit_timeout_s=0, **settings).new_target()


def test_what_recover_returns(tmp_path: Path) -> None:
    made = target(tmp_path)
    made.committer.found = None

    def a_list() -> None:
        made.committer.found = ["a"]
        assert made._recovered() == ["a"]

    follow(
        made._recovered,
        r"let committables be of .*: recover\(\) returns a list of all .*$",
        a_list,
    )


def finished(made: Any, record: LedgerRecord, answer: Any, *, inherited: bool = False) -> None:
    if made.chain.take() is None:
        made.chain.begin(None)
        made.chain.append(record)
    made.committer.answer = answer
    made._inherited = record.sequence if inherited else None
    assert made.finish(record).state is RecordState.FINISHED


def test_what_is_decided_and_not_published(tmp_path: Path) -> None:
    later, lost = ow.CommitResult.RETRY_LATER, ow.CommitResult.LOST
    follow(
        partial(finished, target(tmp_path / "a"), decided(), later),
        r"start the query again: it goes on with them before anything else$",
        lambda: finished(target(tmp_path / "b"), decided(), None),
    )

    def without(resume: str) -> None:
        finished(target(tmp_path / "d", resume=resume), decided(), lost, inherited=True)

    follow(
        partial(finished, target(tmp_path / "c"), decided(), lost),
        r'restore it if that is possible; .* start once with resume="(\w+)"$',
        without,
    )
    follow(
        partial(target(tmp_path)._committables, decided(version=2)),
        r"with the code of the sink that wrote them",
        partial(target(tmp_path, Later)._committables, decided(version=2)),
    )
    follow(
        partial(target(tmp_path)._committables, decided(kind="another")),
        r"start the query once more with the sink that wrote it",
        partial(target(tmp_path)._committables, decided()),
    )


def test_nothing_is_to_be_done_and_the_engine_does_it() -> None:
    wrong = partial(check_each_task_once, [0, 0], 2)
    follow(wrong, r"^nothing; the batch is aborted and runs again", lambda: None)
    with pytest.raises(OncewardError) as refused:
        wrong()
    assert refused.value.recovery is Recovery.RUN_AGAIN
