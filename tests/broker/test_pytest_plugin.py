"""The fixture that users get with the package, used as a user's test suite would use it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path


def run_pytest(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )


def write(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(textwrap.dedent(text))


def test_a_users_tests_share_one_broker_of_the_version_they_chose(tmp_path: Path):
    write(
        tmp_path,
        "conftest.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def local_kafka_settings():
            return {"version": "3.9.1", "properties": {"num.partitions": 5}}
        """,
    )
    write(
        tmp_path,
        "test_pipeline.py",
        """
        seen = set()

        def test_one(local_kafka):
            assert local_kafka.nodes[0].sees() == {1}
            assert local_kafka.version == "3.9.1"
            seen.add(local_kafka.nodes[0].pid)

        def test_two(local_kafka):
            seen.add(local_kafka.nodes[0].pid)
            assert len(seen) == 1
        """,
    )
    done = run_pytest(tmp_path)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_tests_that_ask_for_no_broker_import_nothing_of_it(tmp_path: Path):
    write(
        tmp_path,
        "test_nothing.py",
        """
        import sys

        def test_nothing():
            assert "onceward_testing.pytest_plugin" in sys.modules
            assert "pyspark" not in sys.modules
            assert "kafka" not in sys.modules
        """,
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
