"""The sequencer's door: accepts connections, asks for the token first, and lets nobody linger.

Made by ``sequencer.server``; one thread in the driver process, which also is the clock of the
epoch (``on_tick``). Nothing but a whole HELLO frame of the fixed size with the token of the open
epoch gets a connection past this point. Until then a stranger costs one file descriptor and at
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
from onceward.kafka.sink.sequencer.frames import HELLO_FRAME_BYTES, is_hello_header, parse_hello
from onceward.kafka.sink.sequencer.line import plain_host

log = logging.getLogger(__name__)

Admit = Callable[[socket.socket, bytes, TaskAttempt], bool]

_TICK_SECONDS = 0.1
_BACKLOG = 1024
_PORT_SECONDS = 5.0
_PORT_POLL_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class _Stranger:
    """A connection that has not shown the token yet."""

    sock: socket.socket
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Door:
    """Listens until :meth:`close`.

    :param admit: takes over the socket and returns True when token and task are right; must not
        block.
    :param on_tick: called about ten times a second with ``time.monotonic()``.
    :param patience_seconds: how long a connection may take to show its token.
    :param max_strangers: beyond that many, the one that has lingered for longest is dropped: a
        task shows its token within milliseconds, a port scanner never does.
    """

    def __init__(
        self,
        bind_host: str,
        port: int,
        *,
        admit: Admit,
        on_tick: Callable[[float], None],
        patience_seconds: float = 5.0,
        max_strangers: int = 256,
    ) -> None:
        self._admit = admit
        self._on_tick = on_tick
        self._patience_seconds = patience_seconds
        self._max_strangers = max_strangers
        self._listener = _listen(bind_host, port)
        self.port: int = self._listener.getsockname()[1]
        self._strangers: dict[socket.socket, _Stranger] = {}  # in order of arrival
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="onceward-sequencer-door", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; returns when the port is free and every stranger is gone."""
        self.close_soon()
        self._thread.join()

    def close_soon(self) -> None:
        """The same without waiting for it, in any thread."""
        self._closing.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                try:
                    self._round()
                except Exception:  # noqa: PERF203 — this thread is the epoch's clock and its only way in
                    log.exception("the sequencer's door goes on after an error")
                    self._closing.wait(_TICK_SECONDS)
        finally:
            for stranger in list(self._strangers.values()):
                self._drop(stranger)
            self._selector.close()
            self._listener.close()

    def _round(self) -> None:
        for key, _ in self._selector.select(_TICK_SECONDS):
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._listen_to(key.data)
        now = time.monotonic()
        self._drop_late_strangers(now)
        self._on_tick(now)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (
            OSError
        ):  # gone again, or no file descriptor left: then the longest stranger gives back his
            self._drop_longest_stranger()
            self._closing.wait(_TICK_SECONDS / 10)
            return
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        except OSError:  # reset by then: on macOS that is EINVAL
            sock.close()
            return
        if len(self._strangers) >= self._max_strangers:
            self._drop_longest_stranger()
        stranger = _Stranger(sock, time.monotonic() + self._patience_seconds)
        self._strangers[sock] = stranger
        self._selector.register(sock, selectors.EVENT_READ, stranger)

    def _listen_to(self, stranger: _Stranger) -> None:
        if stranger.sock not in self._strangers:
            return  # dropped while earlier sockets of the same round were served
        try:
            received = stranger.sock.recv(HELLO_FRAME_BYTES - len(stranger.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        stranger.received += received
        if not received or not is_hello_header(stranger.received):
            self._drop(stranger)
        elif len(stranger.received) == HELLO_FRAME_BYTES:
            self._let_in(stranger)

    def _let_in(self, stranger: _Stranger) -> None:
        token, task = parse_hello(stranger.received)
        self._forget(stranger)
        try:
            admitted = self._admit(stranger.sock, token, task)
        except OSError:  # reset by its peer meanwhile
            admitted = False
        if not admitted:
            stranger.sock.close()

    def _drop_late_strangers(self, now: float) -> None:
        for stranger in list(self._strangers.values()):
            if stranger.deadline > now:
                return
            self._drop(stranger)

    def _drop_longest_stranger(self) -> None:
        for stranger in self._strangers.values():
            self._drop(stranger)
            return

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.sock.close()

    def _forget(self, stranger: _Stranger) -> None:
        del self._strangers[stranger.sock]
        self._selector.unregister(stranger.sock)


def _listen(bind_host: str, port: int) -> socket.socket:
    try:
        listener = _server_at(bind_host, port)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(
            f"the sequencer cannot listen on {bind_host}:{port}: {error}",
            next_step="set sequencer_host of the sink to an address of the driver's host, and "
            "sequencer_port to a "
            "free port (0 takes any)",
            details={"host": bind_host, "port": port},
        ) from error
    listener.setblocking(False)
    return listener


def _server_at(bind_host: str, port: int) -> socket.socket:
    """A fixed port may still be held by the run before, which gives it back within seconds."""
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
