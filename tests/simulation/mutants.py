"""``make simulate-mutants``: what of the known ways to break the code does the simulation find,
alone, and how soon?

Each mutant of ``tests/mutants`` that concerns decisions, and each finding of an earlier reading
that was mended, put back by a patch in ``findings``. Seeds are told from 1 on by a copy of the
code with the patch, in the pipelines that come to that place, until one is violated that the code
as it is tells without a violation. The table goes to ``build/evidence/simulation-mutants.md``.
Exit status: 0 all that were tried are found; 1 some are not; 2 a patch does not apply.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mutants.mutant import CODE_THAT_CANNOT_RUN, ROOT, Mutant, PatchDoesNotApply, mutants
from simulation.hunted import (
    FAULTS,
    NOT_HERE,
    NOT_HERE_BY_NUMBER,
    OPTIONS,
    PIPELINES,
    PLACES,
    SEEN_THROUGH,
    USERS,
)
from simulation.teller import Seed, Teller, Told

FINDINGS = Path(__file__).with_name("findings")
_LATER = "not run since the simulation comes to their place"
TABLE = ROOT / "build" / "evidence" / "simulation-mutants.md"
HANGS_SECONDS = 120.0
"""Nobody tells a seed for so long, on a machine that has other things to do, too; a hundredth is
more than enough.
"""


class Verdict(NamedTuple):
    """What became of one. ``invariant`` is "" if nothing was found, ``why_not`` then says why
    nothing could be.
    """

    name: str
    breaks: str
    seed: Seed | None = None
    invariant: str = ""
    sentence: str = ""
    seeds: int = 0
    batches: int = 0
    cpu_seconds: float = 0.0
    why_not: str = ""

    @property
    def found(self) -> bool:
        return bool(self.invariant)


class Control:
    """The code as it is. What it was asked before, it knows."""

    def __init__(self, source: Path) -> None:
        self._teller = Teller(source)
        self._known: dict[str, bool] = {}
        self.violated: dict[str, tuple[Seed, str]] = {}
        """Seeds that are not even clean without a mutant: bugs, of the product or of the
        simulation.
        """

    def clean(self, seed: Seed) -> bool:
        key = json.dumps(seed)
        if key not in self._known:
            told = self._teller.tell(seed, HANGS_SECONDS)
            self._known[key] = told is not None and not told.violations
            if not self._known[key]:
                self.violated[key] = (seed, told.violations[0] if told else "it hangs")
        return self._known[key]

    def end(self) -> None:
        self._teller.end()


def why_not(mutant: Mutant) -> str:
    """Why the simulation cannot find it; "": it should."""
    if mutant.path.parent == FINDINGS:
        return ""
    number = mutant.name.partition("-")[0]
    files = [file.removeprefix("src/onceward/") for file in mutant.files]
    known = NOT_HERE_BY_NUMBER.get(number)
    return known or next(
        (why for file in files for place, why in NOT_HERE if file.startswith(place)), ""
    )


def seeds_of(mutant: Mutant, there_are: Sequence[str], first: int) -> Iterator[Seed]:
    """Seeds without end, or none if no pipeline comes to where the patch is. Of three, one is the
    swarm's as it is, one has faults that the place is about, and one is aimed at such a fault in
    some step, each in its turn; these two have the user who comes there, if others do not.
    """
    files = [file.removeprefix("src/onceward/") for file in mutant.files]
    places = [
        next((place for place in PLACES if file.startswith(place[0])), ("", (), ()))
        for file in files
    ]
    pipelines = list(
        dict.fromkeys(one for _, kinds, _ in places for one in kinds if one in there_are)
    )
    groups = list(dict.fromkeys(group for _, _, faults in places for group in faults))
    number, _, _ = mutant.name.partition("-")
    known_as = f"{number}-" if mutant.path.parent == FINDINGS else number
    groups = list(FAULTS.get(known_as, groups))
    pipelines = [
        pipeline for pipeline in pipelines if pipeline in PIPELINES.get(known_as, pipelines)
    ]
    user = {"user": USERS[known_as]} if known_as in USERS else {}
    options = OPTIONS.get(known_as, {})
    for seed in itertools.count(first) if pipelines else ():
        for pipeline in pipelines:
            changes = {**(user if pipeline == "kafka" else {}), **options}
            yield pipeline, seed, {}, [], False
            yield pipeline, seed, changes, groups, False
            yield pipeline, seed, changes, groups, True


def hunt(
    mutant: Mutant, seeds_to_tell: Iterator[Seed], copy: Path, control: Control, limit: float
) -> Verdict:
    """Seed after seed, until one betrays the mutant, or so many seconds of CPU are over."""
    teller, seeds, batches, spent = Teller(copy / "src"), 0, 0, 0.0
    try:
        for seed in seeds_to_tell:
            told = teller.tell(seed, HANGS_SECONDS)
            seeds += 1
            if told is None:
                told = Told(
                    [f"I8 liveness: the story takes more than {HANGS_SECONDS:.0f} s"],
                    False,
                    0,
                    HANGS_SECONDS,
                )
            batches, spent = batches + told.batches, spent + told.cpu_seconds
            promises = [
                one
                for one in told.violations
                if not any(error in one for error in CODE_THAT_CANNOT_RUN)
            ]
            if promises and not told.broken and control.clean(seed):
                invariant, _, sentence = promises[0].partition(": ")
                return Verdict(
                    mutant.name, mutant.breaks, seed, invariant, sentence, seeds, batches, spent
                )
            if spent > limit:
                break
    finally:
        teller.end()
    return Verdict(mutant.name, mutant.breaks, None, "", "", seeds, batches, spent)


def judge(
    mutant: Mutant,
    there_are: Sequence[str],
    folder: Path,
    control: Control,
    limit: float,
    first: int,
) -> Verdict:
    """:raises PatchDoesNotApply: the code has moved away."""
    reason = why_not(mutant)
    seeds = seeds_of(mutant, there_are, first)
    some = next(seeds, None)
    if reason or some is None:
        return Verdict(
            mutant.name,
            mutant.breaks,
            why_not=reason or "no pipeline that comes there is simulated",
        )
    copy = folder / mutant.name
    shutil.copytree(
        folder / "base" / "src", copy / "src", ignore=shutil.ignore_patterns("__pycache__")
    )
    for file in mutant.apply(copy, folder / "base"):
        compile(file.read_text(), str(file), "exec")
    try:
        return hunt(mutant, itertools.chain([some], seeds), copy, control, limit)
    finally:
        shutil.rmtree(copy)


# ── what is said about it ──


def _say(verdict: Verdict) -> None:
    if verdict.why_not:
        return
    if verdict.found:
        assert verdict.seed is not None
        _tell(f"found     {verdict.name}: {_seed_text(verdict.seed)}, {verdict.cpu_seconds:.1f} s "
              f"of CPU, "
              f"{verdict.seeds} seeds: {verdict.invariant}: {verdict.sentence[:160]}")  # fmt: skip
    else:
        _tell(
            f"NOT FOUND {verdict.name}: {verdict.seeds} seeds, {verdict.batches} batches, "
            f"{verdict.cpu_seconds:.0f} s"
        )


def _seed_text(seed: Seed) -> str:
    pipeline, number, changes, groups, aimed = seed
    changed = "".join(f", {name}={value}" for name, value in changes.items())
    return (
        f"{pipeline} "
        f"{number}{changed}{(', aimed ' if aimed else ', faults ') if groups else ''}{' '.join(groups)}"
    )


def _tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


_PREFACE = """\
# What of the known ways to break the code does the simulation find?

