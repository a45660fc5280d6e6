"""Who runs in ``make bench``, and from which package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from typer.testing import CliRunner

import onceward
from benchmarks import job
from benchmarks.__main__ import app
from benchmarks.contenders import latency_contenders, package_root, throughput_contenders
from benchmarks.plan import (
    BEFORE,
    LOCAL_DISK,
    ONCEWARD,
    SOURCE,
    SPARK_DEFAULTS,
    SPARK_LOCAL_DISK,
    SPARK_TUNED,
)
from onceward.errors import ConfigurationError
from support.errors import raises


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a package of our name."""
    package = tmp_path / "checkout" / "src" / "onceward"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    return tmp_path / "checkout"


def test_before_is_imported_from_its_checkout(checkout: Path) -> None:
    contenders = {contender.name: contender for contender in throughput_contenders(checkout)}

    assert list(contenders) == [SOURCE, SPARK_DEFAULTS, SPARK_TUNED, BEFORE, ONCEWARD]
    assert contenders.pop(BEFORE).package_root == checkout / "src"
    here = Path(onceward.__file__).parent.parent
    assert {contender.package_root for contender in contenders.values()} == {here}


def test_only_one_row_keeps_sparks_settings() -> None:
    contenders = throughput_contenders(None)

    assert [contender.name for contender in contenders if contender.settings == "spark"] == [
        SPARK_DEFAULTS
    ]
    assert [contender.name for contender in contenders if contender.sink == "kafka"] == [
        SPARK_DEFAULTS,
        SPARK_TUNED,
    ]


def test_latency_is_measured_of_both_versions(checkout: Path) -> None:
    assert [contender.name for contender in latency_contenders(checkout)] == [
        SPARK_DEFAULTS,
        SPARK_LOCAL_DISK,
        BEFORE,
        ONCEWARD,
        LOCAL_DISK,
    ]


def test_a_folder_with_the_package_will_do(checkout: Path) -> None:
    assert package_root(checkout / "src") == checkout / "src"


def test_a_folder_without_the_package_is_refused(tmp_path: Path) -> None:
    with raises(ConfigurationError):
        package_root(tmp_path)


@pytest.mark.parametrize("given", ["4,x", "0", "4,4", "", "4,-1"])
def test_odd_partitions_are_refused(given: str) -> None:
    result = CliRunner().invoke(app, ["--output-partitions", given])

    assert result.exit_code == 64
    assert "write it like --output-partitions 4,16" in result.output


def test_the_job_imports_public_names_only() -> None:
    """It runs beside other versions of the package, of which nothing else is sure to be there."""
    tree = ast.parse(Path(job.__file__).read_text())

    froms = {
        node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert {module for module in froms if module.startswith("onceward")} == {"onceward"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "onceward"
    }
    assert used - {"__file__"} <= set(onceward.__all__)
