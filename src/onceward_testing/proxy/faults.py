"""Faults of the proxy: armed by a test, they wait for the request that they hit.

Made by :meth:`onceward_testing.proxy.KafkaProxy.on`. Functions of values and counts, no I/O; armed
in the test's thread and asked in the proxy's.
"""

from __future__ import annotations

import asyncio
import difflib
import struct
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from onceward.errors import ConfigurationError
from onceward_testing.proxy.frames import RequestHead, api_names

Action = Literal[
    "drop_request",
    "lose_silently",
    "drop_response",
    "delay",
    "hold",
    "duplicate",
    "reset",
    "black_hole",
]


@dataclass(frozen=True, slots=True)
class RequestPattern:
    """The requests that a fault hits; ``*`` and ``?`` in a client id mean what they mean in a
    shell.

    ``nth`` counts matching requests from 1, since the fault was armed; from there on ``times`` in
    a row are hit (None: all that follow).
    """

    api: str
    nth: int = 1
    times: int | None = 1
    client_id: str | None = None
    node: int | None = None

    def __post_init__(self) -> None:
        if self.api not in api_names():
            nearest = difflib.get_close_matches(self.api, api_names(), n=1)
            raise ConfigurationError(
                f"{self.api!r} is no request of Kafka's protocol",
                next_step=f"did you mean {nearest[0]!r}?"
                if nearest
                else "use a name such as 'Produce' or 'EndTxn'",
            )
        if self.nth < 1 or (self.times is not None and self.times < 1):
            raise ConfigurationError(
                f"nth={self.nth}, times={self.times}", next_step="count from 1; times=None: all"
            )

    def matches(self, node: int, head: RequestHead) -> bool:
        return (
            head.api == self.api
            and self.node in (None, node)
            and (self.client_id is None or fnmatchcase(head.client_id, self.client_id))
        )


