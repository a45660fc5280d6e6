"""Writing without a transaction: ``delivery="at_least_once"`` and ``"none"``. Driver and executor tasks.

Called by :mod:`sink` instead of the engine. There is no ledger and no admission: what Spark runs again is written
again, as with Spark's own sink. ``at_least_once`` uses an idempotent producer of its own in every task, so that
resends within a task add nothing; ``none`` sends without a producer id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import pyarrow as pa

from onceward import events
from onceward.engine.target import Write
from onceward.errors import OncewardError, from_json, to_json
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.secrecy import unlogged_calls
from onceward.sinks.kafka import preflight
from onceward.sinks.kafka.columns import prepare
from onceward.sinks.kafka.rows import HeldRows, partition_counts, pieces
from onceward.sinks.kafka.settings import KafkaSinkSettings
from onceward.sinks.kafka.tasks import number, this_attempt
from onceward.spark import job
from onceward.spark.query import RunningBatch
from onceward.spark.zip_importers import drop_zip_importers
from onceward.wire.appends.producer import Append, PartitionProducer, idempotent_identity
from onceward.wire.client import KafkaClient

_RESULT = pa.schema([("records", pa.int64()), ("error", pa.string())])
_NO_PRODUCER = ProducerIdentity(-1, -1)
_NO_SEQUENCE = -1


class PlainWriter:
    """Writes batches as they come."""

    def __init__(self, settings: KafkaSinkSettings) -> None:
        self._settings = settings
        self._by_topic: dict[str | None, KafkaSinkSettings] = {}

    def write(self, write: Write, running: RunningBatch) -> None:
        """Write one frame; when it returns, every record is acknowledged (with ``acks=1`` by the leader alone).

        :raises OncewardError: what a task ran into; part of the batch may be visible.
        """
        settings = self._settings_for(write.where)
        ids = {"pipeline": self._settings.policy.pipeline, "batch_id": running.batch.batch_id}
        with events.step(events.SEND, **ids):
            prepared = prepare(write.frame, write.where, lineage=settings.lineage)
            with unlogged_calls():  # the function holds the settings
                written = prepared.mapInArrow(_writer(settings), _RESULT_DDL)
            rows, _ = job.collect(written, _nothing_is_lost)
        for row in rows:
            if row.error is not None:
                raise from_json(row.error)

    def _settings_for(self, topic: str | None) -> KafkaSinkSettings:
        """The settings with ``topic`` as the static one; looked at once for each topic."""
        if topic not in self._by_topic:
            client = KafkaClient(self._settings.client)
            try:
                preflight.check_topic(client, self._settings, topic)
                producer = preflight.fitting(client, self._settings, topic)
            finally:
                client.close()
            self._by_topic[topic] = replace(self._settings, topic=topic, producer=producer)
        return self._by_topic[topic]


def _nothing_is_lost() -> OncewardError | None:
    """There is no epoch that could be lost, and no deadline."""
    return None


_RESULT_DDL = "records long, error string"


def _writer(settings: KafkaSinkSettings) -> Any:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        drop_zip_importers()
        try:
            records, error = _PlainTask(settings).run(batches), None
        except OncewardError as caught:
            records, error = 0, to_json(caught)  # raised here, only its text would reach the driver
        yield pa.RecordBatch.from_arrays(
            [pa.array([records], pa.int64()), pa.array([error], pa.string())], schema=_RESULT
        )

    return write


class _PlainTask:
    def __init__(self, settings: KafkaSinkSettings) -> None:
        client = KafkaClient.shared(settings.client)
        self._held_bytes = settings.held_bytes
        self._idempotent = settings.policy.delivery == "at_least_once"
        identity = idempotent_identity(client) if self._idempotent else _NO_PRODUCER
        self._producer = PartitionProducer(client, settings.producer, identity, transactional_id=None, version=1)
        counts = partition_counts(client, {}, settings.ledger_topic)
        self._rows = HeldRows(settings.topic, counts, settings.producer, first=this_attempt().partition_id)
        self._sequences: dict[TopicPartition, int] = {}

    def run(self, batches: Iterator[pa.RecordBatch]) -> int:
        records = 0
        for piece in chain.from_iterable(map(pieces, batches)):
            self._rows.add(piece)
            if self._rows.held_bytes >= self._held_bytes:
                records += self._send_all()
        return records + self._send_all()

    def _send_all(self) -> int:
        fragments = self._rows.encode()
        if self._idempotent:
            first = {partition: self._sequences.get(partition, 0) for partition in fragments}
            appends, following = number(fragments, first)
            self._sequences.update(following)
        else:
            appends = [Append(p, fragment, _NO_SEQUENCE) for p, parts in fragments.items() for fragment in parts]
        self._producer.send(appends, should_stop=None)
        return sum(append.fragment.count for append in appends)
