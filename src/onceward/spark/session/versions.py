"""The releases of Spark that Onceward was run with: the one table of them. Driver only; called by
:mod:`onceward.spark.session.settings`, :mod:`onceward.spark.session.connector` and ``onceward
doctor``.

A batch's offsets, its shuffles and its plan are read from Spark's insides
(:mod:`onceward.spark.batch.query`), which change with each minor release. A later patch of a minor
release that was run is taken; another minor release is refused.
"""

from __future__ import annotations

from pathlib import Path

from onceward.errors import ConfigurationError

RUN_WITH = ("4.0.0", "4.1.1", "4.1.3", "4.2.0", "4.3.0")
"""PySpark, oldest first. docs/how-to/deploying.md says what ran on each; ``make matrix`` runs it
again.
"""

_NEWEST_JAVA = {"4.0": 21, "4.1": 21}
"""Spark 4.0 and 4.1 end in ``Subject.getSubject``, which Java no longer has (JEP 486); later ones
start on Java 25.
"""


def installed_spark() -> str:
    """Return the version of the PySpark installed."""
    import pyspark

    return str(pyspark.__version__)


def must_have_been_run(version: str) -> None:
    """Refuse a Spark of a minor release that Onceward was never run with.

    :raises ConfigurationError: it is one.
    """
    if _minor(version) not in {_minor(known) for known in RUN_WITH}:
        raise ConfigurationError(
            f"Onceward was never run with PySpark {version}, and it reads what changes between "
            f"Spark's minor releases; it was run with {', '.join(RUN_WITH[:-1])} and "
            f"{RUN_WITH[-1]}",
            next_step=f'pip install "pyspark~={RUN_WITH[-1]}"',
            details={"spark_version": version, "run_with": list(RUN_WITH)},
        )


def must_start_on(java: Path, major: int, version: str) -> None:
    """Refuse a Java on which that Spark does not start.

    :raises ConfigurationError: it is too new.
    """
    newest = _NEWEST_JAVA.get(_minor(version))
    if newest is not None and major > newest:
        raise ConfigurationError(
            f"{java} is Java {major}, and PySpark {version} does not start on a Java later than "
            f"{newest}",
            next_step=f"point JAVA_HOME at Java {newest} or 17",
            details={"java": str(java), "major": major},
        )


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
