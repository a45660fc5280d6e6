"""Rows of a table beside what the batches record of it.

Where the server shows which transaction wrote a row, each batch's rows are counted by themselves:
they are of the transaction that wrote its record, or of those that its tasks had prepared
(:class:`TransactionCheck`). Where it does not, all are counted (:func:`check_totals`). That finds
fewer rows than batches can have left, or more than they can have written. It does not find a lost
row that one too many outweighs, which batch a row is of, or whether it is there twice or
another's; so it claims no more, and where even the total says nothing it says that instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from onceward_verify.chain import BatchChain
from onceward_verify.database import TableRef
from onceward_verify.findings import Findings
from onceward_verify.ledger import HALF, LedgerBatch, TablePart

_APPEND, _UPSERT = "append", "upsert"


class Bounds(NamedTuple):
    """Number of rows that there may be, if nobody else writes to the table."""

    least: int
    most: int


def check_totals(
    rows: int,
    table: TableRef,
    names: frozenset[str],
    chain: BatchChain,
    findings: Findings,
    *,
    shared: bool,
) -> None:
    """Check the number of rows of ``table``, which batches name as ``names``.

    :param shared: others write to it, too.
    """
    written = [[part for part in batch.tables if part.table in names] for batch in chain.batches]
    bounds = row_bounds(part for parts in written for part in parts)
    findings.facts["tables"][table.name] = {
        "rows": rows,
        "told_rows": bounds.most,
        "batches": sum(any(part.rows for part in parts) for parts in written),
        "anomalies": _compare_total(rows, bounds, table, chain, findings, shared=shared),
    }


def _compare_total(
    rows: int,
    bounds: Bounds,
    table: TableRef,
    chain: BatchChain,
    findings: Findings,
    *,
    shared: bool,
) -> list[str]:
    what = f"table {table.name}: it has {rows} rows"
    if findings.counts["ledger-gap"]:
        findings.cannot_judge(
            f"{what}, and what the missing records of the ledger have told of it is not known"
        )
    elif shared:
        findings.cannot_judge(
            f"{what}, and batches are told to have written {bounds.most}: which are whose this "
            f"server tells nobody"
        )
    elif rows < bounds.least and table.follows:
        findings.cannot_judge(
            f"{what}, and of those that batches are told to have written {bounds.least} must be, "
            "if none was deleted with a row that it refers to (ON DELETE CASCADE)"
        )
    elif rows < bounds.least:
        detail = (
            f"{rows} rows are there, and of those that batches are told to have written at least "
            f"{bounds.least} must "
            "be; if others change or remove rows, --shared-table"
        )
        findings.anomaly("lost-write", "I1", table.name, detail)
        return ["lost-write"]
    elif not chain.from_the_beginning:
        findings.cannot_judge(
            f"{what}, and batches that were looked at are told to have written {bounds.most}: "
            f"which are of earlier "
            "ones this server tells nobody, so that a lost one or one too many would not be seen"
        )
    elif rows > bounds.most:
        detail = (
            f"{rows} rows are there, and batches are told to have written {bounds.most}: some are "
            f"there twice, or are "
            "another's (--shared-table), which this server tells nobody"
        )
        findings.anomaly("unaccounted-write", "I2", table.name, detail)
        return ["unaccounted-write"]
    elif bounds.least < bounds.most:
        findings.cannot_judge(
            f"{what}, and it may have {bounds.least} to {bounds.most}, for batches replace or "
            f"remove rows: one lost "
            "or one too many would not be seen"
        )
    return []


def row_bounds(parts: Iterable[TablePart]) -> Bounds:
    """Return how many rows ``parts``, in the order of their batches, can have left."""
    least = most = 0
    for part in parts:
        most += part.rows
        if not part.published:
            # Decided, and perhaps not all of it is committed yet
            continue
        if part.mode == _APPEND:
            least += part.rows
        elif part.mode == _UPSERT:
            # All keys may have been there, and several rows of one key leave one.
            least = max(least, min(part.rows, 1))
        else:
            least = max(0, least - part.rows)
    return Bounds(least, most)


class TransactionCheck:
    """Check of one table, transaction by transaction."""

    def __init__(
        self,
        table: TableRef,
        names: frozenset[str],
        chain: BatchChain,
        transactions: Mapping[int, Sequence[int]],
        findings: Findings,
        *,
        shared: bool,
    ) -> None:
        self._findings = findings
        self._anomalies: set[str] = set()
        self._table = table
        self._chain = chain
        self._transactions = transactions
        self._shared = shared
        self._expected: Counter[int] = Counter()
        self._modes: dict[int, str] = {}
        self._unpublished: set[int] = set()
        for batch in chain.batches:
            for part in batch.tables:
                if part.table in names:
                    self._expected[batch.sequence] += part.rows
                    self._modes[batch.sequence] = part.mode
                    if not part.published:
                        self._unpublished.add(batch.sequence)

    def run(self, counts: dict[int, int], earlier: Iterable[int]) -> None:
        """Compare rows by transaction with the batches.

        :param earlier: transactions of batches before them.
        """
        rows = sum(counts.values())
        rewritten = self._find_rewritten(counts)
        replacements = 0
        # Rows that batches after this one may have replaced or removed, beyond those missing
        # already.
        replaceable = 0
        for batch in reversed(self._chain.batches):
            expected = self._expected[batch.sequence]
            visible = sum(counts.pop(number, 0) for number in self._transactions[batch.sequence])
            if not expected and not visible:
                continue
            mode = self._modes.get(batch.sequence, _APPEND)
            missing = 0 if batch.sequence in rewritten else max(0, expected - visible)
            # Several changes of one key leave one row: of an upsert at least one.
            own = 0 if mode == _APPEND else expected - 1 if mode == _UPSERT else expected
            by_itself = min(missing, own)
            by_later = min(missing - by_itself, replaceable)
            replaceable -= by_later
            if mode != _APPEND:
                replaceable += expected - by_itself if mode == _UPSERT else expected
            replacements += by_itself + by_later
            if self._table.follows:
                replaceable += max(0, visible - expected)
            if batch.sequence not in rewritten:
                self._check_batch(batch, expected, visible, allowance=by_itself + by_later)
        for transaction in earlier:
            counts.pop(transaction, None)
        if replacements:
            self._findings.note_expired(
                f"table {self._table.name}: {replacements} rows that later batches have replaced "
                "or removed, if nobody else"
            )
        strangers = self._count_unaccounted(counts)
        self._findings.facts["tables"][self._table.name] = {
            "rows": rows,
            "batches": sum(1 for number in self._expected.values() if number),
            "replaced_rows": replacements,
            "unaccounted_rows": strangers,
            "anomalies": sorted(self._anomalies),
        }

    def _anomaly(self, name: str, invariant: str, where: object, detail: str) -> None:
        self._anomalies.add(name)
        self._findings.anomaly(name, invariant, f"{self._table.name}@{where}", detail)

    def _find_rewritten(self, counts: dict[int, int]) -> Collection[int]:
        """Return the sequences of batches whose rows one transaction has written anew.

        ALTER TABLE does, for some changes. Nothing can be said of them; the transaction's rows
        leave ``counts``. All are gone under their own transactions, and one that is no batch's and
        came after them has as many rows; or fewer, where rows may have been replaced.
        """
        ours = {number for numbers in self._transactions.values() for number in numbers}
        replaces = any(mode != _APPEND for mode in self._modes.values())
        for transaction, rows in counts.items():
            if transaction in ours:
                continue
            older = [b.sequence for b in self._chain.batches if self._is_after(transaction, b)]
            older = [sequence for sequence in older if self._expected[sequence]]
            total = sum(self._expected[sequence] for sequence in older)
            is_there = any(number in counts for s in older for number in self._transactions[s])
            if older and not is_there and (rows == total or (rows < total and replaces)):
                last = older[-1]
                self._findings.cannot_judge(
                    f"table {self._table.name} up to sequence {last}: transaction {transaction} "
                    f"has written its {rows} "
                    f"rows anew, as ALTER TABLE may (--since sequence:{last + 1} does not ask for "
                    f"them)"
                )
                del counts[transaction]
                return frozenset(older)
        return ()

    def _is_after(self, transaction: int, batch: LedgerBatch) -> bool:
        numbers = self._transactions[batch.sequence]
        # Numbers go in a circle.
        return all((transaction - number) & HALF < 1 << 31 for number in numbers)

    def _check_batch(
        self, batch: LedgerBatch, expected: int, visible: int, *, allowance: int
    ) -> None:
        where = f"{self._table.name}@{batch.sequence}"
        detail = (
            f"of the {expected} rows that sequence {batch.sequence} is told to have written "
            f"{visible} are there"
        )
        if visible != expected and self._table.follows and visible + allowance != expected:
            self._findings.cannot_judge(
                f"{where}: {detail}, and a foreign key of the table changes or deletes its rows "
                "with those that they refer to"
            )
        elif visible > expected:
            self._anomaly("duplicate-write", "I2", batch.sequence, detail)
        elif visible < expected and batch.sequence in self._unpublished:
            self._findings.cannot_judge(
                f"{where}: {detail}; it is decided, and not all of its transactions are said to "
                f"be committed yet"
            )
        elif visible + allowance < expected and self._shared:
            self._findings.cannot_judge(
                f"{where}: {detail}, and others may have changed or removed some"
            )
        elif visible + allowance < expected:
            detail += "; if others change or remove rows, --shared-table"
            self._anomaly("lost-write", "I1", batch.sequence, detail)

    def _count_unaccounted(self, counts: Mapping[int, int]) -> int:
        """Report rows of transactions that are no batch's, and return their number."""
        if not counts or self._shared:
            return sum(counts.values())
        first = self._chain.batches[0]
        strangers = 0
        for transaction, rows in sorted(counts.items()):
            if not self._is_after(transaction, first) and not self._chain.from_the_beginning:
                self._findings.note_expired(
                    f"table {self._table.name}: {rows} rows of transactions before the oldest "
                    f"batch looked at"
                )
                continue
            strangers += rows
            detail = f"{rows} rows were written by transaction {transaction}, which is no batch's"
            self._anomaly("unaccounted-write", "I2", transaction, detail)
        return strangers
