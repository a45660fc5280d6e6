"""Which jars of Spark's Kafka connector fit the PySpark that is installed, and what had to be put together for it.

Called by :func:`onceward.spark.session.spark_conf`, ``onceward jars`` and ``onceward doctor``. Driver only.

Spark publishes its connector with every release, but not every Maven mirror has every part of every release. What is
missing is replaced by what was tested with it (``make matrix``) and never silently: :attr:`Connector.notes` says it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from onceward.errors import ResourceError
from onceward.spark.jars import IVY_SETTINGS_VARIABLE, kept_as, remember, remembered, resolve

_GROUP = "org.apache.spark"
_CONNECTOR = "spark-sql-kafka-0-10_2.13"
_TOKEN_PROVIDER = "spark-token-provider-kafka-0-10_2.13"  # noqa: S105 — the name of a jar
_AVRO = "spark-avro_2.13"
_TESTED_CONNECTORS = ("4.2.0", "4.1.3", "4.0.0")
_TESTED_AVRO = ("4.0.0",)
_TESTED_TOKEN_PROVIDER = "4.0.0"  # noqa: S105 — a version


@dataclass(frozen=True, slots=True)
class Connector:
    """Jars that belong together, the coordinates that they were resolved from, and every departure from the plain
    choice, a sentence each; none: all parts have the version of the PySpark installed."""

    jars: tuple[Path, ...]
    coordinates: tuple[str, ...]
    notes: tuple[str, ...]


def installed_spark() -> str:
    """The version of the PySpark installed."""
    import pyspark

    return str(pyspark.__version__)


def spark_connector_coordinates(spark_version: str | None = None) -> tuple[str, str]:
    """Coordinates of Spark's Kafka source and Avro functions for ``spark_version`` (default: the PySpark installed)."""
    version = spark_version or installed_spark()
    return _named(_CONNECTOR, version), _named(_AVRO, version)


def spark_connector(*packages: str, spark_version: str | None = None) -> Connector:
    """Spark's Kafka source and, where they can be had, its Avro functions, together with ``packages``.

    Resolved by :func:`onceward.spark.jars.resolve`; the answer is remembered, also when parts were replaced. To ask
    anew, remove the folder that :func:`onceward.spark.jars.cache_folder` names.

    :param packages: further Maven coordinates. Conflicting versions are settled over all of them.
    :param spark_version: default: the PySpark installed.
    :raises ResourceError: no connector that fits can be had, or one of ``packages``.
    """
    version = spark_version or installed_spark()
    kept = kept_as("connector", 2, version, packages, os.environ.get(IVY_SETTINGS_VARIABLE))
    if (jars := remembered(kept)) is not None:
        answer = json.loads(kept.read_text())
        return Connector(tuple(jars), tuple(answer["coordinates"]), tuple(answer["notes"]))
    found = _Choice(version, packages).found()
    remember(kept, found.jars, coordinates=found.coordinates, notes=found.notes)
    return found


class _Choice:
    """Begins with the plain choice and replaces what the resolver says is missing, one part after the other."""

    def __init__(self, version: str, packages: tuple[str, ...]) -> None:
        self._version = version
        self._packages = packages
        self._connector = version
        self._avro: str | None = version
        self._own_token_provider = True
        self._notes: list[str] = []

    def found(self) -> Connector:
        try:
            return self._resolved()
        except ResourceError as error:
            missing = {tuple(coordinate.split(":")[1:]) for coordinate in error.details.get("missing", ())}
            if not self._replaced(missing):
                raise
        return self.found()

    def _resolved(self) -> Connector:
        wanted = [_named(_CONNECTOR, self._connector)]
        if self._avro is not None:
            wanted.append(_named(_AVRO, self._avro))
        if self._own_token_provider:
            jars = resolve(*wanted, *self._packages)
        else:
            jars = resolve(*wanted, *self._packages, without=[f"{_GROUP}:{_TOKEN_PROVIDER}"])
            # By itself: what it depends on comes with the connector, in the connector's versions.
            provider = _named(_TOKEN_PROVIDER, _TESTED_TOKEN_PROVIDER)
            jars += resolve(provider, transitive=False)
            wanted.append(provider)
        return Connector(tuple(jars), (*wanted, *self._packages), tuple(self._notes))

    def _replaced(self, missing: set[tuple[str, ...]]) -> bool:
        """Replace what is missing, if it is one of the parts that can be; False: nothing more can be done."""
        before = (self._connector, self._avro, self._own_token_provider)
        if self._avro is not None and (_AVRO, self._avro) in missing:
            older_avro = _newest_before(_TESTED_AVRO, self._avro)
            instead = "from_avro and to_avro will be missing" if older_avro is None else f"{older_avro} is taken"
            self._notes.append(f"{_AVRO}:{self._avro} is in none of the repositories: {instead}")
            self._avro = older_avro
        if (_CONNECTOR, self._connector) in missing and (
            older := _newest_before(_TESTED_CONNECTORS, self._connector)
        ) is not None:
            self._notes.append(
                f"{_CONNECTOR}:{self._connector} is in none of the repositories: the connector {older} is taken for "
                f"PySpark {self._version}"
            )
            self._connector = older
        if self._own_token_provider and (_TOKEN_PROVIDER, self._connector) in missing:
            self._own_token_provider = False
            self._notes.append(
                f"{_TOKEN_PROVIDER}:{self._connector} is in none of the repositories: its {_TESTED_TOKEN_PROVIDER} is "
                f"taken with the connector {self._connector}"
            )
        return (self._connector, self._avro, self._own_token_provider) != before


def _named(artifact: str, version: str) -> str:
    return f"{_GROUP}:{artifact}:{version}"


def _newest_before(tested_ones: tuple[str, ...], version: str) -> str | None:
    """Of those that were tested the newest one that is older; connectors work on later Sparks, not earlier."""
    return next((tested for tested in tested_ones if _numbers(tested) < _numbers(version)), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
