"""Are the markers of the last transactions there? Asked before the next one begins, which would
decide what they left open. Driver only; called by :mod:`onceward.kafka.ledger.chain`.

A coordinator answers ``EndTxn`` once it has decided, and writes the markers then. Coordinators of
Kafka 4.3 (not of 3.9; KAFKA-20734) pass over a partition that has no leader at that moment, and
call the transaction complete. Its records stay open there, and the next marker of the same
producer id decides them, too:

1. a batch is committed, and one of its partitions has lost its only replica for a minute: the
   marker is not written;
2. the partition is back, and the next attempt writes to it;
3. that attempt is aborted: its marker takes the committed rows along. Or an attempt was aborted in
   1., and the commit of the next one makes its rows visible, which are there twice then.

A partition that was without a leader has another leader epoch afterwards (KIP-320). So only
partitions whose epoch is another one than when they were written are looked at: one request for
metadata a transaction, and nothing more while no leader moves. A coordinator may still be writing
markers when the next transaction begins (version 2 waits with the first ``Produce``): hence the
last two transactions. ADR 0030.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceward.errors import AccessDenied, BatchFailed, OncewardError
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Backoff, Deadline
from onceward.kafka.wire.reads.offsets import LATEST, list_offsets
from onceward.kafka.wire.transactions import listing

log = logging.getLogger(__name__)

_UNKNOWN = -2
_ENDING = ("PrepareCommit", "PrepareAbort")


@dataclass(slots=True)
class _Ended:
    identity: ProducerIdentity
    is_committed: bool
    # leader epochs
    partitions: dict[TopicPartition, int]


class Markers:
    """Those of one transactional id, in one run."""

    def __init__(self, client: KafkaClient, transactional_id: str) -> None:
        self._client = client
        self._id = transactional_id
        self._ended: deque[_Ended] = deque(maxlen=2)

    def expect(
        self,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        commit: bool,
        by_this_run: bool = True,
    ) -> None:
        """Note a transaction that was ended in ``partitions``."""
        epochs = {
            where: self._client.leader_epoch(where, _UNKNOWN) if by_this_run else _UNKNOWN
            for where in partitions
        }
        if epochs:
            self._ended.append(_Ended(identity, commit, epochs))

    def must_be_written(self) -> None:
        """Write the markers that the last transactions lack.

        :raises BatchFailed: one is missing, and this principal may not write it.
        :raises BrokerUnreachable: a partition has had no leader for ``request.timeout.ms``.
        """
        topics = {where.topic for ended in self._ended for where in ended.partitions}
        if not topics:
            return
        try:
            self._client.topic_partitions(topics)
        except OncewardError as error:
            # Deleted, say, and then there is nothing to decide
            log.debug("%s: markers of %s are not looked for: %s", self._id, topics, error)
            return
        for ended in self._ended:
            moved = {
                where: epoch
                for where, noted in ended.partitions.items()
                if (epoch := self._client.leader_epoch(where, noted)) != noted
            }
            if moved:
                self._look(ended, moved)
                ended.partitions |= moved

    def _look(self, ended: _Ended, moved: Mapping[TopicPartition, int]) -> None:
        ends = list_offsets(self._client, moved, LATEST)
        stable = list_offsets(self._client, moved, LATEST, read_committed=True)
        suspects = [where for where in moved if stable[where] < ends[where]]
        backoff = Backoff()
        deadline = Deadline(self._client.settings.request_timeout_ms)
        while suspects:
            try:
                # In this order: what is open once the transaction is complete stays so
                described = listing.describe_transaction(self._client, self._id)
                open_ones = [
                    each
                    for each in listing.open_producers(self._client, suspects)
                    if each.identity == ended.identity
                ]
            except OncewardError as error:
                level = logging.WARNING if isinstance(error, AccessDenied) else logging.DEBUG
                text = "%s: whether %s of %s has its marker in %s is not known: %s"
                log.log(level, text, self._id, ended.identity, ended, suspects, error)
                return
            if not open_ones:
                return
            if described is None or described.state not in _ENDING or deadline.passed:
                for each in open_ones:
                    self._write(ended, each)
                return
            backoff.wait(deadline)

    def _write(self, ended: _Ended, producer: listing.OpenProducer) -> None:
        where = producer.partition
        verb = "commit" if ended.is_committed else "abort"
        log.warning(
            "%s: writing the %s marker of %s that %s lacks: it had no leader when the transaction "
            "ended, and its coordinator has passed over it",
            self._id,
            verb,
            ended.identity,
            where,
        )
        try:
            listing.end_in_partition(self._client, producer, commit=ended.is_committed)
        except AccessDenied as denied:
            raise BatchFailed(
                f"{where} lacks the {verb} marker of {ended.identity} of {self._id}: it had no "
                "leader when the transaction ended, and its coordinator has passed over it; "
                "another transaction would decide it otherwise",
                next_step="grant this pipeline ClusterAction on the cluster, and it does so by "
                "itself; or have somebody who has it end the transaction in that partition "
                f"(`onceward transactions list --topic {where.topic} --bootstrap-servers …`)",
                details={"partition": list(where), "outcome": verb},
            ) from denied
