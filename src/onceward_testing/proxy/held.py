"""A request that is kept back, and what the broker says to it in the end.

Made by :mod:`onceward_testing.proxy.connection`, in the proxy's thread; used in the test's.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from onceward_testing.proxy.frames import RequestHead

_DELIVERY_SECONDS = 30.0


class HeldRequest:
    """See the module. ``head`` says whose request it is and what it asks for, ``node`` to which
    broker it goes, ``client_port`` which of its sockets the client has sent it from.
    """

    def __init__(
        self,
        node: int,
        client_port: int,
        head: RequestHead,
        frame: bytes,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.node = node
        self.client_port = client_port
        self.head = head
        self.frame = frame
        self._loop = loop
        self._released = asyncio.Event()
        self._settled = asyncio.Event()
        self._deliver: Callable[[HeldRequest], Awaitable[None]] | None = None
        self._answer: bytes | None = None
        self._answered = asyncio.Event()
        self._has_answer = threading.Event()

    @property
    def answered(self) -> bool:
        """Whether the broker has answered."""
        return self._has_answer.is_set()

    def release(self) -> None:
        """See :meth:`onceward_testing.proxy.ProxyFault.release`. A second time does nothing."""
        asyncio.run_coroutine_threadsafe(self._let_go(), self._loop).result(_DELIVERY_SECONDS)

    def answer(self, timeout_s: float = 30.0) -> bytes:
        """The broker's answer, from its correlation id on.

        :raises TimeoutError: there was none. A ``Produce`` with acks=0 has no answer.
        """
        if not self._has_answer.wait(timeout_s) or self._answer is None:
            raise TimeoutError(f"no answer to the held {self.head.api} within {timeout_s:g} s")
        return self._answer

    def decoded_answer(self, timeout_s: float = 30.0) -> Any:
        """The answer as kafka-python reads it: ``fault.held[0].decoded_answer().error_code``."""
        from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry

        (key,) = struct.unpack_from(">h", self.frame, 4)
        header = RequestHeader(
            key, self.head.version, self.head.correlation_id, self.head.client_id
        )
        kind = ResponseClassRegistry.get_response_class(header)
        return kind.decode(self.answer(timeout_s), header=True)

    # --- the proxy's side, in its loop -----------------------------------------------------------

    async def released(self) -> None:
        """Until the test lets it go."""
        await self._released.wait()

    async def when_answered(self) -> None:
        """Until a broker has answered."""
        await self._answered.wait()

    def delivered(self) -> None:
        """It has been written to a broker."""
        self._settled.set()

    def orphaned(self, deliver: Callable[[HeldRequest], Awaitable[None]]) -> None:
        """The connection that it came over is gone and has not delivered it; ``deliver`` finds
        another way.
        """
        self._deliver = deliver
        self._settled.set()

    def set_answer(self, answer: bytes) -> None:
        self._answer = answer
        self._answered.set()
        self._has_answer.set()

    async def _let_go(self) -> None:
        if self._released.is_set():
            return
        self._released.set()
        await self._settled.wait()
        if self._deliver is not None:
            await self._deliver(self)
