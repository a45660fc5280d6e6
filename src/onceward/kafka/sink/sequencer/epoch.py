"""One epoch of the sequencer, served: its leases, its connections, and the answers to tasks.

Made by ``sequencer.listener`` in the driver, one for each epoch, which hands it the connections
that showed its token. A thread for each connection reads frames and applies them to the leases
under the epoch's lock. Everything slow happens outside that lock: the callback for first leases,
the events' probes, and sending. A grant, step by step:

1. under the lock, the leases grant it;
2. ``on_first_lease`` is called with partitions that are new in this epoch (transaction version 1
   adds them to the transaction there, which Kafka wants *before* the first ``Produce``);
3. the event ``lease started`` is published;
4. if nothing has poisoned the epoch meanwhile, the answer is sent. When something has, the asker
  was told to stop.

The epoch object is private to its epoch: a thread that lags behind can only change leases that
nobody reads any more.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from onceward import events, surroundings
from onceward.errors import EpochPoisoned, OncewardError
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer import frames
from onceward.kafka.sink.sequencer.frames import (
    EpochCredentials,
    FrameBuffer,
    Op,
    encode_error,
    frame,
)
from onceward.kafka.sink.sequencer.leases import EpochLeases, Granted, HeldLease, superseded_error

OnFirstLease = Callable[[Sequence[TopicPartition]], None]

# a timeval: how long a stopped task whose buffers are full may hold us up
_SEND_LIMIT = struct.pack("ll", 5, 0)
_RECEIVE_BYTES = 65_536
_PATIENCE_SECONDS = 1.0
_CLOSE_LIMIT_SECONDS = 60.0


class TaskConnection:
    """The driver's end of a task attempt's connection; any thread may send. ``unanswered`` while a
    LEASE waits for its answer."""

    def __init__(self, sock: socket.socket, task: TaskAttempt) -> None:
        self.task = task
        self.unanswered = False
        self._sock = sock
        self._sending = surroundings.RLock()
        self._stopped = False
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)

    def frames(self) -> Iterator[tuple[Op, bytes]]:
        """Yield frames until the connection ends. :raises BadFrame: no task would say that."""
        buffer = FrameBuffer()
        while received := self._receive():
            buffer.feed(received)
            while (received_frame := buffer.next_frame()) is not None:
                yield received_frame

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except OSError:
            # Reset by the peer, or its host is gone: the end, like any other
            return b""

    def send(self, op: Op, payload: bytes = b"") -> None:
        """Send a frame; once the task was told to stop only DONE. Where it does not take it, hang
        up: the thread that reads then records the loss."""
        with self._sending:
            if not self._stopped or op is Op.DONE:
                self._send(op, payload)

    def stop(self, error: OncewardError) -> None:
        """Tell the task to stop, and why; only the first reason is sent."""
        with self._sending:
            if not self._stopped:
                self._stopped = True
                self.unanswered = False
                self._send(Op.STOP, encode_error(error))

    def _send(self, op: Op, payload: bytes) -> None:
        try:
            self._sock.sendall(frame(op, payload))
        except OSError:
            self.hang_up()

    def hang_up(self) -> None:
        """End the conversation; the reader finds out, and keeps the file descriptor."""
        # the other end was faster
        with self._sending, contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the file descriptor back; for the thread that reads."""
        # Not while someone sends: the number may belong to another connection a moment later.
        with self._sending:
            self._sock.close()


