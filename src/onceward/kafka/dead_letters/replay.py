"""A replay: letters of a dead-letter topic go back to where they came from, each exactly once.

Called by ``onceward dead-letters replay``. Letters are read in the order of their partitions, and
a thousand at a time go back in one transaction, with the ledger record that says so
(:mod:`onceward.kafka.dead_letters.sending`). Letters that a filter leaves out, and those that
arrive meanwhile, are left for a later replay.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from onceward.errors import ConfigurationError, SourceNotNamed
from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.ledger import Replayed, chain_name
from onceward.kafka.dead_letters.sending import Parcel, Sender
from onceward.kafka.dead_letters.topic import DeadLetterTopic, Letter, LetterFilter
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings

PARCEL_LETTERS, PARCEL_BYTES = 1_000, 4 << 20
"""What one transaction takes; one letter that is larger goes alone."""

_NAMED = 5


@dataclass
class Outcome:
    """What a replay has done so far: filled while it goes on, and what it says is committed.
    ``fed_back``: letters by target topic. ``left_out``: not wanted. ``unaddressed``: those that
    have no source to go back to, and the places of the first of them."""

    fed_back: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    left_out: int = 0
    unaddressed: int = 0
    unaddressed_at: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Replay:
    """What is to be replayed. ``to``: one topic for all, by key; ``limit``: letters at most."""

    topic: str
    ledger_topic: str
    letter_filter: LetterFilter = field(default_factory=LetterFilter)
    to: str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.to in (self.topic, self.ledger_topic):
            raise ConfigurationError(
                f"--to {self.to} is the topic that is replayed, or the ledger's",
                next_step="name another topic",
            )

    def run(self, client: KafkaClient, producer: ProducerSettings, outcome: Outcome) -> None:
        """Feed back what is wanted and was not fed back before; ``outcome`` tells of it, also when
        this raises. One replay of a topic goes on at a time: the newest start takes over, and an
        older one stops with Fenced.

        :raises SourceNotNamed: at the end, if letters have no source to go back to; all others are
            fed back.
        :raises OncewardError: see :meth:`Sender.send`. What ``outcome`` counts has been fed back,
            and nothing else.
        """
        topic = DeadLetterTopic(client, self.topic)
        chain = KafkaChain(
            client, self.ledger_topic, chain_name(self.topic), producer, owns_client=False
        )
        sender = Sender(client, chain, producer, topic, to=self.to, run_id=uuid.uuid4().hex)
        sender.take()
        for parcel in self._parcels(topic, sender.replayed, outcome):
            sender.send(parcel)
            outcome.transactions += 1
            outcome.fed_back.update(letter.target(self.to) for letter in parcel.letters)
        self._refuse_the_unaddressed(outcome)

    def try_out(self, client: KafkaClient, outcome: Outcome) -> None:
        """Find what :meth:`run` would feed back; disturbs nobody, and counts no transactions."""
        topic = DeadLetterTopic(client, self.topic)
        for parcel in self._parcels(topic, topic.replayed(self.ledger_topic), outcome):
            outcome.fed_back.update(letter.target(self.to) for letter in parcel.letters)
        self._refuse_the_unaddressed(outcome)

    def _parcels(
        self, topic: DeadLetterTopic, replayed: Replayed, outcome: Outcome
    ) -> Iterator[Parcel]:
        left = self.limit
        for where, extent in topic.extents.items():
            before = replayed.of(where).copy()
            packing = _Packing(where, extent.begin)
            for letter in topic.letters(where, skip=before.next_outside):
                if letter.offset in before:
                    continue
                if not self._goes_back(letter, outcome):
                    packing.leave_out(letter)
                    continue
                packing.take(letter)
                left = None if left is None else left - 1
                if packing.is_full or left == 0:
                    yield packing.parcel()
                if left == 0:
                    return
            if packing.letters:
                yield packing.parcel()

    def _goes_back(self, letter: Letter, outcome: Outcome) -> bool:
        if letter not in self.letter_filter:
            outcome.left_out += 1
            return False
        if self.to is not None or self._is_addressed(letter):
            return True
        outcome.unaddressed += 1
        if len(outcome.unaddressed_at) < _NAMED:
            outcome.unaddressed_at.append(letter.place)
        return False

    def _is_addressed(self, letter: Letter) -> bool:
        """Return whether a letter can go back. Headers are as good as who may write to the topic.
        Nobody's input are a ledger, Kafka's own topics, and this one, whose letters would come
        back to it for ever."""
        name = "" if letter.home is None else letter.home.topic
        return name not in ("", self.topic, self.ledger_topic) and not name.startswith("__")

    def _refuse_the_unaddressed(self, outcome: Outcome) -> None:
        if outcome.unaddressed:
            more = ", …" if outcome.unaddressed > len(outcome.unaddressed_at) else ""
            raise SourceNotNamed(
                f"{outcome.unaddressed} records of {self.topic} name no topic and partition that "
                "they can go back to, or are of a pipeline's output (RecordTooLarge), and were "
                f"left: {', '.join(outcome.unaddressed_at)}{more}",
                next_step="look at them (`onceward dead-letters show --topic … --partition … "
                "--offset …`); feed them back with --to, or leave them out with --class or "
                "--source-topic",
                details={"topic": self.topic, "first": outcome.unaddressed_at},
            )


class _Packing:
    """The parcel that is being filled, and the offsets that it is done with. Between two letters
    that are shown one after the other lies nothing that will ever be shown: markers, what was
    aborted or replayed before. So a stretch goes from one letter that was left out to the next."""

    def __init__(self, where: TopicPartition, begin: int) -> None:
        self._where = where
        self.letters: list[Letter] = []
        self._bytes = 0
        self._done: list[tuple[int, int]] = []
        self._begin = self._end = begin

    def take(self, letter: Letter) -> None:
        self.letters.append(letter)
        self._bytes += letter.size
        self._end = letter.offset + 1

    def leave_out(self, letter: Letter) -> None:
        self._close()
        self._begin = self._end = letter.offset + 1

    def _close(self) -> None:
        if self._end > self._begin:
            self._done.append((self._begin, self._end))
        self._begin = self._end

    @property
    def is_full(self) -> bool:
        return len(self.letters) >= PARCEL_LETTERS or self._bytes >= PARCEL_BYTES

    def parcel(self) -> Parcel:
        """Return all that was taken, and begin the next parcel."""
        self._close()
        parcel = Parcel(self._where, self.letters, self._done)
        self.letters, self._done, self._bytes = [], [], 0
        return parcel
