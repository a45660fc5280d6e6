"""Events of the engine: one when a step of a micro-batch starts, one when it ends.

There are two ways to listen:

* :func:`watch`, for logs, metrics and dashboards: events are queued, and the watcher has a thread
  of its own. Whatever it does, and however long it takes, no batch notices.
* :func:`probe`, for tests and fault points: called in the thread of the step, in the order of the
  calls, and its exception is the step's exception, which lets a test inject an error exactly where
  it wants one. One that fails at the end of a commit puts the commit in doubt: never use a probe
  for anything that may fail by itself.

Runs everywhere; events stay in the process that published them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

from onceward import surroundings
from onceward.errors import ConfigurationError

__all__ = ["STEPS", "Event", "Phase", "probe", "watch"]

log = logging.getLogger(__name__)

Phase = Literal["started", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """The start or end of one step.

    ``step`` is one of the names below, ``ids`` what it concerns (pipeline, batch, epoch, partition
    …), ``seconds`` how long it took (None when it starts), ``error`` what ended it when ``phase``
    is ``failed``, ``values`` what came of it (records, bytes, the reason of an abort …), when it
    ends. ``at_ns``: nanoseconds since 1970.
    """

    step: str
    phase: Phase
    ids: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    error: BaseException | None = None
    values: dict[str, Any] = field(default_factory=dict)
    at_ns: int = field(default_factory=lambda: surroundings.wall_clock_ns(), compare=False)


Listener = Callable[[Event], None]

# The steps of a micro-batch in reading order; see engine/micro_batch.py.
# First batch of a run: preflight, fencing of predecessors, ledger read; of a delivery without a
# ledger its checks alone
OPEN = "open"
# Compare the batch with the ledger
ADMIT = "admit"
# Run the plan of a batch that is committed already, sending nothing
REPLAY = "replay"
# Metadata, the shape of the job, a sequencer for the epoch
PLAN = "plan"
# The one Spark job: encode, lease, stamp and send
SEND = "send"
# Driver side of a lease: started when granted, finished when given back
LEASE = "lease"
# The tasks' reports against the leases of the sequencer
CHECK = "check"
# Source offsets into the transaction
OFFSETS = "offsets"
# The ledger record into the transaction
LEDGER = "ledger"
# A database: rows into one table, inside the open transaction; where there are any
MOVE = "move"
# The decision, the only commit point: EndTxn(commit), or the ledger record
COMMIT = "commit"
# After the decision, also of an earlier run: what a two-phase target publishes
PUBLISH = "publish"
# within it, of a write-ahead target: one chunk, until the target has it; then the ledger says so
DELIVER = "deliver"
# EndTxn(abort), or fencing where that is not enough
ABORT = "abort"
# Hand the batch back to Spark, which then writes its commit log
FINISH = "finish"
# No step of a batch: the start of a query, until there is one; a batch that failed for good, and
# ends its query; a query that is started again
BEGIN, FAIL, RESTART = "begin", "fail", "restart"
QUERY_EVENTS = (BEGIN, FAIL, RESTART)

STEPS = (
    OPEN,
    ADMIT,
    REPLAY,
    PLAN,
    SEND,
    LEASE,
    CHECK,
    OFFSETS,
    LEDGER,
    MOVE,
    COMMIT,
    PUBLISH,
    DELIVER,
    ABORT,
    FINISH,
)

_QUEUED = 10_000
_LAST_SECONDS = 5.0
_lock = threading.Lock()
_listeners: tuple[Listener, ...] = ()


def probe(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` inside every step of this process from now on; returns how to stop
    that.
    """
    global _listeners
    with _lock:
        _listeners = (*_listeners, listener)

    def stop() -> None:
        global _listeners
        with _lock:
            _listeners = tuple(one for one in _listeners if one is not listener)

    return stop


def watch(watcher: Listener, steps: Collection[str] | None = None) -> Callable[[], None]:
    """Tell ``watcher`` of every event of this process from now on, in order, in a thread of its
    own.

    What it raises is logged. While it is 10,000 events behind, newer ones are lost to it, and how
    many is logged.

    :param steps: of these alone; a batch has two events for each lease.
    :returns: how to stop: what is queued is delivered first, for five seconds at most.
    :raises ConfigurationError: the watcher is no function, or a step is not known.
    """
    if not callable(watcher):
        raise ConfigurationError(
            f"watcher={watcher!r} is no function", next_step="pass one, which takes an Event"
        )
    known = (*STEPS, *QUERY_EVENTS)
    if steps is not None and not (
        isinstance(steps, Collection) and all(s in known for s in steps)
    ):
        raise ConfigurationError(
            f"steps={steps!r} are not known",
            next_step=f"pass some of {', '.join(known)} as a list",
        )
    queued = _Queued(watcher, steps)
    stop_listening = probe(queued)

    def stop() -> None:
        stop_listening()
        queued.end()

    return stop


