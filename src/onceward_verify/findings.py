"""What was found: anomalies under Jepsen's names, what could not be judged, facts, and the verdict
that follows.

Filled by every other module of ``onceward_verify``; the JSON it makes is the checker's public
answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["exactly_once", "violated", "inconclusive"]
EXIT_STATUS: dict[Verdict, int] = {"exactly_once": 0, "violated": 1, "inconclusive": 2}
USAGE, UNAVAILABLE, CHECKER_FAILED = 64, 69, 70
"""Exit statuses that say nothing of the pipeline, by the numbers of BSD's ``sysexits.h``."""
STATUS_HELP = (
    "Exit status: 0 exactly once; 1 violated; 2 cannot tell; 64 the command is used wrongly; 69 "
    "no broker can be "
    "reached, or confluent-kafka is missing; 70 the checker itself failed."
)

NAMES = {
    "lost-write": "a record that a committed batch is told to have written is not there",
    "duplicate-write": "a record is visible more often than batches wrote it",
    "aborted-read": "a reader of committed records is given one of an aborted transaction",
    "fractured-batch": "a batch is visible in part, or is not one transaction",
    "non-monotonic": "offsets or the ledger's order go back",
    "ledger-gap": "batches, or records of the source between two batches, are told of nowhere",
    "ledger-fork": "two batches claim the same place in the chain",
    "zombie-write": "something is written under a producer epoch that is not the batch's own",
    "open-transaction": "a transaction was begun and never ended",
    "unaccounted-write": "a record is visible that belongs to no batch",
    "lost-input": "a record of the source that a committed batch has read is named by no output "
    "record",
    "duplicate-input": "a record of the source is named by more output records than the rule "
    "allows",
    "foreign-input": "an output record names what its batch has not read, or what is no committed "
    "record of the source",
    "lag": "the pipeline has not reached the end of its source",
    "state-mismatch": "what is visible differs in content from what the batch is told to have "
    "written",
}
"""Every name an anomaly can have, and what it says."""

_TOLD_PER_NAME = 100


class CannotTell(Exception):
    """The question cannot be answered: a broker, a topic or a library is missing. No verdict on
    the pipeline.

    :param next_step: what the reader should do about it.
    """

    exit_status = EXIT_STATUS["inconclusive"]

    def __init__(self, message: str, *, next_step: str) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class WrongUsage(CannotTell):
    """An option, or a file that one names, cannot be used: nobody was asked."""

    exit_status = USAGE


class Unavailable(CannotTell):
    """What the checker works with is not there: a broker, or a library."""

    exit_status = UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that exactly-once forbids. ``where`` is ``topic-partition@offset`` as closely as
    it is known.
    """

    name: str
    invariant: str
    where: str
    detail: str


@dataclass
class Findings:
    """Everything found so far. Of each name the first hundred anomalies are kept; ``counts`` has
    them all.
    """

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    not_covered: list[str] = field(default_factory=list)
    """What could not be judged: each makes the verdict inconclusive, unless something is
    violated.
    """
    facts: dict[str, Any] = field(default_factory=dict)
    ignore_expired: bool = False
    """The question is about what compaction and retention have left; what they took is a fact, and
    no doubt.
    """

    def anomaly(self, name: str, invariant: str, where: str, detail: str) -> None:
        if name not in NAMES:
            raise ValueError(f"no anomaly is named {name!r}")
        self.counts[name] += 1
        if self.counts[name] <= _TOLD_PER_NAME:
            self.anomalies.append(Anomaly(name, invariant, where, detail))

    def cannot_judge(self, what: str) -> None:
        if what not in self.not_covered:
            self.not_covered.append(what)

    def gone(self, what: str) -> None:
        """Compaction or retention has taken ``what``."""
        if self.ignore_expired:
            self.facts.setdefault("gone", []).append(what)
        else:
            self.cannot_judge(f"{what} (--ignore-expired does not ask for it)")

    @property
    def verdict(self) -> Verdict:
        if self.anomalies:
            return "violated"
        return "inconclusive" if self.not_covered else "exactly_once"

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "anomalies": [asdict(anomaly) for anomaly in self.anomalies],
            "facts": {
                **self.facts,
                "anomaly_counts": dict(self.counts),
                "not_covered": self.not_covered,
            },
        }


def place(
    topic: str, partition: int | str, first: int | None = None, last: int | None = None
) -> str:
    """``topic-partition@offset``, or ``…@first..last``."""
    if first is None:
        return f"{topic}-{partition}"
    return (
        f"{topic}-{partition}@{first}"
        if last in (None, first)
        else f"{topic}-{partition}@{first}..{last}"
    )
