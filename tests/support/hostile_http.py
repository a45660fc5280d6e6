"""An HTTP server that answers as badly as a test wants: bytes on a real socket, connection by
connection. For tests.

::

    with HostileServer([down, answer(503), good]) as server: …

Each connection is one of the list's, and all after the last are the last's. What was asked is in
``requests``.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

Behaviour = Callable[[socket.socket, "HostileServer"], None]

WAIT_SECONDS = 60


def answer(
    status: int = 200,
    body: bytes | Any = b"",
    headers: Sequence[str] = (),
    length: int | None = None,
) -> Behaviour:
    """:param body: bytes, or a value of JSON. :param length: what is said of it; None: the
    truth.
    """
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 "
        f"{status} Whatever", f"Content-Length: {len(content) if length is None else length}",
        "Content-Type: application/json", *headers,
    ]  # fmt: skip
    return raw("\r\n".join(lines).encode() + b"\r\n\r\n" + content)


def raw(said: bytes) -> Behaviour:
    """``said``, and the end of the connection."""
    return lambda connection, _: connection.sendall(said)


def hang_up(connection: socket.socket, server: HostileServer) -> None:
    """The end of the connection instead of an answer."""


def silent(connection: socket.socket, server: HostileServer) -> None:
    """No answer while the client stays."""
    connection.settimeout(WAIT_SECONDS)
    connection.recv(1)


def drip(first: bytes, each: bytes = b" ") -> Behaviour:
    """``first``, and then for ever a piece each twentieth of a second: no pause is as long as a
    limit of a socket.
    """

    def behave(connection: socket.socket, server: HostileServer) -> None:
        connection.sendall(first)
        while not server.ended.wait(0.05):
            connection.sendall(each)

    return behave


class HostileServer:
    """Runs for the length of a ``with`` block.

    :param tls: a server's context, for https. :param port: 0: any.
    """

    def __init__(
        self, behaviours: Sequence[Behaviour], tls: ssl.SSLContext | None = None, *, port: int = 0
    ) -> None:
        self._behaviours = list(behaviours)
        self._tls = tls
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        self.requests: list[bytes] = []
        """The head and body of each request, as it came."""
        self.connections = 0
        self.ended = threading.Event()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    def __enter__(self) -> HostileServer:
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
            assert not thread.is_alive()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        with self._lock:
            self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with self._lock:
                behaviour = self._behaviours[min(self.connections, len(self._behaviours) - 1)]
                self.connections += 1
                self._open.append(connection)
            self._start(self._serve, connection, behaviour)

    def _serve(self, connection: socket.socket, behaviour: Behaviour) -> None:
        # OSError: the client left, or did not like our certificate.
        with contextlib.suppress(OSError), self._talking(connection) as talking:
            talking.settimeout(WAIT_SECONDS)
            if request := _request(talking):
                with self._lock:
                    self.requests.append(request)
                behaviour(talking, self)
        connection.close()

    def _talking(self, connection: socket.socket) -> socket.socket:
        return (
            connection
            if self._tls is None
            else self._tls.wrap_socket(connection.dup(), server_side=True)
        )


def _request(connection: socket.socket) -> bytes:
    head, body = b"", b""
    while b"\r\n\r\n" not in head:
        piece = connection.recv(65_536)
        if not piece:
            return b""
        head += piece
    head, _, body = head.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length:")
    ]
    while lengths and len(body) < lengths[0]:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body
