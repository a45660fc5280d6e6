"""Commands that other packages register: loaded when asked for, and one that fails leaves the
others alone.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints

import pytest
from typer.testing import CliRunner

from onceward.cli import app, groups

UNAVAILABLE = 69


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = EntryPoints(
        EntryPoint(name, value, groups.COMMANDS)
        for name, value in {
            "broken": "onceward.no_such_module:app",
            "jars": "onceward.no_such_module:app",
            "works": "test_commands_of_other_packages:works",
        }.items()
    )
    monkeypatch.setattr(groups, "entry_points", lambda **which: entries.select(**which))


def works(number: int) -> None:
    """Print a number."""
    print(number)  # noqa: T201


@pytest.mark.usefixtures("registered")
def test_a_command_that_cannot_be_imported_is_one_line_and_a_next_step():
    result = CliRunner().invoke(app, ["broken", "--some", "option"])
    assert result.exit_code == UNAVAILABLE
    lines = result.stderr.splitlines()
    assert lines[0].startswith(
        "broken is not available: onceward.no_such_module:app cannot be imported: "
    )
    assert lines[1].startswith("Next: install ")
    assert len(lines) == 2


@pytest.mark.usefixtures("registered")
def test_the_other_commands_work():
    assert CliRunner().invoke(app, ["works", "7"]).stdout == "7\n"
    help_text = CliRunner().invoke(app, ["--help"]).stdout
    assert all(name in help_text for name in ("doctor", "works", "broken is not available"))


@pytest.mark.usefixtures("registered")
def test_no_package_replaces_a_command_of_ours():
    assert "is not available" not in CliRunner().invoke(app, ["jars", "--help"]).stdout
