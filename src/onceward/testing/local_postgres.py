"""A real PostgreSQL for the length of a ``with`` block, without root and without Docker. For tests.

::

    with LocalPostgres() as postgres:
        ledger = ow.DatabaseLedger(postgres.url)

The server's files come from Maven (io.zonky.test.postgres, 15 MB, once); a cluster of its own is made in a new
folder, on a free port of 127.0.0.1, and is gone with the block, or with the process that made it, however that ends.
PostgreSQL refuses to run as root: then it runs as ``nobody``.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import platform
import pwd
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from types import TracebackType

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.jars import resolve
from onceward.testing.free_ports import free_ports
from onceward.testing.guarded_server import GuardedServer

VERSION = "17.5.0"
_PLATFORMS = {
    ("Linux", "x86_64"): "linux-amd64",
    ("Linux", "aarch64"): "linux-arm64v8",
    ("Darwin", "x86_64"): "darwin-amd64",
    ("Darwin", "arm64"): "darwin-arm64v8",
}
_START_SECONDS = 120
_POLL_SECONDS = 0.05
_PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}

# After the change of user the kernel no longer ends us with the guard, unless asked once more (prctl 1: PDEATHSIG).
_AS_ANOTHER_USER = """
import ctypes, os, signal, sys
user, group = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(group); os.setuid(user)
try:
    ctypes.CDLL(None).prctl(1, signal.SIGINT)
except (OSError, AttributeError):
    pass
os.chdir("/")
os.execv(sys.argv[3], sys.argv[3:])
"""


class LocalPostgres:
    """See the module.

    :param settings: of the server, by PostgreSQL's own names.
    """

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = settings or {}
        self._password = secrets.token_hex(16)
        self._made: Path | None = None
        self._server: GuardedServer | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """``postgresql://…`` of the database ``postgres``, for its owner, with a password made for this server."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> LocalPostgres:
        # Not below the caller's own temporary folder: another user may have to see it.
        root = Path(tempfile.mkdtemp(prefix="onceward-postgres-", dir=_folder_for_all()))
        self._made = root / "postgres"  # the guard removes it, and its parent when that is empty then
        try:
            root.chmod(0o755)
            self.folder.mkdir()
            self._make()
            self.port = free_ports(1)[0]
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._made is not None:
            shutil.rmtree(self._made.parent, ignore_errors=True)

    def start(self) -> None:
        """Start the server, on the same port and data as before; returns when it answers."""
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            **self._settings,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(self._program("postgres")), "-D", str(self._data), *options]
        log = self.folder / "server.log"
        self._server = GuardedServer(
            _as_user(command), log=log, removed_with_us=self.folder, cwd=Path("/"), environment=_PLAIN
        )
        ends = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if not self._server.running or time.monotonic() > ends:
                raise ResourceError(
                    f"PostgreSQL {VERSION} did not start\n{log.read_text(errors='replace')[-3000:]}",
                    next_step="read the server's words above",
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Ends the server in order (SIGINT: a fast shutdown)."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL for the server, whose sessions end with it: a crash, after which it recovers from its log."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.signal(how)
            server.end(30)

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is not running."""
        return self._server.pid if self._server is not None and self._server.running else None

    @property
    def folder(self) -> Path:
        """Everything this server writes."""
        assert self._made is not None, "inside the with block only"  # noqa: S101
        return self._made

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def _program(self, name: str) -> Path:
        return self.folder / "server" / "bin" / name

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"
        return False

    def _make(self) -> None:
        """Unpack the server, and make a cluster."""
        _unpack(self.folder / "server")
        self.folder.chmod(0o755)
        self._data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._data, nobody.pw_uid, nobody.pw_gid)
        password = self.folder / "password"
        password.write_text(self._password)
        password.chmod(0o644 if os.geteuid() == 0 else 0o600)
        command = [str(self._program("initdb")), "-D", str(self._data), "-U", "postgres", "-E", "UTF8"]
        command += ["-A", "scram-sha-256", "--pwfile", str(password)]
        done = subprocess.run(
            _as_user([*command, "--no-sync", "--no-instructions", "--locale=C.UTF-8"]),
            capture_output=True, text=True, check=False, timeout=_START_SECONDS, cwd="/",
            env={**os.environ, **_PLAIN, "HOME": "/"},
        )  # fmt: skip
        password.unlink()
        if done.returncode != 0:
            raise ResourceError(
                f"initdb of PostgreSQL {VERSION} ended with status {done.returncode}:\n{done.stderr[-2000:]}",
                next_step="read its message above",
            )


def _as_user(command: list[str]) -> list[str]:
    """``command``, as ``nobody`` where we are root."""
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    return [sys.executable, "-I", "-S", "-c", _AS_ANOTHER_USER, str(nobody.pw_uid), str(nobody.pw_gid), *command]


def _folder_for_all() -> str | None:
    """Where a folder is within everybody's reach; None: wherever temporary folders are made."""
    if os.geteuid() != 0:
        return None
    wanted = Path(tempfile.gettempdir())
    reachable = all(parent.stat().st_mode & 0o005 == 0o005 for parent in (wanted, *wanted.parents))
    return str(wanted) if reachable else "/tmp"  # noqa: S108 — mkdtemp makes a folder of its own there


def _unpack(to: Path) -> None:
    system = _PLATFORMS.get((platform.system(), platform.machine()))
    if system is None:
        raise ConfigurationError(
            f"there is no PostgreSQL for {platform.system()} on {platform.machine()} among the embedded binaries",
            next_step="test against a server of your own",
        )
    (jar,) = resolve(f"io.zonky.test.postgres:embedded-postgres-binaries-{system}:{VERSION}", transitive=False)
    with zipfile.ZipFile(jar) as packed:
        name = next(name for name in packed.namelist() if name.endswith(".txz"))
        with packed.open(name) as file, lzma.open(file) as plain, tarfile.open(fileobj=plain) as archive:
            archive.extractall(to, filter="tar")
