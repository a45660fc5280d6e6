"""A pipeline made by hand, transaction by transaction, so that a test can get any one thing wrong
on a real broker.

Records, offsets, ledger record and commit go over the wire as a driver's would; the ledger record
is written down here from what the broker answered, not by the product's own encoder.
"""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer

from onceward.ids import TopicPartition
from onceward.kafka.records.batch import Fragment
from onceward.kafka.records.checksum import ContentChecksum
from onceward.kafka.wire.client import KafkaClient
from support.wire_fixtures import Writer, appends_to, fragments, settings

Values = Mapping[TopicPartition, "Sequence[bytes] | Sequence[Fragment]"]
Document = dict[str, Any]


class HandmadePipeline:
    """One source partition, one output topic, a ledger topic of its own; every batch reads ten
    records.
    """

    def __init__(
        self, bootstrap_servers: str, pipeline_id: str, new_topic: Callable[..., str]
    ) -> None:
        self.servers = bootstrap_servers
        self.pipeline_id = pipeline_id
        self.source = new_topic(bootstrap_servers, 1, prefix="in")
        self.output = new_topic(bootstrap_servers, 2, prefix="out")
        self.ledger = new_topic(
            bootstrap_servers, 1, prefix="ledger", cleanup_policy="compact,delete"
        )
        self.sequence = 0
        self.position = self._produced = 0
        self.client = KafkaClient(settings(bootstrap_servers)[0])
        self.writer = Writer(self.client, pipeline_id)
        self.writer.transaction.take_over()
        self._sent: defaultdict[TopicPartition, int] = defaultdict(int)

    def close(self) -> None:
        self.client.close()

    def out(self, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.output, partition)

    def batch(
        self,
        values: Values,
        *,
        untold: Values | None = None,
        edit: Callable[[Document], object] | None = None,
        commit: bool = True,
    ) -> Document:
        """A batch of ``values``, whole. ``untold`` follows them in the same transaction, and
        nobody tells of it.

        ``edit`` may change the ledger record before it is written; without ``commit`` the batch is
        aborted at the end.
        """
        self.read_ten()
        self.begin()
        document = self.document(self.write(values))
        self.write(untold or {})
        if edit:
            edit(document)
        self.tell(document)
        if commit:
            self.commit()
        else:
            self.writer.transaction.abort()
            self.position -= 10
        return document

    def read_ten(self) -> None:
        """Ten more records of the source, which the next batch reads."""
        self.position += 10
        producer = Producer({"bootstrap.servers": self.servers})
        while (
            self._produced < self.position
        ):  # an aborted batch has been given its records already
            producer.produce(self.source, b"in", partition=0)
            self._produced += 1
        assert producer.flush(30) == 0

    def begin(self) -> None:
        self._sent.clear()
        self.writer.transaction.begin()

    def write(self, values: Values) -> dict[str, dict[str, list[Any]]]:
        """Into the open transaction; returns what a manifest has to say about it."""
        self.writer.transaction.add_partitions(values)
        manifest: dict[str, dict[str, list[Any]]] = {}
        for partition, some in values.items():
            parts = [part for part in some if isinstance(part, Fragment)] or fragments(list(some))
            appended = self.writer.producer().send(
                appends_to(partition, parts, self._sent[partition])
            )
            count = sum(part.count for part in parts)
            self._sent[partition] += count
            checksum = functools.reduce(
                ContentChecksum.combine, (part.checksum for part in parts)
            ).hexdigest()
            entry = [count, appended[0].base_offset, appended[-1].last_offset, checksum]
            manifest.setdefault(partition.topic, {})[str(partition.partition)] = entry
        return manifest

    def document(self, manifest: dict[str, dict[str, list[Any]]]) -> Document:
        """The ledger record of the batch that is being written."""
        identity = self.writer.transaction.identity
        return {
            "version": 2,
            "pipeline": self.pipeline_id,
            "sequence": self.sequence,
            "query_id": "by-hand",
            "batch_id": self.sequence,
            "sources": [{"start": self.at(self.position - 10), "end": self.at(self.position)}],
            "attempt": list(identity),
            "state": "finished",
            "outputs": {"kafka": {"kind": "kafka", "version": 1, "records": 0, "data": manifest}},
            "committed_at_ms": 0,
        }

    def at(self, offset: int) -> dict[str, dict[str, int]]:
        """A position in the source, as Spark has it."""
        return {self.source: {"0": offset}}

    def tell(self, document: Document) -> None:
        """The group's offset and the ledger record, into the open transaction."""
        self.writer.transaction.commit_offsets(
            self.pipeline_id, {TopicPartition(self.source, 0): self.position}
        )
        home = TopicPartition(self.ledger, 0)
        self.writer.transaction.add_partitions([home])
        record = fragments([json.dumps(document).encode()], key=self.pipeline_id.encode())
        self.writer.producer().send(appends_to(home, record, self._sent[home]))
        self._sent[home] += 1

    def commit(self) -> None:
        self.writer.transaction.commit()
        self.sequence += 1
