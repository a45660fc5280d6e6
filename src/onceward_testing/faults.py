"""Fault points: kill, stop, delay or fail a job at an exact step of the engine, armed from outside
the job.

For tests of your own pipelines. The job calls :func:`arm_from_environment` once before it starts
its query; who starts the job decides by environment variables what happens, and where::

    ONCEWARD_FAULTS="commit:finished:3:kill"   kill -9 after the 3rd commit, before Spark's
    ONCEWARD_FAULTS="lease:finished:2:kill"    … when the 2nd partition lease has been given back
    ONCEWARD_FAULTS="lease:finished:1>ledger:finished:1:kill"
                             … after the ledger record of the first batch with output
    ONCEWARD_FAULTS="lease[orders-]:finished:1:kill"   … the first that is of that topic
    ONCEWARD_FAULTS="send:started:2:error=SendFailed;plan:started:5:delay=2.5"     two faults
    ONCEWARD_FAULTS_FIRED=/path/to/a/file   where each fault is written down *before* it acts

A fault is a chain of moments ``step:phase:occurrence`` joined by ``>`` (each is counted from the
one before it on, in this process), and an action: ``kill`` (SIGKILL), ``stop`` (SIGSTOP),
``error`` or ``error=<name of an Onceward error>``, ``delay=<seconds>``. Of ``step[text]`` those
events count that have an id, such as a partition, which begins with the text. Steps and phases are
those of :mod:`onceward.events`. The engine knows nothing of all this: it publishes its steps
anyway.

A fault fires once, however often the job is started with the same file. A test that armed a fault
must look whether it fired (:func:`fired_faults`): a fault that never happened proves nothing.

Runs in the driver process of a job, in the thread of the step that published the event.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward import errors, events
from onceward.errors import BatchFailed, ConfigurationError, OncewardError

FAULTS_VARIABLE = "ONCEWARD_FAULTS"
"""Environment variable with the faults to arm, separated by ``;``."""

FIRED_VARIABLE = "ONCEWARD_FAULTS_FIRED"
"""Environment variable with the path of the file that says which faults have fired.

Needed with the other one.
"""

_STOP_SETTLES_SECONDS = 1.0
"""A stop signal takes hold when any one thread of the process has seen it, and until then the
thread that sent it runs on, into the very step that was to be held. (SIGKILL is seen by all
threads at once.)"""

ACTIONS = ("kill", "stop", "error", "delay")
_PHASES = ("started", "finished", "failed")
_NAMED = re.compile(r"(\w+)(?:\[([^\[\]]+)\])?")
_SYNTAX = "write step:phase:occurrence:action, for example commit:finished:3:kill"


class InjectedFault(BatchFailed):
    """Error that a fault with the action ``error`` raises when it names no other error: the batch
    may run again."""


@dataclass(frozen=True, slots=True)
class Moment:
    """The ``occurrence``-th time (from 1) that ``step`` is in ``phase``, with an id that begins
    with ``of``."""

    step: str
    phase: str
    occurrence: int
    of: str = ""

    def __str__(self) -> str:
        of = f"[{self.of}]" if self.of else ""
        return f"{self.step}{of}:{self.phase}:{self.occurrence}"

    def is_like(self, event: events.Event) -> bool:
        """Return whether ``event`` is one of those that count."""
        if (event.step, event.phase) != (self.step, self.phase):
            return False
        return not self.of or any(str(value).startswith(self.of) for value in event.ids.values())


@dataclass(frozen=True, slots=True)
class Fault:
    """An action for when the last of ``moments`` has come.

    ``argument``: an error's name, or seconds, or empty.
    """

    moments: tuple[Moment, ...]
    action: str
    argument: str = ""

    def __str__(self) -> str:
        """Return the text that :func:`parse_faults` reads: a fault's name in the file of fired
        faults."""
        action = f"{self.action}={self.argument}" if self.argument else self.action
        return f"{'>'.join(map(str, self.moments))}:{action}"


@dataclass(frozen=True, slots=True)
class FiredFault:
    """One line of the file of fired faults: which one, in which process, when (ms since the
    epoch), at which event."""

    fault: str
    pid: int
    fired_at_ms: int
    ids: dict[str, Any]


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Return the faults of ``text`` (see the module's own text for the grammar).

    :raises ConfigurationError: it cannot be read, names an unknown step, phase, action or error,
        or a fault twice.
    """
    faults = tuple(_parse_fault(part.strip()) for part in text.split(";") if part.strip())
    if len(set(faults)) != len(faults):
        raise ConfigurationError(
            f"{text!r} names a fault twice", next_step="give it another occurrence"
        )
    return faults


