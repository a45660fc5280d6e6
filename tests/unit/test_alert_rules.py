"""Alert rules fire where they should and nowhere else, as ``promtool`` says; and rules and dashboard
name no metric that is not there.
"""

from __future__ import annotations

import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from onceward.operate.metric_state import FAMILIES, PREFIX
from support.promtool import promtool

FOLDER = Path(str(files("onceward.operate"))) / "files"
RULES, DASHBOARD = FOLDER / "onceward-alerts.yml", FOLDER / "onceward-dashboard.json"
CASES = Path(__file__).with_name("alert_cases.yml")
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


@pytest.fixture(scope="module")
def tool() -> Path:
    found = promtool()
    if found is None:
        pytest.skip("no promtool, and no apt to fetch it by")
    return found


def run(tool: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def cases_for(rules: Path, folder: Path) -> Path:
    cases = folder / "cases.yml"
    cases.write_text(CASES.read_text().replace("RULES", str(rules)))
    return cases


def alerts() -> list[str]:
    return re.findall(r"- alert: (\w+)", RULES.read_text())


@pytest.mark.lengthy("ci")
def test_each_alert_fires_where_it_should_and_nowhere_else(tool: Path, tmp_path: Path):
    done = run(tool, "test", "rules", cases_for(RULES, tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.lengthy("ci")
@pytest.mark.parametrize("alert", alerts())
def test_an_alert_that_never_fires_fails_the_cases(tool: Path, tmp_path: Path, alert: str):
    rules = tmp_path / "rules.yml"
    text = RULES.read_text()
    begin = text.index(f"- alert: {alert}\n")
    never = re.sub(
        r"expr: (\|\n(?: {12}.*\n| {10}.*\n)+|.*\n)",
        "expr: vector(0) > 1\n",
        text[begin:],
        count=1,
    )
    rules.write_text(text[:begin] + never)
    done = run(tool, "test", "rules", cases_for(rules, tmp_path))
    assert done.returncode != 0
    assert alert in done.stdout + done.stderr


@pytest.mark.lengthy("ci")
def test_each_expression_of_the_dashboard_is_understood(tool: Path, tmp_path: Path):
    rules = [
        {"record": f"dashboard:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    written = tmp_path / "rules.yml"
    # JSON is YAML
    written.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = run(tool, "check", "rules", written)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> list[str]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return [
        target["expr"].replace("$__rate_interval", "5m").replace("$pipeline", ".*")
        for panel in board["panels"]
        for target in panel["targets"]
    ]


def test_there_are_six_alerts_and_each_names_the_command_to_run_next():
    text = RULES.read_text()
    assert len(alerts()) == 6
    descriptions = re.findall(r"description: >-\n((?: {12}.*\n)+)", text)
    assert len(descriptions) == 6
    commands = [re.search(r"Next:\s+onceward\s+(\S+)", each) for each in descriptions]
    assert {found[1] for found in commands if found} == {
        "status",
        "transactions",
        "lag",
        "dead-letters",
    }
    assert all(commands)


@pytest.mark.parametrize("file", [RULES, DASHBOARD], ids=lambda file: file.name)
def test_every_metric_that_is_named_exists_with_its_labels(file: Path):
    known = {
        PREFIX + family.name + suffix: {"pipeline", "le", "instance", *family.labels}
        for family in FAMILIES
        for suffix in SUFFIXES[family.kind]
    }
    text = file.read_text().replace('\\"', '"')
    named = set(re.findall(r"\bonceward_\w+", text))
    assert named
    assert named <= known.keys()
    for name, labels in re.findall(r"(onceward_\w+)\{([^}]*)\}", text):
        assert set(re.findall(r"(\w+)=", labels)) <= known[name], name
