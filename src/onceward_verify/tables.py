"""Question about tables: is the ledger one chain, and are the rows of its batches there?

A batch is one transaction of the database, which wrote its rows and its record. PostgreSQL shows
of every row which transaction wrote it; MySQL and MariaDB show it to no client (``table_rows``).
Rows are counted, and not compared with what they should say: that only the query knows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward_verify.chain import BatchChain, build_chain, leave_others_open, ledger_facts
from onceward_verify.database import DatabaseSnapshot, StoredRecord, TableRef
from onceward_verify.findings import CannotTell, Findings, WrongUsage, place
from onceward_verify.ledger import HALF, LedgerBatch, Since, parse_batch, select
from onceward_verify.table_rows import TransactionCheck, check_totals


def connect(url: str) -> DatabaseSnapshot:
    """Connect to the database at ``url``, whose scheme says which kind it is.

    Import what only that kind needs.

    :raises WrongUsage: it is no such address.
    :raises Unavailable: no server answers there, it does not let us in, or its client is not
        installed.
    """
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        from onceward_verify.postgresql import PostgreSQLSnapshot

        return PostgreSQLSnapshot(url)
    if scheme in ("mysql", "mariadb"):
        from onceward_verify.mysql import MySQLSnapshot

        return MySQLSnapshot(url)
    raise WrongUsage(
        "--database-url is no address of a PostgreSQL, MySQL or MariaDB database",
        next_step="pass postgresql://user@host:port/database, mysql://… or mariadb://…; the "
        "password may stand in PGPASSWORD, or in MYSQL_PWD",
    )


@dataclass(frozen=True, kw_only=True)
class TablesQuestion:
    """Question about the tables of one pipeline.

    :param url: of the database, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
    :param bootstrap_servers: of the Kafka cluster of the sources, for the lag; empty: not asked.
    :param client: librdkafka settings beside them.
    :param expect_caught_up: the pipeline is at rest: lag is an anomaly.
    :param shared_tables: others write to the tables, too.
    :param ignore_expired: do not report what the ledger has removed.
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
    ignore_expired: bool = False
    since: Since | None = None
    patience_s: float = 60.0
    verbose: bool = False


