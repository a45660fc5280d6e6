"""What a seed stands for: which pipeline, how large a world, which faults. Plain data; each of it
can be changed.

Swarm testing (Groce et al., ISSTA 2012): most kinds of faults are off in any one story, so that
those that are on meet each other undisturbed. Of ten seeds one is calm, two have a single kind,
two are *aimed* at one (step, fault) pair, which the seeds take in turn, and the others have two to
six kinds. How often one happens is drawn over magnitudes.

What there is to draw from, the parts of the world say themselves, in two dicts at module level:
``FAULTS``, of each kind of fault a sentence, and ``OPTIONS``, of each setting its values, the
simplest one first, which is where shrinking goes. Parts are all modules of ``world``, ``spark``
and ``pipelines``; options of a pipeline's module are its own.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import random
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.events import STEPS
from simulation.steps import BETWEEN

Options = Mapping[str, Sequence[Any]]

OPTIONS: Options = {
    "brokers": (1, 3),
    "transaction_version": (2, 1),
    "source_partitions": (1, 2, 3),
    "output_partitions": (1, 2, 4),
    "topics": (1, 2, 3),
    "tasks": (1, 2, 4),
    "executors": (1, 2, 3),
    "rows": (1, 2, 4, 8),
    "most_faults": (12, 3, 40),
}
"""Of every world. ``rows``: how many records of each source partition a batch takes at most.
``most_faults``: in all; a story in which everything breaks all the time shows nothing.
"""

MOST_BATCHES, FEWEST_BATCHES = 40, 5
_SMALL = 2
"""Simple values are likelier: of two the first one in seven stories of ten, of three in six. What
goes wrong in a large world mostly does so in a small one, which takes a third of the time.
"""

GAPS: Mapping[str, tuple[float, float]] = {
    "net": (3, 2000),
    "line": (3, 1000),
    "kafka": (3, 2000),
    "answer": (1, 200),
    "crash": (1, 60),
    "pause": (1, 60),
    "user": (1, 10),
    "user:second copy": (10, 2000),
    "broker": (10, 2000),
    "clock": (10, 2000),
    "db": (8, 2000),
}
"""Of this kind, or of those that begin with this, the mean number of opportunities between two
faults is drawn between these.
"""

_HASTE = {
    "brokers=1": 0,
    "request_timeout_ms=1000": 0,
    "delivery_timeout_ms=8000": 0,
    "most_faults=40": 0,
}
LEADS_TO: Mapping[str, Sequence[Mapping[str, float]]] = {
    "abort": ({"answer:Produce:59": 3.0}, {"spark:task fails": 0.5}, {"db:broken": 3.0}),
    "abort|target": ({"answer:Produce:59": 2.0},),
    "commit|net": (
        {"answer:EndTxn:120|commit": 1.0},
        {"answer:EndTxn:120|commit": 1.0, "lags=True": 0},
        {"answer:EndTxn:120|commit": 1.0, "answer:InitProducerId:53|between": 1.0},
        {},
    ),
    "replay": ({"crash:spark.before the commit log": 2.0}, {"crash:finish.started": 2.0}),
    "lease": (
        {
            "driver_records=0": 0,
            "row_bytes=100000000": 0,
            "piece=1": 0,
            "tasks=4": 0,
            "slots=4": 0,
        },
        {"driver_records=0": 0, "brokers=3": 0},
    ),
    "between": ({"user=skips": 0, "executors=2": 0}, {}),
    "open.failed": ({"broker:crash|open": 0.0, **_HASTE}, {"db:broken|open": 0.0}),
    "admit.failed": (
        {"user=swallows": 0.0, "answer:Produce:59": 1.0},
        {"user=swallows": 0.0, "db:broken": 3.0},
    ),
    "plan.failed": ({"broker:crash|plan": 0.0, **_HASTE}, {"db:broken|plan": 0.0}),
    "send.failed": ({"spark:task fails": 0.3}, {"answer:Produce:59": 2.0}, {"db:broken": 2.0}),
    "lease.failed": ({"line:broken": 2.0}, {"answer:Produce:59": 2.0}),
    "offsets.failed": ({"broker:crash|offsets": 0.0, **_HASTE},),
    "ledger.failed": ({"answer:Produce:59": 1.0}, {"db:broken": 3.0}),
    "move.failed": ({"db:broken|move": 0.5}, {"db:session ended|move": 0.5}),
    "commit.failed": ({"answer:EndTxn:120": 1.0}, {"db:broken": 3.0}, {"net:black hole": 2.0}),
    "abort.failed": ({"answer:Produce:59": 3.0, "user:second copy|abort": 0.0},),
    "publish.failed": ({"target:down|publish": 0.0}, {"db:broken|publish": 0.0}),
    "deliver.failed": ({"target:down|deliver": 0.0},),
    "replay.failed": ({"crash:spark.before the commit log": 2.0, "spark:task fails|replay": 0.0},),
}
"""To some steps, and to the failure of any, a story comes only by another fault: one of these goes
with such an aim, some of them in a step of their own (``kind|step``), or with an option
(``name=value``). ``abort|target``: of kinds that begin so.
"""

LEADS_OF_KINDS: Mapping[str, Mapping[str, float]] = {
    "kafka:expired id lingers": {"id_expiration_ms=20000": 0, "pause:finish.finished": 0.5},
    "broker:isolated": {"brokers=3": 0, "crash:spark.before the commit log": 3.0},
    "answer:CreateTopics": {"ledger_partitions=0": 0},
    "answer:DescribeTransactions": {"user:second copy": 20.0},
}
"""The same of kinds of faults, whatever the step."""

_OTHER_GAPS = (2, 500)
_PLACES = ("world", "spark", "pipelines")
_ALL_FAULTS = ("",)


class Setting:
    """One seed's choices. ``aim`` is a fault's kind and the step that it is aimed at, or None;
    ``aims`` of each kind that is, that one included, its step; what has no other name here is one
    of ``OPTIONS``.
    """

    __slots__ = (
        "aim",
        "aims",
        "batches",
        "changes",
        "drawn",
        "odds",
        "options",
        "pipeline",
        "seed",
    )

    def __init__(
        self,
        seed: int,
        pipeline: str,
        batches: int,
        odds: dict[str, float],
        aim: tuple[str, str] | None,
        aims: dict[str, str],
        options: dict[str, Any],
    ) -> None:
        self.seed = seed
        self.pipeline = pipeline
        self.batches = batches
        self.odds = odds
        self.aim = aim
        self.aims = aims
        self.options = options
        self.changes: dict[str, Any] = {}
        """What is not as the seed has drawn it."""
        self.drawn = True
        """The faults are."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.options[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getstate__(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(self.__slots__, state, strict=True):
            setattr(self, name, value)

    def changed(self, **changes: Any) -> Setting:
        """The same with other values. ``off=(kind, …)`` switches kinds of faults off.

        :raises ValueError: nothing is called so.
        """
        odds, options, made = dict(self.odds), dict(self.options), {**self.changes, **changes}
        batches = changes.pop("batches", self.batches)
        for kind in changes.pop("off", ()):
            odds.pop(kind, None)
        unknown = sorted(changes.keys() - options.keys())
        if unknown:
            raise ValueError(
                f"a setting of {self.pipeline} has no {', '.join(unknown)}: there is "
                f"{', '.join(options)}"
            )
        options.update(changes)
        changed = Setting(self.seed, self.pipeline, batches, odds, self.aim, self.aims, options)
        changed.changes, changed.drawn = made, self.drawn
        return changed

    def with_faults(self, odds: dict[str, float], aims: dict[str, str]) -> Setting:
        """The same with other faults."""
        other = Setting(self.seed, self.pipeline, self.batches, odds, self.aim, aims, self.options)
        other.changes, other.drawn = self.changes, False
        return other

    def __str__(self) -> str:
        chosen = ", ".join(f"{name}={value}" for name, value in self.options.items())
        faults = ", ".join(f"{kind} 1:{gap:.0f}" for kind, gap in self.odds.items()) or "none"
        aimed = "".join(f"; {kind} in step {step}" for kind, step in self.aims.items())
        return f"{self.pipeline}, {self.batches} batches, {chosen}; faults: {faults}{aimed}"


