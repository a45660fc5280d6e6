"""A pipeline's chain in the ledger topic: owned by its transactional id, appended in transactions.

Runs in the driver. Kafka fences: ``InitProducerId`` takes the id and ends what the old owner had
open, so that what is read afterwards is final, and an ``EndTxn`` of the old owner is refused. The
Kafka sink writes its records into the same transaction, between :meth:`KafkaChain.begin` and
:meth:`KafkaChain.put`; for any other sink the transaction holds the ledger record alone.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from onceward import patience
from onceward.engine.ledger.chain import Chain, Ledger, LedgerPlace, cut_off_error
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import (
    BatchFailed,
    Fenced,
    LedgerBehind,
    LedgerOutdated,
    OncewardError,
    RecordTooLarge,
    ResourceError,
    SendFailed,
)
from onceward.ids import AttemptId, PipelineId, ProducerIdentity, TopicPartition, topic_name
from onceward.kafka.ledger.reader import LedgerTopicReader
from onceward.kafka.ledger.topic import DEFAULT_TOPIC, LedgerTopic
from onceward.kafka.records.batch import Fragment
from onceward.kafka.wire.appends.producer import Append, PartitionProducer
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.security import TokenProvider
from onceward.kafka.wire.options.settings import (
    ClientSettings,
    ProducerSettings,
    settings_from_options,
)
from onceward.kafka.wire.transactions.states import State
from onceward.kafka.wire.transactions.transaction import Transaction

log = logging.getLogger(__name__)

_INVALID_TIMESTAMP = 32


class KafkaChain(Chain):
    """See the module. ``transaction`` is open from :meth:`begin` to commit or abort."""

    def __init__(
        self,
        client: KafkaClient,
        topic: str,
        pipeline: PipelineId,
        producer: ProducerSettings,
        *,
        owns_client: bool,
    ) -> None:
        self._client = client
        self._owns_client = owns_client
        self._topic = LedgerTopic(client, topic, pipeline)
        self._pipeline = pipeline
        self._producer_settings = producer
        self.transaction = Transaction(
            client,
            pipeline,
            producer.transaction_timeout_ms,
            outdated=self._outdated,
            was_committed=self._was_committed,
        )
        # attempts that the newest record names, and the one that is put
        self._decided, self._deciding = _attempts(None), _attempts(None)
        self._producer_id: int | None = None
        # sequences of ledger records
        self._put = self._committed = -1
        # of the topic, as the chain was first told it; "": nobody has asked
        self._known_as = ""
        # is what was last read from the ledger known to be the newest?
        self._confirmed = False

    def peek(self) -> LedgerRecord | None:
        return self._topic.peek()

    def read(self) -> LedgerRecord | None:
        return self._topic.newest()

    def take(self, *, confirm: bool = True) -> LedgerRecord | None:
        """Become the owner, then read the newest record. :param confirm: make sure that what is
        read is the newest. Whoever confirms it before a commit anyway, and does nothing on the
        strength of it before, need not."""
        with patience.within(2 * self.transaction.patience_ms):
            self._topic.ensure_topic()
            self.transaction.end_what_hangs(self._topic.partition())
            # The order matters: after take_over no earlier owner can commit, so what the ledger
            # says then is final.
            self._producer_id = self.transaction.take_over().producer_id
            self.transaction.end_what_was_aborted(self._topic.partition())
        newest = self.newest()
        self._doubt_a_strange_writer(newest)
        if confirm:
            self._confirm_now()
        return newest

    def _doubt_a_strange_writer(self, newest: LedgerRecord | None) -> None:
        """Warn of a record by an unexpected producer, which may be right: a transactional id keeps
        its producer id until it expires (then it begins at epoch 0) or its epochs run out."""
        ours = self.transaction.identity
        if newest is None or newest.attempt.owner == ours.producer_id or ours.epoch == 0:
            return
        log.warning(
            "the newest ledger record of %s in %s, %s (sequence %d), was written by producer %d "
            "epoch %d, and the coordinator has %s for the pipeline: its epochs ran out, or its "
            "first run after transactional.id.expiration.ms committed nothing, or somebody else "
            "wrote that record",
            self._pipeline,
            self._topic.topic,
            newest.batch,
            newest.sequence,
            *newest.attempt,
            ours,
        )

    def newest(self) -> LedgerRecord | None:
        known, newest = self._committed, self._topic.newest()
        self._committed, self._decided = _sequence(newest), _attempts(newest)
        self._confirmed = False
        if newest is not None and newest.known_as:
            self._known_as = newest.known_as
        if self._committed < known:
            raise self._cut_off(known)
        return newest

    def _cut_off(self, known: int) -> LedgerBehind:
        """Return the error for a ledger that ends before the sequence known. :raises
        LedgerOutdated: it does not, but a broker that no longer leads it was asked."""
        self.confirm()
        what = (
            f"ended with sequence {known} and now ends with {self._committed}: the topic was "
            "deleted, truncated or restored from an older copy"
        )
        return cut_off_error(self._pipeline, f"ledger topic {self._topic.topic}", what)

    def identity(self) -> str:
        """Return the topic's: its id (KIP-516) where brokers tell it, since 2.8, else its name. A
        topic gets its id when the brokers are upgraded, and while that goes on some tell it and
        some do not. So a chain keeps what it was first told, in its records: what targets have
        noted by it stays the chain's own."""
        topic = self._topic.topic
        asked = self._client.topic_ids([topic]).get(topic, self._known_as or topic)
        if self._known_as != topic:
            self._known_as = asked
        return f"{self._client.cluster_id()}/{self._known_as}"

    def begin(self, newest: LedgerRecord | None) -> AttemptId:
        if self.transaction.state in (State.IN_DOUBT, State.TIMED_OUT):
            # An abort without an answer. Never a commit: while that is in doubt, the engine ends
            # the query.
            self.transaction.recover()
        elif self.transaction.state is State.OPEN:
            # of an attempt that nobody has ended
            self.transaction.abort()
        # While nothing is open: others' readers do not wait for it
        self._topic.look_again()
        identity = self.transaction.begin(self._topic.partition())
        if identity.producer_id != self._producer_id:
            log.debug("%s: goes on as %s", self._pipeline, identity)
            try:
                # 1. no batch for transactional.id.expiration.ms: the coordinator forgets the id
                #    and its owner;
                # 2. another copy gets a new producer id, which fences nobody, and commits batches;
                # 3. it expires in its turn, or ends, and we get a third one. Only the ledger shows
                #    those batches.
                self.refuse_what_a_newer_owner_wrote(newest)
            except BaseException:
                self.transaction.abort()
                raise
            self._producer_id = identity.producer_id
        return AttemptId(*identity)

    def refuse_what_a_newer_owner_wrote(self, known: LedgerRecord | None) -> None:
        """Check under a new producer id that the ledger is still where we left it.

        Epochs run out, and then there is a new one. But it also comes when the coordinator had
        forgotten the id (``transactional.id.expiration.ms`` without a batch), and with it whoever
        took over meanwhile: nobody would fence us then. From ``begin`` on nobody else can commit,
        so that what the ledger says is final.

        :raises Fenced: somebody newer has written.
        :raises LedgerBehind: our own last record is gone.
        :raises LedgerOutdated: it is not, but a broker that no longer leads the ledger was asked.
        """
        newest = self.newest()
        if newest is not None and (known is None or newest.attempt != known.attempt):
            raise Fenced(
                f"a newer copy of pipeline {self._pipeline} has written {newest.batch} (sequence "
                f"{newest.sequence}) while this one was idle at sequence {_sequence(known)}",
                next_step="leave this copy stopped; if two are running by mistake, give one "
                "another pipeline_id",
            )

    def _outdated(self) -> bool:
        """Return whether there is a record that is neither known nor of our own attempt in doubt.
        Who asks may not be the owner: the next record confirms what was read."""
        self._confirmed = False
        peeked = self._topic.peek()
        ours = AttemptId(*self.transaction.identity)
        return peeked is not None and peeked.sequence > self._committed and peeked.attempt != ours

    def _was_committed(self, identity: ProducerIdentity) -> bool | None:
        """Return whether the ledger has the transaction: it is nothing else that commits under
        this id. Of those before the newest record only what compaction has left is known."""
        if AttemptId(*identity) in self._decided:
            return True
        ours = (number for owner, number in self._decided if owner == identity.producer_id)
        if identity.epoch < max(ours, default=-1):
            return _committed_among(self._earlier(), AttemptId(*identity))
        if self.transaction.state is State.OPEN and not self._confirmed:
            # What was read may lack that very record. (Before the first transaction it is asked
            # of the ledger's own partition, where nothing that was committed is open any more.)
            self.confirm()
            raise BatchFailed(
                f"{self._pipeline}: {identity} has left a partition without its marker, and the "
                "ledger was read anew for what became of it",
                next_step="none: the batch runs again under a new epoch",
            )
        return False

    def _earlier(self) -> list[LedgerRecord]:
        return LedgerTopicReader(self._client, self._topic.topic).recent(self._pipeline)

    def append(self, record: LedgerRecord) -> None:
        self.put(record)
        self.commit()

    def progress(self, record: LedgerRecord) -> LedgerRecord:
        written = replace(
            record, attempt=self.begin(record), decided=record.decided or record.attempt
        )
        self.put(written, behind=record.sequence)
        self.commit()
        return written

    def put(self, record: LedgerRecord, *, behind: int | None = None) -> None:
        """Append the record in the open transaction, as the last thing: pipelines share the
        partition, which is held up until the transaction ends. ``behind``: the sequence of the
        record that must be the newest; default: the one before."""
        partition = self._topic.partition()
        self.transaction.add_partitions([partition])
        self._put, self._deciding = record.sequence, _attempts(record)
        record = replace(record, known_as=self._known_as)
        # a record that is written again keeps what it says of the transaction that decided
        if behind is None:
            record = replace(record, open_ms=int(self.transaction.open_for_ms))
        offset = self._append(partition, self._topic.record_to_append(record))
        if not self._confirmed:
            self._confirm(offset, record.sequence - 1 if behind is None else behind)

    def _append(self, partition: TopicPartition, fragment: Fragment) -> int:
        """Append a record of ours, and return its offset. It is no input: what the ledger topic
        refuses it for can be put right."""
        try:
            (appended,) = self.producer().send([Append(partition, fragment, 0)])
        except RecordTooLarge as refusal:
            raise ResourceError(
                f"the ledger's record does not fit: {refusal.message}",
                next_step="raise max.message.bytes of the ledger topic; 1048588 is Kafka's "
                "default",
                details=refusal.details,
            ) from refusal
        except SendFailed as refusal:
            if refusal.details.get("code") != _INVALID_TIMESTAMP:
                raise
            raise SendFailed(
                f"the ledger's record, which has the time of this machine's clock, was refused: "
                f"{refusal.message}",
                next_step="set the clocks of driver and brokers right, or raise "
                f"message.timestamp.before.max.ms and after.max.ms of topic {partition.topic}",
                details=refusal.details,
            ) from refusal
        # a takeover, or the transaction timeout: only the coordinator knows
        except Fenced as refusal:
            raise self.transaction.explain(refusal) from refusal
        return appended.base_offset

    def confirm(self) -> None:
        """Confirm, before a batch or a start is refused for what was read last, that it is the
        newest. An attempt that is open is spoilt by it; whoever asks gives it up.

        :raises LedgerOutdated: it is not.
        :raises Fenced, SendFailed, BrokerUnreachable: nobody could tell.
        """
        if not self._confirmed:
            self._confirm_now()

    def _confirm_now(self) -> None:
        """Confirm what was just read in a transaction that is aborted, its own if none is open."""
        own = self.transaction.state is not State.OPEN
        if own:
            self.transaction.begin(self._topic.partition())
        partition = self._topic.partition()
        try:
            self.transaction.add_partitions([partition])
            trial = self._topic.trial_to_append(self.transaction.identity)
            self._confirm(self._append(partition, trial), self._committed)
        finally:
            if own and self.transaction.state is State.OPEN:
                self.transaction.abort()

    def _confirm(self, offset: int, known: int) -> None:
        """Check that what was read is the newest record that there is. Asked once after each read
        of the ledger. Nobody else can commit between that append and our ``EndTxn``, nor, after
        it, without fencing us first: so one look is enough until the ledger is read anew.

        :raises LedgerOutdated: it was not.
        """
        # 1. a leader of the ledger's partition is cut off from the controllers, but not from us,
        #    and answers our read as if it still led (ReplicaManager.fetchMessages asks nobody);
        # 2. another copy has committed a batch at the new leader;
        # 3. without this look the batch would be admitted as the next one, and written twice.
        # Our append is acknowledged by the real leader only, and its offset lies behind all of
        # that.
        newest = self._topic.newest_before(offset, self.transaction.identity)
        found = _sequence(newest)
        # Of one batch there may be several: decided, and each time that it was written again
        if found != known or _attempts(newest) != self._decided:
            raise LedgerOutdated(
                f"the ledger topic {self._topic.topic} was read from a broker that no longer led "
                f"it: pipeline {self._pipeline} was taken to end with sequence {known}, and its "
                f"newest committed record is another, of sequence {found} "
                f"({newest.state.value if newest else 'there is none'})",
                next_step="start the query again: it reads the ledger anew; nothing of this "
                "attempt is visible. If it repeats, look for a broker that is cut off from the "
                "controllers",
                details={"pipeline": self._pipeline, "admitted_after": known, "newest": found},
            )
        self._confirmed = True

    def commit(self) -> None:
        """Send ``EndTxn``, for the record that was :meth:`put` and all else in the transaction."""
        self.transaction.commit()
        self._committed, self._decided = self._put, self._deciding

    def producer(self, settings: ProducerSettings | None = None) -> PartitionProducer:
        """Return the driver's own producer, under the open transaction's identity."""
        return PartitionProducer(
            self._client,
            settings or self._producer_settings,
            self.transaction.identity,
            transactional_id=self._pipeline,
            version=self.transaction.version,
        )

    def abort(self) -> None:
        self.transaction.abort()

    def settle(self, *, confirm: bool = True) -> LedgerRecord | None:
        """End all doubt and return the newest record. :param confirm: as for :meth:`take`."""
        with patience.within(2 * self.transaction.patience_ms):
            if self.transaction.state in (State.IN_DOUBT, State.TIMED_OUT):
                self.transaction.end_what_hangs(self._topic.partition())
                self.transaction.recover()
            else:
                # EndTxn was never sent, or it was answered: then nothing is open
                self.transaction.abort()
        newest = self.newest()
        if confirm:
            self._confirm_now()
        return newest

    def history(self, limit: int = 100) -> Iterator[LedgerRecord]:
        """Return the newest alone: compaction may have removed any other."""
        newest = self._topic.newest()
        return iter([newest][:limit] if newest else ())

    def close(self) -> None:
        if self._owns_client:
            try:
                self._client.close()
            except (OncewardError, OSError) as error:
                log.debug("closing: %s", error)


