"""What is done otherwise than kafka-python does it, when a connection is set up: the one place
that reaches into it. Called by ``kafka.wire.connections``; runs on its IO thread, where nothing
may wait for anything that has no end.

* **Each step of a set-up ends by the same deadline**: the name, TCP, TLS, ``ApiVersions``, SASL.
  kafka-python waits for the answer to a TLS handshake for ever (``KafkaSSLTransport.handshake``),
  and until then keeps the connection, and the requests in its buffer, from being given up.
* **What may block does so on a thread of its own**: the look-up of a name (``getaddrinfo``), and a
  user's provider of OAuth tokens, which asks a server that may be down. On the IO thread either
  would hold up every other connection.
* **Every address of a name has its share of the time**; kafka-python gives all of it to the first.
* **A connection goes where its node is now.** Nodes move under their ids; an answer that says so
  counts at once.
* **Each connection finds out by itself what its broker speaks.** kafka-python holds later ones to
  what the first broker spoke, whatever was upgraded since.
* **SCRAM may log in with a delegation token**, which kafka-python knows nothing of, and with a
  name that has ``=`` or ``,``, which it sends as they are.
* **What a broker says before it hangs up is handed over.** kafka-python drops bytes that are read
  together with the end of the stream; a broker that refuses a password answers and hangs up at
  once.
"""

from __future__ import annotations

import re
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NamedTuple

import kafka.errors as kafka_errors
from kafka.future import Future
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.sasl.scram import SaslMechanismScram
from kafka.net.selector import NetworkSelector
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

from onceward import patience
from onceward.kafka.wire.options.security import (
    Certificates,
    TokenProvider,
    provider_extensions,
)

# Whoever closes a connection has given up what is unanswered on it. Without SO_LINGER the kernel
# would go on sending that for minutes, and a broker could carry out, when the network is back,
# what has been asked anew long since.
_SOCKET_OPTIONS: tuple[tuple[int, int, Any], ...] = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)),
)

NodeId = int | str
"""A broker's id, or ``bootstrap-0`` and so on."""


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


PROVIDER = "token() of oauth_token_provider="


class TokenLost(Exception):
    """The provider of OAuth tokens raised, or gave none in time."""