class Part:
    """What one pipeline may draw from."""

    __slots__ = ("aims", "groups", "options")

    def __init__(self, pipeline: Any, faults: Mapping[str, str], options: Options) -> None:
        prefixes = getattr(pipeline, "faults", _ALL_FAULTS)
        kinds = [kind for kind in faults if kind.startswith(tuple(prefixes))]
        groups: dict[str, list[str]] = {}
        for kind in kinds:
            groups.setdefault(kind.partition(":")[0], []).append(kind)
        self.groups = [groups[name] for name in sorted(groups)]
        self.options = dict(options)
        steps = (*getattr(pipeline, "steps", STEPS), BETWEEN)
        self.aims = [(kind, step) for kind in kinds for step in steps_of(kind, steps)]

    def has_all(self, lead: Mapping[str, float]) -> bool:
        """Whether this pipeline knows all of one of :data:`LEADS_TO`."""
        known = {kind for group in self.groups for kind in group}
        options = {f"{name}={value}" for name, values in self.options.items() for value in values}
        return all(name.partition("|")[0] in known or name in options for name in lead)


def own_step(kind: str) -> str | None:
    """The one step that a kind belongs to by its name: ``crash:commit.started``."""
    group, _, rest = kind.partition(":")
    step = rest.partition(".")[0]
    return step if group in ("crash", "pause") and step in STEPS else None


