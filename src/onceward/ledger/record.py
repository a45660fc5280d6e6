"""The ledger record: what a committed batch was, as versioned JSON. Values only, no I/O.

One record is written inside each batch's transaction, so it exists exactly if the batch does. The newest record of a
pipeline is the truth about where it stands; Spark's checkpoint and Kafka's group offsets are compared with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceward.errors import LedgerUnreadable
from onceward.ids import BatchId, PipelineId, ProducerIdentity, SourceRange, TopicPartition

VERSION = 1
"""Readers refuse a version above this one rather than guess; new optional fields do not raise it."""


@dataclass(frozen=True, slots=True)
class PartitionManifest:
    """What a batch put into one output partition.

    ``first_offset`` and ``last_offset`` are inclusive. Between them lie only this batch's records: a partition is
    written by one producer identity at a time, but other producers' records may stand between, so ``count`` may be
    smaller than ``last_offset - first_offset + 1``. ``checksum`` is
    :meth:`onceward.records.checksum.ContentChecksum.hexdigest` over the records in offset order.
    """

    count: int
    first_offset: int
    last_offset: int
    checksum: str


Manifest = Mapping[TopicPartition, PartitionManifest]


class FrameWritten(NamedTuple):
    """One frame of a batch: where it was sent (None: where the sink's settings or the rows say), and its records."""

    where: str | None
    records: int


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One committed batch of one pipeline.

    ``sequence`` counts the batches of the pipeline from 0 without gap, over all its checkpoints. ``committed_at_ms``
    is the driver's clock (milliseconds since the epoch) just before ``EndTxn``; nothing depends on it.
    ``ledger_partitions`` is how many partitions the ledger topic had when the record was written; 0 is unknown.
    ``topic_ids`` are Kafka's ids of the source topics that lie on the sink's cluster; those not named are unknown.
    ``run_id`` is Spark's id of the run that wrote it (empty: unknown): what a run finds of its own is no replay.
    ``frames`` are the frames of the batch in the order in which they were handed over, None where that is unknown.
    A ``supplement`` adds frames to the batch of the record before it; its manifest holds what it added alone, its
    ``frames`` are all of the batch.
    """

    pipeline: PipelineId
    sequence: int
    batch: BatchId
    sources: tuple[SourceRange, ...]
    manifest: Manifest
    producer: ProducerIdentity
    committed_at_ms: int
    ledger_partitions: int = field(default=0, compare=False)  # where it lies, not what it says
    topic_ids: Mapping[str, str] = field(default_factory=dict, compare=False)  # the same of its sources
    run_id: str = field(default="", compare=False)
    frames: tuple[FrameWritten, ...] | None = field(default=None, compare=False)
    supplement: bool = field(default=False, compare=False)

    @property
    def records(self) -> int:
        """How many output records the batch has."""
        return sum(part.count for part in self.manifest.values())


def encode(record: LedgerRecord) -> bytes:
    """``record`` as UTF-8 JSON, keys in reading order, partitions sorted."""
    manifest: dict[str, dict[str, list[Any]]] = {}
    for partition, part in sorted(record.manifest.items()):
        entry = [part.count, part.first_offset, part.last_offset, part.checksum]
        manifest.setdefault(partition.topic, {})[str(partition.partition)] = entry
    document: dict[str, Any] = {
        "version": VERSION,
        "pipeline": record.pipeline,
        "sequence": record.sequence,
        "query_id": record.batch.query_id,
        "batch_id": record.batch.batch_id,
        "sources": [{"start": source.start, "end": source.end} for source in record.sources],
        "manifest": manifest,
        "records": record.records,
        "producer_id": record.producer.producer_id,
        "producer_epoch": record.producer.epoch,
        "committed_at_ms": record.committed_at_ms,
        "ledger_partitions": record.ledger_partitions,
        "topic_ids": dict(sorted(record.topic_ids.items())),
        "run_id": record.run_id,
        "supplement": record.supplement,
    }
    if record.frames is not None:
        document["writes"] = [list(frame) for frame in record.frames]
    return json.dumps(document, separators=(",", ":")).encode()


def decode(data: bytes, *, where: str) -> LedgerRecord:
    """The record that :func:`encode` wrote.

    :param where: topic, partition and key, for the error.
    :raises LedgerUnreadable: not JSON, a field missing, or written by a newer Onceward.
    """
    try:
        document = json.loads(data)
        version = document["version"]
        if isinstance(version, int) and version > VERSION:
            raise LedgerUnreadable(
                f"the newest ledger record in {where} has version {version}; this Onceward reads up to {VERSION}",
                next_step="start this pipeline with the Onceward release that wrote the record, or a later one",
            )
        return _from_document(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerUnreadable(
            f"the newest ledger record in {where} cannot be read ({type(error).__name__}: {error})",
            next_step="find out who else writes to the ledger topic; nothing was sent",
        ) from error


def _from_document(document: Mapping[str, Any]) -> LedgerRecord:
    return LedgerRecord(
        pipeline=PipelineId(document["pipeline"]),
        sequence=int(document["sequence"]),
        batch=BatchId(str(document["query_id"]), int(document["batch_id"])),
        sources=tuple(SourceRange(source["start"], source["end"]) for source in document["sources"]),
        manifest=_manifest(document["manifest"]),
        producer=ProducerIdentity(int(document["producer_id"]), int(document["producer_epoch"])),
        committed_at_ms=int(document["committed_at_ms"]),
        ledger_partitions=int(document.get("ledger_partitions", 0)),
        topic_ids={str(topic): str(topic_id) for topic, topic_id in document.get("topic_ids", {}).items()},
        run_id=str(document.get("run_id", "")),
        frames=_frames(document.get("writes")),
        supplement=bool(document.get("supplement", False)),
    )


def _frames(document: Sequence[Sequence[Any]] | None) -> tuple[FrameWritten, ...] | None:
    if document is None:
        return None
    return tuple(FrameWritten(None if where is None else str(where), int(records)) for where, records in document)


def _manifest(document: Mapping[str, Mapping[str, Sequence[Any]]]) -> Manifest:
    return {
        TopicPartition(topic, int(partition)): PartitionManifest(int(count), int(first), int(last), str(checksum))
        for topic, partitions in document.items()
        for partition, (count, first, last, checksum) in partitions.items()
    }
