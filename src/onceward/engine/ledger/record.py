"""The ledger record: what a decided batch was, as versioned JSON. Values only, no I/O. One record
is written for each batch, in the one step that decides it, so it exists exactly if the batch is to
be seen. The newest record of a pipeline is the truth about where it stands; Spark's checkpoint and
Kafka's group offsets are compared with it."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from onceward import surroundings
from onceward.errors import LedgerUnreadable
from onceward.ids import AttemptId, BatchId, PipelineId, SourceRange
from onceward.libraries import release

VERSION = 2
"""Readers refuse any other version rather than guess; new optional fields do not raise it. Version
1 knew Kafka only, and was never released."""


DELIVERED = "delivered"
"""In the data of an output that is delivered in chunks: how many the ledger knows to be taken."""
PUBLISHED = "published"
"""In the data of an output of a fan-out: true once its target has published it."""


class RecordState(Enum):
    """How far a batch of the ledger is."""

    # It will be seen, and something is left to do for that: ``Target.finish``
    DECIDED = "decided"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Output:
    """What a batch put into one target. ``kind`` says what can read ``data``, which are JSON
    values in that kind's ``version``: of ``kafka`` a manifest
    (:mod:`onceward.kafka.sink.task_reports`), of ``two_phase`` and ``files`` the committables."""

    kind: str
    version: int
    records: int
    data: Any

    @property
    def delivered(self) -> int:
        """How many of its chunks the ledger knows to be taken; 0 where it has none."""
        return int(self.data.get(DELIVERED, 0)) if isinstance(self.data, Mapping) else 0

    @property
    def is_published(self) -> bool:
        """Whether its target in a fan-out has published it."""
        return isinstance(self.data, Mapping) and bool(self.data.get(PUBLISHED))


class FrameWritten(NamedTuple):
    """One frame of a batch: its place (None: settings or rows say), and its records."""

    where: str | None
    records: int


class Writer(NamedTuple):
    """Which driver wrote a record, for whoever is on call: Onceward's version, host, process id.
    Nothing depends on it."""

    version: str
    host: str
    process_id: int


def this_driver() -> Writer:
    """Return this process as a writer."""
    return Writer(release(), socket.gethostname(), surroundings.process_id())


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """One decided batch of one pipeline.

    ``sequence`` counts the batches of the pipeline from 0 without gap, over all its checkpoints.
    ``attempt`` is who wrote it: no other batch has the same. ``outputs`` are by the names of the
    sink's targets. ``committed_at_ms`` is the driver's clock (milliseconds since the epoch) just
    before the decision; nothing depends on it. ``run_id`` is Spark's id of the run that wrote it
    (empty: unknown): what a run finds of its own is no replay. ``frames`` are the frames of the
    batch in the order in which they were handed over, None where that is unknown. A ``supplement``
    adds frames to the batch of the record before it; its outputs hold what it added alone, its
    ``frames`` are all of the batch. ``decided`` is the attempt that decided, where the record
    was written again under another one. ``known_as`` is what the ledger itself was told from
    others by when somebody first asked (of a topic); empty: nobody has. ``open_ms``: for how
    long the Kafka transaction that decided had been open when this record was put into it, by
    the driver's clock; None where there was none, or an earlier release wrote the record.
    ``writer`` is the driver that did, if known. ``steps_ms`` are the milliseconds of the
    batch's steps up to the record. Nothing depends on the last three.
    """

    pipeline: PipelineId
    sequence: int
    batch: BatchId
    sources: tuple[SourceRange, ...]
    attempt: AttemptId
    outputs: Mapping[str, Output]
    committed_at_ms: int
    state: RecordState = RecordState.FINISHED
    run_id: str = field(default="", compare=False)
    frames: tuple[FrameWritten, ...] | None = field(default=None, compare=False)
    supplement: bool = field(default=False, compare=False)
    decided: AttemptId | None = field(default=None, compare=False)
    known_as: str = field(default="", compare=False)
    open_ms: int | None = field(default=None, compare=False)
    writer: Writer | None = field(default=None, compare=False)
    steps_ms: Mapping[str, int] = field(default_factory=dict, compare=False)

    @property
    def was_taken(self) -> bool:
        """Return whether its targets are known to have taken any of it, or of a batch before."""
        return (
            self.sequence > 0
            or self.state is RecordState.FINISHED
            or any(output.delivered > 0 for output in self.outputs.values())
        )

    @property
    def records(self) -> int:
        """How many output records the batch has."""
        return sum(output.records for output in self.outputs.values())


def encode(record: LedgerRecord, **where: Any) -> bytes:
    """Return ``record`` as UTF-8 JSON, keys in reading order; ``where``: its store's own notes."""
    document: dict[str, Any] = {
        "version": VERSION,
        "pipeline": record.pipeline,
        "sequence": record.sequence,
        "query_id": record.batch.query_id,
        "batch_id": record.batch.batch_id,
        "run_id": record.run_id,
        "attempt": list(record.attempt),
        "state": record.state.value,
        "sources": [_source(source) for source in record.sources],
        "outputs": {
            name: {
                "kind": output.kind,
                "version": output.version,
                "records": output.records,
                "data": output.data,
            }
            for name, output in sorted(record.outputs.items())
        },
        "records": record.records,
        "supplement": record.supplement,
        "committed_at_ms": record.committed_at_ms,
        **where,
    }
    if_known = {
        "decided": record.decided,
        "known_as": record.known_as or None,
        "open_ms": record.open_ms,
        "writer": record.writer,
        "steps_ms": dict(record.steps_ms) or None,
        "writes": record.frames,
    }
    document |= {name: value for name, value in if_known.items() if value is not None}
    return json.dumps(document, separators=(",", ":")).encode()


