"""The letters of a dead-letter topic, streamed partition by partition, up to where all was decided
at the start.

Called by the commands; reads only. A letter is a source record as it came, and headers that say
why it was set aside, as ``KafkaSink(dead_letter_topic=…)`` writes it. Headers of the record come
first; ours, those of ``kafka.sink.dead_letter_headers``, begin with the last
``onceward.error.class``. So a record that has such headers itself, being the output of another
pipeline, keeps its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onceward.errors import InvalidTopicName, SourceTopicReplaced
from onceward.ids import TopicPartition, topic_name
from onceward.kafka.dead_letters.ledger import (
    Replayed,
    chain_name,
    is_another_topic,
    parse_replayed,
)
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.records.reader import Record
from onceward.kafka.sink.dead_letters import (
    ABOUT,
    ERROR_CLASS,
    ERROR_MESSAGE,
    OFFSET,
    PARTITION,
    PIPELINE,
    TIMESTAMP,
    TOO_LARGE,
    TOPIC,
)
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.committed import Skip, committed_records
from onceward.kafka.wire.reads.offsets import EARLIEST, LATEST, existing_leader, list_offsets

REPLAYED = "onceward.replayed"
"""How often a record was fed back, as an ASCII decimal: on the record in its source topic, and so
on the dead letter, should it become one again."""

Headers = tuple[tuple[str, bytes | None], ...]

# of a number that fits into 63 bits for certain
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Letter:
    """One record of a dead-letter topic. ``error_class`` is None for one that is no dead letter:
    it has no such header.

    ``headers`` are the record's own. ``source`` and ``source_offset`` say where it came from, None
    where the headers do not say so in a way that can be meant. ``replayed``: how often it had been
    fed back before it was set aside. Times in ms since 1970.
    """

    where: TopicPartition
    offset: int
    written_at_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    error_class: str | None = None
    error_message: str = ""
    pipeline: str = ""
    source: TopicPartition | None = None
    source_offset: int | None = None
    source_timestamp_ms: int | None = None
    replayed: int = 0

    @property
    def place(self) -> str:
        """Return where it lies, in the way of Kafka's tools."""
        return f"{self.where}@{self.offset}"

    @property
    def leave_out(self) -> str:
        """Return the option of a replay that leaves out this letter and no other."""
        return f"--leave-out {self.where.partition}:{self.offset}"

    @property
    def home(self) -> TopicPartition | None:
        """Return where it goes back to: its source, if it is a record of it."""
        return None if self.error_class == TOO_LARGE else self.source

    def target(self, to: str | None) -> str:
        """Return the topic that it is fed back to: ``to``, or its home; empty: none."""
        return to or (self.home.topic if self.home else "")

    @property
    def size(self) -> int:
        """Return bytes of key, value and headers."""
        parts = (part for header in self.headers for part in (header[0].encode(), header[1]))
        return sum(len(part) for part in (self.key, self.value, *parts) if part is not None)


def parse_letter(where: TopicPartition, record: Record) -> Letter:
    """Return ``record`` of a dead-letter topic's partition, read."""
    replayed = _number(dict(record.headers).get(REPLAYED)) or 0
    begin = max(
        (place for place, (name, _) in enumerate(record.headers) if name == ERROR_CLASS),
        default=None,
    )
    ours = {} if begin is None else dict(record.headers[begin:])
    if (error_class := ours.get(ERROR_CLASS)) is None:
        begin, ours = None, {}
    return Letter(
        where,
        record.offset,
        record.timestamp_ms,
        record.key,
        record.value,
        headers=tuple(_own(record.headers, begin)),
        error_class=None if error_class is None else _text(error_class),
        error_message=_text(ours.get(ERROR_MESSAGE)),
        pipeline=_text(ours.get(PIPELINE)),
        source=_source(ours.get(TOPIC), ours.get(PARTITION)),
        source_offset=_number(ours.get(OFFSET)),
        source_timestamp_ms=_number(ours.get(TIMESTAMP)),
        replayed=replayed,
    )


def headers_to_feed_back(letter: Letter) -> Headers:
    """Return the record's own headers, and how often it has been fed back, this time included."""
    return (*letter.headers, (REPLAYED, str(letter.replayed + 1).encode()))


def _own(headers: Headers, begin: int | None) -> Iterator[tuple[str, bytes | None]]:
    """Yield headers of the record, and what others have added since; ours begin at ``begin``."""
    return (
        (n, v)
        for at, (n, v) in enumerate(headers)
        if n != REPLAYED and (begin is None or at < begin or n not in ABOUT)
    )


