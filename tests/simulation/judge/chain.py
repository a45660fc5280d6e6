"""The ledger, read as anybody can: JSON under the pipeline's key, committed records only. One
chain, or not (I6, I7).

Decodes by itself: the record format of Kafka (``DefaultRecord``), and the fields that ``docs``
name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from simulation.judge import logs
from simulation.judge.logs import Identity, Reading, identity_text
from simulation.judge.verdict import Violation

_decode = json.JSONDecoder().decode

Place = tuple[str, str]
"""Topic and partition of a source, as Spark's offsets name them."""


class Record:
    """One ledger record of the pipeline, as it lies in the log."""

    __slots__ = (
        "at", "batch_id", "document", "ended_ms", "ends", "identity", "query_id", "run_id",
        "sequence", "starts",
        "value",
    )  # fmt: skip

    def __init__(
        self,
        at: str,
        identity: Identity,
        ended_ms: int,
        document: dict[str, Any],
        value: bytes = b"",
    ) -> None:
        self.at = at
        self.value = value
        self.identity = identity
        """Who wrote it; of a record that was written again, whoever did that."""
        self.ended_ms = ended_ms
        self.document = document
        self.sequence: int = document["sequence"]
        self.batch_id: int = document["batch_id"]
        self.query_id: str = document["query_id"]
        self.run_id: str = document["run_id"]
        sources = document["sources"]
        self.starts: list[Any] = [source["start"] for source in sources]
        self.ends: list[Any] = [source["end"] for source in sources]

    @property
    def supplement(self) -> bool:
        return bool(self.document["supplement"])

    @property
    def said(self) -> str:
        return (
            f"sequence {self.sequence} (batch {self.batch_id}, {identity_text(self.identity)}, "
            f"{self.at})"
        )


class Chain:
    """What the ledger says of one pipeline: of each sequence its newest record, in their order."""

    __slots__ = ("hidden", "records", "violations", "written")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.written: list[Record] = []
        """All of them: one whose batch was published later is written again."""
        self.hidden: set[Identity] = set()
        """Who has written to the ledger in transactions that were aborted."""
        self.violations: list[Violation] = []

    def ends(self) -> dict[Place, int]:
        """Up to where the sources were read, by the newest record."""
        return positions(self.records[-1].ends) if self.records else {}


def read_chain(
    cluster: Any, topic: str, partitions: Iterable[int], pipeline: str, *, compacted: bool = False
) -> Chain:
    """The records under ``pipeline`` in ``topic``. ``compacted``: older ones may be gone."""
    chain, places = Chain(), 0
    key = pipeline.encode()
    for partition in partitions:
        reading = logs.read(cluster, topic, partition)
        chain.violations += reading.violations
        if reading.visible or reading.hidden:
            before = len(chain.written)
            _take(chain, reading, key)
            places += len(chain.written) > before
    if places > 1:  # partitions were added, and the key has moved: by who was committed first
        chain.written.sort(key=lambda record: (record.ended_ms, record.sequence))
    judge_records(chain, compacted=compacted)
    return chain


def _take(chain: Chain, reading: Reading, key: bytes) -> None:
    for written in reading.hidden:
        if records_key(written.body) == key:
            chain.hidden.add(written.identity)
    for written in reading.visible:
        found_key, value = key_and_value(written.body)
        if found_key != key:
            continue
        at = f"{reading.where}@{written.base}"
        document = _decode(value.decode()) if value else None
        if document is None or "sequence" not in document:
            chain.violations.append(
                Violation("I6", f"{at} is visible under the pipeline's key, and tells of no batch")
            )
            continue
        record = Record(at, written.identity, written.ended_ms, document, value or b"")
        chain.written.append(record)
        if document["attempt"] != [*written.identity] or not written.transactional:
            owner, number = document["attempt"]
            sentence = (
                f"{record.said} names producer {owner} epoch {number}, and was not written "
                f"in its transaction"
            )
            chain.violations.append(Violation("I6", sentence))


def judge_records(chain: Chain, *, compacted: bool = False) -> None:
    """Each of what was written against what lies before it."""
    said = chain.violations
    before: Record | None = None
    for record in chain.written:
        _forward(record, said)
        if before is None:
            _begins(record, compacted, said)
        elif record.sequence == before.sequence:
            _written_again(before, record, said)
            chain.records.pop()
        else:
            _follows(before, record, compacted, said)
        chain.records.append(record)
        before = record
    _owners(chain.written, said)


def _begins(record: Record, compacted: bool, said: list[Violation]) -> None:
    if record.sequence and not compacted:
        said.append(Violation("I6", f"the ledger begins with {record.said}, not with sequence 0"))
    elif record.supplement and not compacted:
        said.append(
            Violation("I6", f"{record.said} adds to a batch that the ledger does not have")
        )


