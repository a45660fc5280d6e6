"""Files of servers, unpacked once into the cache, and shared libraries that a machine lacks.

Called by the classes that start servers. MySQL is linked with ``libaio``, which slim images leave
out. On Debian and its kin the package is fetched and unpacked beside the server, for which nobody
needs to be root. Elsewhere the error says what to install.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from onceward.errors import ResourceError
from onceward.spark.session.jars import cache_folder


def server_folder(name: str) -> Path:
    """Return the folder where it is, or will be."""
    return cache_folder() / "servers" / name


def unpack_once(name: str, unpack: Callable[[Path], None]) -> Path:
    """Return the folder of the server ``name``: whole as soon as it is there, however many
    processes want it at once.

    :param unpack: puts its files into a folder.
    """
    home = server_folder(name)
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(prefix=f"{home.name}.", dir=home.parent))
    try:
        unpack(part)
        try:
            os.rename(part, home)
        except OSError:
            if not home.is_dir():
                raise  # else another process was quicker
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return home


# ── shared libraries ──


_PACKAGES = {
    "libaio.so.1": ("libaio1t64", "libaio1"), "libnuma.so.1": ("libnuma1",),
    "libgalera_smm.so": ("galera-4",),
}  # fmt: skip
"""Packages of Debian by the library that a program asks for; the newest name first."""

_FETCH_SECONDS = 120


def put_missing_libraries(program: Path, folder: Path) -> None:
    """Copy what ``program`` needs and the machine has not into ``folder``.

    :raises ResourceError: naming what is missing, and how to install it.
    """
    if platform.system() != "Linux":
        return
    listed = subprocess.run(
        ["ldd", str(program)], capture_output=True, text=True, check=False
    ).stdout
    for line in listed.splitlines():
        name = line.split("=>")[0].strip()
        if "not found" in line and name in _PACKAGES:
            target = folder / name
            shutil.copyfile(fetch_library(name), target)
            target.chmod(0o755)


def fetch_library(name: str) -> Path:
    """Return a shared library of :data:`_PACKAGES`, in the cache; it is fetched once.

    :raises ResourceError: it could not be fetched, and how to install it.
    """
    cached = cache_folder() / "libraries" / f"{platform.machine()}-{name}"
    if cached.is_file():
        return cached
    reason = "there is no apt-get"
    for package in _PACKAGES[name] if shutil.which("apt-get") and shutil.which("dpkg-deb") else ():
        with tempfile.TemporaryDirectory(prefix="onceward-library-") as folder:
            done = subprocess.run(
                ["apt-get", "download", package],
                cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS,
            )  # fmt: skip
            reason = done.stderr.strip()[-500:]
            for file in Path(folder).glob("*.deb"):
                subprocess.run(
                    ["dpkg-deb", "-x", str(file), folder], check=True, timeout=_FETCH_SECONDS
                )
            found = sorted(
                Path(folder).rglob(f"{name}*")
            )  # also libaio.so.1t64, the same under another name
            if found:
                cached.parent.mkdir(parents=True, exist_ok=True)
                part = cached.with_suffix(f".{Path(folder).name}")
                shutil.copyfile(found[0].resolve(), part)
                part.rename(cached)
                return cached
    raise ResourceError(
        f"the server needs {name}, which is missing and could not be fetched: {reason}",
        next_step=f"install it (Debian: apt-get install {_PACKAGES[name][-1]}; Fedora: dnf "
        f"install "
        f"{name.split('.')[0]}), after apt-get update where no package is found",
    )
