"""Which snapshots of a query's state are removed before a batch: those that may be of an attempt
that failed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from onceward.spark.batch import checkpoint_files
from onceward.spark.batch.checkpoint_files import SnapshotsOfFailures, StateFiles


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


def test_they_go_behind_a_batch_that_was_computed_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In this run, or as the first one of the run: its state is there before it begins."""
    folder = Folder(tmp_path, "0/0/1.delta", "0/0/2.delta")
    state, dropped = StateFiles(folder), list[int]()
    monkeypatch.setattr(state, "drop_snapshots", dropped.append, raising=True)
    monkeypatch.setattr(checkpoint_files, "_in_state", lambda _, ask: ask(state))

    conf = SimpleNamespace(get=lambda _: "100")
    monkeypatch.setattr(
        checkpoint_files,
        "SparkSession",
        SimpleNamespace(active=lambda: SimpleNamespace(conf=conf)),
    )

    def go(first: int, last: int, snapshots: SnapshotsOfFailures, again: int = -1) -> list[int]:
        dropped.clear()
        for number in range(first, last + 1):
            snapshots.clear(f"run from {first}", number)
            if number == again:
                snapshots.note(number)
            snapshots.settle(number)
        return list(dropped)

    assert go(2, 9, SnapshotsOfFailures("c")) == []
    assert go(1, 9, SnapshotsOfFailures("c")) == [2, 2, 2]
    assert go(2, 9, SnapshotsOfFailures("c"), again=5) == [6, 6, 6]
    # Executors write for a run that is over, too
    of_both = SnapshotsOfFailures("c")
    assert go(2, 5, of_both, again=5) == [6]
    assert go(6, 9, of_both) == [6, 6]
    conf.get = lambda _: "2"
    assert go(1, 9, SnapshotsOfFailures("c")) == []
