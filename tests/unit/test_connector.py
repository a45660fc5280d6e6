"""Which jars are put together for a PySpark, where the repositories lack this or that. The
resolver is Spark's.
"""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session import connector as connectors
from onceward.spark.session import jars
from onceward.spark.session.connector import Connector, spark_connector
from support.errors import raises

CONNECTOR, AVRO = "org.apache.spark:spark-sql-kafka-0-10_2.13", "org.apache.spark:spark-avro_2.13"
PROVIDER = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"


class Repository:
    """Stands for the JVM with Ivy: has some coordinates, and says of the others what Ivy says."""

    def __init__(self, folder: Path, has: set[str]) -> None:
        self.folder, self.has = folder, has
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
        if missing := [coordinate for coordinate in wanted if coordinate not in self.has]:
            raise ResourceError("cannot resolve", details={"missing": missing})
        answer = [self.folder / f"{coordinate.replace(':', '-')}.jar" for coordinate in wanted]
        for jar in answer:
            jar.touch()
        return answer


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv(jars.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(jars.IVY_SETTINGS_VARIABLE, raising=False)
    has = {f"{CONNECTOR}:{v}" for v in ("4.0.0", "4.1.3", "4.2.0")} | {
        f"{PROVIDER}:4.0.0",
        f"{AVRO}:4.0.0",
        "a:b:1",
    }
    found = Repository(tmp_path, has)
    monkeypatch.setattr(jars, "_ask_spark", found)
    return found


def resolved(*packages: str, version: str) -> Connector:
    with patch.object(connectors, "installed_spark", return_value=version):
        return spark_connector(*packages)


def names(connector: Connector) -> list[str]:
    return [jar.stem for jar in connector.jars]


def test_all_of_one_version(repository: Repository):
    found = resolved("a:b:1", version="4.0.0")
    assert found.coordinates == (f"{CONNECTOR}:4.0.0", f"{AVRO}:4.0.0", "a:b:1")
    assert found.notes == ()
    assert len(repository.asked) == 1


def test_an_older_token_provider_stands_in(repository: Repository):
    found = resolved("a:b:1", version="4.2.0")
    assert found.coordinates == (
        f"{CONNECTOR}:4.2.0",
        f"{AVRO}:4.0.0",
        f"{PROVIDER}:4.0.0",
        "a:b:1",
    )
    assert sum("token-provider" in name for name in names(found)) == 1
    assert [note.split(" is in none")[0].partition("_2.13:")[2] for note in found.notes] == [
        "4.2.0",
        "4.2.0",
    ]
    assert repository.asked[-1] is False, (
        "what it depends on would come in its own, older versions"
    )


def test_an_older_connector_stands_in(repository: Repository):
    found = resolved(version="4.3.0")
    assert found.coordinates == (f"{CONNECTOR}:4.2.0", f"{AVRO}:4.0.0", f"{PROVIDER}:4.0.0")
    assert any("connector 4.2.0 is taken for PySpark 4.3.0" in note for note in found.notes)


def test_each_part_is_replaced_by_the_newest_older_one(repository: Repository):
    repository.has |= {f"{PROVIDER}:4.1.1", f"{AVRO}:4.1.1", f"{AVRO}:4.2.0"}
    found = resolved(version="4.1.3")
    assert found.coordinates == (f"{CONNECTOR}:4.1.3", f"{AVRO}:4.1.1", f"{PROVIDER}:4.1.1")
    found = resolved(version="4.3.1")
    assert found.coordinates == (f"{CONNECTOR}:4.2.0", f"{AVRO}:4.2.0", f"{PROVIDER}:4.1.1")


def test_a_connector_that_fails_after_a_batch_that_is_run_again_is_replaced(
    repository: Repository,
):
    repository.has |= {f"{PROVIDER}:4.1.1", f"{AVRO}:4.1.1", f"{CONNECTOR}:4.1.1"}
    found = resolved(version="4.1.1")
    assert found.coordinates == (f"{CONNECTOR}:4.1.3", f"{AVRO}:4.1.1", f"{PROVIDER}:4.1.1")
    assert found.notes[0].startswith("the connector 4.1.3 is taken for PySpark 4.1.1")
    repository.has.remove(f"{CONNECTOR}:4.1.3")
    jars.cache_folder().joinpath("jars").rename(jars.cache_folder() / "old")
    assert resolved(version="4.1.1").coordinates[0] == f"{CONNECTOR}:4.1.1"


def test_a_spark_that_was_never_run_gets_no_jars(repository: Repository):
    with raises(ConfigurationError):
        resolved(version="4.4.0")
    assert repository.asked == []


def test_without_any_avro_the_source_is_there_all_the_same(repository: Repository):
    repository.has.remove(f"{AVRO}:4.0.0")
    for version in ("4.0.0", "4.2.0"):
        found = resolved(version=version)
        assert found.coordinates[0] == f"{CONNECTOR}:{version}"
        assert not any(coordinate.startswith(AVRO) for coordinate in found.coordinates)
        assert any("from_avro and to_avro will be missing" in note for note in found.notes)


def test_what_was_put_together_is_remembered(repository: Repository):
    first = resolved(version="4.2.0")
    asked = len(repository.asked)
    assert resolved(version="4.2.0") == first
    assert len(repository.asked) == asked


def test_a_package_that_nobody_has(repository: Repository):
    with pytest.raises(ResourceError) as caught:
        resolved("no:such:1", version="4.2.0")
    assert caught.value.details["missing"] == ["no:such:1"]


def test_a_repository_that_has_nothing(repository: Repository):
    repository.has.clear()
    with pytest.raises(ResourceError):
        resolved(version="4.3.0")
