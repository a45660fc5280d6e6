"""The pages that users read, taken apart: blocks, headings, links. Pure; for ``tests/tidy`` and
``tests/docs``.

The dialect is GitHub's, as far as our pages use it: fenced blocks with a language, ``#`` headings,
inline links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^ {0,3}```(\w*)\s*$")
_HEADING = re.compile(r"^#{1,6} +(.*?)\s*$")
_LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``line`` is that of its opening fence."""

    page: str
    line: int
    language: str
    text: str

    @property
    def name(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, everything below ``docs`` and ``examples``, and the pages of the root that a
    newcomer opens.
    """
    top = [
        ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "ARCHITECTURE.md")
    ]
    return [
        *top,
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "examples").rglob("*.md")),
    ]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """The page's fenced blocks, in order."""
    found: list[Block] = []
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, body = (number, fence[1]), []
        elif opened is not None and fence and not fence[1]:
            found.append(Block(name_of(page), opened[0], opened[1], "\n".join(body) + "\n"))
            opened = None
        elif opened is not None:
            body.append(line)
    assert opened is None, f"{name_of(page)}:{opened}: a block that is never closed"
    return found


def prose(page: Path) -> list[tuple[int, str]]:
    """The page's lines outside of blocks, with their numbers."""
    lines: list[tuple[int, str]] = []
    inside = False
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if _FENCE.match(line):
            inside = not inside
        elif not inside:
            lines.append((number, line))
    return lines


def headings(page: Path) -> list[str]:
    """The texts of the page's headings, without marks of emphasis and code."""
    return [
        match[1].replace("`", "") for _, line in prose(page) if (match := _HEADING.match(line))
    ]


def anchors(page: Path) -> set[str]:
    """What ``#…`` may name on the page: GitHub's rule, lower case, punctuation gone, spaces as
    dashes.
    """
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings(page)}


def links(page: Path) -> list[tuple[int, str]]:
    """Every inline link's target, with its line; code spans are not looked into."""
    return [
        (number, target)
        for number, line in prose(page)
        for target in _LINK.findall(re.sub(r"`[^`]*`", "", line) if "](" not in line else line)
    ]


def new_side(diff: str) -> str:
    """What a diff block leaves: its context and what it adds."""
    return "".join(line[1:] + "\n" for line in diff.splitlines() if line[:1] in "+ ")


def old_side(diff: str) -> str:
    """What a diff block starts from."""
    return "".join(line[1:] + "\n" for line in diff.splitlines() if line[:1] in "- ")
