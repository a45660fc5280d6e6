"""Some letters of a topic, and whether they have been replayed. Called by ``show``; reads only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from onceward.errors import PartitionMissing
from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.letter import Letter, Wanted
from onceward.kafka.dead_letters.topic import DeadLetterTopic
from onceward.kafka.wire.client import KafkaClient


def letters(
    client: KafkaClient,
    topic: str,
    ledger_topic: str,
    wanted: Wanted,
    partition: int | None,
    offset: int | None,
    limit: int,
) -> Iterator[tuple[Letter, bool]]:
    """Up to ``limit`` letters, oldest first in each partition, with whether they have been
    replayed.

    :param partition: only of this one. :param offset: only the letter there.
    :raises PartitionMissing: the topic has no such partition. :raises TopicMissing, AccessDenied,
        BrokerUnreachable: …
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
    chosen = (letter for letter in every if letter in wanted)
    return (
        (letter, letter.offset in replayed.of(letter.where))
        for letter in itertools.islice(chosen, limit)
    )
