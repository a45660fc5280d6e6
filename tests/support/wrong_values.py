"""What somebody may pass for a setting, and what a call answers then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onceward.errors import OncewardError

WRONG: list[Any] = [
    3, -1, 0, 1.5, float("nan"), "x", "", b"x", None, True, [], [3], ["x"], {}, {"a": 3}, object(),
    print,
]  # fmt: skip


def what_is_amiss(call: Callable[[], Any]) -> str:
    """Return what is wrong with the answer: nothing when the call takes what it is given, or names
    it in a typed error with a next step.
    """
    try:
        call()
    except OncewardError as error:
        return "" if error.next_step else f"no next step: {error!r}"
    except Exception as error:  # noqa: BLE001 — whatever else it is
        return repr(error)
    return ""
