"""The sequencer, a small service in the driver process that leases partitions to tasks, one at a
time; and its listener. Made by the Kafka sink, once; asked by it for an epoch per transaction.
Tasks reach it with ``sequencer.client``. Read in this order: ``leases`` (the rules), ``frames``
(the wire format), ``epoch`` (connections), ``listener``.

The listener accepts connections, asks for the token first, and drops whoever does not show it
soon: one thread in the driver process, which also is the clock of the
epoch (``on_tick``). Nothing but a whole HELLO frame of the fixed size with the token of the open
epoch gets a connection past this point. Until then a connection costs one file descriptor and at
most ``HELLO_FRAME_BYTES`` bytes: no thread, no allocation by a length that it sent, no word in
return, and no contact with the epoch.

Integrity does not rest on it alone: the broker refuses a gap in a sequence and an old epoch, and
the report check catches an overlap. A stopped executor that comes back to life sends under an
epoch that was aborted long ago, and is refused by the broker.
"""

from __future__ import annotations

import errno
import hmac
import logging
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from onceward import patience, surroundings
from onceward.errors import OncewardError, ServerMisconfigured
from onceward.ids import ProducerIdentity, TaskAttempt, TopicPartition
from onceward.kafka.sink.sequencer.epoch import Epoch, OnFirstLease
from onceward.kafka.sink.sequencer.frames import (
    HELLO_FRAME_BYTES,
    TOKEN_BYTES,
    EpochCredentials,
    is_hello_header,
    parse_hello,
    plain_host,
)
from onceward.kafka.sink.sequencer.leases import EpochLeases

log = logging.getLogger(__name__)

Admit = Callable[[socket.socket, bytes, TaskAttempt], bool]

_TICK_SECONDS = 0.1
_BACKLOG = 1024
_PORT_SECONDS = 5.0
_PORT_POLL_SECONDS = 0.1


@dataclass(eq=False, slots=True)
class _Unauthenticated:
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
            patience.probe_if_idle(sock)
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
        # A name server that is away, or a port that another program has for a moment, may pass
        raise ServerMisconfigured(
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


class Sequencer:
    """Server that listens from construction until :meth:`close`, and serves one epoch at a time.

    :param bind_host: the address to listen on, ``0.0.0.0`` for all.
    :param advertised_host: the name or address under which executors reach the driver's host.
    :param port: 0 takes any free one.
    :raises ServerMisconfigured: it cannot listen there.
    """

    def __init__(self, bind_host: str, advertised_host: str, port: int = 0) -> None:
        self._lock = threading.Lock()
        self._epoch: Epoch | None = None
        self._last: Epoch | None = None
        # The listener's thread must not keep us alive: a sequencer that nobody closed ends when
        # nobody has it any more.
        admit, tick = weakref.WeakMethod(self._admit), weakref.WeakMethod(self._tick)
        self._listener = Listener(
            bind_host,
            port,
            admit=lambda sock, token, task: (
                (ours := admit()) is not None and ours(sock, token, task)
            ),
            on_tick=lambda now: None if (ours := tick()) is None else ours(now),
        )
        weakref.finalize(self, self._listener.close_soon).atexit = False
        self.address: tuple[str, int] = (advertised_host, self._listener.port)

    def open_epoch(
        self,
        identity: ProducerIdentity,
        *,
        lease_limit_seconds: float,
        on_first_lease: OnFirstLease | None = None,
        first_sequences: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> EpochCredentials:
        """Open an epoch with a new token, for one job; one that is still open is closed first.

        :param identity: under which the tasks send; the broker wants every sequence of a new epoch
            to begin at 0.
        :param first_sequences: by partition, where an earlier job of the identity left off.
        :param lease_limit_seconds: a lease held for longer poisons the epoch. Choose it above the
            time a task may take to send what it has at hand (``delivery.timeout.ms``); what
            ``on_first_lease`` takes counts, too.
        :param on_first_lease: called with the partitions that are leased for the first time in
            this epoch, each of them once, before their grant is answered. It runs in threads of
            the sequencer, in several at once, without any lock. When it raises, the epoch is
            poisoned with that error and the asker gets it.
        """
        self.close_epoch()
        host, port = self.address
        credentials = EpochCredentials(
            host, port, surroundings.random_bytes(TOKEN_BYTES), identity
        )
        epoch = Epoch(credentials, lease_limit_seconds, on_first_lease, first_sequences)
        with self._lock:
            self._epoch = self._last = epoch
        return credentials

    def close_epoch(self) -> EpochLeases | None:
        """End the open epoch and return its leases for the report check; None when no epoch is
        open.

        To be called before the transaction is ended, on success and on failure alike: from here on
        nothing is leased, no ``on_first_lease`` is running, and nothing that a task reports
        changes ``failure``. (A task that is still sending when the transaction is aborted is
        refused as fenced, which would tell the wrong story.)
        """
        with self._lock:
            epoch, self._epoch = self._epoch, None
        return epoch.close() if epoch else None

    @property
    def failure(self) -> OncewardError | None:
        """The reason why the open epoch, or the last one, must be aborted: what a task or
        ``on_first_lease`` raised, else :class:`EpochPoisoned` with the reason. None while all is
        well."""
        epoch = self._last
        return epoch.failure if epoch else None

    def longest_held(self) -> float:
        """Return for how many seconds the open epoch's oldest lease has been held; 0 for none."""
        epoch = self._epoch
        return epoch.longest_held() if epoch else 0.0

    def poison(self, cause: str | OncewardError) -> None:
        """Stop every task of the open epoch, for a reason of the driver's own (a timeout, say)."""
        epoch = self._epoch
        if epoch is None:
            return
        if isinstance(cause, OncewardError):
            epoch.poison(cause.message, cause)
        else:
            epoch.poison(cause)

    def close(self) -> None:
        """End the open epoch and stop listening; all threads and sockets are gone afterwards."""
        self.close_epoch()
        self._listener.close()

    def _admit(self, sock: socket.socket, token: bytes, task: TaskAttempt) -> bool:
        """Serve a connection that shows the open epoch's token; return whether it does."""
        # A task of epoch N that arrives when N + 1 is open has an old token: it gets nowhere near
        # N + 1.
        epoch = self._epoch
        if epoch is None or not hmac.compare_digest(token, epoch.credentials.token):
            return False
        epoch.admit(sock, task)
        return True

    def _tick(self, now: float) -> None:
        epoch = self._epoch
        if epoch is not None:
            epoch.tick(now)
