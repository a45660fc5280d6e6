"""One pipeline under test: source topic, Spark query, Onceward's sink, output topic, ledger and
checkpoint of its own.

What a pipeline wrote is always read back with librdkafka (confluent-kafka); our own client has no
part in a verdict.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message, Producer
from pyspark.errors.exceptions.base import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward
from onceward.errors import OncewardError
from onceward_testing import LocalKafka
from onceward_testing.topic_reader import end_offsets
from support.kept_clients import using

QUERY_TIMEOUT_SECONDS = 150

Transform = Callable[[DataFrame], DataFrame]
Record = tuple[bytes | None, bytes | None]


def copy(frame: DataFrame) -> DataFrame:
    """Every record as it is, its source partition and offset written in front of the value."""
    return frame.selectExpr(
        "key", "concat_ws(':', partition, offset, CAST(value AS STRING)) AS value"
    )


class Pipeline:
    """See the module. ``name`` is pipeline id, consumer group and ledger key."""

    def __init__(
        self,
        spark: SparkSession,
        kafka: LocalKafka,
        folder: Path,
        new_topic: Callable[..., str],
        readers: dict[str, Callable[..., list[Message]]],
        *,
        source_partitions: int = 2,
        output_partitions: int = 3,
    ) -> None:
        self.spark = spark
        self.kafka = kafka
        self.bootstrap = kafka.bootstrap_servers
        self.job_servers = (
            self.bootstrap
        )  # what source and sink are given; all else goes to the brokers directly
        self.name = f"pipeline-{uuid.uuid4().hex[:10]}"
        self.checkpoint = folder / f"checkpoint-{self.name}"
        self._new_topic = new_topic
        self._source_partitions = source_partitions
        self._readers = readers
        self.source = self.topic(source_partitions, prefix="in")
        self.output = self.topic(output_partitions, prefix="out")
        self.ledger_topic = self.topic(1, prefix="ledger", cleanup_policy="compact")
        self.fed: list[Record] = []
        self.runs: list[
            int
        ] = []  # how many batches there were after each run, where a test notes it
        self._sinks: list[onceward.KafkaSink] = []

    # ── setting up ──

    def topic(self, partitions: int = 1, *, prefix: str = "t", **config: object) -> str:
        """A new topic on this pipeline's cluster."""
        return self._new_topic(self.bootstrap, partitions, prefix=prefix, **config)

    def feed(self, records: int | Sequence[Record], *, topic: str | None = None) -> None:
        """Produce to the source, or to another topic of one partition; a number is that of
        records, all different.
        """
        if isinstance(records, int):
            begin = len(self.fed)
            records = [(b"key-%d" % i, b"value-%d" % i) for i in range(begin, begin + records)]
        count = self._source_partitions if topic is None else 1
        failed: list[Any] = []
        with using(Producer, self.bootstrap, linger_ms=5, enable_idempotence=True) as producer:
            for number, (key, value) in enumerate(records):
                # In turn, so that Spark's limit of offsets a batch, shared out by size, cuts where
                # a test expects it.
                producer.produce(
                    topic or self.source,
                    key=key,
                    value=value,
                    partition=number % count,
                    on_delivery=lambda error, _: failed.append(error) if error else None,
                )
            assert producer.flush(120) == 0
            assert failed == []
        self.fed += records

    def frame(self, *, topic: str | Sequence[str] | None = None, **options: Any) -> DataFrame:
        """The source as a streaming DataFrame; at most 40 offsets a batch unless told
        otherwise.
        """
        settings: dict[str, Any] = {
            "starting": "earliest",
            "max_offsets_per_trigger": 40,
        } | options
        # Spark's reader asks ahead, also at the end; a batch that begins elsewhere has to wait for
        # that answer first.
        settings["spark_options"] = {"kafka.fetch.max.wait.ms": 20} | settings.get(
            "spark_options", {}
        )
        if "topic_pattern" not in settings:
            settings["topic"] = topic or self.source
        elif topic is not None:
            settings["topic"] = topic
        return onceward.kafka_source(self.spark, bootstrap_servers=self.job_servers, **settings)

    def sink(self, **options: Any) -> onceward.KafkaSink:
        """A sink that writes to the output topic unless told otherwise."""
        settings: dict[str, Any] = {
            "bootstrap_servers": self.job_servers,
            "pipeline_id": self.name,
            "topic": self.output,
            "ledger_topic": self.ledger_topic,
            # small as they are, the batches of most tests are there for what tasks do
            "driver_records": 0,
        } | options
        sink = onceward.KafkaSink(**settings)
        self._sinks.append(sink)
        return sink

    def close(self) -> None:
        """Stop what is still running, and give back connections."""
        for query in self.spark.streams.active:
            query.stop()
        for sink in self._sinks:
            sink.close()

    # ── running ──

    def start(
        self,
        transform: Transform = copy,
        *,
        sink: onceward.KafkaSink | None = None,
        frame: DataFrame | None = None,
        trigger: dict[str, Any] | None = None,
        mode: str = "append",
        checkpoint: Path | None = None,
        **sink_options: Any,
    ) -> StreamingQuery:
        """The query, started; by default it ends by itself at the source's present end."""
        rows = transform(self.frame() if frame is None else frame)
        return (
            rows.writeStream.outputMode(mode)
            .option("checkpointLocation", str(checkpoint or self.checkpoint))
            .trigger(**(trigger or {"availableNow": True}))
            .foreachBatch(sink or self.sink(**sink_options))
            .start()
        )

    def run(self, transform: Transform = copy, **options: Any) -> StreamingQuery:
        """Run to the source's present end; anything but success is an error."""
        query = self.start(transform, **options)
        assert query.awaitTermination(QUERY_TIMEOUT_SECONDS), "the query did not end"
        assert onceward.error_of(query) is None
        return query

    def failing_run(self, transform: Transform = copy, **options: Any) -> StreamingQuery:
        """Run a query that must fail; returns it, stopped."""
        return self.failed(self.start(transform, **options))

    def failed(self, query: StreamingQuery) -> StreamingQuery:
        """Wait until ``query`` has failed."""
        assert self.ended(query), "the query ended well, though it had to fail"
        return query

    def ended(self, query: StreamingQuery) -> str:
        """Wait until ``query`` has ended; the text of its error, empty when it ended well."""
        try:
            assert query.awaitTermination(QUERY_TIMEOUT_SECONDS), "the query did not end"
        except StreamingQueryException as error:
            assert not query.isActive
            return str(error)
        return ""

    def refused(self, transform: Transform = copy, **options: Any) -> OncewardError:
        """Run a query that must fail with a typed error; returns that."""
        error = onceward.error_of(self.failing_run(transform, **options))
        assert error is not None, "the query failed, but not with an error of Onceward"
        assert error.next_step, f"{error!r} does not say what to do next"
        return error

    # ── the checkpoint ──

    def forget_commit(self) -> int:
        """Delete the newest entry of Spark's commit log, as if the driver had died before writing
        it.
        """
        newest = self.committed_batches()[-1]
        for file in (self.checkpoint / "commits").glob(f"*{newest}*"):
            if file.name in (str(newest), f".{newest}.crc"):
                file.unlink()
        return newest

    def committed_batches(self) -> list[int]:
        """What Spark's commit log holds."""
        return sorted(
            int(file.name)
            for file in (self.checkpoint / "commits").iterdir()
            if file.name.isdecimal()
        )

    def lose_checkpoint(self) -> None:
        """Delete it, all of it."""
        shutil.rmtree(self.checkpoint)

    # ── what came out ──

    def visible(self, topic: str | None = None) -> list[Message]:
        """What a ``read_committed`` consumer is given."""
        return self._readers["read_committed"](self.bootstrap, topic or self.output)

    def appended(self, topic: str | None = None) -> list[Message]:
        """What a ``read_uncommitted`` consumer is given: aborted attempts included."""
        return self._readers["read_uncommitted"](self.bootstrap, topic or self.output)

    def ledger(self) -> list[dict[str, Any]]:
        """The committed ledger records of this pipeline, oldest first, as plain JSON."""
        messages = self._readers["read_committed"](self.bootstrap, self.ledger_topic)
        return [
            json.loads(message.value())
            for message in messages
            if message.key() == self.name.encode()
        ]

    def open_transactions(self, *topics: str) -> list[str]:
        """Partitions of these topics (output and ledger by default) whose last stable offset is
        behind.
        """
        open_in = []
        for topic in topics or (self.output, self.ledger_topic):
            committed = end_offsets(self.bootstrap, topic, "read_committed")
            everything = end_offsets(self.bootstrap, topic, "read_uncommitted")
            open_in += [f"{topic}-{p}" for p, end in everything.items() if committed[p] != end]
        return open_in

    def lag(self, group: str | None = None) -> dict[tuple[str, int], int]:
        """What Kafka's own tool says of the pipeline's consumer group."""
        text = self.kafka.kafka_tool(
            "kafka-consumer-groups", "--describe", "--group", group or self.name
        )
        rows = [
            line.split() for line in text.splitlines() if line.split()[:1] == [group or self.name]
        ]
        return {(row[1], int(row[2])): int(row[5]) for row in rows}

    def assert_exactly_once(self, *, ledger_records: int | None = None) -> None:
        """After :func:`copy`: every record fed is visible once and no other, and the ledger is one
        chain.
        """
        expected = Counter((key, value or b"") for key, value in self.fed)
        assert Counter(source_records(self.visible())) == expected
        chain = self.ledger()
        assert [record["sequence"] for record in chain] == list(range(len(chain)))
        assert sum(record["records"] for record in chain) == len(self.fed)
        if ledger_records is not None:
            assert len(chain) == ledger_records
        assert self.open_transactions() == []


def use_state_store(pipeline: Pipeline, request: pytest.FixtureRequest, store: str) -> None:
    """Keep state in ``HDFSBackedStateStoreProvider`` (the default) or
    ``RocksDBStateStoreProvider`` for one test.
    """
    if store.startswith("RocksDB"):
        name, package = (
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state",
        )
        pipeline.spark.conf.set(name, f"{package}.{store}")
        request.addfinalizer(lambda: pipeline.spark.conf.unset(name))


def source_records(messages: Iterable[Message]) -> list[Record]:
    """Key and value as they were fed, from what :func:`copy` made of them."""
    return [(message.key(), message.value().split(b":", 2)[2]) for message in messages]


def source_position(message: Message) -> tuple[int, int]:
    """Partition and offset that :func:`copy` wrote in front of the value."""
    partition, offset, _ = message.value().split(b":", 2)
    return int(partition), int(offset)
