"""A socket that says what a broker says before anything is written: versions, itself, its
coordinator, a login.

For what no real broker does on demand: falling silent in the middle of a set-up, moving under its
id, being too old.
"""

from __future__ import annotations

import socketserver
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any

METADATA, FIND_COORDINATOR, SASL_HANDSHAKE, API_VERSIONS, INIT_PRODUCER_ID, SASL_AUTHENTICATE = (
    3,
    10,
    17,
    18,
    22,
    36,
)
TLS = -1
"""In the place of an API key: the handshake of TLS."""
UNSUPPORTED_VERSION, SASL_AUTHENTICATION_FAILED = 35, 58
SPOKEN = {
    0: (0, 8),
    METADATA: (7, 7),
    FIND_COORDINATOR: (1, 1),
    SASL_HANDSHAKE: (1, 1),
    API_VERSIONS: (0, 0),
    SASL_AUTHENTICATE: (0, 0),
}


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class HandmadeBroker(socketserver.ThreadingTCPServer):
    """In a ``with`` block it serves.

    :param silent_at: what it does not answer: an API key, or :data:`TLS`. May be changed at any
        time.
    :param node_at: the address that ``Metadata`` names, :param coordinator_at: the one of
        ``FindCoordinator``; its own.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self,
        spoken: Mapping[int, tuple[int, int]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.spoken = spoken or SPOKEN
        self.tls = tls
        self.silent_at: int | None = None
        self.refuses_logins = False
        self.throttle_ms = 0
        self.asked: Counter[int] = Counter()
        self.refused: list[str] = []
        self.node_at = self.coordinator_at = self.port
        self._healed = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def answer(self, api: int, version: int) -> bytes:
        self.asked[api] += 1
        if api == API_VERSIONS:
            spoken = b"".join(
                struct.pack(">hhh", key, *versions) for key, versions in self.spoken.items()
            )
            return (
                struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, len(self.spoken))
                + spoken
            )
        if api == METADATA:
            broker = (
                struct.pack(">ii", 1, 1) + text("127.0.0.1") + struct.pack(">ih", self.node_at, -1)
            )
            return (
                struct.pack(">i", self.throttle_ms)
                + broker
                + text("handmade-cluster")
                + struct.pack(">ii", 1, 0)
            )
        if api == SASL_HANDSHAKE:
            return struct.pack(">hi", 0, 2) + text("PLAIN") + text("OAUTHBEARER")
        if api == SASL_AUTHENTICATE:
            if self.refuses_logins:
                return (
                    struct.pack(">h", SASL_AUTHENTICATION_FAILED)
                    + text("nobody of that name")
                    + struct.pack(">i", 0)
                )
            return struct.pack(">hhi", 0, -1, 0)
        assert api == FIND_COORDINATOR, api
        return (
            struct.pack(">ihhi", 0, 0, -1, 1)
            + text("127.0.0.1")
            + struct.pack(">i", self.coordinator_at)
        )

    def __enter__(self) -> HandmadeBroker:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._healed.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no news."""


class _Conversation(socketserver.BaseRequestHandler):
    server: HandmadeBroker

    def handle(self) -> None:
        broker, sock = self.server, self.request
        if broker.tls is not None:
            self._fall_silent_at(TLS)
            try:
                sock = broker.tls.wrap_socket(sock, server_side=True)
            except (ssl.SSLError, OSError) as refusal:
                broker.refused.append(str(refusal))
                return
        with suppress(OSError), sock.makefile("rb") as frames:
            while len(size := frames.read(4)) == 4:
                request = frames.read(struct.unpack(">i", size)[0])
                api, version, correlation = struct.unpack(">hhi", request[:8])
                self._fall_silent_at(api)
                answer = struct.pack(">i", correlation) + broker.answer(api, version)
                sock.sendall(struct.pack(">i", len(answer)) + answer)

    def _fall_silent_at(self, api: int) -> None:
        """As a host that is half dead: the connection stays as it is, even if the broker answers
        again.
        """
        if self.server.silent_at == api:
            self.server._healed.wait()
            raise ConnectionAbortedError