def _source(topic: bytes | None, partition: bytes | None) -> TopicPartition | None:
    number = _number(partition)
    if topic is None or number is None or number >= 1 << 31:
        return None
    try:
        return TopicPartition(topic_name(topic.decode()), number)
    except (UnicodeDecodeError, InvalidTopicName):
        return None


def _number(value: bytes | None) -> int | None:
    """Parse digits only: ``int`` would take signs, spaces and underscores, too."""
    return (
        int(value)
        if value is not None and value.isdigit() and len(value) <= _MOST_DIGITS
        else None
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode(errors="replace")


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which letters a command is about; empty: all, also those that are none. ``left_out``: single
    ones that it is not about, by partition and offset of the dead-letter topic."""

    classes: Sequence[str] = ()
    source_topics: Sequence[str] = ()
    left_out: Collection[tuple[int, int]] = ()

    def __contains__(self, letter: Letter) -> bool:
        if (letter.where.partition, letter.offset) in self.left_out:
            return False
        of_class = not self.classes or letter.error_class in self.classes
        of_topic = not self.source_topics or (
            letter.source is not None and letter.source.topic in self.source_topics
        )
        return of_class and of_topic


@dataclass(frozen=True, slots=True)
class Extent:
    """A partition's offsets ``[begin, end)`` at the command's start; ``end``: the last stable."""

    begin: int
    end: int


class DeadLetterTopic:
    """See the module. What is appended or decided later is for the next run of the command.
    :raises TopicMissing, AccessDenied, BrokerUnreachable: naming the topic."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self.name = name
        self._client = client
        numbers = sorted(client.topic_partitions([name])[name])
        partitions = [TopicPartition(name, number) for number in numbers]
        self.id = client.topic_ids([name]).get(name, "")
        """Of the topic (KIP-516); empty with brokers before 2.8."""
        begins = list_offsets(client, partitions, EARLIEST)
        ends = list_offsets(client, partitions, LATEST, read_committed=True)
        self.extents: Mapping[TopicPartition, Extent] = {
            partition: Extent(begins[partition], max(begins[partition], ends[partition]))
            for partition in partitions
        }

    def letters(
        self,
        where: TopicPartition,
        start: int | None = None,
        *,
        skip: Skip = lambda offset: offset,
    ) -> Iterator[Letter]:
        """Yield the letters of one partition, in offset order; see
        :func:`onceward.kafka.wire.reads.committed.committed_records`."""
        extent = self.extents[where]
        begin = extent.begin if start is None else max(start, extent.begin)
        return (
            parse_letter(where, record)
            for record in committed_records(self._client, where, begin, extent.end, skip=skip)
        )

    def all_letters(self) -> Iterator[Letter]:
        """Yield all letters, partition by partition."""
        for where in self.extents:
            yield from self.letters(where)

    def replayed(self, ledger_topic: str) -> Replayed:
        """Read what the ledger says of replays, disturbing none. :raises AccessDenied,
        BrokerUnreachable, LedgerUnreadable: …"""
        newest = LedgerTopic(self._client, ledger_topic, chain_name(self.name)).newest()
        return parse_replayed(newest, self.name, self.id)

    def must_be_the_same(self) -> None:
        """Check that the topic's id is the same: ids never come back, so all that was read came
        from it. :raises SourceTopicReplaced: created again: offsets name other letters now."""
        found = self._client.topic_ids([self.name]).get(self.name, "")
        if is_another_topic(self.id, found):
            raise SourceTopicReplaced(
                f"dead-letter topic {self.name} was deleted and created again while it was read: "
                f"its id was {self.id} and is {found}",
                next_step="run again: what is there now is read from its beginning",
                details={"topics": [self.name]},
            )


def letters(
    client: KafkaClient,
    topic: str,
    ledger_topic: str,
    letter_filter: LetterFilter,
    partition: int | None,
    offset: int | None,
    limit: int,
) -> Iterator[tuple[Letter, bool]]:
    """Return up to ``limit`` letters, oldest first in each partition, with whether they have been
    replayed.

    :param partition: only of this one. :param offset: only the letter there.
    :raises PartitionMissing: the topic has no such partition.
    :raises TopicMissing, AccessDenied, BrokerUnreachable: …
    """
    found = DeadLetterTopic(client, topic)
    where = None if partition is None else TopicPartition(topic, partition)
    if where is not None:
        existing_leader(client, where)
    replayed = found.replayed(ledger_topic)
    every = found.all_letters() if where is None else found.letters(where, offset)
    if offset is not None:
        every = itertools.takewhile(lambda letter: letter.offset == offset, every)
    matches = (letter for letter in every if letter in letter_filter)
    return (
        (letter, letter.offset in replayed.of(letter.where))
        for letter in itertools.islice(matches, limit)
    )
