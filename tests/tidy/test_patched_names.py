"""A test that patches or asks for an attribute by its name, in quotes, names one that is there.

Type checkers and renaming tools do not look into strings; a lengthy suite would find it first.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def imported(tree: ast.Module) -> dict[str, object]:
    """What the names of a test module that come from the product stand for."""
    names: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onceward"):
            assert node.module
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    importlib.import_module(f"{node.module}.{alias.name}")
                names[alias.asname or alias.name] = getattr(module, alias.name)
    return names


def patches(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Each ``….setattr(Name, "attribute", …)`` that has to find the attribute: line and both."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Name(id=owner), ast.Constant(value=str(attribute)), *_],
                keywords=keywords,
            ) if all(keyword.arg != "raising" for keyword in keywords):
                yield node.lineno, owner, attribute


def test_what_is_patched_is_there():
    missing = []
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text())
        found = list(patches(tree))
        names = imported(tree) if found else {}
        missing += [
            f"{path.relative_to(TESTS)}:{line} {owner}.{attribute}"
            for line, owner, attribute in found
            if owner in names and not hasattr(names[owner], attribute)
        ]
    assert missing == []