class Epoch:
    """Serves the tasks of one epoch. Thread safe."""

    def __init__(
        self,
        credentials: EpochCredentials,
        lease_limit_seconds: float,
        on_first_lease: OnFirstLease | None,
        first_sequences: Mapping[TopicPartition, int],
    ) -> None:
        self.credentials = credentials
        self._on_first_lease = on_first_lease
        self._lock = threading.Lock()
        self._leases = EpochLeases(credentials.identity, lease_limit_seconds, first_sequences)
        self._threads: dict[TaskConnection, threading.Thread] = {}
        self._connections: dict[TaskAttempt, TaskConnection] = {}
        self._stopped_all = False
        self._next_patience = 0.0

    # ── what the driver asks for ──

    @property
    def failure(self) -> OncewardError | None:
        """The reason why this epoch must be aborted, or None."""
        with self._lock:
            return self._leases.error

    def longest_held(self) -> float:
        """Return for how many seconds the oldest lease that is out has been held."""
        with self._lock:
            return self._leases.longest_held(surroundings.monotonic())

    def poison(self, reason: str, error: OncewardError | None = None) -> None:
        """End the epoch: every task is told to stop."""
        with self._locked() as leases:
            leases.poison(reason, error)

    def tick(self, now: float) -> None:
        """Find overdue leases, and tell those who wait that we live; a few times a second."""
        with self._locked() as leases:
            leases.overdue(now)
        if now >= self._next_patience:
            self._next_patience = now + _PATIENCE_SECONDS
            with self._lock:
                patient = [connection for connection in self._threads if connection.unanswered]
            for connection in patient:
                connection.send(Op.PATIENCE)

    def close(self) -> EpochLeases:
        """Tell everyone that the epoch is over, wait for the threads, and return the leases. When
        this returns no ``on_first_lease`` is running any more, so that none reaches into the next
        transaction; one that hangs for a minute poisons the epoch instead."""
        with self._locked() as leases:
            leases.close()
            live = dict(self._threads)
        for connection in live:
            connection.stop(leases.refusal())
            connection.hang_up()
        deadline = surroundings.monotonic() + _CLOSE_LIMIT_SECONDS
        for thread in live.values():
            thread.join(max(0.0, deadline - surroundings.monotonic()))
        if any(thread.is_alive() for thread in live.values()):
            self.poison(
                f"a lease was still being prepared {_CLOSE_LIMIT_SECONDS:g} s after the epoch was "
                "closed"
            )
        return leases

    # ── what a connection brings ──

    def admit(self, sock: socket.socket, task: TaskAttempt) -> None:
        """Serve a connection that has shown the token, in a thread of its own."""
        connection = TaskConnection(sock, task)
        thread = surroundings.Thread(
            target=self._serve,
            args=(connection,),
            name=f"onceward-sequencer-task-{task.partition_id}",
            daemon=True,
        )
        with self._lock:
            if self._leases.closed:
                connection.close()
                return
            try:
                thread.start()
            except RuntimeError as error:
                # This process may not have any more threads
                refused: RuntimeError | None = error
            else:
                refused = None
                self._threads[connection] = thread
        if refused is not None:
            self._give_up(connection, f"{task} cannot be served", refused)
            connection.close()

    def _serve(self, connection: TaskConnection) -> None:
        how = "was lost"
        try:
            if self._register(connection):
                for op, payload in connection.frames():
                    self._handle(connection, op, payload)
        except frames.BadFrame as error:
            how = f"carried garbage ({error.message})"
        except BaseException as error:  # noqa: BLE001
            # Tasks must not go on when their sequencer fails.
            self._give_up(connection, "the sequencer failed", error)
        finally:
            self._disconnected(connection, how)
            connection.close()

    def _register(self, connection: TaskConnection) -> bool:
        try:
            with self._locked() as leases:
                predecessor = leases.hello(connection.task)
                replaced = self._connections.pop(predecessor, None) if predecessor else None
                self._connections[connection.task] = connection
        except OncewardError as refusal:
            connection.stop(refusal)
            return False
        if replaced is not None:
            replaced.stop(superseded_error(replaced.task))
        connection.send(Op.WELCOME)
        return True

    def _disconnected(self, connection: TaskConnection, how: str) -> None:
        """Forget a connection that is of no use any more, whatever ended it."""
        # A RELEASE that was sent just before the end is either read before this (TCP keeps the
        # order, and the end of the stream comes last), or it was lost with the connection: then
        # the lease is still out, and poisons the epoch.
        with self._locked() as leases:
            del self._threads[connection]
            if self._connections.get(connection.task) is connection:
                del self._connections[connection.task]
                leases.disconnected(connection.task, how)

    def _handle(self, connection: TaskConnection, op: Op, payload: bytes) -> None:
        try:
            if op is Op.LEASE:
                self._lease(connection, *frames.decode_lease_request(payload))
            elif op is Op.RELEASE:
                self._release(connection, frames.decode_partitions(payload))
            elif op is Op.FINISH:
                with self._locked() as leases:
                    leases.finished(connection.task)
                connection.send(Op.DONE)
            elif op is Op.FAIL:
                self._fail(connection, frames.decode_error(payload))
            else:
                raise frames.BadFrame(f"{op.name} is not for the driver")
        except frames.BadFrame:
            raise
        except OncewardError as refusal:
            connection.stop(refusal)

    def _lease(
        self, connection: TaskConnection, partitions: Sequence[TopicPartition], limit: int
    ) -> None:
        connection.unanswered = True
        with self._locked() as leases:
            granted = leases.lease(connection.task, partitions, surroundings.monotonic(), limit)
            waits = leases.is_waiting(connection.task)
        if not waits:
            self._answer(connection, granted)

    def _answer(self, connection: TaskConnection, granted: Sequence[Granted]) -> None:
        """Take steps 2 to 4 of a grant, as the module numbers them."""
        try:
            self._prepare(connection.task, granted)
        except BaseException as error:  # noqa: BLE001
            # A transaction or a probe may raise anything; passed on.
            self._give_up(
                connection, f"a lease for {connection.task} could not be prepared", error
            )
            return
        connection.unanswered = False
        with self._lock:
            alive = self._leases.poisoned is None
        if alive:
            bases = [(lease.partition, lease.base_sequence) for lease in granted]
            connection.send(Op.GRANT, frames.encode_partitions(bases))

    def _prepare(self, task: TaskAttempt, granted: Sequence[Granted]) -> None:
        first = [lease.partition for lease in granted if lease.first]
        if first and self._on_first_lease is not None:
            self._on_first_lease(first)
        if events.is_heard(events.LEASE):
            for lease in granted:
                self._publish(
                    "started", lease.partition, HeldLease(task, lease.base_sequence, 0.0)
                )

    def _release(
        self, connection: TaskConnection, numbered: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        # Before it is recorded, so that for every probe a lease ends before the next one begins
        if events.is_heard(events.LEASE):
            try:
                self._publish_ends(connection.task, numbered)
            except BaseException as error:  # noqa: BLE001
                # A probe may raise anything; it is passed on.
                self._give_up(
                    connection, f"leases of {connection.task} could not be given back", error
                )
                return
        with self._locked() as leases:
            for partition, next_sequence in numbered:
                leases.release(connection.task, partition, next_sequence)
        self._serve_waiting()

    def _publish_ends(
        self, task: TaskAttempt, numbered: Sequence[tuple[TopicPartition, int]]
    ) -> None:
        with self._lock:
            ending = [(*each, self._leases.held.get(each[0])) for each in numbered]
        for partition, next_sequence, lease in ending:
            if lease is not None and lease.task == task:
                self._publish("finished", partition, lease, next_sequence=next_sequence)

    def _serve_waiting(self) -> None:
        with self._locked() as leases:
            # Whoever waits is connected: _disconnected takes the connection and the wait away in
            # one step
            grants = [
                (self._connections[waiter], granted)
                for waiter, granted in leases.grant_waiting(surroundings.monotonic())
            ]
        for connection, granted in grants:
            # 1. the waiter is granted, 2. its connection breaks, 3. the answer is lost. Its own
            # thread finds it gone while it holds a lease, and poisons the epoch, since nobody can
            # know whether the answer was read.
            self._answer(connection, granted)

    def _fail(self, connection: TaskConnection, error: OncewardError) -> None:
        with self._locked() as leases:
            # An attempt that was replaced before it held anything has no say: most likely it
            # reports just that.
            if not leases.closed and not leases.is_superseded(connection.task):
                leases.poison(f"{connection.task} failed: {error.message}", error)
        connection.send(Op.DONE)

    # ── telling ──

    @contextlib.contextmanager
    def _locked(self) -> Iterator[EpochLeases]:
        """Yield the leases under the lock; if poisoned, tell everyone to stop, outside of it."""
        try:
            with self._lock:
                yield self._leases
        finally:
            if self._leases.poisoned is not None:
                self._stop_all()

    def _stop_all(self) -> None:
        with self._lock:
            if self._stopped_all:
                return
            self._stopped_all = True
            audience = list(self._threads)
            lost = dict(self._leases.held)
        for connection in audience:
            connection.stop(self._leases.refusal())
        for partition, lease in lost.items():
            try:
                self._publish("failed", partition, lease, self._leases.error, next_sequence=None)
            except BaseException as error:  # noqa: BLE001, PERF203
                # A probe may raise anything; it is passed on.
                self.poison("a probe failed", _wrap_error("a probe failed", error))

    def _give_up(self, connection: TaskConnection, what: str, error: BaseException) -> None:
        """Poison the epoch with ``error``; who asked is told the error, all others the reason."""
        ours = _wrap_error(what, error)
        connection.stop(ours)
        self.poison(f"{what}: {ours.message}", ours)

    def _publish(
        self,
        phase: events.Phase,
        partition: TopicPartition,
        lease: HeldLease,
        error: OncewardError | None = None,
        **more: Any,
    ) -> None:
        ids = {
            "partition": partition,
            "task": lease.task,
            "producer": self.credentials.identity,
            "base_sequence": lease.base_sequence,
            **more,
        }
        seconds = None if phase == "started" else surroundings.monotonic() - lease.since
        events.publish(events.Event(events.LEASE, phase, ids, seconds, error))


def _wrap_error(what: str, error: BaseException) -> OncewardError:
    if isinstance(error, OncewardError):
        return error
    ours = EpochPoisoned(f"{what}: {error!r}", next_step="the batch runs again under a new epoch")
    ours.__cause__ = error
    return ours
