"""Fault points: what can be armed, when it fires, and that it never fires twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onceward import events
from onceward.errors import ConfigurationError, Fenced, OncewardError
from onceward.ids import TopicPartition
from onceward_testing.faults import (
    FAULTS_VARIABLE,
    FIRED_VARIABLE,
    Fault,
    InjectedFault,
    Moment,
    arm_from_environment,
    fired_faults,
    parse_faults,
)
from support.errors import raises

Arm = Callable[[str], None]


@pytest.fixture
def fired(tmp_path: Path) -> Path:
    return tmp_path / "fired"


@pytest.fixture
def arm(fired: Path) -> Iterator[Arm]:
    disarms = []

    def do(text: str) -> None:
        disarms.append(arm_from_environment({FAULTS_VARIABLE: text, FIRED_VARIABLE: str(fired)}))

    yield do
    for disarm in disarms:
        disarm()


def step(name: str) -> None:
    with events.step(name, batch_id=7):
        pass


@pytest.mark.parametrize(
    "text",
    [
        "commit:finished:3:kill",
        "lease:started:1:stop",
        "lease:finished:1>ledger:finished:1:kill",
        "lease[people-]:finished:1>ledger:finished:1:kill",
        "send:failed:2:error=SendFailed",
        "send:started:2:error",
        "plan:started:5:delay=2.5",
    ],
)
def test_a_fault_prints_as_the_text_it_was_read_from(text: str) -> None:
    (fault,) = parse_faults(text)
    assert str(fault) == text


def test_several_faults_are_separated_by_semicolons() -> None:
    assert parse_faults(" commit:finished:1:kill ; open:started:2:error=Fenced;") == (
        Fault((Moment("commit", "finished", 1),), "kill"),
        Fault((Moment("open", "started", 2),), "error", "Fenced"),
    )


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("commit", "commit"),
        ("commit:finished:kill", "commit:finished"),
        ("commit:finished:0:kill", "commit:finished:0"),
        ("commit:finished:x:kill", "commit:finished:x"),
        ("lease[:finished:1:kill", "lease"),
        ("lease[]:finished:1:kill", "lease"),
        ("endtxn:finished:1:kill", "endtxn"),
        ("commit:ended:1:kill", "ended"),
        ("commit:finished:1:explode", "explode"),
        ("commit:finished:1:kill=9", "kill"),
        ("commit:finished:1:delay", "delay"),
        ("commit:finished:1:delay=soon", "delay"),
        ("commit:finished:1:error=NoSuchError", "NoSuchError"),
        ("commit:finished:1:error=json", "json"),
        ("commit:finished:1:kill;commit:finished:1:kill", "twice"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as refusal:
        parse_faults(text)
    assert refusal.value.next_step


def test_faults_without_a_file_to_write_them_down_are_refused() -> None:
    with raises(ConfigurationError):
        arm_from_environment({FAULTS_VARIABLE: "commit:finished:1:kill"})


def test_without_the_variable_nothing_is_armed(fired: Path) -> None:
    arm_from_environment({FIRED_VARIABLE: str(fired)})()
    step(events.COMMIT)
    assert fired_faults(fired) == []


def test_a_fault_fires_at_its_occurrence_and_once(arm: Arm, fired: Path) -> None:
    arm("commit:finished:3:error")
    step(events.COMMIT)
    step(events.LEDGER)
    step(events.COMMIT)
    with pytest.raises(InjectedFault):
        step(events.COMMIT)
    for _ in range(5):
        step(events.COMMIT)
    (entry,) = fired_faults(fired)
    assert (entry.fault, entry.pid, entry.ids) == (
        "commit:finished:3:error",
        os.getpid(),
        {"batch_id": 7},
    )


def test_the_links_of_a_chain_are_counted_one_after_the_other(arm: Arm) -> None:
    arm("lease:finished:1>ledger:finished:2:error=Fenced")
    for _ in range(4):
        step(events.LEDGER)  # before the lease: do not count
    step(events.LEASE)
    step(events.LEDGER)
    with pytest.raises(Fenced):
        step(events.LEDGER)


def test_a_step_of_something_else_does_not_count(arm: Arm) -> None:
    arm("lease[people-]:finished:2:error=Fenced")
    partitions = [
        TopicPartition(topic, 0) for topic in ("people", "dead-people", "people", "peoples")
    ]
    for partition in partitions[:2]:
        with events.step(events.LEASE, partition=partition):
            pass
    with events.step(events.LEASE, partition=partitions[3]):
        pass
    with pytest.raises(Fenced), events.step(events.LEASE, partition=partitions[2]):
        pass


def test_a_fault_that_fired_in_an_earlier_process_stays_quiet(arm: Arm, fired: Path) -> None:
    entry = {"fault": "commit:finished:1:error", "pid": 1, "fired_at_ms": 2, "ids": {}}
    fired.write_text(json.dumps(entry) + "\n")
    arm("commit:finished:1:error;ledger:finished:1:error")
    step(events.COMMIT)
    with pytest.raises(OncewardError):
        step(events.LEDGER)


def test_a_disarmed_fault_does_not_fire(fired: Path) -> None:
    arm_from_environment(
        {FAULTS_VARIABLE: "commit:finished:1:error", FIRED_VARIABLE: str(fired)}
    )()
    step(events.COMMIT)
    assert fired_faults(fired) == []


_JOB = """
import subprocess, sys, time
from onceward import events
from onceward_testing.faults import arm_from_environment
arm_from_environment()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
with events.step(events.COMMIT):
    pass
print("still here", flush=True)
"""


def test_kill_ends_the_whole_group_after_the_fault_is_written_down(fired: Path) -> None:
    environment = {
        **os.environ,
        FAULTS_VARIABLE: "commit:finished:1:kill",
        FIRED_VARIABLE: str(fired),
    }
    job = subprocess.Popen(
        [sys.executable, "-c", _JOB],
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,
        text=True,
    )
    # The child holds the same stdout: reading it to its end means that the child is gone too.
    said, _ = job.communicate(timeout=60)
    assert job.returncode == -signal.SIGKILL
    assert "still here" not in said
    assert [entry.fault for entry in fired_faults(fired)] == ["commit:finished:1:kill"]
