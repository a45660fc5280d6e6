"""The mutants of ``make mutants`` must not rot: each still applies, and the tests that kill it are
there.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from mutants.mutant import CONTROLS, DEMANDED, LEVELS, ROOT, Mutant, mutants
from tiers import Collected

FINDINGS = mutants(ROOT / "tests" / "simulation" / "findings")
"""Put back for the simulation to find (``make simulate-mutants``)."""


@pytest.mark.parametrize("mutant", [*mutants(), *FINDINGS], ids=lambda mutant: mutant.name)
def test_it_applies_and_is_still_python(mutant: Mutant, tmp_path: Path):
    for name in mutant.files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for file in mutant.apply(tmp_path):
        compile(file.read_text(), str(file), "exec")


@pytest.mark.parametrize("mutant", [*mutants(), *FINDINGS], ids=lambda mutant: mutant.name)
def test_it_can_be_nowhere_else(mutant: Mutant):
    """git takes the nearest place that a hunk fits: where its lines come again, it would break
    another promise.
    """
    places = [_places(name, before) for name, before in _hunks(mutant)]
    assert places
    assert places == [1] * len(places)


def _hunks(mutant: Mutant) -> list[tuple[str, list[str]]]:
    """Of each the file, and the lines that it replaces, with those around."""
    hunks: list[tuple[str, list[str]]] = []
    file = ""
    for line in mutant.path.read_text().splitlines():
        if line.startswith("--- "):
            file = line.removeprefix("--- a/")
        elif line.startswith("@@ "):
            hunks.append((file, []))
        elif hunks and not line.startswith("+"):
            hunks[-1][1].append(line[1:])
    return hunks


def _places(name: str, before: list[str]) -> int:
    lines = (ROOT / name).read_text().splitlines()
    return sum(lines[at : at + len(before)] == before for at in range(len(lines)))


def test_every_killer_is_a_test_that_can_be_run(suite: Collected):
    """As pytest itself has collected it, so that a parameter that was renamed is noticed, too."""
    nodes = sorted(
        {node for mutant in mutants() for level in LEVELS for node in mutant.tests[level]}
        | {*CONTROLS}
    )
    # A class, or a function of several cases, stands for all that is in it.
    there = {
        prefix
        for test in suite
        for prefix in (test, test.partition("[")[0], test.rpartition("::")[0])
    }
    assert [node for node in nodes if node not in there] == []


def test_the_mutants_that_the_promises_name_are_all_there():
    assert [mutant.demanded for mutant in mutants() if mutant.demanded] == list(DEMANDED)
    assert all(any(mutant.tests.values()) for mutant in mutants())
    assert all(mutant.breaks for mutant in mutants())
