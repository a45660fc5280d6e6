"""Client of the sequencer, in a task: leases partitions and gives them back. Runs in executor
tasks, called by the task that encodes and sends. One connection per task attempt, one thread."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Collection, Mapping
from itertools import islice

from onceward import patience, surroundings
from onceward.errors import EpochPoisoned, OncewardError, SequencerUnreachable
from onceward.ids import TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer import frames
from onceward.kafka.sink.sequencer.frames import EpochCredentials, FrameBuffer, Op, plain_host
from onceward.kafka.sink.sequencer.leases import NO_LIMIT

_RUN_AGAIN = "the batch runs again under a new epoch"
_RECEIVE_BYTES = 65_536


class SequencerClient:
    """Connection of one task attempt, which shows the token and says hello. Not thread safe.

    Every method raises what the driver said when it said stop: :class:`EpochPoisoned` as a rule,
    :class:`AttemptSuperseded` when a newer attempt of this task goes on, or the very error that
    the driver met when it prepared this task's lease. A connection that is gone is
    :class:`EpochPoisoned`, too: whatever became of the epoch, this task no longer has a part.

    :param timeout_s: how long to wait for the connection, and afterwards for any sign of life of
        the driver, in seconds. Waiting for a lease takes as long as it takes: the driver says once
        a second that it lives, and poisons the epoch when a holder is overdue.
    :raises SequencerUnreachable: nobody there, or somebody who is no sequencer.
    :raises EpochPoisoned: the epoch of this credentials is over, or this attempt ends it.
    """

    def __init__(
        self, credentials: EpochCredentials, task: TaskAttempt, timeout_s: float = 30.0
    ) -> None:
        self._where = f"the sequencer at {credentials.host}:{credentials.port}"
        self._timeout_s = timeout_s
        self._buffer = FrameBuffer()
        self._ended: OncewardError | None = None
        try:
            self._socket = ClientSocket(credentials.host, credentials.port, timeout_s)
        except OSError as error:
            raise _unreachable(credentials, str(error)) from error
        try:
            self._send(frames.hello_frame(credentials.token, task))
            if not self._socket.wait_to_receive(timeout_s):
                raise _unreachable(credentials, f"no answer within {timeout_s:g} s")
            self._expect(Op.WELCOME)
        except frames.BadFrame as error:
            self.close()
            raise _unreachable(
                credentials, f"what answers there is no sequencer ({error.message})"
            ) from error
        except BaseException:
            self.close()
            raise

    def lease_some(
        self, partitions: Collection[TopicPartition], limit: int = NO_LIMIT
    ) -> dict[TopicPartition, int]:
        """Wait until at least one of ``partitions`` is free; return those leased with their base
        sequences.

        :param limit: take the first so many that are free and leave the others to other tasks.

        Does not wait, and may return nothing, when ``partitions`` is empty or while this task
        holds other leases: two tasks that each hold what the other wants would wait for ever. Give
        back first, then ask again.
        """
        some = islice(partitions, frames.MAX_PARTITIONS)
        self._send(frames.frame(Op.LEASE, frames.encode_lease_request(some, limit)))
        return dict(frames.decode_partitions(self._expect(Op.GRANT)))

    def release(self, next_sequences: Mapping[TopicPartition, int]) -> None:
        """Give partitions back, once every append is acknowledged, with the sequence that the next
        holder uses. Not answered: a release that gets lost is lost with its connection, for which
        the driver poisons the epoch, and :meth:`finish` is answered only after every release
        before it was recorded."""
        numbered = list(next_sequences.items())
        for start in range(0, len(numbered), frames.MAX_PARTITIONS):
            some = numbered[start : start + frames.MAX_PARTITIONS]
            self._send(frames.frame(Op.RELEASE, frames.encode_partitions(some)))

    def check(self) -> None:
        """Raise if the driver said stop or is gone. Never waits; costs one system call."""
        self._receive_now()
        while (received := self._buffer.next_frame()) is not None:
            self._handle(*received)

    def fail(self, error: OncewardError) -> None:
        """Report ``error`` to the driver, which poisons the epoch with it. Returns when the driver
        has read it, or is gone, or silent for too long: this call never hides ``error``, which the
        caller goes on to raise, behind one of its own."""
        with contextlib.suppress(OncewardError):
            # A task that was stopped may still say what it met
            self._ended, stopped = (None, self._ended)
            self._write(frames.frame(Op.FAIL, frames.encode_error(error)))
            while self._next_frame()[0] is not Op.DONE:
                pass
            self._ended = stopped

    def finish(self) -> None:
        """Say, once, that all is sent and given back; return when the driver has recorded it."""
        self._send(frames.frame(Op.FINISH))
        self._expect(Op.DONE)

    def close(self) -> None:
        """Close the connection; before :meth:`finish` that is a failure if anything was leased."""
        self._socket.close()
        self._ended = self._ended or EpochPoisoned(
            "this connection to the sequencer is closed", next_step=_RUN_AGAIN
        )

    def _expect(self, expected: Op) -> bytes:
        while True:
            op, payload = self._next_frame()
            if op is expected:
                return payload
            self._handle(op, payload)

    def _handle(self, op: Op, payload: bytes) -> None:
        if op is Op.STOP:
            self._ended = frames.decode_error(payload)
            raise self._ended
        if op is not Op.PATIENCE:
            raise self._lose(f"said {op.name} out of turn")

    def _next_frame(self) -> tuple[Op, bytes]:
        deadline = surroundings.monotonic() + self._timeout_s
        while (received := self._buffer.next_frame()) is None:
            if not self._receive_now():
                self._require(self._socket.wait_to_receive(deadline - surroundings.monotonic()))
        return received

    def _receive_now(self) -> bool:
        if self._ended is not None:
            raise self._ended
        try:
            received = self._socket.receive()
        except OSError as error:
            raise self._lose(f"is gone ({error})") from error
        if received is None:
            return False
        if not received:
            raise self._lose("closed the connection: the epoch of this task is over")
        self._buffer.feed(received)
        return True

    def _send(self, data: bytes) -> None:
        """Send all of ``data``. Reads first, to find a STOP before a broken connection."""
        self.check()
        self._write(data)

    def _write(self, data: bytes) -> None:
        deadline = surroundings.monotonic() + self._timeout_s
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except OSError as error:
                raise self._lose(f"is gone ({error})") from error
            if rest:
                self._require(self._socket.wait_to_send(deadline - surroundings.monotonic()))

    def _require(self, came: bool) -> None:
        if not came:
            raise self._lose(f"has been silent for {self._timeout_s:g} s")

    def _lose(self, what: str) -> EpochPoisoned:
        self._ended = EpochPoisoned(f"{self._where} {what}", next_step=_RUN_AGAIN)
        return self._ended


def _unreachable(credentials: EpochCredentials, why: str) -> SequencerUnreachable:
    return SequencerUnreachable(
        f"the sequencer in the driver cannot be reached at {credentials.host}:{credentials.port}: "
        f"{why}",
        next_step="set sequencer_host of the sink to an address of the driver's host that "
        "executors can reach, and sequencer_port to a port that the network lets through",
        details={"host": credentials.host, "port": credentials.port},
    )


class ClientSocket:
    """A connected socket that never blocks: all waiting of the client. Methods raise OSError when
    the other end is gone. ``timeout_s``: how long to wait for the connection."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._sock = socket.create_connection((plain_host(host), port), timeout_s)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A task may compute for long before it has anything to send, and says nothing meanwhile
        patience.probe_if_idle(self._sock)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)

    def receive(self) -> bytes | None:
        """Return what has come; None: nothing yet; empty: the other end has closed it."""
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send(self, data: memoryview) -> int:
        """Send some of ``data``; return how many bytes were taken, 0 for none at the moment."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def wait_to_receive(self, seconds: float) -> bool:
        """Wait until something has come; return False when nothing has within that time."""
        return self._wait(select.POLLIN, seconds)

    def wait_to_send(self, seconds: float) -> bool:
        """Wait until something would be taken; return False when nothing is within that time."""
        return self._wait(select.POLLOUT, seconds)

    def _wait(self, direction: int, seconds: float) -> bool:
        self._poll.modify(self._sock, direction)
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def close(self) -> None:
        self._sock.close()
