"""The driver: three queries over one source, as users would write them. ``python -m soak.job
'<JobSettings as JSON>'``.

Arms the fault points that its environment names, appends the ends of the engine's steps to
``news``, and lives until SIGTERM (status 0; SIGUSR1 before disarms the fault points), or until one
of its queries fails: status 3 for an error of ours, 4 for any other. Whoever runs it starts it
again, as a cluster manager would.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.streaming import StreamingQuery

import onceward as ow
from onceward import events
from onceward_testing import faults
from onceward_testing.job_messages import MessageWriter

from . import scatter
from .workload import COPY_PIPELINE, COUNT_PIPELINE, OUTPUT_OF, SCATTER_PIPELINE, SCATTERED, SOURCE

STOPPED_BY_US, FAILED_OTHERWISE = 3, 4
_TOLD = {
    (events.OPEN, "finished"),
    (events.REPLAY, "finished"),
    (events.COMMIT, "finished"),
    (events.COMMIT, "failed"),
    (events.ABORT, "finished"),
    (events.ABORT, "failed"),
    (events.SEND, "failed"),
}


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """``driver_records``: as in ``KafkaSink``; ``scatter``: a key of ``scatter.FUNCTIONS``. Both
    differ from life to life.
    """

    bootstrap_servers: str
    folder: str
    checkpoints: str
    news: str
    max_offsets: int
    trigger_seconds: float
    driver_records: int
    scatter: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class StepNews(MessageWriter):
    """Of the ends of some steps of the engine, too."""

    def tell_step(self, event: events.Event) -> None:
        if (event.step, event.phase) in _TOLD:
            error = type(event.error).__name__ if event.error else None
            ids = {name: event.ids.get(name) for name in ("pipeline", "batch_id", "epoch")}
            self.tell(
                "step",
                step=event.step,
                phase=event.phase,
                seconds=event.seconds,
                error=error,
                **ids,
            )
        elif (event.step, event.phase) == (events.LEASE, "finished") and event.ids[
            "partition"
        ].topic == SCATTERED:
            self.tell("sent", task=event.ids["task"])


def copies(people: DataFrame) -> DataFrame:
    origin = F.concat_ws(":", "partition", "offset")
    return people.select(
        "key", F.concat_ws(":", origin, F.col("value").cast("string")).alias("value")
    )


def counts(people: DataFrame) -> DataFrame:
    keyed = people.where(F.col("key").isNotNull()).groupBy(
        F.col("key").cast("string").alias("key")
    )
    return keyed.agg(F.count("*").cast("string").alias("value"))


QUERIES = {
    COPY_PIPELINE: (copies, "append"),
    COUNT_PIPELINE: (counts, "update"),
    SCATTER_PIPELINE: (scatter.scattered, "append"),
}


def session(settings: JobSettings) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # A life lasts two minutes: neither the big compiler nor verifying classes ever pays.
    small = (
        "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions "
        "-XX:-BytecodeVerificationRemote"
    )
    folder = Path(settings.folder)
    # native libraries are unpacked there, and stay after kill -9
    small += f" -Djava.io.tmpdir={folder / 'tmp'}"
    conf = {
        **ow.spark_conf(),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "900m",
        "spark.executor.memory": "900m",
        "spark.driver.extraJavaOptions": f"{small} -Dderby.system.home={folder}",
        "spark.executor.extraJavaOptions": small,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.sql.streaming.minBatchesToRetain": "10",
        # executors are killed without end, and shall come back each time
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.scheduler.mode": "FAIR",
        "spark.locality.wait": "0s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
    }
    builder = SparkSession.builder.master("local-cluster[2,1,1000]").appName("onceward-soak")
    return builder.config(map=conf).getOrCreate()


def start(spark: SparkSession, settings: JobSettings, pipeline: str) -> StreamingQuery:
    people = ow.kafka_source(
        spark,
        bootstrap_servers=settings.bootstrap_servers,
        topic=SOURCE,
        max_offsets_per_trigger=settings.max_offsets,
    )
    transform, mode = QUERIES[pipeline]
    sink = ow.KafkaSink(
        bootstrap_servers=settings.bootstrap_servers,
        topic=OUTPUT_OF[pipeline],
        pipeline_id=pipeline,
        driver_records=0 if pipeline == SCATTER_PIPELINE else settings.driver_records,
        batch_attempts=10,
        options={"transaction.timeout.ms": 40_000, "request.timeout.ms": 15_000},
    )
    function = scatter.FUNCTIONS[settings.scatter](sink) if pipeline == SCATTER_PIPELINE else sink
    writer = transform(people).writeStream.outputMode(mode).queryName(pipeline)
    writer = writer.option("checkpointLocation", f"{settings.checkpoints}/{pipeline}")
    return (
        writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
        .foreachBatch(function)
        .start()
    )


def run(settings: JobSettings, news: StepNews) -> int:
    stop = threading.Event()
    calm = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGUSR1, lambda *_: calm.set())
    spark = session(settings)
    events.probe(news.tell_step)
    disarm = faults.arm_from_environment()
    queries = [start(spark, settings, pipeline) for pipeline in QUERIES]
    news.tell("running")
    while all(query.isActive for query in queries):
        if calm.is_set():
            disarm()
        if stop.wait(0.2):
            for query in queries:
                query.stop()
            return 0
    failed = next(query for query in queries if not query.isActive)
    error = ow.error_of(failed)
    kind = type(error).__name__ if error is not None else "of Spark"
    news.tell(
        "ended", pipeline=failed.name, error=kind, message=str(error or failed.exception())[:2_000]
    )
    return STOPPED_BY_US if error is not None else FAILED_OTHERWISE


if __name__ == "__main__":
    chosen = JobSettings(**json.loads(sys.argv[1]))
    status = run(chosen, StepNews(chosen.news))
    sys.stdout.flush()
    os._exit(
        status
    )  # what is left of the session goes with us, and a hanging shutdown hides nothing
