"""Listener of the sequencer: accepts connections, asks for the token first, and drops whoever does
not show it soon.

Made by ``sequencer.server``; one thread in the driver process, which also is the clock of the
epoch (``on_tick``). Nothing but a whole HELLO frame of the fixed size with the token of the open
epoch gets a connection past this point. Until then a connection costs one file descriptor and at
most ``HELLO_FRAME_BYTES`` bytes: no thread, no allocation by a length that it sent, no word in
return, and no contact with the epoch.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from onceward.errors import ConfigurationError
from onceward.ids import TaskAttempt
from onceward.kafka.sink.sequencer.frames import (
    HELLO_FRAME_BYTES,
    is_hello_header,
    parse_hello,
    plain_host,
)

log = logging.getLogger(__name__)

Admit = Callable[[socket.socket, bytes, TaskAttempt], bool]

_TICK_SECONDS = 0.1
_BACKLOG = 1024
_PORT_SECONDS = 5.0
_PORT_POLL_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class _Unauthenticated:
    """A connection that has not shown the token yet."""

    sock: socket.socket
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Listener:
    """A listening socket and its thread, until :meth:`close`.

    :param admit: takes over the socket and returns True when token and task are right; must not
        block.
    :param on_tick: called about ten times a second with ``time.monotonic()``.
    :param patience_seconds: how long a connection may take to show its token.
    :param max_unauthenticated: beyond that many, the one that has lingered for longest is dropped:
        a task shows its token within milliseconds, a port scanner never does.
    """

    def __init__(
        self,
        bind_host: str,
        port: int,
        *,
        admit: Admit,
        on_tick: Callable[[float], None],
        patience_seconds: float = 5.0,
        max_unauthenticated: int = 256,
    ) -> None:
        self._admit = admit
        self._on_tick = on_tick
        self._patience_seconds = patience_seconds
        self._max_strangers = max_unauthenticated
        self._listener = _listen(bind_host, port)
        self.port: int = self._listener.getsockname()[1]
        # in order of arrival
        self._waiting: dict[socket.socket, _Unauthenticated] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="onceward-sequencer-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; returns when the port is free and every connection is gone."""
        self.close_soon()
        self._thread.join()

    def close_soon(self) -> None:
        """Stop listening without waiting for it, in any thread."""
        self._closing.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._round()
                except Exception:  # noqa: PERF203
                    # This thread is the epoch's clock and its only way in.
                    log.exception("the sequencer's listener goes on after an error")
                    self._closing.wait(_TICK_SECONDS)
        finally:
            for connection in list(self._waiting.values()):
                self._drop(connection)
            self._selector.close()
            self._listener.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._read_hello(key.data)
        now = time.monotonic()
        self._drop_late(now)
        self._on_tick(now)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            # Gone again, or no file descriptor left: then the longest connection gives back his
            self._drop_oldest()
            self._closing.wait(_TICK_SECONDS / 10)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:
            # Reset by then: on macOS that is EINVAL
            sock.close()
            return
        if len(self._waiting) >= self._max_strangers:
            self._drop_oldest()
        connection = _Unauthenticated(sock, time.monotonic() + self._patience_seconds)
        self._waiting[sock] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _read_hello(self, connection: _Unauthenticated) -> None:
        if connection.sock not in self._waiting:
            # Dropped while earlier sockets of the same round were served
            return
        try:
            received = connection.sock.recv(HELLO_FRAME_BYTES - len(connection.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        connection.received += received
        if not received or not is_hello_header(connection.received):
            self._drop(connection)
        elif len(connection.received) == HELLO_FRAME_BYTES:
            self._hand_over(connection)

    def _hand_over(self, connection: _Unauthenticated) -> None:
        token, task = parse_hello(connection.received)
        self._forget(connection)
        try:
            admitted = self._admit(connection.sock, token, task)
        except OSError:
            # reset by its peer meanwhile
            admitted = False
        if not admitted:
            connection.sock.close()

    def _drop_late(self, now: float) -> None:
        for connection in list(self._waiting.values()):
            if connection.deadline > now:
                return
            self._drop(connection)

    def _drop_oldest(self) -> None:
        for connection in self._waiting.values():
            self._drop(connection)
            return

    def _drop(self, connection: _Unauthenticated) -> None:
        self._forget(connection)
        connection.sock.close()

    def _forget(self, connection: _Unauthenticated) -> None:
        del self._waiting[connection.sock]
        self._selector.unregister(connection.sock)


def _listen(bind_host: str, port: int) -> socket.socket:
    try:
        listener = _server_at(bind_host, port)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the sequencer cannot listen on {bind_host}:{port}: {error}",
            next_step="set sequencer_host of the sink to an address of the driver's host, and "
            "sequencer_port to a free port (0 takes any)",
            details={"host": bind_host, "port": port},
        ) from error
    listener.setblocking(False)
    return listener


def _server_at(bind_host: str, port: int) -> socket.socket:
    # A fixed port may still be held by the run before, which gives it back within seconds.
    host = plain_host(bind_host)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    both = family == socket.AF_INET6 and host == "::" and socket.has_dualstack_ipv6()
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            return socket.create_server(
                (host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise
        time.sleep(_PORT_POLL_SECONDS)
