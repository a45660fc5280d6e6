"""What one run of a query keeps from batch to batch, for its attempts. Driver only; made by
:mod:`target`.

Connections, the chain in the ledger with the transactional id, the sequencer's port, and what was
learned of topics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pyspark.sql import DataFrame

from onceward.engine.driver_rows import DriverTurn
from onceward.errors import (
    Fenced,
    OncewardError,
    RecordTooLarge,
    SendFailed,
    TransactionTimedOut,
    TransactionTimeoutTooShort,
)
from onceward.ids import BatchId
from onceward.kafka.ledger.chain import KafkaChain
from onceward.kafka.sink import preflight
from onceward.kafka.sink.columns import SetAside
from onceward.kafka.sink.group_offsets import GroupOffsets
from onceward.kafka.sink.old_timestamps import OldTimestamps
from onceward.kafka.sink.rows import partition_counts
from onceward.kafka.sink.sequencer.book import EpochBook
from onceward.kafka.sink.sequencer.server import Sequencer
from onceward.kafka.sink.settings import KafkaSinkSettings
from onceward.kafka.sink.topic_limits import TopicLimits
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.options.settings import ProducerSettings
from onceward.kafka.wire.transactions.transaction import LONGER_OR_SMALLER, both_limits
from onceward.spark.batch.query import RunningBatch
from onceward.spark.batch.shuffles import Shuffles

log = logging.getLogger(__name__)

_KAFKAS_MESSAGE_BYTES = 1_048_588
"""``max.message.bytes`` where nobody has set it."""


class KafkaRun:
    """See the module."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        pipeline = settings.policy.pipeline
        self.settings = settings
        self.client = KafkaClient(settings.client)
        self.chain = KafkaChain(
            self.client, settings.ledger_topic, pipeline, settings.producer, owns_client=False
        )
        self.group = GroupOffsets(self.client, pipeline, settings.ledger_topic)
        self.shuffles = Shuffles()
        self.driver_turn = DriverTurn(settings.driver_records, settings.driver_bytes)
        self.old_timestamps = OldTimestamps(pipeline, self.client.topic_config)
        self._sequencer: Sequencer | None = None
        self._limits = TopicLimits(settings)
        self._set_aside: SetAside | None = None
        self._overdue: BatchId | None = (
            None  # the last batch that needed more than the transaction's time by itself
        )

    def sequencer(self, frame: DataFrame) -> Sequencer:
        """The sequencer of this run, on its port."""
        if self._sequencer is None:
            bind, advertised = preflight.sequencer_hosts(
                frame.sparkSession.sparkContext, self.settings
            )
            self._sequencer = Sequencer(bind, advertised, self.settings.sequencer_port)
        return self._sequencer

    def close_epoch(self) -> EpochBook | None:
        """No task gets another lease; what the sequencer has booked, if there was an epoch."""
        return None if self._sequencer is None else self._sequencer.close_epoch()

    def counts(self, topic: str | None) -> Callable[[str], int]:
        """How many partitions a topic has; of ``topic`` as of now, so that one that was added is
        written to.
        """
        known = {} if topic is None else {topic: self.partition_count(topic)}
        return partition_counts(self.client, known, self.settings.ledger_topic)

    def partition_count(self, topic: str) -> int:
        """As of now."""
        return len(self.client.topic_partitions([topic])[topic])

    def producer_settings(self, topic: str | None) -> ProducerSettings:
        """With record batches no larger than the topic takes, as far as is known."""
        return self._limits.producer_settings(self.client, topic)

    def explain(self, error: OncewardError) -> OncewardError:
        """What an error of an attempt comes to. What was learned of a topic that refuses a record
        is forgotten.

        A task, or the producer, cannot tell fencing from a transaction that timed out, nor a limit
        that was lowered from a record that never fitted; the driver can.
        """
        if isinstance(error, Fenced):
            return self.chain.transaction.explain(error)
        if (
            not isinstance(error, RecordTooLarge) or "records" not in error.details
        ):  # not said by a broker
            return error
        aside, self._set_aside = self._set_aside, None
        found = self._limits.refused(self.client, error)
        if (
            found is error
            and aside is not None
            and int(error.details["bytes"]) < aside.limit_bytes
        ):
            return SendFailed(
                error.message,
                next_step=f"nothing: the batch runs again, and such records go to {aside.topic}",
                details=error.details,
            )
        return found

    def set_aside(self, topic: str | None) -> SetAside | None:
        """What becomes of records that ``topic`` would not take; None: they fail the batch.

        :raises AccessDenied: its ``max.message.bytes`` may not be seen.
        """
        settings = self.settings
        if (
            settings.on_error != "dead_letter"
            or topic != settings.topic
            or settings.dead_letter_topic is None
        ):
            return None
        if self._set_aside is None:
            limit = int(
                self.client.topic_config(str(topic)).get("max.message.bytes")
                or _KAFKAS_MESSAGE_BYTES
            )
            self._set_aside = SetAside(settings.dead_letter_topic, settings.policy.pipeline, limit)
        return self._set_aside

    def late(self, running: RunningBatch, unacknowledged_s: float) -> OncewardError | None:
        """The error of a transaction whose time is over: the coordinator aborts it, and tells
        whoever sends next; but that may be minutes from now.

        :param unacknowledged_s: for how long the oldest records on their way have been waiting for
            brokers.
        """
        transaction = self.chain.transaction
        open_for_ms = transaction.open_for_ms
        if open_for_ms <= transaction.timeout_ms:
            return None
        size = (
            ""
            if running.input_records is None
            else f" of {running.input_records:,} source records"
        )
        what = (
            f"{running.batch}{size} was not sent in time: its transaction has been open for "
            f"{open_for_ms:.0f} ms, "
            f"counted from its first record ({both_limits(self.client, transaction.timeout_ms)})"
        )
        if unacknowledged_s * 1000 > transaction.timeout_ms / 2:
            return TransactionTimedOut(
                f"{what}; for the last {unacknowledged_s:.0f} s brokers have not acknowledged "
                f"records that were sent",
                next_step="see that the brokers take records (leaders, min.insync.replicas, the "
                "network); the batch "
                "runs again",
            )
        # Once is bad luck (an executor that died); twice it is the batch, and a third time would
        # be no better.
        again, self._overdue = self._overdue == running.batch, running.batch
        if again:
            return TransactionTimeoutTooShort(
                f"{what}, and not when it was tried again", next_step=LONGER_OR_SMALLER
            )
        return TransactionTimedOut(
            what, next_step=f"the batch runs again; if it repeats, {LONGER_OR_SMALLER}"
        )

    def close(self) -> None:
        """Give back connections and threads. Never raises."""
        for part in (self._sequencer, self.client):
            if part is not None:
                try:
                    part.close()
                except (OncewardError, OSError) as error:
                    log.debug("closing: %s", error)
        self._sequencer = None
