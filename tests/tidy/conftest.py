"""The whole suite, for tests that look at it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tiers import COLLECTED, TESTS, Collected

_COLLECTOR = """
import json, pytest, tiers

class Collector:
    def pytest_collection_finish(self, session):
        self.found = session.config.stash[tiers.COLLECTED]

collector = Collector()
assert pytest.main(["--collect-only", "-qqq", "-p", "no:cacheprovider"], [collector]) == 0
print(json.dumps(collector.found))
"""


@pytest.fixture(scope="session")
def suite(request: pytest.FixtureRequest) -> Collected:
    """Every test of the suite with its tiers and its faults, as pytest itself collects it: here,
    if all were asked for, or in a process of its own.
    """
    config = request.config
    asked = {(config.invocation_params.dir / argument).resolve() for argument in config.args}
    if (
        asked == {TESTS}
        and not config.getoption("ignore")
        and not config.getoption("lf", default=False)
    ):
        return config.stash[COLLECTED]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*sys.path, str(TESTS)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-W", "ignore", "-c", _COLLECTOR]
    done = subprocess.run(
        command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])
