"""A Spark that Onceward was never run with is refused by name, before anything is started."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest

import onceward as ow
from onceward.errors import ConfigurationError
from onceward.spark.session.connector import RUN_WITH, must_have_been_run, must_start_on
from onceward.spark.session.jars import SUBMITTED_VARIABLE
from onceward.spark.session.java import java_found
from support.errors import raises

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "version", [*RUN_WITH, "4.0.4", "4.1.0", "4.2.1", "4.3.7", "4.3.0.dev1", "4.3"]
)
def test_every_patch_of_a_minor_release_that_was_run_is_taken(version: str):
    must_have_been_run(version)


@pytest.mark.parametrize("version", ["3.5.8", "4.4.0", "4.4.0.dev2", "4.30.0", "5.0.0", "unknown"])
def test_a_minor_release_that_was_never_run_is_refused_with_those_that_were(
    version: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pyspark, "__version__", version)
    with pytest.raises(ConfigurationError) as caught:
        ow.spark_conf()
    assert f"PySpark {version}," in caught.value.message
    assert all(known in caught.value.message for known in RUN_WITH)
    assert caught.value.next_step == 'pip install "pyspark~=4.3.0"'


@pytest.mark.parametrize(
    ("version", "major"), [("4.0.0", 17), ("4.1.3", 21), ("4.2.0", 25), ("4.3.0", 17)]
)
def test_a_java_on_which_that_spark_starts_is_taken(version: str, major: int):
    must_start_on(Path("/java"), major, version)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.1"])
def test_a_java_that_is_too_new_for_that_spark_is_refused(version: str):
    with pytest.raises(
        ConfigurationError, match=rf"/java is Java 25, and PySpark {version} .* later than 21"
    ) as caught:
        must_start_on(Path("/java"), 25, version)
    assert caught.value.next_step == "point JAVA_HOME at Java 21 or 17"


def test_a_missing_java_is_named_although_the_jars_are_known(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv(SUBMITTED_VARIABLE, raising=False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java_found.cache_clear()
    with raises(ConfigurationError):
        ow.spark_conf()


def test_pip_resolves_no_minor_release_that_was_never_run():
    first_unknown = int(RUN_WITH[-1].split(".")[1]) + 1
    assert f'"pyspark>=4.0,<4.{first_unknown}"' in (ROOT / "pyproject.toml").read_text()


def test_the_page_on_deploying_names_each_of_them():
    page = (ROOT / "docs/how-to/deploying.md").read_text()
    assert [version for version in RUN_WITH if f"| {version} |" not in page] == []
