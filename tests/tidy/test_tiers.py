"""Which tier a test is in follows from what it stands on, and the fastest tier cannot start a
Java.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fault_table import FAULTS
from onceward.errors import ConfigurationError
from onceward.spark.session.java import java_found
from onceward_testing import LocalKafka
from support.errors import raises
from support.no_java import JavaStarted
from tiers import TIERS, Collected, Facts, tier_of

BROKER, SPARK = Facts(broker=True), Facts(broker=True, spark=True)


@pytest.mark.parametrize(
    ("facts", "tier"),
    [
        (Facts(), "fast"),
        (Facts(first_case=False), "fast"),
        (Facts(slow=True), "chaos"),
        (Facts(lengthy="ci"), "ci"),
        (Facts(lengthy="main"), "main"),
        (Facts(lengthy="ci", first_case=False, early=False), "ci"),
        (Facts(lengthy="ci", broker=True), "ci"),
        (Facts(lengthy="main", broker=True, old_broker=True), "chaos"),
        (BROKER, "main"),
        (Facts(broker=True, first_case=False), "main"),
        (SPARK, "main"),
        (Facts(broker=True, spark=True, first_case=False), "chaos"),
        (Facts(broker=True, spark=True, suite=True, first_case=False), "ci"),
        (Facts(broker=True, spark=True, early=False), "ci"),
        (Facts(broker=True, early=False), "main"),
        (Facts(broker=True, suite=True), "main"),
        (Facts(broker=True, suite=True, early=False), "ci"),
        (Facts(broker=True, suite=True, first_case=False), "ci"),
        (Facts(suite=True, early=False), "fast"),
        (Facts(suite=True, once_more=True, early=False), "fast"),
        (Facts(broker=True, suite=True, once_more=True), "ci"),
        (Facts(broker=True, suite=True, once_more=True, early=False), "chaos"),
        (Facts(broker=True, spark=True, suite=True, once_more=True, first_case=False), "chaos"),
        (Facts(early=False), "fast"),
        (Facts(broker=True, spark=True, own_driver=True, driver_killed=True, early=False), "main"),
        (Facts(broker=True, old_broker=True), "chaos"),
        (Facts(broker=True, spark=True, own_cluster=True), "chaos"),
        (Facts(broker=True, spark=True, own_driver=True), "ci"),
        (Facts(broker=True, spark=True, own_driver=True, driver_killed=True), "main"),
        (
            Facts(broker=True, spark=True, own_driver=True, driver_killed=True, first_case=False),
            "chaos",
        ),
        (Facts(broker=True, spark=True, own_driver=True, first_case=False), "chaos"),
        (Facts(broker=True, spark=True, own_driver=True, driver_killed=True, slow=True), "chaos"),
    ],
)
def test_the_rule(facts: Facts, tier: str):
    assert tier_of(facts) == tier


def tiers_of(suite: Collected, start: str, part: str = "") -> set[str]:
    found = {
        tier
        for node, (marks, _) in suite.items()
        if node.startswith(f"tests/{start}") and part in node
        for tier in marks
    }
    assert found, f"no test begins with {start} and has {part} in its name"
    return found


def test_every_test_has_one_tier(suite):
    assert [node for node, (marks, _) in suite.items() if len(marks) != 1] == []
    assert {marks[0] for marks, _ in suite.values()} == set(TIERS)


def test_hidden_needs_are_found(suite):
    """Through parameters, fixtures that choose a fixture, helpers, and the text of programs."""
    assert tiers_of(suite, "contract", "TestTransactionsV2") == {"main", "ci"}
    assert tiers_of(suite, "contract", "TestTransactionsV1") == {"chaos"}
    assert tiers_of(suite, "", "[3.9.1") == {"chaos"}
    assert tiers_of(suite, "chaos/test_exactly_once.py", "three_nodes") == {"chaos"}
    assert tiers_of(suite, "spark/test_rights.py") == {"chaos"}
    assert tiers_of(suite, "spark/test_how_jobs_are_started.py") == {"ci", "chaos"}
    assert tiers_of(suite, "broker/test_local_kafka.py", "owner_is_killed") == {"chaos"}


def test_units_are_fast(suite):
    assert tiers_of(suite, "tidy") == {"fast"}
    assert tiers_of(suite, "unit") == {"fast", "ci"}  # one runs pytest in processes


def test_the_newcomers_proof_kills(suite):
    killers = {
        tuple(marks) for marks, faults in suite.values() if "driver-killed-mid-send" in faults
    }
    assert ("main",) in killers


def test_every_fault_has_a_test(suite):
    assert {fault for _, faults in suite.values() for fault in faults} == set(FAULTS)


def test_java_is_refused_here():
    with pytest.raises(JavaStarted, match=r"tier `fast` starts .*java"):
        subprocess.run(["java", "-version"], check=False)


def test_a_broker_is_refused_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    java_found.cache_clear()
    with raises(ConfigurationError, "no-java-in-a-fast-test"):
        LocalKafka(folder=tmp_path).start()


def test_java_is_refused_to_children():
    program = "from onceward.spark.session.java import java_executable; java_executable()"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no-java-in-a-fast-test" in done.stderr
