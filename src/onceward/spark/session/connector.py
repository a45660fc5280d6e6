"""Which jars of Spark's Kafka connector fit the installed PySpark, and what was put together.

Called by :func:`onceward.spark.session.settings.spark_conf`, ``onceward jars`` and ``onceward
doctor``. Driver only.

Spark publishes its connector with every release, but not every Maven mirror has every part of
every release. What is missing is replaced by what was run with it (``make matrix``) and never
silently: :attr:`Connector.notes` says it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import (
    IVY_SETTINGS_VARIABLE,
    kept_as,
    remember,
    remembered,
    resolve,
)


def must_have(session: SparkSession, name: str, message: str, next_step: str) -> None:
    """Raise ConfigurationError unless the class ``name`` is on the driver's class path."""
    jvm: Any = session.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception as error:
        raise ConfigurationError(message, next_step=next_step) from error


RUN_WITH = ("4.0.0", "4.1.1", "4.1.3", "4.2.0", "4.3.0")
"""PySpark, oldest first; docs/how-to/deploying.md says what ``make matrix`` ran on each."""

_NEWEST_JAVA = {"4.0": 21, "4.1": 21}
"""Spark 4.0 and 4.1 call ``Subject.getSubject``, gone from Java (JEP 486); later ones take 25."""


def installed_spark() -> str:
    """Return the version of the PySpark installed."""
    import pyspark

    return str(pyspark.__version__)


def must_have_been_run(version: str) -> None:
    """Raise ConfigurationError for a minor release of Spark that Onceward never ran with."""
    if _minor(version) not in {_minor(tested) for tested in RUN_WITH}:
        raise ConfigurationError(
            f"Onceward was never run with PySpark {version}, and it reads what changes between "
            f"Spark's minor releases; it was run with {', '.join(RUN_WITH[:-1])} and "
            f"{RUN_WITH[-1]}",
            next_step=f'pip install "pyspark~={RUN_WITH[-1]}"',
            details={"spark_version": version, "run_with": list(RUN_WITH)},
        )


def must_start_on(java: Path, major: int, version: str) -> None:
    """Raise ConfigurationError for a Java that is too new for that Spark."""
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


_GROUP = "org.apache.spark"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_TOKEN_PROVIDER = "spark-token-provider-kafka-0-10_2.13"  # noqa: S105 — the name of a jar
_AVRO = "spark-avro_2.13"
# What stands in for a part that is missing: the newest older one, of those that were run.
_RUN_CONNECTORS = ("4.2.0", "4.1.3", "4.1.1", "4.0.0")
# Their own fails the query at the end of a batch that is run again after a start, written as it is
# (SPARK-57438).
_MENDED_BY = {"4.1.0": "4.1.3", "4.1.1": "4.1.3", "4.1.2": "4.1.3"}
# And with Avro functions and a token provider of their own
_RUN_WHOLE = (
    "4.2.0",
    "4.1.1",
    "4.0.0",
)


@dataclass(frozen=True, slots=True)
class Connector:
    """Jars that belong together, the coordinates that they were resolved from, and every departure
    from the plain choice, a sentence each; none: all parts have the version of the PySpark
    installed.
    """

    jars: tuple[Path, ...]
    coordinates: tuple[str, ...]
    notes: tuple[str, ...]


def connector_to_name(spark_version: str) -> str:
    """Return the coordinate of a connector for ``spark_version`` without asking a repository: the
    newest one that was run and is not later.
    """
    if spark_version in _RUN_WHOLE:
        return _named(_CONNECTOR, spark_version)
    return _named(_CONNECTOR, _newest_before(_RUN_WHOLE, spark_version) or spark_version)


