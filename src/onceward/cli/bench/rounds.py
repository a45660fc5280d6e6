"""Who runs when, and what is measured: alternating rounds in one Spark session on one broker, after a warm-up.

Called by :mod:`command`. Everything that is not the query itself (filling, checking, deleting topics) happens between
the measurements.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from onceward.cli.bench import contenders
from onceward.cli.bench.contenders import Copy
from onceward.cli.bench.cpu import CpuMeter
from onceward.cli.bench.figures import CONTENDERS, SOURCE, Run, SinkPlan
from onceward.cli.bench.topics import Topics
from onceward.testing import LocalKafka

_SOURCE_PARTITIONS = 4
_SETTLE_SECONDS = 2.0
_HEAP_MB = 1_024

Say = Callable[[str], None]


def run_sinks(plan: SinkPlan, say: Say) -> list[Run]:
    """All runs, in the order in which they ran.

    :raises OutputWrong: a contender lost or repeated a record.
    """
    logging.getLogger("onceward").setLevel(logging.ERROR)  # that one node keeps one replica is known here
    say(f"sink: starting Kafka {plan.broker_version} and Spark …")
    with (
        LocalKafka(1, plan.broker_version, heap_mb=_HEAP_MB) as kafka,
        _spark() as spark,
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as checkpoints,
    ):
        broker_pid = kafka.nodes[0].pid
        assert broker_pid is not None  # noqa: S101 — it serves
        meter = CpuMeter(contenders.jvm_pid(spark), broker_pid)
        return _Rounds(plan, kafka.bootstrap_servers, spark, meter, Path(checkpoints), say).run()


@contextmanager
def _spark() -> Iterator[SparkSession]:
    spark = contenders.start_spark()
    try:
        yield spark
    finally:
        spark.stop()


class _Rounds:
    def __init__(
        self, plan: SinkPlan, bootstrap_servers: str, spark: SparkSession, meter: CpuMeter, checkpoints: Path, say: Say
    ) -> None:
        self._plan = plan
        self._bootstrap_servers = bootstrap_servers
        self._spark = spark
        self._meter = meter
        self._checkpoints = checkpoints
        self._say = say
        self._topics = Topics(bootstrap_servers)

    def run(self) -> list[Run]:
        plan = self._plan
        if plan.warm_up_records:
            self._fill("warm-up", plan.warm_up_records)
            for contender in CONTENDERS:
                self._measured(contender, "warm-up", plan.warm_up_records, round_number=0)
        self._fill("input", plan.records)
        return [
            self._measured(contender, "input", plan.records, round_number)
            for round_number in range(1, plan.rounds + 1)
            for contender in CONTENDERS
        ]

    def _fill(self, topic: str, records: int) -> None:
        self._say(f"writing {records:,} records to topic {topic} …")
        self._topics.create(topic, _SOURCE_PARTITIONS)
        self._topics.fill(topic, records)

    def _measured(self, contender: str, source: str, records: int, round_number: int) -> Run:
        copy = Copy(
            name=f"round-{round_number}-{CONTENDERS.index(contender)}",
            bootstrap_servers=self._bootstrap_servers,
            source=source,
            batch_records=self._plan.batch_records,
            checkpoints=self._checkpoints,
        )
        self._topics.create(copy.name, self._plan.partitions)
        contenders.collect_garbage(self._spark)
        time.sleep(_SETTLE_SECONDS)
        cpu, wall = self._meter.read(), time.perf_counter()
        batches = contenders.run(self._spark, contender, copy)
        wall_s = time.perf_counter() - wall
        used = self._meter.read().since(cpu)
        if contender != SOURCE:
            self._topics.check(copy.name, self._plan.partitions, records)
        self._topics.delete(copy.name)
        run = Run(
            contender=contender,
            round=round_number,
            records=records,
            wall_s=wall_s,
            driver_cpu_s=used.driver,
            jvm_cpu_s=used.jvm,
            workers_cpu_s=used.workers,
            broker_cpu_s=used.broker,
            batch_s=median(batches),
        )
        self._say(
            f"{'round ' + str(round_number) if round_number else 'warm-up'}: {contender}: "
            f"{records / wall_s / 1e6:.2f} M records/s, {run.cpu_s / records * 1e6:.2f} µs of CPU a record"
        )
        return run
