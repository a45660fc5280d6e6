"""``python -m simulation``: see ``--help``. Exit status 0: no violation; 1: there is one; 2: it
could not be run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from simulation import swarm
from simulation.campaign import Campaign
from simulation.kernel.lots import Fired, fault_of
from simulation.report import markdown
from simulation.run import Outcome, simulate
from simulation.shrink import shrink
from simulation.story import Story


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _one(options) if options.seed is not None else _many(options)
    except ValueError as error:
        _say(f"{error}")
        return 2


def _one(options: argparse.Namespace) -> int:
    """One seed: its story, and the shortest one if it fails."""
    story = Story()
    change, only = _changes(options), _faults(options.only)
    aim = tuple(options.aim.split("|")) if options.aim else None
    outcome = simulate(
        options.seed,
        pipeline=options.pipeline,
        aim=aim,
        change=change,
        without=_faults(options.without) or (),
        only=only,
        tell=story if options.show or options.whole else None,
    )
    _say(f"seed {outcome.seed}: {outcome.setting}")
    if options.show or options.whole:
        _say("")
        for line in story.lines(outcome.violations, whole=options.whole):
            _say(line)
        _say(f"\nthe story's digest is {story.digest()}")
    else:
        _summary(outcome)
    if outcome.broken is not None:
        raise outcome.broken
    if outcome.violations and options.shrink:
        _shrunk(outcome)
    return 1 if outcome.violations else 0


def _summary(outcome: Outcome) -> None:
    _say(
        f"{outcome.batches} batches, {outcome.steps} steps, {outcome.seconds:.1f} s of virtual "
        f"time, "
        f"faults: {', '.join(f'{kind}@{place}' for kind, place in outcome.fired) or 'none'}; "
        f"ended with: {', '.join(outcome.stops) or 'nothing'}"
    )
    for violation in outcome.violations:
        _say(f"  ✗ {violation}")
    if outcome.violations:
        _say(outcome.command())


def _shrunk(outcome: Outcome) -> None:
    _say(f"\nshrinking seed {outcome.seed} …")
    shortest = shrink(outcome)
    story = Story()
    found = simulate(
        outcome.seed,
        pipeline=outcome.setting.pipeline,
        aim=outcome.setting.aim,
        change=shortest.changes,
        only=shortest.faults,
        tell=story,
    )
    _say(f"the shortest story, after {shortest.runs} runs: {found.setting}\n")
    for line in story.lines(found.violations):
        _say(line)
    _say(f"\n{shortest.command()}")


def _many(options: argparse.Namespace) -> int:
    """A range of seeds, until the first violation."""
    first, _, last = options.seeds.partition("-")
    campaign = Campaign(
        int(first),
        int(last or first),
        pipeline=options.pipeline,
        jobs=options.jobs,
        minutes=options.minutes,
        keep_going=options.keep_going,
        told=_silent if options.quiet else _progress,
    )
    tally = campaign.run()
    if not options.quiet:
        _say("")
    _say(
        f"{tally.seeds:,} seeds, {tally.batches:,} batches, "
        f"{tally.batches / campaign.seconds:,.0f} a second, "
        f"{sum(tally.fired.values()):,} faults, {len(tally.violations)} violation(s)"
    )
    if campaign.next_seed <= campaign.last:
        _say(f"to go on: --seeds {campaign.next_seed}-{campaign.last}")
    if options.report is not None:
        options.report.parent.mkdir(parents=True, exist_ok=True)
        options.report.write_text(markdown(campaign))
    for seed, command, violations in sorted(tally.violations)[:20]:
        _say(f"seed {seed}: {command}")
        for violation in violations[:5]:
            _say(f"  ✗ {violation}")
    if tally.violations and options.shrink:
        seed = min(seed for seed, _, _ in tally.violations)
        _shrunk(simulate(seed, pipeline=options.pipeline))
    return 1 if tally.violations else 0


def _progress(campaign: Campaign) -> None:
    tally = campaign.tally
    _say(
        f"\rseed {campaign.next_seed - 1:,}: {tally.batches:,} batches, "
        f"{tally.batches / campaign.seconds:,.0f} a second, "
        f"{sum(tally.fired.values()):,} faults, {len(tally.violations)} violation(s)   ",
        end="",
    )


def _silent(campaign: Campaign) -> None:
    """Nothing is said in between."""


def _changes(options: argparse.Namespace) -> dict[str, Any]:
    """``--change batches=3,tasks=1``: values as Python writes them, or words."""
    changes: dict[str, Any] = {}
    for part in filter(None, (options.change or "").split(",")):
        name, found, value = part.partition("=")
        if not found:
            raise ValueError(f"--change wants name=value, not {part!r}")
        changes[name] = _value(value)
    if options.off:
        changes["off"] = tuple(options.off.split(","))
    return changes


def _value(text: str) -> Any:
    known = {"True": True, "False": False, "None": None}
    if text in known:
        return known[text]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:  # noqa: PERF203 - twice
            continue
    return text


def _faults(text: str | None) -> list[Fired] | None:
    if text is None:
        return None
    return [] if text in ("", "none") else [fault_of(name) for name in text.split(",")]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulation", description="The protocol, simulated: one seed, one story."
    )
    parser.add_argument("--seeds", default="1-2000", metavar="1-100000", help="a range of seeds")
    parser.add_argument("--jobs", type=int, default=2, help="OS processes")
    parser.add_argument("--minutes", type=float, help="no new seeds after so many minutes")
    parser.add_argument(
        "--report", type=Path, help="write what was found to this file, as Markdown"
    )
    parser.add_argument(
        "--keep-going", action="store_true", help="do not stop at the first violation"
    )
    parser.add_argument("--quiet", action="store_true", help="no line of progress")
    parser.add_argument(
        "--no-shrink",
        dest="shrink",
        action="store_false",
        help="a failing seed is not made shorter",
    )
    parser.add_argument("--pipeline", choices=[*swarm.pipelines()], help="this kind only")
    parser.add_argument("--seed", type=int, help="this one seed")
    parser.add_argument("--show", action="store_true", help="its timeline, routine folded")
    parser.add_argument("--whole", action="store_true", help="its timeline, every line")
    parser.add_argument(
        "--change", metavar="batches=3,tasks=1", help="other values than the seed's"
    )
    parser.add_argument("--off", metavar="net:held,…", help="these kinds of faults are off")
    parser.add_argument("--without", metavar="net:held@7,…", help="without these faults")
    parser.add_argument(
        "--only", metavar="net:held@7,…", help="these faults and no others; none: no faults"
    )
    parser.add_argument(
        "--aim", metavar="net:held|commit", help="this kind of fault, in this step of the engine"
    )
    return parser


def _say(text: str, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
