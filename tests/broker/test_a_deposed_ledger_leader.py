"""A ledger leader that is cut off from the controllers, and not from clients, answers a restart's
read of the ledger.

Three nodes whose controllers talk through forwarders. Node 1 leads the ledger and is cut off: the
others elect another leader, under which a batch is committed; node 1 does not hear of it, and says
so to whoever asks. The one test of this on brokers as they are; the cheaper ones cut a client's
answers short (``deposed_leader``).
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import fault_table
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import LedgerOutdated
from onceward.ids import TopicPartition
from onceward.kafka.sink.sink import KafkaTarget
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.reads.offsets import LATEST, bounds_at_newest_leaders, list_offsets
from onceward.kafka.wire.transactions.transaction import Transaction
from onceward_testing import LocalKafka
from onceward_testing.kafka_node import KafkaNode
from support.ledger_driver import Driver
from support.wire_fixtures import settings

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(600)]

ELECTION_SECONDS = 120


class Network:
    """What the controllers reach each other by; node 1 can be parted from the others."""

    def __init__(self) -> None:
        self.parted = False
        self.first_pid = 0
        self.ports: dict[int, int] = {}
        self._pairs: list[tuple[socket.socket, socket.socket, bool]] = []
        self._servers: list[socket.socket] = []

    def forward(self, node: int, port: int) -> None:
        server = socket.create_server(("127.0.0.1", 0))
        self._servers.append(server)
        self.ports[node] = server.getsockname()[1]
        threading.Thread(target=self._serve, args=(server, node, port), daemon=True).start()

    def _serve(self, server: socket.socket, node: int, port: int) -> None:
        while True:
            try:
                caller, address = server.accept()
            except OSError:
                return
            of_first = node == 1 or (
                self.first_pid != 0 and _belongs_to(self.first_pid, address[1])
            )
            try:
                if self.parted and of_first:
                    raise OSError("parted")
                called = socket.create_connection(("127.0.0.1", port))
            except OSError:
                caller.close()
                continue
            self._pairs.append((caller, called, node == 1))
            for source, sink in ((caller, called), (called, caller)):
                threading.Thread(target=_pump, args=(source, sink), daemon=True).start()

    def part(self) -> None:
        self.parted = True
        for caller, called, to_first in self._pairs:
            with contextlib.suppress(OSError):  # gone already
                if to_first or _belongs_to(self.first_pid, caller.getpeername()[1]):
                    _hang_up(caller, called)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for caller, called, _ in self._pairs:
            _hang_up(caller, called)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    _hang_up(source, sink)


def _hang_up(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _belongs_to(pid: int, port: int) -> bool:
    """Does the process hold a TCP socket with this local port?"""
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                part = line.split()
                if int(part[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(f"socket:[{part[9]}]")
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}") in inodes:
                return True
    return False


class PartedKafka(LocalKafka):
    """Three nodes whose controllers know each other by the network's ports."""

    def __init__(self, network: Network, **options: Any) -> None:
        super().__init__(nodes=3, **options)
        self._network = network

    def _make_node(self, node_id: int, java_command: Any) -> KafkaNode:
        if not self._network.ports:
            for number, ports in enumerate(self._ports, start=1):
                self._network.forward(number, ports.controller)
        node = super()._make_node(node_id, java_command)
        known = self._network.ports
        node._properties["controller.quorum.voters"] = ",".join(
            f"{n}@127.0.0.1:{port}" for n, port in known.items()
        )
        node._properties["advertised.listeners"] += f",CONTROLLER://127.0.0.1:{known[node_id]}"
        return node


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def cannot_reach_the_first(client: KafkaClient) -> None:
    """As on the other side of the parted network."""
    submit = client._connections.submit

    def without(request: Any, node_id: int | str, timeout_ms: float) -> Future[Any]:
        if node_id != 1:
            return submit(request, node_id, timeout_ms)
        lost: Future[Any] = Future()
        lost.set_exception(ConnectionLost("no route to node 1"))
        return lost

    client._connections.submit = without  # type: ignore[method-assign]


def leader(client: KafkaClient, topic: str) -> int:
    return client.topic_partitions([topic], timeout_ms=5_000)[topic][0]


