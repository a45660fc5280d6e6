"""A real Apache Kafka for tests and demos: one or three KRaft nodes as plain JVM processes on this
machine.

Used by tests, ``onceward broker`` and ``onceward demo``::

    with LocalKafka(nodes=3) as kafka:
        run_pipeline(kafka.bootstrap_servers)
        kafka.nodes[0].kill()
        print(kafka.kafka_tool("kafka-consumer-groups", "--describe", "--all-groups"))

Nothing is left behind: brokers and their data go with the ``with`` block, at the end of the
interpreter, and also when the Python process that owns them is killed. Data in a ``folder=`` of
your own stay, and serve the next start.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.java import java_executable
from onceward_testing.broker_settings import (
    NodePorts,
    StoredCluster,
    broker_properties,
    new_cluster_id,
)
from onceward_testing.free_ports import free_ports, taken_ports
from onceward_testing.kafka_distribution import NEWEST_VERSION, broker_jvm, class_path, run_tool
from onceward_testing.kafka_node import KafkaNode
from onceward_testing.proxy import KafkaProxy

_PORT_ATTEMPTS = 3
_PROXIED = "PROXIED"


class LocalKafka:
    """A Kafka cluster of its own, from :meth:`start` (or entering a ``with`` block) to
    :meth:`stop`.

    :param nodes: 1, or 3 with every topic (also the internal ones) on 3 replicas of which 2 must
        be in sync.
    :param version: a Kafka release ≥ 3.7; ``"4.3.1"`` (transaction version 2) and ``"3.9.1"``
        (version 1) are tested.
    :param properties: broker settings in Kafka's names; they win over the ones made here.
    :param extra_listeners: listener name → security protocol, such as ``{"SECURE":
        "SASL_PLAINTEXT"}``; ports are chosen here, clients find them by :meth:`servers_on`. What
        the protocol needs goes into ``properties``.
    :param format_arguments: more arguments for ``kafka-storage format``, such as ``("--add-scram",
        "SCRAM-SHA-256=…")`` or ``("--feature", "transaction.version=1")``.
    :param proxied: with a :class:`~onceward_testing.KafkaProxy` before each broker: clients of
        ``proxied_servers`` talk through :attr:`proxy` to all of them, those of
        ``bootstrap_servers`` and the brokers among themselves directly.
    :param ports: the client port of each node; free ones are chosen by default.
    :param heap_mb: the heap of each node in MiB.
    :param jvm_options: more options for each JVM, after ours; ``-XX:TieredStopAtLevel=1`` starts a
        little faster and serves slower.
    :param folder: where the data live and stay, over :meth:`stop` and the owner's death too: the
        next ``LocalKafka`` on this folder goes on with them, on the same ports if these are still
        free. By default a temporary folder that goes at the end.
    :param log_dir: where the brokers' logs stay after the end; by default they go with the data.
    :param log_level: of the brokers' logs: ``error``, ``warn``, ``info`` or ``debug``.
    :param start_timeout_s: how long a start may take, in seconds.
    """

    def __init__(
        self,
        nodes: int = 1,
        version: str = NEWEST_VERSION,
        *,
        properties: Mapping[str, object] | None = None,
        extra_listeners: Mapping[str, str] | None = None,
        format_arguments: Sequence[str] = (),
        proxied: bool = False,
        ports: Sequence[int] | None = None,
        heap_mb: int = 384,
        jvm_options: Sequence[str] = (),
        folder: str | os.PathLike[str] | None = None,
        log_dir: str | os.PathLike[str] | None = None,
        log_level: str = "warn",
        start_timeout_s: float = 120,
    ) -> None:
        if nodes not in (1, 3):
            raise ConfigurationError(
                f"a local Kafka has 1 or 3 nodes, not {nodes}", next_step="choose 1 or 3"
            )
        if ports is not None and len(ports) != nodes:
            raise ConfigurationError(
                f"{len(ports)} ports for {nodes} nodes", next_step="pass one client port per node"
            )
        self.version = version
        self.cluster_id = new_cluster_id()
        self._node_count = nodes
        self._properties = dict(properties or {})
        self._extra_listeners = {
            **(extra_listeners or {}),
            **({_PROXIED: "PLAINTEXT"} if proxied else {}),
        }
        self._format_arguments = tuple(format_arguments)
        self._wanted_ports = ports
        self._jvm_options = (*broker_jvm(heap_mb, log_level), *jvm_options)
        self._own_folder = Path(folder).absolute() if folder is not None else None
        self._log_dir = Path(log_dir) if log_dir is not None else None
        self._start_timeout_s = start_timeout_s
        self._same_ports = ports is None  # until one of them is found taken
        self._owner_pid = 0
        self._folder: Path | None = None
        self._ports: list[NodePorts] = []
        self._nodes: tuple[KafkaNode, ...] = ()
        self._proxy: KafkaProxy | None = None

    @property
    def nodes(self) -> tuple[KafkaNode, ...]:
        """The nodes in the order of their ids (1, 2, 3); empty before :meth:`start` and after
        :meth:`stop`."""
        return self._nodes

    @property
    def bootstrap_servers(self) -> str:
        """``host:port,…`` of the plaintext listeners of all nodes, also of those that are down."""
        return ",".join(node.bootstrap_server for node in self._started_nodes())

    @property
    def proxied_servers(self) -> str:
        """``host:port,…`` of the proxy's listeners, from which everything that a client is told
        leads back to them."""
        return self.proxy.bootstrap_servers

    @property
    def proxy(self) -> KafkaProxy:
        """Return the proxy before the brokers, with ``proxied=True``."""
        self._started_nodes()
        if self._proxy is None:
            raise ConfigurationError(
                "this LocalKafka has no proxy", next_step="start it with proxied=True"
            )
        return self._proxy

    def servers_on(self, listener: str) -> str:
        """Return ``host:port,…`` of the extra listener ``listener``."""
        self._started_nodes()
        if listener not in self._extra_listeners:
            raise ConfigurationError(
                f"no listener {listener!r}", next_step="name it in extra_listeners"
            )
        return ",".join(f"127.0.0.1:{ports.extra[listener]}" for ports in self._ports)

    def start(self) -> LocalKafka:
        """Start all nodes, and return once every one serves: each one's metadata name all nodes,
        which takes a controller quorum.

        The first use of a version resolves its jars. Does nothing when started already.

        :raises ResourceError: a node did not come up; the message holds the end of its log.
        """
        if self._nodes:
            return self
        self._owner_pid = os.getpid()
        atexit.register(self.stop)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._start_once()
                break
            except BaseException:
                port_taken = any(
                    "Address already in use" in node.log_tail() for node in self._nodes
                )
                self.stop()
                # Between choosing a free port and binding it, anybody may take it: choose again.
                if not port_taken or self._wanted_ports is not None or attempt == _PORT_ATTEMPTS:
                    raise
                atexit.register(self.stop)
                self._same_ports = False
        return self

    def stop(self) -> None:
        """End every node at once and remove their data, but not a ``folder=``.

        May be called twice, in any state.
        """
        if self._owner_pid != os.getpid():
            # A forked copy of the owner must not take the owner's brokers down when it exits.
            return
        atexit.unregister(self.stop)
        for node in self._nodes:
            node.kill()  # their data go away next: nothing is gained by a polite end
        self._nodes = ()
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None
        if self._folder is not None and self._own_folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None

    def wait_until_serving(self) -> None:
        """Wait until every running node knows every other running node as alive."""
        running = [node for node in self._started_nodes() if node.running]
        for node in running:
            node.wait_until_it_sees({other.node_id for other in running})

    def kafka_tool(self, tool: str, *arguments: str, timeout_s: float = 120) -> str:
        """Return what one of Kafka's own command-line tools (``kafka-topics``,
        ``kafka-consumer-groups``, ``kafka-dump-log`` …) prints to stdout. ``--bootstrap-server``
        is filled in. Each call starts a JVM: one to two seconds.

        :raises ConfigurationError: no such tool. :raises ResourceError: it failed, with what it
            said.
        """
        servers = ",".join(node.bootstrap_server for node in self._started_nodes() if node.running)
        return run_tool(
            tool, arguments, version=self.version, bootstrap_servers=servers, timeout_s=timeout_s
        )

    def __enter__(self) -> LocalKafka:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start_once(self) -> None:
        self._folder = self._own_folder or Path(tempfile.mkdtemp(prefix="onceward-kafka-"))
        self._ports = self._choose_ports()
        if self._own_folder is not None:
            cluster = StoredCluster(self.cluster_id, self.version, self._ports).resolve(
                self._own_folder
            )
            self.cluster_id, self._ports = (
                cluster.cluster_id,
                cluster.ports if self._same_ports else self._ports,
            )
            StoredCluster(self.cluster_id, self.version, self._ports).write(self._own_folder)
        if _PROXIED in self._extra_listeners:
            brokers = {
                node: f"127.0.0.1:{ports.extra[_PROXIED]}"
                for node, ports in enumerate(self._ports, start=1)
            }
            self._proxy = KafkaProxy(brokers).start()
        java_command = [
            str(java_executable()),
            *self._jvm_options,
            "-cp",
            class_path(self.version),
        ]
        self._nodes = tuple(
            self._make_node(node_id, java_command) for node_id in range(1, self._node_count + 1)
        )
        with ThreadPoolExecutor(self._node_count) as pool:
            list(
                pool.map(
                    lambda node: node.format(self.cluster_id, self._format_arguments), self._nodes
                )
            )
        for node in self._nodes:
            node.start(wait=False)
        self.wait_until_serving()

    def _make_node(self, node_id: int, java_command: Sequence[str]) -> KafkaNode:
        assert self._folder is not None  # noqa: S101  made by the caller
        folder = self._folder / f"node-{node_id}"
        folder.mkdir(parents=True, exist_ok=True)
        logs = self._log_dir or folder
        logs.mkdir(parents=True, exist_ok=True)
        advertised = {_PROXIED: self._proxy.ports[node_id]} if self._proxy is not None else {}
        return KafkaNode(
            node_id,
            self._ports[node_id - 1].clients,
            version=self.version,
            properties=broker_properties(
                node_id, self._ports, self._extra_listeners, self._properties, advertised
            ),
            java_command=java_command,
            folder=folder,
            keep=self._own_folder is not None,
            log_file=logs / f"kafka-node-{node_id}.log",
            start_timeout_s=self._start_timeout_s,
        )

    def _choose_ports(self) -> list[NodePorts]:
        per_node = 2 + len(self._extra_listeners)
        if taken := taken_ports(self._wanted_ports or ()):
            # Whoever listens there may be another Kafka, which would be taken for this one.
            raise ResourceError(
                f"port {', '.join(map(str, taken))} of 127.0.0.1 is taken by another process",
                next_step="end what listens there, or choose another port",
                details={"ports": taken},
            )
        free = iter(free_ports(per_node * self._node_count))
        wanted = self._wanted_ports or [next(free) for _ in range(self._node_count)]
        return [
            NodePorts(port, next(free), {name: next(free) for name in self._extra_listeners})
            for port in wanted
        ]

    def _started_nodes(self) -> tuple[KafkaNode, ...]:
        if not self._nodes:
            raise ResourceError(
                "this LocalKafka is not running",
                next_step="call start(), or use it in a `with` block",
            )
        return self._nodes
