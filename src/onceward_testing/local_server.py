"""One server for the length of a ``with`` block, in a folder of its own, on a free port of
127.0.0.1. The base of :class:`~onceward_testing.local_postgres.LocalPostgres` and the other
databases, stores and indices for tests.

It is gone with the block, or with the process that made it, however that ends; it may be killed
and started again on the same port and data.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, TypeVar

from onceward_testing.free_ports import free_ports
from onceward_testing.plain_user import folder_for_all

from onceward.errors import ResourceError
from onceward_testing.guarded_process import GuardedProcess

Server = TypeVar("Server", bound="LocalServer")

_POLL_SECONDS = 0.05


class LocalServer(ABC):
    """See the module.

    :param settings: of the server, by its own names.
    """

    product: str
    """For messages, and in small letters for the names of folders."""
    ends_of: ClassVar[signal.Signals] = signal.SIGTERM
    """What it takes for the request to end in order."""
    start_seconds: ClassVar[int] = 120
    for_another_user: ClassVar[bool] = False
    """It may run as somebody else, who has to reach its folder."""
    ports: ClassVar[range | None] = None
    """Where it can listen; None: anywhere."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._made is not None:
            shutil.rmtree(self._made.parent, ignore_errors=True)

    def start(self) -> None:
        """Start the server, on the same port and data as before; returns when it answers."""
        log = self.folder / "server.log"
        said = log.stat().st_size if log.exists() else 0
        self._server = self._started(log)
        ends = time.monotonic() + self.start_seconds
        while not self._is_ready(log, said):
            if not self._server.running or time.monotonic() > ends:
                raise ResourceError(
                    f"{self.product} did not start\n{log.read_text(errors='replace')[-3000:]}",
                    next_step="read the server's words above",
                )
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Ends the server in order."""
        self._end(self.ends_of)

    def kill(self) -> None:
        """SIGKILL for the server: a crash, after which it recovers from its log."""
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
        """Everything this server writes."""
        assert self._made is not None, "inside the with block only"  # noqa: S101
        return self._made

    def _make(self) -> None:  # noqa: B027
        """Once, before the first start: its files and data, below :attr:`folder`."""

    @abstractmethod
    def _started(self, log: Path) -> GuardedProcess:
        """Its process, which writes to ``log`` and takes :attr:`folder` with it."""

    @abstractmethod
    def _is_ready(self, log: Path, said: int) -> bool:
        """Does it answer? ``log`` had ``said`` bytes when it was started."""
