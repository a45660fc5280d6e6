"""Appends of record batches to partitions, each exactly once under its sequence number. Runs in
executor tasks, and in the driver for the ledger record. It knows nothing of the transaction's
fate: it appends under the identity that it was given, or says why it cannot."""

from __future__ import annotations

import queue
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from typing import Any, Literal

from onceward import patience, surroundings
from onceward.errors import BrokerUnreachable, Fenced, OncewardError, RecordTooLarge, SendFailed
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.records.batch import Fragment, stamp
from onceward.kafka.wire.acls import Kind
from onceward.kafka.wire.appends.produce_frame import PartitionQueue, ProduceFrame
from onceward.kafka.wire.client import NO_LEADER, KafkaClient, partition_gone
from onceward.kafka.wire.connections import ConnectionLost
from onceward.kafka.wire.conversation import SHORTEST_WAIT_MS, Refused, quoted
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.error_table import Api, Meaning, Rule, find_rule
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.patience import ShouldStop

# How late a poisoned epoch or a passed deadline may be noticed
_POLL_S = 0.05
_UNHEARD_OF_MS = 2_000
_OUT_OF_ORDER = 45
_NO_OFFSET = -1


@dataclass(frozen=True, slots=True)
class Append:
    """One record batch to append, from ``base_sequence`` on (-1 without idempotence)."""

    partition: TopicPartition
    fragment: Fragment
    base_sequence: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch went: offsets ``base_offset`` to ``last_offset``, both included."""

    partition: TopicPartition
    base_sequence: int
    count: int
    base_offset: int
    last_offset: int


@dataclass(slots=True)
class _Lane:
    """One partition during one ``send``."""

    partition: TopicPartition
    # Positions in the caller's list
    indexes: list[int]
    appends: list[Append]
    queue: PartitionQueue
    backoff: Backoff = field(default_factory=Backoff)
    not_before: float = 0.0
    last_reason: str = "no answer yet"
    # since when nobody knows the partition, and how long that is put up with
    unheard_of: Deadline | None = None


_Carried = list[tuple[_Lane, int]]
"""Which batch of which lane a request carries."""


@dataclass(frozen=True, slots=True)
class PartitionProducer:
    """Producer under one identity. Not thread safe; several may share a client.

    :param transactional_id: None with delivery ``at_least_once`` or ``none``.
    :param version: the transaction protocol: with 2 a ``Produce`` v12 adds its partitions to the
        transaction; with 1 they must have been added before, and versions above 11 are not allowed
        (KIP-890).
    """

    client: KafkaClient
    settings: ProducerSettings
    identity: ProducerIdentity
    _: KW_ONLY
    transactional_id: str | None
    version: Literal[1, 2]

    def request(self, appends: Iterable[Append], timeout_ms: int) -> ProduceFrame:
        """Stamp ``appends``, one a partition, and return the request that carries them."""
        transactional = self.transactional_id is not None
        # KIP-890: a version above 11 adds its partitions to the transaction, which version 1 of
        # the protocol must have done before.
        return ProduceFrame(
            {
                append.partition: stamp(
                    append.fragment,
                    self.identity,
                    append.base_sequence,
                    transactional=transactional,
                )
                for append in appends
            },
            transactional_id=self.transactional_id,
            acks=self.settings.acks,
            timeout_ms=timeout_ms,
            min_version=12 if transactional and self.version == 2 else 3,
            max_version=11 if transactional and self.version == 1 else 12,
        )

    def send(
        self, appends: Sequence[Append], *, should_stop: ShouldStop | None = None
    ) -> list[Appended]:
        """Append everything, wait for every acknowledgement, and return them in order.

        Batches of one partition keep their order, which must be that of their sequences. Those of
        different partitions travel together. A batch without an answer is sent again under its
        sequence, which the broker recognises.

        :param should_stop: called at least every 50 ms; what it raises ends the send.
        :raises SendFailed: not everything within ``delivery.timeout.ms``, or the broker has lost
            the sequence, or the topic the partition; what was appended stays invisible until the
            batch is aborted and run again.
        :raises Fenced: the epoch is not the current one: a newer owner, or the transaction timed
            out. The driver tells which (:meth:`Transaction.explain`).
        :raises RecordTooLarge, AccessDenied, TopicMissing: naming the topic.
        """
        with patience.asking(*(() if should_stop is None else (should_stop,))):
            return _Send(self, appends).run() if appends else []


class _Send:
    """One call of ``send``: a lane a partition, requests in flight, and the loop between them."""

    def __init__(self, producer: PartitionProducer, appends: Sequence[Append]) -> None:
        self._producer = producer
        self._client, self._settings = producer.client, producer.settings
        self._deadline = Deadline(self._settings.delivery_timeout_ms)
        self._results: list[Appended | None] = [None] * len(appends)
        self._lanes = _lanes(appends)
        self._answered: queue.SimpleQueue[tuple[int, _Carried, Future[Any]]] = (
            surroundings.SimpleQueue()
        )
        self._in_flight: Counter[int] = Counter()
        self._stale_topics: set[str] = set()
        self._turns = count(1)

    def run(self) -> list[Appended]:
        open_lanes = list(self._lanes.values())
        while open_lanes:
            patience.ask()
            self._refresh_leaders()
            self._launch(open_lanes)
            for node, carried, answer in self._wait():
                self._settle(node, carried, answer)
            open_lanes = [lane for lane in open_lanes if not lane.queue.done]
            if open_lanes and self._deadline.passed:
                self._give_up(open_lanes)
        return [result for result in self._results if result is not None]

    # --- out -------------------------------------------------------------------------------------

    def _launch(self, lanes: Iterable[_Lane]) -> None:
        """Send requests, one batch a partition, as long as brokers have room for another."""
        now = surroundings.monotonic()
        waiting: dict[int, list[_Lane]] = {}
        for lane in lanes:
            if lane.not_before <= now and lane.queue.next_to_send() is not None:
                node = self._leader(lane)
                if node != NO_LEADER:
                    waiting.setdefault(node, []).append(lane)
        for node, ready in waiting.items():
            while ready and self._in_flight[node] < self._settings.max_in_flight:
                positions = self._fill(ready)
                self._send_request(node, positions)
                still = [lane for lane in ready if lane.queue.next_to_send() is not None]
                served = {id(lane) for lane, _ in positions}
                # Those that found no room this time come first in the next request.
                ready = sorted(still, key=lambda lane: id(lane) in served)

    def _fill(self, ready: Iterable[_Lane]) -> _Carried:
        positions: _Carried = []
        size = 0
        for lane in ready:
            position = lane.queue.next_to_send()
            if position is None:
                continue
            size += lane.appends[position].fragment.size
            if positions and size > self._settings.max_request_bytes:
                break
            positions.append((lane, position))
        return positions

    def _send_request(self, node: int, positions: _Carried) -> None:
        timeout_ms = self._client.settings.request_timeout_ms
        frame = self._producer.request(
            (lane.appends[position] for lane, position in positions), timeout_ms
        )
        for lane, position in positions:
            lane.queue.sent(position)
        answer = self._client.send(
            frame, node, max(SHORTEST_WAIT_MS, min(timeout_ms, self._deadline.remaining_ms))
        )
        self._in_flight[node] += 1
        # Without the future of its answer: a reference cycle would hold what was sent until the
        # garbage collector runs.
        answer.add_done_callback(lambda done: self._answered.put((node, positions, done)))

    # --- back ------------------------------------------------------------------------------------

    def _wait(self) -> list[tuple[int, _Carried, Future[Any]]]:
        """Wait for requests that are answered, for a moment; return them with their answers."""
        answered: list[tuple[int, _Carried, Future[Any]]] = []
        try:
            answered.append(
                self._answered.get(
                    timeout=_POLL_S if sum(self._in_flight.values()) else self._idle_s()
                )
            )
            while True:
                answered.append(self._answered.get_nowait())
        except queue.Empty:
            return answered

    def _idle_s(self) -> float:
        """Return the seconds until the first lane may try again, when nothing is in flight."""
        due = min(
            (lane.not_before for lane in self._lanes.values() if not lane.queue.done), default=0.0
        )
        return min(_POLL_S, max(0.001, due - surroundings.monotonic()))

    def _settle(self, node: int, carried: _Carried, done: Future[Any]) -> None:
        self._in_flight[node] -= 1
        try:
            answer = done.result()
        except ConnectionLost as lost:
            for lane, position in carried:
                self._again(lane, position, lost.message, refresh=True)
            return
        found = {
            TopicPartition(topic.name, partition.index): partition
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        for lane, position in carried:
            self._settle_partition(lane, position, found.get(lane.partition))

    def _settle_partition(self, lane: _Lane, position: int, answer: Any) -> None:
        if answer is None:
            self._again(
                lane, position, "the broker's answer leaves this partition out", refresh=True
            )
            return
        rule = find_rule(Api.PRODUCE, answer.error_code)
        if rule.meaning is Meaning.DONE:
            self._acknowledge(lane, position, answer.base_offset)
        elif rule.meaning in (Meaning.RETRY, Meaning.REFRESH):
            self._again(
                lane,
                position,
                f"{rule.reason}{quoted(_broker_words(answer))}",
                refresh=rule.meaning is Meaning.REFRESH,
            )
        elif answer.error_code == _OUT_OF_ORDER and not lane.queue.is_first_open(position):
            self._again(
                lane, position, "a batch before this one has to be sent again", refresh=False
            )
        else:
            raise self._refusal(lane.appends[position], answer, rule)

    def _acknowledge(self, lane: _Lane, position: int, base_offset: int) -> None:
        append = lane.appends[position]
        count = append.fragment.count
        if base_offset == _NO_OFFSET:
            raise SendFailed(
                f"{append.partition} acknowledged a batch without telling its offset",
                next_step="none: the batch runs again under a new epoch",
            )
        lane.queue.acknowledged(position)
        lane.backoff = Backoff()
        self._results[lane.indexes[position]] = Appended(
            append.partition, append.base_sequence, count, base_offset, base_offset + count - 1
        )

    def _again(self, lane: _Lane, position: int, reason: str, *, refresh: bool) -> None:
        lane.queue.failed(position)
        lane.last_reason = reason
        if not lane.queue.outstanding:
            lane.not_before = surroundings.monotonic() + lane.backoff.next_pause_s()
        if refresh:
            self._stale_topics.add(lane.partition.topic)

    # --- leaders ---------------------------------------------------------------------------------

    def _leader(self, lane: _Lane) -> int:
        leaders = self._client.known_leaders(lane.partition.topic)
        if lane.partition.partition not in leaders:
            # It may have been added since this process asked last, and brokers hear of it one
            # after the other.
            lane.unheard_of = lane.unheard_of or Deadline(_UNHEARD_OF_MS)
            if lane.unheard_of.passed:
                # Of rows that name a partition it was there when they were looked at
                raise partition_gone(lane.partition)
        else:
            lane.unheard_of = None
        node = leaders.get(lane.partition.partition, NO_LEADER)
        if node == NO_LEADER:
            lane.last_reason = "no leader"
            lane.not_before = surroundings.monotonic() + lane.backoff.next_pause_s()
            self._stale_topics.add(lane.partition.topic)
        return node

    def _refresh_leaders(self) -> None:
        """Ask who leads what has failed, each time another broker first: one that is cut off from
        the controllers goes on naming itself. Without an answer only the deadline ends it."""
        if not self._stale_topics:
            return
        topics, self._stale_topics = self._stale_topics, set()
        try:
            self._client.topic_partitions(
                topics,
                timeout_ms=max(1.0, min(5_000.0, self._deadline.remaining_ms)),
                turn=next(self._turns),
            )
        except BrokerUnreachable:
            self._stale_topics |= topics

    # --- the end ---------------------------------------------------------------------------------

    def _refusal(self, append: Append, answer: Any, rule: Rule) -> OncewardError:
        topic, fragment = append.partition.topic, append.fragment
        details = {
            "partition": str(append.partition),
            "code": answer.error_code,
            "identity": list(self._producer.identity),
        }
        if rule.meaning is Meaning.FENCED:
            return Fenced(
                f"{self._producer.identity} was refused by {append.partition}: {rule.reason}",
                next_step="the driver finds out whether a newer copy took over or the transaction "
                "timed out",
                details=details,
            )
        if rule.error is RecordTooLarge:
            limit, size, count = self._message_limit(topic), fragment.size, fragment.count
            setting = "segment.bytes" if "segment.bytes" in rule.reason else "max.message.bytes"
            smaller = "lower batch.size" if count > 1 else "make the record smaller"
            return RecordTooLarge(
                f"topic {topic} refused a batch of {size} bytes ({count} records): "
                f"{rule.reason}{limit}{quoted(_broker_words(answer))}",
                next_step=f"raise {setting} of the topic, or {smaller}",
                details={**details, "topic": topic, "bytes": size, "records": count},
            )
        resources = {
            Kind.TOPIC: topic,
            Kind.TRANSACTIONAL_ID: self._producer.transactional_id or "",
        }
        refused = Refused(
            Api.PRODUCE,
            answer.error_code,
            rule,
            str(append.partition),
            resources=resources,
            words=_broker_words(answer),
        )
        error = refused.as_error()
        error.details.update({**details, "topic": topic})
        return error

    def _message_limit(self, topic: str) -> str:
        try:
            return f"; max.message.bytes={self._client.topic_config(topic)['max.message.bytes']}"
        except (OncewardError, KeyError):
            # No right to describe the topic: the message has one number less
            return ""

    def _give_up(self, lanes: Sequence[_Lane]) -> None:
        reasons = "; ".join(f"{lane.partition}: {lane.last_reason}" for lane in lanes[:5])
        raise SendFailed(
            f"{len(lanes)} partition(s) not acknowledged within "
            f"delivery.timeout.ms={self._settings.delivery_timeout_ms}: {reasons}",
            next_step="the batch runs again; check the brokers' health, or raise "
            "delivery.timeout.ms",
            details={"partitions": [str(lane.partition) for lane in lanes]},
        )


def _broker_words(answer: Any) -> str | None:
    """Return what the broker says of single records (KIP-467), or else of the partition, which
    only repeats them."""
    records = [
        f"record {r.batch_index}: {r.batch_index_error_message}"
        for r in (answer.record_errors or ())[:3]
        if r.batch_index_error_message
    ]
    return "; ".join(records) or answer.error_message


def _lanes(appends: Sequence[Append]) -> dict[TopicPartition, _Lane]:
    indexes: dict[TopicPartition, list[int]] = {}
    for index, append in enumerate(appends):
        indexes.setdefault(append.partition, []).append(index)
    lanes = {}
    for partition, own in indexes.items():
        queue = PartitionQueue(len(own), first_alone=appends[own[0]].base_sequence == 0)
        lanes[partition] = _Lane(partition, own, [appends[index] for index in own], queue)
    return lanes
