"""What is in a dead-letter topic, counted: by pipeline, kind of error and source partition. Called
by ``list``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.letter import Letter
from onceward.kafka.dead_letters.topic import DeadLetterTopic
from onceward.kafka.wire.client import KafkaClient

MOST_GROUPS = 10_000
"""What is counted by itself; the rest is one group. Headers are others' text: they must not fill
our memory.
"""


class GroupName(NamedTuple):
    """``error_class`` None: no dead letters. ``source`` None: none named, or no partition."""

    pipeline: str
    error_class: str | None
    source: TopicPartition | None


REST = GroupName("(others)", "(others)", None)
NO_LETTERS = GroupName("", None, None)


@dataclass
class Group:
    """``came_back``: had been fed back before. Times of writing, in ms since 1970."""

    records: int = 0
    replayed: int = 0
    came_back: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, letter: Letter, *, replayed: bool) -> None:
        self.first_ms = (
            min(self.first_ms, letter.written_at_ms) if self.records else letter.written_at_ms
        )
        self.last_ms = max(self.last_ms, letter.written_at_ms)
        self.records += 1
        self.replayed += replayed
        self.came_back += letter.replayed > 0

    def join(self, other: Group) -> None:
        if other.records:
            self.first_ms = min(self.first_ms, other.first_ms) if self.records else other.first_ms
            self.last_ms = max(self.last_ms, other.last_ms)
            self.records += other.records
            self.replayed += other.replayed
            self.came_back += other.came_back


@dataclass
class Counts:
    """All that ``list`` says. ``gone``: partitions whose log begins later than at 0, and where:
    what was there before has been removed by retention, replayed or not.
    """

    topic: str
    groups: dict[GroupName, Group] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    fed_back_ever: int = 0

    @property
    def letters(self) -> Group:
        """Return all that are dead letters."""
        return self._sum(are_letters=True)

    @property
    def others(self) -> Group:
        """Return the records that are none."""
        return self._sum(are_letters=False)

    def _sum(self, *, are_letters: bool) -> Group:
        total = Group()
        for name, group in self.groups.items():
            if (name.error_class is not None) is are_letters:
                total.join(group)
        return total

    def add(self, letter: Letter, *, replayed: bool) -> None:
        name = NO_LETTERS
        if letter.error_class is not None:
            name = GroupName(letter.pipeline, letter.error_class, letter.source)
            if name not in self.groups and len(self.groups) >= MOST_GROUPS:
                name = REST
        self.groups.setdefault(name, Group()).add(letter, replayed=replayed)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "topic": self.topic,
            "letters": _numbers(self.letters),
            "other_records": _numbers(self.others),
            "fed_back_ever": self.fed_back_ever,
            "log_begins_at": {str(partition): offset for partition, offset in self.gone.items()},
            "groups": [
                {
                    "pipeline": name.pipeline,
                    "error_class": name.error_class,
                    "source_topic": name.source.topic if name.source else None,
                    "source_partition": name.source.partition if name.source else None,
                    **_numbers(group),
                }
                for name, group in sorted_groups(self)
                if name.error_class is not None
            ],
        }


def _numbers(group: Group) -> dict[str, Any]:
    times = {"first_ms": group.first_ms, "last_ms": group.last_ms} if group.records else {}
    return {
        "records": group.records,
        "replayed": group.replayed,
        "came_back": group.came_back,
        **times,
    }


def sorted_groups(counts: Counts) -> list[tuple[GroupName, Group]]:
    """Return the groups by name; those that name no source last."""

    def order(entry: tuple[GroupName, Group]) -> tuple[Any, ...]:
        name = entry[0]
        return (
            name == REST,
            name.pipeline,
            name.error_class or "",
            name.source is None,
            name.source or ("", 0),
        )

    return sorted(counts.groups.items(), key=order)


def count(client: KafkaClient, topic: str, ledger_topic: str) -> Counts:
    """Count everything that was decided in ``topic`` when this was called, against what the ledger
    says of replays.

    Streams; disturbs nobody. A replay that has a transaction open is waited for, as long as that
    may take.

    :raises TopicMissing, AccessDenied, BrokerUnreachable, LedgerUnreadable: …
    """
    found = DeadLetterTopic(client, topic)
    # After the topic's extent is known: what a replay that runs just now feeds back counts, or
    # does not, but nothing that is counted as replayed can be undone.
    replayed = found.replayed(ledger_topic)
    counts = Counts(topic, fed_back_ever=replayed.count)
    counts.gone = {
        where.partition: extent.begin
        for where, extent in found.extents.items()
        if extent.begin > 0
    }
    for letter in found.all_letters():
        counts.add(letter, replayed=letter.offset in replayed.of(letter.where))
    return counts
