"""A server for the length of a ``with`` block, in a folder of its own, on a free port of
127.0.0.1.

The base of :class:`~onceward_testing.local_postgres.LocalPostgres` and the other databases, stores
and indices for tests. It is gone with the block, or with the process that made it, however that
ends; it may be killed and started again on the same port and data.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, TypeVar

from onceward.errors import ResourceError
from onceward_testing.free_ports import free_ports
from onceward_testing.guarded_process import GuardedProcess

Server = TypeVar("Server", bound="LocalServer")

_POLL_SECONDS = 0.05


class LocalServer(ABC):
    """The base of all servers for tests.

    :param settings: of the server, by its own names.
    """

    product: str
    """Name in messages, and in small letters in the names of folders."""
    ends_of: ClassVar[signal.Signals] = signal.SIGTERM
    """Signal that asks it to end in order."""
    start_seconds: ClassVar[int] = 120
    for_another_user: ClassVar[bool] = False
    """True if it may run as another user, who has to reach its folder."""
    ports: ClassVar[range | None] = None
    """Ports on which it can listen; None: any."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = settings or {}
        self._password = secrets.token_hex(16)
        self._made: Path | None = None
        self._server: GuardedProcess | None = None
        self.port = 0

    def __enter__(self: Server) -> Server:
        name = self.product.lower()
        where = folder_for_all() if self.for_another_user else None
        # The guard removes the inner folder, and its parent when that is empty then.
        self._made = Path(tempfile.mkdtemp(prefix=f"onceward-{name}-", dir=where)) / name
        try:
            if self.for_another_user:
                self.folder.parent.chmod(0o755)
            self.folder.mkdir()
            if self.for_another_user:
                self.folder.chmod(0o755)
            self._make()
            self.port = free_ports(1, within=self.ports)[0]
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._made is not None:
            shutil.rmtree(self._made.parent, ignore_errors=True)

    def start(self) -> None:
        """Start the server, on the same port and data as before; returns when it answers."""
        log = self.folder / "server.log"
        offset = log.stat().st_size if log.exists() else 0
        self._server = self._spawn(log)
        ends = time.monotonic() + self.start_seconds
        while not self._is_ready(log, offset):
            if not self._server.running or time.monotonic() > ends:
                raise ResourceError(
                    f"{self.product} did not start\n{log.read_text(errors='replace')[-3000:]}",
                    next_step="read the server's words above",
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """End the server in order."""
        self._end(self.ends_of)

    def kill(self) -> None:
        """Kill the server by SIGKILL: a crash, after which it recovers from its log."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.signal(how)
            server.end(60)

    @property
    def pid(self) -> int | None:
        """The server's process id, None while it is not running."""
        return self._server.pid if self._server is not None and self._server.running else None

    @property
    def folder(self) -> Path:
        """Return the folder of all that this server writes."""
        assert self._made is not None, "inside the with block only"  # noqa: S101
        return self._made

    def _make(self) -> None:  # noqa: B027
        """Make its files and data below :attr:`folder`, once, before the first start."""

    @abstractmethod
    def _spawn(self, log: Path) -> GuardedProcess:
        """Start its process, which writes to ``log`` and takes :attr:`folder` with it."""

    @abstractmethod
    def _is_ready(self, log: Path, offset: int) -> bool:
        """Return whether it answers. ``log`` had ``offset`` bytes when it was started."""


def http_status(url: str, method: str = "GET", data: bytes | None = None) -> int:
    """Return the status of an answer; 0: there is none within 5 s."""
    request = urllib.request.Request(url, method=method, data=data)  # noqa: S310 — ours
    with suppress(OSError):
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code
    return 0


# ── the user that a server runs as ──


# After the change of user the kernel no longer ends us with the guard, unless asked once more
# (prctl 1: PDEATHSIG).
_AS_ANOTHER_USER = """
import ctypes, os, sys
user, group = int(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setgid(group); os.setuid(user)
try:
    ctypes.CDLL(None).prctl(1, int(sys.argv[3]))
except (OSError, AttributeError):
    pass
os.chdir("/")
os.execv(sys.argv[4], sys.argv[4:])
"""


def as_user(command: list[str], dies_of: signal.Signals) -> list[str]:
    """Return ``command``, as ``nobody`` where we are root.

    :param dies_of: what the kernel sends it when its guard is gone (Linux).
    """
    if os.geteuid() != 0:
        return command
    nobody = pwd.getpwnam("nobody")
    numbers = [str(number) for number in (nobody.pw_uid, nobody.pw_gid, int(dies_of))]
    return [sys.executable, "-I", "-S", "-c", _AS_ANOTHER_USER, *numbers, *command]


def folder_for_all() -> str | None:
    """Return a parent for folders that everybody reaches; None: the usual one."""
    if os.geteuid() != 0:
        return None
    wanted = Path(tempfile.gettempdir())
    return str(wanted) if is_reachable(wanted) else "/tmp"  # noqa: S108 — mkdtemp is used


def is_reachable(folder: Path) -> bool:
    """Return whether that user may look into ``folder``."""
    if os.geteuid() != 0:
        return True
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (folder, *folder.parents))


def give_to_user(folder: Path) -> None:
    """Make ``folder``, which is ours, that user's."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
