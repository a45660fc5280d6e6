"""Jars leave the import path of a Python worker; zips and eggs, which hold Python code, stay."""

from __future__ import annotations

import sys
import zipfile
import zipimport
from pathlib import Path
from types import ModuleType

import pytest

from onceward.spark.session.zip_importers import drop_zip_importers


@pytest.fixture
def archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A jar, a zip and an egg on the import path, each with a module and an importer, as PySpark
    leaves them.
    """
    paths = {}
    for kind in ("jar", "zip", "egg"):
        path = tmp_path / f"archive.{kind}"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(f"module_in_{kind}.py", f"WHERE = {kind!r}\n")
        paths[kind] = str(path)
    monkeypatch.setattr(sys, "path", [*sys.path, *paths.values()])
    cache = sys.path_importer_cache | {
        path: zipimport.zipimporter(path) for path in paths.values()
    }
    monkeypatch.setattr(sys, "path_importer_cache", cache)
    return paths


def test_jars_go_and_archives_of_python_code_stay(archives: dict[str, str]):
    before = [entry for entry in sys.path if entry != archives["jar"]]
    drop_zip_importers()
    assert sys.path == before
    assert archives["jar"] not in sys.path_importer_cache
    assert isinstance(sys.path_importer_cache[archives["zip"]], zipimport.zipimporter)
    assert isinstance(sys.path_importer_cache[archives["egg"]], zipimport.zipimporter)


def test_importers_of_folders_inside_a_jar_go_too(
    archives: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    inside = archives["jar"] + "/org"
    monkeypatch.setitem(sys.path_importer_cache, inside, zipimport.zipimporter(archives["jar"]))
    drop_zip_importers()
    assert inside not in sys.path_importer_cache


def test_code_in_a_zip_is_still_importable(archives: dict[str, str]):
    drop_zip_importers()
    try:
        assert __import__("module_in_zip").WHERE == "zip"
        with pytest.raises(ModuleNotFoundError):
            __import__("module_in_jar")
    finally:
        sys.modules.pop("module_in_zip", None)


def test_the_list_itself_is_changed_since_others_hold_it(archives: dict[str, str]):
    held = sys.path
    drop_zip_importers()
    assert sys.path is held


@pytest.mark.lengthy("ci")
def test_the_archives_that_pyspark_itself_came_from_are_not_read_again_for_every_task(
    archives: dict[str, str], monkeypatch: pytest.MonkeyPatch
):
    importer = zipimport.zipimporter(archives["zip"])
    spark = ModuleType("pyspark")
    spark.__loader__ = importer
    monkeypatch.setitem(sys.modules, "pyspark", spark)
    monkeypatch.setitem(sys.path_importer_cache, archives["zip"] + "/package", importer)

    drop_zip_importers()

    assert [path for path in sys.path_importer_cache if path.startswith(archives["zip"])] == []
    assert archives["zip"] in sys.path
    assert archives["egg"] in sys.path_importer_cache
