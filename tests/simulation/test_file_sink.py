"""Files, whatever befalls their disk and their writers; and that what would be wrong is found."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.files import manifest, publishing
from onceward.files.publishing import Publisher
from simulation.pipelines.files import PATH
from simulation.planted import ended, first_violation, planted
from simulation.run import simulate
from simulation.world.files.tree import File, Folder

SEEDS = range(80)
SEARCHED = range(600)
_LOST = {"target:file lost": 3.0}


@pytest.mark.lengthy("chaos")
def test_readers_see_every_batch_once_whatever_befalls_it() -> None:
    batches, fired = 0, set()
    for seed in SEEDS:
        outcome = simulate(seed, pipeline="files", change={"batches": 6})
        assert not outcome.violations, (seed, str(outcome.setting), outcome.violations)
        batches += outcome.batches
        fired |= {kind.partition(":")[0] for kind, _ in outcome.fired}
    assert batches > 5 * len(SEEDS)
    assert len(fired) > 5


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize(
    ("odds", "change", "owner", "name", "before", "after"),
    [
        (
            {"fs:power failure": 60},
            {"place": "file"},
            Publisher,
            "_found",
            "self.files.sync(",
            "self.files.names(",
        ),
        (
            _LOST,
            {"layout": "flat"},
            publishing,
            "_publish_file",
            "return CommitResult.LOST",
            "return CommitResult.ALREADY_DONE",
        ),
        (
            _LOST,
            {"layout": "manifest"},
            manifest,
            "publish",
            "lost_files(batch.files, files.listed(batch.at) or {})",
            "[]",
        ),
        (
            _LOST,
            {"layout": "batches"},
            publishing,
            "_publish_folder",
            "if prepared.get(name) !=",
            "if not prepared and",
        ),
        (
            {"crash:send.finished": 3},
            {"place": "hdfs", "layout": "flat"},
            Publisher,
            "abort",
            "self.files.remove",
            "id",
        ),
        (_LOST, {"layout": "batches"}, Publisher, "_found", "if there != written", "if not found"),
        (
            {"crash:commit.started": 3},
            {"place": "hdfs", "layout": "manifest"},
            Publisher,
            "opened",
            "self.files.put_if_absent(place.note, place.manifest)",
            "self.files.names(place.note)",
        ),
    ],
    ids=["153", "157", "214", "150", "nothing is dropped", "151", "217"],
)
def test_what_is_wrong_is_found(
    odds: dict[str, float], change: dict[str, Any], owner: Any, name: str, before: str, after: str
) -> None:
    with planted(owner, name, before, after):
        assert first_violation("files", SEARCHED, odds, batches=6, **change) is not None


def calm_world(layout: str) -> Any:
    """The world of a story in which nothing happens, when it is over."""
    plain = {
        "place": "file",
        "ledger": "folder",
        "partition_by": False,
        "user": "sink",
        "operator": "nobody",
    }
    outcome, world = ended("files", batches=6, layout=layout, **plain)
    assert outcome.violations == []
    return world


def found(world: Any) -> set[str]:
    return {sentence.partition(" ")[0] for sentence in world.pipeline.judge(world)}


def entries(world: Any, *below: str) -> dict[str, Any]:
    folder = world.files.tree("file").at("/".join((PATH, *below)))
    found: dict[str, Any] = folder.entries
    return found


def newest(world: Any, *below: str) -> str:
    return max(name for name in entries(world, *below) if not name.startswith(("_", ".")))


class TestTheJudge:
    """A right world, spoilt in one place."""

    def test_what_a_task_has_left_in_a_published_folder(self) -> None:
        world = calm_world("batches")
        entries(world, newest(world))[".part-0.tmp"] = File(0.0, b"")
        assert found(world) == {"I17"}

    def test_a_batch_that_the_ledger_does_not_have(self) -> None:
        world = calm_world("batches")
        entries(world)[f"{newest(world).rpartition('@')[0]}@999"] = Folder()
        assert found(world) == {"I5"}

    def test_a_batch_that_is_gone(self) -> None:
        world = calm_world("batches")
        del entries(world)[newest(world)]
        assert found(world) == {"I1", "I4"}, "and a reader has seen it"

    @pytest.mark.parametrize("layout", ["batches", "flat"])
    def test_a_file_that_is_cut_short(self, layout: str) -> None:
        world = calm_world(layout)
        folder = entries(world, newest(world)) if layout == "batches" else entries(world)
        file = next(
            file for name, file in sorted(folder.items()) if name.startswith("part-") and file.data
        )
        file.data = file.data[:-1]
        assert {"I1", "I4"} <= found(world)

    def test_what_was_prepared_and_dropped_by_nobody(self) -> None:
        world = calm_world("flat")
        entries(world, "_onceward").setdefault("prepared", Folder()).entries["9.orders"] = Folder(
            -9.0
        )
        assert found(world) == {"I17"}

    def test_a_folder_that_no_list_names(self) -> None:
        world = calm_world("manifest")
        folder = entries(world, "_onceward", "files").setdefault("9.orders", Folder(-9.0))
        folder.entries["part-0"] = File(-9.0, b"rows")
        assert found(world) == {"I17"}

    def test_a_file_of_a_list_is_gone(self) -> None:
        world = calm_world("manifest")
        top = world.files.tree("file").at(PATH)
        lists = top.entries["_symlink_format_manifest"].entries
        place = next(iter(lists.values())).data.decode().splitlines()[0]
        folder, _, name = place[place.index(PATH) :].rpartition("/")
        del world.files.tree("file").at(folder).entries[name]
        assert {"I1", "I4"} <= found(world)
