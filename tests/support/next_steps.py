"""Follows what an error says to do: a pattern takes the offered words out of its text, and what is
done with them must end well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import onceward as ow
from onceward.errors import OncewardError
from onceward_verify.findings import CannotTell

Wrong = Callable[[], object]
Done = Callable[..., object]
Row = tuple[Wrong, str, Done]
"""What goes wrong, a pattern for its next step, and what is done with the pattern's groups."""


def advice(wrong: Wrong) -> str:
    """Return the next step of the error that ``wrong`` raises."""
    with pytest.raises((OncewardError, CannotTell)) as refused:
        wrong()
    error: Any = refused.value
    return str(error.next_step)


def follow(wrong: Wrong, says: str, done: Done) -> None:
    """Provoke the error, and do what its next step says."""
    step = advice(wrong)
    found = re.search(says, step)
    assert found is not None, f"{says!r} is not in {step!r}"
    done(*found.groups())


def follow_whole(wrong: Wrong, says: str, done: Done) -> None:
    """Follow a next step that has no other words than the pattern."""
    follow(wrong, rf"\A(?:{says})\Z", done)


def case_name(part: object) -> str:
    """Name a case by its words; a function has none."""
    return part[:30] if isinstance(part, str) else ""


def named(rows: list[Row]) -> list[str]:
    """Return an id for each row: where it stands, and how its pattern begins."""
    return [f"{number}-{row[1][:30]}" for number, row in enumerate(rows)]


class AnsweringSink(ow.TwoPhaseCommitSink):
    """Answers what it is told to."""

    found: Any = ()
    answer: Any = None

    def begin(self, task: ow.custom.Task) -> ow.TaskWriter:
        raise NotImplementedError

    def commit(self, committable: Any) -> Any:
        return self.answer

    def abort(self, committable: Any) -> None:
        raise NotImplementedError

    def recover(self) -> Any:
        return self.found
