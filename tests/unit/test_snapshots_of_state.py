"""Which snapshots of a query's state are removed before a batch: those that may be of an attempt
that failed.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.engine.calls import gate
from onceward.errors import CheckpointUnreachable, StateOfFailedAttempt
from onceward.ids import BatchId
from onceward.spark.batch import checkpoint_files
from onceward.spark.batch.checkpoint_files import SnapshotsOfFailures, StateFiles
from onceward.spark.batch.query import RunningBatch


class Folder:
    """A checkpoint's folder ``state``, on a disk."""

    def __init__(self, path: Path, *files: str) -> None:
        self._path = path
        for name in files:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("")

    def names(self, folder: str) -> set[str]:
        return {each.name for each in (self._path / folder).iterdir()}

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def remove(self, name: str) -> None:
        (self._path / name).unlink()

    def all(self) -> list[str]:
        found = (each for each in self._path.rglob("*") if each.is_file())
        return sorted(str(each.relative_to(self._path)) for each in found)


@pytest.mark.parametrize("store", ["", "/right-keyToNumValues"])
def test_a_snapshot_goes_where_the_changes_say_the_same(tmp_path: Path, store: str) -> None:
    changes = [f"0/{part}{store}/{number}.delta" for part in (0, 1, 2) for number in (1, 2, 3)]
    beside = ["0/_metadata/metadata", "0/0/_metadata/schema", f"0/0{store}/.3.snapshot.crc"]
    older = [f"0/0{store}/2.snapshot", f"0/1{store}/1.snapshot"]
    folder = Folder(
        tmp_path, *changes, *beside, *older, f"0/0{store}/3.snapshot", f"0/1{store}/3.snapshot"
    )
    StateFiles(folder).drop_snapshots(3)
    assert folder.all() == sorted([*changes, *beside, *older])


@pytest.mark.parametrize(
    "files",
    [
        ["7.snapshot", "7.delta"],  # of a store that keeps one version
        ["5.delta", "6.delta", "7.delta", "7.snapshot"],  # older ones are being removed
        ["6.snapshot", "7.snapshot"],
        ["7.zip", "7.changelog", "6.changelog", "5.zip"],  # RocksDB's has more than the changes
    ],
)
def test_a_snapshot_that_may_be_all_there_is_stays(tmp_path: Path, files: list[str]) -> None:
    folder = Folder(tmp_path, *(f"0/0/{name}" for name in files))
    StateFiles(folder).drop_snapshots(7)
    assert folder.all() == sorted(f"0/0/{name}" for name in files)


class Notes(dict[str, str]):
    """The files beside a checkpoint, which outlive runs and processes."""

    write, names = dict.__setitem__, dict.keys

    def remove(self, name: str) -> None:
        self.pop(name, None)


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """The versions whose snapshots were looked for, of a store that has two versions."""
    found: list[int] = []
    state, notes = StateFiles(Folder(tmp_path, "0/0/1.delta", "0/0/2.delta")), Notes()
    conf = SimpleNamespace(get=lambda _: "100")
    monkeypatch.setattr(state, "drop_snapshots", found.append)
    monkeypatch.setattr(checkpoint_files, "_in_state", lambda _, ask: ask(state))
    monkeypatch.setattr(SnapshotsOfFailures, "_files", notes)
    monkeypatch.setattr(
        checkpoint_files,
        "SparkSession",
        SimpleNamespace(active=lambda: SimpleNamespace(conf=conf)),
    )
    return found


def run(first: int, last: int, again: Collection[int] = (), ends_before: int = -1) -> None:
    """Write these batches in one run, each of ``again`` at its second attempt."""
    snapshots = SnapshotsOfFailures("/checkpoint")
    for number in range(first, last + 1):
        snapshots.clear(number)
        if number in again:
            snapshots.note(number)
        if number != ends_before:
            snapshots.settle(number)


@pytest.mark.parametrize(
    ("batches", "versions"),
    [
        # An older copy may still be computing the first one
        ({"first": 2, "last": 9}, [3, 3, 3]),
        # An earlier run has computed it
        ({"first": 1, "last": 9}, [2, 2, 2]),
        ({"first": 2, "last": 9, "again": [5]}, [3, 3, 3, 6, 6, 6]),
        # Each of two in a row has its own
        ({"first": 2, "last": 9, "again": [5, 6]}, [3, 3, 3, 6, 6, 6, 7, 7, 7]),
        # Of short runs those that Spark writes behind the batch stay: its changes grow no longer
        ({"first": 2, "last": 2}, [3]),
        ({"first": 2, "last": 3}, [3, 3, 3]),
    ],
)
def test_they_go_behind_a_batch_that_was_computed_again(
    dropped: list[int], batches: Any, versions: list[int]
) -> None:
    """Once it is written, before the next one, and behind that."""
    run(**batches)
    assert sorted(dropped) == versions
    dropped.clear()
    following = batches["last"] + 1
    run(following, 20)
    assert dropped == [following + 1] * 3


@pytest.mark.parametrize(
    ("first", "ends_before", "before", "then"),
    [
        (2, -1, [3, 3, 3, 6], [6, 6, 7, 7, 7]),
        (2, 5, [3, 3, 3], [6, 6, 7, 7, 7]),
        # It was the first of its run, and of one before
        (1, 5, [2, 2, 2], [6, 6, 7, 7, 7]),
    ],
)
def test_another_run_goes_on_with_it(
    dropped: list[int], first: int, ends_before: int, before: list[int], then: list[int]
) -> None:
    """Executors write for a run that is over, and a process may end behind the decision."""
    run(first, 5, again=[5], ends_before=ends_before)
    assert sorted(dropped) == before
    dropped.clear()
    run(6, 9)
    assert sorted(dropped) == then


