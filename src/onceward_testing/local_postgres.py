"""A real PostgreSQL for the length of a ``with`` block, without root and without Docker. For
tests.

::

    with LocalPostgres() as postgres:
        ledger = ow.DatabaseLedger(postgres.url)

The server's files come from Maven (io.zonky.test.postgres, 15 MB, once); a cluster of its own is
made in a new folder, on a free port of 127.0.0.1, and is gone with the block, or with the process
that made it, however that ends. PostgreSQL refuses to run as root: then it runs as ``nobody``.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import platform
import signal
import subprocess
import tarfile
import zipfile
from pathlib import Path

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import resolve
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer, as_user, give_to_user

VERSION = "17.5.0"
_PLATFORMS = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}
_INIT_SECONDS = 120
_PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


class LocalPostgres(LocalServer):
    """A real PostgreSQL server for the length of a ``with`` block.

    :param settings: of the server, by PostgreSQL's own names.
    """

    product = "PostgreSQL"
    ends_of = signal.SIGINT  # a fast shutdown; SIGTERM waits for its clients
    for_another_user = True

    @property
    def url(self) -> str:
        """``postgresql://…`` of the database ``postgres``, for its owner, with a password made for
        this server."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    def _spawn(self, log: Path) -> GuardedProcess:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._program("postgres")), "-D", str(self._data), *options]
        return GuardedProcess(
            as_user(command, self.ends_of),
            log=log,
            removed_with_us=self.folder,
            cwd=Path("/"),
            environment=_PLAIN,
        )

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _program(self, name: str) -> Path:
        return self.folder / "server" / "bin" / name

    def _is_ready(self, log: Path, offset: int) -> bool:
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _make(self) -> None:
        _unpack(self.folder / "server")
        self._data.mkdir(mode=0o700)
        give_to_user(self._data)
        password = self.folder / "password"
        password.write_text(self._password)
        password.chmod(0o644 if os.geteuid() == 0 else 0o600)
        command = [
            str(self._program("initdb")),
            "-D",
            str(self._data),
            "-U",
            "postgres",
            "-E",
            "UTF8",
        ]
        command += ["-A", "scram-sha-256", "--pwfile", str(password)]
        done = subprocess.run(
            as_user([*command, "--no-sync", "--no-instructions", "--locale=C.UTF-8"],
            self.ends_of),
            capture_output=True, text=True, check=False, timeout=_INIT_SECONDS, cwd="/",
            env={**os.environ, **_PLAIN, "HOME": "/"},
        )  # fmt: skip
        password.unlink()
        if done.returncode != 0:
            raise ResourceError(
                f"initdb of PostgreSQL {VERSION} ended with status "
                f"{done.returncode}:\n{done.stderr[-2000:]}",
                next_step="read its message above",
            )


def _unpack(to: Path) -> None:
    system = _PLATFORMS.get((platform.system(), platform.machine()))
    if system is None:
        raise ConfigurationError(
            f"there is no PostgreSQL to fetch for {platform.system()} on {platform.machine()}",
            next_step="test against a server of your own",
        )
    (jar,) = resolve(
        f"io.zonky.test.postgres:embedded-postgres-binaries-{system}:{VERSION}", transitive=False
    )
    with zipfile.ZipFile(jar) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".txz"))
        with (
            packed.open(name) as file,
            lzma.open(file) as plain,
            tarfile.open(fileobj=plain) as archive,
        ):
            archive.extractall(to, filter="tar")
