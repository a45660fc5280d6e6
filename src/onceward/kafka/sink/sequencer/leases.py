"""Leases of one epoch: which task may append to which partition, and where the next one goes on.
Called by ``sequencer.epoch`` in the driver, under its lock; read by the report check when the
epoch is closed. Pure: no I/O, no lock, no clock (times are passed in), so that every transition is
tested as a function.

Why it exists: Kafka keeps idempotence state per *(producer id, partition)* as one unbroken
sequence (KIP-98), so tasks that share a producer id must take turns on a partition and continue
each other's numbers. And an attempt of a task must never send under an epoch in which an earlier
attempt of the same task may have sent: the broker would take both, since their sequences differ,
and the records would be there twice.

When output that a job's last stage reads is lost, Spark attempts that stage again: two
computations of the batch may then meet in one epoch (``spark.shuffles`` tells how, and is the one
who decides). It shows here when a task comes with an attempt number that it had before, since
Spark counts them anew in each attempt of a stage (``TaskSetManager``); that ends the epoch early,
whether or not anything was sent.

What a request costs does not grow with the number of tasks: who waits for a partition stands in
that partition's own queue, and only queues of partitions that were given back are looked at.

An attempt's way, and what poisons the epoch instead::

    (new) ──hello──> READY ──lease──> HOLDING ──release──> READY ──finished──> (done)
                       └──lease: nothing free──> WAITING ──another's release──> HOLDING

    hello     of a second attempt whose predecessor ever held a lease, or of the same one twice;
              with a number that the task had before: the stage is attempted again
    lease     after ``finished``, without ``hello``, or while waiting
    release   of a lease that is not held by this attempt, or with an impossible sequence
    finished  while a lease is held
    disconnected  after holding any lease and without ``finished``
    overdue   a lease older than the limit
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, NoReturn

from onceward.errors import WANT_OF_MEMORY, AttemptSuperseded, EpochPoisoned, OncewardError
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.records.batch import MAX_SEQUENCE

NO_LIMIT = 0
"""As the ``limit`` of a lease: every partition that is wanted and free."""

_RUN_AGAIN = (
    "nothing, the batch runs again under a new epoch; nothing of this attempt is visible; if it "
    f"repeats, {WANT_OF_MEMORY}, or nodes are lost"
)


class Granted(NamedTuple):
    """A lease to append from ``base_sequence`` on. ``first``: of the partition in this epoch."""

    partition: TopicPartition
    base_sequence: int
    first: bool


class ReturnedLease(NamedTuple):
    """A lease given back: ``task`` appended the sequences from base up to, not including, next."""

    partition: TopicPartition
    task: TaskAttempt
    base_sequence: int
    next_sequence: int


class HeldLease(NamedTuple):
    """A lease that is out: to whom, from which sequence, since when (the caller's clock, in s)."""

    task: TaskAttempt
    base_sequence: int
    since: float


@dataclass(frozen=True, slots=True)
class _LeaseRequest:
    """The partitions that a waiting task has asked for, and its place among those who wait."""

    partitions: Mapping[TopicPartition, None]
    limit: int
    arrival: int


class EpochLeases:
    """All leases of one epoch. Methods change them or raise; once poisoned or closed it grants
    nothing any more.

    :param lease_limit_seconds: a lease held for longer than this poisons the epoch
        (:meth:`overdue`).
    :param first_sequences: where partitions go on that this epoch has written to already, in an
        earlier job: one transaction may have several jobs, each with leases of its own. All others
        begin at 0.
    """

    def __init__(
        self,
        identity: ProducerIdentity,
        lease_limit_seconds: float,
        first_sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        self.identity = identity
        self.lease_limit_seconds = lease_limit_seconds
        self.poisoned: str | None = None
        """The reason why the epoch must be aborted, None while it may still commit."""
        self.error: OncewardError | None = None
        """The poison as an error: what a task reported if one did, else :class:`EpochPoisoned`."""
        self.closed = False
        self.returned: list[ReturnedLease] = []
        """Leases in the order in which they came back, hence in sequence order per partition."""
        self.next_sequences: dict[TopicPartition, int] = dict(first_sequences)
        """Where each partition goes on, from its first grant on (new epochs begin at 0)."""
        self.held: dict[TopicPartition, HeldLease] = {}
        # The one attempt of each task that may lease
        self._current: dict[int, TaskAttempt] = {}
        self._holding: dict[TaskAttempt, int] = {}  # how many leases
        # Ever held a lease, hence may have sent
        self._senders: set[TaskAttempt] = set()
        self._finished: set[TaskAttempt] = set()
        self._waiting: dict[TaskAttempt, _LeaseRequest] = {}
        # Who waits for each, in order of arrival
        self._queues: dict[TopicPartition, dict[TaskAttempt, None]] = {}
        # Given back while somebody waits, and not offered yet
        self._freed: dict[TopicPartition, None] = {}
        self._arrivals = 0

    def hello(self, task: TaskAttempt) -> TaskAttempt | None:
        """Register ``task``; return the attempt that it replaces, which held no lease and never
        will.

        :raises AttemptSuperseded: a newer attempt was here first; nothing changes.
        :raises EpochPoisoned: the epoch is over, or ends now, since the predecessor may have sent
            or belongs to an earlier attempt of the stage.
        """
        self._require_open()
        predecessor = self._current.get(task.partition_id)
        if predecessor is not None:
            self._replace(predecessor, task)
            self._stop_waiting(predecessor)
        self._current[task.partition_id] = task
        return predecessor

    def _replace(self, predecessor: TaskAttempt, task: TaskAttempt) -> None:
        if task.task_attempt_id < predecessor.task_attempt_id:
            # The hello of an older attempt was under way for longer than that of its successor. It
            # holds nothing.
            raise superseded_error(task)
        if task.task_attempt_id == predecessor.task_attempt_id:
            self._poison_and_raise(f"{task} said hello twice")
        if predecessor in self._senders:
            # A lease counts from the grant, not from its use: 1. the predecessor is granted, 2.
            # its executor dies, or the answer is lost, or it is merely slow, 3. nobody here can
            # know whether it has sent.
            self._poison_and_raise(
                f"{task} came although {predecessor} has held a lease and may have sent"
            )
        if task.attempt_number <= predecessor.attempt_number:
            # 1. tasks of the stage finish, with rows or without, 2. output that they read is lost,
            # 3. Spark computes it again, from look-ups and random numbers that may differ, and
            # runs the stage's other tasks on the new one.
            self._poison_and_raise(
                f"{task} came after {predecessor}: Spark attempts the whole stage again"
            )

    def lease(
        self,
        task: TaskAttempt,
        partitions: Sequence[TopicPartition],
        now: float,
        limit: int = NO_LIMIT,
    ) -> list[Granted]:
        """Lease those of ``partitions`` that are free, the first ``limit`` of them. When none is,
        ``task`` waits (:meth:`is_waiting`) and is served by :meth:`grant_waiting`, first come
        first served per partition.

        A task that holds leases never waits: two tasks that each hold what the other wants would
        do so for ever. It gets an empty list, gives back what it has, and asks again.

        :raises EpochPoisoned: the epoch is over, or ends now, since this attempt may not lease.
        :raises AttemptSuperseded: a newer attempt of this task is here.
        """
        self._require_open()
        self._require_current(task)
        if task in self._finished:
            self._poison_and_raise(f"{task} asks for a lease after it said that it is finished")
        if task in self._waiting:
            self._poison_and_raise(f"{task} asks for a lease while it waits for one")
        # A partition that somebody waits for goes to them: who comes later would starve them for
        # ever.
        granted = self._grant(
            task,
            (partition for partition in partitions if partition not in self._queues),
            now,
            limit,
        )
        if not granted and partitions and task not in self._holding:
            self._wait(task, partitions, limit)
        return granted

    def _wait(self, task: TaskAttempt, partitions: Sequence[TopicPartition], limit: int) -> None:
        self._arrivals += 1
        self._waiting[task] = _LeaseRequest(dict.fromkeys(partitions), limit, self._arrivals)
        for partition in partitions:
            self._queues.setdefault(partition, {})[task] = None

    def _stop_waiting(self, task: TaskAttempt) -> None:
        request = self._waiting.pop(task, None)
        for partition in () if request is None else request.partitions:
            queue = self._queues[partition]
            del queue[task]
            if not queue:
                del self._queues[partition]

    def is_waiting(self, task: TaskAttempt) -> bool:
        """Return whether ``task`` asked for a lease that it has not got yet."""
        return task in self._waiting

    def grant_waiting(self, now: float) -> list[tuple[TaskAttempt, list[Granted]]]:
        """Lease to those who wait, in order of arrival. Called whenever partitions became free."""
        if self.poisoned is not None or self.closed:
            return []
        # Nobody waits for a partition that was free before: whoever came for it got it, or is in
        # its queue.
        freed, self._freed = self._freed, {}
        grants = []
        while first := {
            next(iter(self._queues[partition])) for partition in freed if partition in self._queues
        }:
            task = min(first, key=lambda waiter: self._waiting[waiter].arrival)
            request = self._waiting[task]
            granted = self._grant(
                task, [each for each in freed if each in request.partitions], now, request.limit
            )
            self._stop_waiting(task)
            for lease in granted:
                del freed[lease.partition]
            grants.append((task, granted))
        return grants

    def _grant(
        self, task: TaskAttempt, partitions: Iterable[TopicPartition], now: float, limit: int
    ) -> list[Granted]:
        granted: list[Granted] = []
        for partition in partitions:
            if limit != NO_LIMIT and len(granted) == limit:
                break
            if partition in self.held:
                continue
            first = partition not in self.next_sequences
            base_sequence = self.next_sequences.setdefault(partition, 0)
            self.held[partition] = HeldLease(task, base_sequence, now)
            granted.append(Granted(partition, base_sequence, first))
        if granted:
            self._senders.add(task)
            self._holding[task] = self._holding.get(task, 0) + len(granted)
        return granted

    def release(self, task: TaskAttempt, partition: TopicPartition, next_sequence: int) -> None:
        """Take ``partition`` back from ``task``; its appends are acknowledged, the next one is
        ``next_sequence``. A ``next_sequence`` equal to the base means that nothing was sent.

        :raises EpochPoisoned: the epoch is over, or ends now: only the holder gives back, a
            possible sequence.
        """
        self._require_open()
        lease = self.held.get(partition)
        if lease is None or lease.task != task:
            holder = lease.task if lease else "nobody"
            self._poison_and_raise(f"{task} gave back {partition}, which is held by {holder}")
        if not 0 <= next_sequence <= MAX_SEQUENCE:
            self._poison_and_raise(
                f"{task} gave back {partition} with the impossible sequence {next_sequence}"
            )
        del self.held[partition]
        self._holding[task] -= 1
        if not self._holding[task]:
            del self._holding[task]
        if partition in self._queues:
            self._freed[partition] = None
        self.next_sequences[partition] = next_sequence
        self.returned.append(ReturnedLease(partition, task, lease.base_sequence, next_sequence))

    def finished(self, task: TaskAttempt) -> None:
        """Record that ``task`` has sent all it has; its connection may go away now.

        :raises EpochPoisoned: the epoch is over, or ends now, since a lease is still held.
        :raises AttemptSuperseded: a newer attempt of this task is here.
        """
        self._require_open()
        self._require_current(task)
        if task in self._holding:
            self._poison_and_raise(f"{task} finished while it holds a lease")
        self._finished.add(task)
        self._stop_waiting(task)

    def disconnected(self, task: TaskAttempt, how: str = "was lost") -> None:
        """Record that the connection of ``task`` is gone. One that may have sent and has not
        finished poisons the epoch. That holds when all its leases are back, too: its report will
        never come, and its records have no owner."""
        self._stop_waiting(task)
        if self.closed or task in self._finished:
            return
        if task in self._holding:
            self.poison(f"the connection of {task} {how} while it held a lease")
        elif task in self._senders:
            self.poison(f"the connection of {task} {how} before it finished")

    def longest_held(self, now: float) -> float:
        """Return the seconds since the oldest lease was granted: it is not acknowledged yet."""
        return max((now - lease.since for lease in self.held.values()), default=0.0)

    def overdue(self, now: float) -> None:
        """Poison the epoch when a lease is out for longer than the limit: its holder hangs."""
        if self.closed:
            return
        # The oldest: they stand in the order of grants
        partition, lease = next(iter(self.held.items()), (None, None))
        if lease is not None and now - lease.since > self.lease_limit_seconds:
            self.poison(
                f"{lease.task} has held {partition} for more than {self.lease_limit_seconds:g} s"
            )

    def poison(self, reason: str, error: OncewardError | None = None) -> None:
        """End the epoch: nothing is granted any more, and it must be aborted. The first reason
        stays. An ``error`` that a task reports later replaces a bare :class:`EpochPoisoned`,
        because it says more: a connection may be seen to break before another task's ``Fenced`` or
        ``RecordTooLarge`` has been read."""
        if self.poisoned is None:
            self.poisoned = reason
            self.error = error or self.refusal()
            self._forget_waiting()
        elif error is not None and isinstance(self.error, EpochPoisoned):
            self.error = error

    def close(self) -> None:
        """Grant nothing any more, for the report check. Leases that are out poison the epoch."""
        for partition, lease in self.held.items():
            self.poison(f"the epoch was closed while {lease.task} held {partition}")
        for task in sorted(self._senders - self._finished, key=lambda task: task.task_attempt_id):
            self.poison(f"the epoch was closed before {task} finished")
        self.closed = True
        self._forget_waiting()

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._queues.clear()
        self._freed.clear()

    def refusal(self) -> EpochPoisoned:
        """Return the error for a task that asks for something when the epoch is over."""
        reason = self.poisoned or "it is closed"
        return EpochPoisoned(
            f"{self.identity} was stopped: {reason}",
            next_step=_RUN_AGAIN,
            details={"reason": reason},
        )

    def is_superseded(self, task: TaskAttempt) -> bool:
        """Return whether a newer attempt of the same task has taken the place of ``task``."""
        current = self._current.get(task.partition_id)
        return current is not None and current.task_attempt_id > task.task_attempt_id

    def _require_open(self) -> None:
        if self.poisoned is not None or self.closed:
            raise self.refusal()

    def _require_current(self, task: TaskAttempt) -> None:
        if self.is_superseded(task):
            raise superseded_error(task)
        if self._current.get(task.partition_id) != task:
            self._poison_and_raise(f"{task} never said hello")

    def _poison_and_raise(self, reason: str) -> NoReturn:
        self.poison(reason)
        raise self.refusal()


def superseded_error(task: TaskAttempt) -> AttemptSuperseded:
    """Return the error for an attempt whose place is taken."""
    return AttemptSuperseded(
        f"a newer attempt has taken the place of {task}",
        next_step="nothing; the newer attempt goes on",
    )
