"""Exit statuses of a job, by which whoever started it knows whether to start it again.

Pure, but for the look at what ended a query. :mod:`onceward.operate.run_job` ends with them,
:mod:`onceward.operate.runner` goes by them. Numbers follow BSD's ``sysexits.h`` where it has one.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from onceward import errors
from onceward.errors import Fenced, OncewardError
from onceward.operate.restart import may_pass

FINISHED, FAILED, USAGE, MAY_PASS, NEEDS_A_CHANGE, FENCED = 0, 1, 64, 75, 78, 79
"""1 is Python's own, for an exception that nobody caught; EX_USAGE, EX_TEMPFAIL, EX_CONFIG; and
the first number behind those of ``sysexits.h``.
"""
FINAL = frozenset({FINISHED, USAGE, NEEDS_A_CHANGE, FENCED})
"""What a supervisor must not start a job again after."""

_WORDS = {
    FINISHED: "finished",
    FAILED: "an exception that is not Onceward's",
    MAY_PASS: "a failure that may pass",
    NEEDS_A_CHANGE: "a failure that needs a change",
    FENCED: "fenced: a newer copy has taken over",
}
# A shell's status for signal n is this and n
_SHELL = 128
_RUN_ID = re.compile(r"\brunId = ([0-9a-f]{8}-[0-9a-f-]{27})\b")


def exit_status(error: BaseException, *, worked_before: bool = False) -> int:
    """Return the status for a job to end with after ``error``.

    ::

        try:
            ow.wait(query)
        except Exception as error:
            sys.exit(ow.exit_status(error))

    Jobs under ``onceward run`` need no such lines.

    :param error: what ``ow.wait``, ``ow.supervise``, ``awaitTermination`` or a definition raised.
    :param worked_before: whether the pipeline is known to have committed a batch: what may be a
        wrong setting as well as an outage then may pass. Not asked where the error knows it.
    """
    ours = find_error(error)
    if ours is None:
        return FAILED
    if isinstance(ours, Fenced):
        return FENCED
    # Of several pipelines in a process one may have worked, and another never
    knows = worked_before if ours.worked_before is None else ours.worked_before
    passes = may_pass(ours, worked_before=knows)
    return MAY_PASS if passes else NEEDS_A_CHANGE


def find_error(error: BaseException) -> OncewardError | None:
    """Return the typed error in ``error``: itself, what it was raised from, or what ended the
    query that it is about.
    """
    for each in _chain(error):
        found = each if isinstance(each, OncewardError) else _error_of_query(each)
        if found is not None:
            return found
    return None


def describe(status: int) -> str:
    """Describe a status, of a child as Python has it: minus n for the signal n."""
    if status < 0:
        return f"killed by {_signal_name(-status)}"
    if status > _SHELL:
        return f"status {status}, ended by {_signal_name(status - _SHELL)}"
    return f"status {status}" + (f", {_WORDS[status]}" if status in _WORDS else "")


def explain(error_class: str) -> tuple[str, str]:
    """Return what an error of that class means, and what may be done without a person."""
    found = getattr(errors, error_class, None)
    if not (isinstance(found, type) and issubclass(found, OncewardError)):
        return "of Spark, or of the job's own code", "the driver's log has it whole"
    meaning = (found.__doc__ or "").partition("\n\n")[0]
    return " ".join(meaning.split()), found.recovery.value


def shell_status(status: int) -> int:
    """Return a child's status as a shell does."""
    return _SHELL - status if status < 0 else status


def _signal_name(number: int) -> str:
    names = {each.value: each.name for each in signal.Signals}
    return names.get(number, f"signal {number}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _error_of_query(error: BaseException) -> OncewardError | None:
    """Return what ended the query, if ``error`` is what Spark raises in its place."""
    run = _RUN_ID.search(str(error))
    if type(error).__name__ != "StreamingQueryException" or run is None:
        return None
    # Only here: a job without Spark has no need of it
    from onceward.engine.calls import runs

    return runs.error_in(run[1])
