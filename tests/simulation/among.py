"""Settings with faults of some groups only: for whoever knows which place is to be looked at."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from simulation import swarm

_BY_CHANCE = {
    "shuffle": True,
    "by_chance": True,
    "stateful": False,
    "driver_records": 0,
    "tasks": 4,
    "slots": 1,
}
TELLS_WITH: Mapping[str, Mapping[str, Any]] = {
    "spark:output": _BY_CHANCE,
    "spark:executor": _BY_CHANCE,
    "line:": {"driver_records": 0},
    "report:": {"driver_records": 0},
    "pause:": {"watched": True},
    "broker:": {"brokers": 3},
}
"""Options without which faults that begin so tell little: what is lost and computed again is the
same where nothing is by chance, and of a driver that stands still nobody learns what an heir does.
"""


def among(setting: swarm.Setting, groups: Sequence[str]) -> swarm.Setting:
    """The same with one to four kinds of faults that begin as ``groups`` say, each group as likely
    as the others, and of a group those of one step as likely as those of any. Where the groups are
    single kinds, somebody wants them to meet: then every second one has them all, and often. Every
    second one has options that such faults tell with.
    """
    chance = random.Random(f"{setting.seed}:among")
    part = swarm.part_of(setting.pipeline)
    kinds = [kind for group in part.groups for kind in group]
    begin = [group.partition("|")[0] for group in groups]  # in which step is of aims alone
    of_each = [
        found for one in begin if (found := [kind for kind in kinds if kind.startswith(one)])
    ]
    chosen: set[str] = set()
    for _ in range(1 + int(chance.random() * 4)):
        group = of_each[int(chance.random() * len(of_each))]
        anywhere = [kind for kind in group if swarm.own_step(kind) is None]
        group = anywhere if anywhere and chance.random() < 0.5 else group
        chosen.add(group[int(chance.random() * len(group))])
    odds = {kind: swarm.gap(chance, kind) for kind in sorted(chosen)}
    if all(len(group) == 1 for group in of_each) and chance.random() < 0.5:
        odds = {kind: swarm.gap(chance, kind, often=True) for (kind,) in sorted(of_each)}
    options = dict(setting.options)
    if setting.seed % 2:
        for kinds_begin, telling in TELLS_WITH.items():
            if any(kind.startswith(kinds_begin) for kind in chosen):
                options.update(
                    {
                        name: value
                        for name, value in telling.items()
                        if value in part.options.get(name, ())
                    }
                )
    return swarm.Setting(setting.seed, setting.pipeline, setting.batches, odds, None, {}, options)
