"""All public names stand on one page, which its script writes, and each says what it is."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path
from types import ModuleType

import pytest

import onceward
import onceward_testing
from onceward import errors
from tools.code_figures import begins_with_a_verb

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tables" / "api.py"))
NO_NOUN = {"what", "who", "whether", "how", "of", "see", "where", "why"}
NOT_YET = {"fired_faults", "read_topic", "s3a_jars"}
"""Of ``onceward_testing``; this list may only shrink."""
PACKAGES = [onceward, onceward_testing]
PUBLIC = [(package, name) for package in PACKAGES for name in SCRIPT["public_names"](package)]


def value_of(package: ModuleType, name: str) -> object:
    value: object = package
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_the_page_has_every_public_name_and_no_other() -> None:
    listed = {name for names in SCRIPT["_GROUPS"].values() for name in names}
    public = {name for package, name in PUBLIC if package is onceward}
    constants = {name for name in public if not getattr(value_of(onceward, name), "__doc__", None)}
    assert listed == public - constants - {"events.STEPS", "events.Phase"}


def test_the_page_is_what_the_code_says() -> None:
    assert SCRIPT["PAGE"].read_text(encoding="utf-8") == SCRIPT["page"](), (
        "run python docs/tables/api.py"
    )


@pytest.mark.parametrize(
    ("package", "name"), PUBLIC, ids=lambda value: getattr(value, "__name__", value)
)
def test_every_public_name_explains_itself(package: ModuleType, name: str) -> None:
    value = value_of(package, name)
    if name in NOT_YET:
        return
    if not inspect.isroutine(value) and not inspect.isclass(value) and value is not errors:
        return  # a constant or a type, which its module explains
    text = inspect.getdoc(value)
    assert text, name
    first = text.split()[0].strip(",.:").lower()
    assert first not in NO_NOUN, text
    assert not text.startswith(("See ", "The same")), text
    if inspect.isfunction(value):
        assert begins_with_a_verb(text), text.splitlines()[0]
