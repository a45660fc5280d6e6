"""The sockets of one process: an IO thread that sends requests to brokers and hands back their
answers. Called by ``kafka.wire.client`` only. Runs in the driver and in executor processes; one
instance per process and settings.

kafka-python's connection manager does the work (protocol versions per connection, TLS, SASL,
re-authentication), but for what :mod:`onceward.kafka.wire.kafka_python` does in its place. What is
added here: every failure becomes one of our errors, a lost answer is told apart from a refusal,
and requests handed over in one order leave in that order. No other thread looks into what the IO
thread changes: who is asked for nodes gets values that are replaced whole.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

import kafka.errors as kafka_errors
from kafka.net.selector import NetworkSelector

from onceward.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    OncewardError,
    TokenUnavailable,
    UnsupportedBroker,
)
from onceward.kafka.wire.kafka_python import PROVIDER, Address, Manager, NodeId, TokenLost
from onceward.kafka.wire.options.security import Certificates
from onceward.kafka.wire.options.settings import ClientSettings

# kafka-python's default of 1 MB cuts off larger answers
_RECEIVE_MAX_BYTES = 256 * 1024 * 1024
# in-flight limits are kept by wire.appends.producer; a full connection would refuse requests
_UNLIMITED = 1_000_000
_THROTTLE_POLL_S = 0.005
_THROTTLED = (
    "the broker asks this client to pause for longer: a quota (producer_byte_rate, "
    "consumer_byte_rate or request_percentage of its user or client.id)"
)
_CLOSE_S = 2.0
_AUTHENTICATION_ERRORS = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.AuthorizationError,
)
# TLS errors of a connection that was merely cut off, as when a broker goes down in the middle of
# the handshake.
_TLS_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


_BUILT_WITH = (
    ". The password is that with which the sink, source or ledger was built: where it was changed "
    "since, start the process again, or build them anew (under supervise, inside the function "
    "that starts the query, for a sink without a resume= that is for one start)"
)
_IDENTITY_PROVIDER = (
    "see that the identity provider answers: token() of oauth_token_provider= has to return "
    "the text of a token within seconds"
)


class ConnectionLost(BrokerUnreachable):
    """No answer: the request may or may not have been carried out. Conversations ask again."""


class NoToken(ConnectionLost, TokenUnavailable):
    """The request has not been sent: there was no token to log in with."""


def _keep_kafka_python_quiet() -> None:
    """Filter kafka-python's log: reconnects are routine here and reported by our errors; it logs
    each as an error. To see its log: ``logging.getLogger("kafka").setLevel(logging.INFO)``. Its
    DEBUG lines hold whole requests, the SASL password among them, and stay off whatever the
    level."""
    root = logging.getLogger("kafka")
    if root.level == logging.NOTSET:
        root.setLevel(logging.CRITICAL)
    for name in (
        "kafka.net.connection",
        "kafka.protocol.parser",
        "kafka.net.sasl.scram",
        "kafka.net.sasl.oauth",
    ):
        logging.getLogger(name).addFilter(lambda record: record.levelno > logging.DEBUG)
    # The parser's one ERROR line shows an answer that could not be decoded: records, possibly.
    logging.getLogger("kafka.protocol.parser").addFilter(
        lambda record: "%r" not in str(record.msg)
    )


_keep_kafka_python_quiet()


class _Loop:
    """An IO thread, and the answers that are waited for."""

    def __init__(self, net: NetworkSelector, manager: Manager) -> None:
        self.net, self.manager = net, manager
        self.outstanding: set[Future[Any]] = set()
        self.worked: weakref.WeakSet[Any] = weakref.WeakSet()
        """Connections that were set up: what refuses them later refuses a login's renewal."""


def _settle(answer: Future[Any], outcome: object) -> None:
    """Settle ``answer`` with a value or an error of ours; what comes second comes too late."""
    with suppress(InvalidStateError):
        if isinstance(outcome, OncewardError):
            answer.set_exception(outcome)
        else:
            answer.set_result(outcome)