def _source(source: SourceRange) -> dict[str, Any]:
    identity = {} if source.identity is None else {"witness": source.identity}
    return {"start": source.start, "end": source.end, **identity}


def decode(data: bytes, *, where: str) -> LedgerRecord:
    """Return the record that :func:`encode` wrote.

    :param where: the place and the key, for the error.
    :raises LedgerUnreadable: not JSON, a field missing, or written by another Onceward.
    """
    try:
        document = json.loads(data)
        version = document["version"]
        if isinstance(version, int) and version != VERSION:
            raise LedgerUnreadable(
                f"the newest ledger record in {where} has version {version}; this Onceward reads "
                f"version {VERSION}",
                next_step="start this pipeline with the Onceward release that wrote the record"
                + (
                    ", or a later one"
                    if version > VERSION
                    else "; or begin anew under a new pipeline_id"
                ),
            )
        return _from_document(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LedgerUnreadable(
            f"the newest ledger record in {where} cannot be read ({type(error).__name__}: "
            f"{error})",
            next_step="find out who else writes to the ledger; nothing was sent",
        ) from error


def _from_document(document: Mapping[str, Any]) -> LedgerRecord:
    owner, number = document["attempt"]
    return LedgerRecord(
        pipeline=PipelineId(document["pipeline"]),
        sequence=int(document["sequence"]),
        batch=BatchId(str(document["query_id"]), int(document["batch_id"])),
        sources=tuple(
            SourceRange(s["start"], s["end"], s.get("witness")) for s in document["sources"]
        ),
        attempt=AttemptId(int(owner), int(number)),
        outputs={
            str(name): Output(
                str(output["kind"]), int(output["version"]), int(output["records"]), output["data"]
            )
            for name, output in document["outputs"].items()
        },
        committed_at_ms=int(document["committed_at_ms"]),
        state=RecordState(document["state"]),
        run_id=str(document.get("run_id", "")),
        frames=_frames(document.get("writes")),
        supplement=bool(document.get("supplement", False)),
        decided=AttemptId(*map(int, document["decided"])) if "decided" in document else None,
        known_as=str(document.get("known_as", "")),
        open_ms=_whole(document.get("open_ms")),
        writer=_writer(document.get("writer")),
        steps_ms=_steps(document.get("steps_ms")),
    )


def _steps(value: object) -> dict[str, int]:
    fields = value if isinstance(value, dict) else {}
    return {str(name): took for name, took in fields.items() if _whole(took) is not None}


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _writer(value: object) -> Writer | None:
    match value:
        case [str(version), str(host), int(process_id)]:
            return Writer(version, host, process_id)
    return None


def _frames(document: Sequence[Sequence[Any]] | None) -> tuple[FrameWritten, ...] | None:
    if document is None:
        return None
    return tuple(
        FrameWritten(None if where is None else str(where), int(records))
        for where, records in document
    )
