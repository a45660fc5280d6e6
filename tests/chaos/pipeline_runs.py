"""What the pipeline tests share: a pipeline with its topics and input, and its job, life after
life.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient
from pipeline_job import JobSettings
from pipeline_lives import JobLife
from pipeline_models import RECORD_MS, record
from pipeline_workloads import WORKLOADS

from onceward_testing import LocalKafka
from onceward_testing.topic_reader import end_offsets

_SOURCE_PARTITIONS, _OUTPUT_PARTITIONS = 4, 8


class Pipeline:
    """One pipeline on one cluster: topics and names of its own, a checkpoint, and its jobs'
    files.
    """

    def __init__(
        self, kafka: LocalKafka, folder: Path, new_topic: Callable[..., str], **settings: Any
    ) -> None:
        self.kafka = kafka
        self.folder = folder
        self.source = new_topic(kafka.bootstrap_servers, _SOURCE_PARTITIONS, prefix="people")
        topics = WORKLOADS[settings.get("query", "copy")].topics
        self.outputs = [
            new_topic(kafka.bootstrap_servers, _OUTPUT_PARTITIONS, prefix="clean")
            for _ in range(topics)
        ]
        self.settings = JobSettings(
            bootstrap_servers=kafka.bootstrap_servers,
            source=self.source,
            outputs=self.outputs,
            pipeline_id=f"pipe-{uuid.uuid4().hex[:10]}",
            folder=str(folder),
            checkpoint=str(folder / "checkpoint"),
            news="",
            **settings,
        )
        self._producer = Producer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 5,
            }
        )
        self._produced = 0
        self._lives = 0
        # Recent, or the broker's retention would delete them; past, or it would refuse the records
        # that close windows.
        self._event_time_zero_ms = int(time.time() - 7_200) * 1000

    @property
    def pipeline_id(self) -> str:
        return self.settings.pipeline_id

    @property
    def output(self) -> str:
        """The first of the ``outputs``: for most workloads the only one."""
        return self.outputs[0]

    def produce(self, records: int, *, close_windows: bool = False, value_bytes: int = 0) -> None:
        """``records`` more, 10 ms of event time apart, evenly over the partitions; see
        ``pipeline_models.record``.

        ``close_windows`` adds a tombstone from an hour later to each partition, which closes every
        window before it. ``value_bytes`` is how long values are at least, by blanks.
        """
        producer = self._producer
        failures: list[object] = []

        def on_delivery(error: object, _message: object) -> None:
            if error:
                failures.append(error)

        for index in range(self._produced, self._produced + records):
            made = record(self.settings.query, index)
            producer.produce(
                self.source,
                made.value.ljust(value_bytes),
                made.key,
                index % _SOURCE_PARTITIONS,
                on_delivery=on_delivery,
                timestamp=self._event_time_zero_ms + made.time_ms,
            )
            if index % 10_000 == 0:
                producer.poll(0)
        self._produced += records
        if close_windows:
            later = self._event_time_zero_ms + RECORD_MS * self._produced + 3_600_000
            for partition in range(_SOURCE_PARTITIONS):
                producer.produce(
                    self.source, None, b"tick", partition, on_delivery=on_delivery, timestamp=later
                )
        assert producer.flush(120) == 0
        assert failures == []

    def lag(self) -> int:
        """How many records of the source the consumer group has not passed yet."""
        servers = self.kafka.bootstrap_servers
        admin = AdminClient({"bootstrap.servers": servers})
        answer = admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(self.pipeline_id)]
        )
        passed = {
            tp.partition: tp.offset
            for tp in answer[self.pipeline_id].result(60).topic_partitions
            if tp.topic == self.source
        }
        ends = end_offsets(servers, self.source, "read_uncommitted")
        return sum(end - max(0, passed.get(partition, 0)) for partition, end in ends.items())

    def open_partitions(self) -> list[str]:
        """Output partitions in which a transaction is open: their last stable offset is behind
        their end.
        """
        servers = self.kafka.bootstrap_servers
        return [
            f"{topic}-{partition}"
            for topic in self.outputs
            for partition, end in end_offsets(servers, topic, "read_uncommitted").items()
            if end_offsets(servers, topic, "read_committed")[partition] != end
        ]

    @contextmanager
    def job(self, faults: str = "", **changes: Any) -> Iterator[JobLife]:
        """One life of the job; when the block ends nothing of it is left."""
        self._lives += 1
        folder = self.folder / f"life-{self._lives}"
        folder.mkdir()
        settings = replace(
            self.settings, folder=str(folder), news=str(folder / "news.jsonl"), **changes
        )
        life = JobLife(settings, faults, folder)
        try:
            yield life
        finally:
            life.end_all()

    def run(self, faults: str = "", **changes: Any) -> JobLife:
        """One life of the job from start to end: by itself, or by the faults' hand."""
        with self.job(faults, **changes) as life:
            life.wait()
        return life

    def run_to_the_end(self, **changes: Any) -> JobLife:
        """One life without faults, which must end well."""
        life = self.run(**changes)
        assert life.status == 0, f"status {life.status}\n{life.log_tail()}"
        return life
