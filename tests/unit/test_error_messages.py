"""How tests assert on errors: by type and details, and by the texts that stand in
``tests/messages.json``.
"""

from __future__ import annotations

import os

import pytest

from onceward.errors import AccessDenied, TopicMissing
from support import errors
from support.errors import raises

HERE = "tests/unit/test_error_messages.py::test_an_error_passes_only_with_its_type_its_details_and_its_text"
KNOWN = {HERE: ["TopicMissing: no topic in /…, session …, port #. Next: create it."]}

TEXT = "no topic in /data/a/b.c, session 0f3a77be-1c, port 40961"


def missing(text: str = TEXT, *, partition: int = 3) -> TopicMissing:
    details = {"topic": "t", "partition": partition}
    return TopicMissing(text, next_step="create it", details=details)


OTHERS = [
    missing("another text"),
    missing(partition=4),
    AccessDenied(TEXT, details={"partition": 3}),
]


@pytest.mark.parametrize("error", [None, *OTHERS], ids=repr)
def test_an_error_passes_only_with_its_type_its_details_and_its_text(
    error: Exception | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(errors.RECORD, raising=False)
    monkeypatch.setattr(errors, "_messages", lambda: KNOWN)
    if error is None:
        with raises(TopicMissing, "b.c", partition=3) as caught:
            raise missing()
        assert caught.value.details["topic"] == "t"
        return
    with (
        pytest.raises((AssertionError, pytest.fail.Exception, AccessDenied)),
        raises(TopicMissing, "/a/b.c", partition=3),
    ):
        raise error


def test_the_texts_are_of_tests_that_are_there():
    assert errors.stale() == []
    assert os.environ["PYTEST_CURRENT_TEST"].startswith(errors._test())
