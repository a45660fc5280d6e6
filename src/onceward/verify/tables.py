"""The questions to a database, in order: what does the ledger tell, does it make one chain, are its rows there?

A batch is one transaction of the database, which wrote its rows and its record. The server notes of every row which
transaction wrote it (:mod:`onceward.verify.database`), so that what belongs to a batch is found without asking anybody
who might be wrong. Rows are counted, not compared with what they should say: what a row *should* say only the query
knows.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward.verify.chain import Chain, ledger_facts, one_chain
from onceward.verify.database import Database, Found, Kept
from onceward.verify.findings import CannotTell, Findings, place
from onceward.verify.ledger import Batch, batch_of
from onceward.verify.since import Since, select

_HALF = 0xFFFF_FFFF
_APPEND, _UPSERT = "append", "upsert"


@dataclass(frozen=True, kw_only=True)
class TablesQuestion:
    """What to look at.

    :param url: of the database, ``postgresql://…``.
    :param bootstrap_servers: of the Kafka cluster of the sources, to see how far behind the pipeline is; empty: not
        asked.
    :param client: librdkafka settings beside them.
    :param expect_caught_up: the pipeline is at rest: lag is an anomaly.
    :param shared_tables: others write to the tables, too.
    :param what_is_left: what the ledger has removed is not asked for.
    :param since: the batch to begin with; None: the ledger's first.
    :param patience_s: how long to wait for an answer of a broker, in seconds.
    """

    url: str = field(repr=False)
    pipeline_id: str
    ledger_table: str = "onceward_ledger"
    bootstrap_servers: str = ""
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    expect_caught_up: bool = False
    shared_tables: bool = False
    what_is_left: bool = False
    since: Since | None = None
    patience_s: float = 60.0
    verbose: bool = False


def check_tables(question: TablesQuestion) -> Findings:
    """The answer. :raises CannotTell: there is none, because something that is not the pipeline's is missing."""
    began = time.monotonic()
    findings = Findings(what_is_left=question.what_is_left)
    with Database(question.url) as database:
        ledger = database.table(question.ledger_table)
        batches = database.table(f"{question.ledger_table}_batches")
        if ledger is None or batches is None:
            raise CannotTell(
                f"there is no ledger {question.ledger_table}, with {question.ledger_table}_batches beside it",
                next_step="name it with --ledger-table, as schema.table if need be",
            )
        kept = database.batches(batches, question.pipeline_id)
        told = _told(kept, question.ledger_table)
        _ends_there(database.ledger_ends(ledger, question.pipeline_id), told, question, findings)
        selected = select(told, question.since)
        chain = one_chain(selected.batches, findings, complete=selected.complete)
        findings.facts |= {"pipeline_id": question.pipeline_id}
        findings.facts["ledger"] = ledger_facts(question.ledger_table, chain)
        findings.facts["tables"] = {}
        if chain.batches:
            _judge_tables(database, chain, selected.before, kept, question, findings)
        else:
            findings.cannot_judge(f"pipeline {question.pipeline_id}: {question.ledger_table} has no batch of it")
        findings.facts["staging_tables"] = database.staging_tables(ledger)
    if question.bootstrap_servers and chain.batches:
        _sources(question, chain, findings)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _told(kept: Sequence[Kept], ledger: str) -> list[Batch]:
    """The batches in their order; of one that was decided and then finished the latter, which comes last.

    :raises CannotTell: they are not of tables.
    """
    told = {one.sequence: batch_of(one.record, ledger, 0, one.sequence) for one in kept}
    if any(batch.parts or batch.files is not None for batch in told.values()):
        raise CannotTell(
            f"the ledger {ledger} tells of topics or files of this pipeline",
            next_step="ask with --bootstrap-servers, or with --files where the ledger is a folder",
        )
    return list(told.values())


def _ends_there(stands_at: int | None, told: Sequence[Batch], question: TablesQuestion, findings: Findings) -> None:
    """The row by which owners go, and the records beside it, are written together."""
    newest = max((batch.sequence for batch in told), default=None)
    if stands_at != newest:
        detail = f"the ledger's row stands at sequence {stands_at}, the newest record beside it is of {newest}"
        findings.anomaly("ledger-gap", "I6", place(question.ledger_table, 0), detail)


def _judge_tables(
    database: Database,
    chain: Chain,
    left_out: Sequence[Batch],
    kept: Sequence[Kept],
    question: TablesQuestion,
    findings: Findings,
) -> None:
    if copied := [one for one in kept if one.told & _HALF != one.written_by]:
        findings.cannot_judge(
            f"which rows the batches wrote: the record of sequence {copied[0].sequence} was not written by the "
            "transaction that it names, so that this is a copy of the database, restored from a dump or replicated"
        )
        return
    transactions = {one.sequence: one.written_by for one in kept}
    tables = _tables_of(database, chain, findings)
    for found, spelled in sorted(tables.items()):
        judged = _JudgedTable(found, spelled, chain, transactions, question, findings)
        judged.judge(database.rows_by_transaction(found), [transactions[batch.sequence] for batch in left_out])