def steps_of(kind: str, steps: Sequence[str]) -> Sequence[str]:
    """In which of ``steps`` that kind may be aimed at; a broker's refusal by its kind alone, in
    any.
    """
    if kind.startswith("answer:"):
        return ("",)
    own = own_step(kind)
    if own is not None:
        return (own,) if own in steps else ()
    return steps


@functools.cache
def modules() -> tuple[Any, ...]:
    """The parts of the world that have faults or options of their own, in the order of their
    names.
    """
    found = []
    for place in _PLACES:
        try:
            package = importlib.import_module(f"simulation.{place}")
        except ModuleNotFoundError:
            continue
        names = [
            name for _, name, _ in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        ]
        found += [package, *(importlib.import_module(name) for name in sorted(names))]
    return tuple(
        module for module in found if hasattr(module, "FAULTS") or hasattr(module, "OPTIONS")
    )


@functools.cache
def faults() -> dict[str, str]:
    """Of each kind of fault a sentence, in the order of their names."""
    known = {
        kind: why for module in modules() for kind, why in getattr(module, "FAULTS", {}).items()
    }
    return {kind: known[kind] for kind in sorted(known)}


@functools.cache
def pipelines() -> dict[str, Any]:
    """The pipelines by their kinds: the classes that are called ``Pipeline`` in the modules of
    ``pipelines``, or those that ``PIPELINES`` names there.
    """
    try:
        package = importlib.import_module("simulation.pipelines")
    except ModuleNotFoundError:
        return {}
    found = {}
    for name in sorted(
        name for _, name, _ in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ):
        module = importlib.import_module(name)
        own = getattr(module, "Pipeline", None)
        for kind in getattr(module, "PIPELINES", (own,) if own else ()):
            found[kind.kind] = kind
    return found


@functools.cache
def part_of(pipeline: str) -> Part:
    """What that pipeline's settings are drawn from. A class may say what of it is ``fixed``, by
    name.
    """
    kind = pipelines()[pipeline]
    home = importlib.import_module(kind.__module__)
    options: dict[str, Sequence[Any]] = dict(OPTIONS)
    for module in modules():
        if module is home or not module.__name__.startswith("simulation.pipelines."):
            options.update(getattr(module, "OPTIONS", {}))
    fixed = getattr(kind, "fixed", {})
    options.update({name: (value,) for name, value in fixed.items()})
    return Part(kind, faults(), {name: options[name] for name in sorted(options)})


