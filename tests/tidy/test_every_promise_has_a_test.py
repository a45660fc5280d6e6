"""Each promise of the guarantees has one id, and each id is in the name or docstring of a test."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROMISES = ROOT / "docs" / "reference" / "guarantees.md"
EVIDENCE = ROOT / "docs" / "explanation" / "how-it-is-tested.md"
ID = re.compile(r"\bI[1-9]\d?\b")


def first_cells(page: Path, section: str) -> list[str]:
    """Return the first column of the section's tables, without heads."""
    text = page.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| I")]


def ids_in_tests() -> set[str]:
    here = Path(__file__).parent
    tests = (test for test in (ROOT / "tests").rglob("*.py") if here not in test.parents)
    return {name for test in tests for name in ID.findall(test.read_text())}


def test_every_id_occurs_once_in_the_table():
    ids = first_cells(PROMISES, "The promises")
    assert Counter(ids) == Counter({f"I{number}" for number in range(1, len(ids) + 1)})


def test_every_promise_is_in_a_test_and_no_other_is():
    assert ids_in_tests() == set(first_cells(PROMISES, "The promises"))


def test_every_promise_says_what_shows_it():
    cells = first_cells(EVIDENCE, "What shows each promise")
    assert [name for cell in cells for name in ID.findall(cell)] == first_cells(
        PROMISES, "The promises"
    )