Made by `make simulate-mutants`. Each line is a patch that breaks one promise on purpose: those of `tests/mutants`,
and, put back, findings of an early reading of the code that were mended since (`tests/simulation/findings`). Seeds of
the simulation are told from 1 on by a copy of the code with the patch, until a story is violated that the code as it is
tells without a violation. Nothing else is run: no test, no broker. Of a mutant only its place is known: which pipelines
come there, which groups of faults a place like that is about (one seed in three has any of all there are, one is aimed
at such a fault in some step, each in its turn), and for some which kind of user, or which faults. Seconds are those of
one CPU, stories alone. A line is told again by `make simulate-mutants ARGS=<name>`.
"""


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the text of ``build/evidence/simulation-mutants.md``."""
    found = [verdict for verdict in verdicts if verdict.found]
    missed = [verdict for verdict in verdicts if not verdict.found and not verdict.why_not]
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.why_not:
            reasons.setdefault(verdict.why_not, []).append(verdict.name.partition("-")[0])
    tried = len(found) + len(missed)
    parts = [_PREFACE, f"**{len(found)} of {tried} found.**\n", "## Found\n"]
    parts.append(
        "| what | what it breaks | seed | seeds, batches, seconds | what is violated "
        "|\n|---|---|---|---|---|"
    )
    for verdict in found:
        assert verdict.seed is not None
        effort = f"{verdict.seeds}, {verdict.batches:,}, {verdict.cpu_seconds:.1f}"
        parts.append(f"| `{verdict.name}` | {verdict.breaks} | {_seed_text(verdict.seed)} | "
                     f"{effort} | "
                     f"{verdict.invariant}: {_cell(verdict.sentence)} |")  # fmt: skip
    parts += [
        "\n## Not found\n",
        "| what | what it breaks | seeds, batches, seconds | why |\n|---|---|---|---|",
    ]
    for verdict in missed:
        effort = f"{verdict.seeds}, {verdict.batches:,}, {verdict.cpu_seconds:.0f}"
        number = verdict.name.partition("-")[0]
        why = SEEN_THROUGH.get(number) or SEEN_THROUGH.get(f"{number}-", "not known")
        parts.append(f"| `{verdict.name}` | {verdict.breaks} | {effort} | {why} |")
    parts += ["\n## Not looked for\n", "| mutants | why |\n|---|---|"]
    parts += [
        f"| {', '.join(sorted(numbers, key=int))} | {why} |" for why, numbers in reasons.items()
    ]
    return "\n".join(parts) + "\n"


