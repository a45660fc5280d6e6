"""The sockets of one process: an IO thread that sends requests to brokers and hands back their answers.

Called by ``wire.client`` only. Runs in the driver and in executor processes; one instance per process and settings.

kafka-python's connection manager does the work (protocol versions per connection, TLS, SASL, re-authentication).
What is added: every failure becomes one of our errors, a lost answer is told apart from a refusal, and requests
handed over in one order leave in that order.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from onceward.errors import AuthenticationFailed, BrokerUnreachable, OncewardError, UnsupportedBroker
from onceward.wire.options.settings import ClientSettings

_RECEIVE_MAX_BYTES = 256 * 1024 * 1024  # kafka-python's default of 1 MB cuts off larger answers
_UNLIMITED = 1_000_000  # in-flight limits are kept by wire.appends.producer; a full connection would refuse requests
_THROTTLE_POLL_S = 0.005
# Whoever closes a connection has given up what is unanswered on it. Without SO_LINGER the kernel would go on sending
# that for minutes, and a broker could carry out, when the network is back, what has been asked anew long since.
_SOCKET_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
)
_AUTHENTICATION_ERRORS = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.AuthorizationError,
)
# TLS errors of a connection that was merely cut off, as when a broker goes down in the middle of the handshake.
_TLS_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


class ConnectionLost(BrokerUnreachable):
    """A request has no answer: it may or may not have been carried out. Conversations ask again."""


def _keep_kafka_python_quiet() -> None:
    """Reconnects are routine here and reported by our errors; kafka-python logs each as an error.

    To see its log: ``logging.getLogger("kafka").setLevel(logging.INFO)``. Its DEBUG lines hold whole requests, the
    SASL password among them, and stay off whatever the level.
    """
    root = logging.getLogger("kafka")
    if root.level == logging.NOTSET:
        root.setLevel(logging.CRITICAL)
    for name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.net.sasl.scram", "kafka.net.sasl.oauth"):
        logging.getLogger(name).addFilter(_above_debug)
    # The parser's one ERROR line shows an answer that could not be decoded: records, possibly.
    logging.getLogger("kafka.protocol.parser").addFilter(_without_bodies)


def _above_debug(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG


def _without_bodies(record: logging.LogRecord) -> bool:
    return "%r" not in str(record.msg)


_keep_kafka_python_quiet()


class _Manager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python is untyped
    """Hands over what a broker says before it hangs up.

    kafka-python drops bytes that are read together with the end of the stream. A broker that refuses a password
    answers and hangs up at once, so that the refusal would often look like a network failure.
    """

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        transport = await super()._build_transport(node, timeout_at=timeout_at)
        receive = transport._sock_recv

        def data_before_the_end() -> tuple[bytes, Exception | None]:
            data, error = receive()
            return data, None if data else error  # the end of the stream is there again at the next read

        transport._sock_recv = data_before_the_end
        return transport


class Connections:
    """The IO thread and its sockets. Thread safe; a forked child must make its own.

    Who forgets to call :meth:`close` leaves nothing behind: the thread does not know this object, and ends after it.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._net = NetworkSelector(client_id=settings.client_id)
        self._manager = _Manager(
            self._net,
            bootstrap_servers=list(settings.bootstrap_servers),
            client_id=settings.client_id,
            client_software_name="onceward",
            request_timeout_ms=settings.request_timeout_ms,
            receive_message_max_bytes=_RECEIVE_MAX_BYTES,
            max_in_flight_requests_per_connection=_UNLIMITED,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=1_000,
            socket_connection_setup_timeout_ms=min(10_000, settings.connect_timeout_ms),
            socket_options=_SOCKET_OPTIONS,
            **settings.security.connection_options(settings.oauth_token_provider),
        )
        self._net.start()
        self._forgotten = weakref.finalize(self, _end_soon, self._net, self._manager, os.getpid())
        self._forgotten.atexit = False  # then the thread ends with the process, and nobody can start another one

    def nodes(self) -> Sequence[int | str]:
        """Every node that could be asked: brokers known from metadata first, then the bootstrap servers."""
        cluster = self._manager.cluster
        known = [broker.node_id for broker in cluster.brokers()]
        connected = {c.node_id for c in self._manager.least_used_connections()}
        known.sort(key=lambda node: node not in connected)
        return [*known, *(broker.node_id for broker in cluster.bootstrap_brokers())]

    def addresses(self) -> frozenset[str]:
        """``host:port`` of every broker known from metadata, as they advertise themselves."""
        return frozenset(f"{broker.host}:{broker.port}" for broker in self._manager.cluster.brokers())

    def learn_brokers(self, metadata: Any) -> None:
        """Take broker addresses from a ``MetadataResponse``."""
        self._manager.cluster.update_metadata(metadata)

    def submit(self, request: Any, node_id: int | str, timeout_ms: float) -> Future[Any]:
        """Send ``request`` to ``node_id``; the future holds the answer or one of our errors.

        Requests submitted one after the other for the same node leave in that order.
        """
        answer: Future[Any] = Future()
        deadline = time.monotonic() + timeout_ms / 1000

        async def exchange() -> None:
            try:
                answer.set_result(await self._exchange(request, node_id, deadline))
            except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
                answer.set_exception(self._translated(error, node_id))

        try:
            self._net.call_soon_threadsafe(exchange)
        except Exception as error:  # noqa: BLE001 - a closed or crashed IO loop
            answer.set_exception(self._translated(error, node_id))
        return answer

    async def _exchange(self, request: Any, node_id: int | str, deadline: float) -> Any:
        while True:
            try:
                connection = self._manager.get_connection(node_id, refresh_metadata_on_err=False)
            except kafka_errors.NodeNotReadyError:
                delay = self._manager.connection_delay(node_id)  # waiting to reconnect
            else:
                if connection.connected and connection.paused:
                    delay = _THROTTLE_POLL_S  # the broker asked for a pause (quotas)
                else:
                    # While the connection is being made, send_request queues: that keeps requests in order.
                    left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
                    return await connection.send_request(request, request_timeout_ms=left_ms)
            if time.monotonic() + delay >= deadline:
                raise kafka_errors.KafkaTimeoutError("not connected in time")
            await self._net.sleep(delay)

    def _translated(self, error: BaseException, node_id: int | str) -> OncewardError:
        if isinstance(error, OncewardError):
            return error
        if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
            return UnsupportedBroker(
                f"broker {node_id} lacks a protocol version that Onceward needs ({error})",
                next_step="use Apache Kafka 2.5 or newer, or a broker compatible with it",
            )
        if isinstance(error, _AUTHENTICATION_ERRORS) or _is_tls_refusal(error):
            self.forget_authentication_failures()  # whoever asks next, with the right password by now, is let try
            return AuthenticationFailed(
                f"{self._settings.security.protocol} authentication with broker {node_id} of "
                f"{','.join(self._settings.bootstrap_servers)} failed: {_innermost(error)}",
                next_step="check security.protocol and the sasl.* and ssl.* options against the broker's listener",
            )
        return ConnectionLost(
            f"no answer from broker {node_id} of {','.join(self._settings.bootstrap_servers)}: {_innermost(error)}",
            next_step="check bootstrap.servers, security.protocol and the network",
        )

    def forget_authentication_failures(self) -> None:
        """Let nodes that refused us be tried again: the password may be right by now, or the user created."""
        self._manager._auth_failures.clear()

    def close(self) -> None:
        """Close every socket and end the IO thread. Outstanding requests fail with :class:`ConnectionLost`."""
        if self._forgotten.detach() is not None:
            _end(self._net, self._manager)


def _end(net: NetworkSelector, manager: _Manager) -> None:
    try:
        net.run(manager.close)
    except Exception:
        logging.getLogger(__name__).debug("IO loop was gone before it was closed", exc_info=True)
    net.close()


def _end_soon(net: NetworkSelector, manager: _Manager, pid: int) -> None:
    """Where the last reference went, which may be on the IO thread itself: that one cannot wait for its own end."""
    if pid == os.getpid():  # in a forked child they are the parent's
        threading.Thread(target=_end, args=(net, manager), name="onceward-forgotten-client", daemon=True).start()


def _is_tls_refusal(error: BaseException) -> bool:
    """Whether TLS itself said no: an untrusted certificate, another host name, a missing client certificate."""
    return isinstance(cause := _innermost(error), ssl.SSLError) and not isinstance(cause, _TLS_CUT_OFF)


def _innermost(error: BaseException) -> BaseException:
    """What kafka-python wrapped: TLS errors arrive as the context or the argument of a connection error."""
    if isinstance(error, kafka_errors.KafkaConnectionError):
        for inner in (*error.args, error.__context__):
            if isinstance(inner, ssl.SSLError):
                return inner
    return error