class Connections:
    """The IO thread and its sockets. Thread safe; a forked child must make its own. Who forgets to
    call :meth:`close` leaves nothing behind: the thread does not know this object, and ends after
    it."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        security = settings.security
        # First: it may raise
        self._certificates = Certificates(security) if security.uses_tls else None
        self._brokers: Mapping[int, Address] = {}
        self._closed = False
        self._loop, self._forgotten = self._started()
        self._bootstrap = self._loop.manager.addresses

    def _started(self) -> tuple[_Loop, weakref.finalize[..., Any]]:
        settings, security = self._settings, self._settings.security
        net = NetworkSelector(client_id=settings.client_id)
        manager = Manager(
            net,
            certificates=self._certificates,
            tokens=settings.oauth_token_provider if security.uses_sasl else None,
            is_token=security.is_token,
            bootstrap_servers=list(settings.bootstrap_servers),
            client_id=settings.client_id,
            client_software_name="onceward",
            request_timeout_ms=settings.request_timeout_ms,
            receive_message_max_bytes=_RECEIVE_MAX_BYTES,
            max_in_flight_requests_per_connection=_UNLIMITED,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=1_000,
            socket_connection_setup_timeout_ms=min(10_000, settings.connect_timeout_ms),
            socket_connection_setup_timeout_max_ms=settings.connect_timeout_ms,
            security_protocol=security.protocol,
            sasl_mechanism=security.mechanism,
            sasl_plain_username=security.username,
            sasl_plain_password=security.password,
        )
        net.start()
        forgotten = weakref.finalize(self, _end_soon, net, manager, os.getpid())
        # then the thread ends with the process, and nobody can start another one
        forgotten.atexit = False
        return _Loop(net, manager), forgotten

    def log_in_by(self, settings: ClientSettings) -> None:
        """Take the token provider of ``settings``, which are ours but for that."""
        with self._lock:
            self._settings = settings
            if settings.security.uses_sasl:
                self._loop.manager.tokens = settings.oauth_token_provider

    def start_anew(self, loop: _Loop | None = None) -> None:
        """Give up an IO thread that has crashed, or is stuck, with all that is outstanding on it:
        ``loop``, or the present one."""
        with self._lock:
            given_up = self._loop if loop is None else loop
            if self._closed or self._loop is not given_up:
                return
            forgotten = self._forgotten
            self._loop, self._forgotten = self._started()
            self._know(self._brokers)
        forgotten()
        for answer in list(given_up.outstanding):
            _settle(
                answer,
                ConnectionLost("the IO thread was given up, as it had crashed, or was stuck"),
            )

    def nodes(self) -> Sequence[NodeId]:
        """Return every node that could be asked: connected ones first, and brokers before
        bootstrap servers."""
        connected = self._loop.manager.connected
        nodes: list[NodeId] = [*self._brokers, *self._bootstrap]
        return sorted(nodes, key=lambda node: node not in connected)

    def addresses(self) -> frozenset[str]:
        """Return ``host:port`` of every known broker, as they advertise themselves."""
        return frozenset(map(str, self._brokers.values()))

    def learn_brokers(self, metadata: Any) -> None:
        """Take broker addresses from a ``MetadataResponse``: these, and no others."""
        brokers = {
            broker.node_id: Address(broker.host, broker.port) for broker in metadata.brokers
        }
        # A broker that is starting may know none
        if brokers:
            with self._lock:
                self._know(brokers)

    def learn_broker(self, node_id: int, host: str, port: int) -> None:
        """Take one broker's address from an answer that names it, wherever it was before."""
        if host:
            with self._lock:
                self._know({**self._brokers, node_id: Address(host, port)})

    def _know(self, brokers: Mapping[int, Address]) -> None:
        self._brokers = brokers
        self._loop.manager.addresses = {**self._bootstrap, **brokers}

    def submit(self, request: Any, node_id: NodeId, timeout_ms: float) -> Future[Any]:
        """Send ``request``; the future holds the answer or one of our errors. Requests for one
        node leave in the order in which they were submitted."""
        answer: Future[Any] = Future()
        deadline, loop = time.monotonic() + timeout_ms / 1000, self._loop
        loop.outstanding.add(answer)
        answer.add_done_callback(loop.outstanding.discard)

        async def exchange() -> None:
            try:
                _settle(answer, await self._exchange(loop, request, node_id, deadline))
            except BaseException as error:  # noqa: BLE001 - handed to the waiting thread
                _settle(answer, self._translated(error, node_id))

        try:
            loop.net.call_soon_threadsafe(exchange)
        except Exception as error:  # noqa: BLE001 - a closed or crashed IO loop
            _settle(answer, self._translated(error, node_id))
            self.start_anew(loop)
        return answer

    async def _exchange(self, loop: _Loop, request: Any, node_id: NodeId, deadline: float) -> Any:
        manager, why, asked_again = loop.manager, "not connected in time", False
        while True:
            try:
                connection = manager.get_connection(node_id)
            except kafka_errors.NodeNotReadyError:
                delay = manager.connection_delay(node_id)  # waiting to reconnect
            except _AUTHENTICATION_ERRORS:
                # Kept from an earlier connection, whose login could not be renewed, say
                if asked_again:
                    raise
                self._forget_authentication_failures()
                asked_again, delay = True, 0.0
            else:
                if connection.connected and connection.paused:
                    delay, why = _THROTTLE_POLL_S, _THROTTLED
                else:
                    # While the connection is being made, send_request queues: that keeps requests
                    # in order. What is queued has no clock of its own, and is not sent any more
                    # when its time is over.
                    left_ms = max(1.0, (deadline - time.monotonic()) * 1000)
                    if connection.connected:
                        loop.worked.add(connection)
                    queued = connection._reauth.is_reauthenticating or not connection.connected
                    answer = connection.send_request(request, request_timeout_ms=left_ms)
                    try:
                        return await (
                            self._set_up_and_answered(manager, connection, answer, left_ms)
                            if queued
                            else answer
                        )
                    except _AUTHENTICATION_ERRORS as refused:
                        if connection not in loop.worked:
                            raise
                        # A broker that has the provider's new keys yet to fetch, say (KIP-368):
                        # the next connection tells whether we may come in
                        self._forget_authentication_failures()
                        raise kafka_errors.KafkaConnectionError(
                            f"the login could not be renewed: {refused}"
                        ) from None
            if time.monotonic() + delay >= deadline:
                raise kafka_errors.KafkaTimeoutError(why)
            await loop.net.sleep(delay)

    async def _set_up_and_answered(
        self, manager: Manager, connection: Any, answer: Any, left_ms: float
    ) -> Any:
        try:
            return await manager.wait_for(answer, left_ms)
        except kafka_errors.KafkaTimeoutError:
            at_work = connection.connected and not connection._reauth.is_reauthenticating
            waits_for = "an answer" if at_work else connection.waits_for
            if waits_for == PROVIDER:
                raise TokenLost(f"{PROVIDER} did not return within {left_ms:.0f} ms") from None
            raise kafka_errors.KafkaTimeoutError(
                f"waited {left_ms:.0f} ms for {waits_for}"
            ) from None

    def _translated(self, error: BaseException, node_id: NodeId) -> OncewardError:
        if isinstance(error, OncewardError):
            return error
        if isinstance(error, kafka_errors.IncompatibleBrokerVersion):
            return UnsupportedBroker(
                f"broker {node_id} lacks a protocol version that Onceward needs ({error})",
                next_step="use Apache Kafka 2.5 or newer, or a broker compatible with it",
            )
        if isinstance(error, TokenLost):
            return NoToken(f"no login at broker {node_id}: {error}", next_step=_IDENTITY_PROVIDER)
        inner = _innermost(error)
        # TLS said no: to a certificate, a host name, a missing client certificate
        is_tls = isinstance(inner, ssl.SSLError) and not isinstance(inner, _TLS_CUT_OFF)
        if is_tls or isinstance(error, _AUTHENTICATION_ERRORS):
            # whoever asks next, with the right password by now, is let try
            self._forget_authentication_failures()
            return AuthenticationFailed(
                f"{self._settings.security.protocol} authentication with broker {node_id} of "
                f"{','.join(self._settings.bootstrap_servers)} failed: {inner}",
                next_step="check security.protocol and the sasl.* and ssl.* options against the "
                "broker's listener" + (_BUILT_WITH if self._settings.security.password else ""),
            )
        return ConnectionLost(
            f"no answer from broker {node_id} of {','.join(self._settings.bootstrap_servers)}: "
            f"{inner}",
            next_step="check bootstrap.servers, security.protocol and the network",
        )

    def _forget_authentication_failures(self) -> None:
        """Let nodes that refused us be tried again: the password may be right by now, or the user
        created, or the certificate renewed."""
        self._loop.manager._auth_failures.clear()
        if self._certificates is not None:
            self._certificates.forget()

    def close(self) -> None:
        """Close every socket and the IO thread; what is outstanding is :class:`ConnectionLost`."""
        with self._lock:
            self._closed = True
        if self._forgotten.detach() is not None:
            _end(self._loop.net, self._loop.manager)


