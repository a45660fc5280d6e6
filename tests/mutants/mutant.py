"""What a mutant is: a patch that breaks one promise, and the tests that must notice.

Used by ``run.py``, which runs them, and by ``tests/tidy``, which sees that they still apply. A
mutant is one file, ``NN-name.patch``: a header of ``Word: text`` lines, then a unified diff
against ``src/`` with little context, so that edits nearby do not matter. The words:

* ``Breaks``: the promise, and how it is broken.
* ``List``: which of the mutants that PROMISES demands it is; missing for the others.
* ``Unit``: a test without a broker that must fail; any number of them.
* ``Broker``: a test on a real broker that must fail; any number of them.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent

LEVELS = ("unit", "broker")

CONTROLS = (
    "tests/broker/test_demo.py::test_the_same_kills_make_sparks_own_sink_repeat_records",
    "tests/chaos/test_sparks_own_sink.py::test_sparks_own_sink_is_reported_as_duplicating_and_as_losing_nothing",
)
"""Spark's own sink under kills that Onceward survives, which must be reported as duplicating."""

CODE_THAT_CANNOT_RUN = ("TypeError", "AttributeError", "NameError")
"""A mutant that ends so breaks no promise, but Python: that is no kill."""

DEMANDED = (
    "no epoch bump",
    "epoch reused on retry",
    "EndTxn before all acks",
    "ledger outside the transaction",
    "ledger read uncommitted",
    "no replay check",
    "fencing swallowed",
    "abort after an unanswered commit",
    "stale sequences",
    "report check removed",
    "lease released before its acknowledgements",
    "sequencer not reset between epochs",
    "second attempt let in",
)


class PatchDoesNotApply(Exception):
    """The code has moved away from under a mutant, which has to follow."""


@dataclass(frozen=True)
class Mutant:
    """One patch file, read."""

    path: Path
    breaks: str
    demanded: str
    tests: dict[str, tuple[str, ...]]
    """Node ids per level, in the order in which they are tried."""

    @property
    def name(self) -> str:
        return self.path.stem

    @staticmethod
    def read(path: Path) -> Mutant:
        header: dict[str, list[str]] = {}
        for line in path.read_text().splitlines():
            if line.startswith("--- "):
                break
            word, _, text = line.partition(": ")
            header.setdefault(word, []).append(text)
        return Mutant(
            path,
            breaks=" ".join(header.pop("Breaks")),
            demanded=" ".join(header.pop("List", [])),
            tests={level: tuple(header.pop(level.capitalize(), ())) for level in LEVELS},
        )

    def apply(self, folder: Path, original: Path = ROOT) -> list[Path]:
        """Change the copy of ``src`` in ``folder``; returns the files that now differ from the
        ``original``.

        :raises PatchDoesNotApply: with git's own words.
        """
        # Inside a repository git would take the paths for those of the repository, and skip them
        # without a word.
        environment = {name: value for name, value in os.environ.items() if name != "GIT_DIR"}
        environment["GIT_CEILING_DIRECTORIES"] = str(folder.resolve().parent)
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-p1", str(self.path)],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise PatchDoesNotApply(f"{self.path.name}: {done.stderr.strip()}")
        changed = [
            folder / name
            for name in self.files
            if (folder / name).read_text() != (original / name).read_text()
        ]
        if len(changed) != len(self.files):
            raise PatchDoesNotApply(f"{self.path.name}: applied, but the files are as before")
        return changed

    @property
    def files(self) -> list[str]:
        """The files that the patch changes, as it names them."""
        lines = self.path.read_text().splitlines()
        return [line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def mutants(folder: Path = FOLDER) -> list[Mutant]:
    """All of them, by number."""
    return [Mutant.read(path) for path in sorted(folder.glob("*.patch"))]
