"""A broker that is to have a port does not share it: whoever listens there may be another
Kafka.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from onceward.errors import ResourceError
from onceward_testing import LocalKafka
from onceward_testing.free_ports import taken_ports
from support.errors import raises


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_a_port_that_is_taken_is_named_before_anything_is_started(listener: socket.socket):
    port = listener.getsockname()[1]
    with raises(ResourceError) as caught:
        LocalKafka(ports=[port]).start()
    assert caught.value.details == {"ports": [port]}


def test_a_port_whose_listener_has_ended_is_free_at_once(listener: socket.socket):
    port = listener.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = listener.accept()
        accepted.close()  # first, so that its end of the connection lingers
    listener.close()
    assert taken_ports([port]) == []
