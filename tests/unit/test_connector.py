"""Which jars are put together for a PySpark, and none in the place of one that a repository does
not give. The resolver is Spark's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from onceward.errors import ConfigurationError, LaunchFailed
from onceward.spark.session import connector as connectors
from onceward.spark.session import jars
from onceward.spark.session.connector import (
    RUN_WITH,
    Connector,
    connector_to_name,
    lake_packages,
    must_have_lake,
    spark_connector,
)
from support.errors import raises

CONNECTOR, AVRO = "org.apache.spark:spark-sql-kafka-0-10_2.13", "org.apache.spark:spark-avro_2.13"
PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
ICEBERG = "org.apache.iceberg:iceberg-spark-runtime"


class Repository:
    """Stands for the JVM with Ivy, which is asked and gives each jar but those that ``lacks`` names
    now.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lacks: set[str] = set()
        self.asked: list[bool] = []
        """Of each question, whether it is for what its coordinates depend on, too."""

    def __call__(
        self,
        coordinates: tuple[str, ...],
        without: tuple[str, ...],
        transitive: bool,
        settings: str | None,
    ) -> list[Path]:
        self.asked.append(transitive)
        wanted = [*coordinates]
        if transitive and PROVIDER not in without:
            connectors = [coordinate for coordinate in wanted if coordinate.startswith(CONNECTOR)]
            wanted += [f"{PROVIDER}:{coordinate.rpartition(':')[2]}" for coordinate in connectors]
        if self.lacks & {*wanted}:
            raise LaunchFailed("cannot resolve")
        answer = [self.folder / f"{coordinate.replace(':', '-')}.jar" for coordinate in wanted]
        for jar in answer:
            jar.touch()
        return answer


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(jars.IVY_SETTINGS_VARIABLE, raising=False)
    found = Repository(tmp_path)
    monkeypatch.setattr(jars, "_ask_spark", found)
    return found


def resolved(*packages: str, version: str) -> Connector:
    with patch.object(connectors, "installed_spark", return_value=version):
        return spark_connector(*packages)


def test_all_of_one_version(repository: Repository):
    found = resolved("a:b:1", version="4.0.0")
    assert found.coordinates == (f"{CONNECTOR}:4.0.0", f"{AVRO}:4.0.0", "a:b:1")
    assert len(repository.asked) == 1


def test_a_token_provider_of_another_version(repository: Repository):
    found = resolved("a:b:1", version="4.1.3")
    assert found.coordinates == (
        f"{CONNECTOR}:4.1.3",
        f"{AVRO}:4.1.1",
        f"{PROVIDER}:4.1.1",
        "a:b:1",
    )
    assert sum("token-provider" in jar.stem for jar in found.jars) == 1
    assert repository.asked == [True, False], (
        "what it depends on would come in its own, older versions"
    )


def test_a_spark_that_was_never_run_gets_no_jars(repository: Repository):
    with raises(ConfigurationError):
        resolved(version="4.4.0")
    assert repository.asked == []


def test_what_was_put_together_is_remembered(repository: Repository):
    first = resolved(version="4.1.3")
    asked = len(repository.asked)
    assert resolved(version="4.1.3") == first
    assert len(repository.asked) == asked


def test_a_package_that_nobody_has(repository: Repository):
    repository.lacks.add("no:such:1")
    with pytest.raises(LaunchFailed):
        resolved("no:such:1", version="4.2.0")


@pytest.mark.parametrize(
    ("minor", "connector", "others"),
    [
        ("4.0", "4.0.0", "4.0.0"),
        ("4.1", "4.1.3", "4.1.1"),
        ("4.2", "4.2.0", "4.2.0"),
        ("4.3", "4.2.0", "4.2.0"),
    ],
)
@pytest.mark.parametrize(
    "patch", ["0", "1", "3", "7", "0-amzn-0", "1+amzn.0", "1.5.4.2026", "1-fabric"]
)
def test_each_patch_and_each_vendors_build_gets_what_its_minor_release_was_run_with(
    repository: Repository, minor: str, patch: str, connector: str, others: str
):
    version = f"{minor}.{patch}"
    found = resolved(version=version)
    assert found.coordinates[:2] == (f"{CONNECTOR}:{connector}", f"{AVRO}:{others}")
    assert connector_to_name(version) == f"{CONNECTOR}:{connector}"


@pytest.mark.parametrize("part", [CONNECTOR, AVRO, PROVIDER])
@pytest.mark.parametrize("version", ["4.0.0", "4.1.1", "4.3.0"])
def test_what_a_repository_did_not_give_once_has_no_substitute(
    repository: Repository, part: str, version: str
):
    """It may have been busy (429, 503), which Ivy calls "not found", too."""
    repository.lacks = {f"{part}:{v}" for v in ("4.0.0", "4.1.1", "4.1.3", "4.2.0")}
    with pytest.raises(LaunchFailed):
        resolved(version=version)
    repository.lacks.clear()
    found = resolved(version=version)
    assert any(coordinate.startswith(AVRO) for coordinate in found.coordinates)


def has_no_class(_session: object, _name: str, message: str, next_step: str) -> None:
    raise ConfigurationError(message, next_step=next_step)


@pytest.mark.parametrize(
    ("lake", "version", "package", "spark"),
    [
        ("Delta", "4.0.0", "io.delta:delta-spark_2.13:4.0.0", ""),
        ("Delta", "4.1.1-amzn-0", "io.delta:delta-spark_4.1_2.13:4.4.0", ""),
        ("Delta", "4.2.0", "io.delta:delta-spark_4.2_2.13:4.4.0", ""),
        ("Delta", "4.3.0", "io.delta:delta-spark_4.2_2.13:4.4.0", "4.2.0"),
        ("Iceberg", "4.1.3", f"{ICEBERG}-4.1_2.13:1.11.0", ""),
        ("Iceberg", "4.2.0", f"{ICEBERG}-4.1_2.13:1.11.0", "4.1.3"),
        ("Iceberg", "4.3.0", f"{ICEBERG}-4.1_2.13:1.11.0", "4.1.3"),
    ],
)
def test_a_session_without_a_table_format_is_told_the_package_for_its_spark(
    lake: str, version: str, package: str, spark: str
):
    """Each is built against one minor release: another one fails somewhere in Java."""
    session: Any = None
    with (
        patch.object(connectors, "installed_spark", return_value=version),
        patch.object(connectors, "must_have", has_no_class),
        raises(ConfigurationError) as found,
    ):
        must_have_lake(session, lake, "a.B", "a setting")
    assert f'ow.spark_conf("{package}"), and with a setting' in found.value.next_step
    assert (f'pip install "pyspark~={spark}"' in found.value.next_step) == bool(spark)
    assert (f"published for PySpark {version}" in str(found.value)) == bool(spark)


def test_the_page_has_the_package_of_each_table_format_for_each_spark():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "delta-and-iceberg.md"
    lines = page.read_text("utf-8").splitlines()
    minors = {version.rpartition(".")[0] for version in RUN_WITH}
    assert minors > {"4.0", "4.1"}
    for minor in minors:
        (line,) = [line for line in lines if line.startswith(f"| {minor} |")]
        delta, iceberg = line.split("|")[2:4]
        found = lake_packages(f"{minor}.0")
        for cell, lake in ((delta, "Delta"), (iceberg, "Iceberg")):
            assert found.get(lake, "none is published") in cell