def spark_connector(*packages: str) -> Connector:
    """Resolve Spark's Kafka source and, where available, its Avro functions, together with
    ``packages``.

    Resolved by :func:`onceward.spark.session.jars.resolve`; the answer is remembered, also when
    parts were replaced. To ask anew, remove the folder that
    :func:`onceward.spark.session.jars.cache_folder` names.

    :param packages: further Maven coordinates. Conflicting versions are settled over all of them.
    :raises ConfigurationError: Onceward was never run with the PySpark installed.
    :raises ResourceError: no connector that fits can be had, or one of ``packages``.
    """
    version = installed_spark()
    must_have_been_run(version)
    cache_file = kept_as("connector", 4, version, packages, os.environ.get(IVY_SETTINGS_VARIABLE))
    if (jars := remembered(cache_file)) is not None:
        answer = json.loads(cache_file.read_text())
        return Connector(tuple(jars), tuple(answer["coordinates"]), tuple(answer["notes"]))
    found = _Choice(version, packages).found()
    remember(cache_file, found.jars, coordinates=found.coordinates, notes=found.notes)
    return found


class _Choice:
    """Begins with the plain choice and replaces what the resolver says is missing, by parts."""

    def __init__(self, version: str, packages: tuple[str, ...]) -> None:
        self._version = version
        self._packages = packages
        self._connector = _MENDED_BY.get(version, version)
        self._avro: str | None = version
        # None: the connector's own
        self._token_provider: str | None = None

    def found(self) -> Connector:
        try:
            return self._resolved()
        except ResourceError as error:
            missing = {
                tuple(coordinate.split(":")[1:]) for coordinate in error.details.get("missing", ())
            }
            if not self._replaced(missing):
                raise
        return self.found()

    def _resolved(self) -> Connector:
        coordinates = [_named(_CONNECTOR, self._connector)]
        if self._avro is not None:
            coordinates.append(_named(_AVRO, self._avro))
        if self._token_provider is None:
            jars = resolve(*coordinates, *self._packages)
        else:
            jars = resolve(*coordinates, *self._packages, without=[f"{_GROUP}:{_TOKEN_PROVIDER}"])
            # By itself: what it depends on comes with the connector, in the connector's versions.
            provider = _named(_TOKEN_PROVIDER, self._token_provider)
            jars += resolve(provider, transitive=False)
            coordinates.append(provider)
        return Connector(tuple(jars), (*coordinates, *self._packages), self._notes())

    def _replaced(self, missing: set[tuple[str, ...]]) -> bool:
        """Replace what is missing, if it can be; return False when nothing more can be done."""
        before = (self._connector, self._avro, self._token_provider)
        if self._avro is not None and (_AVRO, self._avro) in missing:
            self._avro = _newest_before(_RUN_WHOLE, self._avro)
        if (_CONNECTOR, self._connector) in missing:
            self._connector = _newest_before(_RUN_CONNECTORS, self._connector) or self._connector
        provider = self._token_provider or self._connector
        if (_TOKEN_PROVIDER, provider) in missing:
            self._token_provider = _newest_before(_RUN_WHOLE, provider) or self._token_provider
        return (self._connector, self._avro, self._token_provider) != before

    def _notes(self) -> tuple[str, ...]:
        """Return a sentence for each part that is not the plain choice."""
        notes, lacking = [], "is in none of the repositories"
        if self._avro != self._version:
            instead = (
                "from_avro and to_avro will be missing"
                if self._avro is None
                else f"{self._avro} is taken"
            )
            notes.append(f"{_AVRO}:{self._version} {lacking}: {instead}")
        if self._connector == _MENDED_BY.get(self._version):
            notes.append(
                f"the connector {self._connector} is taken for PySpark {self._version}: with its "
                "own a query fails after a batch that is run again"
            )
        elif self._connector != self._version:
            notes.append(
                f"{_CONNECTOR}:{self._version} {lacking}: the connector {self._connector} is "
                f"taken for PySpark {self._version}"
            )
        if self._token_provider is not None:
            notes.append(
                f"{_TOKEN_PROVIDER}:{self._connector} {lacking}: its {self._token_provider} is "
                f"taken with the connector {self._connector}"
            )
        return tuple(notes)


def _named(artifact: str, version: str) -> str:
    return f"{_GROUP}:{artifact}:{version}"


def _newest_before(run_ones: tuple[str, ...], version: str) -> str | None:
    """Return the newest of ``run_ones`` before ``version``: connectors work on later Sparks."""
    return next((tested for tested in run_ones if _numbers(tested) < _numbers(version)), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