def _written_again(before: Record, record: Record, said: list[Violation]) -> None:
    """Only a batch that is decided and not finished is: what it says of the decision stays."""
    if before.document["state"] != "decided":
        said.append(Violation("I6", f"a fork: {record.said} follows {before.said}"))
        return
    same = ("query_id", "batch_id", "sources", "records", "committed_at_ms")
    if [before.document[name] for name in same] != [record.document[name] for name in same]:
        said.append(Violation("I6", f"{record.said} is not what was decided in {before.said}"))


def _follows(before: Record, record: Record, compacted: bool, said: list[Violation]) -> None:
    step = record.sequence - before.sequence
    if step < 0:
        said.append(Violation("I6", f"a fork: {record.said} follows {before.said}"))
        return
    if before.document["state"] != "finished":
        said.append(
            Violation("I6", f"{before.said} was never finished, and {record.said} is there")
        )
    if step > 1:
        if not compacted:
            said.append(Violation("I6", f"a gap: {record.said} follows {before.said}"))
        return
    if record.supplement:
        if (record.query_id, record.batch_id, record.ends) != (
            before.query_id,
            before.batch_id,
            before.ends,
        ):
            said.append(
                Violation("I6", f"{record.said} adds to another batch than that of {before.said}")
            )
        return
    skips = record.query_id == before.query_id and record.batch_id > before.batch_id + 1
    if record.query_id == before.query_id and record.batch_id <= before.batch_id:
        said.append(Violation("I6", f"{record.said} does not count on from {before.said}"))
    if record.starts != before.ends:
        _joins(before, record, skips, said)


def _joins(before: Record, record: Record, skips: bool, said: list[Violation]) -> None:
    """``record`` begins where ``before`` ended, in every partition that was known; behind it,
    where batches were skipped.
    """
    ended, begins = positions(before.ends), positions(record.starts)
    for place, end in ended.items():
        begin = begins.get(place)
        if begin is None or begin < end:
            what = f"goes back to {begin}" if begin is not None else "does not go on"
            said.append(
                Violation(
                    "I6",
                    f"{record.said} {what} in {'-'.join(place)}, where {before.said} ended at "
                    f"{end}",
                )
            )
        elif begin > end and not skips:
            said.append(
                Violation(
                    "I6",
                    f"{record.said} begins at {begin} of {'-'.join(place)}, {before.said} ended "
                    f"at {end}",
                )
            )


def _forward(record: Record, said: list[Violation]) -> None:
    for start, end in zip(record.starts, record.ends, strict=True):
        for topic, partitions in end.items():
            begins = start.get(topic, {}) if start else {}
            for partition, offset in partitions.items():
                if offset < begins.get(partition, 0):
                    sentence = (
                        f"{record.said} goes from {begins[partition]} back to {offset} of "
                        f"{topic}-{partition}"
                    )
                    said.append(Violation("I6", sentence))


def _owners(records: list[Record], said: list[Violation]) -> None:
    """An identity tells of one batch; epochs of a producer rise; a run that was taken over never
    comes again (I7).
    """
    seen: set[Identity] = set()
    newest: dict[int, int] = {}
    runs: dict[str, None] = {}
    before = ""
    for record in records:
        producer, epoch = record.identity
        if record.identity in seen:
            said.append(Violation("I7", f"{record.said}: its identity has told of a batch before"))
        elif epoch < newest.get(producer, -1):
            sentence = (
                f"{record.said} is older than epoch {newest[producer]}, which has told of "
                f"a batch before it"
            )
            said.append(Violation("I7", sentence))
        seen.add(record.identity)
        newest[producer] = epoch
        if record.run_id != before:
            if record.run_id in runs:
                said.append(
                    Violation(
                        "I7",
                        f"{record.said} is by {record.run_id}, from which {before} had taken over",
                    )
                )
            runs[record.run_id] = None
            before = record.run_id


def positions(offsets: list[Any]) -> dict[Place, int]:
    """Kafka offsets of all sources, by topic and partition."""
    return {
        (topic, partition): offset
        for source in offsets
        if source
        for topic, partitions in source.items()
        for partition, offset in partitions.items()
    }


# ── the record format ──


def key_and_value(body: bytes) -> tuple[bytes | None, bytes | None]:
    """Of the one record in ``body``, a batch's records without its header."""
    _, at = _varint(body, 0)
    _, at = _varint(body, at + 1)  # attributes; time
    _, at = _varint(body, at)  # offset
    key, at = _bytes(body, at)
    value, _ = _bytes(body, at)
    return key, value


def records_key(body: bytes) -> bytes | None:
    return key_and_value(body)[0]


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(data, at)
    return (None, at) if length < 0 else (bytes(data[at : at + length]), at + length)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    at += 1
    if byte < 0x80:
        return byte >> 1 ^ -(byte & 1), at
    zigzag, shift = byte & 0x7F, 7
    while True:
        byte = data[at]
        at += 1
        zigzag |= (byte & 0x7F) << shift
        if byte < 0x80:
            return zigzag >> 1 ^ -(zigzag & 1), at
        shift += 7
