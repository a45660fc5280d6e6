"""Shared libraries that an embedded server needs and a machine lacks. Called by
:mod:`local_mysql`; Linux only.

MySQL is linked with ``libaio``, which slim images leave out. On Debian and its kin the package is
fetched and unpacked beside the server, for which nobody needs to be root; it stays in the cache.
Elsewhere the error says what to install.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from onceward.errors import ResourceError
from onceward.spark.session.jars import cache_folder

_PACKAGES = {"libaio.so.1": ("libaio1t64", "libaio1"), "libnuma.so.1": ("libnuma1",)}
"""Of Debian, by what a program asks for; the newest name first."""

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
            shutil.copyfile(_fetched(name), target)
            target.chmod(0o755)


def _fetched(name: str) -> Path:
    kept = cache_folder() / "libraries" / f"{platform.machine()}-{name}"
    if kept.is_file():
        return kept
    said = "there is no apt-get"
    for package in _PACKAGES[name] if shutil.which("apt-get") and shutil.which("dpkg-deb") else ():
        with tempfile.TemporaryDirectory(prefix="onceward-library-") as folder:
            done = subprocess.run(
                ["apt-get", "download", package],
                cwd=folder, capture_output=True, text=True, check=False, timeout=_FETCH_SECONDS,
            )  # fmt: skip
            said = done.stderr.strip()[-500:]
            for file in Path(folder).glob("*.deb"):
                subprocess.run(
                    ["dpkg-deb", "-x", str(file), folder], check=True, timeout=_FETCH_SECONDS
                )
            found = sorted(
                Path(folder).rglob(f"{name}*")
            )  # also libaio.so.1t64, the same under another name
            if found:
                kept.parent.mkdir(parents=True, exist_ok=True)
                part = kept.with_suffix(f".{Path(folder).name}")
                shutil.copyfile(found[0].resolve(), part)
                part.rename(kept)
                return kept
    raise ResourceError(
        f"the server needs {name}, which this machine has not, and it could not be fetched: "
        f"{said}",
        next_step=f"install it (Debian: apt-get install {_PACKAGES[name][-1]}; Fedora: dnf "
        f"install "
        f"{name.split('.')[0]}), after apt-get update where no package is found",
    )
