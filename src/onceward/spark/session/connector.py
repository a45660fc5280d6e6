"""Which jars of Spark's Kafka connector are taken for the PySpark that is installed, and which
packages of table formats belong to it.

Called by :func:`onceward.spark.session.settings.spark_conf`, ``onceward jars``, ``onceward
doctor``, and of table formats by their sinks. Driver only.

By its minor release alone, from one table: each patch and each vendor's build of it
(``4.1.1-amzn-0``) gets the parts that were run with that minor release (``make matrix``), and none
stands in for one that a repository does not give: it may be busy for a moment only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from onceward.errors import ConfigurationError
from onceward.spark.batch.causes import has_kind, thrown_by
from onceward.spark.session.jars import resolve


def must_have(session: SparkSession, name: str, message: str, next_step: str) -> None:
    """Raise ConfigurationError where the class ``name`` is not on the driver's class path."""
    jvm: Any = session.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)
    except Exception as error:
        # The line to the JVM may break, or its memory be full for a moment
        if has_kind(thrown_by(error), "ClassNotFoundException", "NoClassDefFoundError") is None:
            raise
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
    if _minor(version) not in _PARTS:
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
# Of each minor release the connector, and with which Avro functions and token provider it was
# run. One of 4.0 does not fit 4.1, and those of 4.1.0 to 4.1.2 fail the query at the end of a
# batch that is run again after a start, written as it is (SPARK-57438).
_PARTS = {
    "4.0": ("4.0.0", "4.0.0"),
    "4.1": ("4.1.3", "4.1.1"),
    "4.2": ("4.2.0", "4.2.0"),
    "4.3": ("4.2.0", "4.2.0"),
}


_LAKES = {
    "Delta": {
        "4.0": "io.delta:delta-spark_2.13:4.0.0",
        "4.1": "io.delta:delta-spark_4.1_2.13:4.4.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    "Iceberg": {
        "4.0": "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
        "4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    },
}
"""The package of each table format that was run with each minor release of Spark. Each is built
against the insides of one; for those that are missing here none has been published.
"""


def lake_packages(spark_version: str) -> dict[str, str]:
    """Return the packages that were run with that Spark, by table format."""
    minor = _minor(spark_version)
    return {lake: packages[minor] for lake, packages in _LAKES.items() if minor in packages}


def must_have_lake(session: SparkSession, lake: str, name: str, settings: str) -> None:
    """Raise ConfigurationError where the table format ``lake``, whose class is ``name``, is not on
    the driver's class path.

    :param settings: of the session, that its users need beside the package.
    """
    version = installed_spark()
    message, step = f"this Spark session has no {lake}", "build it with"
    package = lake_packages(version).get(lake)
    if package is None:
        minor, package = list(_LAKES[lake].items())[-1]
        newest = [each for each in RUN_WITH if _minor(each) == minor][-1]
        message += f", and none is published for PySpark {version} that Onceward was run with"
        step = f'pip install "pyspark~={newest}" and build the session with'
    must_have(session, name, message, f'{step} ow.spark_conf("{package}"), and with {settings}')


@dataclass(frozen=True, slots=True)
class Connector:
    """Jars that belong together, and the coordinates that they were resolved from."""

    jars: tuple[Path, ...]
    coordinates: tuple[str, ...]


def connector_to_name(spark_version: str) -> str:
    """Return the coordinate of the connector for a session of ``spark_version``, one that was
    never run included.
    """
    version, _ = _PARTS.get(_minor(spark_version), (spark_version, spark_version))
    return _named(_CONNECTOR, version)


def must_have_avro(session: SparkSession) -> None:
    """Raise ConfigurationError where ``session`` has no spark-avro.

    By a class of that jar alone: its writer of files is in Spark itself, from 4.0 on.
    """
    _, version = _PARTS.get(_minor(session.version), (session.version, session.version))
    coordinate = _named(_AVRO, version)
    must_have(
        session,
        "org.apache.spark.sql.avro.AvroDataToCatalyst",
        f"this Spark session ({session.version}) has no spark-avro, by which Avro is read and "
        "written",
        next_step="build it with SparkSession.builder.config(map=ow.spark_conf()), which brings "
        f'it along, or with .config("spark.jars.packages", "{coordinate}"), before anything else '
        "builds one; with spark-submit, $(onceward jars --submit)",
    )


def spark_connector(*packages: str) -> Connector:
    """Resolve Spark's Kafka source and its Avro functions, together with ``packages``, by
    :func:`onceward.spark.session.jars.resolve`, which remembers the answer.

    :param packages: further Maven coordinates. Conflicting versions are settled over all of them.
    :raises ConfigurationError: Onceward was never run with the PySpark installed.
    :raises LaunchFailed: one of them cannot be had.
    """
    version = installed_spark()
    must_have_been_run(version)
    connector, others = _PARTS[_minor(version)]
    coordinates = [_named(_CONNECTOR, connector), _named(_AVRO, others)]
    if connector == others:
        jars = resolve(*coordinates, *packages)
    else:
        jars = resolve(*coordinates, *packages, without=[f"{_GROUP}:{_TOKEN_PROVIDER}"])
        # By itself: what it depends on comes with the connector, in the connector's versions.
        provider = _named(_TOKEN_PROVIDER, others)
        jars += resolve(provider, transitive=False)
        coordinates.append(provider)
    return Connector(tuple(jars), (*coordinates, *packages))


_PART = re.compile(
    r"(?:.*/)?(?:org\.apache\.(?:spark|kafka)[:_])?"
    r"(spark-sql-kafka-0-10|spark-token-provider-kafka-0-10|kafka-clients)"
    r"((?:_[\d.]+)?[-:]\d[^:/]*?)(?:\.jar)?"
)


def other_versions(names: Iterable[str], than: Iterable[str]) -> list[str]:
    """Return those of ``names`` (paths of jars, Maven coordinates) that are a part of Spark's
    Kafka connector of which ``than`` has another version. Of two on one class path whichever comes
    first counts, and executors need not have them in the order of the driver."""
    parts = [found for name in than if (found := _PART.fullmatch(name))]
    known = {found[1]: found[2].replace(":", "-") for found in parts}
    return [
        name
        for name in names
        if (found := _PART.fullmatch(name))
        and known.get(found[1], "") not in ("", found[2].replace(":", "-"))
    ]


def _named(artifact: str, version: str) -> str:
    return f"{_GROUP}:{artifact}:{version}"
