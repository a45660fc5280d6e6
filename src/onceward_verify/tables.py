"""Which kind of database an address is of.

The questions to a database, in order: what does the ledger tell, does it make one chain, are its
rows there?

A batch is one transaction of the database, which wrote its rows and its record. PostgreSQL tells
of every row which transaction wrote it, so that each batch's rows are counted by themselves
(:mod:`by_transaction`). MySQL and MariaDB tell no client: there all rows of a table are counted
together (:mod:`by_totals`). They are counted, and not compared with what they should say: what a
row *should* say only the query knows.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onceward_verify.chain import Chain, ledger_facts, one_chain
from onceward_verify.database import Database, Found, Kept
from onceward_verify.findings import CannotTell, Findings, WrongUsage, place
from onceward_verify.ledger import HALF, Batch, Since, batch_of, select
from onceward_verify.table_rows import JudgedByTransaction, judge_by_totals


def opened(url: str) -> Database:
    """The database at ``url``, whose scheme says what it is. Imports what only that kind of server
    needs.

    :raises WrongUsage: it is no such address.
    :raises Unavailable: no server answers there, it does not let us in, or its client is not
        installed.
    """
    scheme = url.partition("://")[0]
    if scheme in ("postgresql", "postgres"):
        from onceward_verify.postgresql import PostgreSQL

        return PostgreSQL(url)
    if scheme in ("mysql", "mariadb"):
        from onceward_verify.mysql import MySQL

        return MySQL(url)
    raise WrongUsage(
        "--database-url is no address of a PostgreSQL, MySQL or MariaDB database",
        next_step="pass postgresql://user@host:port/database, mysql://… or mariadb://…; the "
        "password may stand in "
        "PGPASSWORD, or in MYSQL_PWD",
    )


@dataclass(frozen=True, kw_only=True)
class TablesQuestion:
    """What to look at.

    :param url: of the database, ``postgresql://…``, ``mysql://…`` or ``mariadb://…``.
    :param bootstrap_servers: of the Kafka cluster of the sources, to see how far behind the
        pipeline is; empty: not asked.
    :param client: librdkafka settings beside them.
    :param expect_caught_up: the pipeline is at rest: lag is an anomaly.
    :param shared_tables: others write to the tables, too.
    :param ignore_expired: what the ledger has removed is not asked for.
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
    """The answer. :raises CannotTell: there is none, because something that is not the pipeline's
    is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    with opened(question.url) as database:
        ledger = database.table(question.ledger_table)
        batches = database.table(f"{question.ledger_table}_batches")
        if ledger is None or batches is None:
            raise CannotTell(
                f"there is no ledger {question.ledger_table}, with "
                f"{question.ledger_table}_batches beside it",
                next_step="name it with --ledger-table, as schema.table if need be",
            )
        kept = database.batches(batches, question.pipeline_id)
        told = _told(kept, question.ledger_table)
        _ends_there(database.ledger_ends(ledger, question.pipeline_id), told, question, findings)
        selected = select(told, question.since)
        chain = one_chain(selected.batches, findings, complete=selected.complete)
        findings.facts |= {"pipeline_id": question.pipeline_id}
        findings.facts["ledger"] = ledger_facts(question.ledger_table, chain)
        findings.facts |= {
            "judged_by": "transactions" if database.tells_writers else "totals",
            "tables": {},
        }
        if chain.batches:
            _judge_tables(database, chain, selected.before, kept, question, findings)
        else:
            findings.cannot_judge(
                f"pipeline {question.pipeline_id}: {question.ledger_table} has no batch of it"
            )
        findings.facts["staging_tables"] = database.staging_tables(ledger)
    if question.bootstrap_servers and chain.batches:
        _sources(question, chain, findings)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _told(kept: Sequence[Kept], ledger: str) -> list[Batch]:
    """The batches in their order; of one that was decided and then finished the latter, which
    comes last.

    :raises CannotTell: they are not of tables.
    """
    told = {one.sequence: batch_of(one.record, ledger, 0, one.sequence) for one in kept}
    if any(batch.parts or batch.files is not None for batch in told.values()):
        raise CannotTell(
            f"the ledger {ledger} tells of topics or files of this pipeline",
            next_step="ask with --bootstrap-servers, or with --files where the ledger is a folder",
        )
    return list(told.values())


def _ends_there(
    stands_at: int | None, told: Sequence[Batch], question: TablesQuestion, findings: Findings
) -> None:
    """The row by which owners go, and the records beside it, are written together."""
    newest = max((batch.sequence for batch in told), default=None)
    if stands_at != newest:
        detail = (
            f"the ledger's row stands at sequence {stands_at}, the newest record beside it "
            f"is of {newest}"
        )
        findings.anomaly("ledger-gap", "I6", place(question.ledger_table, 0), detail)


def _judge_tables(
    database: Database,
    chain: Chain,
    left_out: Sequence[Batch],
    kept: Sequence[Kept],
    question: TablesQuestion,
    findings: Findings,
) -> None:
    if not database.tells_writers:
        for found, spelled in _tables_of(database, chain, findings).items():
            rows = sum(database.rows(found).values())
            judge_by_totals(rows, found, spelled, chain, findings, shared=question.shared_tables)
        return
    if copied := [one for one in kept if one.told & HALF != one.written_by]:
        findings.cannot_judge(
            f"which rows the batches wrote: the record of sequence {copied[0].sequence} was not "
            f"written by the "
            "transaction that it names, so that this is a copy of the database, restored from a "
            "dump or replicated"
        )
        return
    every = [*left_out, *chain.batches]
    if silent := [
        batch for batch in every if any(part.transactions is None for part in batch.tables)
    ]:
        findings.cannot_judge(
            f"which rows the batches wrote: the record of sequence {silent[0].sequence} is of an "
            f"earlier release, and "
            "does not say which transactions its tasks had prepared"
        )
        return
    decided: dict[int, int] = {}
    for (
        one
    ) in kept:  # of one that was written again, when all was published, the first is the decision
        decided.setdefault(one.sequence, one.written_by)
    for found, spelled in _tables_of(database, chain, findings).items():
        transactions = {
            batch.sequence: _writers(batch, spelled, decided[batch.sequence]) for batch in every
        }
        before = [number for batch in left_out for number in transactions[batch.sequence]]
        judged = JudgedByTransaction(
            found, spelled, chain, transactions, findings, shared=question.shared_tables
        )
        judged.judge(database.rows(found), before)


def _writers(batch: Batch, spelled: frozenset[str], decision: int) -> tuple[int, ...]:
    """The transactions that may have written a batch's rows of one table: those that its tasks had
    prepared, or the decision itself. Of a fan-out each sink has its own.
    """
    parts = [part.transactions or (decision,) for part in batch.tables if part.table in spelled]
    return tuple(dict.fromkeys(number for numbers in parts for number in numbers)) or (decision,)


def _tables_of(
    database: Database, chain: Chain, findings: Findings
) -> dict[Found, frozenset[str]]:
    """The tables, each with all the spellings under which batches name it. One that is a part of
    another of them counts as that.
    """
    tables: dict[Found, set[str]] = defaultdict(set)
    for name in sorted({part.table for batch in chain.batches for part in batch.tables}):
        found = database.table(name)
        if found is None:
            findings.cannot_judge(
                f"table {name}: it does not exist (any more), or is not this login's to see"
            )
        else:
            tables[found].add(name)
    parts = {
        found: {part for part in tables if found.key in (part.key, *part.part_of)}
        for found in tables
    }
    return {
        found: frozenset().union(*(tables[part] for part in within))
        for found, within in parts.items()
        if not any(other.key in found.part_of for other in tables)
    }


def _sources(question: TablesQuestion, chain: Chain, findings: Findings) -> None:
    from onceward_verify.cluster import Cluster  # needs confluent-kafka, which tables alone do not
    from onceward_verify.sources import look_at_sources

    settings: dict[str, Any] = {**question.client, "bootstrap.servers": question.bootstrap_servers}
    cluster = Cluster(
        settings, question.pipeline_id, question.patience_s, verbose=question.verbose
    )
    look_at_sources(
        cluster, chain, findings, expect_caught_up=question.expect_caught_up, has_group=False
    )
