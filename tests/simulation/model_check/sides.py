"""The two that answer: the model, and real brokers."""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import TopicPartition as Where
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.metadata import FindCoordinatorRequest

from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.options.settings import ClientSettings
from onceward_testing import LocalKafka
from simulation.world.kafka.cluster import Cluster
from simulation.world.kafka.settings import ClusterSettings

_LAGS = {"markers": 5.0, "session": 9_000.0, "catch up": 50.0, "expire": 150.0}


class PlainSurroundings:
    """Time that passes when somebody waits, and no faults."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.lags = dict(_LAGS)

    def now_ms(self) -> int:
        return int(self.now)

    def later(self, delay_ms: float, action: Callable[[], None], what: str) -> None:
        self._order += 1
        heapq.heappush(self._heap, (self.now + delay_ms, self._order, action))

    def lag(self, what: str) -> float:
        return self.lags.get(what, 0.0)

    def fires(self, fault: str) -> bool:
        return False

    def is_on(self, fault: str) -> bool:
        return fault.removeprefix("lag:") in self.lags

    def step(self) -> bool:
        """The next thing that is due, if there is one."""
        if not self._heap:
            return False
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        action()
        return True

    def let_pass(self, ms: float) -> None:
        until = self.now + ms
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = until


class ModelSide:
    """The model, as the brokers of the tests are configured."""

    def __init__(self, version: str, transaction_version: int, nodes: int = 1) -> None:
        self.version, self.transaction_version, self.nodes = version, transaction_version, nodes
        self.around = PlainSurroundings()
        settings = ClusterSettings(version=version)
        self.cluster = Cluster(
            self.around, brokers=nodes, transaction_version=transaction_version, settings=settings
        )

    def ask(self, request: Any, where: tuple[str, Any]) -> Any:
        node = self._node(*where)
        if node is None:
            return None
        answers: list[Any] = []
        self.cluster.receive(node, "check", request, answers.append)
        while not answers and self.around.step():
            pass
        assert answers, f"{type(request).__name__} is never answered"
        return answers[0]

    def _node(self, kind: str, what: Any) -> int | None:
        if kind == "leader":
            node = self.known_leader(*what)
        elif kind in ("coordinator", "group"):
            node = self.coordinator_of("transaction" if kind == "coordinator" else "group", what)
        else:
            node = (
                what
                if kind == "node"
                else next(n for n, b in self.cluster.brokers.items() if b.up)
            )
        return None if node < 0 else node

    def coordinator_of(self, kind: str, key: str) -> int:
        home = (
            self.cluster.home_of(key) if kind == "transaction" else self.cluster.group_home_of(key)
        )
        return home.leader

    def now_ms(self) -> int:
        return self.around.now_ms()

    def pause(self, ms: float) -> None:
        self.around.let_pass(ms)

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        self.cluster.create_topic(name, partitions, settings=settings)

    def delete_topic(self, name: str) -> None:
        self.cluster.delete_topic(name)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self.cluster.partitions[topic, partition].log.forget_before(before)

    def known_leader(self, topic: str, partition: int) -> int:
        found = self.cluster.partitions.get((topic, partition))
        return self.cluster.node_ids[0] if found is None else found.leader

    def stop_node(self, node: int) -> None:
        self.cluster.crash(node)

    def start_node(self, node: int) -> None:
        self.cluster.restart(node)

    def wait_for_isr(self, topic: str, partition: int, count: int) -> None:
        for _ in range(1_000):
            found = self.cluster.partitions[topic, partition]
            if len(found.isr) == count and found.leader >= 0:
                return
            self.pause(50)
        raise AssertionError("the in-sync replicas do not change")


class RealSide:
    """Brokers on this machine, through Onceward's own client."""

    def __init__(self, kafka: LocalKafka, version: str, transaction_version: int) -> None:
        self.version, self.transaction_version, self.nodes = (
            version,
            transaction_version,
            len(kafka.nodes),
        )
        self.kafka = kafka
        servers = tuple(kafka.bootstrap_servers.split(","))
        self.client = KafkaClient(ClientSettings(servers, request_timeout_ms=60_000))
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def close(self) -> None:
        self.client.close()

    def ask(self, request: Any, where: tuple[str, Any]) -> Any:
        try:
            return self._ask(request, *where)
        except ConnectionLost:
            self.client.forget_leaders([what[0]] if isinstance(what := where[1], tuple) else [])
            return None

    def _ask(self, request: Any, kind: str, what: Any) -> Any:
        if kind == "any":
            return self.client.call_any(request)
        node = what
        if kind == "leader":
            node = self.known_leader(*what)
        elif kind in ("coordinator", "group"):
            node = self.coordinator_of("transaction" if kind == "coordinator" else "group", what)
        return None if node < 0 else self.client.call(request, node)

    def coordinator_of(self, kind: str, key: str) -> int:
        request = FindCoordinatorRequest(
            key=key, key_type=int(kind == "transaction"), coordinator_keys=[key], max_version=5
        )
        found = self.client.call_any(request).coordinators[0]
        if found.error_code == 0 and found.node_id not in self.client.brokers():
            self.client.topic_names()
        return int(found.node_id) if found.error_code == 0 else -1

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    def pause(self, ms: float) -> None:
        time.sleep(ms / 1000)

    def make_topic(self, name: str, partitions: int, settings: dict[str, str]) -> None:
        self.admin.create_topics([NewTopic(name, num_partitions=partitions, config=settings)])[
            name
        ].result(30)

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(30)
        self.client.forget_leaders([name])
        time.sleep(1)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        for future in self.admin.delete_records([Where(topic, partition, before)]).values():
            future.result(30)

    def known_leader(self, topic: str, partition: int) -> int:
        with contextlib.suppress(Exception):
            found = self.client.topic_partitions([topic], timeout_ms=5_000)[topic]
            return found[partition] if partition in found else self.client.brokers()[0]
        return self.client.brokers()[0]

    def stop_node(self, node: int) -> None:
        self.kafka.nodes[node - 1].kill()

    def start_node(self, node: int) -> None:
        self.kafka.nodes[node - 1].start()

    def wait_for_isr(self, topic: str, partition: int, count: int) -> None:
        for _ in range(1_200):
            found = self.admin.list_topics(topic, timeout=30).topics[topic].partitions[partition]
            if len(found.isrs) == count and found.leader >= 0:
                time.sleep(0.5)
                return
            time.sleep(0.1)
        raise AssertionError("the in-sync replicas do not change")