def test_a_look_that_fails_is_repeated(
    dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a function that calls the sink again."""
    snapshots, there = SnapshotsOfFailures("/checkpoint"), checkpoint_files._in_state

    def away(*_: object) -> None:
        raise CheckpointUnreachable("away", next_step="wait")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "_in_state", away)
        with pytest.raises(CheckpointUnreachable):
            snapshots.clear(1)
    assert checkpoint_files._in_state is there
    snapshots.clear(1)
    assert snapshots._files.names() == {"1.again"}


def test_none_goes_where_spark_keeps_few_versions(
    dropped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = SimpleNamespace(get=lambda _: "2")
    session = SimpleNamespace(active=lambda: SimpleNamespace(conf=conf))
    monkeypatch.setattr(checkpoint_files, "SparkSession", session)
    run(1, 9)
    assert dropped == []


class Calls:
    """Notes what it is asked; an executor that holds another attempt's state is left."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(_: Any) -> frozenset[str]:
            self.names.append(name)
            return frozenset(["executor 1"])

        return call


def test_they_go_also_where_executors_stop_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is stopped: the next start may be another process."""
    calls = Calls()
    monkeypatch.setattr(gate, "StateCopies", lambda: calls)
    monkeypatch.setattr(gate, "SnapshotsOfFailures", lambda checkpoint: calls)
    running = RunningBatch(
        BatchId("q", 3), "run of this test", "", (), (), stateful=True, input_records=None,
        history=SimpleNamespace(checkpoint="/checkpoint"),  # type: ignore[arg-type]
    )  # fmt: skip
    with pytest.raises(StateOfFailedAttempt):
        gate.must_know_one_state(running)
    gate.compute_again(running, None)
    gate.settle_state(running)
    assert calls.names == ["clear", "left", "note", "note", "settle", "settle"]
    stateless = replace(running, stateful=False)
    for act in (gate.must_know_one_state, gate.settle_state):
        act(stateless)
    assert len(calls.names) == 6


STATE = "file:/checkpoint/state"


class Planned:
    """A query that has ended, with the logs of its checkpoint, and what is done to them."""

    def __init__(self, newest: int | None, committed: int | None) -> None:
        self.done: list[str] = []

        def log(number: int | None) -> Any:
            found = SimpleNamespace(isEmpty=lambda: number is None, get=lambda: number)
            return SimpleNamespace(
                getLatestBatchId=lambda: found,
                purgeAfter=lambda last: self.done.append(f"planned after {last}"),
            )

        execution = SimpleNamespace(
            offsetLog=lambda: log(newest),
            commitLog=lambda: log(committed),
            resolvedCheckpointRoot=lambda: "file:/checkpoint",
            sparkSession=lambda: "its session",
        )
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)


@pytest.mark.parametrize(
    ("newest", "committed", "done"),
    [
        (0, None, [f"{STATE}/0/_metadata", f"{STATE}/1/_metadata", STATE, "planned after -1"]),
        (3, 2, ["planned after 2"]),
        (0, 0, []),
        (1, 0, ["planned after 0"]),
        (4, 3, []),
        (None, None, []),
    ],
)
def test_a_plan_of_batch_0_goes_with_the_state_that_lets_no_query_begin(
    monkeypatch: pytest.MonkeyPatch, newest: int | None, committed: int | None, done: list[str]
) -> None:
    """From Spark 4.1 on, ``STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY``; it is removed first."""
    query: Any = Planned(newest, committed)

    def files(session: Any, folder: str) -> Any:
        assert session == "its session"
        return SimpleNamespace(
            names=lambda: {"0", "1"}, remove_all=lambda: query.done.append(folder)
        )

    monkeypatch.setattr(checkpoint_files, "SparkSession", lambda context, session: session)
    monkeypatch.setattr(checkpoint_files, "CheckpointFiles", files)
    asked = 3 if newest in (3, 4) else 1 if newest == 1 else 0
    checkpoint_files.forget_planned(query, asked)
    assert query.done == done
    assert ("folder state" in checkpoint_files.remove_planned(asked)) == (asked == 0)


@pytest.mark.parametrize("remove", ["remove_all", "remove"])
@pytest.mark.parametrize(("removed", "is_left"), [(True, False), (False, True), (False, False)])
def test_what_could_not_be_removed_is_not_taken_for_gone(
    monkeypatch: pytest.MonkeyPatch, removed: bool, is_left: bool, remove: str
) -> None:
    """Hadoop's local disk says no more than False; so it is of what never was. A snapshot that
    stays is the state that Spark goes on from."""
    disk = SimpleNamespace(delete=lambda path, recursive: removed, exists=lambda path: is_left)
    monkeypatch.setattr(
        checkpoint_files.CheckpointFiles, "_reached", lambda self: nullcontext(disk)
    )
    monkeypatch.setattr(checkpoint_files.CheckpointFiles, "_path", lambda self, text: text)
    session = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=None))
    state = checkpoint_files.CheckpointFiles(session, "file:/checkpoint/state")
    with pytest.raises(CheckpointUnreachable) if is_left else nullcontext():
        getattr(state, remove)(*["7.snapshot"] * (remove == "remove"))