def draw(seed: int, pipeline: str | None = None, aim: tuple[str, str] | None = None) -> Setting:
    """The setting of that seed; of that pipeline, and aimed at that kind of fault in that step, if
    these are named.
    """
    chance = random.Random(f"{seed}:setting")
    kinds = list(pipelines())
    drawn = kinds[seed % len(kinds)]
    name = pipeline or drawn
    part = part_of(name)
    sort = "aimed" if aim else _sort_of(seed // len(kinds))
    bias = 1 if sort == "aimed" else _SMALL  # not every place is to be come to in a small world
    options = {
        option: values[int(chance.random() ** bias * len(values))]
        for option, values in part.options.items()
    }
    batches = FEWEST_BATCHES + int(chance.random() * (MOST_BATCHES - FEWEST_BATCHES + 1))
    if sort == "aimed" and not aim and part.aims:
        aim = _aim_of(seed // len(kinds), part)
    if aim:
        if "user" in options and chance.random() < _PLAIN_USERS:
            options["user"] = part.options["user"][0]
        odds, aims = _aimed(chance, part, aim, options)
    else:
        odds, aims = _odds(chance, part, sort), {}
    return Setting(seed, name, batches, odds, aim, aims, options)


def _odds(chance: random.Random, part: Part, sort: str) -> dict[str, float]:
    if sort == "calm" or not part.groups:
        return {}
    chosen: set[str] = set()
    for _ in range(1 if sort == "one" else 2 + int(chance.random() * 5)):
        group = part.groups[int(chance.random() * len(part.groups))]
        chosen.add(group[int(chance.random() * len(group))])
    return {kind: gap(chance, kind) for kind in sorted(chosen)}


def _aim_of(number: int, part: Part) -> tuple[str, str]:
    """The aims are taken in turn."""
    tens, rest = divmod(number, 10)
    return part.aims[(tens * 2 + (rest == _LAST_AIMED)) % len(part.aims)]


def _leads_to(place: str, step: str, kind: str) -> Sequence[Mapping[str, float]]:
    return (
        LEADS_TO.get(f"{place}|{kind.partition(':')[0]}")
        or LEADS_TO.get(place)
        or LEADS_TO.get(step, ())
    )


def _aimed(
    chance: random.Random, part: Part, aim: tuple[str, str], options: dict[str, Any]
) -> tuple[dict[str, float], dict[str, str]]:
    """The kind that is aimed, and what leads to the place: odds, and steps."""
    kind, step = aim
    own = own_step(kind)
    place = kind.partition(":")[2] if own else step
    leads = [lead for lead in _leads_to(place, step, kind) if part.has_all(lead)]
    odds: dict[str, float] = {}
    aims: dict[str, str] = {}
    lead = dict(leads[int(chance.random() * len(leads))]) if leads else {}
    for kinds, more in LEADS_OF_KINDS.items():
        if kind.startswith(kinds) and part.has_all(more):
            lead.update(more)
    for name, gap in lead.items():
        option, chosen, value = name.partition("=")
        other, _, where = name.partition("|")
        if chosen:
            options[option] = next(one for one in part.options[option] if str(one) == value)
        else:
            odds[other] = gap
            aims.update({other: where} if where else {})
    odds[kind] = (0.0, 0.5, 2.0, 8.0)[int(chance.random() * 4)]
    if step and not own:  # else it happens in that step or nowhere
        aims[kind] = step
    return odds, aims


_SORTS = ("calm", "swarm", "one", "aimed", "swarm", "swarm", "one", "swarm", "aimed", "swarm")
"""Of each ten numbers, so that the sorts follow each other evenly."""
_LAST_AIMED = 8
_PLAIN_USERS = 0.75
"""Of the aimed ones: a function that does it wrong stops the query before it comes to the
place.
"""


def _sort_of(number: int) -> str:
    return _SORTS[number % len(_SORTS)]


def gap(chance: random.Random, kind: str, *, often: bool = False) -> float:
    low, high = GAPS.get(kind) or GAPS.get(kind.partition(":")[0], _OTHER_GAPS)
    return float(low * (high / low) ** (chance.random() * (0.4 if often else 1.0)))
