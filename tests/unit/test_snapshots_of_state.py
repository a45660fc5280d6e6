"""Which snapshots of a query's state are removed before a batch: those that may be of an attempt
that failed.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceward.ids import BatchId
from onceward.spark.batch import shuffles
from onceward.spark.batch.checkpoint_files import drop_snapshots_in
from onceward.spark.batch.shuffles import StateCopies


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
@pytest.mark.parametrize(("full", "changes"), [("snapshot", "delta"), ("zip", "changelog")])
def test_a_snapshot_goes_where_the_changes_say_the_same(
    tmp_path: Path, store: str, full: str, changes: str
) -> None:
    deltas = [f"0/{part}{store}/{number}.{changes}" for part in (0, 1) for number in (1, 2, 3)]
    beside = [
        "0/_metadata/metadata",
        "0/0/_metadata/schema",
        *([f"0/1{store}/SSTs/3"] * (not store)),
    ]
    snapshots = [f"0/{part}{store}/{number}.{full}" for part, number in ((0, 3), (1, 2), (1, 1))]
    folder = Folder(tmp_path, *deltas, *beside, *snapshots)
    drop_snapshots_in(folder, (3, 2))
    assert folder.all() == sorted([*deltas, *beside, snapshots[-1]])


def test_a_snapshot_that_is_all_there_is_stays(tmp_path: Path) -> None:
    """Of a store that keeps one version, or without changes of its own."""
    files = ["0/0/7.snapshot", "0/0/7.delta", "1/0/7.zip", "1/0/6.zip"]
    folder = Folder(tmp_path, *files)
    drop_snapshots_in(folder, (7, 6))
    assert folder.all() == sorted(files)


def test_they_go_at_a_start_and_behind_a_batch_that_was_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dropped: list[tuple[int, ...]] = []
    monkeypatch.setattr(shuffles, "drop_snapshots", lambda _, them: dropped.append(tuple(them)))
    monkeypatch.setattr(shuffles, "_state_places", lambda _: {})

    def batch(number: int) -> Any:
        history = SimpleNamespace(checkpoint="/checkpoint")
        return SimpleNamespace(batch=BatchId("q", number), history=history)

    copies = StateCopies()
    for number in range(6):
        copies.clear(batch(number))
    assert dropped == [(1,), (2, 1)]
    copies.note(batch(5))
    for number in range(6, 9):
        copies.clear(batch(number))
    assert dropped[2:] == [(6, 5), (7, 6)]
