"""Is the marker of what this pipeline wrote before there? Asked of each partition before it joins
the next transaction, whose marker would decide that, too.

Driver only; called by ``kafka.wire.transactions.transaction``. A coordinator answers ``EndTxn``
once it has decided, and writes the markers then. Coordinators of Kafka 4.3 (not of 3.9;
KAFKA-20734) pass over a partition that has no leader at that moment, and call the transaction
complete. What it holds there stays open until the producer's next marker:

1. a batch is committed, and one of its partitions has lost its only replica for a minute: the
   marker is not written;
2. the partition is back, and the next attempt writes to it;
3. that attempt is aborted: its marker takes the committed rows along. Or an attempt was aborted in
   1., and the commit of the next one makes its rows visible, which are there twice then.

Two facts make it cheap. Whoever passes over a partition has seen it without a leader, which has
raised its leader epoch (KIP-320); metadata of a broker never goes back, and a coordinator that
takes over knows more than the one before. So the coordinator's broker is asked for leader epochs,
once the last transaction is complete, and only partitions whose epoch is another one than when
they last joined, or that this run has not met, are looked at. And what is open at a leader under
an earlier epoch of ours, after that, is open for no other reason. ADR 0030.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from onceward.errors import AccessDenied, BatchFailed, BrokerUnreachable, UnsupportedBroker
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.client import NO_LEADER, KafkaClient, partition_gone
from onceward.kafka.wire.conversation import Refused, raised_as_errors
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.transactions import listing
from onceward.kafka.wire.transactions.coordinator import (
    NOBODY,
    Leader,
    TransactionCoordinator,
    TransactionDescription,
)

log = logging.getLogger(__name__)

_ASKED_FOR_MS = 5_000
_LEADER_MS = 70_000
# Of partitions that were added to the ledger a broker may hear late
_UNHEARD_OF_MS = 10_000
_NOT_KNOWN = Leader(NO_LEADER, -2)

WasCommitted = Callable[[ProducerIdentity], bool | None]
"""Whether the transaction of an identity of ours was committed; None: nobody knows any more."""


class Markers:
    """Those of one transactional id, in one run. Its caller holds a lock. ``was_committed`` is
    asked of what this run did not end itself."""

    def __init__(self, coordinator: TransactionCoordinator, was_committed: WasCommitted) -> None:
        self._coordinator, self._was_committed = coordinator, was_committed
        # the identity that a partition was last written under, and the leader epoch before
        self._joined: dict[TopicPartition, tuple[ProducerIdentity, int]] = {}
        self._outcomes: dict[ProducerIdentity, bool] = {}
        self._before: TransactionDescription | None = None
        # of the transaction that is open, or was the last
        self._topics: set[str] = set()
        # as the coordinator's broker has them, since the last transaction is complete
        self._leaders: dict[TopicPartition, Leader] = {}

    def begin(
        self, ours: ProducerIdentity, first: TopicPartition | None, deadline: Deadline
    ) -> None:
        """Look at the ledger's partition before the next transaction begins, and makes the
        coordinator forget what it has decided. Raises as :meth:`before_joining`."""
        self._leaders.clear()
        # most batches write to the same topics as the one before
        topics, self._topics = self._topics | ({first.topic} if first else set()), set()
        if not topics:
            return
        self._wait_until_complete(deadline)
        self._leaders = self._asked(topics, deadline)
        if first is not None and self._has_moved(first):
            self._look([first], ours, deadline)
            # it has not joined, but lacks nothing
            self._joined[first] = NOBODY, self._epoch(first)

    def ended(self, identity: ProducerIdentity, *, commit: bool) -> None:
        """Note what became of the transaction of ``identity``, for as long as it matters."""
        still = {joined for joined, _ in self._joined.values()}
        self._outcomes[identity] = commit
        self._outcomes = {each: done for each, done in self._outcomes.items() if each in still}

    def before_joining(
        self, partitions: Iterable[TopicPartition], ours: ProducerIdentity, deadline: Deadline
    ) -> None:
        """Write the markers that ``partitions`` lack, before a first record under ``ours``.

        :raises BatchFailed: one is missing, and this principal may not write it, or nobody knows
            what was decided.
        :raises BrokerUnreachable: a partition had no leader until the deadline.
        :raises TopicMissing, AccessDenied: of what is to be written.
        """
        partitions = set(partitions)
        self._topics |= {where.topic for where in partitions}
        if unknown := {where.topic for where in partitions - self._leaders.keys()}:
            self._leaders |= self._asked(unknown, deadline)
        moved = sorted(where for where in partitions if self._has_moved(where))
        if moved:
            self._look(moved, ours, deadline)
        for where in partitions:
            self._joined[where] = ours, self._epoch(where)

    def before_claim(self, where: TopicPartition, deadline: Deadline) -> None:
        """Write the marker that the ledger's partition lacks while the coordinator still knows
        what it has decided: ``InitProducerId`` makes it forget, and what is read there afterwards
        would lack a batch.

        :raises AccessDenied, ResourceError: it is missing, and cannot be written.
        :raises BatchFailed: whether the coordinator means this transaction is not known; it has
            forgotten nothing.
        :raises BrokerUnreachable: …
        """
        self._leaders.clear()
        described = self._before = self._wait_until_complete(deadline)
        if described is None:
            return
        owner = described.identity.producer_id
        if before := self._open(owner, [where], deadline):
            # In this order: what a leader had open before it is called ended stays open
            described = self._wait_until_complete(deadline)
            version = self._client.transaction_version()
            for each in self._open(owner, [where], deadline):
                same = any(each.start_offset == earlier.start_offset for earlier in before)
                ended = same and described and listing.has_ended(described, each, version)
                if described and ended is None:
                    raise self._not_known(
                        each,
                        f"its coordinator has {described.state} for this epoch, which a client of "
                        "transaction version 1 has made of it, and one of version 2 of the "
                        "transaction before",
                    )
                if described and ended:
                    self._write(each, commit=described.state == listing.COMMITTED)

    def after_claim(
        self, where: TopicPartition, ours: ProducerIdentity, deadline: Deadline
    ) -> None:
        """Abort what the claim has aborted, should the ledger's partition have lacked a leader
        then: readers of the ledger would wait for it. :raises BatchFailed: nobody knows what
        became of a transaction that is open there, at this start and at later ones."""
        self._leaders.clear()
        before = self._before
        for each in self._open(ours.producer_id, [where], deadline):
            if each.identity.epoch < ours.epoch:
                # "Empty" is what an earlier claim has left of any: also of one that was committed
                was_open = before is None or (
                    before.state == listing.ONGOING and before.identity == each.identity
                )
                self._write(each, commit=False if was_open else None)

    def _has_moved(self, where: TopicPartition) -> bool:
        joined, leader = self._joined.get(where), self._leaders.get(where)
        return joined is None or leader is None or joined[1] != leader.epoch

    def _epoch(self, where: TopicPartition) -> int:
        return self._leaders.get(where, _NOT_KNOWN).epoch

    def _look(
        self, moved: Sequence[TopicPartition], ours: ProducerIdentity, deadline: Deadline
    ) -> None:
        for each in self._open(ours.producer_id, moved, deadline):
            commit = self._outcomes.get(each.identity)
            # An older copy of the pipeline, which does not know that it is, leaves the newer alone
            if commit is not None or each.identity.epoch < ours.epoch:
                self._write(each, self._was_committed(each.identity) if commit is None else commit)

    def _open(
        self, producer_id: int, partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> list[listing.OpenProducer]:
        """Return what this producer has open there, once there are leaders to ask. Callers hold a
        lock, and leases of tasks run out: a leader is not waited for as long as a transaction may
        be open."""
        topics, backoff = {where.topic for where in partitions}, Backoff()
        deadline = Deadline(min(_LEADER_MS, deadline.remaining_ms))
        if any(where not in self._leaders for where in partitions):
            self._must_be_there(partitions, topics)
            self._leaders |= self._asked(topics, deadline)
        while (found := self._asked_of_leaders(partitions, deadline)) is None:
            backoff.wait(deadline)
            self._leaders |= self._asked(topics, deadline)
        return [each for each in found if each.identity.producer_id == producer_id]

    def _must_be_there(self, partitions: Sequence[TopicPartition], topics: set[str]) -> None:
        """Name what is missing, or may not be seen. Brokers hear of it one after the other."""
        unheard_of, backoff = Deadline(_UNHEARD_OF_MS), Backoff()
        while True:
            found = self._client.topic_partitions(topics)
            gone = [where for where in partitions if where.partition not in found[where.topic]]
            if not gone:
                return
            if unheard_of.passed:
                raise partition_gone(gone[0])
            backoff.wait(unheard_of)

    def _asked_of_leaders(
        self, partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> list[listing.OpenProducer] | None:
        """Ask once; None: a leader did not answer in time, or there is none."""
        leaders = {where: leader.node_id for where, leader in self._leaders.items()}
        try:
            return listing.open_producers(
                self._client, partitions, leaders=leaders, timeout_ms=_ASKED_FOR_MS
            )
        except BrokerUnreachable:
            if deadline.passed:
                raise
            return None
        except UnsupportedBroker:
            # before 2.8, whose coordinators wait for leaders
            return []
        except AccessDenied as denied:
            topics = {where.topic for where in partitions}
            if len(topics) > 1:
                groups = ([p for p in partitions if p.topic == topic] for topic in sorted(topics))
                answers = [self._asked_of_leaders(group, deadline) for group in groups]
                if None in answers:
                    return None
                return [each for answer in answers for each in answer or ()]
            met_before = any(where in self._joined for where in partitions)
            level = logging.WARNING if met_before else logging.INFO
            text = (
                "%s: markers that brokers may have left out (KAFKA-20734) are not looked for: %s"
            )
            log.log(level, text, self._coordinator.transactional_id, denied)
            return []

    def _write(self, producer: listing.OpenProducer, commit: bool | None) -> None:
        where, verb = producer.partition, "commit" if commit else "abort"
        if commit is None:
            raise self._not_known(producer, "whether it was committed stands no longer anywhere")
        lacks = self._lacks(producer)
        log.warning("%s; writing it: %s", lacks, verb)
        try:
            listing.end_in_partition(
                self._client, producer, commit=commit, leader=self._leaders[where].node_id
            )
        except AccessDenied as denied:
            raise BatchFailed(
                f"{lacks}. It was to {verb}, and another transaction would decide it otherwise",
                next_step="grant this pipeline ClusterAction on the cluster (kafka-acls --add "
                "--operation ClusterAction --cluster): the next attempt writes the marker, and "
                "the right can be taken back",
                details={**_where(producer), "outcome": verb},
            ) from denied

    def _lacks(self, producer: listing.OpenProducer) -> str:
        return (
            f"{producer.partition} lacks the marker of {producer.identity} of "
            f"{self._coordinator.transactional_id}: it had no leader when the transaction ended, "
            "and the coordinator has passed over it (KAFKA-20734)"
        )

    def _not_known(self, producer: listing.OpenProducer, why: str) -> BatchFailed:
        where = producer.partition
        return BatchFailed(
            f"{self._lacks(producer)}; {why}, and another transaction would decide it",
            next_step="see which records they are (`onceward transactions list --topic "
            f"{where.topic} --bootstrap-servers …`). Where their batch was committed, end it with "
            f"`onceward transactions commit --force --topic {where.topic} --partition "
            f"{where.partition} --bootstrap-servers …`, where it was not with `onceward "
            f"transactions abort --topic {where.topic} --partition {where.partition} "
            "--bootstrap-servers …`; both from 15 minutes after its last record on",
            details=_where(producer),
        )

    @raised_as_errors()
    def _wait_until_complete(self, deadline: Deadline) -> TransactionDescription | None:
        """Wait for the markers of what was decided; return what the coordinator has of the id."""
        backoff = Backoff()
        while True:
            try:
                described = self._coordinator.describe(deadline)
            except (Refused, UnsupportedBroker):
                # it has forgotten the id, or does not know the request: before 3.0
                return None
            if described.state not in listing.ENDING:
                return described
            if deadline.passed:
                raise BrokerUnreachable(
                    f"{self._coordinator.transactional_id} is {described.state}: its coordinator "
                    "cannot write the markers of the last transaction yet",
                    next_step="see that the leaders of the topics answer the other brokers",
                )
            backoff.wait(deadline)

    @raised_as_errors()
    def _asked(self, topics: Collection[str], deadline: Deadline) -> dict[TopicPartition, Leader]:
        return self._coordinator.leaders(topics, deadline)

    @property
    def _client(self) -> KafkaClient:
        return self._coordinator.client


def _where(producer: listing.OpenProducer) -> dict[str, object]:
    return {"partition": list(producer.partition), "identity": list(producer.identity)}
