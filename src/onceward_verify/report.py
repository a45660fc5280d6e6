"""The outcome for people: a verdict in a sentence, a line per topic, and every anomaly with its
place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onceward_verify.findings import NAMES, Findings

_SHOWN = 20


def as_text(findings: Findings) -> str:
    return "\n".join(_lines(findings))


def sentence(findings: Findings) -> str:
    """The verdict."""
    if "pipeline_id" not in findings.facts:
        return "CANNOT TELL: nothing was looked at"
    ledger = findings.facts["ledger"]
    of = f"pipeline {findings.facts['pipeline_id']}"
    if findings.verdict == "violated":
        return f"VIOLATED: {of}: {sum(findings.counts.values())} anomalies: " + ", ".join(
            sorted(findings.counts)
        )
    if not ledger["batches"]:
        return f"CANNOT TELL: {of}: no batch to look at"
    seen = (
        f"{ledger['records']:,} records in {ledger['batches']:,} batches are visible exactly "
        f"as they were committed"
    )
    if ledger["first_sequence"]:
        seen += f", from sequence {ledger['first_sequence']} on"
    if findings.facts.get("judged_by") == "totals":
        return _by_totals(of, findings)
    if findings.verdict == "inconclusive":
        return f"CANNOT TELL: {of}: as far as can be seen {seen}, but not all can be seen"
    conserved = findings.facts.get("conservation")
    if conserved:
        seen += f", and account for {conserved['input_records']:,} records of the source"
    return f"EXACTLY ONCE: {of}: {seen}"


def _by_totals(of: str, findings: Findings) -> str:
    """No more than was asked: who wrote a row the server tells nobody."""
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


def topic_sentence(facts: dict[str, Any]) -> str:
    if facts["anomalies"]:
        return "violated: " + ", ".join(facts["anomalies"])
    if facts["unaccounted_records"]:
        return f"{facts['unaccounted_records']:,} records of others"
    return "every record belongs to one batch, every batch is whole"


def _table_words(facts: dict[str, Any]) -> str:
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


def _conservation(facts: dict[str, Any] | None) -> Iterator[str]:
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


def _lines(findings: Findings) -> Iterator[str]:
    yield sentence(findings)
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
    for topic, facts in findings.facts.get("topics", {}).items():
        yield (
            f"  topic {topic}: {facts['records']:,} records in {facts['partitions']} partitions, "
            f"{facts['batches']:,} "
            f"batches, {facts['aborted_records']:,} aborted records hidden; "
            f"{topic_sentence(facts)}"
        )
    for table, facts in findings.facts.get("tables", {}).items():
        line = f"  table {table}: {facts['rows']:,} rows, {facts['batches']:,} batches"
        if facts.get("replaced_rows"):
            line += f", {facts['replaced_rows']:,} rows replaced or removed by later batches"
        yield f"{line}; {_table_words(facts)}"
    if files := findings.facts.get("files"):
        words = "every file belongs to one batch, and is as it was when its batch was decided"
        words = "violated" if findings.anomalies else words
        yield (
            f"  files below {files['path']}: {files['files']:,} of {files['batches']:,} "
            f"batches; {words}"
        )
    yield from _conservation(findings.facts.get("conservation"))
    for source, facts in findings.facts.get("sources", {}).items():
        if "records_behind" in facts:
            lag = "unknown" if facts["group_lag"] is None else f"{facts['group_lag']:,}"
            yield f"  source {source}: {facts['records_behind']:,} records behind, group lag {lag}"
    if elsewhere := findings.facts.get("not_looked_at"):
        yield f"  not looked at: {elsewhere}"
    for what in findings.facts.get("gone", []):
        yield f"  gone: {what}"
    for what in findings.not_covered:
        yield f"  not covered: {what}"
    for anomaly in findings.anomalies[:_SHOWN]:
        yield f"  {anomaly.name} ({anomaly.invariant}) at {anomaly.where}: {anomaly.detail}"
    if len(findings.anomalies) > _SHOWN:
        yield (
            f"  … and {sum(findings.counts.values()) - _SHOWN} more; --output json has the "
            f"first hundred of each name"
        )
    for name in sorted(findings.counts):
        yield f"  {name}: {NAMES[name]}"
