"""The parts of LocalKafka that need no broker: settings, ports, the Metadata probe, names of
tools.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from onceward.errors import ConfigurationError, ResourceError
from onceward_testing import LocalKafka
from onceward_testing.broker_settings import NodePorts, broker_properties, new_cluster_id
from onceward_testing.free_ports import free_ports
from onceward_testing.kafka_node import _escaped, brokers_seen_by
from support.errors import raises

THREE = [NodePorts(9001, 9101), NodePorts(9002, 9102), NodePorts(9003, 9103)]


def test_three_nodes_know_each_other_and_keep_three_replicas():
    second = broker_properties(2, THREE, {}, {})
    assert second["node.id"] == "2"
    assert (
        second["controller.quorum.voters"] == "1@127.0.0.1:9101,2@127.0.0.1:9102,3@127.0.0.1:9103"
    )
    assert second["listeners"] == "PLAINTEXT://127.0.0.1:9002,CONTROLLER://127.0.0.1:9102"
    assert second["transaction.state.log.replication.factor"] == "3"
    assert second["min.insync.replicas"] == "2"


def test_one_node_asks_for_one_replica():
    alone = broker_properties(1, THREE[:1], {}, {})
    assert alone["offsets.topic.replication.factor"] == "1"
    assert alone["transaction.state.log.min.isr"] == "1"


def test_the_callers_settings_win_and_are_written_as_kafka_reads_them():
    chosen = broker_properties(
        1, THREE[:1], {}, {"auto.create.topics.enable": True, "num.partitions": 7}
    )
    assert (chosen["auto.create.topics.enable"], chosen["num.partitions"]) == ("true", "7")


def test_an_extra_listener_is_advertised_with_its_protocol():
    ports = [NodePorts(9001, 9101, {"SECURE": 9201})]
    properties = broker_properties(1, ports, {"SECURE": "SASL_PLAINTEXT"}, {})
    assert (
        properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9001,SECURE://127.0.0.1:9201"
    )
    assert "SECURE:SASL_PLAINTEXT" in properties["listener.security.protocol.map"].split(",")
    assert properties["inter.broker.listener.name"] == "PLAINTEXT"


def test_a_proxied_listener_is_advertised_where_the_proxy_listens_and_brokers_talk_directly():
    ports = [NodePorts(9001, 9101, {"PROXIED": 9201})]
    properties = broker_properties(1, ports, {"PROXIED": "PLAINTEXT"}, {}, {"PROXIED": 9301})
    assert properties["listeners"] == (
        "PLAINTEXT://127.0.0.1:9001,PROXIED://127.0.0.1:9201,CONTROLLER://127.0.0.1:9101"
    )
    assert (
        properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9001,PROXIED://127.0.0.1:9301"
    )
    assert properties["inter.broker.listener.name"] == "PLAINTEXT"


def test_backslashes_survive_the_properties_file():
    assert _escaped("CN=(.*)\\.example") == "CN=(.*)\\\\.example"


def test_cluster_ids_are_uuids_in_kafkas_form():
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(text) == 22 and not text.startswith("-") for text in ids)


def test_free_ports_are_different_bindable_and_below_the_ephemeral_range():
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert all(15_000 <= port < 32_768 for port in ports)


def test_a_port_in_use_is_not_offered(monkeypatch: pytest.MonkeyPatch):
    class SamePortFirst:
        def __init__(self) -> None:
            self.offers: Iterator[int] = iter([])

        def randint(self, low: int, high: int) -> int:
            return next(self.offers)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        chooser = SamePortFirst()
        (free,) = free_ports(1)
        chooser.offers = iter([taken.getsockname()[1], free])
        monkeypatch.setattr("onceward_testing.free_ports.random.SystemRandom", lambda: chooser)
        assert free_ports(1) == [free]


def answering(answer: bytes) -> int:
    """A server that answers one connection with these bytes; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection:
            connection.recv(1000)
            connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def metadata_answer(*node_ids: int, rack: bytes | None = None) -> bytes:
    """As in MetadataResponse.json, version 1."""
    body = struct.pack(">ii", 1, len(node_ids))
    for node_id in node_ids:
        body += struct.pack(">ih9si", node_id, 9, b"127.0.0.1", 9092)
        body += (
            struct.pack(">h", -1)
            if rack is None
            else struct.pack(f">h{len(rack)}s", len(rack), rack)
        )
    body += struct.pack(">ii", node_ids[0] if node_ids else -1, 0)
    return struct.pack(">i", len(body)) + body


@pytest.mark.parametrize("rack", [None, b"", b"rack-7"])
def test_the_probe_reads_every_broker(rack: bytes | None):
    assert brokers_seen_by("127.0.0.1", answering(metadata_answer(1, 2, 3, rack=rack))) == {
        1,
        2,
        3,
    }


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", 2**31 - 1),
        metadata_answer(1, 2)[:-20],
        struct.pack(">iii", 8, 1, 1000),
    ],
)
def test_the_probe_takes_nonsense_for_no_answer(answer: bytes):
    with pytest.raises(OSError):  # noqa: PT011  any kind of it: the caller tries again
        brokers_seen_by("127.0.0.1", answering(answer))


@pytest.mark.parametrize("wrong", [{"nodes": 2}, {"nodes": 0}, {"nodes": 3, "ports": [19092]}])
def test_impossible_clusters_are_refused_at_once(wrong: dict[str, object]):
    with pytest.raises(ConfigurationError):
        LocalKafka(**wrong)  # type: ignore[arg-type]  the point of the test


def test_a_cluster_that_is_not_running_says_so():
    with raises(ResourceError):
        _ = LocalKafka().bootstrap_servers
