"""A table beside what the batches tell of it, where the server tells no client who wrote a row:
all are counted.

What this sees: that there are fewer rows than batches can have left, or more than they can have
written. What it cannot see: a lost row that one too many outweighs, which batch a row is of, and
whether it is there twice or another's. It claims no more, and where even the total says nothing it
says that instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from onceward_verify.chain import Chain
from onceward_verify.database import Found
from onceward_verify.findings import Findings
from onceward_verify.ledger import TablePart


class Bounds(NamedTuple):
    """How many rows there may be, if nobody else writes to the table."""

    least: int
    most: int


def judge_by_totals(
    rows: int,
    found: Found,
    spelled: frozenset[str],
    chain: Chain,
    findings: Findings,
    *,
    shared: bool,
) -> None:
    """Of the table ``found`` with its ``rows``, which batches name as ``spelled``.

    :param shared: others write to it, too.
    """
    parts = [part for batch in chain.batches for part in batch.tables if part.table in spelled]
    bounds = bounds_of(parts)
    facts: dict[str, Any] = {
        "rows": rows,
        "told_rows": bounds.most,
        "batches": sum(
            any(p.rows and p.table in spelled for p in batch.tables) for batch in chain.batches
        ),
        "anomalies": [],
    }
    findings.facts["tables"][found.name] = facts
    table = f"table {found.name}: it has {rows} rows"
    if findings.counts["ledger-gap"]:
        findings.cannot_judge(
            f"{table}, and what the missing records of the ledger have told of it is not known"
        )
    elif shared:
        findings.cannot_judge(
            f"{table}, and batches are told to have written {bounds.most}: which are whose this "
            f"server tells nobody"
        )
    elif rows < bounds.least:
        detail = (
            f"{rows} rows are there, and of those that batches are told to have written at least "
            f"{bounds.least} must "
            "be; if others change or remove rows, --shared-table"
        )
        _anomaly("lost-write", "I1", found, detail, facts, findings)
    elif not chain.from_the_beginning:
        findings.cannot_judge(
            f"{table}, and batches that were looked at are told to have written {bounds.most}: "
            f"which are of earlier "
            "ones this server tells nobody, so that a lost one or one too many would not be seen"
        )
    elif rows > bounds.most:
        detail = (
            f"{rows} rows are there, and batches are told to have written {bounds.most}: some are "
            f"there twice, or are "
            "another's (--shared-table), which this server tells nobody"
        )
        _anomaly("unaccounted-write", "I2", found, detail, facts, findings)
    elif bounds.least < bounds.most:
        findings.cannot_judge(
            f"{table}, and it may have {bounds.least} to {bounds.most}, for batches replace or "
            f"remove rows: one lost "
            "or one too many would not be seen"
        )


def bounds_of(parts: Iterable[TablePart]) -> Bounds:
    """By what batches, in their order, are told to have written."""
    least = most = 0
    for part in parts:
        most += part.rows
        if not part.published:  # decided, and perhaps not all of it is committed yet
            continue
        if part.mode == "append":
            least += part.rows
        elif (
            part.mode == "upsert"
        ):  # all keys may have been there, and several rows of one key leave one
            least = max(least, min(part.rows, 1))
        else:
            least = max(0, least - part.rows)
    return Bounds(least, most)


def _anomaly(
    name: str, invariant: str, found: Found, detail: str, facts: dict[str, Any], findings: Findings
) -> None:
    facts["anomalies"].append(name)
    findings.anomaly(name, invariant, found.name, detail)
