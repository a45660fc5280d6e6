"""A table beside what the batches tell of it, where the server tells no client who wrote a row:
all are counted.

What this sees: that there are fewer rows than batches can have left, or more than they can have
written. What it cannot see: a lost row that one too many outweighs, which batch a row is of, and
whether it is there twice or another's. It claims no more, and where even the total says nothing it
says that instead.


A table beside what the batches tell of it, where the server tells which transaction wrote a row.

Each batch's rows can be counted by themselves: they are of the transaction that wrote its record,
or of those that its tasks had prepared. So whose a row is can be found without asking anybody who
might be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from onceward_verify.chain import Chain
from onceward_verify.database import Found
from onceward_verify.findings import Findings
from onceward_verify.ledger import HALF, Batch, TablePart


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


_APPEND, _UPSERT = "append", "upsert"


class JudgedByTransaction:
    """One table beside what the batches tell of it."""

    def __init__(
        self,
        found: Found,
        spelled: frozenset[str],
        chain: Chain,
        transactions: Mapping[int, Sequence[int]],
        findings: Findings,
        *,
        shared: bool,
    ) -> None:
        self._findings = findings
        self._anomalies: set[str] = set()
        self._found = found
        self._chain = chain
        self._transactions = transactions
        self._shared = shared
        self._told: Counter[int] = Counter()
        self._modes: dict[int, str] = {}
        self._unpublished: set[int] = set()
        for batch in chain.batches:
            for part in batch.tables:
                if part.table in spelled:
                    self._told[batch.sequence] += part.rows
                    self._modes[batch.sequence] = part.mode
                    if not part.published:
                        self._unpublished.add(batch.sequence)

    def judge(self, counts: dict[int, int], left_out: Sequence[int]) -> None:
        rows = sum(counts.values())
        rewritten = self._rewritten(counts)
        replaced = 0
        # rows that batches after this one may have replaced or removed, beyond those that are
        # missed already
        takes = 0
        for batch in reversed(self._chain.batches):
            told = self._told[batch.sequence]
            seen = sum(
                counts.pop(transaction, 0) for transaction in self._transactions[batch.sequence]
            )
            if not told and not seen:
                continue
            mode = self._modes.get(batch.sequence, _APPEND)
            missing = 0 if batch.sequence in rewritten else max(0, told - seen)
            # Several changes of one key leave one row: of an upsert at least one.
            by_itself = min(
                missing, 0 if mode == _APPEND else told - 1 if mode == _UPSERT else told
            )
            by_later = min(missing - by_itself, takes)
            takes -= by_later
            if mode != _APPEND:
                takes += told - by_itself if mode == _UPSERT else told
            replaced += by_itself + by_later
            if batch.sequence not in rewritten:
                self._whole(batch, told, seen, excused=by_itself + by_later)
        for transaction in left_out:
            counts.pop(transaction, None)
        if replaced:
            self._findings.gone(
                f"table {self._found.name}: {replaced} rows that later batches have replaced or "
                f"removed, if nobody else"
            )
        unaccounted = self._of_nobody(counts)
        self._findings.facts["tables"][self._found.name] = {
            "rows": rows,
            "batches": sum(1 for told in self._told.values() if told),
            "replaced_rows": replaced,
            "unaccounted_rows": unaccounted,
            "anomalies": sorted(self._anomalies),
        }

    def _anomaly(self, name: str, invariant: str, where: object, detail: str) -> None:
        self._anomalies.add(name)
        self._findings.anomaly(name, invariant, f"{self._found.name}@{where}", detail)

    def _rewritten(self, counts: dict[int, int]) -> Collection[int]:
        """The sequences of batches of which nothing can be said, because one transaction has
        written all of their rows anew (ALTER TABLE does, for some changes). Its rows leave
        ``counts``.

        All are gone under their own transactions, and one that is no batch's and came after them
        has as many rows; or fewer, where rows may have been replaced.
        """
        ours = {number for numbers in self._transactions.values() for number in numbers}
        replaces = any(mode != _APPEND for mode in self._modes.values())
        for transaction, rows in counts.items():
            told = [
                b
                for b in self._chain.batches
                if self._told[b.sequence] and self._is_after(transaction, b)
            ]
            number = sum(self._told[batch.sequence] for batch in told)
            if (
                transaction not in ours
                and told
                and not any(
                    number in counts
                    for batch in told
                    for number in self._transactions[batch.sequence]
                )
                and (rows == number or (rows < number and replaces))
            ):
                last = told[-1].sequence
                self._findings.cannot_judge(
                    f"table {self._found.name} up to sequence {last}: transaction {transaction} "
                    f"has written its {rows} "
                    f"rows anew, as ALTER TABLE may (--since sequence:{last + 1} does not ask for "
                    f"them)"
                )
                del counts[transaction]
                return {batch.sequence for batch in told}
        return ()

    def _is_after(self, transaction: int, batch: Batch) -> bool:
        numbers = self._transactions[batch.sequence]
        return all(
            (transaction - number) & HALF < 1 << 31 for number in numbers
        )  # numbers go in a circle

    def _whole(self, batch: Batch, told: int, seen: int, *, excused: int) -> None:
        detail = (
            f"of the {told} rows that sequence {batch.sequence} is told to have written "
            f"{seen} are there"
        )
        if seen > told:
            self._anomaly("duplicate-write", "I2", batch.sequence, detail)
        elif seen < told and batch.sequence in self._unpublished:
            self._findings.cannot_judge(
                f"{self._found.name}@{batch.sequence}: {detail}; it is decided, and not all of "
                f"its transactions are "
                "said to be committed yet"
            )
        elif seen + excused < told and self._shared:
            self._findings.cannot_judge(
                f"{self._found.name}@{batch.sequence}: {detail}, and others may have changed or "
                f"removed some"
            )
        elif seen + excused < told:
            self._anomaly(
                "lost-write",
                "I1",
                batch.sequence,
                f"{detail}; if others change or remove rows, --shared-table",
            )

    def _of_nobody(self, counts: Mapping[int, int]) -> int:
        """Rows of transactions that are no batch's."""
        if not counts or self._shared:
            return sum(counts.values())
        first = self._chain.batches[0]
        unaccounted = 0
        for transaction, rows in sorted(counts.items()):
            if not self._is_after(transaction, first) and not self._chain.from_the_beginning:
                self._findings.gone(
                    f"table {self._found.name}: {rows} rows of transactions before the oldest "
                    f"batch looked at"
                )
                continue
            unaccounted += rows
            detail = f"{rows} rows were written by transaction {transaction}, which is no batch's"
            self._anomaly("unaccounted-write", "I2", transaction, detail)
        return unaccounted
