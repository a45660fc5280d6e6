"""Bugs put into the product for a test, to see that the simulation finds them: a line of a function is another."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from simulation import swarm
from simulation.run import Outcome, simulate_setting


@contextmanager
def planted(owner: Any, name: str, before: str, after: str) -> Iterator[None]:
    """Inside, the function or method ``name`` of ``owner`` has ``after`` where it says ``before``."""
    function = owner.__dict__[name]
    source = textwrap.dedent(inspect.getsource(function))
    assert before in source, f"{owner.__name__}.{name} does not say {before!r} any more"
    source = source.replace(before, after).replace("super()", "super(_owner, self)")
    made: dict[str, Any] = {}
    flags = annotations.compiler_flag
    exec(compile(source, f"<planted in {name}>", "exec", flags=flags), {**function.__globals__, "_owner": owner}, made)  # noqa: S102
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


def _with(setting: swarm.Setting, odds: Mapping[str, float] | None) -> swarm.Setting:
    if odds is None:
        return setting
    return swarm.Setting(setting.seed, setting.pipeline, setting.batches, dict(odds), None, {}, setting.options)
