"""What a page says can be checked without running a job: links, lengths, names of settings and
errors, shell syntax.

Code blocks are run by ``tests/docs``.
"""

from __future__ import annotations

import ast
import configparser
import inspect
import re
import runpy
import subprocess
from pathlib import Path

import pytest

import onceward
from onceward import errors
from onceward.kafka.wire.options.settings import OPTIONS
from support import markdown_pages as markdown
from support.markdown_pages import ROOT

MOST_WORDS = {"README.md": 900, "ARCHITECTURE.md": 1800, "docs/reference/guarantees.md": 2000}
MOST_GLOSSARY_ENTRIES = 30
LANGUAGES = {"python", "bash", "diff", "sql", "ini", "yaml", "text"}
NOT_PARSED = {"sql": "a server runs it, with its page", "yaml": "for Kubernetes", "text": "output"}
DOCS = ROOT / "docs"
GROUPS = ("tutorial", "how-to", "reference", "explanation")


def error_names() -> set[str]:
    """The tree that users may meet; further subclasses elsewhere never leave the modules that
    catch them.
    """
    return {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }


def parameters(function: object) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self", "spark"}


def table_names(page: Path, section: str) -> set[str]:
    """What stands as code in the first column of the tables of one section."""
    text = page.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    first_cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    return {name for cell in first_cells for name in re.findall(r"`([\w.]+)`", cell)}


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name_of)
def test_links_lead_somewhere(page: Path):
    dead = []
    for number, target in markdown.links(page):
        path, _, anchor = target.partition("#")
        if re.match(r"\w+:", path):
            continue
        there = (page.parent / path).resolve() if path else page
        if not there.exists() or (
            anchor and there.suffix == ".md" and anchor not in markdown.anchors(there)
        ):
            dead.append(f"{markdown.name_of(page)}:{number}: {target}")
    assert dead == []


def test_every_docs_page_is_listed():
    listed = [
        (DOCS / target.partition("#")[0]).resolve()
        for _, target in markdown.links(DOCS / "README.md")
    ]
    pages = {page.resolve() for group in GROUPS for page in (DOCS / group).rglob("*.md")}
    assert {page for page in pages if listed.count(page) != 1} == set()


def test_every_docs_page_is_in_a_group():
    assert {path.name for path in DOCS.iterdir()} == {
        "README.md",
        "adr",
        "pictures",
        "tables",
        *GROUPS,
    }


@pytest.mark.parametrize(("page", "words"), MOST_WORDS.items())
def test_pages_stay_short(page: str, words: int):
    assert len((ROOT / page).read_text().split()) <= words


def test_the_glossary_stays_short():
    glossary = (ROOT / "ARCHITECTURE.md").read_text().split("\n## Glossary\n")[1]
    assert (
        10 < len(re.findall(r"^\| (?!word |-)", glossary, re.MULTILINE)) <= MOST_GLOSSARY_ENTRIES
    )


def test_the_readme_defines_its_words():
    prose = "\n".join(line for _, line in markdown.prose(ROOT / "README.md"))
    for word in ("ledger", "epoch"):
        assert (
            re.search(rf"\b{word}\b", prose, re.IGNORECASE).start()
            == prose.index(f"**{word}**") + 2
        )
    assert prose.index("**epoch**") > prose.index("## Install")


def test_the_picture_is_what_is_drawn():
    drawn = runpy.run_path(str(DOCS / "pictures" / "one_batch.py"))["picture"]()
    assert (DOCS / "pictures" / "one_batch.svg").read_text(encoding="utf-8") == drawn


def test_every_error_has_an_entry():
    page = DOCS / "reference" / "troubleshooting.md"
    entries = dict(
        re.findall(r"^### `(\w+)`\n(.*?)(?=^##)", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    assert set(entries) == error_names() - {"OncewardError"}
    for name, entry in entries.items():
        assert "**What happened.**" in entry, name
        assert "**What to do.**" in entry, name


def test_the_page_knows_what_is_retried():
    """An error that the sink tries again by itself says so, or stands in the chapter of those that
    all are.
    """
    text = (DOCS / "reference" / "troubleshooting.md").read_text()
    chapter = text.split("\n## An attempt failed\n")[1].split("\n## ")[0]
    said = set(re.findall(r"^### `(\w+)`\n", chapter, re.MULTILINE))
    said |= set(
        re.findall(
            r"^### `(\w+)`\n\n\*\*What happened\.\*\* [^*]*\bTried again\.", text, re.MULTILINE
        )
    )
    assert said == {
        name
        for name in error_names()
        if getattr(errors, name).recovery is errors.Recovery.RUN_AGAIN
    }


@pytest.mark.parametrize(
    ("section", "function"),
    [("The sink", onceward.KafkaSink.__init__), ("The source", onceward.kafka_source)],
)
def test_every_parameter_is_documented(section: str, function: object):
    columns = (
        {"value", "key", "topic", "partition", "headers", "timestamp"}
        if section == "The sink"
        else set()
    )
    assert (
        table_names(DOCS / "reference" / "configuration.md", section) - columns
        == parameters(function) - columns
    )


def test_every_kafka_setting_is_documented():
    assert table_names(DOCS / "reference" / "configuration.md", "Kafka's own settings") == set(
        OPTIONS
    )


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name_of)
def test_code_blocks_can_be_parsed(page: Path):
    for block in markdown.blocks(page):
        if name_is_prose(block):
            continue
        assert block.language in LANGUAGES, f"{block.name}: name the block's language"
        if block.language == "bash":
            done = subprocess.run(
                ["bash", "-n"], input=block.text, text=True, capture_output=True, check=False
            )
            assert done.returncode == 0, f"{block.name}: {done.stderr}"
            assert make_targets(block.text) <= targets(), block.name
        elif block.language == "ini":
            configparser.ConfigParser(strict=False, interpolation=None).read_string(block.text)
        elif block.language not in NOT_PARSED:
            text = markdown.new_side(block.text) if block.language == "diff" else block.text
            ast.parse(text, block.name)


@pytest.mark.parametrize("page", markdown.pages(), ids=markdown.name_of)
def test_a_pipeline_is_verified_somewhere(page: Path):
    """No variable of the shell says where, as it does for other commands."""
    text = page.read_text().replace("\\\n", " ")
    commands = [" ".join(one.split()) for one in re.findall(r"`(onceward verify [^`]+)`", text)]
    commands += re.findall(r"(?m)^onceward verify .*$", text)
    wheres = ("--bootstrap-servers ", "--database-url ", "--files ")
    nowhere = [
        one for one in commands if "--pipeline-id" in one and not any(w in one for w in wheres)
    ]
    assert nowhere == []


def test_the_alert_for_a_job_that_pushes_is_of_the_job_that_the_page_pushes():
    text = (DOCS / "how-to" / "monitoring.md").read_text()
    (pushed,) = re.findall(r'push_metrics\(.*job="(\w+)"', text)
    assert re.findall(r'push_time_seconds\{job="(\w+)"\}', text) == [pushed]


def name_is_prose(block: markdown.Block) -> bool:
    """Blocks of pages that others than users read may hold anything, without a language."""
    return not block.language and block.page.startswith(
        ("docs/adr", "CONTRIBUTING", "ARCHITECTURE")
    )


def make_targets(script: str) -> set[str]:
    return set(re.findall(r"^make ([a-z-]+)", script, re.MULTILINE))


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
