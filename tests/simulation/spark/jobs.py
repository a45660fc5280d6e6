"""Spark's jobs: stages, tasks and their attempts, executors that die, output that is lost.

Sources: ``DAGScheduler.handleTaskCompletion`` (FetchFailed: the outputs of that executor are taken
back, the map stage runs for what is missing, then a new attempt of the stage for partitions that
have not finished; tasks of the old one that still run may finish, and count), ``TaskSetManager``
(attempt numbers begin anew in each attempt of a stage; ``spark.task.maxFailures`` = 4),
``HeartbeatReceiver`` (an executor that is silent is given up, and may come back to life),
``ShuffleStatus.mapStatusesDeleted``. Speculative copies are refused by the product, and there are
none.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from typing import Any

from onceward.engine import task_writer
from onceward.errors import to_json
from onceward.ids import TaskAttempt
from onceward.spark.batch.job import naming_failures
from simulation.kernel.scheduler import Killed, Process, Sim, Task, Timer
from simulation.spark.frames import Computed, Frame, Nonces, Read, Rows, Shuffle

FAULTS = {
    "spark:executor killed": "an executor is killed while one of its tasks runs; another one "
    "comes in its place",
    "spark:executor stopped": "an executor stands still, is given up by the driver, and comes "
    "back to life",
    "spark:task fails": "a task raises in the user's own function, and is attempted again",
    "spark:output lost": "the shuffle output of a map task is lost, though its executor lives",
    "spark:task slow": "a task stands still for seconds in the user's own function",
    "report:lost": "what a task has brought back is not among the results of its job: Spark's own "
    "mistake",
    "report:twice": "what a task has brought back is twice among the results of its job: Spark's "
    "own mistake",
}
_MAX_FAILURES = 4
_POLL = 0.1
_GRACE = 2.0
_HEARTBEAT = 20.0
_NEW_EXECUTOR = 0.3
_START = 0.002


class JobFailed(Exception):
    """Spark's own exception of a job, as text."""


class Result:
    """A row of ``RESULT_DDL``."""

    __slots__ = ("committable", "error", "partition_id", "rows", "task_attempt_id")

    def __init__(
        self, partition_id: int, task_attempt_id: int, rows: int, committable: Any, error: Any
    ) -> None:
        self.partition_id = partition_id
        self.task_attempt_id = task_attempt_id
        self.rows = rows
        self.committable = committable
        self.error = error


class Executors:
    """Those of one driver."""

    def __init__(self, sim: Sim, driver: Process, count: int, story: Any) -> None:
        self._sim = sim
        self._driver = driver
        self._names = 0
        self.alive: list[Process] = []
        """As the driver knows them: one that stands still is taken for dead after a while."""
        self._watchers: list[Callable[[Process], None]] = []
        for _ in range(count):
            self._new()
        driver.on_death.append(self._end)

    def _new(self) -> None:
        if not self._driver.alive:
            return
        self._names += 1
        executor = self._sim.process(f"{self._driver.name}/executor-{self._names}")
        self.alive.append(executor)
        executor.on_death.append(lambda: self._lost(executor))

    def _end(self) -> None:
        """Executors of a driver that is gone end by themselves, not at once."""
        for executor in self.alive:
            self._sim.after(
                self._sim.lots.time.random() * 2.0, self._sim.kill, executor, "its driver is gone"
            )

    def _lost(self, executor: Process) -> None:
        if executor in self.alive:
            self.alive.remove(executor)
            self._sim.after(_NEW_EXECUTOR, self._new)
            for watcher in list(self._watchers):
                watcher(executor)

    def stop(self, executor: Process, seconds: float) -> None:
        self._sim.pause(executor, seconds)
        if seconds > _HEARTBEAT:
            self._sim.after(_HEARTBEAT, self._lost, executor)

    def watch(self, watcher: Callable[[Process], None]) -> None:
        self._watchers.append(watcher)

    def unwatch(self, watcher: Callable[[Process], None]) -> None:
        self._watchers.remove(watcher)


class _Attempt:
    """One attempt of one task of the last stage."""

    __slots__ = ("executor", "id", "number", "partition", "task")

    def __init__(self, partition: int, number: int, attempt_id: int, executor: Process) -> None:
        self.partition = partition
        self.number = number
        self.id = attempt_id
        self.executor = executor
        self.task: Task


