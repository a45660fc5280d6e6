"""The rules of the house that a machine can check."""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "onceward"
NAMES_WITHOUT_PURPOSE = {"utils", "util", "common", "helpers", "helper", "core", "misc"}

MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:work|tmp|root|home/\w+|Users/\w+)/")
"""Absolute paths that exist on somebody's machine only."""

PRIVATE_ADDRESSES = re.compile(
    r"\b(?:10\.\d+\.\d+\.\d+|192\.168\.\d+\.\d+|172\.(?:1[6-9]|2\d|3[01])\.\d+\.\d+)\b"
)

BINARY = {".bin", ".png", ".jpg", ".gif", ".gz", ".parquet", ".avro"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def repository_files() -> list[Path]:
    """Tracked files and those about to be: what `git add` would take."""
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, check=False,
    )  # fmt: skip
    if listing.returncode != 0:
        pytest.skip("not a git repository: a source archive has no list of tracked files")
    files = (ROOT / os.fsdecode(name) for name in listing.stdout.split(b"\0") if name)
    return [
        file
        for file in files
        if file.is_file() and file.suffix not in BINARY and file != Path(__file__)
    ]


def test_every_module_says_what_it_is():
    """What is it, who calls it, where does it run?"""
    silent = [
        str(module.relative_to(ROOT))
        for module in modules()
        if not ast.get_docstring(ast.parse(module.read_text()))
    ]
    assert silent == []


def test_a_long_module_says_why():
    silent = [
        str(module.relative_to(ROOT))
        for module in modules()
        if len((text := module.read_text()).splitlines()) > 500
        and "longer than 500 lines" not in (ast.get_docstring(ast.parse(text)) or "")
    ]
    assert silent == []


@pytest.mark.parametrize(
    "module", [*sorted((SOURCE / "spark").glob("*.py"))], ids=lambda module: module.name
)
def test_py4j_never_looks_at_the_methods_of_sparks_environment(module: Path):
    """One of them names a class that no jar of PySpark has, since 4.3;
    `spark/batch/shuffles.py` goes around it.
    """
    calls = re.findall(r"\.env\(\)\s*\.|SparkEnv\.get", module.read_text())
    assert calls == [], "use onceward.spark.batch.shuffles"


def test_no_folder_or_module_has_a_name_without_purpose():
    named = {
        part.removesuffix(".py")
        for module in modules()
        for part in module.relative_to(SOURCE).parts
    }
    assert named & NAMES_WITHOUT_PURPOSE == set()


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, PRIVATE_ADDRESSES], ids=["paths", "addresses"])
def test_no_file_speaks_of_somebodys_machine(pattern: re.Pattern[str]):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:120]}"
        for file in repository_files()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_lock_names_no_index_and_has_a_hash_for_everything():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock
    assert not re.search(
        r"^\s*--(?:index-url|extra-index-url|find-links|trusted-host)", lock, re.MULTILINE
    )
    requirements = re.split(r"\n(?=\S)", lock)
    assert [
        entry.splitlines()[0] for entry in requirements if "==" in entry and "--hash=" not in entry
    ] == []


def test_imports_point_down_the_way_of_a_batch():
    lint_imports = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(lint_imports), "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_modules_import_each_other_in_a_circle():
    """Not even for their types: whoever is below says what it needs by a protocol of its own."""
    graph = grimp.build_graph("onceward", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        tuple(TopologicalSorter(imports).static_order())
    except CycleError as circle:
        pytest.fail(" → ".join(reversed(circle.args[1])))


def test_the_map_walks_the_layers_of_the_house():
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    layers = [
        line.split(" | ")
        for line in rules["importlinter:contract:layers"]["layers"].strip().splitlines()
    ]
    table = (ROOT / "ARCHITECTURE.md").read_text().split("## The map")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert [name for layer in layers for name in layer] == [
        name.strip("`/") for row in rows for name in row.split(", ")
    ]


def test_no_class_is_a_house_of_its_own():
    classes = [
        (f"{module.relative_to(SOURCE)}: {node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for module in modules()
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef)
    ]
    assert [(name, lines) for name, lines in classes if lines >= 490] == []


def test_only_one_room_touches_the_jvm():
    """``_jvm`` and its kin: what Spark keeps to itself, and may change with any version."""
    inside = re.compile(r"\b_j(?:vm|df|sc|sq|sparkSession|write|query|dstream|map)\b")
    elsewhere = [module for module in modules() if module.relative_to(SOURCE).parts[0] != "spark"]
    assert [str(module) for module in elsewhere if inside.search(module.read_text())] == []


def test_every_public_name_explains_itself():
    onceward = importlib.import_module("onceward")
    public = getattr(onceward, "__all__", [])
    silent = [
        name
        for name in public
        if name != "__version__" and not getattr(getattr(onceward, name), "__doc__", None)
    ]
    assert silent == []


def test_no_default_is_the_environment():
    """``help()`` prints defaults, and with this one every variable of the process, secrets
    included.
    """
    defaults = [
        (module.name, ast.unparse(default))
        for module in modules()
        for function in ast.walk(ast.parse(module.read_text()))
        if isinstance(function, ast.FunctionDef)
        for default in (*function.args.defaults, *function.args.kw_defaults)
        if default
    ]
    assert [(module, text) for module, text in defaults if "environ" in text] == []