def fired_faults(path: Path) -> list[FiredFault]:
    """Return the faults that have fired, oldest first; none when the file is not there."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [FiredFault(**json.loads(line)) for line in lines]


def arm_from_environment(environment: Mapping[str, str] | None = None) -> Callable[[], None]:
    """Arm what ``ONCEWARD_FAULTS`` says, for this process; returns how to disarm. Without the
    variable: nothing.

    :param environment: the variables to look into; None: this process's own.
    :raises ConfigurationError: the faults cannot be read, or ``ONCEWARD_FAULTS_FIRED`` is missing.
    """
    # Not as the parameter's default: help() would print every variable, secrets included.
    environment = os.environ if environment is None else environment
    faults = parse_faults(environment.get(FAULTS_VARIABLE, ""))
    if not faults:
        return lambda: None
    fired = environment.get(FIRED_VARIABLE)
    if not fired:
        raise ConfigurationError(
            f"{FAULTS_VARIABLE} is set without {FIRED_VARIABLE}",
            next_step=f"set {FIRED_VARIABLE} to the path of a file that outlives the job",
        )
    return events.probe(FaultPoints(faults, Path(fired)))


class FaultPoints:
    """A probe of :mod:`onceward.events` that carries out ``faults``. Thread safe."""

    def __init__(self, faults: tuple[Fault, ...], fired: Path) -> None:
        already = {entry.fault for entry in fired_faults(fired)}
        self._fired = fired
        self._armed = [_Countdown(fault) for fault in faults if str(fault) not in already]
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        """Count ``event``, and act if a fault's last moment has come."""
        with self._lock:
            due = [countdown.fault for countdown in self._armed if countdown.count(event)]
            self._armed = [countdown for countdown in self._armed if countdown.fault not in due]
            for fault in due:
                _write_down(self._fired, fault, event)
        for fault in due:
            _act(fault, event)


class _Countdown:
    """Progress of one fault along its chain of moments."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._ahead = list(fault.moments)
        self._seen = 0

    def count(self, event: events.Event) -> bool:
        """Return True when ``event`` is the last moment of the chain."""
        moment = self._ahead[0]
        if not moment.is_like(event):
            return False
        self._seen += 1
        if self._seen < moment.occurrence:
            return False
        self._seen = 0
        del self._ahead[0]
        return not self._ahead


def _write_down(path: Path, fault: Fault, event: events.Event) -> None:
    """Append to the file and wait until the disk has it: the process may be gone with the next
    instruction."""
    ids = {
        name: value if isinstance(value, int) else str(value) for name, value in event.ids.items()
    }
    line = json.dumps(
        {"fault": str(fault), "pid": os.getpid(), "fired_at_ms": _now_ms(), "ids": ids}
    )
    with path.open("a") as file:
        file.write(line + "\n")
        file.flush()
        os.fsync(file.fileno())


def _act(fault: Fault, event: events.Event) -> None:
    if fault.action == "kill":
        signal_job(signal.SIGKILL)
    elif fault.action == "stop":
        signal_job(signal.SIGSTOP)
        time.sleep(_STOP_SETTLES_SECONDS)
    elif fault.action == "delay":
        time.sleep(float(fault.argument))
    else:
        kind = _error_named(fault.argument) if fault.argument else InjectedFault
        raise kind(
            f"fault {fault} at {event.step} {event.phase}",
            next_step="nothing: a test asked for it",
        )


def signal_job(number: signal.Signals) -> None:
    """Send ``number`` to this process, and at the same instant to its JVM if the job leads a
    process group.

    Start jobs with ``subprocess.Popen(..., start_new_session=True)``: then Python driver, JVM and
    local executors die together, as they do when a container is killed. Otherwise only Python
    dies, and the JVM follows when it notices that its stdin has ended. PySpark's worker daemon has
    a group of its own and ends when the JVM's pipe closes.
    """
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), number)
    else:
        os.kill(os.getpid(), number)


def _parse_fault(text: str) -> Fault:
    chain, _, action_text = text.rpartition(":")
    if not chain:
        raise ConfigurationError(f"fault {text!r} cannot be read", next_step=_SYNTAX)
    action, _, argument = action_text.strip().partition("=")
    moments = tuple(_parse_moment(part.strip(), text) for part in chain.split(">"))
    return Fault(moments, action, _check_argument(action, argument, text))


def _parse_moment(part: str, fault: str) -> Moment:
    fields = part.split(":")
    if len(fields) != 3 or not fields[2].isdecimal() or int(fields[2]) < 1:
        raise ConfigurationError(f"{part!r} in fault {fault!r} cannot be read", next_step=_SYNTAX)
    named, phase, occurrence = fields
    match = _NAMED.fullmatch(named)
    step, of = match.groups("") if match is not None else (named, "")
    if step not in events.STEPS:
        raise ConfigurationError(
            f"fault {fault!r} names no step of the engine: {step!r}",
            next_step=f"use one of {', '.join(events.STEPS)}",
        )
    if phase not in _PHASES:
        raise ConfigurationError(
            f"{phase!r} in fault {fault!r} is no phase", next_step=f"use {', '.join(_PHASES)}"
        )
    return Moment(step, phase, int(occurrence), of)


def _check_argument(action: str, argument: str, fault: str) -> str:
    if action not in ACTIONS:
        raise ConfigurationError(
            f"{action!r} in fault {fault!r} is no action", next_step=f"use {', '.join(ACTIONS)}"
        )
    if action in ("kill", "stop") and argument:
        raise ConfigurationError(
            f"{action} in fault {fault!r} takes no argument", next_step=f"write {action}"
        )
    if action == "delay" and not _is_seconds(argument):
        raise ConfigurationError(
            f"delay in fault {fault!r} needs seconds", next_step="write for example delay=2.5"
        )
    if action == "error" and argument:
        _error_named(argument)
    return argument


def _error_named(name: str) -> type[OncewardError]:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, OncewardError):
        return kind
    raise ConfigurationError(
        f"{name!r} is no error of Onceward", next_step="use a name out of onceward.errors"
    )


def _is_seconds(text: str) -> bool:
    whole, _, fraction = text.partition(".")
    return whole.isdecimal() and (not fraction or fraction.isdecimal())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
