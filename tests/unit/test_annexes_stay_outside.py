"""The package loads neither the checker nor the testing tools: they are annexes beside it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from onceward.spark.session import jars as resolving

USE_EVERYTHING = """
import sys
import onceward
for name in onceward.__all__:
    getattr(onceward, name)
print(*(name for name in sys.modules if name.startswith(("onceward_testing", "onceward_verify"))))
"""


def test_all_public_names_load_no_annex():
    command = [sys.executable, "-c", USE_EVERYTHING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == []


def test_jars_fetches_what_an_annex_needs_by_its_entry_point(monkeypatch: pytest.MonkeyPatch):
    command: Any = importlib.import_module("onceward.cli.jars")
    value = "onceward_testing.kafka_distribution:jars_to_fetch"
    entries = [EntryPoint("kafka", value, command.GROUP)]
    monkeypatch.setattr(command, "entry_points", lambda *, group: entries)
    monkeypatch.setattr(resolving, "resolve", lambda *coordinates: list(coordinates))
    found = command._others()
    assert {one.rpartition(":")[2] for one in found if "kafka_2.13" in one} == {"4.3.1", "3.9.1"}