def _end(net: NetworkSelector, manager: Manager) -> None:
    """Wait for the IO thread, unless it is stuck: it is a daemon, and ends with the process."""
    closed, thread = threading.Event(), net._io_thread

    def close() -> None:
        try:
            manager.close()
        finally:
            closed.set()

    try:
        net.call_soon_threadsafe(close)
        closed.wait(_CLOSE_S)
        net.stop(timeout_ms=_CLOSE_S * 1000)
    except Exception:
        logging.getLogger(__name__).debug("IO loop was gone before it was closed", exc_info=True)
    if thread is None or not thread.is_alive():
        net.close()


def _end_soon(net: NetworkSelector, manager: Manager, pid: int) -> None:
    """End the loop when nobody has it, perhaps on the IO thread, which cannot await itself."""
    # In a forked child they are the parent's
    if pid == os.getpid():
        threading.Thread(
            target=_end, args=(net, manager), name="onceward-forgotten-client", daemon=True
        ).start()


def _innermost(error: BaseException) -> BaseException:
    """Return the error behind kafka-python's: TLS errors are its context or an argument."""
    if isinstance(error, kafka_errors.KafkaConnectionError):
        for inner in (*error.args, error.__context__):
            if isinstance(inner, ssl.SSLError):
                return inner
    return error
