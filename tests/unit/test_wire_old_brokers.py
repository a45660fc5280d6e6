"""A broker before 2.5: what it cannot do is said by name, before anything is written.

Such a broker does not run beside the others of the tests. A socket stands in for it, which says what Kafka 2.4 says:
the versions that it speaks (``ApiVersions`` v0), itself (``Metadata`` v7) and that it is the coordinator
(``FindCoordinator`` v1). Of these two a real one speaks newer versions as well.
"""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator

import pytest

from onceward.errors import UnsupportedBroker
from onceward.wire.client import KafkaClient
from wire_fixtures import Writer, settings

API_VERSIONS, METADATA, FIND_COORDINATOR, INIT_PRODUCER_ID = 18, 3, 10, 22
SPOKEN = {0: (0, 8), METADATA: (7, 7), FIND_COORDINATOR: (1, 1), API_VERSIONS: (0, 0), INIT_PRODUCER_ID: (0, 2)}
UNSUPPORTED_VERSION = 35


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


class OldBroker(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.asked: list[int] = []

    def answer(self, api: int, version: int) -> bytes:
        host, port = self.server_address
        self.asked.append(api)
        if api == API_VERSIONS:
            spoken = b"".join(struct.pack(">hhh", key, *versions) for key, versions in SPOKEN.items())
            return struct.pack(">hi", UNSUPPORTED_VERSION if version else 0, len(SPOKEN)) + spoken
        if api == METADATA:
            broker = struct.pack(">ii", 1, 1) + text(str(host)) + struct.pack(">ih", port, -1)
            return struct.pack(">i", 0) + broker + text("old-cluster") + struct.pack(">ii", 1, 0)
        assert api == FIND_COORDINATOR, api
        return struct.pack(">ihhi", 0, 0, -1, 1) + text(str(host)) + struct.pack(">i", port)


class Conversation(socketserver.StreamRequestHandler):
    server: OldBroker

    def handle(self) -> None:
        while len(size := self.rfile.read(4)) == 4:
            request = self.rfile.read(struct.unpack(">i", size)[0])
            api, version, correlation = struct.unpack(">hhi", request[:8])
            answer = struct.pack(">i", correlation) + self.server.answer(api, version)
            self.wfile.write(struct.pack(">i", len(answer)) + answer)


@pytest.fixture
def old_broker() -> Iterator[OldBroker]:
    with OldBroker() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_broker_that_cannot_tell_a_takeover_by_epoch_is_refused_by_name(old_broker: OldBroker) -> None:
    """``InitProducerId`` before version 3 (KIP-360, Kafka 2.5) does not say whose epoch is to be raised."""
    host, port = old_broker.server_address
    client = KafkaClient(settings(f"{host}:{port}")[0])
    try:
        with pytest.raises(UnsupportedBroker) as refused:
            Writer(client, "pipeline").transaction.take_over()
    finally:
        client.close()
    assert "InitProducerId" in refused.value.message
    assert "2.5" in refused.value.next_step
    assert INIT_PRODUCER_ID not in old_broker.asked
