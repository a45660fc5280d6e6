"""What a test spoils, to see that the simulation finds it: a line of the product, or a world in
which all was right.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulation import assembled, swarm
from simulation.kernel.scheduler import Sim
from simulation.run import Outcome, simulate_setting
from simulation.spark.world import World


@contextmanager
def planted(owner: Any, name: str, before: str, after: str) -> Iterator[None]:
    """Inside, the function or method ``name`` of ``owner`` has ``after`` where it says
    ``before``.
    """
    assembled.install()  # what is planted has the names of the module as the stand-ins leave them
    function = owner.__dict__[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert before in source, f"{owner.__name__}.{name} does not say {before!r} any more"
    source = source.replace(before, after).replace("super()", "super(_owner, self)")
    made: dict[str, Any] = {}
    flags = annotations.compiler_flag
    exec(  # noqa: S102
        compile(source, f"<planted in {name}>", "exec", flags=flags),
        {**function.__globals__, "_owner": owner},
        made,
    )
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, function)


def first_violation(
    pipeline: str, seeds: range, odds: Mapping[str, float] | None = None, **change: Any
) -> Outcome | None:
    """Of the first of ``seeds`` in whose story something is violated; None: of none.

    :param odds: of faults, in place of the seeds' own.
    """
    settings = (_with(swarm.draw(seed, pipeline), odds).changed(**change) for seed in seeds)
    stories = (simulate_setting(setting) for setting in settings)
    return next((outcome for outcome in stories if outcome.violations), None)


def ended(pipeline: str, **change: Any) -> tuple[Outcome, World]:
    """A story of that pipeline without any faults, and its world when it is over."""
    drawn = swarm.draw(1, pipeline)
    kept: list[World] = []

    def build(sim: Sim, setting: swarm.Setting) -> World:
        kept.append(assembled.build(sim, setting))
        return kept[0]

    outcome = simulate_setting(drawn.changed(off=tuple(drawn.odds), **change), build=build)
    return outcome, kept[0]


def _with(setting: swarm.Setting, odds: Mapping[str, float] | None) -> swarm.Setting:
    if odds is None:
        return setting
    return swarm.Setting(
        setting.seed, setting.pipeline, setting.batches, dict(odds), None, {}, setting.options
    )
