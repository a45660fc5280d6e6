"""One seed, one story: the world is built, lives with faults, heals, catches up, and is judged.

The same seed gives the same story in every process, to the last byte of its timeline: whatever is
drawn comes from the seed, and nothing hangs on the order of a set, on a clock or on what ran
before (``test_same_seed_same_story``).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from onceward import events
from simulation import coverage, swarm
from simulation.kernel import enter, leave
from simulation.kernel.lots import Fired, Lots, name_of
from simulation.kernel.scheduler import Sim, Stuck
from simulation.kernel.threads import install, uninstall
from simulation.steps import Steps
from simulation.story import hear
from simulation.swarm import Setting

Tell = Callable[[float, str, str], None]


class World(Protocol):
    """What a story needs of the world; ``simulation.assembled`` is the product's."""

    def live(self) -> None:
        """The whole story, in a task of nobody's: set up, ``setting.batches`` batches with faults,
        ``lots.calm``, healing, until the pipeline has caught up or stopped for good, and what is
        under way has ended.
        """

    def committed(self) -> int:
        """How many batches were decided."""

    def judge(self) -> Iterable[str]:
        """What was violated: sentences that begin with the invariant, as in "I1 no loss: …"."""

    def stops(self) -> Iterable[str]:
        """The classes of the errors that starts of the query ended with, in their order."""

    def met(self) -> Iterable[tuple[str, ...]]:
        """What else is counted for the coverage: tuples of which the first says what it is."""


Build = Callable[[Sim, Setting], World]


class Outcome:
    """What became of a seed."""

    __slots__ = (
        "batches",
        "broken",
        "fired",
        "met",
        "pairs",
        "rows",
        "seconds",
        "seed",
        "setting",
        "steps",
        "stops",
        "violations",
    )

    def __init__(self, setting: Setting) -> None:
        self.seed = setting.seed
        self.setting = setting
        self.batches = 0
        """Decided ones."""
        self.steps = 0
        self.seconds = 0.0
        """Of virtual time."""
        self.violations: list[str] = []
        self.broken: BaseException | None = None
        """The simulation itself failed, which is a violation, too: it has to be mended before it
        says anything.
        """
        self.fired: list[Fired] = []
        self.pairs: list[tuple[str, str]] = []
        """Of each of these faults, in which step of the engine it happened, and its kind."""
        self.rows: Collection[tuple[str, int]] = ()
        """Rows of the error table that answers met: API and code."""
        self.stops: list[str] = []
        self.met: list[tuple[str, ...]] = []

    def invariants(self) -> frozenset[str]:
        """The first words of the violations: which invariants."""
        return frozenset(violation.split()[0].rstrip(":") for violation in self.violations)

    def command(self, faults: Sequence[Fired] | None = None) -> str:
        """What tells that story again, with exactly these faults; None: with those that the seed
        draws, if it did.
        """
        setting = self.setting
        if faults is None and not setting.drawn:
            faults = self.fired
        words = ["python -m simulation", f"--seed {self.seed}", f"--pipeline {setting.pipeline}"]
        if setting.aim is not None:
            words.append(f"--aim {shlex.quote('|'.join(setting.aim))}")
        changes = {name: value for name, value in setting.changes.items() if name != "off"}
        if changes:
            words.append(
                "--change "
                + shlex.quote(",".join(f"{name}={value}" for name, value in changes.items()))
            )
        if setting.changes.get("off"):
            words.append("--off " + shlex.quote(",".join(setting.changes["off"])))
        if faults is not None:
            words.append(
                "--only " + (shlex.quote(",".join(map(name_of, faults))) if faults else "none")
            )
        return " ".join([*words, "--show"])


def simulate(
    seed: int,
    *,
    pipeline: str | None = None,
    aim: tuple[str, str] | None = None,
    change: Mapping[str, Any] | None = None,
    without: Collection[Fired] = (),
    only: Collection[Fired] | None = None,
    tell: Tell | None = None,
    build: Build | None = None,
) -> Outcome:
    """The story of ``seed``, and what became of it.

    :param pipeline: of this kind, whatever the seed says. :param aim: at this kind of fault in
        this step, likewise.
    :param change: values of the setting that are not the seed's (``batches``, ``off``, and names
        of its options).
    :param without: faults that do not happen. :param only: faults of which alone each happens.
    :param tell: hears what happens: when, who, what.
    :param build: makes the world; None: the world of the product.
    """
    setting = swarm.draw(seed, pipeline, aim).changed(**(change or {}))
    return simulate_setting(setting, without=without, only=only, tell=tell, build=build)


def simulate_setting(
    setting: Setting,
    *,
    without: Collection[Fired] = (),
    only: Collection[Fired] | None = None,
    tell: Tell | None = None,
    build: Build | None = None,
) -> Outcome:
    """The story of a setting."""
    outcome = Outcome(setting)
    most = setting.options.get("most_faults", 1_000)
    lots = Lots(
        setting.seed, setting.odds, without=without, exactly=only, aims=setting.aims, most=most
    )
    sim = Sim(lots, tell)
    enter(sim)
    install(sim)
    listeners, rows = events._listeners, coverage.begin()
    if setting.odds or only:  # else nobody asks
        steps = Steps(sim)
        lots.step = steps.innermost
        events.probe(steps)
    try:
        world = (build or _the_world)(sim, setting)
        if tell is not None:
            hear(sim)  # not before: what is built sees to it that the product's words go nowhere
        sim.spawn(sim.outside, _live, sim, world, name="story")
        try:
            sim.run()
            outcome.violations += world.judge()
        except Stuck as stuck:
            # no more is said of a story without an end: it would be found unfinished everywhere
            outcome.violations.append(f"I8 liveness: {stuck}")
        outcome.batches, outcome.stops, outcome.met = (
            world.committed(),
            list(world.stops()),
            list(world.met()),
        )
    except Exception as error:  # noqa: BLE001 - whatever it is, it is told with its seed
        outcome.broken = error
        outcome.violations.append(f"simulation broken: {error!r}")
    finally:
        sim.bury_all()
        events._listeners = listeners
        if tell is not None:
            hear(None)
        uninstall()
        leave()
    outcome.steps, outcome.seconds = sim.steps, sim.now
    outcome.fired, outcome.pairs, outcome.rows = lots.fired, _pairs(lots.met), rows
    return outcome


def _pairs(met: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(swarm.own_step(kind) or step, kind) for step, kind in met]


def _live(sim: Sim, world: World) -> None:
    world.live()
    sim.stop()


def _the_world(sim: Sim, setting: Setting) -> World:
    from simulation.assembled import build  # not at the top: a test of the tools needs none

    return build(sim, setting)
