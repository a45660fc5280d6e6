"""Kafka's framing, as far as a proxy needs it: sizes, request headers and correlation ids. Bodies
are never decoded.

Called by :mod:`onceward_testing.proxy.connection`. A frame is a 32-bit size and that many bytes; a
request begins with api key, api version, correlation id and client id (``RequestHeader.json``: the
same places in all of its versions, the client id is never compact), an answer with the correlation
id.
"""

from __future__ import annotations

import asyncio
import functools
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

PREFIX_BYTES = 64 << 10
"""Size of the part that is read before anything is decided; the longest header has 8 + 2 + 32,767
bytes."""

CHUNK_BYTES = 256 << 10
LARGEST_FRAME_BYTES = 256 << 20  # a TLS hello, read as a size, is above it

_HEADER = struct.Struct(">hhih")
_SIZE = struct.Struct(">i")


class NotKafka(ValueError):
    """Bytes that are no Kafka request or answer: TLS, for example, which a proxy cannot look
    into."""


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request's header. ``api`` is Kafka's name of the request, such as ``Produce``."""

    api: str
    version: int
    correlation_id: int
    client_id: str

    @classmethod
    def parse(cls, prefix: bytes) -> RequestHead:
        """Read the first bytes of a request, its size left out. :raises NotKafka: too short to be
        one."""
        try:
            key, version, correlation_id, length = _HEADER.unpack_from(prefix)
        except struct.error as error:
            raise NotKafka(f"a request of {len(prefix)} bytes") from error
        end = _HEADER.size + max(0, length)
        if key < 0 or end > len(prefix):
            raise NotKafka(f"api key {key}, client id of {length} bytes in {len(prefix)}")
        client_id = prefix[_HEADER.size : end].decode(errors="replace")
        return cls(api_name(key), version, correlation_id, client_id)


def api_name(key: int) -> str:
    """Return Kafka's name of an api key; ``Api68`` for one that kafka-python does not know."""
    return _api_names().get(key, f"Api{key}")


def api_names() -> frozenset[str]:
    """Return every name that :func:`api_name` may give, but for those of unknown keys."""
    return frozenset(_api_names().values())


@functools.cache
def _api_names() -> dict[int, str]:
    # Not at the top: pytest loads this package wherever Onceward is installed.
    from kafka.protocol.api_key import ApiKey

    return {int(key): key.name for key in ApiKey}


def correlation_id(prefix: bytes) -> int:
    """Return the number of the request that an answer belongs to. :raises NotKafka: it is too
    short."""
    if len(prefix) < _SIZE.size:
        raise NotKafka(f"an answer of {len(prefix)} bytes")
    number: int = _SIZE.unpack_from(prefix)[0]
    return number


class KafkaFrame:
    """One frame on its way: its first bytes at once, the rest as it comes.

    Each frame must be read to its end.
    """

    def __init__(self, size: int, prefix: bytes, reader: asyncio.StreamReader) -> None:
        self.size = size
        self.prefix = prefix
        self._reader = reader

    @classmethod
    async def read(cls, reader: asyncio.StreamReader) -> KafkaFrame:
        """Read the next one. :raises asyncio.IncompleteReadError: the sender has closed. :raises
        NotKafka: …"""
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        if not _SIZE.size <= size <= LARGEST_FRAME_BYTES:
            raise NotKafka(f"a frame of {size} bytes")
        return cls(size, await reader.readexactly(min(size, PREFIX_BYTES)), reader)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the whole frame, size included, in pieces."""
        yield _SIZE.pack(self.size) + self.prefix
        left = self.size - len(self.prefix)
        while left:
            chunk = await self._reader.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(chunk)
            yield chunk

    async def whole(self) -> bytes:
        """Return the bytes of the whole frame, size included."""
        return b"".join([chunk async for chunk in self.chunks()])

    async def discard(self) -> None:
        """Read it to its end, for nothing."""
        async for _ in self.chunks():
            pass


_Key = tuple[str, str, int]


@dataclass(frozen=True)
class Mark:
    """A moment, made by :meth:`KafkaProxy.mark`."""

    passed: Counter[_Key]


class RequestCounter:
    """Thread safe: the proxy's thread counts, the test's asks."""

    def __init__(self) -> None:
        self._passed: Counter[_Key] = Counter()
        self._lock = threading.Lock()

    def add(self, node: int, head: RequestHead) -> None:
        with self._lock:
            self._passed[head.api, head.client_id, node] += 1

    def mark(self) -> Mark:
        with self._lock:
            return Mark(self._passed.copy())

    def since(self, mark: Mark | None) -> PassedRequests:
        passed = self.mark().passed
        if mark is not None:
            passed -= mark.passed
        return PassedRequests(passed)


class PassedRequests:
    """The requests that were passed on to brokers between two moments.

    A duplicated request counts once.
    """

    def __init__(self, passed: Counter[_Key]) -> None:
        self._passed = passed

    def count(self, api: str, *, client_id: str | None = None, node: int | None = None) -> int:
        """Return how many of them are ``api`` (``"Produce"``), of clients whose id matches (``*``,
        ``?``), to ``node``."""
        return sum(
            times
            for (name, client, to), times in self._passed.items()
            if name == api
            and (client_id is None or fnmatchcase(client, client_id))
            and node in (None, to)
        )

    def client_ids(self, api: str) -> frozenset[str]:
        """Return the ids of the clients that asked for ``api``."""
        return frozenset(client for name, client, _ in self._passed if name == api)
