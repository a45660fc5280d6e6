"""Some letters as one Kafka transaction: their records, and the ledger record that says that they
were replayed. Called by :mod:`onceward.kafka.dead_letters.replay`. Letters and ledger record
become visible together, by ``EndTxn``, or never."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from onceward import events
from onceward.engine.ledger.record import LedgerRecord, Output
from onceward.errors import (
    AccessDenied,
    CommitInDoubt,
    Fenced,
    InvalidRecord,
    OncewardError,
    PartitionMissing,
    RecordTooLarge,
    Recovery,
    TopicMissing,
    TransactionTimedOut,
    UnsupportedBroker,
)
from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.ledger import Replayed, next_record, parse_replayed
from onceward.kafka.dead_letters.topic import DeadLetterTopic, Letter, headers_to_feed_back
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.records.batch import Fragment, encode_fragments
from onceward.kafka.records.columns import HEADERS_TYPE, RecordColumns
from onceward.kafka.records.partitioner import group_by_partition, partition_of_keys
from onceward.kafka.sink.task_reports import PartitionOutput, Written, joined, kafka_output
from onceward.kafka.sink.tasks import number
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.kafka.wire.transactions.states import State

log = logging.getLogger(__name__)

_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Parcel:
    """Letters of one partition that are fed back together, and its offsets from the first that was
    looked at to the last: those that are done with when they have been fed back."""

    where: TopicPartition
    letters: Sequence[Letter]
    done: Sequence[tuple[int, int]]


class Sender:
    """Owner of the chain of one dead-letter topic from :meth:`take` on. ``to``: the topic that all
    go to, by key; None: each goes to the partition that it came from."""

    def __init__(
        self,
        client: KafkaClient,
        chain: KafkaChain,
        producer: ProducerSettings,
        topic: DeadLetterTopic,
        *,
        to: str | None,
        run_id: str,
    ) -> None:
        self._client, self._chain, self._producer, self._topic = client, chain, producer, topic
        self._to, self._run_id = to, run_id
        self._newest: LedgerRecord | None = None
        self._configs: dict[str, Mapping[str, str | None]] = {}
        self.replayed = Replayed()
        """As the ledger says: what is committed."""

    def take(self) -> None:
        """Become the owner, and then read what has been replayed.

        The order is the point. Another replay that runs is fenced first, and its open transaction
        ended, so that it cannot feed back a letter, and say so, after this one has read that
        nobody did. Whether a broker that no longer leads the ledger has answered shows before each
        commit that follows a read (``KafkaChain.put``).

        :raises AccessDenied, BrokerUnreachable, LedgerUnreadable: …
        """
        with events.step(events.OPEN, topic=self._topic.name):
            self._know(self._chain.take(confirm=False))

    def send(self, parcel: Parcel) -> None:
        """Feed ``parcel`` back, once. When it raises nothing of it is visible, unless it says so.

        :raises CommitInDoubt: it cannot be found out now; the next start does, first of all.
        :raises Fenced: another replay of the topic was started.
        :raises LedgerOutdated: a broker that no longer led the ledger was read; start again.
        :raises RecordTooLarge, TopicMissing, PartitionMissing, AccessDenied, BatchFailed,
            BrokerUnreachable: …
        """
        for attempt in range(1, _ATTEMPTS + 1):
            error = self._tried(parcel)
            if error is None:
                return
            if not isinstance(error, CommitInDoubt) and error.recovery is not Recovery.RUN_AGAIN:
                raise error
            if attempt == _ATTEMPTS:
                raise _given_up(parcel, error) from error
            log.warning("%s: %s; once more", parcel.where, error)

    def _tried(self, parcel: Parcel) -> OncewardError | None:
        """Return None if the parcel is committed; an error if it is not, and never will be."""
        try:
            self._try(parcel)
        except Fenced as fenced:
            raise self._overtaken(fenced) from fenced
        except OncewardError as error:
            return None if self._was_committed(error) else error
        except BaseException:
            # an interrupt: nobody shall wait for the transaction timeout then
            if self._chain.transaction.state is State.OPEN:
                with suppress(OncewardError):
                    self._chain.abort()
            raise
        return None

    def _try(self, parcel: Parcel) -> None:
        # or the record of the parcel before would pass for this one's
        self._written: LedgerRecord | None = None
        ids: dict[str, Any] = {"topic": self._topic.name, "partition": parcel.where.partition}
        with events.step(events.PLAN, **ids):
            fragments = self._encoded(parcel.letters)
            attempt = self._chain.begin(self._newest)
        with events.step(events.SEND, **ids):
            output = self._append(fragments)
        after = self.replayed.copy()
        # Offsets count transaction markers and aborted records, so a stretch has more of them than
        # letters. It may close over both: below the last stable offset nothing appears any more.
        for start, end in parcel.done:
            after.of(parcel.where).add(start, end)
        for partition, extent in self._topic.extents.items():
            after.of(partition).forget_below(extent.begin)
        after.count += len(parcel.letters)
        with events.step(events.LEDGER, **ids):
            self._written = next_record(
                self._newest,
                after,
                topic=self._topic.name,
                topic_id=self._topic.id,
                attempt=attempt,
                run_id=self._run_id,
                output=output,
            )
            self._chain.put(self._written)
            self._topic.must_be_the_same()
        with events.step(events.COMMIT, **ids):
            self._chain.commit()
        self._newest, self.replayed = self._written, after

    def _know(self, newest: LedgerRecord | None) -> None:
        self._newest = newest
        self.replayed = parse_replayed(newest, self._topic.name, self._topic.id)

    def _was_committed(self, error: OncewardError) -> bool:
        """End the transaction, whatever its state; return whether it was carried out after all.
        ``settle`` claims the next epoch first, which a late ``EndTxn`` cannot pass: what is read
        is final."""
        try:
            with events.step(events.ABORT, topic=self._topic.name):
                newest = self._chain.settle(confirm=False)
        except Fenced as fenced:
            raise self._overtaken(fenced) from fenced
        except OncewardError as unsettled:
            if not isinstance(error, CommitInDoubt):
                text = "%s could not be aborted: %s; the coordinator will do it"
                log.warning(text, self._topic.name, unsettled)
                raise error from unsettled
            raise CommitInDoubt(
                f"whether the last letters of {self._topic.name} were fed back could not be found "
                f"out: {unsettled}",
                next_step="run the same command again: its first step asks the ledger, and "
                "nothing is fed back twice",
            ) from unsettled
        ours = self._written
        self._know(newest)
        return ours is not None and newest is not None and newest.attempt == ours.attempt

    def _overtaken(self, fenced: Fenced) -> Fenced:
        return Fenced(
            f"another replay of {self._topic.name} was started, and goes on with what is left; "
            f"this one has stopped ({fenced.message})",
            next_step="leave this one stopped; what it had fed back counts, and is not fed back "
            "again",
            details=fenced.details,
        )

    # --- records ---------------------------------------------------------------------------------

    def _encoded(self, letters: Sequence[Letter]) -> dict[TopicPartition, list[Fragment]]:
        by_topic: dict[str, list[Letter]] = {}
        for letter in letters:
            by_topic.setdefault(letter.target(self._to), []).append(letter)
        now_ms = time.time_ns() // 1_000_000
        fragments: dict[TopicPartition, list[Fragment]] = {}
        for topic, some in by_topic.items():
            partitions = self._partitions(topic, some)
            self._must_have_keys(topic, some)
            try:
                every = self._encode(topic, some, partitions, now_ms)
            except RecordTooLarge:
                for letter, place in zip(some, partitions, strict=True):
                    self._must_fit(topic, letter, place)
                raise
            for partition, parts in every.items():
                fragments[TopicPartition(topic, partition)] = parts
        return fragments

    def _encode(
        self, topic: str, letters: Sequence[Letter], partitions: Any, now_ms: int
    ) -> dict[int, list[Fragment]]:
        limit = self._size_limit(topic)
        return {
            partition: encode_fragments(
                columns,
                codec=self._producer.codec,
                batch_bytes=min(limit, self._producer.batch_bytes),
                record_bytes=min(limit, self._producer.max_request_bytes),
                now_ms=now_ms,
                compression_level=self._producer.compression_level,
            )
            for partition, columns in group_by_partition(_columns(letters), partitions)
        }

    def _must_have_keys(self, topic: str, letters: Sequence[Letter]) -> None:
        """Refuse a letter without a key where the topic is compacted, which takes none."""
        gone = next((letter for letter in letters if letter.key is None), None)
        if gone is not None and "compact" in (self._config(topic).get("cleanup.policy") or ""):
            raise InvalidRecord(
                f"the letter {gone.place} has no key, and topic {topic} is compacted "
                "(cleanup.policy) and takes no record without one",
                next_step=f"leave this one letter for later: {gone.leave_out}; or feed it back "
                "to another topic with --to",
                details={"letter": gone.place, "topic": topic},
            )

    def _must_fit(self, topic: str, letter: Letter, partition: int) -> None:
        """Refuse a letter that the topic would not take, by its name. The limit is of what goes
        over the wire: what its producer had compressed may fit so again."""
        try:
            self._encode(topic, [letter], np.array([partition], np.int32), 0)
        except RecordTooLarge as too_large:
            compressed, limit = self._producer.compression, self._size_limit(topic)
            ours = self._producer.max_request_bytes
            raises = (
                "max.request.size in --command-config"
                if limit == ours
                else f"max.message.bytes of {topic} (and max.request.size in --command-config "
                f"above {ours} bytes)"
            )
            raise RecordTooLarge(
                f"the letter {letter.place} takes {too_large.details['record_bytes']} bytes, "
                f"compression.type={compressed}, and topic {topic} takes records of {limit}",
                next_step=f"leave this one letter for later: {letter.leave_out}; or set "
                f"compression.type in --command-config, as its producer had it, or raise {raises}",
                details={"letter": letter.place, "topic": topic, "limit_bytes": limit},
            ) from too_large

    def _partitions(self, topic: str, letters: Sequence[Letter]) -> Any:
        """Ask for the partitions anew: some may have been added, or the topic may be gone."""
        count = self._partition_count(topic, letters)
        if self._to is not None:
            return _by_key(letters, count)
        gone = next(
            (letter for letter in letters if letter.home and letter.home.partition >= count), None
        )
        if gone is not None:
            raise PartitionMissing(
                f"the letter {gone.place} came from {gone.home}, and topic {topic} has partitions "
                f"0 to {count - 1} only",
                next_step=f"add partitions to {topic}, or feed its letters back by key: "
                f"--source-topic {topic} --to {topic}; or leave this one letter for later: "
                f"{gone.leave_out}",
                details={"letter": gone.place, "topic": topic},
            )
        return np.array(
            [letter.home.partition if letter.home else 0 for letter in letters], np.int32
        )

    def _partition_count(self, topic: str, letters: Sequence[Letter]) -> int:
        try:
            return len(self._client.topic_partitions([topic])[topic])
        except TopicMissing as missing:
            whose = (
                f"--to {topic}"
                if self._to is not None
                else f"of which the letter {letters[0].place} came"
            )
            raise TopicMissing(
                f"topic {topic} ({whose}) does not exist, or may not be seen",
                next_step=f"create {topic}, name another topic with --to, or choose letters of "
                "other topics with --source-topic; or leave this one letter for later: "
                f"{letters[0].leave_out}",
                details={"topic": topic},
            ) from missing

    def _size_limit(self, topic: str) -> int:
        """Return ``max.message.bytes``, looked up once; without the right to, our own limit."""
        most = self._producer.max_request_bytes
        return min(most, int(self._config(topic).get("max.message.bytes") or most))

    def _config(self, topic: str) -> Mapping[str, str | None]:
        """Return the topic's settings, looked up once; none without the right to, or where the
        service has no such request."""
        if topic not in self._configs:
            try:
                self._configs[topic] = self._client.topic_config(topic)
            except (AccessDenied, UnsupportedBroker) as denied:
                log.debug("the settings of %s are not known: %s", topic, denied)
                self._configs[topic] = {}
        return self._configs[topic]

    def _append(self, fragments: Mapping[TopicPartition, list[Fragment]]) -> Output:
        transaction = self._chain.transaction
        # of an epoch that nobody has written under
        appends, _ = number(fragments, dict.fromkeys(fragments, 0))
        try:
            transaction.add_partitions(fragments)
            appended = self._chain.producer(self._producer).send(appends)
        # another replay, or the transaction timeout: only the coordinator knows
        except Fenced as refusal:
            raise transaction.explain(refusal) from refusal
        written: Written = {}
        for append, done in zip(appends, appended, strict=True):
            output = PartitionOutput(
                done.count, done.base_offset, done.last_offset, append.fragment.checksum
            )
            written = joined(written, {append.partition: output})
        return kafka_output(written)


def _columns(letters: Sequence[Letter]) -> RecordColumns:
    return RecordColumns.of(
        pa.array([letter.value for letter in letters], pa.binary()),
        key=pa.array([letter.key for letter in letters], pa.binary()),
        headers=pa.array(
            [
                [{"key": name, "value": value} for name, value in headers_to_feed_back(letter)]
                for letter in letters
            ],
            HEADERS_TYPE,
        ),
    )


def _by_key(letters: Sequence[Letter], count: int) -> Any:
    """Return where Kafka's default partitioner puts the key. Without a key: by the partition that
    it came from, so that what came one after the other from one partition stays in one."""
    numbers = partition_of_keys(pa.array([letter.key for letter in letters], pa.binary()), count)
    from_where = [(letter.source or letter.where).partition % count for letter in letters]
    without_key = np.array([letter.key is None for letter in letters])
    return np.where(without_key, np.array(from_where, np.int32), numbers).astype(np.int32)


def _given_up(parcel: Parcel, error: OncewardError) -> OncewardError:
    advice = (
        "check the brokers, then run again: its first step asks the ledger, and nothing is fed "
        "back twice"
    )
    what = (
        f"{len(parcel.letters)} letters of {parcel.where} could not be fed back, {_ATTEMPTS} times"
    )
    # but the ledger does not have it
    if isinstance(error, CommitInDoubt):
        return TransactionTimedOut(
            f"{what}: the commit had no answer, and was never carried out", next_step=advice
        )
    return type(error)(f"{what}: {error.message}", next_step=advice, details=error.details)
