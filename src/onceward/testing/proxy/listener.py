"""The proxy's end for one broker: a port that clients connect to, and the connections that came in over it.

Made by :class:`onceward.testing.proxy.KafkaProxy`; runs in its event loop.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from onceward.testing.proxy.connection import Connection
from onceward.testing.proxy.counting import Counts
from onceward.testing.proxy.faults import Faults, ProxyFault
from onceward.testing.proxy.frames import CHUNK_BYTES, Frame, RequestHead, correlation_id
from onceward.testing.proxy.held import HeldRequest

_HOST = "127.0.0.1"


class Listener:
    """See the module. ``port`` is 0 until it listens, unless a port was asked for."""

    def __init__(self, node: int, broker: tuple[str, int], port: int, faults: Faults, counts: Counts) -> None:
        self.node = node
        self.port = port
        self.is_cut = False
        self._broker_address = broker
        self._faults = faults
        self._counts = counts
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """:raises OSError: the port is taken."""
        self._server = await asyncio.start_server(self._serve, _HOST, self.port, limit=CHUNK_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        await self._close_connections()

    def cut(self) -> None:
        """Nothing passes any more; connections stay open, and new ones are taken."""
        self.is_cut = True

    async def heal(self) -> None:
        """Ends a cut. Connections over which something may have got lost are closed."""
        if self.is_cut:
            self.is_cut = False
            await self._close_connections()

    # --- for connections ---------------------------------------------------------------------------------------

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the broker. :raises OSError: it does not listen."""
        return await asyncio.open_connection(*self._broker_address, limit=CHUNK_BYTES)

    def fault_for(self, head: RequestHead) -> ProxyFault | None:
        return self._faults.due(self.node, head)

    def count(self, head: RequestHead) -> None:
        """A request is passed on to the broker."""
        self._counts.add(self.node, head)

    async def deliver(self, held: HeldRequest) -> None:
        """Over a connection of its own. :raises OSError: the broker does not listen."""
        reader, writer = await self.connect()
        self.count(held.head)
        writer.write(held.frame)
        await writer.drain()
        self._keep(asyncio.ensure_future(_answer_to(held, reader, writer)))

    # --- inside ------------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 — asyncio runs us in one
        self._keep(task)
        with suppress(asyncio.CancelledError):  # by heal() or close(): nothing that anybody waits for
            await Connection(self, reader, writer).run()

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _close_connections(self) -> None:
        ending = list(self._connections)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


async def _answer_to(held: HeldRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(asyncio.IncompleteReadError, OSError):
            frame = await Frame.read(reader)
            if correlation_id(frame.prefix) == held.head.correlation_id:
                held.set_answer((await frame.whole())[4:])
    finally:
        writer.close()