def check_tables(question: TablesQuestion) -> Findings:
    """Answer ``question``.

    :raises CannotTell: something that is not the pipeline's is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    with connect(question.url) as database:
        ledger = database.find_table(question.ledger_table)
        batches = database.find_table(f"{question.ledger_table}_batches")
        if ledger is None or batches is None:
            raise CannotTell(
                f"there is no ledger {question.ledger_table}, with "
                f"{question.ledger_table}_batches beside it",
                next_step="name it with --ledger-table, as schema.table if need be; MySQL and "
                "MariaDB do not list tables that the login of the url may not SELECT from; tables "
                "whose ledger is elsewhere are not looked at",
            )
        records = database.batches(batches, question.pipeline_id)
        # Of a batch that was decided and then finished both, in this order
        from_ledger = [
            parse_batch(one.record, question.ledger_table, 0, one.sequence) for one in records
        ]
        _check_end(
            database.ledger_end(ledger, question.pipeline_id), from_ledger, question, findings
        )
        selection = select(from_ledger, question.since)
        chain = build_chain(
            selection.batches, findings, complete=selection.complete, has_one_order=True
        )
        findings.facts |= {
            "pipeline_id": question.pipeline_id,
            "ledger": ledger_facts(question.ledger_table, chain, "tables"),
            "judged_by": "transactions" if database.names_writers else "totals",
            "tables": {},
        }
        leave_others_open(chain, "tables", findings)
        if chain.batches:
            _check_rows(database, chain, selection.before, records, question, findings)
        else:
            findings.cannot_judge(
                f"pipeline {question.pipeline_id}: {question.ledger_table} has no batch of it"
            )
        findings.facts["staging_tables"] = database.staging_tables(ledger)
        findings.facts["replica"] = database.is_replica()
    if question.bootstrap_servers and chain.batches:
        _check_sources(question, chain, findings)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _check_end(
    end: int | None, batches: Sequence[LedgerBatch], question: TablesQuestion, findings: Findings
) -> None:
    """Check that the row that fences and the records beside it end with the same batch.

    They are written together.
    """
    newest = max((batch.sequence for batch in batches), default=None)
    if end != newest:
        detail = (
            f"the ledger's row stands at sequence {end}, the newest record beside it is of "
            f"{newest}"
        )
        findings.anomaly("ledger-gap", "I6", place(question.ledger_table, 0), detail)


def _check_rows(
    database: DatabaseSnapshot,
    chain: BatchChain,
    before: Sequence[LedgerBatch],
    records: Sequence[StoredRecord],
    question: TablesQuestion,
    findings: Findings,
) -> None:
    shared = question.shared_tables
    if not database.names_writers:
        for table, names in _find_tables(database, chain, findings).items():
            rows = sum(database.row_counts(table).values())
            check_totals(rows, table, names, chain, findings, shared=shared)
        return
    batches = [*before, *chain.batches]
    if doubt := _doubt_writers(records, batches):
        findings.cannot_judge(f"which rows the batches wrote: {doubt}")
        return
    # Of a record that was written again, when all was published, the first is the decision.
    decisions = {one.sequence: one.writer for one in reversed(records)}
    for table, names in _find_tables(database, chain, findings).items():
        writers = {b.sequence: _writers(b, names, decisions[b.sequence]) for b in batches}
        earlier = [number for batch in before for number in writers[batch.sequence]]
        check = TransactionCheck(table, names, chain, writers, findings, shared=shared)
        check.run(database.row_counts(table), earlier)


def _doubt_writers(records: Sequence[StoredRecord], batches: Sequence[LedgerBatch]) -> str:
    """Return why transactions do not tell whose the rows are; empty if they do."""
    for one in records:
        if one.transaction & HALF != one.writer:
            return (
                f"the record of sequence {one.sequence} was not written by the transaction that "
                f"it names, so that "
                "this is a copy of the database, restored from a dump or replicated"
            )
    for batch in batches:
        if any(part.transactions is None for part in batch.tables):
            return (
                f"the record of sequence {batch.sequence} is of an earlier release, and does not "
                f"say which "
                "transactions its tasks had prepared"
            )
    return ""


def _writers(batch: LedgerBatch, names: frozenset[str], decision: int) -> tuple[int, ...]:
    """Return the transactions that may have written a batch's rows of one table.

    Those that its tasks had prepared, or the decision itself. Of a fan-out each sink has its own.
    """
    parts = [part.transactions or (decision,) for part in batch.tables if part.table in names]
    return tuple(dict.fromkeys(number for numbers in parts for number in numbers)) or (decision,)


def _find_tables(
    database: DatabaseSnapshot, chain: BatchChain, findings: Findings
) -> dict[TableRef, frozenset[str]]:
    """Return the tables, each with all the names under which batches write to it.

    One that is a part of another of them counts as that. Left out is one that two sinks of a batch
    name, or whose sink says so: it may be in another database.
    """
    tables: dict[TableRef, set[str]] = defaultdict(set)
    parts = [part for batch in chain.batches for part in batch.tables]
    elsewhere = {part.table for part in parts if part.elsewhere}
    for name in sorted({part.table for part in parts}):
        if name in elsewhere:
            findings.cannot_judge(
                f"table {name}: the urls of sink and ledger differ in host, port or database, and "
                "what is here under that name may be another table"
            )
            continue
        table = database.find_table(name)
        if table is None:
            findings.cannot_judge(
                f"table {name}: it does not exist (any more), or is not this login's to see"
            )
        else:
            tables[table].add(name)
    roots = [table for table in tables if not any(one.key in table.parents for one in tables)]
    found = {
        root: frozenset().union(
            *(names for part, names in tables.items() if root.key in (part.key, *part.parents))
        )
        for root in roots
    }
    for root, names in list(found.items()):
        if all(_count_sinks(batch, names) < 2 for batch in chain.batches):
            continue
        del found[root]
        findings.cannot_judge(
            f"table {root.name}: two sinks of one batch write to a table of that name, and the "
            f"ledger does not say whether both are of this database"
        )
    return found


def _count_sinks(batch: LedgerBatch, names: frozenset[str]) -> int:
    """Return how many sinks wrote to a table. The one that decides may name several parts of it,
    each that prepares is one.
    """
    are_prepared = [part.is_prepared for part in batch.tables if part.table in names]
    return sum(are_prepared) + (not all(are_prepared))


def _check_sources(question: TablesQuestion, chain: BatchChain, findings: Findings) -> None:
    # Needs confluent-kafka, which tables alone do not
    from onceward_verify.cluster import Cluster
    from onceward_verify.sources import check_sources

    expect_caught_up = question.expect_caught_up
    if expect_caught_up and findings.facts["replica"]:
        expect_caught_up = False
        findings.cannot_judge(
            "the lag behind the sources: the database takes no writes, and may lack what its "
            "primary has; name that with --database-url"
        )
    settings: dict[str, Any] = {**question.client, "bootstrap.servers": question.bootstrap_servers}
    cluster = Cluster(
        settings, question.pipeline_id, question.patience_s, verbose=question.verbose
    )
    check_sources(cluster, chain, findings, expect_caught_up=expect_caught_up)
