"""One broker of a local cluster: its files, its process, and what a test may do to it.

Made by :class:`onceward_testing.LocalKafka`, handed to tests as ``kafka.nodes[i]``. The broker is
a plain JVM process behind a guard (:mod:`onceward_testing.guarded_process`) that takes it down
when its owner is gone.
"""

from __future__ import annotations

import signal
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward.errors import ResourceError
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.kafka_distribution import run_tool

_POLL_SECONDS = 0.05
_LOG_TAIL_LINES = 40


class KafkaNode:
    """A broker and controller in one process (KRaft combined mode). Ports and data stay the same
    over restarts.

    Not thread safe: one thread at a time may start, stop or kill it.
    """

    def __init__(
        self,
        node_id: int,
        port: int,
        *,
        version: str,
        properties: Mapping[str, str],
        java_command: Sequence[str],
        folder: Path,
        keep: bool,
        log_file: Path,
        start_timeout_s: float,
    ) -> None:
        self.node_id = node_id
        self.port = port
        self.folder = folder
        """Folder of all that this node writes; ``data_folder`` below it holds the partitions."""
        self._keep = keep
        self.data_folder = folder / "data"
        self.log_file = log_file
        self._version = version
        self._properties = {**properties, "log.dirs": str(self.data_folder)}
        self._java_command = list(java_command)
        self._start_timeout_s = start_timeout_s
        self._server: GuardedProcess | None = None

    @property
    def bootstrap_server(self) -> str:
        """``host:port`` of this node's plaintext listener."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """The broker's process id, None while it is not running."""
        return self._server.pid if self._server is not None and self._server.running else None

    @property
    def running(self) -> bool:
        """Return whether the process exists (also while suspended)."""
        return self._server is not None and self._server.running

    def format(self, cluster_id: str, arguments: Sequence[str]) -> None:
        """Write the node's settings and, unless it has one, a formatted log directory:
        ``kafka-storage format``."""
        self.data_folder.mkdir(parents=True, exist_ok=True)
        self._settings_file.write_text(
            "".join(f"{k}={_escaped(v)}\n" for k, v in self._properties.items())
        )
        if (self.data_folder / "meta.properties").exists():
            return
        where = ["--cluster-id", cluster_id, "--config", str(self._settings_file)]
        run_tool("kafka-storage", ["format", *where, *arguments], version=self._version)

    def start(self, *, wait: bool = True) -> None:
        """Start the process; with ``wait`` return once the node is a registered, unfenced broker
        of the cluster.

        Does nothing when it is running. A node alone out of three cannot become one: start it with
        ``wait=False``.
        """
        if not self.running:
            self._reap(
                timeout_s=1
            )  # of a node that ended by itself, guard and pipes are still there
            self._launch()
        if wait:
            self.wait_until_it_sees({self.node_id})

    def stop(self, timeout_s: float = 30) -> None:
        """End the process the polite way (SIGTERM: leadership moves first), by SIGKILL after
        ``timeout_s``."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)  # a suspended process takes SIGTERM only when it goes on
        self._reap(timeout_s)

    def kill(self) -> None:
        """Kill it by SIGKILL: what a crashed machine looks like to the others, except that its
        files survive."""
        self._signal(signal.SIGKILL)
        self._reap(timeout_s=10)

    def suspend(self) -> None:
        """Suspend it by SIGSTOP: connections stay open, nothing is answered any more, as in a long
        pause or a partition."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume it by SIGCONT after :meth:`suspend`."""
        self._signal(signal.SIGCONT)

    def restart(self, *, wait: bool = True) -> None:
        """Restart it: :meth:`stop` if it runs, then :meth:`start`, with the same ports and
        data."""
        self.stop()
        self.start(wait=wait)

    def sees(self) -> frozenset[int]:
        """Return the ids of the live brokers this node knows; empty while it does not answer."""
        try:
            return brokers_seen_by("127.0.0.1", self.port)
        except OSError:
            return frozenset()

    def wait_until_it_sees(self, node_ids: set[int] | frozenset[int]) -> None:
        """Wait until this node's metadata name all of ``node_ids``.

        :raises ResourceError: the process ended, or the time for a start is over; with the end of
            the broker's log.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while not self.sees() >= node_ids:
            if not self.running:
                raise self._start_error("ended instead of serving")
            if time.monotonic() > deadline:
                raise self._start_error(
                    f"saw only brokers {sorted(self.sees())} of {sorted(node_ids)} in time"
                )
            time.sleep(_POLL_SECONDS)

    def ended_by_itself(self) -> ResourceError:
        """Return the error to raise for a node that is found not running although nobody stopped
        it."""
        return self._start_error("ended by itself")

    def log_tail(self) -> str:
        """Return the last lines of the broker's log."""
        if not self.log_file.exists():
            return ""
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])

    @property
    def _settings_file(self) -> Path:
        return self.folder / "server.properties"

    def _launch(self) -> None:
        self._server = GuardedProcess(
            [*self._java_command, "kafka.Kafka", str(self._settings_file)],
            log=self.log_file,
            removed_with_us=None if self._keep else self.folder,
            cwd=self.folder,
        )
        if not self._server.pid:
            raise self._start_error("could not be started")

    def _signal(self, number: signal.Signals) -> None:
        if self._server is not None:
            self._server.signal(number)

    def _reap(self, timeout_s: float) -> None:
        if self._server is not None:
            self._server.end(timeout_s)
            self._server = None

    def _start_error(self, what: str) -> ResourceError:
        return ResourceError(
            f"Kafka {self._version} node {self.node_id} on port {self.port} {what}\n"
            f"--- the end of {self.log_file} ---\n{self.log_tail()}",
            next_step="read the broker's log above; the machine may also be out of memory",
            details={"node": self.node_id, "port": self.port},
        )


def _escaped(value: str) -> str:
    """Return ``value`` for a Java properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


# ── the probe ──


_METADATA = 3
_METADATA_VERSION = 1
_CLIENT_ID = b"onceward-probe"
_NO_TOPICS = struct.pack(">i", 0)
_LARGEST_ANSWER_BYTES = 1 << 20


def brokers_seen_by(host: str, port: int, timeout_s: float = 2.0) -> frozenset[int]:
    """Return the ids of the brokers that the broker at ``host:port`` knows to be alive.

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
    """Read ``correlation_id, [node_id, host, port, rack]…``."""
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
