"""The proxy's end for one broker: a port that clients connect to, and the connections that came in
over it.

Made by :class:`onceward_testing.proxy.KafkaProxy`; runs in its event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from onceward_testing.proxy.connection import ProxyConnection
from onceward_testing.proxy.faults import Faults, HeldRequest, ProxyFault
from onceward_testing.proxy.frames import (
    CHUNK_BYTES,
    KafkaFrame,
    RequestCounter,
    RequestHead,
    correlation_id,
)

_HOST = "127.0.0.1"
_BACKLOG = 100
_TLS_HANDSHAKE = b"\x16"


class ProxyListener:
    """The proxy's port for one broker.

    ``port`` is 0 until it listens, unless a port was asked for.
    """

    def __init__(
        self, node: int, broker: tuple[str, int], port: int, faults: Faults, counts: RequestCounter
    ) -> None:
        self.node = node
        self.port = port
        self.is_cut = False
        self.tls: ssl.SSLContext | None = None
        """TLS for clients that begin with a TLS handshake; the broker is spoken to in plain text
        all the same."""
        self._broker_address = broker
        self._faults = faults
        self._counts = counts
        self._socket: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Listen. :raises OSError: the port is taken."""
        self._socket = socket.create_server((_HOST, self.port), backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self._accepting = asyncio.ensure_future(self._accept(self._socket))

    async def close(self) -> None:
        if self._accepting is not None and self._socket is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._socket.close()
        await self._close_connections()

    def cut(self) -> None:
        """Let nothing pass any more; connections stay open, and new ones are taken."""
        self.is_cut = True

    async def heal(self) -> None:
        """End a cut. Connections over which something may have got lost are closed."""
        if self.is_cut:
            self.is_cut = False
            await self._close_connections()

    # ── for connections ──

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a connection to the broker. :raises OSError: it does not listen."""
        return await asyncio.open_connection(*self._broker_address, limit=CHUNK_BYTES)

    def fault_for(self, head: RequestHead) -> ProxyFault | None:
        return self._faults.due(self.node, head)

    def count(self, head: RequestHead) -> None:
        """Count a request that is passed on to the broker."""
        self._counts.add(self.node, head)

    async def deliver(self, held: HeldRequest) -> None:
        """Deliver it over a connection of its own. :raises OSError: the broker does not listen."""
        reader, writer = await self.connect()
        self.count(held.head)
        writer.write(held.frame)
        await writer.drain()
        self._keep(asyncio.ensure_future(_answer_to(held, reader, writer)))

    # ── inside ──

    async def _accept(self, listening: socket.socket) -> None:
        while True:
            client, _ = await asyncio.get_running_loop().sock_accept(listening)
            self._keep(asyncio.ensure_future(self._serve(client)))

    async def _serve(self, client: socket.socket) -> None:
        with suppress(
            asyncio.CancelledError
        ):  # by heal() or close(): nothing that anybody waits for
            try:
                reader, writer = await self._open(client)
            except BaseException as error:
                client.close()
                if isinstance(error, OSError):  # the client is gone, or TLS refuses it
                    return
                raise
            await ProxyConnection(self, reader, writer).run()

    async def _open(
        self, client: socket.socket
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return the client's connection, over TLS if it begins so.

        While the node is cut nobody answers a handshake.
        """
        client.setblocking(False)
        tls = self.tls if self.tls is not None and await _begins_with_tls(client) else None
        if tls is not None and self.is_cut:
            await asyncio.Event().wait()
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=CHUNK_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, client, ssl=tls)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _close_connections(self) -> None:
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _begins_with_tls(client: socket.socket) -> bool:
    """Return whether the first byte is that of a handshake record; Kafka's frames begin with their
    length, below 16 MiB."""
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(client, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(client)
    return client.recv(1, socket.MSG_PEEK) == _TLS_HANDSHAKE


async def _answer_to(
    held: HeldRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        with suppress(asyncio.IncompleteReadError, OSError):
            frame = await KafkaFrame.read(reader)
            if correlation_id(frame.prefix) == held.head.correlation_id:
                held.set_answer((await frame.whole())[4:])
    finally:
        writer.close()
