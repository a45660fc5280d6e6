"""The Kafka sink's side of a pipeline. Driver only; called by ``engine.micro_batch``.

One batch is one :class:`~onceward.kafka.sink.attempt.KafkaAttempt`; what they share is a
:class:`~onceward.kafka.sink.run.KafkaRun`.
"""

from __future__ import annotations

from onceward.engine.ledger.record import LedgerRecord
from onceward.engine.target import AtomicTarget
from onceward.errors import LedgerBehind, TransactionTimeoutTooLarge
from onceward.kafka.sink.attempt import KafkaAttempt
from onceward.kafka.sink.run import KafkaRun
from onceward.kafka.sink.settings import KafkaSinkSettings, name_checkpointing
from onceward.kafka.sink.topics import check_topic
from onceward.spark.batch.query import RunningBatch


class KafkaTarget(AtomicTarget):
    """One run's transactions with Kafka."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self.run = KafkaRun(settings)
        self.chain = self.run.chain
        self.client_for = self.run.group.client_for

    def peek(self) -> LedgerRecord | None:
        return self.run.chain.peek()

    def open(self, running: RunningBatch) -> LedgerRecord | None:
        settings = self.run.settings
        for topic in (settings.topic, settings.dead_letter_topic):
            check_topic(self.run.client, settings, topic)
        # The order matters: once the chain is taken no earlier owner can commit, so what is read
        # then is final. It is confirmed before the first commit; unless something is done on the
        # strength of it before.
        try:
            newest = self.run.chain.take(confirm=self.is_relied_on)
        except TransactionTimeoutTooLarge as too_large:
            name_checkpointing(too_large, settings.policy.checkpointing)
            raise
        try:
            self.run.group.refuse_ledger_behind(running, newest, settings.policy.resume)
        except LedgerBehind:
            # An heir moves both. Who has stood still between the two reads is replaced, and
            # nothing is lost.
            self.run.chain.refuse_what_a_newer_owner_wrote(newest)
            self.confirm()
            raise
        return newest

    def begin(self, newest: LedgerRecord | None, running: RunningBatch) -> KafkaAttempt:
        return KafkaAttempt(self.run, self.run.chain.begin(newest))

    def confirm(self) -> None:
        self.run.chain.confirm()

    def settle(self) -> LedgerRecord | None:
        return self.run.chain.settle(confirm=self.is_relied_on)

    def must_be_ours(self) -> LedgerRecord | None:
        return self.run.chain.settle(confirm=True)

    def close(self) -> None:
        self.run.close()
