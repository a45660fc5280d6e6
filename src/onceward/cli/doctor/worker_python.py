"""Does the Python that Spark's workers would run on this machine have Onceward? Called by
``onceward doctor``.

Runs that interpreter once. What it cannot see is another machine's: a cluster's executors have to
be looked at there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping

from onceward.cli.doctor.finding import Finding

_VARIABLE = "PYSPARK_PYTHON"
_ASK = (
    "import sys, onceward.spark.session.worker_daemon; print('.'.join(map(str, "
    "sys.version_info[:2])))"
)
_SECONDS = 120
_INSTALL = "install onceward (and the driver's version of Python) there"


def check_worker_python(environment: Mapping[str, str] | None = None) -> Finding:
    """Check the interpreter of :data:`_VARIABLE`; without it, report what a cluster and what local
    mode would take.

    :param environment: the variables to look into; None: this process's own.
    """
    environment = os.environ if environment is None else environment
    chosen = environment.get(_VARIABLE)
    if chosen:
        amiss = _amiss(chosen, environment)
        if amiss is None:
            return Finding("ok", f"workers' Python: {_VARIABLE}={chosen}")
        return Finding(
            "fail",
            f"workers' Python: {_VARIABLE}={chosen} {amiss}",
            f"correct {_VARIABLE}, or {_INSTALL}",
        )
    amiss = _amiss("python3", environment)
    if amiss is None:
        return Finding("ok", f"workers' Python: python3, as {_VARIABLE} is not set")
    return Finding(
        "warn",
        f"workers' Python: {_VARIABLE} is not set; in local mode workers run this one, "
        f"{sys.executable}, but on a "
        f"cluster python3, which here {amiss}",
        f"for a cluster set {_VARIABLE} to a Python that has onceward on every machine with an "
        f"executor",
    )


def _amiss(python: str, environment: Mapping[str, str]) -> str | None:
    """Return why ``python`` cannot be a worker's; None: it can."""
    found = shutil.which(python, path=environment.get("PATH"))
    if found is None:
        return "is not there"
    try:
        # Not in this folder, whose modules would be found although a worker does not run here.
        ran = subprocess.run(
            [found, "-c", _ASK],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=dict(environment),
            cwd="/",
        )
    except (OSError, subprocess.SubprocessError) as failure:
        return f"does not run: {failure}"
    if ran.returncode:
        last = (ran.stderr.strip().splitlines() or ["it gave no reason"])[-1]
        return f"cannot import onceward: {last}"
    version, ours = ran.stdout.split()[-1], ".".join(map(str, sys.version_info[:2]))
    return None if version == ours else f"is Python {version}, and the driver's is {ours}"
