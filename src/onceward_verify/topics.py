"""Question about topics: is the ledger one chain, and is it what the logs show?

The order matters while the pipeline runs: the outputs' ends are taken *before* the ledger is read
to its end. A batch's ledger record is appended before its markers are written, so every record
visible below those ends has its ledger record in what is read then; what comes later is left
alone.

Pipelines share ledger partitions, and one's open transaction hides what others have committed
behind it. So the reader does not wait for every transaction to end, but until no record of *this*
pipeline lies behind an open one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onceward_verify.chain import (
    BatchChain,
    build_chain,
    disjoint_parts,
    leave_others_open,
    ledger_facts,
)
from onceward_verify.cluster import COMMITTED, UNCOMMITTED, Cluster, Where
from onceward_verify.conservation import Conservation, check_conservation
from onceward_verify.fencing import Epochs, check_ledger, check_output, replica_folder
from onceward_verify.findings import CannotTell, Findings, place
from onceward_verify.ledger import LedgerBatch, OutputPart, Selection, Since, parse_batch, select
from onceward_verify.outputs import (
    OutputRange,
    Reading,
    check_outputs,
    leave_unaccounted_open,
    read_outputs,
    report_unaccounted,
)
from onceward_verify.sources import check_sources

_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class LedgerReading:
    """The pipeline's records, and what stands in the way of reading them."""

    batches: list[LedgerBatch]
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
    """Read the ledger as of now, once it is decided or ``settle_s`` are over."""
    partitions = cluster.partitions(topic)
    if partitions is None:
        raise CannotTell(
            f"there is no ledger topic {topic!r}",
            next_step="name it with --ledger-topic; of a pipeline whose ledger is no topic ask "
            "with --database-url or --files",
        )
    key = pipeline_id.encode()
    reading = _read(cluster, partitions, key, settle_s)
    # 1. We read records 1 and 2 of the key. 2. Compaction removes 1 to 8, as 9 is newer. 3. We
    # read 9, behind a gap that no pipeline has made. A second reading finds what compaction has
    # left.
    if _has_gap(reading.batches):
        reading = _read(cluster, partitions, key, settle_s)
    return reading


def _read(cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float) -> LedgerReading:
    decided_to, undecided, behind_others = _wait_until_decided(cluster, partitions, key, settle_s)
    starts = cluster.starts(partitions)
    batches: dict[Where, list[LedgerBatch]] = {where: [] for where in partitions}
    tombstones = []
    ranges = {where: (starts[where], decided_to[where]) for where in partitions}
    for where, messages, _ in cluster.read(ranges):
        for message in messages:
            if message.key() != key:
                continue
            if message.value() is None:
                tombstones.append(place(*where, message.offset()))
            else:
                batches[where].append(parse_batch(message.value(), *where, message.offset()))
    in_order = list(itertools.chain(*batches.values()))
    return LedgerReading(in_order, undecided, behind_others, tombstones)


def _wait_until_decided(
    cluster: Cluster, partitions: list[Where], key: bytes, settle_s: float
) -> tuple[dict[Where, int], list[str], list[str]]:
    """Return where each partition's decided end is, and places of undecided records.

    What is not decided begins with the first record of an open transaction, whose key names its
    pipeline.
    """
    deadline = time.monotonic() + settle_s
    high = cluster.ends(partitions)
    while True:
        stable = cluster.ends(partitions, COMMITTED)
        decided_to = {where: min(stable[where], high[where]) for where in partitions}
        undecided, behind_others = [], []
        first_keys: dict[Where, bytes | None] = {}
        ranges = {where: (decided_to[where], high[where]) for where in partitions}
        for where, messages, _ in cluster.read(ranges, UNCOMMITTED):
            first_key = first_keys.setdefault(where, messages[0].key())
            ours = [
                place(*where, message.offset()) for message in messages if message.key() == key
            ]
            undecided += ours
            behind_others += ours if first_key != key else []
        if not undecided or time.monotonic() > deadline:
            return decided_to, undecided, behind_others
        time.sleep(_LOOK_SECONDS)


def _has_gap(batches: list[LedgerBatch]) -> bool:
    return any(
        after.ledger_partition == before.ledger_partition and after.sequence > before.sequence + 1
        for before, after in itertools.pairwise(batches)
    )


