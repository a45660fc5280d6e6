"""From a seed that fails to the shortest story that fails in the same way.

Delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", TSE
2002) over the faults that happened, and one setting after the other made simpler: fewer batches,
partitions, tasks, … Faults are moved to earlier opportunities of their kind, too, to fit into
fewer batches. A candidate counts if it violates an invariant that the seed has violated; each
round begins anew after something has gone, until nothing more can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from simulation import swarm
from simulation.kernel.lots import Fired
from simulation.run import Build, Outcome, simulate

MOST_RUNS = 1_500
"""Of the simulation, for one shrinking."""


class Shrunk:
    """The shortest story found. ``faults`` None: as the seed draws them, because naming them tells
    another story.
    """

    def __init__(
        self, outcome: Outcome, changes: dict[str, Any], faults: list[Fired] | None, runs: int
    ) -> None:
        self.outcome = outcome
        self.changes = changes
        self.faults = faults
        self.runs = runs

    def command(self) -> str:
        """What tells that story again."""
        return self.outcome.command(self.faults)


def shrink(outcome: Outcome, *, build: Build | None = None, most_runs: int = MOST_RUNS) -> Shrunk:
    """The shortest story that fails as ``outcome`` does."""
    return _Shrinking(outcome, build, most_runs).run()


class _Shrinking:
    """One seed's."""

    def __init__(self, outcome: Outcome, build: Build | None, most_runs: int) -> None:
        self._wanted = outcome.invariants()
        self._setting = outcome.setting
        self._build = build
        self._left = most_runs
        self._most = most_runs
        self._best = outcome
        self._changes: dict[str, Any] = {}
        self._faults: list[Fired] | None = None

    def run(self) -> Shrunk:
        if self._fails({}, list(self._best.fired)):
            while self._left > 0 and any([self._fewer_faults(), self._simpler(), self._earlier()]):
                pass
            self._only_what_happens()
        else:
            while self._left > 0 and self._simpler():
                pass
        return Shrunk(self._best, self._changes, self._faults, self._most - self._left)

    def _fails(self, changes: dict[str, Any], faults: list[Fired] | None) -> bool:
        """Whether that story fails as the first one did. Then it is the best one from now on."""
        if self._left <= 0:
            return False
        self._left -= 1
        outcome = simulate(
            self._setting.seed,
            pipeline=self._setting.pipeline,
            aim=self._setting.aim,
            change=changes,
            only=faults,
            build=self._build,
        )
        if not outcome.invariants() & self._wanted:
            return False
        self._best, self._changes, self._faults = outcome, changes, faults
        return True

    # ── faults ──

    def _fewer_faults(self) -> bool:
        """``ddmin``: halves, quarters, … of the faults are left out, down to single ones."""
        faults, parts, progress = list(self._faults or ()), 2, False
        if faults and self._fails(self._changes, []):
            return True
        while len(faults) >= 1 and self._left > 0:
            for rest in _without_one_part(faults, parts):
                if self._fails(self._changes, rest):
                    faults, parts, progress = rest, max(2, parts - 1), True
                    break
            else:
                if parts >= len(faults):
                    break
                parts = min(len(faults), parts * 2)
        return progress

    def _earlier(self) -> bool:
        """Faults at earlier opportunities: all together, for they may hang on each other, then
        two, then one by one.
        """
        progress = False
        count = len(self._faults or ())
        together = (
            [(one, other) for other in range(count) for one in range(other)] if count <= 12 else []
        )
        for numbers in [tuple(range(count)), *together, *((number,) for number in range(count))]:
            for numerator, denominator in ((1, 2), (3, 4), (7, 8)):
                while self._move(numbers, lambda place: place * numerator // denominator):  # noqa: B023 - called at once
                    progress = True
            while self._move(numbers, lambda place: place - 1):
                progress = True
        return progress

    def _move(self, numbers: Sequence[int], step: Callable[[int], int]) -> bool:
        faults = list(self._faults or ())
        for number in numbers:
            kind, place = faults[number]
            faults[number] = (kind, max(0, step(place)))
        if faults == self._faults or len(set(faults)) < len(faults):
            return False
        return self._fails(self._changes, faults)

    def _only_what_happens(self) -> None:
        """Faults of the list that the story ended without, and those that do not matter any more,
        are not named.
        """
        happened = [fault for fault in self._faults or () if fault in self._best.fired]
        if happened != self._faults:
            self._fails(self._changes, happened)

    # ── settings ──

    def _simpler(self) -> bool:
        progress = False
        for name, values in self._choices():
            for value in values:
                if self._fails({**self._changes, name: value}, self._faults):
                    progress = True
                    break
        return progress

    def _choices(self) -> Iterator[tuple[str, list[Any]]]:
        """Of each setting the simpler values than the one it has, the simplest first; after each,
        what it is then.
        """
        batches = self._best.setting.batches
        fewer = sorted({1, 2, 3, 5, batches // 4, batches // 2, batches - 1})
        yield "batches", [number for number in fewer if 0 < number < batches]
        for name, values in swarm.part_of(self._setting.pipeline).options.items():
            now = self._best.setting.options[name]
            if now in values:
                yield name, list(values[: list(values).index(now)])


def _without_one_part(faults: list[Fired], parts: int) -> Iterator[list[Fired]]:
    parts = min(parts, len(faults))
    for part in range(parts):
        low, high = len(faults) * part // parts, len(faults) * (part + 1) // parts
        yield faults[:low] + faults[high:]
