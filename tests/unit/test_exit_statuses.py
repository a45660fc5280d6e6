"""Which exit status follows from which error: over all errors, and over all ways in which one is
raised.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward import errors
from onceward.engine.calls import runs
from onceward.errors import (
    AuthenticationFailed,
    ConfigurationError,
    Fenced,
    OncewardError,
    Recovery,
    SendFailed,
)
from onceward.operate import run_job
from onceward.operate.run_job import FINAL, describe

MAY_PASS, NEEDS_A_CHANGE, FENCED = 75, 78, 79
KINDS = [
    kind
    for kind in vars(errors).values()
    if inspect.isclass(kind) and issubclass(kind, OncewardError)
]
TABLE = {
    Recovery.RUN_AGAIN: (MAY_PASS, MAY_PASS),
    Recovery.REOPEN: (MAY_PASS, MAY_PASS),
    Recovery.RESTART: (MAY_PASS, MAY_PASS),
    Recovery.RESTART_AT_ONCE: (MAY_PASS, MAY_PASS),
    Recovery.RESTART_IF_WORKED: (NEEDS_A_CHANGE, MAY_PASS),
    Recovery.STOP: (NEEDS_A_CHANGE, NEEDS_A_CHANGE),
}
RUN = "0b5c6a52-0ff4-4f4f-9a0e-1f9d6f4b7c11"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_status_follows_from_the_recovery(kind: type[OncewardError]):
    never, worked = TABLE[kind.recovery]
    if issubclass(kind, Fenced):
        never = worked = FENCED
    assert ow.exit_status(kind("a")) == never
    assert ow.exit_status(kind("a"), worked_before=True) == worked
    known = kind("a")
    known.worked_before = True
    assert ow.exit_status(known) == worked
    # Another pipeline of the process has worked
    known.worked_before = False
    assert ow.exit_status(known, worked_before=True) == never


def test_every_recovery_is_in_the_table():
    assert TABLE.keys() == set(Recovery)


def test_numbers_are_those_of_the_page_and_collide_with_nobodys():
    statuses = {
        run_job.FINISHED: 0,
        run_job.FAILED: 1,
        run_job.USAGE: 64,
        run_job.MAY_PASS: MAY_PASS,
        run_job.NEEDS_A_CHANGE: NEEDS_A_CHANGE,
        run_job.FENCED: FENCED,
    }
    assert all(name == value for name, value in statuses.items())
    # 2 is argparse's and a shell's; 126 and above are a shell's, 50 to 56 Spark's executors'
    assert all(value in (0, 1) or 64 <= value < 126 for value in statuses)
    assert {0, 64, NEEDS_A_CHANGE, FENCED} == FINAL


def raised(error: BaseException, **how: Any) -> BaseException:
    try:
        try:
            raise error
        except BaseException as met:
            if how.get("cause"):
                raise RuntimeError("of the job") from met
            if how.get("suppressed"):
                raise RuntimeError("of the job") from None
            raise RuntimeError("of the job")  # noqa: B904 — its context is what is looked at
    except RuntimeError as outer:
        return outer


def test_an_error_behind_an_exception_of_the_jobs_decides():
    assert ow.exit_status(raised(Fenced("a"), cause=True)) == FENCED
    assert ow.exit_status(raised(Fenced("a"))) == FENCED
    assert ow.exit_status(raised(Fenced("a"), suppressed=True)) == 1
    assert ow.exit_status(ValueError()) == 1
    circle = ValueError()
    circle.__cause__ = KeyError()
    circle.__cause__.__cause__ = circle
    assert ow.exit_status(circle) == 1


def test_an_error_of_ours_hides_the_one_that_it_replaces():
    error = SendFailed("what became of it")
    error.__context__ = Fenced("not so")
    assert ow.exit_status(error) == MAY_PASS


class Group(Exception):
    """As ``ExceptionGroup`` is, which Python 3.10 lacks."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("unhandled errors in a TaskGroup")
        self.exceptions = exceptions


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Group(Fenced("a")), FENCED),
        (Group(ValueError(), Group(SendFailed("b"), Fenced("a"))), FENCED),
        (Group(AuthenticationFailed("b"), SendFailed("a")), NEEDS_A_CHANGE),
        (raised(Group(Fenced("a")), cause=True), FENCED),
        (Group(raised(SendFailed("a"), cause=True)), MAY_PASS),
        (Group(ValueError()), 1),
    ],
)
def test_of_a_group_the_most_severe_member_decides(error: BaseException, status: int):
    assert ow.exit_status(error) == status


def test_a_group_that_is_in_a_member_of_its_own_is_left():
    member = ValueError()
    member.__cause__ = group = Group(member)
    assert ow.exit_status(group) == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Fenced("a"), FENCED),
        (SendFailed("a"), MAY_PASS),
        (ConfigurationError("a"), NEEDS_A_CHANGE),
        (AuthenticationFailed("a"), NEEDS_A_CHANGE),
    ],
    ids=lambda value: getattr(type(value), "__name__", value),
)
def test_sparks_own_exception_is_looked_up_by_its_run(error: OncewardError, status: int):
    """As ``awaitTermination`` raises it."""
    text = f"[STREAM_FAILED] Query [id = {RUN[::-1]}, runId = {RUN}] terminated with exception"
    known = runs.memory(runs.RunKey(RUN, None))
    known.error = error
    try:
        assert ow.exit_status(StreamingQueryException(text)) == status
    finally:
        known.error = None
    assert ow.exit_status(StreamingQueryException(text)) == 1
    assert ow.exit_status(StreamingQueryException("text only")) == 1


def test_a_status_is_described():
    assert describe(-9) == "killed by SIGKILL"
    assert describe(-123) == "killed by signal 123"
    assert describe(143) == "status 143, ended by SIGTERM"
    assert describe(75) == "status 75, a failure that may pass"
    assert describe(3) == "status 3"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the last run of a query have ended with an error of ours, or with Spark's words."""
    last: OrderedDict[str, Any] = OrderedDict()
    monkeypatch.setattr(runs, "_last", last)
    monkeypatch.setattr(runs, "_memories", OrderedDict())

    def end(query: str, words: str, error: OncewardError | None = None) -> None:
        runs.memory(runs.RunKey(f"run of {query}", "chain")).error = error
        last[query] = f"run of {query}", lambda: words

    return end


@pytest.mark.parametrize("order", [1, -1])
def test_of_several_queries_the_most_severe_end_is_the_jobs(
    ended: Callable[..., None], order: int
):
    """Who was fenced must not come back for another's error."""
    ends = [
        ("a", "away", SendFailed("away")),
        ("b", "newer", Fenced("newer")),
        ("c", "full", None),
    ]
    for each in ends[::order]:
        ended(*each)
    assert isinstance(runs.failed_at_last(), Fenced)
    runs.settle("b")
    assert isinstance(runs.failed_at_last(), SendFailed)
    runs.settle("a")
    assert runs.failed_at_last() == "full"
    runs.settle("c")
    assert runs.failed_at_last() is None


def test_a_query_that_goes_on_or_ended_well_is_no_failure(ended: Callable[..., None]):
    """Its function may have kept an error to itself, and tried again."""
    ended("a", "", SendFailed("away"))
    assert runs.failed_at_last() is None
