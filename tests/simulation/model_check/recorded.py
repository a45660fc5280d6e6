"""What real brokers have said, as JSON beside this module: one file a cluster, one conversation
after the other.
"""

from __future__ import annotations

import json
from pathlib import Path

from simulation.model_check.talk import Fact

_FOLDER = Path(__file__).parent / "recorded"


def read(cluster: str) -> dict[str, list[Fact]]:
    """Conversation → what was said, by the brokers of ``cluster``."""
    found = _FOLDER / f"{cluster}.json"
    return json.loads(found.read_text()) if found.exists() else {}


def write(cluster: str, said: dict[str, list[Fact]]) -> None:
    """One fact a line, so that a difference can be read."""
    _FOLDER.mkdir(exist_ok=True)
    blocks = []
    for name in sorted(said):
        facts = ",\n".join(f"  {json.dumps(fact)}" for fact in said[name])
        blocks.append(f" {json.dumps(name)}: [\n{facts}\n ]")
    (_FOLDER / f"{cluster}.json").write_text("{\n" + ",\n".join(blocks) + "\n}\n")


def as_json(facts: list[Fact]) -> list[Fact]:
    """As they come back from a file: tuples are lists."""
    again: list[Fact] = json.loads(json.dumps(facts))
    return again


def differences(name: str, expected: list[Fact], found: list[Fact]) -> list[str]:
    """Where two records of one conversation part; only the first place, as what follows is its
    consequence.
    """
    for position, (one, other) in enumerate(zip(expected, found, strict=False)):
        if one != other:
            return [f"{name}, answer {position}:\n    expected {one}\n    found    {other}"]
    if len(expected) != len(found):
        return [f"{name}: {len(expected)} answers are expected, and there are {len(found)}"]
    return []