def _tables_of(database: Database, chain: Chain, findings: Findings) -> dict[Found, frozenset[str]]:
    """The tables, each with all the spellings under which batches name it. One that is a part of another of them counts
    as that."""
    tables: dict[Found, set[str]] = defaultdict(set)
    for name in sorted({part.table for batch in chain.batches for part in batch.tables}):
        found = database.table(name)
        if found is None:
            findings.cannot_judge(f"table {name}: it does not exist (any more)")
        else:
            tables[found].add(name)
    parts = {found: {part for part in tables if found.oid in (part.oid, *part.part_of)} for found in tables}
    return {
        found: frozenset().union(*(tables[part] for part in within))
        for found, within in parts.items()
        if not any(other.oid in found.part_of for other in tables)
    }


class _JudgedTable:
    """One table beside what the batches tell of it."""

    def __init__(
        self,
        found: Found,
        spelled: frozenset[str],
        chain: Chain,
        transactions: Mapping[int, int],
        question: TablesQuestion,
        findings: Findings,
    ) -> None:
        self._findings = findings
        self._anomalies: set[str] = set()
        self._found = found
        self._chain = chain
        self._transactions = transactions
        self._shared = question.shared_tables
        self._told: Counter[int] = Counter()
        self._modes: dict[int, str] = {}
        for batch in chain.batches:
            for part in batch.tables:
                if part.table in spelled:
                    self._told[batch.sequence] += part.rows
                    self._modes[batch.sequence] = part.mode

    def judge(self, counts: dict[int, int], left_out: Sequence[int]) -> None:
        rows = sum(counts.values())
        rewritten = self._rewritten(counts)
        replaced = 0
        takes = 0  # rows that batches after this one may have replaced or removed, beyond those that are missed already
        for batch in reversed(self._chain.batches):
            told, seen = self._told[batch.sequence], counts.pop(self._transactions[batch.sequence], 0)
            if not told and not seen:
                continue
            mode = self._modes.get(batch.sequence, _APPEND)
            missing = 0 if batch.sequence in rewritten else max(0, told - seen)
            # Several changes of one key leave one row: of an upsert at least one.
            by_itself = min(missing, 0 if mode == _APPEND else told - 1 if mode == _UPSERT else told)
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
                f"table {self._found.name}: {replaced} rows that later batches have replaced or removed, if nobody else"
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
        """The sequences of batches of which nothing can be said, because one transaction has written all of their rows
        anew (ALTER TABLE does, for some changes). Its rows leave ``counts``.

        All are gone under their own transactions, and one that is no batch's and came after them has as many rows; or
        fewer, where rows may have been replaced.
        """
        ours = set(self._transactions.values())
        replaces = any(mode != _APPEND for mode in self._modes.values())
        for transaction, rows in counts.items():
            told = [b for b in self._chain.batches if self._told[b.sequence] and self._is_after(transaction, b)]
            number = sum(self._told[batch.sequence] for batch in told)
            if (
                transaction not in ours
                and told
                and not any(self._transactions[batch.sequence] in counts for batch in told)
                and (rows == number or (rows < number and replaces))
            ):
                last = told[-1].sequence
                self._findings.cannot_judge(
                    f"table {self._found.name} up to sequence {last}: transaction {transaction} has written its {rows} "
                    f"rows anew, as ALTER TABLE may (--since sequence:{last + 1} does not ask for them)"
                )
                del counts[transaction]
                return {batch.sequence for batch in told}
        return ()

    def _is_after(self, transaction: int, batch: Batch) -> bool:
        return (transaction - self._transactions[batch.sequence]) & _HALF < 1 << 31  # numbers go in a circle

    def _whole(self, batch: Batch, told: int, seen: int, *, excused: int) -> None:
        detail = f"of the {told} rows that sequence {batch.sequence} is told to have written {seen} are there"
        if seen > told:
            self._anomaly("duplicate-write", "I2", batch.sequence, detail)
        elif seen + excused < told and self._shared:
            self._findings.cannot_judge(
                f"{self._found.name}@{batch.sequence}: {detail}, and others may have changed or removed some"
            )
        elif seen + excused < told:
            self._anomaly(
                "lost-write", "I1", batch.sequence, f"{detail}; if others change or remove rows, --shared-table"
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
                    f"table {self._found.name}: {rows} rows of transactions before the oldest batch looked at"
                )
                continue
            unaccounted += rows
            detail = f"{rows} rows were written by transaction {transaction}, which is no batch's"
            self._anomaly("unaccounted-write", "I2", transaction, detail)
        return unaccounted


def _sources(question: TablesQuestion, chain: Chain, findings: Findings) -> None:
    from onceward.verify.cluster import Cluster  # needs confluent-kafka, which tables alone do not
    from onceward.verify.positions import look_at_sources

    settings: dict[str, Any] = {**question.client, "bootstrap.servers": question.bootstrap_servers}
    cluster = Cluster(settings, question.pipeline_id, question.patience_s, verbose=question.verbose)
    look_at_sources(cluster, chain, findings, expect_caught_up=question.expect_caught_up, has_group=False)
