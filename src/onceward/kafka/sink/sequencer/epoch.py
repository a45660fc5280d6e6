"""One epoch of the sequencer at work: its book, its connections, and who is told what.

Made by ``sequencer.server`` in the driver, one for each epoch; ``sequencer.door`` hands it the
connections that showed its token. A thread for each connection reads frames and books them under
the epoch's lock. Everything slow happens outside that lock: the callback for first leases, the
events' probes, and sending.

A grant, step by step:

1. under the lock, the book grants;
2. ``on_first_lease`` is called with partitions that are new in this epoch (transaction version 1
   adds them to the transaction there, which Kafka wants *before* the first ``Produce``);
3. the event ``lease started`` is published;
4. if nothing has poisoned the epoch meanwhile, the answer is sent. When something has, the asker
   was told to stop.

The epoch object is private to its epoch: a thread that lags behind can only write in a book that
nobody reads any more.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onceward import events, surroundings
from onceward.errors import EpochPoisoned, OncewardError
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer import frames
from onceward.kafka.sink.sequencer.book import EpochBook, Granted, HeldLease, superseded
from onceward.kafka.sink.sequencer.connection import Connection
from onceward.kafka.sink.sequencer.frames import Op
from onceward.kafka.sink.sequencer.ticket import EpochTicket

OnFirstLease = Callable[[Sequence[TopicPartition]], None]

_PATIENCE_SECONDS = 1.0
_CLOSE_LIMIT_SECONDS = 60.0


class Epoch:
    """Serves the tasks of one epoch. Thread safe."""

    def __init__(
        self,
        ticket: EpochTicket,
        lease_limit_seconds: float,
        on_first_lease: OnFirstLease | None,
        first_sequences: Mapping[TopicPartition, int],
    ) -> None:
        self.ticket = ticket
        self._on_first_lease = on_first_lease
        self._lock = threading.Lock()
        self._book = EpochBook(ticket.identity, lease_limit_seconds, first_sequences)
        self._live: dict[Connection, threading.Thread] = {}
        self._of_task: dict[TaskAttempt, Connection] = {}
        self._told = False
        self._next_patience = 0.0

    # ── what the driver asks for ──

    @property
    def failure(self) -> OncewardError | None:
        """Why this epoch must be aborted, or None."""
        with self._lock:
            return self._book.error

    def longest_held(self) -> float:
        """Seconds for which the oldest lease that is out has been held."""
        with self._lock:
            return self._book.longest_held(surroundings.monotonic())

    def poison(self, reason: str, error: OncewardError | None = None) -> None:
        """End the epoch: every task is told to stop."""
        with self._booking() as book:
            book.poison(reason, error)

    def tick(self, now: float) -> None:
        """To be called a few times a second: finds overdue leases, and tells those who wait that
        we live.
        """
        with self._booking() as book:
            book.overdue(now)
        if now >= self._next_patience:
            self._next_patience = now + _PATIENCE_SECONDS
            with self._lock:
                patient = [connection for connection in self._live if connection.unanswered]
            for connection in patient:
                connection.send(Op.PATIENCE)

    def close(self) -> EpochBook:
        """Tell everyone that the epoch is over, wait for the threads, and return the book.

        When this returns no ``on_first_lease`` is running any more, so that none reaches into the
        next transaction; one that hangs for a minute poisons the book instead.
        """
        with self._booking() as book:
            book.close()
            live = dict(self._live)
        for connection in live:
            connection.stop(book.refusal())
            connection.hang_up()
        deadline = surroundings.monotonic() + _CLOSE_LIMIT_SECONDS
        for thread in live.values():
            thread.join(max(0.0, deadline - surroundings.monotonic()))
        if any(thread.is_alive() for thread in live.values()):
            self.poison(
                f"a lease was still being prepared {_CLOSE_LIMIT_SECONDS:g} s after the epoch was "
                f"closed"
            )
        return book

    # ── what a connection brings ──

    def admit(self, sock: socket.socket, task: TaskAttempt) -> None:
        """Serve a connection that has shown the token, in a thread of its own."""
        connection = Connection(sock, task)
        thread = surroundings.Thread(
            target=self._serve,
            args=(connection,),
            name=f"onceward-sequencer-task-{task.partition_id}",
            daemon=True,
        )
        with self._lock:
            if self._book.closed:
                connection.close()
                return
            try:
                thread.start()
            except RuntimeError as error:  # this process may not have any more threads
                refused: RuntimeError | None = error
            else:
                refused = None
                self._live[connection] = thread
        if refused is not None:
            self._give_up(connection, f"{task} cannot be served", refused)
            connection.close()

    def _serve(self, connection: Connection) -> None:
        how = "was lost"
        try:
            if self._welcome(connection):
                for op, payload in connection.frames():
                    self._handle(connection, op, payload)
        except frames.BadFrame as error:
            how = f"carried garbage ({error.message})"
        except BaseException as error:  # noqa: BLE001 - tasks must not go on when their sequencer fails
            self._give_up(connection, "the sequencer failed", error)
        finally:
            self._lose(connection, how)
            connection.close()

    def _welcome(self, connection: Connection) -> bool:
        try:
            with self._booking() as book:
                predecessor = book.hello(connection.task)
                replaced = self._of_task.pop(predecessor, None) if predecessor else None
                self._of_task[connection.task] = connection
        except OncewardError as refusal:
            connection.stop(refusal)
            return False
        if replaced is not None:
            replaced.stop(superseded(replaced.task))
        connection.send(Op.WELCOME)
        return True

    def _lose(self, connection: Connection, how: str) -> None:
        """The connection is of no use any more, whatever ended it.

        A RELEASE that was sent just before the end is either read before this (TCP keeps the
        order, and the end of the stream comes last), or it was lost with the connection: then the
        lease is still out, and that is poison.
        """
        with self._booking() as book:
            del self._live[connection]
            if self._of_task.get(connection.task) is connection:
                del self._of_task[connection.task]
                book.disconnected(connection.task, how)

    def _handle(self, connection: Connection, op: Op, payload: bytes) -> None:
        try:
            if op is Op.LEASE:
                self._lease(connection, *frames.decode_wish(payload))
            elif op is Op.RELEASE:
                self._release(connection, frames.decode_partitions(payload))
            elif op is Op.FINISH:
                with self._booking() as book:
                    book.finished(connection.task)
                connection.send(Op.DONE)
            elif op is Op.FAIL:
                self._fail(connection, frames.decode_error(payload))
            else:
                raise frames.BadFrame(f"{op.name} is not for the driver")
        except frames.BadFrame:
            raise
        except OncewardError as refusal:
            connection.stop(refusal)

    def _lease(self, connection: Connection, wanted: Sequence[TopicPartition], limit: int) -> None:
        connection.unanswered = True
        with self._booking() as book:
            granted = book.lease(connection.task, wanted, surroundings.monotonic(), limit)
            waits = book.is_waiting(connection.task)
        if not waits:
            self._answer(connection, granted)

    def _answer(self, connection: Connection, granted: Sequence[Granted]) -> None:
        """Steps 2 to 4 of a grant; see the module's text."""
        try:
            self._prepare(connection.task, granted)
        except BaseException as error:  # noqa: BLE001 - a transaction or a probe may raise anything; passed on
            self._give_up(
                connection, f"a lease for {connection.task} could not be prepared", error
            )
            return
        connection.unanswered = False
        with self._lock:
            alive = self._book.poisoned is None
        if alive:
            bases = [(lease.partition, lease.base_sequence) for lease in granted]
            connection.send(Op.GRANT, frames.encode_partitions(bases))

    def _prepare(self, task: TaskAttempt, granted: Sequence[Granted]) -> None:
        first = [lease.partition for lease in granted if lease.first]
        if first and self._on_first_lease is not None:
            self._on_first_lease(first)
        for lease in granted:
            self._publish("started", lease.partition, task, lease.base_sequence)

    def _release(
        self, connection: Connection, numbered: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        for partition, next_sequence in numbered:
            with self._lock:
                lease = self._book.held.get(partition)
            if lease is not None and lease.task == connection.task:
                # Before it is booked, so that for every probe a turn ends before the next one
                # begins.
                try:
                    self._publish_end("finished", partition, lease, next_sequence=next_sequence)
                except BaseException as error:  # noqa: BLE001 - a probe may raise anything; it is passed on
                    self._give_up(
                        connection, f"a lease of {connection.task} could not be given back", error
                    )
                    return
            with self._booking() as book:
                book.release(connection.task, partition, next_sequence)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        with self._booking() as book:
            grants = [
                (self._of_task[waiter], granted)
                for waiter, granted in book.grant_waiting(surroundings.monotonic())
            ]  # whoever waits is connected: _lose takes the connection and the wait away in one step
        for connection, granted in grants:
            # The connection may break at this moment. Then the answer is lost, and its own thread
            # finds it gone while it holds a lease: poison, since nobody can know whether the
            # answer was read.
            self._answer(connection, granted)

    def _fail(self, connection: Connection, error: OncewardError) -> None:
        with self._booking() as book:
            # An attempt that was replaced before it held anything has no say: most likely it
            # reports just that.
            if not book.closed and not book.is_superseded(connection.task):
                book.poison(f"{connection.task} failed: {error.message}", error)
        connection.send(Op.DONE)

    # ── telling ──

    @contextlib.contextmanager
    def _booking(self) -> Iterator[EpochBook]:
        """The book, under the lock. When it comes out poisoned, everyone is told to stop, outside
        the lock.
        """
        try:
            with self._lock:
                yield self._book
        finally:
            if self._book.poisoned is not None:
                self._tell_everyone()

    def _tell_everyone(self) -> None:
        with self._lock:
            if self._told:
                return
            self._told = True
            audience = list(self._live)
            lost = dict(self._book.held)
        for connection in audience:
            connection.stop(self._book.refusal())
        for partition, lease in lost.items():
            try:
                self._publish_end("failed", partition, lease, error=self._book.error)
            except BaseException as error:  # noqa: BLE001, PERF203 - a probe may raise anything; it is passed on
                self.poison("a probe failed", _as_ours("a probe failed", error))

    def _give_up(self, connection: Connection, what: str, error: BaseException) -> None:
        """Poison with ``error``. The one who asked is told the error itself, everyone else the
        reason.
        """
        ours = _as_ours(what, error)
        connection.stop(ours)
        self.poison(f"{what}: {ours.message}", ours)

    def _publish(
        self, phase: events.Phase, partition: TopicPartition, task: TaskAttempt, base_sequence: int
    ) -> None:
        events.publish(
            events.Event(events.LEASE, phase, self._ids(partition, task, base_sequence))
        )

    def _publish_end(
        self,
        phase: events.Phase,
        partition: TopicPartition,
        lease: HeldLease,
        *,
        next_sequence: int | None = None,
        error: OncewardError | None = None,
    ) -> None:
        ids = {
            **self._ids(partition, lease.task, lease.base_sequence),
            "next_sequence": next_sequence,
        }
        events.publish(
            events.Event(events.LEASE, phase, ids, surroundings.monotonic() - lease.since, error)
        )

    def _ids(
        self, partition: TopicPartition, task: TaskAttempt, base_sequence: int
    ) -> dict[str, Any]:
        return {
            "partition": partition,
            "task": task,
            "producer": self.ticket.identity,
            "base_sequence": base_sequence,
        }


def _as_ours(what: str, error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    ours = EpochPoisoned(f"{what}: {error!r}", next_step="the batch runs again under a new epoch")
    ours.__cause__ = error
    return ours
