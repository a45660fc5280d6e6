"""A pytest plugin that sees to it that the code under trial is what runs, and writes down what
became of each test.

Loaded by ``run.py`` with ``-p witness``; runs in the pytest process, and a moment in one of
Spark's Python workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

SOURCE = "ONCEWARD_TRIAL_SOURCE"
REPORT = "ONCEWARD_TRIAL_REPORT"
WRONG_CODE = 70
"""Exit status when another copy of the package was imported: then nothing that the tests say
counts.
"""


def where(_: object = None) -> str:
    """The file that ``import onceward`` comes to in this process."""
    import onceward

    return str(onceward.__file__)


def _insist(found: str, process: str) -> None:
    wanted = Path(os.environ[SOURCE]) / "onceward" / "__init__.py"
    if Path(found) != wanted:
        pytest.exit(f"{process} runs {found}, not {wanted}", returncode=WRONG_CODE)


def pytest_sessionstart() -> None:
    _insist(where(), "pytest")


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, None]:
    outcome = yield
    if fixturedef.argname == "spark" and outcome.excinfo is None:
        (found,) = outcome.get_result().sparkContext.parallelize([0], 1).map(where).collect()
        _insist(found, "Spark's Python worker")


def _error_of(report: pytest.TestReport) -> str:
    """Return the class of the exception that failed the test; "" if it passed, or pytest does not
    say.
    """
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message).partition(":")[0].strip() if crash is not None else ""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    from fault_table import (
        is_invalid,
    )  # there by now; this plugin is loaded before pytest knows the tests' folder

    with Path(os.environ[REPORT]).open("a") as file:
        line = {
            "test": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "hung": "Timeout (>" in report.longreprtext,
            "invalid": is_invalid(report),
            "error": _error_of(report),
        }
        file.write(json.dumps(line) + "\n")
