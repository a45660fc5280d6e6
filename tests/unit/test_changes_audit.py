"""The audit of change streams finds each way in which one can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "chaos"))
from changes_audit import Change, Key, Row, amiss, never_came

KEY = ("shop.orders", "1")


def row(value: int) -> Row:
    return {"id": "1", "v": str(value)}


def change(op: str, before: int | None, after: int | None, key: Key = KEY) -> Change:
    return Change(
        key, op, None if before is None else row(before), None if after is None else row(after)
    )


HAPPENED = [change("c", None, 1), change("u", 1, 2), change("u", 2, 3), change("u", 3, 2)]
RIGHT = [change("r", None, 2), change("u", 2, 3), change("u", 3, 2)]


@pytest.mark.parametrize("stream", [HAPPENED, RIGHT, [change("r", None, 2)]])
def test_what_is_right_passes(stream: list[Change]):
    assert amiss(HAPPENED, stream, {KEY: row(2)}) == []


@pytest.mark.parametrize(
    "stream",
    [
        [],
        RIGHT[:-1],
        [RIGHT[0], *RIGHT[2:]],
        [*RIGHT, RIGHT[-1]],
        [RIGHT[0], RIGHT[2], RIGHT[1]],
        [change("r", None, 1), *RIGHT[1:]],
        [*RIGHT, RIGHT[0]],
        HAPPENED[1:],
        [HAPPENED[0], *HAPPENED],
        [*RIGHT, change("d", 2, None)],
    ],
    ids=[
        "nothing",
        "end",
        "middle",
        "twice",
        "order",
        "stale",
        "late",
        "headless",
        "insert twice",
        "made up",
    ],
)
def test_what_is_wrong_is_told(stream: list[Change]):
    assert len(amiss(HAPPENED, stream, {KEY: row(2)})) == 1


def test_a_key_of_which_nothing_came():
    gone = [change("c", None, 1, ("t", "7")), change("d", 1, None, ("t", "7"))]
    assert (
        amiss([*HAPPENED, *gone], HAPPENED, {KEY: row(2)}) == []
    )  # it was gone before the snapshot, maybe
    assert never_came([*HAPPENED, *gone], HAPPENED, since=len(HAPPENED)) == [str(("t", "7"))]
    assert never_came([*HAPPENED, *gone], HAPPENED, since=len(HAPPENED) + 2) == []
