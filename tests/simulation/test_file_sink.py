"""Files, whatever befalls their disk and their writers; and that what would be wrong is found."""

from __future__ import annotations

from typing import Any

import pytest

from onceward.sinks.files import manifest, publishing
from onceward.sinks.files.publishing import Publisher
from simulation.planted import first_violation, planted
from simulation.run import simulate

SEEDS = range(80)
SEARCHED = range(600)
_LOST = {"target:file lost": 3.0}


def test_readers_see_every_batch_once_whatever_befalls_it() -> None:
    batches, fired = 0, set()
    for seed in SEEDS:
        outcome = simulate(seed, pipeline="files", change={"batches": 6})
        assert not outcome.violations, (seed, str(outcome.setting), outcome.violations)
        batches += outcome.batches
        fired |= {kind.partition(":")[0] for kind, _ in outcome.fired}
    assert batches > 5 * len(SEEDS)
    assert len(fired) > 5


@pytest.mark.parametrize(
    ("odds", "change", "owner", "name", "before", "after"),
    [
        ({"fs:power failure": 60}, {"place": "file"}, Publisher, "_found", "self.files.sync(", "self.files.names("),
        (_LOST, {"layout": "flat"}, publishing, "_publish_files", "!= size:", "not in (size, None):"),
        (
            _LOST,
            {"layout": "manifest"},
            manifest,
            "publish",
            "lost_of(batch.files, files.listed(batch.at) or {})",
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
        (_LOST, {"layout": "batches"}, Publisher, "_found", "if there != said", "if not found"),
        (
            {"crash:commit.started": 3},
            {"place": "hdfs", "layout": "manifest"},
            Publisher,
            "opened",
            "self.files.kept(place.note, place.manifest)",
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
