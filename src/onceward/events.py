"""What the engine is doing, as it does it: one event when a step starts, one when it ends.

Logs, metrics, progress bars, dashboards and fault injection subscribe here; the engine knows none of them.
Subscribers run in the thread of the step, in the order in which they subscribed. An exception of a subscriber
is the step's exception: that is what lets a test inject an error exactly where it wants one.

Runs everywhere; events stay in the process that published them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

Phase = Literal["started", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Event:
    """One step's start or end.

    ``step`` is one of the names below, ``ids`` what it concerns (pipeline, batch, epoch, partition …), ``seconds``
    how long it took (None when it starts), ``error`` what ended it when ``phase`` is ``failed``.
    """

    step: str
    phase: Phase
    ids: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    error: BaseException | None = None


Subscriber = Callable[[Event], None]

# The steps of a micro-batch in reading order; see engine/micro_batch.py.
OPEN = "open"  # first batch of a process: preflight, fencing of predecessors, ledger read
ADMIT = "admit"  # compare the batch with the ledger
REPLAY = "replay"  # run the plan of a batch that is committed already, sending nothing
PLAN = "plan"  # metadata, the shape of the job, a sequencer for the epoch
SEND = "send"  # the one Spark job: encode, lease, stamp and send
LEASE = "lease"  # driver side of a lease: started when granted, finished when given back
CHECK = "check"  # the tasks' reports against the sequencer's book
OFFSETS = "offsets"  # source offsets into the transaction
LEDGER = "ledger"  # the ledger record into the transaction
COMMIT = "commit"  # EndTxn(commit), the only commit point
ABORT = "abort"  # EndTxn(abort), or fencing where that is not enough
FINISH = "finish"  # hand the batch back to Spark, which then writes its commit log

STEPS = (OPEN, ADMIT, REPLAY, PLAN, SEND, LEASE, CHECK, OFFSETS, LEDGER, COMMIT, ABORT, FINISH)

_lock = threading.Lock()
_subscribers: tuple[Subscriber, ...] = ()


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call ``subscriber`` with every event of this process from now on; returns how to stop that."""
    global _subscribers
    with _lock:
        _subscribers = (*_subscribers, subscriber)

    def unsubscribe() -> None:
        global _subscribers
        with _lock:
            _subscribers = tuple(s for s in _subscribers if s is not subscriber)

    return unsubscribe


def publish(event: Event) -> None:
    """Hand ``event`` to every subscriber."""
    for subscriber in _subscribers:
        subscriber(event)


@contextmanager
def step(name: str, **ids: Any) -> Iterator[None]:
    """Publish that step ``name`` starts, and how it ends."""
    publish(Event(name, "started", ids))
    began = time.perf_counter()
    try:
        yield
    except BaseException as error:
        publish(Event(name, "failed", ids, time.perf_counter() - began, error))
        raise
    publish(Event(name, "finished", ids, time.perf_counter() - began))
