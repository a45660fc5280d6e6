"""The fault table is a promise of its own: each of its rows is shown by some test."""

from __future__ import annotations

import ast
from pathlib import Path

from fault_table import FAULTS

TESTS = Path(__file__).resolve().parents[1]


def faults_named_in(module: Path) -> set[str]:
    """The arguments of every ``fault(…)`` mark of a module."""
    marks = (
        node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)
    )
    return {
        argument.value
        for mark in marks
        if isinstance(mark.func, ast.Attribute) and mark.func.attr == "fault"
        for argument in mark.args
        if isinstance(argument, ast.Constant)
    }


def test_every_row_of_the_fault_table_is_shown_by_a_test():
    shown = set[str]().union(*(faults_named_in(module) for module in TESTS.rglob("test_*.py")))
    assert shown <= set(FAULTS), "a mark names no row"
    assert set(FAULTS) - shown == set(), "rows without a test"
