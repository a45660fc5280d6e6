"""The driver's end of one task's connection. Made and used by ``sequencer.epoch``; any thread may
send.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

from onceward.errors import OncewardError
from onceward.ids import TaskAttempt
from onceward.kafka.sink.sequencer.frames import FrameBuffer, Op, encode_error, frame

_SEND_LIMIT = struct.pack(
    "ll", 5, 0
)  # a timeval: how long a stopped task whose buffers are full may hold us up
_RECEIVE_BYTES = 65_536


class Connection:
    """Frames to and from one authenticated task attempt.

    ``unanswered`` is set while a LEASE waits for its answer.
    """

    def __init__(self, sock: socket.socket, task: TaskAttempt) -> None:
        self.task = task
        self.unanswered = False
        self._sock = sock
        self._sending = threading.RLock()
        self._stopped = False
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_LIMIT)

    def frames(self) -> Iterator[tuple[Op, bytes]]:
        """What the task says, until its connection ends, in whatever way.

        :raises BadFrame: something that a task would never say.
        """
        buffer = FrameBuffer()
        while received := self._receive():
            buffer.feed(received)
            while (received_frame := buffer.next_frame()) is not None:
                yield received_frame

    def _receive(self) -> bytes:
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except OSError:  # reset by the peer, or its host is gone: the end, like any other
            return b""

    def send(self, op: Op, payload: bytes = b"") -> None:
        """Say it, unless the task was told to stop: then only DONE is still of interest.

        A connection that does not take it is hung up; the thread that reads from it then books the
        loss.
        """
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
        """End the conversation; whoever reads from it finds out. The file descriptor stays the
        reader's.
        """
        with self._sending, contextlib.suppress(OSError):  # the other end was faster
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the file descriptor back; for the thread that reads.

        Not while someone sends: the number may belong to another connection a moment later.
        """
        with self._sending:
            self._sock.close()
