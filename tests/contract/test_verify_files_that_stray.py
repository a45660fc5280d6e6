"""``onceward verify --files`` where the ledger has removed old records, and where others have left things."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from file_kits import HereKit

from onceward.engine.micro_batch import MicroBatches
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Write
from onceward.ledger import folder as folder_ledger
from onceward.testing.sink_contract import batch
from onceward.verify import file_listing
from onceward.verify.files import FilesQuestion, check_files
from onceward.verify.findings import Findings

LAYOUTS = ("batches", "flat")


@pytest.fixture(params=LAYOUTS)
def kit(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HereKit:
    monkeypatch.setattr(folder_ledger, "_KEPT", 8)
    return HereKit(tmp_path, request.param, monkeypatch)


def written(kit: HereKit, batches: int) -> Path:
    query = MicroBatches(kit.new_target(), SinkPolicy(kit.pipeline))
    for number in range(batches):
        query.process([Write(kit.frame([f"{number}-{row}" for row in range(2)]))], batch(number))
    return kit.folder / "out"


def checked(root: Path, *, what_is_left: bool = False, pipeline_id: str = "contract") -> Findings:
    return check_files(FilesQuestion(root=root, pipeline_id=pipeline_id, what_is_left=what_is_left))


def names(findings: Findings) -> list[str]:
    return [anomaly.name for anomaly in findings.anomalies]


def entries(root: Path) -> list[Path]:
    return sorted((root / "_onceward" / "ledger" / "contract").glob("*.json"))


def remove_some(root: Path) -> None:
    """Those of the batches 0 to 2 are old, and those of 1 are gone; a process may end there."""
    ledger = entries(root)[0].parent
    (ledger / "floor-7").touch()
    for slot in (3, 4):
        told = json.loads((ledger / f"{slot:020}.json").read_text())
        assert told["sequence"] == 1
        (ledger / f"{slot:020}.json").unlink()


def test_old_entries_that_are_being_removed_are_no_gap(kit: HereKit):
    root = written(kit, 6)
    remove_some(root)
    assert names(checked(root)) == []
    left = checked(root, what_is_left=True)
    assert (left.verdict, left.facts["ledger"]["first_sequence"]) == ("exactly_once", 3)


def test_what_an_owner_has_won_too_late_counts_for_nothing(kit: HereKit):
    root = written(kit, 20)
    late = json.loads(entries(root)[-1].read_text())
    (entries(root)[0].parent / f"{0:020}.json").write_text(json.dumps(late | {"query_id": "another", "sequence": 3}))
    assert checked(root, what_is_left=True).verdict == "exactly_once"


def test_entries_that_go_while_the_ledger_is_read(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    root = written(kit, 6)
    look, looked = file_listing._is_takeover, list[bytes]()

    def removing(entry: bytes) -> bool:
        looked.append(entry)
        if len(looked) == 2:
            remove_some(root)
        return look(entry)

    monkeypatch.setattr(file_listing, "_is_takeover", removing)
    assert names(checked(root)) == []
    assert len(looked) > 2


@pytest.mark.parametrize(
    "stray", ["top.parquet", "batch=contract@0000000019/part-x.parquet", "x=y@0000000001/part.parquet"]
)
def test_a_stray_file_is_found_though_old_records_are_gone(kit: HereKit, stray: str):
    root = written(kit, 20)
    whole = checked(root, what_is_left=True)
    assert whole.verdict == "exactly_once", whole.not_covered
    assert whole.facts["gone"]
    assert checked(root).verdict == "inconclusive"
    known = whole.facts["files"]["unaccounted_files"]
    (root / stray).parent.mkdir(exist_ok=True)
    shutil.copy(next(root.rglob("part-*")), root / stray)
    found = checked(root, what_is_left=True)
    assert found.facts["files"]["unaccounted_files"] == known + 1
    if kit.layout == "batches":
        assert [anomaly.where for anomaly in found.anomalies] == [stray]
        return
    assert (found.verdict, names(found)) == ("inconclusive", [])
    assert stray in " ".join(found.not_covered)
    os.utime(root / stray, (0, 0))  # as old as files whose records are gone: nobody can tell
    assert checked(root, what_is_left=True).verdict == "exactly_once"


def test_a_folder_that_looks_like_another_pipelines(kit: HereKit):
    """It is one if its column is ours, and its number has as many digits."""
    root = written(kit, 2)
    for folder, another in [("batch=q@0000000000", True), ("batch=q@12", False), ("user=joe@0000000012", False)]:
        (root / folder).mkdir()
        shutil.copy(next(root.rglob("part-*")), root / folder / "part-x.parquet")
        expected = [] if another and kit.layout == "batches" else ["unaccounted-write"]
        assert names(checked(root)) == expected, folder
        shutil.rmtree(root / folder)


def test_links_are_said_and_accuse_nobody(kit: HereKit):
    root = written(kit, 2)
    one = min(path for path in root.rglob("part-*") if "_onceward" not in path.parts)
    moved = one if kit.layout == "flat" else one.parent
    shutil.move(moved, kit.folder / "elsewhere")
    moved.symlink_to(kit.folder / "elsewhere")
    found = checked(root)
    assert (found.verdict, names(found)) == ("inconclusive", [])
    assert moved.name in " ".join(found.not_covered)
    moved.unlink()
    assert "lost-write" in names(checked(root))
