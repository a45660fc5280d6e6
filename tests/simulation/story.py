"""A story as people read it: when, who, what, one line each, faults marked; long stretches of
routine folded.

    12.345 s  driver-2     EndTxn(commit), producer 1000 epoch 3 …
    12.345 s  ⚡ driver-2  EndTxn to broker 1: its answer will be lost

A line is *notable* if a fault is in it, or a death, a pause, an error. What lies far from every
notable line is folded into one line that counts it.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

from simulation.kernel.scheduler import Sim

Told = tuple[float, str, str]

NOTABLE = ("⚡", "✝", "‖", "▶", "✗", "★")
"""A fault · a death · a process that stands still · … that goes on · an error that ends something
· a decision of the operator: a start, healing.
"""

_EXPECTED = ("✝ exits", "✝ its driver is gone", "✝ the story is over")

NEAR = 6
"""So many lines before and after a notable one are told."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_LONGEST_SUMMARY = 6


class Story:
    """What is given to ``simulate(tell=…)``."""

    def __init__(self) -> None:
        self.told: list[Told] = []

    def __call__(self, when: float, who: str, what: str) -> None:
        self.told.append((when, who, what))

    def digest(self) -> str:
        """The same for the same story, in whichever process."""
        text = "\n".join(f"{when!r} {who} {what}" for when, who, what in self.told)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def lines(self, violations: Sequence[str] = (), *, whole: bool = False) -> list[str]:
        """The timeline, and what the judge found. ``whole``: nothing is folded."""
        return [*timeline(self.told, whole=whole), *_verdict(violations)]


def timeline(told: Sequence[Told], *, whole: bool = False) -> list[str]:
    """One line for each event, but for what is folded."""
    if not told:
        return ["nothing was told"]
    width = min(28, max(len(who) for _, who, _ in told))
    near = [True] * len(told) if whole else _near(told)
    lines: list[str] = []
    for shown, numbers in groupby(range(len(told)), key=near.__getitem__):
        stretch = [told[number] for number in numbers]
        if not shown and len(stretch) > 2:
            lines.append(_folded(stretch, width))
        elif whole:
            lines += [_line(event, width) for event in stretch]
        else:
            lines += _repeats_folded(stretch, width)
    return lines


def _near(told: Sequence[Told]) -> list[bool]:
    """Which lines are told: those around a notable one, and how the story begins and ends."""
    near = [False] * len(told)
    places = [number for number, (_, _, what) in enumerate(told) if is_notable(what)]
    for place in [0, *places, len(told) - 1]:
        for number in range(max(0, place - NEAR), min(len(told), place + NEAR + 1)):
            near[number] = True
    return near


def is_notable(what: str) -> bool:
    return (what.startswith(NOTABLE) or " failed" in what[:16]) and what not in _EXPECTED


def _line(event: Told, width: int) -> str:
    when, who, what = event
    return f"{when:10.3f} s  {who:<{width}}  {what}"


def shape_of(what: str) -> str:
    """The words without their numbers: lines of one shape are told once."""
    return _NUMBER.sub("#", what)


def _repeats_folded(stretch: Sequence[Told], width: int) -> list[str]:
    """More than three lines of one voice and one shape, one behind the other, are two."""
    lines: list[str] = []
    for _, same in groupby(
        stretch, key=lambda told: (told[1], told[2] if is_notable(told[2]) else shape_of(told[2]))
    ):
        events = list(same)
        if len(events) <= 3:
            lines += [_line(event, width) for event in events]
        else:
            lines.append(_line(events[0], width))
            last = events[-1]
            lines.append(
                f"{'':10}    {'':<{width}}  … {len(events) - 2} more of these, and at "
                f"{last[0]:.3f} s: {last[2]}"
            )
    return lines


def _folded(stretch: Sequence[Told], width: int) -> str:
    """A stretch of routine in one line."""
    shapes = Counter(_gist(what) for _, _, what in stretch)
    most = sorted(shapes.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{what} ×{times}" for what, times in most[:_LONGEST_SUMMARY])
    rest = ", …" if len(most) > _LONGEST_SUMMARY else ""
    first, last = stretch[0][0], stretch[-1][0]
    return (
        f"{'':10}    {'':<{width}}  ┄ {len(stretch)} lines of routine, {first:.3f} to "
        f"{last:.3f} s: {text}{rest}"
    )


def _gist(what: str) -> str:
    """Of a request or an answer its name, of the rest what comes before the first detail."""
    if what.startswith("→"):
        return what.partition(": ")[2].split(" ")[0].rstrip(":")
    return shape_of(what.split(",")[0].split(" (")[0])


def _verdict(violations: Iterable[str]) -> list[str]:
    found = list(violations)
    if not found:
        return ["", "The judge found nothing wrong."]
    return ["", "The judge found:", *(f"  ✗ {violation}" for violation in found)]


class _Heard(logging.Handler):
    """The product's own words: what it logs, by whichever process."""

    sim: Sim | None = None
    level_before = logging.NOTSET

    def emit(self, record: logging.LogRecord) -> None:
        sim = self.sim
        if sim is not None and sim.tell is not None:
            sim.tell(sim.now, sim.here.name, f"“{record.getMessage()}”")


_heard = _Heard()


def hear(sim: Sim | None) -> None:
    """What the product logs is told in the story of ``sim`` from now on; None: no longer."""
    log = logging.getLogger("onceward")
    if _heard.sim is None and sim is not None:
        _heard.level_before = log.level
        log.addHandler(_heard)
        log.setLevel(logging.INFO)
    elif sim is None:
        log.removeHandler(_heard)
        log.setLevel(_heard.level_before)
    _heard.sim = sim
