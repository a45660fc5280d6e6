"""The class to subclass: what it refuses, what goes along to the tasks, and committables of
another version.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import pytest
from pyspark import cloudpickle

import onceward as ow
from onceward import patience
from onceward.delivery.target import WriteAheadTarget
from onceward.engine import two_phase
from onceward.engine.ledger.record import LedgerRecord, Output, RecordState
from onceward.engine.two_phase import KIND, TwoPhaseTarget, drop_all
from onceward.errors import (
    ConfigurationError,
    LedgerUnreadable,
    PublishIncomplete,
    StoreUnreachable,
    TargetUnreachable,
    UnsupportedQuery,
)
from onceward.files.ledger import FolderChain
from onceward.ids import AttemptId, BatchId, PipelineId
from onceward_testing.sink_contract import batch
from support.errors import raises


class Sink(ow.TwoPhaseCommitSink):
    def __init__(self, place: object = "here", **settings: Any) -> None:
        super().__init__(**settings)
        self.place = place
        self.committed: list[Any] = []

    def begin(self, task: ow.custom.Task) -> ow.TaskWriter:
        raise NotImplementedError

    def commit(self, committable: Any) -> ow.CommitResult | None:
        self.committed.append(committable)
        return None

    def abort(self, committable: Any) -> None:
        raise NotImplementedError

    def recover(self) -> list[Any]:
        return []


class Newer(Sink):
    committable_version = 2

    def upgrade(self, committable: Any, version: int) -> Any:
        return {"name": committable, "was": version}


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    return {"pipeline_id": "p", "ledger": ow.FolderLedger(folder), **more}


def decided(version: int) -> LedgerRecord:
    outputs = {KIND: Output(KIND, 1, 3, {"version": version, "committables": ["a", "b"]})}
    return LedgerRecord(
        PipelineId("p"), 0, BatchId("q", 0), (), AttemptId(1, 1), outputs, 0, RecordState.DECIDED
    )


def finished_by(sink: ow.TwoPhaseCommitSink, version: int) -> None:
    target = sink.new_target()
    assert isinstance(target, TwoPhaseTarget)
    assert target.chain.take() is None
    target.chain.begin(None)
    target.chain.append(decided(version))
    assert target.finish(decided(version)).state is RecordState.FINISHED


def test_what_is_of_this_version_is_committed_as_it_is(tmp_path: Path):
    sink = Sink(**settings(tmp_path))
    finished_by(sink, 1)
    assert sink.committed == ["a", "b"]


def test_what_is_of_an_older_version_is_upgraded(tmp_path: Path):
    sink = Newer(**settings(tmp_path))
    finished_by(sink, 1)
    assert sink.committed == [{"name": "a", "was": 1}, {"name": "b", "was": 1}]


@pytest.mark.parametrize(("today", "name"), [(Sink, "a"), (Newer, {"name": "a", "was": 1})])
def test_what_is_published_and_prepared_again_is_committed_again(
    tmp_path: Path, today: type[Sink], name: Any
):
    """By a place that was failed over."""
    finished_by(Sink(**settings(tmp_path)), 1)
    sink = today(**settings(tmp_path))
    aborted: list[Any] = []
    sink.recover = lambda: [name, "never decided"]  # type: ignore[method-assign]
    sink.abort = aborted.append  # type: ignore[method-assign]
    target = sink.new_target()
    assert isinstance(target, TwoPhaseTarget)
    newest = target.open(batch(1))
    assert (sink.committed, aborted) == ([], [])
    target.begin(newest, batch(1))
    assert (sink.committed, aborted) == ([name], ["never decided"])


def put(ledger: ow.FolderLedger, kind: str, data: dict[str, Any], state: RecordState) -> None:
    chain = ledger.chain(PipelineId("p"))
    chain.begin(chain.take())
    chain.append(replace(decided(1), outputs={kind: Output(kind, 1, 3, data)}, state=state))


@pytest.mark.parametrize("is_certain", [True, False])
@pytest.mark.parametrize("state", list(RecordState))
def test_a_disk_that_is_not_mounted_is_told_by_the_newest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: RecordState, is_certain: bool
):
    """Which an open transaction may hold, until the chain is taken."""
    mount, ledger = tmp_path / "mount", ow.FolderLedger(tmp_path / "ledger")
    mount.mkdir()
    part = {
        "folder": "p@1a2b3c4d-1.1", "root": f"file://{mount}", "layout": "batches",
        "to": "batch=p@0000000000", "files": {"part-0.parquet": 10},
    }  # fmt: skip
    data = {"version": 1, "format": "parquet", "root": part["root"], "committables": [part]}
    put(ledger, "files", data, state)
    if not is_certain:
        monkeypatch.setattr(FolderChain, "peek", lambda _: None)
    sink = ow.FileSink(path=f"file://{mount}", pipeline_id="p", ledger=ledger)
    with pytest.raises(TargetUnreachable, match="may not be mounted"):
        sink.new_target().open(batch(1))
    assert list(mount.iterdir()) == []


@pytest.mark.parametrize("is_certain", [True, False])
def test_what_a_target_has_lost_is_told_by_the_newest_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_certain: bool
):
    ledger, asked = ow.FolderLedger(tmp_path / "ledger"), []
    sink = ow.WriteAheadSink(
        deliver=lambda chunk: None, pipeline_id="p", ledger=ledger, store=tmp_path
    )
    target = sink.new_target()
    assert isinstance(target, WriteAheadTarget)
    monkeypatch.setattr(sink, "_check_place", asked.append)
    known = {"version": 1, "committables": [], "store": str(target.folder), "written_to": {"a": 1}}
    put(ledger, "write_ahead", known, RecordState.FINISHED)
    if not is_certain:
        monkeypatch.setattr(FolderChain, "peek", lambda _: None)
    with pytest.raises(StoreUnreachable, match="its disk may not be mounted"):
        target.open(batch(1))
    assert not target.folder.exists()
    target.folder.mkdir(parents=True)
    target.open(batch(1))
    assert asked == [{"a": 1}]


@pytest.mark.parametrize("found", [[b"a"], [{"parts": {1, 2}}], {"a": 7}, "a", b"a", 7, None])
def test_a_list_of_what_is_prepared_that_is_none_is_named(tmp_path: Path, found: Any):
    """Before anything is dropped: letters of a text are no committables."""
    sink = Sink(**settings(tmp_path))
    sink.recover = lambda: found  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match=r"recover\(\) of Sink has answered"):
        sink.new_target().open(batch(0))


class Stopped(Exception):
    pass


def test_a_query_that_is_stopped_commits_no_more_of_many(tmp_path: Path):
    """Each may take long, and what is left is for the next start."""
    sink = Sink(**settings(tmp_path))

    def stop_behind_the_first() -> None:
        if sink.committed:
            raise Stopped

    with patience.asking(stop_behind_the_first), pytest.raises(Stopped):
        finished_by(sink, 1)
    assert sink.committed == ["a"]


def test_time_without_progress_is_counted_within_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A target that is away takes its client's time limit for each committable."""
    now, tried = [0.0], []
    monkeypatch.setattr(two_phase.surroundings, "monotonic", lambda: now[0])

    def commit(committable: Any) -> None:
        tried.append(committable)
        now[0] += 30
        raise TimeoutError("no answer")

    sink = Sink(**settings(tmp_path, commit_timeout_s=5))
    sink.commit = commit  # type: ignore[method-assign]
    with raises(PublishIncomplete, "2 of its committables"):
        finished_by(sink, 1)
    assert tried == ["a"]