class _Queued:
    """The queue between the steps and one watcher."""

    def __init__(self, watcher: Listener, steps: Collection[str] | None) -> None:
        self._watcher = watcher
        self._steps = steps
        self._waiting: queue.Queue[Event | None] = queue.Queue()
        self._lost = 0
        self._over = self._failed = False
        self._thread = threading.Thread(target=self._deliver, name="onceward-watcher", daemon=True)
        self._thread.start()

    def hears(self, name: str) -> bool:
        return self._steps is None or name in self._steps

    def __call__(self, event: Event) -> None:
        if not self.hears(event.step):
            return
        if self._waiting.qsize() < _QUEUED:
            # Never waits: the queue itself has no bound
            self._waiting.put(event)
            return
        # At once: a watcher that hangs never comes to the end of its queue
        if not self._lost:
            log.warning("a watcher is %d events behind and does not hear of newer ones", _QUEUED)
        self._lost += 1

    def end(self) -> None:
        self._waiting.put(None)
        # Else the watcher itself has had enough
        if threading.current_thread() is not self._thread:
            self._thread.join(_LAST_SECONDS)
        self._over = True

    def _deliver(self) -> None:
        while (event := self._waiting.get()) is not None:
            if self._over:
                self._lost += 1
                continue
            try:
                self._watcher(event)
            except BaseException as error:  # noqa: BLE001 — whatever it is, it is no batch's
                # Once: a broken one would fail with each event of each batch
                level = logging.DEBUG if self._failed else logging.WARNING
                log.log(level, "a watcher of %s failed: %r", event.step, error)
                self._failed = True
            if self._waiting.empty():
                self._tell_of_the_lost()
        self._tell_of_the_lost()

    def _tell_of_the_lost(self) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            log.warning("a watcher was too slow for %d events, and has not heard of them", lost)


def announce(
    name: str,
    ids: dict[str, Any],
    error: BaseException | None = None,
    *,
    phase: Phase = "failed",
) -> None:
    """Tell watchers, and no probes, of what is no step: one of :data:`QUERY_EVENTS`."""
    for listener in _listeners:
        if isinstance(listener, _Queued):
            listener(Event(name, phase, ids, None, error))


def is_heard(name: str) -> bool:
    """Return whether anybody listens to the step ``name``, of which there are many."""
    return any(not isinstance(one, _Queued) or one.hears(name) for one in _listeners)


def publish(event: Event) -> None:
    """Hand ``event`` to everybody who listens."""
    for listener in _listeners:
        listener(event)


class step:  # noqa: N801 — a verb where it is used: `with events.step(events.COMMIT, …):`
    """Publish that step ``name`` starts, and how it ends."""

    __slots__ = ("_began", "_ids", "_name", "_values")

    def __init__(self, name: str, **ids: Any) -> None:
        self._name = name
        self._ids = ids
        self._values: dict[str, Any] = {}

    def __enter__(self) -> dict[str, Any]:
        """Return the values that the event of the end will have, for the block to add to."""
        publish(Event(self._name, "started", self._ids))
        self._began = surroundings.monotonic()
        return self._values

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        seconds = surroundings.monotonic() - self._began
        if (under_way := _under_way.get()) is not None:
            under_way.seconds[self._name] = under_way.seconds.get(self._name, 0.0) + seconds
        phase: Phase = "finished" if error is None else "failed"
        publish(Event(self._name, phase, self._ids, seconds, error, dict(self._values)))


@dataclass(slots=True)
class UnderWay:
    """The batch that this thread is writing: its ids, and the seconds of its steps so far."""

    ids: dict[str, Any]
    seconds: dict[str, float] = field(default_factory=dict)


_under_way: ContextVar[UnderWay | None] = ContextVar("onceward_batch", default=None)


@contextmanager
def batch(**ids: Any) -> Iterator[UnderWay]:
    """Note in the block that a batch is under way, for log lines of this thread."""
    token = _under_way.set(under_way := UnderWay(ids))
    try:
        yield under_way
    finally:
        _under_way.reset(token)


def batch_seconds() -> dict[str, float]:
    """Return the seconds of the steps so far of the batch that this thread is writing."""
    under_way = _under_way.get()
    return {} if under_way is None else dict(under_way.seconds)


def batch_ids() -> dict[str, Any]:
    """Return the ids of the batch that this thread is writing; empty outside of one."""
    under_way = _under_way.get()
    return {} if under_way is None else under_way.ids