def _cell(text: str) -> str:
    text = text.replace("|", "\\|").replace("\n", " ")
    return text if len(text) <= 220 else f"{text[:217]}…"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m simulation.mutants", description=__doc__.partition("\n")[0]
    )
    parser.add_argument(
        "names",
        nargs="*",
        help="these only (how their names begin); the table is not written then",
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of CPU for one that is not found (120)"
    )
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument(
        "--known", type=Path, help="remember verdicts in this file, and go on there"
    )
    parser.add_argument(
        "--table", action="store_true", help="only write the table, of what --known remembers"
    )
    options = parser.parse_args()
    chosen = [*(Mutant.read(path) for path in sorted(FINDINGS.glob("*.patch"))), *mutants()]
    if options.names:
        chosen = [
            mutant
            for mutant in chosen
            if any(mutant.name.startswith(name) for name in options.names)
        ]
    known = _known(options.known)
    if options.known and options.table:
        for mutant in chosen:
            if why_not(mutant):
                known.pop(mutant.name, None)
        return _write([known.get(mutant.name) or _untried(mutant) for mutant in chosen])
    with tempfile.TemporaryDirectory(prefix="onceward-simulated-mutants-") as name:
        folder = Path(name).resolve()
        shutil.copytree(
            ROOT / "src", folder / "base" / "src", ignore=shutil.ignore_patterns("__pycache__")
        )
        there_are = _simulated()
        control = Control(folder / "base" / "src")
        verdicts = []
        try:
            for mutant in chosen:
                verdict = known.get(mutant.name)
                if verdict is None or not verdict.found:
                    verdict = judge(
                        mutant, there_are, folder, control, options.seconds, options.first
                    )
                    _say(verdict)
                verdicts.append(verdict)
                _remember(options.known, verdicts)
        except PatchDoesNotApply as error:
            _tell(f"INVALID: {error}")
            return 2
        finally:
            control.end()
        for seed, sentence in control.violated.values():
            _tell(f"NOT CLEAN without a mutant: {_seed_text(seed)}: {sentence[:200]}")
    tried = [verdict for verdict in verdicts if not verdict.why_not]
    _tell(f"{sum(verdict.found for verdict in tried)} of {len(tried)} found")
    if not options.names:
        _write(verdicts)
    return 0 if all(verdict.found for verdict in tried) else 1


def _untried(mutant: Mutant) -> Verdict:
    return Verdict(mutant.name, mutant.breaks, why_not=why_not(mutant) or _LATER)


def _write(verdicts: Sequence[Verdict]) -> int:
    TABLE.parent.mkdir(parents=True, exist_ok=True)
    TABLE.write_text(table(verdicts))
    _tell(f"written: {TABLE.relative_to(ROOT)}")
    return 0


def _simulated() -> list[str]:
    from simulation import swarm

    return list(swarm.pipelines())


def _known(path: Path | None) -> dict[str, Verdict]:
    if path is None or not path.exists():
        return {}
    return {name: Verdict(*fields)._replace(seed=tuple(fields[2]) if fields[2] else None)
            for name, fields in json.loads(path.read_text()).items()}  # fmt: skip


def _remember(path: Path | None, verdicts: Sequence[Verdict]) -> None:
    if path is not None:
        path.write_text(
            json.dumps({**_plain(_known(path)), **_plain({one.name: one for one in verdicts})})
        )


def _plain(verdicts: dict[str, Verdict]) -> dict[str, Any]:
    return {name: tuple(verdict) for name, verdict in verdicts.items()}


if __name__ == "__main__":
    sys.exit(main())
