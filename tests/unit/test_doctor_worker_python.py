"""The Python that Spark's workers would run: the doctor runs it and says what it lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from onceward.cli.doctor.checks import check_worker_python


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """An interpreter that finds no installed package."""
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    return python


def test_this_interpreter_is_fit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    finding = check_worker_python()
    assert finding.status == "ok", finding


def test_one_without_onceward_is_not(bare_python: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python))
    finding = check_worker_python()
    assert finding.status == "fail"
    assert str(bare_python) in finding.what
    assert "No module named 'onceward'" in finding.what
    assert "PYSPARK_PYTHON" in finding.next_step


def test_one_that_is_not_there(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/no/such/python")
    assert check_worker_python().status == "fail"


def test_nobody_has_chosen_one(bare_python: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(bare_python.parent))
    finding = check_worker_python()
    assert finding.status == "warn", "local mode works, a cluster would not"
    assert sys.executable in finding.what
