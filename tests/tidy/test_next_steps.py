"""What an error advises can be done as it is printed: each command is one that the command line
takes, each name of ``ow`` is there, and each setting is one of a public function.

Read from the sources, so that a step is found before anybody meets it.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

import onceward as ow
import onceward_testing
from onceward.cli import app

SOURCES = Path(ow.__file__).parents[1]
HOLE = "1"
"""In the place of what is known when the error is raised: a number and a word at once."""

OF_OTHERS = {
    "LC_ALL", "PYSPARK_PIN_THREAD", "acks", "availableNow", "delay", "gtid_mode", "map", "password",
    "processingTime", "tzinfo", "username", "values",
}  # fmt: skip
"""Of the environment, of Kafka, of servers, and of functions of Spark and Python;
``delay`` is one of the variable of faults."""
LOGGED = re.compile(r"(?:Next: |\()onceward ([a-z-]+ [^)\n]+)")
"""Commands that no error has: in log lines and in alerts."""
ALERTS = SOURCES / "onceward" / "operate" / "files" / "onceward-alerts.yml"


@functools.cache
def strings() -> list[tuple[str, str, bool]]:
    """Of each text: where it stands, the text, and whether it is a next step's own. Not at
    import: each worker would read all sources to collect a test that another one runs.
    """
    return list(_strings())


def _strings() -> Iterator[tuple[str, str, bool]]:
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text())
        steps = {
            id(node)
            for keyword in ast.walk(tree)
            if isinstance(keyword, ast.keyword) and keyword.arg == "next_step"
            for node in ast.walk(keyword.value)
        }
        inner = {
            id(node)
            for joined in ast.walk(tree)
            if isinstance(joined, ast.JoinedStr)
            for node in ast.walk(joined)
            if node is not joined
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else HOLE
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) in inner:
                    continue
                text = node.value
            else:
                continue
            yield f"{path.relative_to(SOURCES)}:{node.lineno}", text, id(node) in steps


def _commands() -> list[tuple[str, str]]:
    return [
        (where, command)
        for where, text, _ in [*strings(), (ALERTS.name, ALERTS.read_text(), False)]
        for command in [
            *re.findall(r"(?<!`)`onceward ([a-z]+(?:-[a-z]+)* [^`]+)`(?!`)", text),
            *LOGGED.findall(text),
        ]
    ]


def _parse(words: list[str]) -> None:
    """As the command line does it, but for running the command."""
    command: Any = typer.main.get_command(app)
    context = None
    while True:
        context = command.make_context(command.name, list(words), parent=context)
        if not hasattr(command, "resolve_command"):
            return
        _, command, words = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )


def test_there_are_many():
    assert len([step for _, _, step in strings() if step]) > 600
    assert len(_commands()) > 15


def test_each_command_is_taken_as_it_is_printed(monkeypatch: pytest.MonkeyPatch):
    """Once the shell names the brokers, for those that leave them out."""
    monkeypatch.setenv("ONCEWARD_BOOTSTRAP_SERVERS", "broker:9092")
    refused = []
    for where, command in _commands():
        words = shlex.split(re.sub(r"<[^>]*>|\{\{[^}]*\}\}|%s|…", HOLE, command))
        try:
            _parse(words)
        except Exception as error:  # noqa: BLE001 — Typer has a Click of its own, unnamed
            refused.append(f"{where}: `onceward {command}` is refused: {error}")
    assert refused == []


def test_each_name_of_ours_is_there():
    missing = []
    for where, text, _ in strings():
        for name in re.findall(r"\bow\.([A-Za-z_]+(?:\.[A-Za-z_]+)*)", text):
            found: object = ow
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is None:
                missing.append(f"{where}: ow.{name}")
    assert missing == []


def _settings() -> set[str]:
    found = set()
    for name in [*ow.__all__, *onceward_testing.__all__]:
        public = getattr(ow, name, None) or getattr(onceward_testing, name)
        for thing in (public, *vars(public).values()) if inspect.isclass(public) else (public,):
            if callable(thing):
                try:
                    found.update(inspect.signature(thing).parameters)
                except (TypeError, ValueError):
                    continue
        if inspect.ismodule(public):
            for thing in vars(public).values():
                if callable(thing) and getattr(thing, "__module__", "").startswith("onceward"):
                    found.update(inspect.signature(thing).parameters)
    return found


def test_each_setting_is_one_of_a_public_function():
    known = _settings() | OF_OTHERS
    missing = [
        f"{where}: {name}="
        for where, text, step in strings()
        if step
        for name in re.findall(r"(?<![\w.-])([A-Za-z_]+)=", text)
        if name not in known
    ]
    assert missing == []
