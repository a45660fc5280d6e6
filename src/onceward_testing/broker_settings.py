"""Settings of a local cluster's brokers, and what a kept folder says of the cluster in it.

The brokers are small, quick to start, and strict where a test must not be fooled. Called by
:mod:`onceward_testing.local_kafka`.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from onceward.errors import ConfigurationError

_HOST = "127.0.0.1"


@dataclass(frozen=True)
class NodePorts:
    """The TCP ports of one node."""

    clients: int
    controller: int
    extra: Mapping[str, int] = field(default_factory=dict)
    """Listener name → port, for the listeners a test asked for beside the plaintext one."""


def broker_properties(
    node_id: int,
    all_ports: Sequence[NodePorts],
    extra_listeners: Mapping[str, str],
    chosen: Mapping[str, object],
    advertised: Mapping[str, int] | None = None,
) -> dict[str, str]:
    """Return ``server.properties`` of node ``node_id`` (ids count from 1), but for ``log.dirs``.

    :param all_ports: the ports of every node, in the order of their ids.
    :param extra_listeners: listener name → security protocol.
    :param chosen: the caller's own settings; they win over everything here.
    :param advertised: listener name → the port that clients are told, where it is not the broker's
        own: a proxy's.
    """
    properties = (
        _listeners(node_id, all_ports, extra_listeners, advertised or {})
        | _replication(len(all_ports))
        | _SMALL_AND_QUICK
    )
    return properties | {name: _text(value) for name, value in chosen.items()}


_SMALL_AND_QUICK = {
    # A misspelt topic must be an error, as on a well-kept cluster.
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    # After kill -9 a node may register again only when its old session has ended
    # (broker.session.timeout.ms, 9 s): a longer session would spare starved brokers a fencing, but
    # every restart would have to wait for it.
    "initial.broker.registration.timeout.ms": "120000",
    "num.io.threads": "4",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "log.cleaner.dedupe.buffer.size": str(
        8 << 20
    ),  # the default of 128 MiB would be a third of the heap
}


def _listeners(
    node_id: int,
    all_ports: Sequence[NodePorts],
    extra_listeners: Mapping[str, str],
    advertised: Mapping[str, int],
) -> dict[str, str]:
    mine = all_ports[node_id - 1]
    for_clients = {
        "PLAINTEXT": mine.clients,
        **{name: mine.extra[name] for name in extra_listeners},
    }
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **extra_listeners}
    voters = (
        f"{voter}@{_HOST}:{ports.controller}" for voter, ports in enumerate(all_ports, start=1)
    )
    return {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(voters),
        "controller.listener.names": "CONTROLLER",
        "listeners": _urls({**for_clients, "CONTROLLER": mine.controller}),
        "advertised.listeners": _urls({**for_clients, **advertised}),
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in protocols.items()
        ),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _urls(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{_HOST}:{port}" for name, port in ports.items())


def _replication(node_count: int) -> dict[str, str]:
    """Return settings by which three nodes behave like a production cluster (every topic 3
    replicas, 2 in sync); one node does what it can."""
    replicas, in_sync = (str(node_count), "2") if node_count >= 3 else ("1", "1")
    internal_topics = ("transaction.state.log", "share.coordinator.state.topic")
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        **{f"{topic}.replication.factor": replicas for topic in internal_topics},
        **{f"{topic}.min.isr": in_sync for topic in internal_topics},
    }


def new_cluster_id() -> str:
    """Return a random id in Kafka's form: 16 bytes in URL-safe base64 without padding, not
    beginning with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        continue
    return text


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_FILE = "cluster.json"


@dataclass(frozen=True)
class StoredCluster:
    """One file in the folder, written before the data are."""

    cluster_id: str
    version: str
    ports: list[NodePorts]

    def write(self, folder: Path) -> None:
        """Write it into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{_FILE}.new"
        unfinished.write_text(json.dumps(asdict(self)))
        unfinished.replace(folder / _FILE)

    def resolve(self, folder: Path) -> StoredCluster:
        """Return the cluster whose data ``folder`` holds, otherwise this new one.

        :raises ConfigurationError: it holds another kind than is asked for.
        """
        path = folder / _FILE
        if not path.exists():
            return self
        stored = json.loads(path.read_text())
        cluster = StoredCluster(
            stored["cluster_id"],
            stored["version"],
            [NodePorts(**ports) for ports in stored["ports"]],
        )
        if (cluster.version, len(cluster.ports)) != (self.version, len(self.ports)):
            raise ConfigurationError(
                f"{folder} holds {len(cluster.ports)} node(s) of Kafka {cluster.version}, "
                f"not {len(self.ports)} of {self.version}",
                next_step="start LocalKafka with these, or name another folder",
            )
        return cluster
