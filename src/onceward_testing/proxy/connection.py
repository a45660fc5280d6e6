"""One client's connection through the proxy: two pumps, and what faults do to what they carry.

Made by :mod:`onceward_testing.proxy.listener`; runs in the proxy's event loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from onceward_testing.proxy.faults import HeldRequest, ProxyFault
from onceward_testing.proxy.frames import KafkaFrame, NotKafka, RequestHead, correlation_id

_CLOSE_WITH_RESET = struct.pack("ii", 1, 0)  # SO_LINGER on, for no time at all
_LATE_ANSWER_SECONDS = 30.0


@dataclass(slots=True)
class _Expected:
    """An answer that is to come.

    ``lost_by``: the fault that loses it; ``surplus``: the one to a duplicate.
    """

    correlation_id: int
    lost_by: ProxyFault | None = None
    held: HeldRequest | None = None
    surplus: bool = False


class Owner(Protocol):
    """The interface that a connection needs of its
    :class:`onceward_testing.proxy.listener.ProxyListener`, which has the words."""

    node: int
    is_cut: bool

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]: ...
    def fault_for(self, head: RequestHead) -> ProxyFault | None: ...
    def count(self, head: RequestHead) -> None: ...
    def cut(self) -> None: ...
    async def deliver(self, held: HeldRequest) -> None: ...


class ProxyConnection:
    """One client's connection to a broker.

    ``run`` returns when either side has closed, or a fault has.
    """

    def __init__(
        self, listener: Owner, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._listener = listener
        self._client_reader, self._client = reader, writer
        self._broker_reader: asyncio.StreamReader
        self._broker: asyncio.StreamWriter
        self._expected: deque[_Expected] = deque()
        self._held: list[HeldRequest] = []
        self._silent = False

    async def run(self) -> None:
        """Carry requests and answers until one side closes.

        A broker that cannot be reached closes the client's.
        """
        try:
            self._broker_reader, self._broker = await self._listener.connect()
        except OSError:
            self._client.close()
            return
        except asyncio.CancelledError:
            self._client.transport.abort()
            raise
        pumps = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._answers())]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # by heal() or close(): nothing is to be sent any more
            self._broker.transport.abort()
            self._client.transport.abort()
            raise
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._broker.close()  # what was written is still sent
            self._client.close()

    # ── requests ──

    async def _requests(self) -> None:
        with suppress(asyncio.IncompleteReadError, NotKafka, OSError):
            while await self._request(await KafkaFrame.read(self._client_reader)):
                pass
        for held in (
            self._held
        ):  # its client may be gone; what the broker says to it is the test's to know
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(held.wait_for_answer(), _LATE_ANSWER_SECONDS)

    async def _request(self, frame: KafkaFrame) -> bool:
        """Deal with one request; False when the client's connection is to be closed."""
        head = RequestHead.parse(frame.prefix)
        fault = None if self._lost else self._listener.fault_for(head)
        if fault is None:
            await self._pass_or_lose(frame, head)
            return True
        if fault.action == "delay":
            fault.has_fired()
            await asyncio.sleep(fault.seconds)
            await self._pass_or_lose(frame, head)
        elif fault.action == "drop_response":
            await self._to_broker(frame, head, _Expected(head.correlation_id, lost_by=fault))
        elif fault.action == "hold":
            await self._hold(frame, head, fault)
        elif fault.action == "duplicate":
            await self._twice(frame, head, fault)
        else:
            await frame.discard()
            return self._swallowed(fault)
        return True

    def _swallowed(self, fault: ProxyFault) -> bool:
        if fault.action == "black_hole":
            self._listener.cut()
        elif fault.action == "lose_silently":
            self._silent = True
        elif fault.action == "reset":
            self._reset()
        fault.has_fired()
        return self._lost

    async def _pass_or_lose(self, frame: KafkaFrame, head: RequestHead) -> None:
        if self._lost:
            await frame.discard()
        else:
            await self._to_broker(frame, head, _Expected(head.correlation_id))

    async def _to_broker(self, frame: KafkaFrame, head: RequestHead, expected: _Expected) -> None:
        self._listener.count(head)
        self._expected.append(expected)
        async for chunk in frame.chunks():
            self._broker.write(chunk)
            await self._broker.drain()

    async def _twice(self, frame: KafkaFrame, head: RequestHead, fault: ProxyFault) -> None:
        whole = await frame.whole()
        self._listener.count(head)
        for surplus in (False, True):
            self._expected.append(_Expected(head.correlation_id, surplus=surplus))
            self._broker.write(whole)
        await self._broker.drain()
        fault.has_fired()

    async def _hold(self, frame: KafkaFrame, head: RequestHead, fault: ProxyFault) -> None:
        _, port = self._client.get_extra_info("peername")
        held = HeldRequest(
            self._listener.node, port, head, await frame.whole(), asyncio.get_running_loop()
        )
        fault.has_fired(held)
        try:
            await held.wait_for_release()
            self._listener.count(head)
            self._expected.append(_Expected(head.correlation_id, held=held))
            self._broker.write(held.frame)
            await self._broker.drain()
        except BaseException:  # cancelled, because the broker or the proxy has closed
            held.orphan(self._listener.deliver)
            raise
        self._held.append(held)
        held.mark_delivered()

    # ── answers ──

    async def _answers(self) -> None:
        with suppress(asyncio.IncompleteReadError, NotKafka, OSError):
            while await self._answer_passes(await KafkaFrame.read(self._broker_reader)):
                pass

    async def _answer_passes(self, frame: KafkaFrame) -> bool:
        """Deal with one answer; False when the client's connection is to be closed."""
        expected = self._take_expected(correlation_id(frame.prefix))
        if expected is not None and expected.held is not None:
            await self._answer_to_held(frame, expected.held)
        elif expected is not None and expected.lost_by is not None:
            await frame.discard()
            expected.lost_by.has_fired()
            return False
        elif self._lost or (expected is not None and expected.surplus):
            await frame.discard()
        else:
            async for chunk in frame.chunks():
                await self._to_client(chunk)
        return True

    async def _answer_to_held(self, frame: KafkaFrame, held: HeldRequest) -> None:
        whole = await frame.whole()
        held.set_answer(whole[4:])
        if not self._lost:
            await self._to_client(whole)

    async def _to_client(self, chunk: bytes) -> None:
        # A client that is gone is the other pump's to notice: a held request's answer may still be
        # on its way.
        with suppress(OSError):
            self._client.write(chunk)
            await self._client.drain()

    def _take_expected(self, number: int) -> _Expected | None:
        """Take the request of an answer. Brokers answer in order: what was asked earlier and is
        not answered by now never is (acks=0)."""
        if all(expected.correlation_id != number for expected in self._expected):
            return None
        while (expected := self._expected.popleft()).correlation_id != number:
            pass
        return expected

    # ── ends ──

    @property
    def _lost(self) -> bool:
        return self._silent or self._listener.is_cut

    def _reset(self) -> None:
        raw: socket.socket | None = self._client.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _CLOSE_WITH_RESET)
        self._client.transport.abort()
