"""The letters of a dead-letter topic, streamed partition by partition, up to where all was decided
at the start.

Called by the commands; reads only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onceward.errors import PartitionMissing, SourceTopicReplaced
from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.ledger import Replayed, chain_name, parse_replayed
from onceward.kafka.dead_letters.letter import Letter, LetterFilter, parse_letter
from onceward.kafka.ledger.topic import LedgerTopic
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.reads.committed import Skip, committed_records, decided_ends
from onceward.kafka.wire.reads.offsets import EARLIEST, list_offsets


@dataclass(frozen=True, slots=True)
class Extent:
    """A partition's offsets ``[begin, end)`` at the command's start; ``end``: the last stable."""

    begin: int
    end: int


class DeadLetterTopic:
    """See the module. What is appended or decided later is for the next run of the command.

    :raises TopicMissing, AccessDenied, BrokerUnreachable: naming the topic.
    """

    def __init__(self, client: KafkaClient, name: str) -> None:
        self.name = name
        self._client = client
        numbers = sorted(client.topic_partitions([name])[name])
        partitions = [TopicPartition(name, number) for number in numbers]
        self.id = client.topic_ids([name]).get(name, "")
        """Of the topic (KIP-516); empty with brokers before 2.8."""
        begins, ends = list_offsets(client, partitions, EARLIEST), decided_ends(client, partitions)
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
        :func:`onceward.kafka.wire.reads.committed.committed_records`.
        """
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
        from it. :raises SourceTopicReplaced: it was created again, and offsets name other letters
        now."""
        found = self._client.topic_ids([self.name]).get(self.name, "")
        if found != self.id:
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
    if where is not None and where not in found.extents:
        raise PartitionMissing(
            f"topic {topic} has partitions 0 to {len(found.extents) - 1}",
            next_step="correct --partition",
        )
    replayed = found.replayed(ledger_topic)
    every = found.all_letters() if where is None else found.letters(where, offset)
    if offset is not None:
        every = itertools.takewhile(lambda letter: letter.offset == offset, every)
    matches = (letter for letter in every if letter in letter_filter)
    return (
        (letter, letter.offset in replayed.of(letter.where))
        for letter in itertools.islice(matches, limit)
    )
