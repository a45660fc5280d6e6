"""Turns the Maven coordinates of an archive (a server as a ``tar.gz``, say) into that file on
disk.

Called by ``onceward_testing``. Runs in a test process. :func:`onceward.spark.session.jars.resolve`
takes jars without a classifier only, as ``spark.jars.packages`` does; here the same Ivy, with the
same mirrors and cache, is asked by its own API, and its answer is kept in the same way.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from onceward.errors import ConfigurationError
from onceward.spark.session.jars import (
    IVY_SETTINGS_VARIABLE,
    ivy_settings,
    kept_as,
    kept_or_asked,
    read_answer,
)


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
    ivy = jvm.org.apache.ivy.Ivy.newInstance(_without_poms(gateway, ivy_settings(jvm, settings)))
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
    from py4j.java_gateway import is_instance_of

    waiting = list(settings.getResolvers().toArray())
    while waiting:
        resolver = waiting.pop()
        if is_instance_of(gateway, resolver, "org.apache.ivy.plugins.resolver.ChainResolver"):
            waiting += list(resolver.getResolvers().toArray())
        elif is_instance_of(gateway, resolver, "org.apache.ivy.plugins.resolver.IBiblioResolver"):
            resolver.setUsepoms(False)
            resolver.setUseMavenMetadata(False)
    return settings
