"""Stories that are told in order to meet something: each kind of fault in each step of the engine,
every refusal.

First a few stories for each step, in which several kinds of faults are aimed at it, each in turn
and not often; then, for what none of them has met, stories that are aimed at it alone. ``python -m
simulation.reach`` tells what is not met.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from simulation import coverage, swarm
from simulation.coverage import Pair, Tally
from simulation.run import simulate_setting
from simulation.swarm import Setting

BATCHES = 6
TRIES = 40
_TROUBLE_SECONDS = 120.0
_AT_ONCE = 8
_GAP = 6.0
_FIRST_SEED = 1_000_003


class Reach:
    """What its stories have met so far."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._seed = _FIRST_SEED

    def met(self, kind: str, step: str) -> bool:
        """``step`` "": in any."""
        return (step, kind) in self.tally.pairs if step else kind in self.tally.fired

    def together(self, pipeline: str, step: str, kinds: Sequence[str]) -> None:
        """Stories in which these kinds are aimed at that step, some at a time."""
        for some in range(0, len(kinds), _AT_ONCE):
            part = kinds[some : some + _AT_ONCE]
            setting = self._setting(pipeline, (part[0], step))
            odds, aims = dict(setting.odds), dict(setting.aims)
            odds.update(dict.fromkeys(part, _GAP))
            if step:
                aims.update(dict.fromkeys(part, step))
            self._tell(setting.with_faults(odds, aims))

    def alone(self, pipeline: str, kind: str, step: str) -> bool:
        """Stories that are aimed at this, until one has met it, or enough have not."""
        for _ in range(TRIES):
            if self.met(kind, step):
                return True
            self._tell(self._setting(pipeline, (kind, step)))
        return self.met(kind, step)

    def _setting(self, pipeline: str, aim: tuple[str, str]) -> Setting:
        self._seed += 1
        return swarm.draw(self._seed, pipeline, aim).changed(
            batches=BATCHES, trouble_seconds=_TROUBLE_SECONDS
        )

    def _tell(self, setting: Setting) -> None:
        self.tally.add(simulate_setting(setting))


def of_step(step: str, *, cannot: bool = False) -> tuple[Reach, list[Pair]]:
    """Every kind of fault in that step, by whichever pipeline; and what was not met. ``step`` "":
    brokers' refusals, in any. ``cannot``: what is known to be impossible is tried, too.
    """
    reach = Reach()
    open_pairs: dict[str, list[str]] = {}  # kind → pipelines that may meet it
    for pipeline in swarm.pipelines():
        kinds = [
            kind
            for kind, where in swarm.part_of(pipeline).aims
            if where == step and (cannot or coverage.why_not(kind, step) is None)
        ]
        reach.together(
            pipeline,
            step,
            [k for k in kinds if swarm.own_step(k) is None and not reach.met(k, step)],
        )
        for kind in kinds:
            open_pairs.setdefault(kind, []).append(pipeline)
    missing = [
        (step, kind)
        for kind, able in open_pairs.items()
        if not any(reach.alone(pipeline, kind, step) for pipeline in able)
    ]
    return reach, missing


def main() -> int:
    """Tell of each step what could not be met."""
    everything = Tally()
    for step in (*coverage.STEPS, swarm.BETWEEN, ""):
        reach, missing = of_step(step, cannot="--all" in sys.argv)
        everything.merge(reach.tally)
        kinds = ", ".join(kind for _, kind in missing) or "nothing"
        sys.stdout.write(f"{step or 'any step'}: {reach.tally.seeds} stories, not met: {kinds}\n")
    rows = coverage.never(everything.rows, coverage.answered_rows())
    sys.stdout.write(f"rows: {', '.join(f'{api} {code}' for api, code in rows) or 'all met'}\n")
    for _, command, violations in everything.violations:
        sys.stdout.write(f"{violations[0]}\n    {command}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
