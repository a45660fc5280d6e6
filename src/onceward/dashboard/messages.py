"""A few records of a partition, each with what has become of its transaction.

Called by the dashboard's thread. What is below the last stable offset is decided; behind it,
whatever is in a transaction may still become either (KIP-98).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import islice

from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.text import shown
from onceward.kafka.dead_letters.topic import Letter, parse_letter
from onceward.kafka.records.reader import Record
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.committed import aborted_in, batches_from, fetch, with_fates
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, list_offsets

_WAIT_MS = 500
_MOST_BYTES = 2_000


class Fate(Enum):
    """What has become of a record's transaction."""

    COMMITTED = "committed"
    OPEN = "open"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Message:
    """One record. Key, value and headers are text, or hexadecimal where they are none, and cut.
    ``letter`` is set for a dead letter.
    """

    offset: int
    timestamp_ms: int
    fate: Fate
    key: str
    value: str
    headers: tuple[tuple[str, str], ...]
    letter: Letter | None


@dataclass(frozen=True, slots=True)
class PartitionExcerpt:
    """Records of a partition from an offset on, and the offsets that it has: the earliest, the
    last stable one, and the high watermark.
    """

    where: TopicPartition
    start: int
    earliest: int
    last_stable: int
    high_watermark: int
    messages: tuple[Message, ...]


def read_excerpt(
    client: KafkaClient, where: TopicPartition, start: int, count: int
) -> PartitionExcerpt:
    """Read up to ``count`` records from offset ``start`` on; below 0: that many before the end.

    :raises OncewardError: the partition cannot be read.
    """
    earliest = list_offsets(client, [where], EARLIEST)[where]
    stable = list_offsets(client, [where], LATEST, read_committed=True)[where]
    end = list_offsets(client, [where], LATEST)[where]
    begin = min(max(end + start if start < 0 else start, earliest), end)
    found: list[Message] = []
    position = begin
    while position < end and len(found) < count:
        is_decided = position < stable
        answer = fetch(client, where, position, wait_ms=_WAIT_MS, read_committed=is_decided)
        batches = batches_from(position, answer)
        if not batches:
            break
        aborted = aborted_in(answer.responses[0].partitions[0])
        for batch, is_aborted in with_fates(batches, aborted):
            # The last stable offset is where an open transaction begins: between two batches
            is_open = batch.is_transactional and batch.base_offset >= stable
            fate = Fate.OPEN if is_open else Fate.ABORTED if is_aborted else Fate.COMMITTED
            records = (each for each in batch.records if each.offset >= begin)
            found += [_message(where, each, fate) for each in islice(records, count - len(found))]
        position = batches[-1].last_offset + 1
    return PartitionExcerpt(where, begin, earliest, stable, end, tuple(found))


def _message(where: TopicPartition, record: Record, fate: Fate) -> Message:
    letter = parse_letter(where, record)
    return Message(
        record.offset,
        record.timestamp_ms,
        fate,
        shown(record.key, _MOST_BYTES),
        shown(record.value, _MOST_BYTES),
        tuple((name, shown(value, _MOST_BYTES)) for name, value in record.headers[:50]),
        letter if letter.error_class is not None else None,
    )