class ProxyFault:
    """One armed fault. Thread safe.

    :ivar fired: how often it has acted: for a lost response, how often one was lost that the
    broker had given.
    """

    def __init__(self, target: RequestPattern, action: Action, seconds: float = 0.0) -> None:
        self.target = target
        self.action = action
        self.seconds = seconds
        self.fired = 0
        self.held: list[HeldRequest] = []
        """The requests that ``hold()`` has kept back, in the order of their coming."""
        self._seen = 0
        self._armed = True
        self._changed = threading.Condition()

    def wait(self, timeout_s: float = 60.0, *, times: int = 1) -> bool:
        """Wait until it has fired ``times`` times; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.fired >= times, timeout_s)

    def cancel(self) -> None:
        """Let everything pass from now on. What is held stays held."""
        with self._changed:
            self._armed = False

    def release(self) -> None:
        """Hold nothing more after ``hold()``, and deliver to the brokers what is held, in order.

        Returns when it has been written to the broker. A client that is still waiting gets the
        answer; for one that is gone the request goes over a connection of its own, and only the
        test sees what the broker says (:meth:`HeldRequest.answer`).

        :raises OSError: the broker cannot be reached.
        """
        self.cancel()
        for held in self.held:
            held.release()

    @property
    def answered(self) -> bool:
        """Return whether every request that was held has been answered by a broker."""
        return bool(self.held) and all(held.answered for held in self.held)

    # ── the proxy's side ──

    def takes(self, node: int, head: RequestHead) -> bool:
        """Count this request; True when it is one to act on."""
        if not self.target.matches(node, head):
            return False
        with self._changed:
            if not self._armed:
                return False
            self._seen += 1
            late_enough = self._seen >= self.target.nth
            return late_enough and (
                self.target.times is None or self._seen < self.target.nth + self.target.times
            )

    def has_fired(self, held: HeldRequest | None = None) -> None:
        """Note that it has been carried out once more."""
        with self._changed:
            if held is not None:
                self.held.append(held)
            self.fired += 1
            self._changed.notify_all()


class Faults:
    """All that are armed. Thread safe."""

    def __init__(self) -> None:
        self._armed: list[ProxyFault] = []
        self._lock = threading.Lock()

    def arm(self, fault: ProxyFault) -> ProxyFault:
        with self._lock:
            self._armed.append(fault)
        return fault

    def due(self, node: int, head: RequestHead) -> ProxyFault | None:
        """Return the fault to carry out on this request.

        Each one counts it; of several the one that was armed first acts.
        """
        with self._lock:
            taking = [fault for fault in self._armed if fault.takes(node, head)]
        return taking[0] if taking else None

    def disarm(self) -> None:
        with self._lock:
            for fault in self._armed:
                fault.cancel()
            self._armed.clear()


class On:
    """The beginning of a fault: ``proxy.on("EndTxn", nth=2)``. Its methods arm it."""

    def __init__(self, faults: Faults, target: RequestPattern) -> None:
        self._faults, self._target = faults, target

    def drop_request(self, *, silently: bool = False) -> ProxyFault:
        """Drop it before the broker. The client's connection is closed, as when a TCP connection
        breaks; ``silently``: it stays open, and nothing passes over it any more, so that the
        client has to run into its timeout."""
        return self._arm("lose_silently" if silently else "drop_request")

    def drop_response(self) -> ProxyFault:
        """Drop the answer: the broker has done it, its answer gets lost, and the client's
        connection is closed."""
        return self._arm("drop_response")

    def delay(self, seconds: float) -> ProxyFault:
        """Delay it, and what follows on its connection behind it."""
        return self._arm("delay", seconds)

    def hold(self) -> ProxyFault:
        """Hold it until :meth:`ProxyFault.release`, even when its client gives up or is killed."""
        return self._arm("hold")

    def duplicate(self) -> ProxyFault:
        """Send it to the broker twice; the second answer is dropped."""
        return self._arm("duplicate")

    def reset(self) -> ProxyFault:
        """Reset the connection: the broker never gets it; the client's connection is reset
        (RST)."""
        return self._arm("reset")

    def black_hole(self) -> ProxyFault:
        """Drop it and all that follows: the broker never gets it, and from then on nothing
        passes to or from its node until ``heal()``."""
        return self._arm("black_hole")

    def _arm(self, action: Action, seconds: float = 0.0) -> ProxyFault:
        return self._faults.arm(ProxyFault(self._target, action, seconds))


_DELIVERY_SECONDS = 30.0


class HeldRequest:
    """A request that is held. ``head`` says whose request it is and what it asks for, ``node`` to
    which broker it goes, ``client_port`` which of its sockets the client has sent it from."""

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
        """Return whether the broker has answered."""
        return self._has_answer.is_set()

    def release(self) -> None:
        """Release it, as :meth:`onceward_testing.proxy.ProxyFault.release` does.

        A second time does nothing.
        """
        asyncio.run_coroutine_threadsafe(self._release(), self._loop).result(_DELIVERY_SECONDS)

    def answer(self, timeout_s: float = 30.0) -> bytes:
        """Return the broker's answer, from its correlation id on.

        :raises TimeoutError: there was none. A ``Produce`` with acks=0 has no answer.
        """
        if not self._has_answer.wait(timeout_s) or self._answer is None:
            raise TimeoutError(f"no answer to the held {self.head.api} within {timeout_s:g} s")
        return self._answer

    def decoded_answer(self, timeout_s: float = 30.0) -> Any:
        """Return the answer as kafka-python reads it:
        ``fault.held[0].decoded_answer().error_code``."""
        from kafka.protocol.api_header import RequestHeader, ResponseClassRegistry

        (key,) = struct.unpack_from(">h", self.frame, 4)
        header = RequestHeader(
            key, self.head.version, self.head.correlation_id, self.head.client_id
        )
        kind = ResponseClassRegistry.get_response_class(header)
        return kind.decode(self.answer(timeout_s), header=True)

    # ── the proxy's side, in its loop ──

    async def wait_for_release(self) -> None:
        """Wait until the test releases it."""
        await self._released.wait()

    async def wait_for_answer(self) -> None:
        """Wait until a broker has answered."""
        await self._answered.wait()

    def mark_delivered(self) -> None:
        """Note that it has been written to a broker."""
        self._settled.set()

    def orphan(self, deliver: Callable[[HeldRequest], Awaitable[None]]) -> None:
        """Note that the connection that it came over is gone and has not delivered it; ``deliver``
        finds another way."""
        self._deliver = deliver
        self._settled.set()

    def set_answer(self, answer: bytes) -> None:
        self._answer = answer
        self._answered.set()
        self._has_answer.set()

    async def _release(self) -> None:
        if self._released.is_set():
            return
        self._released.set()
        await self._settled.wait()
        if self._deliver is not None:
            await self._deliver(self)
