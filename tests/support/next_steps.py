"""Follows what an error says to do: a pattern takes the offered words out of its text, and what is
done with them must end well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from onceward.errors import OncewardError

Wrong = Callable[[], object]
Done = Callable[..., object]
Row = tuple[Wrong, str, Done]
"""What goes wrong, a pattern for its next step, and what is done with the pattern's groups."""


def advice(wrong: Wrong) -> str:
    """Return the next step of the error that ``wrong`` raises."""
    with pytest.raises(OncewardError) as refused:
        wrong()
    return refused.value.next_step


def follow(wrong: Wrong, says: str, done: Done) -> None:
    """Provoke the error, and do what its next step says."""
    step = advice(wrong)
    found = re.search(says, step)
    assert found is not None, f"{says!r} is not in {step!r}"
    done(*found.groups())


def named(rows: list[Row]) -> list[str]:
    """Return an id for each row: where it stands, and how its pattern begins."""
    return [f"{number}-{row[1][:30]}" for number, row in enumerate(rows)]
