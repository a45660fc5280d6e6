"""The tools find planted bugs, shrink them to what matters, and tell them the same in every
process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from simulation import swarm, toy
from simulation.kernel.lots import Lots, fault_of, name_of
from simulation.run import Build, Outcome, simulate
from simulation.shrink import shrink
from simulation.story import Story

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is the only pipeline there is."""
    part = swarm.Part(toy.Toy, toy.FAULTS, toy.OPTIONS)
    monkeypatch.setattr(swarm, "pipelines", lambda: {"toy": toy.Toy})
    monkeypatch.setattr(swarm, "part_of", lambda pipeline: part)


def planted(bug: str) -> Build:
    return partial(toy.Counters, planted=bug)


def first_failure(bug: str, seeds: int = 400) -> Outcome:
    for seed in range(seeds):
        outcome = simulate(seed, build=planted(bug))
        if outcome.violations:
            return outcome
    raise AssertionError(f"{seeds} seeds did not find {bug!r}")


@pytest.mark.usefixtures("toys")
class TestSeeds:
    def test_a_right_world_is_found_right(self):
        assert [
            o.violations
            for o in (simulate(seed, build=toy.Counters) for seed in range(300))
            if o.violations
        ] == []

    @pytest.mark.parametrize(
        ("bug", "invariant"), [("forgets", "I2"), ("two clients", "I1"), ("hangs", "I8")]
    )  # fmt: skip
    def test_a_planted_bug_is_found(self, bug: str, invariant: str):
        assert first_failure(bug).invariants() == {invariant}

    def test_a_seed_can_be_changed(self):
        outcome = simulate(
            7, change={"batches": 3, "clients": 2, "off": tuple(toy.FAULTS)}, build=toy.Counters
        )
        assert (outcome.setting.batches, outcome.setting.clients, outcome.fired) == (3, 2, [])
        with pytest.raises(ValueError, match="no colour"):
            simulate(7, change={"colour": "red"}, build=toy.Counters)

    def test_a_seed_is_aimed_at_a_step(self):
        fired = [
            simulate(seed, aim=("toy:client dies", "send"), build=toy.Counters).pairs
            for seed in range(20)
        ]
        assert {pair for pairs in fired for pair in pairs} == {("send", "toy:client dies")}
        assert sum(map(bool, fired)) >= 18

    def test_most_kinds_are_off(self):
        settings = [swarm.draw(seed) for seed in range(1000)]
        assert {len(setting.odds) for setting in settings} == {0, 1, 2, 3, 4}
        assert sum(not setting.odds for setting in settings) == 100
        assert sum(setting.aim is not None for setting in settings) == 200
        assert {setting.aim for setting in settings if setting.aim} == {
            (kind, step) for kind in toy.FAULTS for step in (*toy.Toy.steps, "between")
        }


@pytest.mark.usefixtures("toys")
class TestFaults:
    def test_the_others_stay_where_they_are(self):
        seed = next(s for s in range(100) if len(simulate(s, build=toy.Counters).fired) > 5)
        fired = simulate(seed, build=toy.Counters).fired
        again = simulate(seed, without=[fired[1]], build=toy.Counters).fired
        assert fired[1] not in again
        assert again[0] == fired[0]

    def test_exactly_these_tell_the_same_story(self):
        for seed in range(60):
            told, again = Story(), Story()
            fired = simulate(seed, tell=told, build=toy.Counters).fired
            assert simulate(seed, only=fired, tell=again, build=toy.Counters).fired == fired
            assert again.told == told.told

    def test_names(self):
        assert fault_of(name_of(("answer:Produce:45", 7))) == ("answer:Produce:45", 7)
        with pytest.raises(ValueError, match="names no fault"):
            fault_of("net:held")

    def test_an_aimed_fault_is_named_as_any_other(self):
        step = ""
        lots = Lots(1, {"a": 0.0}, aims={"a": "send"})
        lots.step = lambda: step
        assert not any(lots.fires("a") for _ in range(5))
        step = "send"
        assert lots.fires("a")
        assert lots.fired == [("a", 5)]
        again = Lots(1, {"a": 0.0}, exactly=[("a", 5), ("b", 0)])
        assert [again.fires("a") for _ in range(7)] == [False] * 5 + [True, False]
        assert again.fires("b")


@pytest.mark.usefixtures("toys")
class TestShrinking:
    def test_two_faults_are_left_of_many(self):
        shrunk = shrink(first_failure("forgets"), build=planted("forgets"))
        assert shrunk.faults == [("toy:server restarts", 0), ("toy:answer lost", 0)]
        assert shrunk.outcome.setting.batches == 1
        assert set(shrunk.outcome.setting.options.items()) == {
            ("clients", 1), ("increments", 1), ("decoration", "none"),
        }  # fmt: skip
        assert shrunk.outcome.invariants() == {"I2"}

    def test_no_fault_is_left_where_none_is_needed(self):
        shrunk = shrink(first_failure("two clients"), build=planted("two clients"))
        assert (shrunk.faults, shrunk.outcome.setting.clients, shrunk.outcome.setting.batches) == (
            [],
            2,
            1,
        )

    @pytest.mark.lengthy("chaos")
    def test_what_is_printed_tells_the_same(self):
        shrunk = shrink(first_failure("hangs"), build=planted("hangs"))
        assert shrunk.faults == [("toy:answer lost", 0), ("toy:answer lost", 1)]
        again = simulate(
            shrunk.outcome.seed, change=shrunk.changes, only=shrunk.faults, build=planted("hangs")
        )  # fmt: skip
        assert again.violations == shrunk.outcome.violations
        assert "--only 'toy:answer lost@0,toy:answer lost@1'" in shrunk.command()


@pytest.mark.usefixtures("toys")
class TestTelling:
    def test_routine_is_folded(self):
        outcome = first_failure("forgets")
        story = Story()
        simulate(outcome.seed, tell=story, build=planted("forgets"))
        short, whole = story.lines(outcome.violations), story.lines(outcome.violations, whole=True)
        assert len(whole) == len(story.told) + 3
        assert sum("⚡" in line for line in short) == sum("⚡" in line for line in whole)
        assert short[-1] == whole[-1]
        assert "I2 no duplicate" in short[-1]

    def test_a_stretch_without_events_is_one_line(self):
        story = Story()
        for number in range(200):
            story(number / 10, "driver-1", f"batch {number} is done")
        lines = story.lines()
        assert len(lines) < 10
        assert any(
            "186 lines of routine" in line and "batch # is done ×186" in line for line in lines
        )


DIGESTS = """
from functools import partial
from simulation import swarm, toy
from simulation.run import simulate
from simulation.story import Story
part = swarm.Part(toy.Toy, toy.FAULTS, toy.OPTIONS)
swarm.pipelines = lambda: {"toy": toy.Toy}
swarm.part_of = lambda pipeline: part
for seed in range(40):
    story = Story()
    simulate(seed, tell=story, build=toy.Counters)
    print(story.digest())
"""


def digests(program: str, hash_seed: int) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_the_same_seed_is_the_same_story_in_another_process():
    told = digests(DIGESTS, 1)
    assert len(set(told)) > 20
    assert digests(DIGESTS, 2) == told
