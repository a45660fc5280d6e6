"""Files of servers, fetched as archives by their Maven coordinates, unpacked once into the cache,
and shared libraries that a machine lacks.

Called by the classes that start servers. MySQL is linked with ``libaio``, which slim images leave
out. On Debian and its kin the package is fetched and unpacked beside the server, for which nobody
needs to be root. Elsewhere the error says what to install.

:func:`onceward.spark.session.jars.resolve` takes jars without a classifier only, as
``spark.jars.packages`` does. For an archive the same Ivy, with the same mirrors and cache, is
asked by its own API, and its answer is kept in the same way.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import (
    IVY_SETTINGS_VARIABLE,
    cache_folder,
    ivy_resolvers,
    ivy_settings,
    kept_as,
    kept_or_asked,
    read_answer,
)

# ── archives ──


def archive(coordinate: str) -> Path:
    """Resolve ``group:artifact:version:type:classifier`` (the order of ``mvn dependency:get``) to
    its file, without dependencies.

    The first call starts a JVM and may fetch the file; later ones read a small file. Safe from
    several processes.

    :raises ConfigurationError: the coordinate is malformed, or there is no fit Java.
    :raises ResourceError: the file cannot be found or fetched.
    """
    parts = coordinate.split(":")
    if len(parts) != 5 or not all(parts):
        raise ConfigurationError(
            f"{coordinate!r} is no Maven coordinate of an archive",
            next_step="write it as group:artifact:version:type:classifier",
        )
    settings = os.environ.get(IVY_SETTINGS_VARIABLE)
    (file,) = kept_or_asked(
        kept_as("archive", coordinate, settings),
        (coordinate,),
        lambda: read_answer((coordinate,), lambda gateway: _asked(gateway, parts, settings)),
    )
    return file


def _asked(gateway: Any, parts: list[str], settings: str | None) -> list[Path]:
    """Ask through Ivy's API: a module with one dependency, of which one artifact is wanted."""
    group, artifact, version, kind, classifier = parts
    jvm = gateway.jvm
    descriptors = jvm.org.apache.ivy.core.module.descriptor
    ivy = jvm.org.apache.ivy.Ivy.newInstance(
        _without_poms(gateway, ivy_settings(gateway, settings))
    )
    new_id = jvm.org.apache.ivy.core.module.id.ModuleRevisionId.newInstance
    module = descriptors.DefaultModuleDescriptor.newDefaultInstance(
        new_id("onceward", f"{artifact}-archive", "1")
    )
    dependency = descriptors.DefaultDependencyDescriptor(
        module, new_id(group, artifact, version), True, False, False
    )
    extra = jvm.java.util.HashMap()
    # As Ivy's own reader of POMs says it
    extra.put("m:classifier", classifier)
    descriptor = descriptors.DefaultDependencyArtifactDescriptor(
        dependency, artifact, kind, kind, None, extra
    )
    dependency.addDependencyArtifact("default", descriptor)
    dependency.addDependencyConfiguration("default", "*")
    module.addDependency(dependency)
    options = jvm.org.apache.ivy.core.resolve.ResolveOptions()
    options.setTransitive(False)
    options.setConfs(module.getConfigurationsNames())
    found = ivy.resolve(module, options).getAllArtifactsReports()
    return [
        Path(report.getLocalFile().getPath())
        for report in found
        if report.getLocalFile() is not None
    ]


def _without_poms(gateway: Any, settings: Any) -> Any:
    """Return Ivy settings without POMs: a lone file needs none, and parents may be missing."""
    for resolver in ivy_resolvers(gateway, settings, "IBiblioResolver"):
        resolver.setUsepoms(False)
        resolver.setUseMavenMetadata(False)
    return settings


# ── unpacked ──


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
