"""The three brokers: kept on disk, broken one at a time, brought back, and never two gone at once
for good.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from onceward.errors import OncewardError
from onceward_testing import LocalKafka
from onceward_testing.kafka_node import KafkaNode

from .plan import Fault
from .workload import COPY_PIPELINE, LEDGER, OUTPUT_PARTITIONS, SOURCE, SOURCE_PARTITIONS

_PROPERTIES = {
    # How long a killed broker's partitions stand still. Shorter, and a busy machine loses living
    # brokers.
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "10000",
    "num.replica.fetchers": "1",
    "log.cleaner.enable": "true",
}
_LEDGER_PARTITIONS = 4
_A_YEAR_MS = 365 * 86_400_000
_HEALING_SECONDS = 180


class Cluster:
    """Three nodes in ``folder``. Faults return at once; what they break is brought back by a
    thread.
    """

    def __init__(self, folder: Path) -> None:
        self.kafka = LocalKafka(
            nodes=3,
            folder=folder,
            properties=_PROPERTIES,
            heap_mb=320,
            jvm_options=(
                "-XX:TieredStopAtLevel=1",
                "-XX:+UnlockDiagnosticVMOptions",
                "-XX:-BytecodeVerificationRemote",
            ),
            log_dir=folder / "logs",
        )
        self.ended_by_themselves = 0
        self._repair: threading.Thread | None = None
        self.late_starts = 0

    def __enter__(self) -> Cluster:
        self.kafka.start()
        self._admin = AdminClient(
            {"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0}
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka.stop()

    @property
    def servers(self) -> str:
        return self.kafka.bootstrap_servers

    def make_topics(self) -> None:
        """Those that are missing. The ledger keeps its history here, because the verdict wants all
        of it.
        """
        existing = self._admin.list_topics(timeout=60).topics
        keep = {"retention.ms": "-1"}
        wanted = [NewTopic(SOURCE, SOURCE_PARTITIONS, config=keep)]
        wanted += [
            NewTopic(topic, partitions, config=keep)
            for topic, partitions in OUTPUT_PARTITIONS.items()
        ]
        history = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(_A_YEAR_MS)}
        wanted.append(NewTopic(LEDGER, _LEDGER_PARTITIONS, config=history))
        missing = [topic for topic in wanted if topic.topic not in existing]
        for made in self._admin.create_topics(missing).values() if missing else ():
            made.result(60)

    def healed(self) -> bool:
        """Whether all three serve and every partition has all its replicas in sync."""
        if self._repair is not None and self._repair.is_alive():
            return False
        for node in self.kafka.nodes:
            if not node.running:
                self.ended_by_themselves += 1
                self._repairing(node.start)
                return False
        try:
            found = self._admin.list_topics(timeout=5)
        except KafkaException:
            return False
        partitions = [p for topic in found.topics.values() for p in topic.partitions.values()]
        return len(found.brokers) == 3 and all(
            len(p.isrs) == len(p.replicas) == 3 for p in partitions
        )

    def heals(self) -> bool:
        """Wait until they are healed; False if that takes too long."""
        deadline = time.monotonic() + _HEALING_SECONDS
        while not self.healed():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.5)
        return True

    def must_heal(self) -> None:
        if not self.heals():
            raise RuntimeError(
                f"the brokers did not come up within {_HEALING_SECONDS} s; see their logs"
            )

    def victim(self, fault: Fault) -> KafkaNode:
        """The node that ``fault`` means at this moment."""
        nodes = self.kafka.nodes
        wanted = {"controller": self._controller, "coordinator": self._coordinator}.get(
            fault.target, lambda: None
        )()
        return next(
            (node for node in nodes if node.node_id == wanted), nodes[fault.victim % len(nodes)]
        )

    def break_(self, node: KafkaNode, fault: Fault) -> None:
        """Carry ``fault`` out on ``node``, and bring the node back after a while."""
        if fault.kind == "kill-broker":
            node.kill()
            self._repairing(node.start, after_s=fault.lasts_s)
        elif fault.kind == "stop-broker":
            node.suspend()
            self._repairing(node.resume, after_s=fault.lasts_s)
        else:
            self._repairing(node.restart)

    def _repairing(self, work: Callable[[], None], after_s: float = 0) -> None:
        def repair() -> None:
            time.sleep(after_s)
            try:
                work()
            except OncewardError:
                self.late_starts += 1  # whether they all serve, `healed` asks anyway

        self._repair = threading.Thread(target=repair, name="repair", daemon=True)
        self._repair.start()

    def _controller(self) -> int | None:
        """As the nodes wrote it down: clients are only told of some broker."""
        newest = (-1, None)
        for node in self.kafka.nodes:
            with contextlib.suppress(OSError, ValueError):
                told = json.loads(
                    (node.data_folder / "__cluster_metadata-0" / "quorum-state").read_text()
                )
                if told["leaderId"] >= 0:
                    newest = max(
                        newest, (told["leaderEpoch"], told["leaderId"]), key=lambda pair: pair[0]
                    )
        return newest[1]

    def _coordinator(self) -> int | None:
        """The node that leads the transactions of the first pipeline."""
        with contextlib.suppress(KafkaException):
            partitions = (
                self._admin.list_topics(timeout=5).topics["__transaction_state"].partitions
            )
            return partitions[_java_hash(COPY_PIPELINE) % len(partitions)].leader
        return None


def _java_hash(text: str) -> int:
    """``String.hashCode`` without its sign, by which Kafka places a transactional id."""
    value = 0
    for character in text:
        value = (31 * value + ord(character)) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
