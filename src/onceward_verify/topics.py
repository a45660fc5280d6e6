"""Reads a pipeline's records off the ledger topic, all of its partitions. Called by ``checker``.

Pipelines share ledger partitions, and one's open transaction hides what others have committed
behind it. So it is not waited for every transaction to end, but until no record of *this* pipeline
lies behind an open one.


The questions, in order: what does the ledger tell, does it make one chain, and is it what the logs
show?

The order matters while the pipeline runs: the outputs' ends are taken *before* the ledger is read
to its end. A batch's ledger record is appended before its markers are written, so whatever is
visible below those ends has its record in what is read then; what comes later is left alone.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceward_verify.chain import Chain, disjoint_parts, ledger_facts, one_chain
from onceward_verify.cluster import COMMITTED, UNCOMMITTED, Cluster, Where
from onceward_verify.conservation import Conserves, conserve
from onceward_verify.fencing import Epochs, judge_ledger, judge_output, replica_folder
from onceward_verify.findings import CannotTell, Findings, place
from onceward_verify.ledger import Batch, Part, Selection, Since, batch_of, select
from onceward_verify.outputs import (
    OutputRange,
    Reading,
    judge,
    leave_undecided,
    name_culprits,
    read_outputs,
)
from onceward_verify.sources import look_at_sources

_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class LedgerReading:
    """The pipeline's records, and what stands in the way of reading them."""

    batches: list[Batch]
    """In the order of partitions and offsets."""
    undecided: list[str]
    """Places of the pipeline's records that are in, or behind, a transaction that has not
    ended.
    """
    behind_others: list[str]
    """Those of them for which another pipeline's transaction is to blame, as far as can be
    seen.
    """
    tombstones: list[str]
    """Places where the pipeline's key was deleted."""


def read_ledger(cluster: Cluster, topic: str, pipeline_id: str, settle_s: float) -> LedgerReading:
    """Everything that was in the ledger when the call began, once it is decided or ``settle_s``
    are over.
    """
    partitions = cluster.partitions(topic)
    if partitions is None:
        raise CannotTell(
            f"there is no ledger topic {topic!r}", next_step="name it with --ledger-topic"
        )
    key = pipeline_id.encode()
    reading = _read(cluster, partitions, key, settle_s)
    if _has_gap(
        reading.batches
    ):  # compaction may have swept through while we read: a second look is of one moment
        reading = _read(cluster, partitions, key, settle_s)
    return reading


def _read(cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float) -> LedgerReading:
    decided_to, undecided, behind_others = _settled(cluster, partitions, key, settle_s)
    starts = cluster.starts(partitions)
    found: dict[Where, list[Batch]] = {where: [] for where in partitions}
    tombstones = []
    for where, messages, _ in cluster.read(
        {where: (starts[where], decided_to[where]) for where in partitions}
    ):
        for message in messages:
            if message.key() == key:
                value = message.value()
                if value is None:
                    tombstones.append(place(*where, message.offset()))
                else:
                    found[where].append(batch_of(value, *where, message.offset()))
    return LedgerReading(
        list(itertools.chain(*found.values())), undecided, behind_others, tombstones
    )


def _settled(
    cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float
) -> tuple[dict[Where, int], list[str], list[str]]:
    """Up to where each partition is decided, and where records of ``key`` are that were there
    before and are not.

    What is not decided begins with the first record of a transaction that is open, and its key
    says whose that is.
    """
    deadline = time.monotonic() + settle_s
    high = cluster.ends(partitions)
    while True:
        stable = cluster.ends(partitions, COMMITTED)
        decided_to = {where: min(stable[where], high[where]) for where in partitions}
        undecided, behind_others = [], []
        first_keys: dict[Where, bytes | None] = {}
        for where, messages, _ in cluster.read(
            {w: (decided_to[w], high[w]) for w in partitions}, UNCOMMITTED
        ):
            begun_by = first_keys.setdefault(where, messages[0].key())
            ours = [
                place(*where, message.offset()) for message in messages if message.key() == key
            ]
            undecided += ours
            behind_others += ours if begun_by != key else []
        if not undecided or time.monotonic() > deadline:
            return decided_to, undecided, behind_others
        time.sleep(_LOOK_SECONDS)


def _has_gap(batches: list[Batch]) -> bool:
    return any(
        after.ledger_partition == before.ledger_partition and after.sequence > before.sequence + 1
        for before, after in itertools.pairwise(batches)
    )


