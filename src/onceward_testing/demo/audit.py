"""What the demo finds after the run: the output beside the model of its input, and the word of
``onceward verify``.

The model knows which numbers must be there. Whether batches are whole, one chain, and written
under their own epochs is for the checker, asked as any user asks it: in a process of its own,
which shares no code with what it judges.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

from onceward_testing.verdict import Verdict

_CHECKER_SECONDS = 300


@dataclass(frozen=True)
class OutputFacts:
    """The output: what a reader sees against the model; in a topic, how many records it is not
    shown: those of aborted attempts (None: elsewhere there is no such thing); the dead letters
    against what was spoilt (None: nothing was); and what killed attempts have left behind, in
    words.
    """

    verdict: Verdict[str]
    aborted_records_hidden: int | None = None
    dead_letters: Verdict[bytes] | None = None
    left_over: list[str] = field(default_factory=list)
    snapshot_rows: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class CheckerFacts:
    """The answer of ``onceward verify --output json`` about the pipeline, and all that is amiss in
    it.
    """

    answer: dict[str, Any]

    @property
    def batches(self) -> int:
        """Batches in the ledger; without violations each is proved to be one committed
        transaction.
        """
        return int(self.answer["facts"].get("ledger", {}).get("batches", 0))

    @property
    def group_lag(self) -> int | None:
        """Records that the pipeline's consumer group is behind its sources; None if a source's is
        unknown.
        """
        lags = [
            source.get("group_lag") for source in self.answer["facts"].get("sources", {}).values()
        ]
        return None if not lags or None in lags else sum(lags)

    @property
    def violations(self) -> list[str]:
        """Empty when the checker says *exactly once*."""
        if self.answer["verdict"] == "exactly_once":
            return []
        told = [
            f"{one['name']} at {one['where']}: {one['detail']}" for one in self.answer["anomalies"]
        ]
        told += [f"not covered: {what}" for what in self.answer["facts"].get("not_covered", [])]
        return told or [f"onceward verify says {self.answer['verdict']}"]


def ask(*question: str) -> CheckerFacts:
    """``onceward verify`` with these options."""
    command = [sys.executable, "-m", "onceward_verify", *question, "--output", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_CHECKER_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return _no_answer(f"within {_CHECKER_SECONDS} s")
    try:
        return CheckerFacts(json.loads(done.stdout))
    except ValueError:  # it did not get so far as to answer
        return _no_answer(done.stderr[-500:])


def _no_answer(why: str) -> CheckerFacts:
    return CheckerFacts({"verdict": f"nothing: {why}", "anomalies": [], "facts": {}})
