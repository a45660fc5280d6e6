"""One soak from start to verdict: brokers, feeder, driver, and what happens to them by plan."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from confluent_kafka import KafkaException

from onceward.errors import OncewardError
from onceward_testing.job_process import JobProcess, signal_all, with_children

from .cluster import Cluster
from .feeder import FeederSettings
from .plan import Fault, plan
from .state import SoakFolder, State
from .supervisor import StoppedForGood, Supervisor
from .verdict import lag_of, open_transactions

Answer = TypeVar("Answer")

_TICK_SECONDS = 0.2
_SAY_SECONDS = 30.0
_STANDSTILL_SECONDS = 240.0
_CATCH_UP_SECONDS = 900.0
_SENDERS_SECONDS = 5.0


@dataclass(frozen=True)
class SoakSettings:
    """``minutes``: how long things are broken, over all starts. ``records_per_second``: what the
    feeder writes.
    """

    seed: int
    minutes: float
    records_per_second: int = 640
    max_offsets: int = 6_000


class Soak:
    """A soak in its folder; :meth:`run` may be interrupted and called again by a later process."""

    def __init__(
        self, settings: SoakSettings, folder: SoakFolder, state: State, say: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._state = state
        self._say = say
        self._later: list[tuple[float, Callable[[], None]]] = []

    def run(self, cluster: Cluster) -> str | None:
        """Break things until the time is over, heal, catch up. Returns why it came to a
        standstill, None if not.
        """
        state = self._state
        state.starts += 1
        self._folder.save(state)
        cluster.must_heal()
        cluster.make_topics()
        cluster.must_heal()
        feeder = self._start_feeder(cluster)
        supervisor = Supervisor(self._folder, state, cluster.servers, self._settings.max_offsets)
        try:
            standstill = self._under_faults(cluster, supervisor, feeder)
            began = time.monotonic()
            self._say("no more faults: healing, then the pipelines catch up")
            if standstill is None:
                standstill = self._catch_up(cluster, supervisor, feeder)
            state.healing_s = time.monotonic() - began
            if standstill:
                self._say(f"STANDSTILL: {standstill}")
            return standstill
        except StoppedForGood as end:
            return f"the driver ends again and again: {end}"
        finally:
            self._settle()
            feeder.stop(30)
            supervisor.stop()
            self._folder.save(state)

    def _start_feeder(self, cluster: Cluster) -> JobProcess:
        settings = FeederSettings(
            cluster.servers, self._settings.records_per_second, str(self._folder.account)
        )
        environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-m", "soak.feeder", settings.to_json()]
        return JobProcess(
            command,
            folder=self._folder.path,
            log=self._folder.path / "feeder.log",
            environment=environment,
            sweep=True,
        )

    # ── while things are broken ──

    def _under_faults(
        self, cluster: Cluster, supervisor: Supervisor, feeder: JobProcess
    ) -> str | None:
        state = self._state
        faults = plan(self._settings.seed, state.position)
        fault = next(faults)
        last_fault = before = time.monotonic()
        said = 0.0
        supervisor.last_commit = before
        while state.elapsed_s < self._settings.minutes * 60:
            now = time.monotonic()
            state.elapsed_s += now - before
            before = now
            supervisor.tick()
            self._do_what_is_due(now)
            if feeder.status is not None:
                return f"the feeder ended with status {feeder.status}: {feeder.log_tail()}"
            if now - supervisor.last_commit > _STANDSTILL_SECONDS:
                return f"nothing committed for {_STANDSTILL_SECONDS:g} s\n{supervisor.log_tail()}"
            if now - last_fault >= fault.gap_s and self._carried_out(fault, cluster, supervisor):
                last_fault = time.monotonic()
                state.position = fault.position + 1
                fault = next(faults)
                self._folder.save(state)
            if now - said > _SAY_SECONDS:
                said = now
                self._folder.save(state)
                self._say(f"life {state.lives}, {supervisor.commits} commits since this start")
            time.sleep(_TICK_SECONDS)
        return None

    def _carried_out(self, fault: Fault, cluster: Cluster, supervisor: Supervisor) -> bool:
        """False when there is nothing to break right now: no executor, or brokers that have yet to
        heal.
        """
        victim = "nobody"
        began = time.time()
        if fault.concerns_a_broker:
            if not cluster.healed():
                return False
            node = cluster.victim(fault)
            victim = f"node {node.node_id} ({fault.target})"
            cluster.break_(node, fault)
        elif fault.kind != "none":
            driver = supervisor.driver
            if driver is None:
                return False
            if fault.concerns_an_executor:
                if fault.waits_for_senders:
                    if not supervisor.some_have_sent(_SENDERS_SECONDS):
                        return False
                    time.sleep(fault.lasts_s)
                    began = time.time()
                executors = [with_children(jvm) for jvm in driver.executors()]
                if not executors:
                    return False
                processes = executors[fault.victim % len(executors)]
                victim = f"executor {processes[0].pid} of {len(executors)}"
            else:
                containers = {
                    process for jvm in driver.executors() for process in with_children(jvm)
                }
                processes = [process for process in driver.members() if process not in containers]
                victim = f"driver {driver.pid}"
            if fault.kind == "kill-driver":
                driver.kill()
            elif fault.kind.startswith("kill-executor"):
                signal_all(processes, signal.SIGKILL)
            else:
                signal_all(processes, signal.SIGSTOP)
                later = time.monotonic() + fault.lasts_s
                self._later.append((later, lambda: signal_all(processes, signal.SIGCONT)))
        self._folder.note(
            "fault", position=fault.position, kind=fault.kind, began=began, victim=victim
        )
        self._say(f"fault {fault.position}: {fault.kind}, {victim}")
        return True

    def _do_what_is_due(self, now: float) -> None:
        due = [work for moment, work in self._later if moment <= now]
        self._later = [entry for entry in self._later if entry[0] > now]
        for work in due:
            work()

    def _settle(self) -> None:
        """Whoever is stopped goes on."""
        self._do_what_is_due(float("inf"))

    # ── afterwards ──

    def _catch_up(
        self, cluster: Cluster, supervisor: Supervisor, feeder: JobProcess
    ) -> str | None:
        self._settle()
        supervisor.calm()
        if not cluster.heals():
            return "the brokers did not heal"
        status = feeder.stop(120)
        if status != 0:
            return f"the feeder ended with status {status}: {feeder.log_tail()}"
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        said = 0.0
        while lag := _asked(lambda: lag_of(cluster.servers)):
            supervisor.tick(with_errors=False)
            if time.monotonic() - said > 10:
                said = time.monotonic()
                self._say(f"lag {lag}")
            if time.monotonic() > deadline:
                return (
                    f"lag {lag} {_CATCH_UP_SECONDS:g} s after the last "
                    f"fault\n{supervisor.log_tail()}"
                )
            time.sleep(1)
        while still_open := _asked(lambda: open_transactions(cluster.kafka)):
            if time.monotonic() > deadline:
                return f"open transactions: {still_open}"
            time.sleep(1)
        return None


def _asked(question: Callable[[], Answer]) -> Answer | str:
    """The answer, or why there is none just now: brokers that were just started may be busy."""
    try:
        return question()
    except (KafkaException, OncewardError) as error:
        return f"unknown ({error})"
