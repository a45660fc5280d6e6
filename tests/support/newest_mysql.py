"""The newest MySQL that Debian has, for tests: no Maven archive is newer than 8.0.33.

``make servers`` fetches it (80 MB), and 8.0.33; both folders that it prints are for
``LocalMySQL(home=…)``. This one comes from Debian's unstable distribution, by apt with lists of
its own, and is unpacked together with all libraries that it needs, the C library included: nothing
is installed, and the machine may be older. Which version that is, changes; it stays in the cache
until its folder is removed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from onceward.spark.session.jars import cache_folder
from onceward_testing.mysql_servers import NEWER_MYSQL_VERSION, fetch_server

_PROGRAM = """#!/bin/sh
home=$(dirname "$(dirname "$(readlink -f "$0")")")
exec "$home"/lib/ld-linux-*.so.* --library-path "$home/lib" "$home/bin/mysqld.itself" "$@"
"""
_SECONDS = 300


def home() -> Path | None:
    """Its folder; None: this is no machine with apt, or Debian has none for it."""
    kept = cache_folder() / "servers" / "mysql-newest"
    if kept.is_dir():
        return kept
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        return None
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mysql-newest.", dir=kept.parent) as folder:
        packages = _fetched(Path(folder) / "apt")
        if not packages:
            return None
        for package in packages:
            subprocess.run(
                ["dpkg-deb", "-x", package, f"{folder}/root"], check=True, timeout=_SECONDS
            )
        _put_together(Path(folder) / "root", Path(folder) / "home")
        if not kept.is_dir():
            (Path(folder) / "home").rename(kept)
    return kept


def _fetched(apt: Path) -> list[Path]:
    """The server's package and those of the libraries that it needs, whatever is installed
    here.
    """
    mirror = _mirror()
    if mirror is None:
        return []
    for part in ("lists/partial", "cache/archives/partial", "packages"):
        (apt / part).mkdir(parents=True)
    (apt / "sources.list").write_text(f"deb {mirror} sid main\n")
    (apt / "status").touch()
    (apt / "apt.conf").write_text(
        f'Dir::State "{apt}"; Dir::State::lists "{apt}/lists"; Dir::State::status '
        f'"{apt}/status";\n'
        f'Dir::Cache "{apt}/cache"; Dir::Etc::sourcelist "{apt}/sources.list"; '
        f'Dir::Etc::sourceparts "-";\n'
        'APT::Sandbox::User ""; Acquire::Languages "none";\n'
    )

    def run(*command: str) -> str:
        return subprocess.run(
            command, env={**os.environ, "APT_CONFIG": str(apt / "apt.conf")}, cwd=apt / "packages",
            capture_output=True, text=True, check=True, timeout=_SECONDS,
        ).stdout  # fmt: skip

    try:
        run("apt-get", "update")
        planned = run(
            "apt-get", "install", "--simulate", "--no-install-recommends", "mysql-server-core"
        )
    except subprocess.CalledProcessError as failure:
        sys.stderr.write(failure.stderr[-500:])
        return []
    names = [line.split()[1] for line in planned.splitlines() if line.startswith("Inst ")]
    run(
        "apt-get",
        "download",
        *(name for name in names if name.startswith(("lib", "zlib", "mysql-server-core"))),
    )
    return sorted((apt / "packages").glob("*.deb"))


def _mirror() -> str | None:
    """Where this machine has Debian's own packages from."""
    known = [
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)",
        "Created-By: Packages",
        "Origin: Debian",
    ]
    found = subprocess.run(
        [*known, "Component: main"], capture_output=True, text=True, check=False
    ).stdout.split()
    return next((uri for uri in found if "security" not in uri), None)


def _put_together(root: Path, home: Path) -> None:
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (root / "usr" / "sbin" / "mysqld").rename(home / "bin" / "mysqld.itself")
    (home / "bin" / "mysqld").write_text(_PROGRAM)
    for library in [
        file for file in (root / "usr" / "lib").glob("*-linux-*/*.so*") if file.is_file()
    ]:
        shutil.copy(library, home / "lib")
    shutil.copytree(root / "usr" / "share" / "mysql", home / "share")
    for folder in (home, home / "bin", home / "lib"):
        folder.chmod(0o755)
    (home / "bin" / "mysqld").chmod(0o755)


if __name__ == "__main__":
    sys.stdout.write(f"{fetch_server('mysql', NEWER_MYSQL_VERSION)}\n")
    sys.stdout.write(
        f"{home() or 'Debian has no MySQL for this machine, or this is no machine with apt'}\n"
    )
