"""One seed's world: virtual time, processes that can die, and their tasks. One OS thread runs all
of it.

A task is a greenlet, a stack that is switched to, so that the production code runs as it is: where
it would wait, it parks, and the loop in :meth:`Sim.run` goes on with whatever comes next in
virtual time. Between two waits a task is alone. Nothing here knows of Kafka or Spark.

A process that dies (``kill -9``) never runs another line that could have an effect: whatever it
asks of the world from then on raises :class:`Killed`, which also unwinds its stacks.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from greenlet import getcurrent, greenlet

from simulation.kernel.lots import Lots

MOST_STEPS = 400_000
"""Of one seed. More are taken for a loop without end."""

_START_OF_TIME = 1_700_000_000.0  # seconds since 1970, some day


class Killed(KeyboardInterrupt):
    """The process is dead. No handler of the product's may make anything of it."""


class Stuck(Exception):
    """The story does not end: nothing is left to happen, or far too much has."""


class Timer(list[Any]):
    """Something that will happen, unless it is cancelled: when, which of those at the same time,
    what, with what.

    A list, because lists are made, and compared by the heap, without a call of Python's.
    """

    __slots__ = ()

    @property
    def pending(self) -> bool:
        return self[2] is not None

    def cancel(self) -> None:
        self[2] = None


class Process:
    """A process of the simulated world.

    ``on_death`` are called, by the loop, when it has died: sockets break, locks of files are given
    back.
    """

    __slots__ = (
        "_backlog",
        "alive",
        "name",
        "on_death",
        "paused",
        "pid",
        "tasks",
        "wall_offset",
        "went_on_at",
    )

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.paused = False
        self.went_on_at = -1.0
        """When it last did, after it had stood still."""
        self.wall_offset = 0.0
        """By how much its wall clock is wrong, in seconds."""
        self.tasks: dict[Task, None] = {}
        self.on_death: list[Callable[[], None]] = []
        self._backlog: list[tuple[Task, Any, int]] = []

    def __repr__(self) -> str:
        return self.name


class Task(greenlet):  # type: ignore[misc] # greenlet is not typed as a class
    """A thread of a process."""

    process: Process
    waits: int
    """How often it has parked: a wake-up for an earlier wait is none."""
    done: bool
    name: str
    joiners: list[tuple[Task, int]]


