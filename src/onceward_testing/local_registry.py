"""A real schema registry for the length of a ``with`` block, without root and without Docker. For
tests.

::

    with LocalRegistry() as registry:
        schemas = ow.SchemaRegistry(registry.url)

The server is Apicurio Registry 3.0.9, from Maven (109 MB, once; later lines need Java 21). It
speaks the API of Confluent's Schema Registry. It has a heap of 256 MB at most, is on a free port
of 127.0.0.1 and in a new folder, and is gone with the block, or with the process that made it,
however that ends. It starts in 3 to 16 s. There is no login and no TLS: everybody on the machine
can read and write it.

It keeps schemas in memory, so that one that was killed and started again knows none and counts its
ids from 1 again; with ``durable=True`` they are in a file that is written before it answers.

An id is that of a content, as in Confluent's registry: the same schema under two subjects has one.
Apicurio has another way, ``apicurio.ccompat.legacy-id-mode.enabled``, in which each version has an
id of its own, as its older lines had it; pass it in ``settings`` if yours is set so.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from onceward.spark.session.java import java_executable
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer, http_status
from onceward_testing.server_files import archive, unpack_once

VERSION = "3.0.9"

_ARCHIVE = f"io.apicurio:apicurio-registry-app:{VERSION}:tar.gz:all"
# TieredStopAtLevel: a server of a test is gone before the second compiler has paid for itself.
_JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError")
_SETTINGS = {
    "quarkus.http.host": "127.0.0.1",
    "quarkus.http.access-log.enabled": "false",
    "quarkus.log.level": "WARN",
    "quarkus.vertx.event-loops-pool-size": "1",
    "quarkus.vertx.worker-pool-size": "4",
    "quarkus.thread-pool.core-threads": "1",
    "quarkus.thread-pool.max-threads": "8",
    "quarkus.banner.enabled": "false",
    "apicurio.storage.kind": "sql",
    "apicurio.storage.sql.kind": "h2",
}


class LocalRegistry(LocalServer):
    """A real schema registry for the length of a ``with`` block.

    :param settings: of the server, as in its ``application.properties``.
    :param durable: what it has answered outlasts :meth:`kill`; else it forgets everything when it
        ends.
    """

    product = "Apicurio"

    def __init__(self, settings: dict[str, str] | None = None, *, durable: bool = False) -> None:
        super().__init__(settings)
        self.durable = durable

    @property
    def url(self) -> str:
        """``http://…`` of the API that is Confluent's, without a login."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def _make(self) -> None:
        self._home = unpack_once(f"apicurio-registry-{VERSION}", _unpack)

    def _spawn(self, log: Path) -> GuardedProcess:
        # By itself H2 writes up to half a second later than it answers.
        place = (
            f"file:{self.folder / 'schemas'};WRITE_DELAY=0"
            if self.durable
            else "mem:registry;DB_CLOSE_DELAY=-1"
        )
        settings = {
            **_SETTINGS,
            "quarkus.http.port": str(self.port),
            "apicurio.datasource.url": f"jdbc:h2:{place}",
            **self._settings,
        }
        options = [f"-D{name}={value}" for name, value in settings.items()]
        options += [f"-Djava.io.tmpdir={self.folder}"]
        program = self._home / f"apicurio-registry-app-{VERSION}-runner.jar"
        return GuardedProcess(
            [str(java_executable()), *_JVM, *options, "-jar", str(program)],
            log=log,
            removed_with_us=self.folder,
            cwd=self.folder,
        )

    def _is_ready(self, log: Path, offset: int) -> bool:
        return http_status(f"{self.url}/subjects") == 200


def _unpack(to: Path) -> None:
    with tarfile.open(archive(_ARCHIVE), mode="r:gz") as files:
        files.extractall(to, filter="data")