@dataclass(frozen=True)
class KafkaLedger(Ledger):
    """Chains in a compacted Kafka topic, which is created when it is missing.

    :param bootstrap_servers: ``host:port``, comma-separated or a list.
    :param topic: one topic for all pipelines; 16 partitions.
    :param options: Kafka client settings by Kafka's own names.
    :param oauth_token_provider: for ``sasl.mechanism=OAUTHBEARER``: a picklable object with
        ``token() -> str``.
    :raises ConfigurationError: any of these is wrong.
    """

    bootstrap_servers: str | Sequence[str]
    topic: str = DEFAULT_TOPIC
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    oauth_token_provider: TokenProvider | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        topic_name(self.topic)
        self._settings("onceward")

    def _settings(self, client_id: str) -> tuple[ClientSettings, ProducerSettings]:
        return settings_from_options(
            self.bootstrap_servers,
            self.options,
            client_id=client_id,
            oauth_token_provider=self.oauth_token_provider,
        )

    def chain(self, pipeline: PipelineId) -> Chain:
        client, producer = self._settings(f"onceward-{pipeline}")
        return KafkaChain(KafkaClient(client), self.topic, pipeline, producer, owns_client=True)

    def pipelines(self) -> list[PipelineId]:
        """Return the pipelines whose records the topic has; none where it is missing."""
        return self.reader().pipelines()

    def recent(self, pipeline: PipelineId, limit: int = 100) -> list[LedgerRecord]:
        """Return the last records that compaction has left, newest first."""
        return self.reader().recent(pipeline, limit)

    def reader(self) -> LedgerTopicReader:
        """Return what reads each record once, by a client that no batch uses."""
        client = KafkaClient.shared(self._settings("onceward-ledger-reader")[0])
        return LedgerTopicReader(client, self.topic)

    @property
    def where(self) -> LedgerPlace:
        return topic_place(self._settings("onceward")[0].bootstrap_servers, self.topic)


def topic_place(bootstrap_servers: Hashable, topic: str) -> LedgerPlace:
    """Return where a ledger topic is. The brokers are left to a shell's own variable."""
    options = "" if topic == DEFAULT_TOPIC else f"--ledger-topic {topic}"
    return LedgerPlace((bootstrap_servers, topic), options)


def _attempts(record: LedgerRecord | None) -> frozenset[AttemptId]:
    """Return the attempt that wrote the record, and the one that it decided."""
    if record is None:
        return frozenset()
    return frozenset({record.attempt, record.decided or record.attempt})


def _committed_among(newest_first: Sequence[LedgerRecord], attempt: AttemptId) -> bool | None:
    """Return whether one of these records is the attempt's: it is if it has one, and it is not if
    it lies between two batches that follow each other."""
    for record in newest_first:
        if attempt in _attempts(record):
            return True
    return (
        False
        if any(
            later.sequence == earlier.sequence + 1
            and later.attempt.owner == earlier.attempt.owner == attempt.owner
            and earlier.attempt.number < attempt.number < later.attempt.number
            for later, earlier in pairwise(newest_first)
        )
        else None
    )


def _sequence(record: LedgerRecord | None) -> int:
    return -1 if record is None else record.sequence