class Jobs:
    """Runs jobs of any driver; called in the driver's task."""

    def __init__(self, sim: Sim, world: Any) -> None:
        self._sim = sim
        self._world = world

    def collect(self, frame: Frame, lost: Callable[[], Any]) -> tuple[list[Any], int]:
        """As :func:`onceward.spark.batch.job.collect`."""
        with naming_failures():
            return _Job(self._sim, self._world, frame, lost).run(), frame.computed.tasks()

    def rows(self, frame: Frame, lost: Callable[[], Any]) -> tuple[Rows, int]:
        """As :func:`onceward.spark.batch.job.to_arrow`: the rows themselves, in the order of the
        frame's partitions.
        """
        whole = Rows((), frame.computed.batch_id)
        for part in _Job(self._sim, self._world, frame, lost, bring_rows=True).run():
            whole.extend(part)
            whole.computation = part.computation
        return whole, frame.computed.tasks()


class _Job:
    """One job. Its words with its tasks are a queue of events; its own task is the query's."""

    def __init__(
        self,
        sim: Sim,
        world: Any,
        frame: Frame,
        lost: Callable[[], Any],
        *,
        bring_rows: bool = False,
    ) -> None:
        self._sim = sim
        self._world = world
        self._frame = frame
        self._computed: Computed = frame.computed
        self._lost = lost
        self._bring_rows = bring_rows
        self._executors: Executors = self._computed.query.executors
        self._events: deque[tuple[Any, ...]] = deque()
        self._waiting: Task | None = None
        self._poll: Timer | None = None
        self._running: dict[int, _Attempt] = {}  # by task attempt id
        self._failures: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._done: dict[int, Any] = {}
        self._queue: deque[int] = deque()
        self._slots = world.setting.slots

    def run(self) -> list[Any]:
        self._executors.watch(self._executor_lost)
        try:
            return self._run()
        finally:
            self._executors.unwatch(self._executor_lost)
            if self._poll is not None:
                self._poll.cancel()
            for attempt in self._running.values():
                self._end_task(attempt)

    def _run(self) -> list[Any]:
        if self._computed.shuffles:
            self._earlier_stages()
        tasks = self._computed.tasks()
        self._queue.extend(range(tasks))
        since: float | None = None
        while len(self._done) < tasks:
            self._launch()
            event = self._next()
            if event is None:
                if self._lost() is not None:
                    since = self._sim.now if since is None else since
                    if self._sim.now - since >= _GRACE:
                        raise JobFailed("Job cancelled because its tag was cancelled")
                continue
            self._handle(event)
        found = [self._done[partition] for partition in range(tasks)]
        if self._frame.open_writer is not None:
            lots = self._sim.lots
            if lots.fires("report:lost"):
                del found[lots.below("report:lost", tasks)]
            if found and lots.fires("report:twice"):
                found.append(found[lots.below("report:twice", len(found))])
        return found

    def _next(self) -> tuple[Any, ...] | None:
        if not self._events:
            self._waiting = self._sim.current
            if self._poll is None or not self._poll.pending:
                self._poll = self._sim.after(_POLL, self._time_to_ask)
            self._sim.park()
            self._waiting = None
        return self._events.popleft() if self._events else None

    def _time_to_ask(self) -> None:
        """Whether the attempt is lost, and the job to be cancelled: Spark's jobs are watched by a
        thread.
        """
        if self._poll is not None:
            self._poll.cancel()
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._sim.wake(waiting)

    def _tell(self, *event: Any) -> None:
        self._events.append(event)
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self._sim.wake(waiting)

    # ── the stages before the last one ──

    def _earlier_stages(self) -> None:
        """Map tasks whose output is not there. Instantaneous: what matters is which computation
        each one is of.

        Not where every block of a persisted frame is (``DAGScheduler.getMissingParentStages``).
        """
        computed = self._computed
        if computed.persisted and all(
            self._block(task) is not None for task in range(computed.tasks())
        ):
            return
        self._map_stage()
        if len(computed.shuffles) > 1:
            self._stage_between()
        if self._sim.lots.fires("spark:output lost"):
            delay = self._sim.lots.below("spark:output lost", 100) / 100 * 0.05
            some = [
                (shuffle, task) for shuffle in computed.shuffles for task in range(shuffle.tasks)
            ]
            self._sim.after(
                delay,
                self._lose_output,
                *some[self._sim.lots.below("spark:output lost", len(some))],
            )

    def _map_stage(self) -> None:
        first = self._computed.shuffles[0]
        for task in range(first.tasks):
            if task not in first.outputs:
                first.outputs[task] = (self._an_executor(), (self._world.next_number(),))

    def _stage_between(self) -> None:
        """It writes the second shuffle of what it reads of the first. When output of that one is
        lost meanwhile, its tasks that have finished are not run again, and it has read two
        computations.
        """
        first, second = self._computed.shuffles
        for task in range(second.tasks):
            if task in second.outputs:
                continue
            if task and self._sim.lots.fires("spark:output lost"):
                self._lose_output(first, self._sim.lots.below("spark:output lost", first.tasks))
            executor = self._an_executor()
            while (nonces := self._fetched(first)) is None:
                self._take_back_lost(first)
                self._map_stage()
                if self._fetched(first) is None:
                    self._sim.park(_POLL)  # an executor has died, and nobody has heard of it yet
            second.outputs[task] = (executor, [nonce for (nonce,) in nonces])

    def _fetched(self, shuffle: Shuffle) -> list[Nonces] | None:
        """What each of its map tasks has read; None: output of one cannot be had."""
        outputs = [shuffle.outputs.get(task) for task in range(shuffle.tasks)]
        there = [
            kept[1]
            for kept in outputs
            if kept is not None and kept[0] is not None and kept[0].alive
        ]
        return there if len(there) == shuffle.tasks else None

    def _take_back_lost(self, shuffle: Shuffle) -> None:
        for task, (executor, _) in list(shuffle.outputs.items()):
            if executor is None or executor not in self._executors.alive:
                shuffle.take_back(task)

    def _lose_output(self, shuffle: Shuffle, task: int) -> None:
        """Nobody knows until somebody asks for it."""
        if task in shuffle.outputs:
            _, read = shuffle.outputs[task]
            shuffle.outputs[task] = (None, read)
            self._say(f"⚡ the output of map task {task} of shuffle {shuffle.id} is lost")

    def _block(self, task: int) -> Read | None:
        """What a living block of the persisted frame is computed from."""
        executor, read = self._computed.blocks.get(task, (None, None))
        return read if executor in self._executors.alive else None

    def _an_executor(self) -> Process:
        while not self._executors.alive:
            self._sim.park(_POLL)
        alive = self._executors.alive
        return alive[int(self._sim.lots.time.random() * len(alive))]

    # ── the last stage ──

    def _launch(self) -> None:
        while self._queue and len(self._running) < self._slots:
            partition = self._queue.popleft()
            if partition in self._done:
                continue
            number = self._numbers.get(partition, -1) + 1
            self._numbers[partition] = number
            attempt = _Attempt(partition, number, self._world.next_number(), self._an_executor())
            self._running[attempt.id] = attempt
            delay = _START * (0.5 + self._sim.lots.time.random())
            attempt.task = self._sim.spawn(attempt.executor, self._task, attempt, delay=delay)

    def _handle(self, event: tuple[Any, ...]) -> None:
        what, attempt = event[0], event[1]
        if what == "executor":
            for running in [a for a in self._running.values() if a.executor is attempt]:
                self._failed(running, "ExecutorLostFailure")
            for shuffle in self._computed.shuffles:
                for task, (executor, read) in list(shuffle.outputs.items()):
                    if executor is attempt:
                        shuffle.outputs[task] = (None, read)
        elif what == "done":
            if (
                self._running.pop(attempt.id, None) is not None
                and attempt.partition not in self._done
            ):
                self._done[attempt.partition] = event[2]
        elif what == "failed":
            self._failed(attempt, event[2])
        else:
            self._fetch_failed(attempt)

    def _failed(self, attempt: _Attempt, why: str) -> None:
        if self._running.pop(attempt.id, None) is None or attempt.partition in self._done:
            return
        failures = self._failures[attempt.partition] = self._failures.get(attempt.partition, 0) + 1
        if failures >= _MAX_FAILURES:
            raise JobFailed(
                f"Task {attempt.partition} failed {failures} times, most recent failure: {why}"
            )
        self._queue.append(attempt.partition)

    def _fetch_failed(self, attempt: _Attempt) -> None:
        """The whole stage is attempted anew, but for tasks that have finished; the others of the
        old one run on.
        """
        self._running.pop(attempt.id, None)
        computed = self._computed
        for shuffle in computed.shuffles:
            self._take_back_lost(shuffle)
        self._say("fetch failed: the stage is attempted again")
        self._earlier_stages()
        self._numbers.clear()
        running = {a.partition for a in self._running.values()}
        again = [
            p for p in range(computed.tasks()) if p not in self._done and p not in self._queue
        ]
        self._queue.extend(again)
        if running:
            self._slots += len(running)  # zombies of the old attempt hold their slots

    # ── in the tasks ──

    def _task(self, attempt: _Attempt) -> None:
        try:
            self._attempted(attempt)
        except Killed:
            raise
        except _FetchFailed:
            self._tell("fetch failed", attempt)
        except Exception as error:  # noqa: BLE001 — to the driver as text, as Spark does
            self._tell("failed", attempt, f"{type(error).__name__}: {error}")

    def _attempted(self, attempt: _Attempt) -> None:
        self._befall(attempt)
        rows = self._frame.of_half(self._input(attempt))
        if (self._bring_rows or self._frame.open_writer is None) and self._sim.lots.fires(
            "spark:task fails"
        ):
            self._say(f"⚡ task {attempt.partition}.{attempt.number} raises")
            raise RuntimeError("a function of the user's failed")
        self._attempted_with(attempt, rows)

    def _attempted_with(self, attempt: _Attempt, rows: Rows) -> None:
        if self._bring_rows:
            self._tell("done", attempt, rows)
            return
        if self._frame.open_writer is None:
            self._tell("done", attempt, len(rows))
            return
        task = TaskAttempt(attempt.partition, attempt.number, attempt.id)
        written, committable, error = 0, None, None
        try:
            written, committable = task_writer._written(
                self._frame.open_writer, task, self._in_pieces(attempt, rows)
            )
        except self._frame.returned_errors as caught:
            error = to_json(caught)  # type: ignore[arg-type]
        if not isinstance(committable, str) and error is None:
            committable = json.dumps(committable)
        self._tell(
            "done", attempt, Result(attempt.partition, attempt.id, written, committable, error)
        )

    def _input(self, attempt: _Attempt) -> Rows:
        computed = self._computed
        if computed.persisted:
            read = self._block(attempt.partition)
            if read is None:
                read = self._read(attempt)
                computed.blocks[attempt.partition] = (attempt.executor, read)
        else:
            read = self._read(attempt)
        if computed.plan.stateful:
            return self._with_state(attempt.partition, read)
        return computed.rows_of(attempt.partition, read, self._frame.only)

    def _read(self, attempt: _Attempt) -> Read:
        computed = self._computed
        if not computed.shuffles:
            nonce = self._world.next_number() if computed.plan.by_chance else 0
            return [[nonce] * len(computed.start)]
        fetched = self._fetched(computed.shuffles[-1])
        if fetched is None:
            raise _FetchFailed
        return fetched if computed.plan.between else [[nonce for (nonce,) in fetched]]

    def _with_state(self, task: int, read: Read) -> Rows:
        """``StateStore``: a version for each batch, read as of the one before; written again by
        whoever runs again.
        """
        computed, state = self._computed, self._computed.query.checkpoint.state
        before = state.get((computed.batch_id - 1, task))
        if before is None and computed.batch_id > 0:
            raise RuntimeError(
                f"[CANNOT_LOAD_STATE_STORE] state of batch {computed.batch_id - 1}, task {task}, "
                f"is missing"
            )
        rows, after = computed.counts_of(task, read, before or {}, self._frame.only)
        state[computed.batch_id, task] = after
        state.pop((computed.batch_id - 10, task), None)
        return rows

    def _in_pieces(self, attempt: _Attempt, rows: Rows) -> Any:
        """The user's own function is at work between them."""
        sim = self._sim
        size = self._world.setting.piece
        for begun in range(0, len(rows), size):
            if begun:
                sim.park(_START * sim.lots.time.random())
            if sim.lots.fires("spark:task fails"):
                self._say(f"⚡ task {attempt.partition}.{attempt.number} raises")
                raise RuntimeError("a function of the user's failed")
            if sim.lots.fires("spark:task slow"):
                sim.park(sim.lots.below("spark:task slow", 1000) / 1000 * 30)
            yield Rows(rows[begun : begun + size], rows.batch_id, rows.computation)

    def _befall(self, attempt: _Attempt) -> None:
        sim, lots = self._sim, self._sim.lots
        if lots.fires("spark:executor killed"):
            sim.after(
                lots.below("spark:executor killed", 100) / 100 * 0.015, sim.kill, attempt.executor
            )
        if lots.fires("spark:executor stopped"):
            seconds = lots.below("spark:executor stopped", 100) / 100 * 60
            sim.after(
                lots.below("spark:executor stopped", 100) / 100 * 0.015,
                self._executors.stop,
                attempt.executor,
                seconds,
            )

    # ── endings ──

    def _executor_lost(self, executor: Process) -> None:
        self._tell("executor", executor)

    def _end_task(self, attempt: _Attempt) -> None:
        """Spark kills the Python worker of a task that nobody waits for; not at once."""
        self._sim.after(0.01, self._kill_task, attempt.task)

    def _kill_task(self, task: Task) -> None:
        if task.done or not task.process.alive:
            return
        if task.process.paused:
            self._sim.after(1.0, self._kill_task, task)
            return
        self._sim.kill_task(task)

    def _say(self, what: str) -> None:
        if self._sim.tell is not None:
            self._sim.tell(self._sim.now, self._sim.here.name, what)


class _FetchFailed(Exception):
    """``org.apache.spark.shuffle.FetchFailedException``."""
