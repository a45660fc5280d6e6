"""Stories that are told in order to meet something: every (step, fault) pair, every row of the error table.

First a few stories for each step, in which all kinds of faults are aimed at it, each in turn and not often; then, for
what none of them has met, stories that are aimed at it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulation import swarm
from simulation.coverage import Tally
from simulation.run import simulate_setting
from simulation.swarm import Setting

BATCHES = 6
_TROUBLE_SECONDS = 30.0
_AT_ONCE = 8
_GAP = 6.0
_FIRST_SEED = 1_000_003


class Reach:
    """What stories of one pipeline have met so far."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.tally = Tally()
        self._seed = _FIRST_SEED

    def together(self, step: str, kinds: Sequence[str]) -> None:
        """Stories in which these kinds are aimed at that step, some at a time."""
        for some in range(0, len(kinds), _AT_ONCE):
            part = kinds[some : some + _AT_ONCE]
            setting = self._setting((part[0], step))
            odds, aims = dict(setting.odds), dict(setting.aims)
            odds.update(dict.fromkeys(part, _GAP))
            if step:
                aims.update(dict.fromkeys(part, step))
            self._tell(setting.with_faults(odds, aims))

    def alone(self, kind: str, step: str, tries: int) -> bool:
        """Stories that are aimed at this pair; whether one has met it."""
        for _ in range(tries):
            if self.has_met(kind, step):
                return True
            self._tell(self._setting((kind, step)))
        return self.has_met(kind, step)

    def has_met(self, kind: str, step: str) -> bool:
        return (step, kind) in self.tally.pairs if step else kind in self.tally.fired

    def _setting(self, aim: tuple[str, str]) -> Setting:
        self._seed += 1
        return swarm.draw(self._seed, self.pipeline, aim).changed(batches=BATCHES, trouble_seconds=_TROUBLE_SECONDS)

    def _tell(self, setting: Setting) -> None:
        self.tally.add(simulate_setting(setting))


def meet(pipeline: str, *, tries: int = 4, skip: Callable[[str, str], bool] = lambda kind, step: False) -> Reach:
    """Everything that a pipeline's stories can be aimed at, but for what ``skip`` says of a kind and a step."""
    reach = Reach(pipeline)
    aims = [(kind, step) for kind, step in swarm.part_of(pipeline).aims if not skip(kind, step)]
    for step in dict.fromkeys(step for _, step in aims):
        reach.together(step, [kind for kind, where in aims if where == step and swarm.own_step(kind) is None])
    for kind, step in aims:
        reach.alone(kind, step, tries)
    return reach
