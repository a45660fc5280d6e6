"""``onceward verify --files`` where the ledger has removed old records, and where others have left
things.
"""

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
from onceward.files import ledger as folder_ledger
from onceward_testing.sink_contract import batch
from onceward_verify import files as checked_ledger
from onceward_verify.files import FilesQuestion, check_files
from onceward_verify.findings import Findings, WrongUsage
from support.errors import raises

pytestmark = pytest.mark.lengthy("ci")

LAYOUTS = ("batches", "flat")


@pytest.fixture(params=LAYOUTS)
def kit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> HereKit:
    monkeypatch.setattr(folder_ledger, "_KEPT", 8)
    return HereKit(tmp_path, request.param, monkeypatch)


def written(kit: HereKit, batches: int) -> Path:
    query = MicroBatches(kit.new_target(), SinkPolicy(kit.pipeline))
    for number in range(batches):
        query.process([Write(kit.frame([f"{number}-{row}" for row in range(2)]))], batch(number))
    return kit.folder / "out"


def checked(
    root: Path, *, ignore_expired: bool = False, pipeline_id: str = "contract"
) -> Findings:
    return check_files(
        FilesQuestion(root=root, pipeline_id=pipeline_id, ignore_expired=ignore_expired)
    )


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
    left = checked(root, ignore_expired=True)
    assert (left.verdict, left.facts["ledger"]["first_sequence"]) == ("exactly_once", 3)


def test_what_an_owner_has_won_too_late_counts_for_nothing(kit: HereKit):
    root = written(kit, 20)
    late = json.loads(entries(root)[-1].read_text())
    (entries(root)[0].parent / f"{0:020}.json").write_text(
        json.dumps(late | {"query_id": "another", "sequence": 3})
    )
    assert checked(root, ignore_expired=True).verdict == "exactly_once"


def test_entries_that_go_while_the_ledger_is_read(kit: HereKit, monkeypatch: pytest.MonkeyPatch):
    root = written(kit, 6)
    look, looked = checked_ledger._is_takeover, list[bytes]()

    def removing(entry: bytes) -> bool:
        looked.append(entry)
        if len(looked) == 2:
            remove_some(root)
        return look(entry)

    monkeypatch.setattr(checked_ledger, "_is_takeover", removing)
    assert names(checked(root)) == []
    assert len(looked) > 2


@pytest.mark.parametrize(
    "stray",
    ["top.parquet", "batch=contract@0000000019/part-x.parquet", "x=y@0000000001/part.parquet"],
)
def test_a_stray_file_is_found_though_old_records_are_gone(kit: HereKit, stray: str):
    root = written(kit, 20)
    whole = checked(root, ignore_expired=True)
    assert whole.verdict == "exactly_once", whole.not_covered
    assert whole.facts["gone"]
    assert checked(root).verdict == "inconclusive"
    known = whole.facts["files"]["unaccounted_files"]
    (root / stray).parent.mkdir(exist_ok=True)
    shutil.copy(next(root.rglob("part-*")), root / stray)
    found = checked(root, ignore_expired=True)
    assert found.facts["files"]["unaccounted_files"] == known + 1
    if kit.layout == "batches":
        assert [anomaly.where for anomaly in found.anomalies] == [stray]
        return
    assert (found.verdict, names(found)) == ("inconclusive", [])
    assert stray in " ".join(found.not_covered)
    os.utime(root / stray, (0, 0))  # as old as files whose records are gone: nobody can tell
    assert checked(root, ignore_expired=True).verdict == "exactly_once"


def test_a_folder_that_looks_like_another_pipelines(kit: HereKit):
    """It is one if its column is ours, and its number has as many digits."""
    root = written(kit, 2)
    for folder, another in [
        ("batch=q@0000000000", True),
        ("batch=q@12", False),
        ("user=joe@0000000012", False),
    ]:
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


class TestByLists:
    """What readers see of ``layout="manifest"``, whatever lies below the path."""

    @pytest.fixture
    def root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        root = written(HereKit(tmp_path, "manifest", monkeypatch), 3)
        shutil.copy(next(root.rglob("part-*")), root / "seen-by-nobody.parquet")
        well = checked(root)
        assert (well.verdict, well.facts["files"]["unaccounted_files"]) == ("exactly_once", 0)
        return root

    @staticmethod
    def of(root: Path, number: int) -> Path:
        return root / "_symlink_format_manifest" / f"contract@{number:010}"

    def test_a_name_with_other_ends_of_lines_is_one_name(self, root: Path):
        path = Path(self.of(root, 1).read_text().splitlines()[0].removeprefix("file://"))
        odd = path.with_name("a\u0085b\u2028c.parquet")
        path.rename(odd)
        for place in (self.of(root, 1), *entries(root)):
            place.write_text(place.read_text().replace(path.name, odd.name))
        assert checked(root).verdict == "exactly_once"

    def test_a_list_that_is_gone(self, root: Path):
        self.of(root, 1).unlink()
        assert set(names(checked(root))) == {"lost-write"}

    def test_a_line_that_is_gone_or_there_twice(self, root: Path):
        whole = self.of(root, 1).read_text()
        first = whole.splitlines(keepends=True)[0]
        self.of(root, 1).write_text(whole.removeprefix(first))
        assert names(checked(root)) == ["lost-write"]
        self.of(root, 1).write_text(whole + first)
        assert names(checked(root)) == ["duplicate-write"]
        self.of(root, 1).write_text(whole)
        (self.of(root, 1).parent / "once-more").write_text(first)
        assert names(checked(root)) == ["duplicate-write"]

    def test_files_that_no_batch_names(self, root: Path):
        stray = self.of(root, 1).parent / "stray"
        for line in (
            f"file://{root}/seen-by-nobody.parquet",
            f"file://{root}/not-there",
            "file:///elsewhere/part",
        ):
            stray.write_text(f"{line}\n")
            found = checked(root)
            assert names(found) == ["unaccounted-write"], line
            assert found.facts["files"]["unaccounted_files"] == 1

    def test_files_that_are_gone_or_changed(self, root: Path):
        path = Path(self.of(root, 1).read_text().splitlines()[0].removeprefix("file://"))
        whole = path.read_bytes()
        path.write_bytes(bytes(len(whole)))
        assert names(checked(root)) == ["state-mismatch"]
        path.write_bytes(whole[:-1])
        assert names(checked(root)) == ["state-mismatch"]
        path.unlink()
        assert names(checked(root)) == ["lost-write"]

    def test_a_path_on_another_file_system_is_refused(self, root: Path):
        for path in ("hdfs://somewhere/out", "gs://bucket/out"):
            with pytest.raises(WrongUsage):
                check_files(
                    FilesQuestion(
                        root=path, pipeline_id="contract", ledger=root / "_onceward" / "ledger"
                    )
                )
        with raises(WrongUsage):
            check_files(FilesQuestion(root="s3://bucket/out", pipeline_id="contract"))
