"""A question asked, its answer written, and the exit status. For ``__main__`` and ``onceward verify``.

Status 0: exactly once. 1: violated. 2: cannot tell.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from onceward.verify.findings import EXIT_STATUS, CannotTell, Findings
from onceward.verify.report import as_text

if TYPE_CHECKING:
    from onceward.verify.checker import Question


def run(ask: Callable[[], Question], output: str, stream: TextIO = sys.stdout) -> int:
    """Asks, answers, and returns the exit status.

    :param ask: makes the question; a setting that cannot be used comes up there.
    :param output: ``json`` or ``text``.
    """
    try:
        from onceward.verify.checker import check  # here, because it needs confluent-kafka

        findings = check(ask())
    except CannotTell as reason:
        findings = Findings()
        findings.cannot_judge(reason.message)
        findings.facts["next_step"] = reason.next_step
        sys.stderr.write(f"{reason.message}. Next: {reason.next_step}.\n")
    except Exception as error:  # noqa: BLE001 — Python's own exit status would be 1, which accuses the pipeline
        findings = Findings()
        findings.cannot_judge(f"the checker itself failed: {type(error).__name__}: {error}")
        traceback.print_exc()
    if output == "json":
        stream.write(json.dumps(findings.as_json(), indent=1) + "\n")
    else:
        stream.write(as_text(findings) + "\n")
    stream.flush()
    return EXIT_STATUS[findings.verdict]