class Manager(KafkaConnectionManager):  # type: ignore[misc] # kafka-python is untyped
    """Connections of one process, set up as the module says.

    :param addresses: where every node is, as of now. Replaced by the caller, never changed.
    :param certificates: None without TLS.
    :param tokens: None without OAUTHBEARER.
    :param is_token: SCRAM logs in with a delegation token.
    """

    def __init__(
        self,
        net: NetworkSelector,
        *,
        certificates: Certificates | None,
        tokens: TokenProvider | None,
        is_token: bool,
        **configs: Any,
    ) -> None:
        super().__init__(net, **configs)
        self.addresses: Mapping[Any, Address] = {
            broker.node_id: Address(broker.host, broker.port)
            for broker in self.cluster.bootstrap_brokers()
        }
        self.certificates = certificates
        self.tokens = tokens
        self.is_token = is_token
        self.connected: frozenset[NodeId] = frozenset()
        """Nodes that need no set-up. Replaced, never changed: any thread may read it."""

    def get_connection(self, node_id: NodeId, **_: Any) -> KafkaConnection:
        """Return the connection to where ``node_id`` is now, which may still be in its set-up.

        :raises NodeNotReadyError: it failed a moment ago.
        :raises UnknownBrokerIdError: nobody has named that node.
        """
        address = self.addresses.get(node_id)
        if address is None:
            raise kafka_errors.UnknownBrokerIdError(node_id)
        connection = self._conns.get(node_id)
        if connection is not None and connection.address != address:
            # it was the other place's
            self.reset_backoff(node_id)
            connection.close(
                kafka_errors.KafkaConnectionError(f"broker {node_id} is at {address} now")
            )
            connection = None
        if connection is not None:
            return connection
        self.maybe_raise_auth_failure(node_id)
        if self.connection_delay(node_id) > 0:
            raise kafka_errors.NodeNotReadyError(node_id)
        return self._new_connection(node_id, address)

    def _new_connection(self, node_id: NodeId, address: Address) -> KafkaConnection:
        connection = self._conns[node_id] = _Connection(self, node_id, address)

        def closed(_: object) -> None:
            if self._conns.get(node_id) is connection:
                del self._conns[node_id]
                self.connected -= {node_id}

        def ready(_: object) -> None:
            if self._conns.get(node_id) is connection:
                self.connected |= {node_id}

        connection.close_future.add_both(closed)
        connection.init_future.add_callback(ready)
        timeout_at = time.monotonic() + self.socket_connection_setup_timeout_ms(node_id) / 1000
        # What KafkaConnectionManager._connect reads of a node
        node = SimpleNamespace(node_id=node_id, **address._asdict(), connection=connection)
        self._net.call_soon(lambda: self._connect(node, connection, timeout_at=timeout_at))
        return connection

    async def _build_transport(self, node: Any, timeout_at: float | None = None) -> Any:
        node.connection.waits_for = f"TCP to {node.connection.address}"
        sock = await self._socket_to(node.connection.address, timeout_at or time.monotonic())
        if self.certificates is None:
            return _with_data_before_the_end(KafkaTCPTransport(self._net, sock, host=node.host))
        try:
            context = self.certificates.context()
            transport = KafkaSSLTransport(self._net, sock, host=node.host, ssl_context=context)
        except BaseException:
            sock.close()
            raise
        node.connection.waits_for = "the TLS handshake"
        try:
            await self._shake_hands(transport, timeout_at)
        except BaseException:
            transport.close()
            raise
        return _with_data_before_the_end(transport)

    async def _shake_hands(self, transport: KafkaSSLTransport, timeout_at: float | None) -> None:
        while True:
            try:
                transport._sock.do_handshake()
                return
            except ssl.SSLWantReadError:
                wait = self._net.wait_read
            except ssl.SSLWantWriteError:
                wait = self._net.wait_write
            except OSError as refusal:  # ssl.SSLError is one
                raise kafka_errors.KafkaConnectionError(
                    f"Handshake failed: {refusal}"
                ) from refusal
            try:
                await wait(transport._sock, timeout_at=timeout_at)
            except kafka_errors.KafkaTimeoutError:
                raise kafka_errors.KafkaConnectionError(
                    "the TLS handshake was not answered in time"
                ) from None

    async def _socket_to(self, address: Address, timeout_at: float) -> socket.socket:
        """Return a connected socket. :raises KafkaConnectionError: why there is none."""
        found = await self._resolved(address, timeout_at)
        failures = []
        for position, info in enumerate(found):
            now = time.monotonic()
            share_at = now + (timeout_at - now) / (len(found) - position)
            try:
                return await self._tcp(info, share_at)
            except (
                OSError,
                kafka_errors.KafkaTimeoutError,
                kafka_errors.KafkaConnectionError,
            ) as error:
                failures.append(f"{info[4][0]}: {error}")
        raise kafka_errors.KafkaConnectionError(
            f"unable to connect to {address} ({'; '.join(failures) or 'no address'})"
        )

    async def _tcp(self, info: Any, timeout_at: float) -> socket.socket:
        family, kind, protocol, _, place = info
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            for option in _SOCKET_OPTIONS:
                sock.setsockopt(*option)
            patience.probe_if_idle(sock)
            await KafkaNetSocket().sock_connect(self._net, sock, place, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise
        return sock

    async def _resolved(self, address: Address, timeout_at: float) -> list[Any]:
        def look_up(flags: int = 0) -> list[Any]:
            return socket.getaddrinfo(*address, socket.AF_UNSPEC, socket.SOCK_STREAM, flags=flags)

        with suppress(socket.gaierror):
            return look_up(socket.AI_NUMERICHOST)  # asks nobody
        try:
            found: list[Any] = await self.apart(look_up, timeout_at)
        except kafka_errors.KafkaTimeoutError:
            raise kafka_errors.KafkaConnectionError(
                f"the name {address.host} was not resolved in time"
            ) from None
        except OSError as error:
            raise kafka_errors.KafkaConnectionError(
                f"the name {address.host} cannot be resolved: {error}"
            ) from error
        return found

    async def apart(self, function: Callable[[], Any], timeout_at: float) -> Any:
        """Call ``function`` on a thread of its own and return its result.
        :raises KafkaTimeoutError: not by ``timeout_at``."""
        answer = Future()

        def settle(settled: Callable[[Any], Any], value: object) -> None:
            # The loop has been closed: nobody waits any more
            with suppress(Exception):
                self._net.call_soon_threadsafe(lambda: settled(value))

        def work() -> None:
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - handed to the waiting coroutine
                settle(answer.failure, error)
            else:
                settle(answer.success, result)

        threading.Thread(target=work, name="onceward-connection-setup", daemon=True).start()
        return await self.wait_for(answer, max(0.0, timeout_at - time.monotonic()) * 1000)


class _Connection(KafkaConnection):  # type: ignore[misc] # kafka-python is untyped
    """One that knows where it goes, and asks for its OAuth token where that may wait."""

    def __init__(self, manager: Manager, node_id: NodeId, address: Address) -> None:
        super().__init__(manager._net, node_id=node_id, **manager.config)
        self.address = address
        self.waits_for = ""
        """The step of the set-up that it is at, while it is."""
        self._manager = manager

    async def _get_api_versions(self, timeout_at: float | None = None) -> None:
        self.waits_for = "an answer to ApiVersions"
        await super()._get_api_versions(timeout_at)

    async def _sasl_authenticate(self, timeout_at: float | None = None) -> None:
        """Log in at the set-up, and again before the login of the connection ends (KIP-368)."""
        until = self._timeout_at() if timeout_at is None else timeout_at
        if (tokens := self._manager.tokens) is not None:
            self.waits_for = PROVIDER
            try:
                login = await self._manager.apart(lambda: _Token(tokens), until)
            except kafka_errors.KafkaTimeoutError:
                raise TokenLost(f"{PROVIDER} did not return in time") from None
            except TokenLost:
                raise
            except Exception as error:
                raise TokenLost(f"{PROVIDER} raised {type(error).__name__}: {error}") from error
            self.config["sasl_oauth_token_provider"] = login
        self.config[_DELEGATED] = self._manager.is_token
        self.waits_for = "an answer to the login (SASL)"
        await super()._sasl_authenticate(until)


_DELEGATED = "onceward_is_token"
_EXTENSION = b",tokenauth=true"


class _Scram(SaslMechanismScram):  # type: ignore[misc] # kafka-python is untyped
    """SCRAM that may log in with a delegation token, as its first message then says (KIP-48), and
    with any name, spelt as there (RFC 5802, ``saslname``)."""

    def __init__(self, **config: Any) -> None:
        name = config["sasl_plain_username"].replace("=", "=3D").replace(",", "=2C")
        super().__init__(**{**config, "sasl_plain_username": name})
        self._is_token = config.get(_DELEGATED, False)

    def auth_bytes(self) -> bytes:
        message: bytes = super().auth_bytes()
        if self._is_token and self._state == 0:
            self._scram_client.auth_message += _EXTENSION
            message += _EXTENSION
        return message


for _mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
    register_sasl_mechanism(_mechanism, _Scram, overwrite=True)


class _Token(AbstractTokenProvider):  # type: ignore[misc] # kafka-python is untyped
    """The token of one login, and its extensions where ``tokens`` has some. kafka-python insists
    on its own base class.

    :raises TokenLost: they are something else than a server could read.
    """

    def __init__(self, tokens: TokenProvider) -> None:
        super().__init__()
        token: object = tokens.token()
        if not isinstance(token, str) or not token or token.split() != [token]:
            what = "text with white space, or none" if isinstance(token, str) else ""
            raise TokenLost(
                f"{PROVIDER} is to return the text of the token alone, without white space "
                f"or a word like Bearer, and returned {what or type(token).__name__}"
            )
        extensions: object = provider_extensions(tokens)
        if not isinstance(extensions, dict) or not all(map(_is_extension, extensions.items())):
            raise TokenLost(
                "extensions() of oauth_token_provider= is to return a dict of ASCII texts, none "
                "empty, whose names are letters, and none of them auth (KIP-342)"
            )
        self._token, self._extensions = token, extensions

    def token(self) -> str:
        return self._token

    def extensions(self) -> dict[str, str]:
        return self._extensions


def _is_extension(pair: tuple[object, object]) -> bool:
    name, value = pair
    return (
        isinstance(name, str)
        and isinstance(value, str)
        and re.fullmatch("(?!auth$)[A-Za-z]+", name) is not None
        and re.fullmatch(r"[\x21-\x7e \t\r\n]+", value) is not None
    )


def _with_data_before_the_end(transport: KafkaTCPTransport) -> KafkaTCPTransport:
    receive = transport._sock_recv

    def data_before_the_end() -> tuple[bytes, Exception | None]:
        data, error = receive()
        # The end of the stream is there again at the next read
        return (data, None if data else error)

    transport._sock_recv = data_before_the_end
    return transport
