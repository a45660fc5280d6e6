"""Write docs/reference/recovery.md from the code: what happens after each error.

Run ``python docs/tables/recovery.py``.
"""

from __future__ import annotations

from pathlib import Path

from onceward import errors
from onceward.errors import OncewardError, Recovery
from onceward.operate.restart import may_pass
from onceward.operate.run_job import exit_status

PAGE = Path(__file__).parents[1] / "reference" / "recovery.md"

_BEGIN = """\
# What happens after an error

Written by `docs/tables/recovery.py` from the code; a test says when it is not up to date. What each error means and
what to do about it is in [Troubleshooting](troubleshooting.md); why it is decided so, in
[ADR 0026](../adr/0026-whether-a-pipeline-has-worked-decides.md).

First the sink does what it can within the run. Then the query fails, and
[`ow.supervise`](configuration.md#starting-again-after-a-failure) starts it again or does not. It stops for good where
the table says so, and when the strategy's attempts are used up; else never. A pipeline *has worked* once its checkpoint
has a committed batch, whichever process wrote it. Errors that are not Onceward's (Spark's own, your function's) are
started again, but for one that the very first call of your function `start` raises. The last column is the
[exit status](../how-to/run.md#exit-statuses) of a job that ends with the error under `onceward run`, which starts it
again as a process after 75.

"""

_WITHIN = {
    Recovery.RUN_AGAIN: "runs the batch again, `batch_attempts` times in all",
    Recovery.REOPEN: "takes over and reads the ledger anew",
}
_AFTERWARDS = {
    (True, True): "starts again",
    (False, True): "starts again if the pipeline has worked, else **stops**",
    (False, False): "**stops**",
}


def page() -> str:
    """The whole page."""
    lines = ["| error | the sink | `ow.supervise` | status |", "|---|---|---|---|"]
    lines += [_row(kind, depth) for kind, depth in _below(OncewardError, 0)]
    return _BEGIN + "\n".join(lines) + "\n"


def _row(kind: type[OncewardError], depth: int) -> str:
    error = kind("")
    worked = tuple(may_pass(error, worked_before=worked) for worked in (False, True))
    after = (
        "starts again at once, with what it has learnt"
        if error.recovery is Recovery.RESTART_AT_ONCE
        else ""
    )
    name = kind.__name__
    link = f"[`{name}`](troubleshooting.md#{name.lower()})" if depth else f"`{name}`"
    within = _WITHIN.get(error.recovery, "")
    return (
        f"| {'&nbsp;' * 4 * max(0, depth - 1)}{link} | {within} | "
        f"{after or _AFTERWARDS[worked[0], worked[1]]} | {_statuses(error)} |"
    )


def _statuses(error: OncewardError) -> str:
    worked, never = (exit_status(error, worked_before=worked) for worked in (True, False))
    return f"{worked}" if worked == never else f"{worked} if it has worked, else {never}"


def _below(kind: type[OncewardError], depth: int) -> list[tuple[type[OncewardError], int]]:
    """``kind`` and those below it, as they stand in the module."""
    rows = [(kind, depth)]
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:  # not one of a user's, or of a test
            rows += _below(child, depth + 1)
    return rows


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
