"""What decides asks ``onceward.surroundings`` for time, threads and chance, or the simulation
would not be asked.
"""

from __future__ import annotations

import ast
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src/onceward"
DECIDES = (
    "engine",
    "ledger",
    "sinks",
    "kafka/wire/appends",
    "kafka/wire/transactions",
    "kafka/wire/reads",
    "wire",
)
DOORS = {"time", "secrets", "random", "uuid"}

# Where a process really ends: sockets, files, other people's libraries.
ALLOWED = {
    "kafka/wire/connections.py": "the IO thread and its sockets",
    "kafka/wire/kafka_python.py": "the same",
    "kafka/sink/sequencer/listener.py": "a listening socket and its thread",
}


def test_what_decides_goes_through_the_door() -> None:
    strays = []
    for folder in DECIDES:
        files = (
            (PACKAGE / folder).glob("*.py")
            if folder == "wire"
            else (PACKAGE / folder).rglob("*.py")
        )
        for file in files:
            name = file.relative_to(PACKAGE).as_posix()
            if name not in ALLOWED:
                strays += [f"{name}: {stray}" for stray in _strays(file)]
    assert not strays, "\n".join(strays)


def _strays(file: Path) -> list[str]:
    tree = ast.parse(file.read_text())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    threads = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        for node in [node.func]
        if isinstance(node.value, ast.Name)
        and node.value.id == "threading"
        and node.attr != "Lock"
    }
    return sorted(imported & DOORS) + sorted(f"threading.{name}" for name in threads)
