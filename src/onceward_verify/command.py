"""A question asked, its answer written, and the exit status. For ``__main__`` and ``onceward
verify``.

The status is the verdict's (0, 1, 2) or that of what kept the checker from asking (``findings``:
64, 69, 70).
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from onceward_verify.findings import CHECKER_FAILED, EXIT_STATUS, CannotTell, Findings
from onceward_verify.report import as_text


def run(ask: Callable[[], Findings], output: str, stream: TextIO = sys.stdout) -> int:
    """Asks, answers, and returns the exit status.

    :param ask: makes the question, and asks it; a setting that cannot be used comes up there.
    :param output: ``json`` or ``text``.
    """
    status: int | None = None
    try:
        findings = ask()
    except CannotTell as reason:
        findings = Findings()
        findings.cannot_judge(reason.message)
        findings.facts["next_step"] = reason.next_step
        status = reason.exit_status
        sys.stderr.write(f"CANNOT TELL: {reason.message}. Next: {reason.next_step}.\n")
    except Exception as error:  # noqa: BLE001 — Python's own exit status would be 1, which accuses the pipeline
        findings = Findings()
        findings.cannot_judge(f"the checker itself failed: {type(error).__name__}: {error}")
        status = CHECKER_FAILED
        traceback.print_exc()
    status = EXIT_STATUS[findings.verdict] if status is None else status
    if output == "json":
        stream.write(json.dumps({**findings.as_json(), "exit_status": status}, indent=1) + "\n")
    elif findings.facts.keys() - {
        "next_step"
    }:  # else nothing was looked at, and standard error says why
        stream.write(as_text(findings) + "\n")
    stream.flush()
    return status
