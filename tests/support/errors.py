"""Errors in tests: type and details in the test, the texts together in ``tests/messages.json``.

A better sentence is a change in ``src/`` and one in that file, which ``make messages`` writes; no
test names the words. The file has the texts by test function, without its cases. What differs from
run to run (paths, ids, ports) is left out.
"""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _pytest.raises import RaisesExc

MESSAGES = Path(__file__).resolve().parents[1] / "messages.json"
RECORD = "ONCEWARD_RECORD_MESSAGES"
"""Names a file to which texts are appended instead of being compared: one JSON array of test and
text a line.
"""

_VARIABLE = [
    (re.compile(r"file:/[^\s'\",;]*"), "file:/…"),
    (re.compile(r"(?<![\w/:.])(?:/[\w.@=+~\[\]-]+){2,}"), "/…"),
    (
        re.compile(
            r"(?<![0-9A-Za-z])(?=[a-f]*\d|[a-f]{10})[0-9a-f]{7,}(?:-[0-9a-f]+)*(?![0-9A-Za-z])"
        ),
        "…",
    ),
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"memory://\d+"), "memory://#"),
    (re.compile(r"\d{4,}|\b\d+(?= ms\b)"), "#"),
]

E = TypeVar("E", bound=BaseException)


def raises(kind: type[E] | tuple[type[E], ...], *names: str, **details: Any) -> RaisesExc[E]:
    """Expect an error of this type, with these details at least, and the text known for this test.

    :param names: settings, columns or other resources that the error has to name; no words.
    :raises AssertionError: on leaving the block, if it is another error.
    """

    def check(error: BaseException) -> bool:
        found = getattr(error, "details", {})
        assert {name: found.get(name) for name in details} == details, (
            f"{error!r} has the details {found}"
        )
        assert [name for name in names if name not in str(error)] == [], f"not named by {error!r}"
        _compare(_test(), f"{type(error).__name__}: {_constant(str(error))}")
        return True

    return pytest.raises(kind, check=check)


def stale() -> list[str]:
    """Return the tests that ``tests/messages.json`` names and that are not there."""
    root = MESSAGES.parents[1]
    return [test for test in _messages() if not _is_there(root, *test.split("::")[:2])]


def fold(recorded: Path) -> None:
    """Put the recorded texts in the place of those that ``tests/messages.json`` has of the same
    tests.
    """
    new: dict[str, list[str]] = {}
    for line in recorded.read_text().splitlines():
        test, text = json.loads(line)
        if text not in new.setdefault(test, []):
            new[test].append(text)
    gone = stale()
    kept = {test: texts for test, texts in _messages().items() if test not in gone}
    messages = {test: sorted(texts) for test, texts in sorted({**kept, **new}.items())}
    MESSAGES.write_text(json.dumps(messages, indent=1, ensure_ascii=False) + "\n")


def _compare(test: str, text: str) -> None:
    if RECORD in os.environ:
        with Path(os.environ[RECORD]).open("a") as file:
            file.write(json.dumps([test, text]) + "\n")
    elif text not in (known := _messages().get(test, [])):
        pytest.fail(
            f"if this text is right, `make messages ARGS={test}`:\n  {text}\nknown are:\n  "
            + "\n  ".join(known)
        )


def _constant(text: str) -> str:
    for pattern, place in _VARIABLE:
        text = pattern.sub(place, text)
    return text


def _test() -> str:
    """Return the id of the test that runs, without its case."""
    return os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0].partition("[")[0]


def _is_there(root: Path, file: str, name: str) -> bool:
    """Whether the file has the function, or the class of tests, of this name."""
    text = (root / file).read_text() if (root / file).exists() else ""
    return re.search(rf"^(def|class) {name}\b", text, re.MULTILINE) is not None


@cache
def _messages() -> dict[str, list[str]]:
    messages: dict[str, list[str]] = json.loads(MESSAGES.read_text()) if MESSAGES.exists() else {}
    return messages


if __name__ == "__main__":
    fold(Path(sys.argv[1]))
