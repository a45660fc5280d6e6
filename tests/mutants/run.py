"""``make mutants``: break the code in known ways, one by one. Some test must notice each.

First the control: every test that is named as a killer must pass on a copy of the code as it is.
Then for each mutant: a copy of its own, the patch, and the tests that its header names, level by
level. A test kills when it fails, or hangs, in its own body; what fails while it is set up, and a
fault that never fired, count as nothing. A patch that does not type-check is invalid. The table of
who killed whom goes to ``build/evidence/mutants.md``.

The working tree is never touched, and what the tests import is the copy, in Spark's Python
workers, too (``witness``). Exit status: 0 all killed; 1 a mutant survived; 2 a patch does not
apply, the control failed, or the wrong code ran.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mutant import (
    CODE_THAT_CANNOT_RUN,
    CONTROLS,
    DEMANDED,
    LEVELS,
    ROOT,
    Mutant,
    PatchDoesNotApply,
    mutants,
)
from type_check import type_errors
from witness import REPORT, SOURCE

TABLE = ROOT / "build" / "evidence" / "mutants.md"
TEST_LIMIT_SECONDS = {"unit": 60, "broker": 150}
"""How long one test may take, once its brokers and Spark are there. The slowest takes a tenth of
it; whoever takes longer hangs.
"""
RUN_LIMIT_SECONDS = {"unit": 300, "broker": 600}
"""How long a whole run may take, should a test hang in a way that pytest cannot end."""


class Invalid(Exception):
    """This run says nothing about the tests; its text says why."""


@dataclass(frozen=True)
class Trial:
    """One pytest run: what failed first in its own body, if anything did."""

    killer: str | None = None
    hung: bool = False
    passed: int = 0
    noise: tuple[str, ...] = ()
    """What went wrong elsewhere: set-up, clean-up, a fault that never fired, no test found."""


@dataclass
class Verdict:
    """What became of one mutant."""

    mutant: Mutant
    trials: dict[str, Trial] = field(default_factory=dict)
    invalid: str = ""

    @property
    def killed(self) -> bool:
        return any(trial.killer for trial in self.trials.values())

    @property
    def idle(self) -> list[str]:
        """Levels with tests of which none noticed."""
        return [level for level, trial in self.trials.items() if not trial.killer]


class Workshop:
    """A folder with a snapshot of the tests, and of the code once for each mutant.

    What was tried in it before, in a run that was interrupted, is not tried again.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._base = folder / "base"
        if not self._base.exists():
            _snapshot(self._base)
        self.mutants = mutants(self._base / "tests" / "mutants")
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def stop(self) -> None:
        """End what is still running. Brokers and Spark end with their pytest."""
        self._stopped = True
        for process in list(self._running):
            process.kill()

    def type_errors(self, chosen: Iterable[Mutant]) -> dict[str, str]:
        """Return mypy's complaints by mutant, of those whose patched files it refuses."""
        return type_errors(chosen, self._base, self._folder / "typed")

    def control(self, tests: dict[str, list[str]]) -> None:
        """Run the killers on the code as it is.

        :raises Invalid: one of them fails without any mutant.
        """
        for level, nodes in tests.items():
            if not nodes:
                continue
            trial = self._once(self._base, f"control-{level}", nodes, level, stop_at_first=False)
            if trial.killer or trial.noise:
                raise Invalid(f"control, {level}: {trial.killer or ''} {' '.join(trial.noise)}")
            _tell(f"control, {level}: {trial.passed} passed")

    def judge(self, mutant: Mutant, levels: Iterable[str]) -> Verdict:
        verdict = Verdict(mutant)
        home = self._folder / mutant.name
        try:
            if not home.exists():
                self._make(mutant, home)
            for level in levels:
                if mutant.tests[level]:
                    verdict.trials[level] = trial = self._once(
                        home, level, mutant.tests[level], level
                    )
                    self._confirm(mutant, trial, level)
        except (PatchDoesNotApply, Invalid, SyntaxError) as error:
            verdict.invalid = str(error)
        return verdict

    def _make(self, mutant: Mutant, home: Path) -> None:
        new = home.with_name(f"{home.name}.new")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(
            self._base / "src", new / "src", ignore=shutil.ignore_patterns("__pycache__")
        )
        for file in mutant.apply(new, self._base):
            compile(file.read_text(), str(file), "exec")
        new.rename(home)

    def _once(
        self,
        home: Path,
        name: str,
        nodes: Sequence[str],
        level: str,
        *,
        stop_at_first: bool = True,
    ) -> Trial:
        """As :meth:`_run`, or what it found the last time."""
        known = home / f"{name}.json"
        if known.exists():
            return Trial(**json.loads(known.read_text()))
        trial = self._run(home, name, nodes, level, stop_at_first=stop_at_first)
        known.write_text(json.dumps(asdict(trial)))
        return trial

    def _confirm(self, mutant: Mutant, trial: Trial, level: str) -> None:
        """A test may hang because of the mutant, or because the machine is busy: ask again without
        the mutant.

        :raises Invalid: it hangs there, too.
        """
        if not (trial.hung and trial.killer):
            return
        again = self._once(self._base, f"{mutant.name}-{level}-without", [trial.killer], level)
        if again.killer or again.noise:
            raise Invalid(f"{trial.killer} hung, and hangs without the mutant, too")

    def _run(
        self,
        home: Path,
        name: str,
        nodes: Sequence[str],
        level: str,
        *,
        stop_at_first: bool = True,
    ) -> Trial:
        report, log = home / f"{name}.jsonl", home / f"{name}.log"
        report.write_text("")
        folder = home / "tmp"
        folder.mkdir(exist_ok=True)
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "witness", "-p", "no:cacheprovider", "-W",
            "ignore", "--hypothesis-profile=thorough",
            f"--timeout={TEST_LIMIT_SECONDS[level]}", "-o", "timeout_func_only=true",
            f"--basetemp={folder / name}",
            *(["-x"] if stop_at_first else []), *nodes,
        ]  # fmt: skip
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                [str(home / "src"), str(self._base / "tests" / "mutants")]
            ),
            "PYTHONDONTWRITEBYTECODE": "1",
            SOURCE: str(home / "src"),
            REPORT: str(report),
        }
        if self._stopped:
            raise Invalid("interrupted")
        with log.open("w") as out:
            process = subprocess.Popen(
                command,
                cwd=self._base,
                env=environment,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._running.add(process)
            try:
                status = process.wait(RUN_LIMIT_SECONDS[level] * (1 if stop_at_first else 3))
            except subprocess.TimeoutExpired:
                status = None
            finally:
                process.kill()
                process.wait()
                self._running.discard(process)
        if self._stopped:
            raise Invalid("interrupted")
        return _judged(report, status, log)


def _snapshot(base: Path) -> None:
    """The tree as it is now, so that whoever goes on working on it does not disturb."""
    unfinished = base.with_name("unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name in ("src", "examples", "tests"):
        shutil.copytree(
            ROOT / name, unfinished / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copy(ROOT / "pyproject.toml", unfinished)
    unfinished.rename(base)


def _tell(text: str) -> None:
    """To the terminal, and at once: a run takes a while."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _judged(report: Path, status: int | None, log: Path) -> Trial:
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    passed = [
        line["test"] for line in lines if line["when"] == "call" and line["outcome"] == "passed"
    ]
    noise: list[str] = []
    for line in lines:
        if line["outcome"] != "failed":
            continue
        if (
            line["when"] == "call"
            and not line["invalid"]
            and line["error"] not in CODE_THAT_CANNOT_RUN
        ):
            return Trial(line["test"], line["hung"], len(passed))
        noise.append(
            f"{line['test']} ({'INVALID' if line['invalid'] else line['error'] or line['when']})"
        )
    if status is None:
        begun = [line["test"] for line in lines if line["when"] == "setup"]
        ended = {line["test"] for line in lines if line["when"] == "call"}
        hanging = [test for test in begun if test not in ended]
        return Trial(
            hanging[0] if hanging else None,
            True,
            len(passed),
            () if hanging else ("the run never ended",),
        )
    if status not in (0, 1):
        raise Invalid(f"pytest ended with {status}: {log.read_text()[-600:]}")
    if not passed and not noise:
        noise.append("no test was run")
    return Trial(None, False, len(passed), tuple(noise))


# ── what is said about it ──


def _say(verdict: Verdict, seconds: float) -> None:
    name = verdict.mutant.name
    if verdict.invalid:
        _tell(f"INVALID   {name}: {verdict.invalid}")
        return
    _tell(f"{'killed' if verdict.killed else 'SURVIVED':9} {name} ({seconds:.0f} s)")
    for level, trial in verdict.trials.items():
        how = (
            f"{trial.killer}{' (hung)' if trial.hung else ''}"
            if trial.killer
            else f"{trial.passed} passed"
        )
        _tell(f"          {level}: {how} {' '.join(trial.noise)}".rstrip())


def _cell(trial: Trial | None, tests: Sequence[str]) -> str:
    if not tests:
        return "–"
    if trial is None or trial.killer is None:
        return "not tried" if trial is None else "not noticed"
    path, _, test = trial.killer.removeprefix("tests/").partition("::")
    return f"`{path}` `{test}`" + (" (hangs)" if trial.hung else "")


_PREFACE = f"""\
# Mutants: who would notice if the code were wrong?

Made by `make mutants`. Each mutant is a patch in `tests/mutants` that breaks one promise on purpose. It is applied to
a copy of the code, where it must type-check, and the tests that are named for it must fail; on the code as it is the
same tests pass, in the same run, before. *Without a broker*: values, threads, processes and sockets of our own. *On a
real broker*: Kafka 4.3.1 or 3.9.1 (in the test's name), with Spark where the path begins with `spark/`. The first test
that fails is named. One that hangs is counted as failed: within its limit it passes without the mutant.

## The control

Tests that find nothing wrong with a correct sink prove little until they find something wrong with another one. Spark's
own Kafka sink, under kills that Onceward survives, must be reported as writing records twice, and is:

{chr(10).join(f"* `{node.removeprefix('tests/')}`" for node in CONTROLS)}
"""

_FAKES = """\
For these no test on a real broker is named: what they break is a rule over values, or a race of our own processes,
which no broker can be made to show on demand.
"""


def table(verdicts: Sequence[Verdict]) -> str:
    """Return the text of ``build/evidence/mutants.md``, which depends on the outcome only."""
    demanded = [v for v in verdicts if v.mutant.demanded]
    others = [v for v in verdicts if not v.mutant.demanded]
    fakes = [f"* `{v.mutant.name}`" for v in verdicts if not v.mutant.tests["broker"]]
    killed = f"{sum(v.killed for v in verdicts)} of {len(verdicts)} killed."
    parts = [
        _PREFACE, "## The mutants "
                  "that the promises name\n", _rows(demanded), "## More of them\n", _rows(others),
        "## Killed "
        "without a broker only\n", _FAKES, "\n".join(fakes) + "\n", "## In all\n", killed + "\n",
    ]  # fmt: skip
    return "\n".join(parts)


def _rows(verdicts: Sequence[Verdict]) -> str:
    lines = [
        "| mutant | what it breaks | killed without a broker by | killed on a real broker by |",
        "|---|---|---|---|",
    ]
    for verdict in verdicts:
        mutant = verdict.mutant
        name = f"`{mutant.name}`" + (f": {mutant.demanded}" if mutant.demanded else "")
        cells = [_cell(verdict.trials.get(level), mutant.tests[level]) for level in LEVELS]
        lines.append(f"| {name} | {mutant.breaks} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Break the code in known ways: some test must notice each."
    )
    parser.add_argument(
        "names", nargs="*", help="run these only (numbers or names); the table is not written then"
    )
    parser.add_argument(
        "--level",
        choices=LEVELS,
        help="run the tests of this level only; the table is not written",
    )
    parser.add_argument(
        "--types",
        action="store_true",
        help="only see that the patched files type-check; run no test",
    )
    parser.add_argument(
        "--jobs", type=int, default=2, help="mutants under trial at the same time (2)"
    )
    parser.add_argument(
        "--keep", type=Path, help="work in this folder and leave it; go on there if it exists"
    )
    options = parser.parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return _trials(Workshop(options.keep.resolve()), options)
    with tempfile.TemporaryDirectory(
        prefix="onceward-mutants-", ignore_cleanup_errors=True
    ) as folder:
        return _trials(Workshop(Path(folder).resolve()), options)


def _trials(workshop: Workshop, options: argparse.Namespace) -> int:
    levels = [options.level] if options.level else list(LEVELS)
    chosen = [
        mutant
        for mutant in workshop.mutants
        if any(mutant.tests[level] for level in levels)
        and (not options.names or any(mutant.name.startswith(name) for name in options.names))
    ]
    whole = not options.names and not options.level
    if whole and (missing := set(DEMANDED) - {mutant.demanded for mutant in chosen}):
        _tell(f"INVALID: no mutant for {sorted(missing)}")
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    if whole or options.types:
        errors = workshop.type_errors(chosen)
        for name, text in errors.items():
            _tell(f"INVALID: {name or 'the code as it is'} does not type-check:\n{text}")
        if errors or options.types:
            return 2 if errors else 0
    try:
        workshop.control(
            {
                level: sorted({n for mutant in chosen for n in mutant.tests[level]})
                for level in levels
            }
        )
    except Invalid as error:
        _tell(f"INVALID: {error}")
        return 2

    def trial(mutant: Mutant) -> Verdict:
        began = time.monotonic()
        verdict = workshop.judge(mutant, levels)
        _say(verdict, time.monotonic() - began)
        return verdict

    pool = ThreadPoolExecutor(options.jobs)
    try:
        verdicts = list(pool.map(trial, chosen))
    finally:
        workshop.stop()
        pool.shutdown(cancel_futures=True)
    return _summary(verdicts, whole)


def _summary(verdicts: Sequence[Verdict], whole: bool) -> int:
    invalid = [v.mutant.name for v in verdicts if v.invalid]
    alive = [v.mutant.name for v in verdicts if not v.invalid and not v.killed]
    idle = [f"{v.mutant.name} ({level})" for v in verdicts if v.killed for level in v.idle]
    _tell(f"{sum(v.killed for v in verdicts)} of {len(verdicts)} mutants killed")
    for what, names in (
        ("INVALID", invalid),
        ("SURVIVED", alive),
        ("killed, but a level did not notice", idle),
    ):
        if names:
            _tell(f"{what}: {', '.join(names)}")
    if invalid:
        return 2
    if alive or idle:
        return 1
    if whole:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        TABLE.write_text(table(verdicts))
        _tell(f"written: {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
