"""``promtool``, Prometheus's checker of rules: from the PATH, or from Debian's package, unpacked once
into the cache.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from onceward_testing.server_files import server_folder, unpack_once

_SECONDS = 300


def promtool() -> Path | None:
    """Its file; None: it is not here, and this is no machine with apt."""
    found = shutil.which("promtool")
    if found is not None:
        return Path(found)
    has_apt = shutil.which("apt-get") and shutil.which("dpkg-deb")
    if not has_apt and not server_folder("prometheus").is_dir():
        return None
    return unpack_once("prometheus", _unpack) / "promtool"


def _unpack(folder: Path) -> None:
    run = {"cwd": folder, "check": True, "timeout": _SECONDS, "capture_output": True}
    subprocess.run(["apt-get", "download", "prometheus"], **run)  # type: ignore[call-overload]
    (package,) = folder.glob("*.deb")
    subprocess.run(["dpkg-deb", "-x", package.name, "root"], **run)  # type: ignore[call-overload]
    (folder / "root/usr/bin/promtool").rename(folder / "promtool")
    shutil.rmtree(folder / "root")
    package.unlink()
