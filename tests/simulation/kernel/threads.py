"""What :mod:`onceward.surroundings` offers, in the simulated world: threads are tasks, time is
counted, chance a seed.

Only what the product uses, with the meaning that Python's own has.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from onceward import surroundings
from simulation.kernel.scheduler import Sim, Task

_NAMES = (
    "monotonic",
    "wall_clock",
    "wall_clock_ns",
    "sleep",
    "Thread",
    "Event",
    "RLock",
    "SimpleQueue",
    "process_id",
    "jitter",
    "random_below",
    "random_bits",
    "random_bytes",
)
_real = {name: getattr(surroundings, name) for name in _NAMES}


class Thread:
    """As :class:`threading.Thread`: of the process that makes it."""

    def __init__(
        self,
        sim: Sim,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        name: str = "",
        daemon: bool = False,
    ) -> None:
        self._sim, self._target, self._args, self._name = sim, target, args, name
        self._task: Task | None = None

    def start(self) -> None:
        self._sim.alive()
        self._task = self._sim.spawn(self._sim.here, self._target, *self._args, name=self._name)

    def join(self, timeout: float | None = None) -> None:
        task = self._task
        if task is None or task.done or self._sim.current is task:
            return
        assert self._sim.current is not None
        task.joiners.append((self._sim.current, self._sim.current.waits))
        self._sim.park(timeout)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done


class RLock:
    """As :class:`threading.RLock`; whoever waits longest is next."""

    __slots__ = ("_depth", "_owner", "_sim", "_waiting")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: deque[Task] = deque()

    def __enter__(self) -> RLock:
        current = self._sim.current
        if self._depth == 0 or self._owner is current:
            self._owner = current
            self._depth += 1
            return self
        assert current is not None
        self._waiting.append(current)
        while self._owner is not current:
            self._sim.park()
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            if self._waiting:
                self._owner, self._depth = self._waiting.popleft(), 1
                self._sim.wake(self._owner)

    acquire = __enter__

    def release(self) -> None:
        self.__exit__()


class Event:
    """As :class:`threading.Event`."""

    __slots__ = ("_set", "_sim", "_waiting")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._set = False
        self._waiting: list[Task] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._sim.wake(task)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set:
            assert self._sim.current is not None
            self._waiting.append(self._sim.current)
            self._sim.park(timeout)
            if self._sim.current in self._waiting:
                self._waiting.remove(self._sim.current)
        return self._set


class SimpleQueue:
    """As :class:`queue.SimpleQueue`, for one reader."""

    __slots__ = ("_items", "_reader", "_sim")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._items: deque[Any] = deque()
        self._reader: Task | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._reader is not None:
            self._sim.wake(self._reader)
            self._reader = None

    def get(self, timeout: float | None = None) -> Any:
        if not self._items:
            self._reader = self._sim.current
            self._sim.park(timeout)
            self._reader = None
            if not self._items:
                raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        if not self._items:
            raise queue.Empty
        return self._items.popleft()


class Future:
    """As :class:`concurrent.futures.Future`, of an answer to one request."""

    __slots__ = ("_callbacks", "_done", "_error", "_sim", "_value", "_waiting")

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiting: Task | None = None
        self._callbacks: list[Callable[[Future], None]] = []

    def done(self) -> bool:
        return self._done

    def settle(self, value: Any, error: BaseException | None = None) -> None:
        """The answer is here, or it is known that none will come. The first word counts."""
        if self._done:
            return
        self._done, self._value, self._error = True, value, error
        for callback in self._callbacks:
            callback(self)
        if self._waiting is not None:
            self._sim.wake(self._waiting)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Whoever makes a future of this kind settles it, in time: nobody waits for longer than it
        was sent for.
        """
        if not self._done:
            self._waiting = self._sim.current
            self._sim.park()
            self._waiting = None
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._value

    def add_done_callback(self, callback: Callable[[Future], None]) -> None:
        if self._done:
            callback(self)
        else:
            self._callbacks.append(callback)


def install(sim: Sim) -> None:
    """``sim`` is the surroundings of the product's code from now on."""
    chance = sim.lots.time
    stand_ins = {
        "monotonic": lambda: sim.now,
        "wall_clock": sim.wall,
        "wall_clock_ns": lambda: int(sim.wall() * 1e9),
        "sleep": sim.sleep,
        "Thread": lambda target, args=(), name="", daemon=False: Thread(
            sim, target, args, name, daemon
        ),
        "Event": lambda: Event(sim),
        "RLock": lambda: RLock(sim),
        "SimpleQueue": lambda: SimpleQueue(sim),
        "process_id": lambda: sim.here.pid,
        "jitter": chance.uniform,
        "random_below": chance.randrange,
        "random_bits": chance.getrandbits,
        "random_bytes": chance.randbytes,
    }
    for name, value in stand_ins.items():
        setattr(surroundings, name, value)


def uninstall() -> None:
    """The real surroundings again."""
    for name, value in _real.items():
        setattr(surroundings, name, value)


__all__ = ["Event", "Future", "RLock", "SimpleQueue", "Thread", "install", "uninstall"]
