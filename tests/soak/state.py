"""What a soak must remember to be continued after it was interrupted, in its folder."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass
class State:
    """``elapsed_s``: time under faults so far. ``position``: the next fault of the plan.
    ``starts``: of the soak.
    """

    seed: int
    commit: str
    position: int = 0
    elapsed_s: float = 0.0
    lives: int = 0
    starts: int = 0
    healing_s: float = 0.0


class SoakFolder:
    """Where everything of one soak lies."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.path.mkdir(parents=True, exist_ok=True)
        self.brokers = self.path / "brokers"
        self.checkpoints = self.path / "checkpoints"
        self.lives = self.path / "lives"
        self.account = self.path / "feeder-account.json"
        self._state = self.path / "state.json"
        self._journal = self.path / "journal.jsonl"

    def load(self) -> State | None:
        """None for a folder without a soak."""
        return State(**json.loads(self._state.read_text())) if self._state.exists() else None

    def save(self, state: State) -> None:
        unfinished = self._state.with_suffix(".new")
        unfinished.write_text(json.dumps(asdict(state)))
        unfinished.replace(self._state)

    def note(self, what: str, **more: Any) -> None:
        """One line in the journal: a fault that was carried out, a life that ended."""
        with self._journal.open("a") as journal:
            journal.write(json.dumps({"what": what, "at": time.time(), **more}) + "\n")

    def journal(self) -> list[dict[str, Any]]:
        return list(_lines(self._journal))

    def life(self, number: int) -> Path:
        folder = self.lives / f"{number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def news(self) -> Iterator[dict[str, Any]]:
        """What every life of the driver has told, oldest first."""
        for path in sorted(self.lives.glob("*/news.jsonl")):
            yield from _lines(path)

    def fired(self) -> Iterator[dict[str, Any]]:
        """The fault points that fired inside the drivers."""
        for path in sorted(self.lives.glob("*/fired.jsonl")):
            yield from _lines(path)


def commit_under_test(folder: Path) -> str:
    """The commit of the working tree, with a ``+`` when ``src`` differs from it; "unknown" outside
    a repository.
    """
    described = subprocess.run(
        ["git", "rev-parse", "--short=12", "HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    changed = (
        subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", "src"], cwd=folder, check=False
        ).returncode
        == 1
    )
    return described.stdout.strip() + "+" * changed if described.returncode == 0 else "unknown"


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().split("\n")[
            :-1
        ]:  # without one that was being written when its writer was killed
            if line:
                yield json.loads(line)