class Sim:
    """See the module.

    :param tell: what happened, for the timeline of a story: the time, who, what. None: nobody
        listens.
    """

    def __init__(self, lots: Lots, tell: Callable[[float, str, str], None] | None = None) -> None:
        self.lots = lots
        self.now = 0.0
        """Seconds since the story began."""
        self.tell = tell
        self.steps = 0
        self.current: Task | None = None
        self.outside = Process("world", 1)
        """Whoever is not simulated: users, operators, the clock. It never dies."""
        self.world: Any = None
        """What stands-ins of the product's modules need to find: set by whoever builds the
        world.
        """
        self._processes = [self.outside]
        self._hub = getcurrent()
        self._heap: list[Timer] = []
        self._order = 0
        self._pids = 1
        self._stopped = False
        self._failure: BaseException | None = None

    # ── what happens when ──

    def after(self, seconds: float, action: Callable[..., Any], *args: Any) -> Timer:
        """Call ``action``, in no process, so much later. It must not wait."""
        self._order = order = self._order + 1
        timer = Timer((self.now + seconds, order, action, args))
        heappush(self._heap, timer)
        return timer

    def run(self) -> None:
        """Until :meth:`stop`. :raises Stuck: nothing is left to happen, or too much."""
        heap = self._heap
        steps = 0
        while not self._stopped:
            if not heap:
                raise Stuck(
                    f"nothing is left to happen at {self.now:.3f} s, and the story is not over"
                )
            timer = heappop(heap)
            at, _, action, args = timer
            if action is None:
                continue
            timer[2] = None  # it is over
            self.now = at
            action(*args)
            steps += 1
            if steps > MOST_STEPS:
                raise Stuck(f"{MOST_STEPS} steps at {self.now:.3f} s, and the story is not over")
            if self._failure is not None:
                raise self._failure
        self.steps += steps

    def stop(self) -> None:
        """The story is over."""
        self._stopped = True

    def failed(self, error: BaseException) -> None:
        """The story ends with ``error``, which :meth:`run` raises."""
        self._failure = self._failure or error

    # ── processes and tasks ──

    def process(self, name: str) -> Process:
        self._pids += 1
        process = Process(name, self._pids)
        self._processes.append(process)
        return process

    def spawn(
        self,
        process: Process,
        function: Callable[..., Any],
        *args: Any,
        name: str = "",
        delay: float = 0.0,
    ) -> Task:
        """A thread of ``process``, which begins ``delay`` seconds later. What it raises is its own
        end, but for AssertionError and the like in ``world``, which ends the story.
        """
        task = Task(
            self._body, self._hub
        )  # whoever ends returns to the loop, not to whoever has begun it
        task.process, task.waits, task.done, task.name, task.joiners = process, 0, False, name, []
        process.tasks[task] = None
        self.after(delay, self._resume, task, (task, function, args), 0)
        return task

    def _body(self, start: tuple[Task, Callable[..., Any], tuple[Any, ...]]) -> None:
        task, function, args = start
        try:
            function(*args)
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 — as a thread of Python's: it ends
            if task.process is self.outside:
                self.failed(error)
            elif self.tell is not None:
                self.tell(self.now, task.process.name, f"thread {task.name} ended: {error!r}")
        task.done = True
        task.process.tasks.pop(task, None)
        for joiner, wait in task.joiners:
            self.after(0.0, self._resume, joiner, True, wait)

    def _resume(self, task: Task, value: Any, wait: int) -> None:
        process = task.process
        if task.waits != wait or task.done or not process.alive:
            return
        if process.paused:
            process._backlog.append((task, value, wait))
            return
        task.waits = wait + 1
        self.current = task
        task.switch(value)
        self.current = None

    def park(self, seconds: float | None = None) -> Any:
        """The current task waits for :meth:`wake`, and gets what that was given; None after so
        many seconds.
        """
        task = self.current
        assert task is not None, "the loop itself cannot wait"
        if not task.process.alive:
            raise Killed
        if seconds is None:
            value = self._hub.switch()
        else:
            timer = self.after(seconds, self._resume, task, None, task.waits)
            value = self._hub.switch()
            timer[2] = None
        self.current = task
        if not task.process.alive:
            raise Killed
        return value

    def wake(self, task: Task, value: Any = True, delay: float = 0.0) -> None:
        """``task``, which is parked, goes on soon. Only the first wake-up of a wait counts."""
        if delay == 0.0 and self.current is None:
            self._resume(
                task, value, task.waits
            )  # the loop itself says so: there is nobody to come back to first
        else:
            self.after(delay, self._resume, task, value, task.waits)

    def sleep(self, seconds: float) -> None:
        self.park(max(0.0, seconds))

    @property
    def here(self) -> Process:
        """The process whose task runs; ``outside`` in the loop itself."""
        return self.outside if self.current is None else self.current.process

    def alive(self) -> None:
        """To be asked by every door to the world before it does something. :raises Killed: the
        process is dead.
        """
        if self.current is not None and not self.current.process.alive:
            raise Killed

    def kill(self, process: Process, why: str = "kill -9") -> None:
        """``kill -9``. A task that kills its own process gets :class:`Killed` at once."""
        if not process.alive:
            return
        if self.tell is not None:
            self.tell(self.now, process.name, f"✝ {why}")
        process.alive = False
        self.after(0.0, self._bury, process)
        if self.current is not None and self.current.process is process:
            raise Killed

    def _bury(self, process: Process) -> None:
        self._unwind(process)
        for action in process.on_death:
            action()
        process.on_death.clear()

    def _unwind(self, process: Process) -> None:
        for task in list(process.tasks):
            self.kill_task(task)
        process.tasks.clear()

    def kill_task(self, task: Task) -> None:
        """By the loop: the thread's stack is unwound. One that has not begun never will."""
        if task.done:
            return
        if task:  # it has begun
            task.waits += 1
            self.current = task
            task.throw(Killed)
            self.current = None
        task.done = True
        task.process.tasks.pop(task, None)

    def pause(self, process: Process, seconds: float) -> None:
        """``SIGSTOP``, and ``SIGCONT`` so much later: its clocks go on, and what is sent to it
        waits.
        """
        if not process.alive or process.paused:
            return
        if self.tell is not None:
            self.tell(self.now, process.name, f"‖ stopped for {seconds:.1f} s")
        process.paused = True
        self.after(seconds, self.resume, process)

    def resume(self, process: Process) -> None:
        if not process.paused:
            return
        process.paused = False
        process.went_on_at = self.now
        if self.tell is not None and process.alive:
            self.tell(self.now, process.name, "▶ goes on")
        backlog, process._backlog = process._backlog, []
        for task, value, wait in backlog:
            self.after(0.0, self._resume, task, value, wait)

    def wall(self) -> float:
        """Seconds since 1970 as the current process has them."""
        return _START_OF_TIME + self.now + self.here.wall_offset

    def bury_all(self) -> None:
        """After the story: no stack is left behind (a greenlet that is collected while it waits
        would run on).
        """
        self.tell = None
        for process in self._processes:
            process.alive = False
            self._unwind(process)
        self._heap.clear()
