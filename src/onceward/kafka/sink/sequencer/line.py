"""A task's line to the sequencer: all that it does with a socket, and all its waiting. Made by
``sequencer.lease``.

Runs in executor tasks; one thread. :func:`plain_host` is for the driver's end, too.
"""

from __future__ import annotations

import select
import socket

_RECEIVE_BYTES = 65_536


def plain_host(host: str) -> str:
    """``host`` as sockets take it. Spark writes an IPv6 address as in a URI, in brackets."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


class Line:
    """A connected socket that never blocks. Every method raises OSError when the other end is
    gone.

    :param timeout_s: how long to wait for the connection, in seconds.
    """

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self._sock = socket.create_connection((plain_host(host), port), timeout_s)
        self._sock.setblocking(False)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)

    def receive(self) -> bytes | None:
        """What has come; None: nothing yet; empty: the other end has closed it."""
        try:
            return self._sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None

    def send(self, data: memoryview) -> int:
        """How many bytes of it were taken; 0: none at the moment."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0

    def wait_to_receive(self, seconds: float) -> bool:
        """Until something has come; False when nothing has within that time."""
        return self._wait(select.POLLIN, seconds)

    def wait_to_send(self, seconds: float) -> bool:
        """Until something would be taken; False when nothing would be within that time."""
        return self._wait(select.POLLOUT, seconds)

    def _wait(self, direction: int, seconds: float) -> bool:
        self._poll.modify(self._sock, direction)
        return bool(self._poll.poll(max(0.0, seconds) * 1000))

    def close(self) -> None:
        self._sock.close()