@pytest.mark.skipif(
    not os.path.isdir("/proc/net"), reason="whose connection it is stands in /proc"
)
@pytest.mark.fault("ledger-leader-deposed")
def test_a_deposed_leaders_word_commits_nothing(
    network: Network, new_topic: Any, read_committed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = {"broker.session.timeout.ms": 4000, "broker.heartbeat.interval.ms": 1000}
    with PartedKafka(network, heap_mb=256, properties=fast) as kafka:
        network.first_pid = kafka.nodes[0].pid or 0
        first, *others = (node.bootstrap_server for node in kafka.nodes)
        driver = Driver(kafka, new_topic, read_committed)
        driver.bootstrap = ",".join(others)
        driver.ledger_topic = f"ledger-{uuid.uuid4().hex[:10]}"
        admin = AdminClient({"bootstrap.servers": driver.bootstrap})
        first_leads = {"num_partitions": 1, "replica_assignment": [[1, 2, 3]]}
        ledger = NewTopic(driver.ledger_topic, config={"cleanup.policy": "compact"}, **first_leads)
        source = TopicPartition(f"source-{uuid.uuid4().hex[:10]}", 0)
        made = admin.create_topics([ledger, NewTopic(source.topic, **first_leads)])
        for done in made.values():
            done.result(30)
        probe = KafkaClient(settings(driver.bootstrap)[0])
        while leader(probe, driver.ledger_topic) != 1:
            time.sleep(0.2)
        while (
            probe.coordinator(driver.name, "transaction") == 1
        ):  # a coordinator that is cut off would be in the way
            driver.name = type(driver.name)(f"driver-{uuid.uuid4().hex[:10]}")
        old = driver.new()
        old.open(away(driver, 0))
        first_record = commit(driver, old, 0)
        assert driver.committed_sequences() == [0]

        network.part()
        cannot_reach_the_first(probe)
        cannot_reach_the_first(old.run.client)
        deadline = time.monotonic() + ELECTION_SECONDS
        while leader(probe, driver.ledger_topic) in (1, -1):
            fault_table.fired(time.monotonic() < deadline, "nobody else was elected")
            time.sleep(0.3)
        commit(driver, old, 1, first_record)
        producer = Producer({"bootstrap.servers": driver.bootstrap})
        for _ in range(5):
            producer.produce(source.topic, b"for the new leader", partition=0)
        assert producer.flush(60) == 0
        asking = KafkaClient(settings(first)[0])
        bounds = bounds_at_newest_leaders(asking, [source])
        fault_table.fired(list_offsets(asking, [source], LATEST) == {source: 0}, "as above")
        assert bounds == {source: (0, 5)}, "what Spark would take for lost is there"
        asking.close()

        driver.bootstrap = first
        # The coordinator, which is asked for markers, knows better, and a start reads where it says
        with_news = driver.new().open(away(driver, 1))
        assert with_news is not None
        assert with_news.sequence == 1
        heir = driver.new()
        with monkeypatch.context() as without_news:
            without_news.setattr(Transaction, "end_what_hangs", lambda self, ledger: None)
            without_news.setattr(Transaction, "end_what_was_aborted", lambda self, ledger: None)
            # Nor does it ask the coordinator's broker who leads, to which it is connected by then
            connections = heir.run.client._connections
            without_news.setattr(connections, "nodes", lambda: ("bootstrap-0",))
            newest = heir.open(away(driver, 1))
        fault_table.fired(newest is not None and newest.sequence == 0, "node 1 knows better")
        network.parted = False
        attempt = heir.begin(newest, away(driver, 1))
        record = driver.record(1, attempt.id)
        with pytest.raises(LedgerOutdated):
            attempt.stage(record, away(driver, 1))
        attempt.abort()
        driver.bootstrap = ",".join(others)
        assert driver.committed_sequences() == [0, 1]
        again = driver.new().open(away(driver, 1))
        assert again is not None
        assert again.batch == record.batch
        driver.close()
        probe.close()


def away(driver: Driver, number: int) -> Any:
    """A batch whose source lies on another cluster, so that no consumer group betrays an outdated
    ledger.
    """
    return replace(driver.running(number), kafka_sources=())


def commit(
    driver: Driver, target: KafkaTarget, number: int, newest: LedgerRecord | None = None
) -> LedgerRecord:
    attempt = target.begin(newest, away(driver, number))
    attempt.stage(driver.record(number, attempt.id), away(driver, number))
    attempt.commit()
    return attempt.record