@dataclass(frozen=True, kw_only=True)
class Question:
    """What to look at.

    :param client: librdkafka settings beside the bootstrap servers.
    :param topics: output topics; empty: those that the manifests name.
    :param expect_caught_up: the pipeline is at rest: lag and open transactions are anomalies.
    :param shared_topic: others write to the output topics, too.
    :param ignore_expired: what compaction and retention have removed is not asked for.
    :param log_dirs: the brokers' log directories, for the epochs in each record batch.
    :param since: the batch to begin with; what came before is not asked for. None: the ledger's
        first.
    :param conserves: ask whether every record of the source is accounted for in the output, too.
    :param settle_s: how long transactions may take to end, in seconds.
    :param patience_s: how long to wait for an answer of a broker, in seconds.
    :param verbose: librdkafka's own log goes to standard error.
    """

    bootstrap_servers: str
    pipeline_id: str
    ledger_topic: str = "onceward-ledger"
    topics: tuple[str, ...] = ()
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    expect_caught_up: bool = False
    shared_topic: bool = False
    ignore_expired: bool = False
    log_dirs: tuple[Path, ...] = ()
    since: Since | None = None
    conserves: Conserves | None = None
    settle_s: float = 15.0
    patience_s: float = 60.0
    verbose: bool = False


def check(question: Question) -> Findings:
    """The answer. :raises CannotTell: there is none, because something that is not the pipeline's
    is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    settings = {**question.client, "bootstrap.servers": question.bootstrap_servers}
    cluster = Cluster(
        settings, question.pipeline_id, question.patience_s, verbose=question.verbose
    )

    outputs = _outputs(cluster, question, findings)
    seen_to = cluster.ends(outputs, COMMITTED)
    ledger = _ledger(cluster, question)
    high = cluster.ends(outputs)

    _undecided(ledger, question, findings)
    selected = select(ledger.batches, question.since)
    chain = one_chain(selected.batches, findings, complete=selected.complete)
    findings.facts |= {
        "pipeline_id": question.pipeline_id,
        "ledger": ledger_facts(question.ledger_topic, chain),
    }
    if not chain.batches:
        findings.cannot_judge(
            f"pipeline {question.pipeline_id}: the ledger {question.ledger_topic} has no batch of "
            f"it"
        )
    _published_elsewhere(chain, question, findings)
    parts = _parts_looked_at(chain, outputs, findings)
    if (
        ledger.undecided
    ):  # what is visible may belong to a batch that is told of behind an open transaction
        seen_to = {
            w: min(to, max((p.last + 1 for p in parts.get(w, ())), default=0))
            for w, to in seen_to.items()
        }

    ranges = _ranges(cluster, question, chain, selected, parts, seen_to, high, findings)
    readings = _readings(cluster, question, parts, ranges, high, findings)
    judge(readings, findings)
    if question.shared_topic:
        leave_undecided(readings, findings, producers_known=bool(question.log_dirs))
    else:
        name_culprits(cluster, readings, findings)
    if question.log_dirs:
        _epochs(cluster, question, chain, readings, findings)

    findings.facts["topics"] = _topic_facts(readings, findings)
    if question.conserves is not None and chain.batches:
        conserve(cluster, chain, readings, question.conserves, findings)
    look_at_sources(cluster, chain, findings, expect_caught_up=question.expect_caught_up)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _ledger(cluster: Cluster, question: Question) -> LedgerReading:
    return read_ledger(cluster, question.ledger_topic, question.pipeline_id, question.settle_s)


def _outputs(cluster: Cluster, question: Question, findings: Findings) -> list[Where]:
    """The partitions of the topics that were asked for, or else of those that batches wrote to."""
    told = (
        ()
        if question.topics
        else select(_ledger(cluster, question).batches, question.since).batches
    )
    topics = question.topics or sorted({part.topic for batch in told for part in batch.parts})
    found: list[Where] = []
    for topic in topics:
        partitions = cluster.partitions(topic)
        if partitions is None:
            findings.cannot_judge(f"topic {topic}: it does not exist (any more)")
        found += partitions or []
    return found


def _undecided(ledger: LedgerReading, question: Question, findings: Findings) -> None:
    for where in ledger.undecided:
        what = "a ledger record in, or behind, a transaction that has not ended"
        if question.expect_caught_up and where not in ledger.behind_others:
            findings.anomaly("open-transaction", "I8", where, what)
        else:
            findings.cannot_judge(f"{where}: {what}, and what its batch wrote")
    for where in ledger.tombstones:
        findings.cannot_judge(f"ledger records before {where}: somebody deleted them there")


def _published_elsewhere(chain: Chain, question: Question, findings: Findings) -> None:
    """What other targets have of the batches is not looked at here, but whether they have it the
    ledger tells.
    """
    newest = chain.batches[-1] if chain.batches else None
    if newest is not None and not newest.finished:
        what = f"sequence {newest.sequence} is decided and not published by all of its targets yet"
        if question.expect_caught_up:
            findings.anomaly("open-transaction", "I8", newest.place, what)
        else:
            findings.cannot_judge(what)
    elsewhere = sum(1 for batch in chain.batches if batch.is_published)
    if elsewhere:
        findings.facts["not_looked_at"] = (
            f"what {elsewhere:,} batches have put into other targets than topics"
        )


def _parts_looked_at(
    chain: Chain, outputs: Sequence[Where], findings: Findings
) -> dict[Where, list[Part]]:
    parts = disjoint_parts(chain.batches)
    looked_at = set(outputs)
    for where in sorted(parts.keys() - looked_at):
        findings.cannot_judge(f"{place(*where)}: batches wrote there, and it was not looked at")
    return {where: told for where, told in parts.items() if where in looked_at}


def _ranges(
    cluster: Cluster,
    question: Question,
    chain: Chain,
    selected: Selection,
    parts: Mapping[Where, Sequence[Part]],
    seen_to: Mapping[Where, int],
    high: Mapping[Where, int],
    findings: Findings,
) -> dict[Where, OutputRange]:
    wanted = {
        where: max([seen, *(min(part.last + 1, high[where]) for part in parts.get(where, ()))])
        for where, seen in seen_to.items()
    }
    stable = cluster.wait_until_stable(
        high if question.expect_caught_up else wanted, question.settle_s
    )
    starts = _after_what_is_left_out(cluster.starts(high), selected, parts)
    first_sequence = chain.covered[0].sequence if chain.covered else 0
    ranges = {}
    for where in high:
        if stable[where] < high[where] and question.expect_caught_up:
            detail = f"the last stable offset is {stable[where]}, the high watermark {high[where]}"
            if question.shared_topic:
                findings.cannot_judge(
                    f"{place(*where)}: {detail}, for a transaction that may be of others"
                )
            else:
                findings.anomaly(
                    "open-transaction", "I8", place(*where, stable[where], high[where] - 1), detail
                )
        covered = [part.first for part in parts.get(where, ()) if part.sequence >= first_sequence]
        accounted_from = starts[where] if chain.from_the_beginning else min(covered, default=None)
        end = min(stable[where], high[where] if question.expect_caught_up else wanted[where])
        ranges[where] = OutputRange(starts[where], end, accounted_from, min(seen_to[where], end))
    return ranges


def _after_what_is_left_out(
    starts: Mapping[Where, int], selected: Selection, parts: Mapping[Where, Sequence[Part]]
) -> dict[Where, int]:
    """Where to begin reading: behind the last record of a batch that is left out, so that old
    output costs nothing.
    """
    begin = dict(starts)
    for part in (part for batch in selected.before for part in batch.parts):
        where = (part.topic, part.partition)
        if where in begin:
            begin[where] = max(begin[where], part.last + 1)
    # A batch that is told to lie before what is left out is an anomaly already, and no case of
    # retention.
    return {
        where: max(starts[where], min([first, *(part.first for part in parts.get(where, ()))]))
        for where, first in begin.items()
    }


def _readings(
    cluster: Cluster,
    question: Question,
    parts: Mapping[Where, Sequence[Part]],
    ranges: Mapping[Where, OutputRange],
    high: Mapping[Where, int],
    findings: Findings,
) -> dict[Where, Reading]:
    compacted = {topic: cluster.is_compacted(topic) for topic in {where[0] for where in ranges}}
    decided: dict[Where, list[Part]] = {where: [] for where in parts}
    for where, part in ((where, part) for where, told in parts.items() for part in told):
        if _decided(part, ranges[where], high[where]):
            decided[where].append(part)
        else:
            findings.cannot_judge(
                f"{part.place} (sequence {part.sequence}): behind a transaction that has not ended"
            )
    return read_outputs(cluster, decided, ranges, compacted, shared=question.shared_topic)


def _decided(part: Part, looked_at: OutputRange, high: int) -> bool:
    """Below the end of what is decided; or above the end of everything: such a record is lost, not
    undecided.
    """
    return part.last < looked_at.end or looked_at.end >= high


def _epochs(
    cluster: Cluster,
    question: Question,
    chain: Chain,
    readings: Mapping[Where, Reading],
    findings: Findings,
) -> None:
    epochs = Epochs.of(chain)
    topics = {question.ledger_topic, *(where[0] for where in readings)}
    leaders = {
        where: leader
        for topic in topics
        for where, leader in (cluster.leaders(topic) or {}).items()
    }
    for where, leader in sorted(leaders.items()):
        of_ledger = where[0] == question.ledger_topic
        if of_ledger and not any(batch.ledger_partition == where[1] for batch in chain.batches):
            continue
        folder = replica_folder(question.log_dirs, *where, leader)
        if folder is None:
            findings.cannot_judge(f"{place(*where)}: its epochs, it is in none of the --log-dirs")
        elif of_ledger:
            judge_ledger(chain, where, folder, findings)
        elif where in readings:
            judge_output(where, readings[where], folder, epochs, findings)
    findings.facts["epochs"] = epochs.facts()


def _topic_facts(readings: Mapping[Where, Reading], findings: Findings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for topic in sorted({where[0] for where in readings}):
        of_topic = [reading for where, reading in readings.items() if where[0] == topic]
        found = sorted(
            {
                a.name
                for a in findings.anomalies
                if a.where.rpartition("@")[0].rpartition("-")[0] == topic
            }
        )
        facts[topic] = {
            "partitions": len(of_topic),
            "records": sum(reading.log.visible.count for reading in of_topic),
            "batches": len({part.sequence for reading in of_topic for part in reading.log.parts}),
            "aborted_records": sum(reading.aborted for reading in of_topic),
            "unaccounted_records": sum(reading.log.unaccounted.count for reading in of_topic),
            "anomalies": found,
        }
    return facts
