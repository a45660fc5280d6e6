"""Is everything that went in there, and did exactly what the model says come out? Record by
record, in numpy arrays.

Called by ``verdict``. A record costs a byte or two and a microsecond or two.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException
from confluent_kafka import TopicPartition as Assigned

from onceward_testing.topic_reader import end_offsets, reader_settings

from .findings import Findings, Ledger, Visible
from .workload import (
    COUNTS,
    KEYS,
    SOURCE,
    SOURCE_PARTITIONS,
    key_index,
    key_of,
    number_in,
    value_of,
)

_SILENCE_SECONDS = 60.0
_POLL_SECONDS = 0.02


def check_source(found: Findings, servers: str, account: Path) -> list[np.ndarray]:
    """The number of each record by partition and offset; they must count from 0, as the feeder
    sent them.
    """
    ends = end_offsets(servers, SOURCE, "read_uncommitted")
    numbers = [
        np.full(ends[partition], -1, dtype=np.int64) for partition in range(SOURCE_PARTITIONS)
    ]
    for message in _messages(servers, SOURCE, ends):
        number = number_in(message.value())
        numbers[message.partition()][message.offset()] = number
        if message.key() != key_of(number):
            found.violated("input", f"key {message.key()!r} of record {number}")
    acknowledged = json.loads(account.read_text())["acknowledged"]
    for partition, there in enumerate(numbers):
        if not np.array_equal(there, np.arange(len(there))):
            found.violated(
                "input", f"partition {partition} does not count from 0 without gap or repetition"
            )
        if len(there) < acknowledged[partition]:
            found.violated(
                "input",
                f"partition {partition}: {acknowledged[partition]} acknowledged, {len(there)} "
                f"there",
            )
    found.facts["records in"] = sum(map(len, numbers))
    return numbers


# ── what came out ──


def check_copies(
    found: Findings, servers: str, topic: str, numbers: list[np.ndarray], *, in_order: bool
) -> Visible:
    """W1 and *scatter*: each record once (I1, I2), as it was (content), and ``in_order`` (I3)."""
    seen = [np.zeros(len(part), dtype=np.uint8) for part in numbers]
    reached: dict[tuple[int, int], int] = {}
    out = 0
    ends = end_offsets(servers, topic, "read_uncommitted")
    visible = _nothing_yet(ends)
    for message in _messages(servers, topic, ends):
        out += 1
        visible[message.partition()][message.offset()] = True
        value = message.value()
        partition_text, offset_text, original = value.split(b":", 2)
        partition, offset = int(partition_text), int(offset_text)
        if not (0 <= partition < len(seen) and 0 <= offset < len(seen[partition])):
            found.violated("I2", f"{topic}: a copy of nothing: {value!r}")
            continue
        number = int(numbers[partition][offset])
        seen[partition][offset] = min(250, seen[partition][offset] + 1)
        if message.key() != key_of(number) or original != value_of(partition, number):
            found.violated("I1", f"{topic}: a copy that differs: {message.key()!r} {value!r}")
        way = (partition, message.partition())
        if in_order and offset <= reached.get(way, -1):
            found.violated(
                "I3", f"{value!r} after offset {reached[way]} in partition {message.partition()}"
            )
        reached[way] = offset
    for partition, counted in enumerate(seen):
        for promise, what, wrong in (
            ("I1", "missing", counted == 0),
            ("I2", "repeated", counted > 1),
        ):
            offsets = np.flatnonzero(wrong)
            if len(offsets):
                shown = ", ".join(map(str, offsets[:10]))
                text = f"{topic}: {len(offsets)} of partition {partition} {what}: {shown}"
                found.violated(promise, text, len(offsets))
    found.facts["records out"] = found.facts.get("records out", 0) + out
    return visible


def check_counts(
    found: Findings, servers: str, numbers: list[np.ndarray], ledger: Ledger
) -> Visible:
    """W3: the fold over the batches as the ledger bounds them, value by value (I9)."""
    keys = [
        np.array([key_index(int(number)) for number in part], dtype=np.int64) for part in numbers
    ]
    totals = np.zeros(KEYS, dtype=np.int64)
    expected: Counter[tuple[int, int]] = Counter()
    for record in ledger:
        (span,) = record["sources"]
        batch = np.zeros(KEYS, dtype=np.int64)
        for partition, part in enumerate(keys):
            start, end = (int(span[side][SOURCE][str(partition)]) for side in ("start", "end"))
            chosen = part[start:end]
            batch += np.bincount(chosen[chosen >= 0], minlength=KEYS)
        totals += batch
        for index in np.flatnonzero(batch):
            expected[int(index), int(totals[index])] += 1
    emitted: Counter[tuple[int, int]] = Counter()
    ends = end_offsets(servers, COUNTS, "read_uncommitted")
    visible = _nothing_yet(ends)
    for message in _messages(servers, COUNTS, ends):
        visible[message.partition()][message.offset()] = True
        emitted[int(message.key()[4:]), int(message.value())] += 1
    for (key, count), times in (expected - emitted).items():
        found.violated("I9", f"key {key}: count {count} is missing", times)
    for (key, count), times in (emitted - expected).items():
        found.violated("I9", f"key {key}: count {count} should not be there", times)
    found.facts["records out"] = found.facts.get("records out", 0) + emitted.total()
    return visible


def _nothing_yet(ends: dict[int, int]) -> Visible:
    return {partition: np.zeros(end, dtype=np.bool_) for partition, end in ends.items()}


def _messages(servers: str, topic: str, ends: dict[int, int]) -> Iterator[Any]:
    """Every visible message up to ``ends``, partition by partition in order."""
    consumer = Consumer(
        {**reader_settings(servers, "read_committed"), "queued.max.messages.kbytes": 65_536}
    )
    try:
        consumer.assign([Assigned(topic, partition, OFFSET_BEGINNING) for partition in ends])
        unread = {partition for partition, end in ends.items() if end > 0}
        silent = 0.0
        while unread:
            messages = consumer.consume(10_000, _POLL_SECONDS)
            silent = 0.0 if messages else silent + _POLL_SECONDS
            if silent > _SILENCE_SECONDS:
                raise RuntimeError(
                    f"{topic}: nothing more comes, with partitions {sorted(unread)} unread"
                )
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    unread.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