@dataclass(frozen=True, kw_only=True)
class TopicsQuestion:
    """Question about the topics of one pipeline.

    :param client: librdkafka settings beside the bootstrap servers.
    :param topics: output topics; empty: those that the manifests name.
    :param expect_caught_up: the pipeline is at rest: lag and open transactions are anomalies.
    :param shared_topic: others write to the output topics, too.
    :param ignore_expired: do not report what compaction and retention have removed.
    :param log_dirs: the brokers' log directories, for the epochs in each record batch.
    :param since: the batch to begin with; what came before is left out. None: the ledger's first.
    :param conserves: compare the output with the input, too.
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
    conserves: Conservation | None = None
    settle_s: float = 15.0
    patience_s: float = 60.0
    verbose: bool = False


def check_topics(question: TopicsQuestion) -> Findings:
    """Answer ``question``.

    :raises CannotTell: something that is not the pipeline's is missing.
    """
    began = time.monotonic()
    findings = Findings(ignore_expired=question.ignore_expired)
    settings = {**question.client, "bootstrap.servers": question.bootstrap_servers}
    cluster = Cluster(
        settings, question.pipeline_id, question.patience_s, verbose=question.verbose
    )

    # The ends come first: see the top of this module.
    outputs = _output_partitions(cluster, question, findings)
    read_ends = cluster.ends(outputs, COMMITTED)
    ledger = _ledger(cluster, question)
    high = cluster.ends(outputs)

    _report_undecided(ledger, question, findings)
    selection = select(ledger.batches, question.since)
    chain = build_chain(selection.batches, findings, complete=selection.complete)
    findings.facts |= {
        "pipeline_id": question.pipeline_id,
        "ledger": ledger_facts(question.ledger_topic, chain, "topics"),
    }
    if not chain.batches:
        findings.cannot_judge(
            f"pipeline {question.pipeline_id}: the ledger {question.ledger_topic} has no batch of "
            f"it"
        )
    _report_unpublished(chain, question, findings)
    leave_others_open(chain, "topics", findings)
    parts = _select_parts(chain, outputs, findings)
    if ledger.undecided:
        # Visible records may belong to a batch whose ledger record is behind an open transaction.
        for where, end in read_ends.items():
            last = max((part.last + 1 for part in parts.get(where, ())), default=0)
            read_ends[where] = min(end, last)

    ranges = _output_ranges(cluster, question, chain, selection, parts, read_ends, high, findings)
    readings = _read_outputs(cluster, question, parts, ranges, high, findings)
    check_outputs(readings, findings)
    if question.shared_topic:
        leave_unaccounted_open(readings, findings, producers_known=bool(question.log_dirs))
    else:
        report_unaccounted(cluster, readings, findings)
    if question.log_dirs:
        _check_epochs(cluster, question, chain, readings, findings)

    findings.facts["topics"] = _topic_facts(readings, findings)
    if question.conserves is not None and chain.batches:
        check_conservation(cluster, chain, readings, question.conserves, findings)
    check_sources(cluster, chain, findings, expect_caught_up=question.expect_caught_up)
    findings.facts["seconds"] = round(time.monotonic() - began, 3)
    return findings


def _ledger(cluster: Cluster, question: TopicsQuestion) -> LedgerReading:
    return read_ledger(cluster, question.ledger_topic, question.pipeline_id, question.settle_s)


def _output_partitions(
    cluster: Cluster, question: TopicsQuestion, findings: Findings
) -> list[Where]:
    """Return the partitions of the topics asked for, or of those that batches wrote to."""
    topics = question.topics
    if not topics:
        batches = select(_ledger(cluster, question).batches, question.since).batches
        topics = tuple(sorted({part.topic for batch in batches for part in batch.parts}))
    outputs: list[Where] = []
    for topic in topics:
        partitions = cluster.partitions(topic)
        if partitions is None:
            findings.cannot_judge(f"topic {topic}: it does not exist (any more)")
        outputs += partitions or []
    return outputs


def _report_undecided(ledger: LedgerReading, question: TopicsQuestion, findings: Findings) -> None:
    for where in ledger.undecided:
        what = "a ledger record in, or behind, a transaction that has not ended"
        if question.expect_caught_up and where not in ledger.behind_others:
            findings.anomaly("open-transaction", "I8", where, what)
        else:
            findings.cannot_judge(f"{where}: {what}, and what its batch wrote")
    for where in ledger.tombstones:
        findings.cannot_judge(f"ledger records before {where}: somebody deleted them there")


def _report_unpublished(chain: BatchChain, question: TopicsQuestion, findings: Findings) -> None:
    """Report whether the ledger says that all targets have published the newest batch."""
    newest = chain.batches[-1] if chain.batches else None
    if newest is not None and not newest.finished:
        what = f"sequence {newest.sequence} is decided and not published by all of its targets yet"
        if question.expect_caught_up:
            findings.anomaly("open-transaction", "I8", newest.place, what)
        else:
            findings.cannot_judge(what)


def _select_parts(
    chain: BatchChain, outputs: Sequence[Where], findings: Findings
) -> dict[Where, list[OutputPart]]:
    parts = disjoint_parts(chain.batches)
    for where in sorted(parts.keys() - set(outputs)):
        findings.cannot_judge(f"{place(*where)}: batches wrote there, and it was not looked at")
    return {where: of_one for where, of_one in parts.items() if where in set(outputs)}


def _output_ranges(
    cluster: Cluster,
    question: TopicsQuestion,
    chain: BatchChain,
    selection: Selection,
    parts: Mapping[Where, Sequence[OutputPart]],
    read_ends: Mapping[Where, int],
    high: Mapping[Where, int],
    findings: Findings,
) -> dict[Where, OutputRange]:
    targets = {
        where: max([end, *(min(part.last + 1, high[where]) for part in parts.get(where, ()))])
        for where, end in read_ends.items()
    }
    targets = dict(high) if question.expect_caught_up else targets
    stable = cluster.wait_until_stable(targets, question.settle_s)
    starts = _skip_to_selection(cluster.starts(high), selection, parts)
    first_sequence = chain.covered[0].sequence if chain.covered else 0
    ranges = {}
    for where in high:
        if stable[where] < high[where] and question.expect_caught_up:
            detail = f"the last stable offset is {stable[where]}, the high watermark {high[where]}"
            if question.shared_topic:
                doubt = f"{detail}, for a transaction that may be of others"
                findings.cannot_judge(f"{place(*where)}: {doubt}")
            else:
                at = place(*where, stable[where], high[where] - 1)
                findings.anomaly("open-transaction", "I8", at, detail)
        first_offsets = [
            part.first for part in parts.get(where, ()) if part.sequence >= first_sequence
        ]
        accounted_from = (
            starts[where] if chain.from_the_beginning else min(first_offsets, default=None)
        )
        end = min(stable[where], targets[where])
        ranges[where] = OutputRange(starts[where], end, accounted_from, min(read_ends[where], end))
    return ranges


def _skip_to_selection(
    starts: Mapping[Where, int], selection: Selection, parts: Mapping[Where, Sequence[OutputPart]]
) -> dict[Where, int]:
    """Return where to begin reading: behind the last record of a batch before the selection."""
    begin = dict(starts)
    for part in (part for batch in selection.before for part in batch.parts):
        where = (part.topic, part.partition)
        if where in begin:
            begin[where] = max(begin[where], part.last + 1)
    # A selected batch that lies before one left out is an anomaly already, and no case of
    # retention.
    return {
        where: max(starts[where], min([first, *(part.first for part in parts.get(where, ()))]))
        for where, first in begin.items()
    }


def _read_outputs(
    cluster: Cluster,
    question: TopicsQuestion,
    parts: Mapping[Where, Sequence[OutputPart]],
    ranges: Mapping[Where, OutputRange],
    high: Mapping[Where, int],
    findings: Findings,
) -> dict[Where, Reading]:
    compacted = {topic: cluster.is_compacted(topic) for topic in {where[0] for where in ranges}}
    decided_parts: dict[Where, list[OutputPart]] = {where: [] for where in parts}
    for where, part in ((where, part) for where, of_one in parts.items() for part in of_one):
        if _is_decided(part, ranges[where], high[where]):
            decided_parts[where].append(part)
        else:
            findings.cannot_judge(
                f"{part.place} (sequence {part.sequence}): behind a transaction that has not ended"
            )
    return read_outputs(cluster, decided_parts, ranges, compacted, shared=question.shared_topic)


def _is_decided(part: OutputPart, scope: OutputRange, high: int) -> bool:
    """Return whether ``part`` lies below the decided end.

    Above the end of everything it is lost, which is decided, too.
    """
    return part.last < scope.end or scope.end >= high


def _check_epochs(
    cluster: Cluster,
    question: TopicsQuestion,
    chain: BatchChain,
    readings: Mapping[Where, Reading],
    findings: Findings,
) -> None:
    epochs = Epochs.from_chain(chain)
    topics = {question.ledger_topic, *(where[0] for where in readings)}
    leaders: dict[Where, int] = {}
    for topic in topics:
        leaders |= cluster.leaders(topic) or {}
    for where, leader in sorted(leaders.items()):
        is_ledger = where[0] == question.ledger_topic
        if is_ledger and not any(batch.ledger_partition == where[1] for batch in chain.batches):
            continue
        folder = replica_folder(question.log_dirs, *where, leader)
        if folder is None:
            findings.cannot_judge(f"{place(*where)}: its epochs, it is in none of the --log-dirs")
        elif is_ledger:
            check_ledger(chain, where, folder, findings)
        elif where in readings:
            check_output(where, readings[where], folder, epochs, findings)
    findings.facts["epochs"] = epochs.facts()


def _topic_facts(readings: Mapping[Where, Reading], findings: Findings) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for topic in sorted({where[0] for where in readings}):
        of_topic = [reading for where, reading in readings.items() if where[0] == topic]
        names = {one.name for one in findings.anomalies if _topic(one.where) == topic}
        facts[topic] = {
            "partitions": len(of_topic),
            "records": sum(reading.log.visible.count for reading in of_topic),
            "batches": len({part.sequence for reading in of_topic for part in reading.log.parts}),
            "aborted_records": sum(reading.aborted for reading in of_topic),
            "unaccounted_records": sum(reading.log.unaccounted.count for reading in of_topic),
            "anomalies": sorted(names),
        }
    return facts


def _topic(where: str) -> str:
    return where.rpartition("@")[0].rpartition("-")[0]