def test_what_is_dropped_takes_the_time_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The next attempt drops the rest; a query that is stopped has ten seconds."""
    now, tried, took = [0.0], [], [30.0]
    monkeypatch.setattr(two_phase.surroundings, "monotonic", lambda: now[0])

    def abort(committable: Any) -> None:
        tried.append(committable)
        now[0] += took[0]
        raise TimeoutError("no answer")

    def stop() -> None:
        raise Stopped

    sink = Sink(**settings(tmp_path))
    sink.abort = abort  # type: ignore[method-assign]
    with patience.within(60_000):
        assert drop_all(sink, list("abcdefgh"), PipelineId("p")) == list("defgh")
    assert tried == ["a", "b", "c"]
    took[0] = 1
    with patience.asking(stop), pytest.raises(Stopped):
        drop_all(sink, range(100), PipelineId("p"))
    assert len(tried) == 3 + 11


def test_a_stop_leaves_time_for_a_step_that_waits_itself(tmp_path: Path):
    """As for the session that has prepared a transaction, and ends a moment later."""
    sink, waited = Sink(**settings(tmp_path)), []

    def abort(committable: Any) -> None:
        patience.pause(0.05)
        waited.append(committable)

    def stop() -> None:
        raise Stopped

    sink.abort = abort  # type: ignore[method-assign]
    with patience.asking(stop):
        assert drop_all(sink, ["a", "b"], PipelineId("p")) == []
        with pytest.raises(Stopped):
            patience.ask()
    assert waited == ["a", "b"]


def test_what_is_of_a_newer_version_waits_for_newer_code(tmp_path: Path):
    sink = Sink(**settings(tmp_path))
    with raises(LedgerUnreadable):
        finished_by(sink, 2)
    assert sink.committed == []


def test_an_older_version_without_an_upgrade_is_named(tmp_path: Path):
    class Forgetful(Sink):
        committable_version = 2

    with raises(LedgerUnreadable, "upgrade()"):
        finished_by(Forgetful(**settings(tmp_path)), 1)


def test_an_answer_that_is_none_is_named(tmp_path: Path):
    sink = Sink(**settings(tmp_path))
    sink.commit = lambda committable: True  # type: ignore[assignment, return-value, method-assign]
    with raises(ConfigurationError, "CommitResult"):
        finished_by(sink, 1)


def test_tasks_get_what_the_subclass_has_set_and_no_settings():
    ledger = ow.KafkaLedger(
        "b:9092",
        options={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            'username="u" '
            'password="a-secret";',
        },
    )
    sink = Sink("there", pipeline_id="p", ledger=ledger)
    packed = cloudpickle.dumps(sink)
    assert b"a-secret" not in packed
    assert "a-secret" not in f"{sink!r} {ledger!r}"
    assert cloudpickle.loads(packed).place == "there"


def test_what_cannot_be_sent_to_tasks_is_named(tmp_path: Path):
    sink = Sink(threading.Lock(), **settings(tmp_path))
    with raises(ConfigurationError, "begin()"):
        sink.new_target()


def test_what_its_methods_open_stays_in_the_driver(tmp_path: Path):
    sink, alike = (Sink(None, **settings(tmp_path)) for _ in range(2))
    sink.new_target()
    sink.place = threading.Lock()
    sink.committed.append("of the driver")
    sink.newest_record()
    assert cloudpickle.loads(cloudpickle.dumps(sink)).committed == []
    sink.committed.append(threading.Lock())
    sink.new_target()
    sent = cloudpickle.loads(cloudpickle.dumps(sink))
    assert (sent.place, sent.committed) == (None, [])
    assert sink.place is not None
    sink.committed.clear()
    assert sink._built_with == alike._built_with


def test_what_is_renewed_between_runs_goes_to_the_tasks_of_the_next(tmp_path: Path):
    sink, alike = (Sink("first", **settings(tmp_path)) for _ in range(2))
    for place in ("first", "second"):
        sink.place = place
        sink.new_target()
        assert cloudpickle.loads(cloudpickle.dumps(sink)).place == place
    assert sink._built_with == alike._built_with


def test_two_that_are_built_alike_are_one_and_others_are_not(tmp_path: Path):
    first, alike, other = (
        Sink(place, **settings(tmp_path)) for place in ("here", "here", "there")
    )
    assert first._built_with == alike._built_with
    assert first._built_with != other._built_with
    assert first._built_with != Newer(**settings(tmp_path))._built_with
    assert first._built_with != Sink(**settings(tmp_path, resume="skip_missing"))._built_with


class Plain:
    """Says nothing of when two are the same."""

    def __init__(self, name: str) -> None:
        self.name = name


@pytest.mark.parametrize("make", [numpy.array, Plain], ids=["an array", "a plain object"])
def test_what_does_not_say_when_it_is_the_same_is_compared_all_the_same(tmp_path: Path, make: Any):
    first, alike, other = (Sink(make(place), **settings(tmp_path)) for place in ("ab", "ab", "cd"))
    arrays = [Sink({"of": numpy.arange(end)}, **settings(tmp_path)) for end in (3, 3, 4)]
    for one, same, another in ((first, alike, other), arrays):
        assert one._built_with == same._built_with
        assert one._built_with != another._built_with
    assert Sink(threading.Lock(), **settings(tmp_path))._built_with != first._built_with


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"ledger": "/a/folder"}, "ledger="),
        ({"commit_timeout_s": -1}, "commit_timeout_s"),
        ({"pipeline_id": "a b"}, "pipeline_id"),
        ({"resume": "never"}, "resume"),
        ({"batch_attempts": 0}, "batch_attempts"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, wrong: dict[str, Any], named: str):
    with pytest.raises(ConfigurationError, match=named):
        Sink(**settings(tmp_path, **wrong))


@pytest.mark.parametrize("word", ["topic", "table"])
def test_it_has_neither_topics_nor_tables(tmp_path: Path, word: str):
    sink = Sink(**settings(tmp_path))
    with (
        pytest.raises(UnsupportedQuery, match=f"{word}='somewhere'"),
        sink.batch(None, 0) as batch,
    ):  # type: ignore[arg-type]
        batch.write(None, **{word: "somewhere"})  # type: ignore[arg-type]
