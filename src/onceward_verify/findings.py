"""Findings: anomalies under Jepsen's names, doubts, facts, and the verdict that follows.

Filled by every other module of the checker. The JSON is its public answer; ``as_text`` writes it
for people: a verdict in a sentence, a line for each topic, table or folder, and every anomaly with
its place.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Verdict = Literal["exactly_once", "violated", "inconclusive"]
EXIT_STATUS: dict[Verdict, int] = {"exactly_once": 0, "violated": 1, "inconclusive": 2}
USAGE, UNAVAILABLE, CHECKER_FAILED = 64, 69, 70
"""Exit statuses that say nothing of the pipeline, by the numbers of BSD's ``sysexits.h``."""
STATUS_HELP = (
    "Exit status: 0 exactly once; 1 violated; 2 cannot tell; 64 the command is used wrongly; 69 "
    "no broker can be reached, or confluent-kafka is missing; 70 the checker itself failed."
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
"""Meaning of each name that an anomaly can have."""

_LIMIT_PER_NAME = 100


class CannotTell(Exception):
    """Reason why there is no verdict on the pipeline: a broker, a topic or a library is missing.

    :param next_step: what the reader should do about it.
    """

    exit_status = EXIT_STATUS["inconclusive"]

    def __init__(self, message: str, *, next_step: str) -> None:
        super().__init__(message)
        self.message = message
        self.next_step = next_step


class WrongUsage(CannotTell):
    """An option, or a file that one names, cannot be used: nothing was read."""

    exit_status = USAGE


class Unavailable(CannotTell):
    """A broker or a library that the checker needs is not there."""

    exit_status = UNAVAILABLE


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One thing that exactly-once forbids.

    ``where`` is ``topic-partition@offset`` as closely as it is known.
    """

    name: str
    invariant: str
    where: str
    detail: str


@dataclass
class Findings:
    """Findings so far. Of each name the first hundred anomalies are kept; ``counts`` has all."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    not_covered: list[str] = field(default_factory=list)
    """What could not be judged: makes the verdict inconclusive, unless something is violated."""
    facts: dict[str, Any] = field(default_factory=dict)
    ignore_expired: bool = False
    """What compaction and retention have removed is a fact, and no doubt."""

    def anomaly(self, name: str, invariant: str, where: str, detail: str) -> None:
        """Add an anomaly, which makes the verdict *violated*."""
        if name not in NAMES:
            raise ValueError(f"no anomaly is named {name!r}")
        self.counts[name] += 1
        if self.counts[name] <= _LIMIT_PER_NAME:
            self.anomalies.append(Anomaly(name, invariant, where, detail))

    def cannot_judge(self, what: str) -> None:
        """Add something that could not be judged."""
        if what not in self.not_covered:
            self.not_covered.append(what)

    def note_expired(self, what: str) -> None:
        """Add what compaction or retention has removed: a fact, or a doubt."""
        if self.ignore_expired:
            self.facts.setdefault("gone", []).append(what)
        else:
            self.cannot_judge(f"{what} (--ignore-expired does not ask for it)")

    @property
    def verdict(self) -> Verdict:
        """Verdict: an anomaly violates, a doubt makes inconclusive."""
        if self.anomalies:
            return "violated"
        return "inconclusive" if self.not_covered or self.nothing_is_left else "exactly_once"

    @property
    def nothing_is_left(self) -> bool:
        """Whether all that the ledger names has been removed, so that nothing was looked at."""
        left = sum(
            facts[unit] - facts.get(f"unaccounted_{unit}", 0)
            for kind, unit in (("topics", "records"), ("tables", "rows"))
            for facts in self.facts.get(kind, {}).values()
        )
        left += self.facts.get("files", {}).get("files", 0)
        written = self.facts.get("ledger", {}).get("records", 0)
        return bool(self.facts.get("gone") and written and not left)

    def as_json(self) -> dict[str, Any]:
        """Return the findings for programs: the checker's public answer."""
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
    """Return ``topic-partition@offset``, or ``…@first..last``."""
    if first is None:
        return f"{topic}-{partition}"
    where = f"{topic}-{partition}@{first}"
    return where if last in (None, first) else f"{where}..{last}"


_SHOWN = 20


def as_text(findings: Findings) -> str:
    """Return the findings for people, line by line."""
    return plain_text("\n".join(_lines(findings)))


# But line feed and tab: control codes of both sets, and marks that turn the direction of text
_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def plain_text(text: str) -> str:
    """Return ``text`` with nothing in it that a terminal would obey: a server or a record may have
    put it there."""
    return _OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _verdict_sentence(findings: Findings) -> str:
    if "pipeline_id" not in findings.facts:
        return "CANNOT TELL: nothing was looked at"
    ledger = findings.facts["ledger"]
    of = f"pipeline {findings.facts['pipeline_id']}"
    if findings.verdict == "violated":
        names = ", ".join(sorted(findings.counts))
        return f"VIOLATED: {of}: {findings.counts.total()} anomalies: {names}"
    if not ledger["batches"]:
        return f"CANNOT TELL: {of}: no batch to look at"
    claim = (
        f"{ledger['records']:,} records in {ledger['batches']:,} batches are visible exactly "
        f"as they were committed"
    )
    if ledger["first_sequence"]:
        claim += f", from sequence {ledger['first_sequence']} on"
    if findings.facts.get("judged_by") == "totals":
        return _totals_sentence(of, findings)
    if findings.nothing_is_left:
        return f"CANNOT TELL: {of}: all that it has written is gone, see below"
    if findings.facts.get("gone"):
        claim += ", but for what is gone"
    if findings.verdict == "inconclusive":
        return f"CANNOT TELL: {of}: as far as can be seen {claim}, but not all can be seen"
    if conservation := findings.facts.get("conservation"):
        claim += f", and account for {conservation['input_records']:,} records of the source"
    return f"EXACTLY ONCE: {of}: {claim}"


def _totals_sentence(of: str, findings: Findings) -> str:
    """Return the verdict where the server shows nobody who wrote a row: no more than was asked."""
    ledger = findings.facts["ledger"]
    if findings.verdict == "inconclusive":
        return (
            f"CANNOT TELL: {of}: the server tells nobody who wrote a row, and how many there "
            f"are does not say it all"
        )
    return (
        f"EXACTLY ONCE, BY TOTALS: {of}: there are as many rows as {ledger['batches']:,} batches "
        f"have written, "
        f"{ledger['records']:,}; a lost one that one too many outweighs would not be seen"
    )


def _topic_sentence(facts: dict[str, Any]) -> str:
    if facts["anomalies"]:
        return "violated: " + ", ".join(facts["anomalies"])
    if facts["unaccounted_records"]:
        return f"{facts['unaccounted_records']:,} records of others"
    return "every record belongs to one batch, every batch is whole"


def _table_sentence(facts: dict[str, Any]) -> str:
    if facts["anomalies"]:
        return "violated: " + ", ".join(facts["anomalies"])
    if "told_rows" in facts:
        return f"its batches are told to have written {facts['told_rows']:,}"
    if facts["unaccounted_rows"]:
        return f"{facts['unaccounted_rows']:,} rows of others"
    if facts["replaced_rows"]:
        return "every row is of one batch's transaction"
    return (
        "every row is of one batch's transaction, every batch has as many as it was told to write"
    )


def _conservation_lines(facts: dict[str, Any] | None) -> Iterator[str]:
    if facts is None:
        return
    for topic, counts in facts["counts"].items():
        line = (
            f"  conserved {facts['rule']}, {topic}: of {facts['input_records']:,} input records "
            f"{counts['named']:,} "
            f"are named, {counts['never_named']:,} by nothing, {counts['named_again']:,} more "
            f"than once"
        )
        if counts["not_judged"]:
            line += f", {counts['not_judged']:,} not judged"
        yield line
    if facts["skipped_records"]:
        yield (
            f"  skipped: {facts['skipped_records']:,} input records, of batches that the query "
            f"did not hand over"
        )


def _source_lines(sources: dict[str, Any]) -> Iterator[str]:
    for source, facts in sources.items():
        if "records_behind" in facts:
            lag = "unknown" if facts["group_lag"] is None else f"{facts['group_lag']:,}"
            yield f"  source {source}: {facts['records_behind']:,} records behind, group lag {lag}"


def _output_lines(findings: Findings) -> Iterator[str]:
    for topic, facts in findings.facts.get("topics", {}).items():
        yield (
            f"  topic {topic}: {facts['records']:,} records in {facts['partitions']} partitions, "
            f"{facts['batches']:,} "
            f"batches, {facts['aborted_records']:,} aborted records hidden; "
            f"{_topic_sentence(facts)}"
        )
    for table, facts in findings.facts.get("tables", {}).items():
        line = f"  table {table}: {facts['rows']:,} rows, {facts['batches']:,} batches"
        if facts.get("replaced_rows"):
            line += f", {facts['replaced_rows']:,} rows replaced or removed by later batches"
        yield f"{line}; {_table_sentence(facts)}"
    if files := findings.facts.get("files"):
        words = "every file belongs to one batch, and is as it was when its batch was decided"
        words = "violated" if findings.anomalies else words
        yield (
            f"  files below {files['path']}: {files['files']:,} of {files['batches']:,} "
            f"batches; {words}"
        )


def _lines(findings: Findings) -> Iterator[str]:
    yield _verdict_sentence(findings)
    ledger = findings.facts.get("ledger", {})
    if ledger.get("batches"):
        first, last = ledger["first_sequence"], ledger["last_sequence"]
        yield (
            f"  ledger {ledger['topic']}: sequences {first} to {last}, {ledger['queries']} "
            f"checkpoints"
        )
        for skipped in ledger.get("skipped", ())[:_SHOWN]:
            read = ", ".join(skipped["read"]) or "nothing, or a source that is not Kafka's"
            yield (
                f"  skipped: batches {skipped['batches'][0]} to {skipped['batches'][1]}, which "
                f"read {read}"
            )
    if findings.facts.get("replica"):
        yield "  read from a replica: what its primary has committed since is not in it"
    yield from _output_lines(findings)
    yield from _conservation_lines(findings.facts.get("conservation"))
    yield from _source_lines(findings.facts.get("sources", {}))
    for what in findings.facts.get("gone", []):
        yield f"  gone: {what}"
    for what in findings.not_covered:
        yield f"  not covered: {what}"
    for anomaly in findings.anomalies[:_SHOWN]:
        yield f"  {anomaly.name} ({anomaly.invariant}) at {anomaly.where}: {anomaly.detail}"
    if len(findings.anomalies) > _SHOWN:
        yield (
            f"  … and {findings.counts.total() - _SHOWN} more; --output json has the first "
            f"hundred of each name"
        )
    for name in sorted(findings.counts):
        yield f"  {name}: {NAMES[name]}"
