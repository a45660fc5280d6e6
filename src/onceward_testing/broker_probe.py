"""Asks one broker which brokers it sees: the light check that a cluster really serves.

Called by :mod:`onceward_testing.local_kafka` while it waits. It speaks two requests by hand, over
a socket of its own, so that nothing under test has a part in the verdict "the broker is up", and
no client with threads is left behind.

Metadata v1 is the oldest version that names brokers with racks and that Kafka 2.5 to 4.x all still
serve (``MetadataRequest.json``). In KRaft mode a broker lists those that are registered *and
unfenced*, which takes an active controller: an answer that names everyone says that the controller
quorum works too.
"""

from __future__ import annotations

import socket
import struct

_METADATA = 3
_METADATA_VERSION = 1
_CLIENT_ID = b"onceward-probe"
_NO_TOPICS = struct.pack(">i", 0)
_LARGEST_ANSWER_BYTES = 1 << 20


def brokers_seen_by(host: str, port: int, timeout_s: float = 2.0) -> frozenset[int]:
    """Node ids of the brokers that the broker at ``host:port`` knows to be alive.

    :raises OSError: nobody answers there (yet), or the answer makes no sense.
    """
    request = struct.pack(
        f">hhih{len(_CLIENT_ID)}s", _METADATA, _METADATA_VERSION, 1, len(_CLIENT_ID), _CLIENT_ID
    )
    request += _NO_TOPICS
    with socket.create_connection((host, port), timeout=timeout_s) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", _read(connection, 4))
        if not 8 <= size <= _LARGEST_ANSWER_BYTES:
            raise OSError(f"{host}:{port} announces an answer of {size} bytes: not a Kafka broker")
        return _node_ids(_read(connection, size))


def _node_ids(answer: bytes) -> frozenset[int]:
    """From ``correlation_id, [node_id, host, port, rack]…``."""
    try:
        _, count = struct.unpack_from(">ii", answer, 0)
        position, ids = 8, set()
        for _ in range(count):
            node_id, host_bytes = struct.unpack_from(">ih", answer, position)
            position += 6 + host_bytes + 4
            (rack_bytes,) = struct.unpack_from(">h", answer, position)
            position += 2 + max(rack_bytes, 0)
            ids.add(node_id)
    except struct.error as failure:
        raise OSError(f"a Metadata answer that cannot be read: {failure}") from failure
    return frozenset(ids)


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the broker closed the connection")
        parts += part
    return bytes(parts)
