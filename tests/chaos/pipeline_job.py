"""A streaming job as a user would write it, in a process of its own, to be started, killed and
started again.

``python pipeline_job.py '<JobSettings as JSON>'``. It arms the fault points that its environment
names, writes every event of the engine to ``news``, and ends with status 0 when the query ends, 3
when it stops with an error of ours and 4 with any other. The last line of ``news`` says which.

Its queries are those of ``pipeline_workloads``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pipeline_functions import FUNCTIONS
from pipeline_traps import trapped
from pipeline_workloads import WORKLOADS
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward import events
from onceward.spark.session.connector import spark_connector
from onceward_testing import faults
from onceward_testing.job_messages import MessageWriter

ENDED, STOPPED_BY_US, FAILED_OTHERWISE = 0, 3, 4


@dataclass(frozen=True, kw_only=True)
class JobSettings:
    """What a job needs to know.

    ``outputs``: the topics that it writes, as many as its workload wants. ``seconds``: the
    trigger's interval; None: all there is, then end. ``hold``: a step of which the ``finished``
    event waits until the file ``go`` appears in ``folder``, the first time it comes; unlike a
    stopped process the rest of the job stays alive. ``trap``: see ``pipeline_traps``.
    ``function``: one of ``pipeline_functions`` around the sink. ``sparks_own_sink``: what the
    others do, for comparison.
    """

    bootstrap_servers: str
    source: str
    outputs: Sequence[str]
    pipeline_id: str
    folder: str
    checkpoint: str
    news: str
    query: str = "copy"
    master: str = "local[2]"
    seconds: float | None = None
    max_offsets: int | None = None
    plain_packages: bool = False
    hold: str | None = None
    trap: str | None = None
    function: str | None = None
    sparks_own_sink: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    sink: dict[str, Any] = field(default_factory=dict)
    spark: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class StepNews(MessageWriter):
    """Of each step of the engine, too."""

    def tell_step(self, event: events.Event) -> None:
        error = type(event.error).__name__ if event.error else None
        ids = {
            name: value if isinstance(value, int) else str(value)
            for name, value in event.ids.items()
        }
        self.tell(
            "step", step=event.step, phase=event.phase, ids=ids, seconds=event.seconds, error=error
        )


class Hold:
    """Stops one step, once, until it is told to go."""

    def __init__(self, step: str, go: Path) -> None:
        self._step, self._go = step, go
        self._held = False

    def __call__(self, event: events.Event) -> None:
        if not self._held and (event.step, event.phase) == (self._step, "finished"):
            self._held = True
            while not self._go.exists():
                time.sleep(0.05)


def session(settings: JobSettings) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    small = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"  # many of these live for ten seconds each
    folder = Path(settings.folder)
    ours = (
        {"spark.jars.packages": ",".join(spark_connector().coordinates)}
        if settings.plain_packages
        else None
    )
    conf = {
        **(ours or ow.spark_conf()),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.executor.memory": "1g",
        "spark.driver.extraJavaOptions": f"{small} -Dderby.system.home={folder}",
        "spark.executor.extraJavaOptions": small,
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "WARN",
        **settings.spark,
    }
    return (
        SparkSession.builder.master(settings.master)
        .appName(settings.pipeline_id)
        .config(map=conf)
        .getOrCreate()
    )


def start(settings: JobSettings, records: DataFrame) -> StreamingQuery:
    workload = WORKLOADS[settings.query]
    rows = workload.transform(records, settings.outputs)
    writer = rows.writeStream.outputMode(workload.mode).option(
        "checkpointLocation", settings.checkpoint
    )
    if settings.seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.seconds} seconds")
    one_topic = settings.outputs[0] if workload.topics == 1 else None
    if settings.sparks_own_sink:
        assert one_topic is not None
        writer = writer.format("kafka").option(
            "kafka.bootstrap.servers", settings.bootstrap_servers
        )
        return writer.option("topic", one_topic).start()
    sink = ow.KafkaSink(
        bootstrap_servers=settings.bootstrap_servers,
        topic=one_topic,
        pipeline_id=settings.pipeline_id,
        options=settings.options,
        **{"driver_records": 0, **settings.sink},  # also small batches in parallel
    )
    if settings.function is None:
        return writer.foreachBatch(sink).start()
    return writer.foreachBatch(
        FUNCTIONS[settings.function](sink, settings.folder, settings.outputs)
    ).start()


def run(settings: JobSettings, news: StepNews) -> int:
    spark = session(settings)
    news.tell("session")
    events.probe(news.tell_step)  # before the faults: a step is told before it kills us
    faults.arm_from_environment()
    if settings.hold:
        events.probe(Hold(settings.hold, Path(settings.folder) / "go"))
    records = ow.kafka_source(
        spark,
        bootstrap_servers=settings.bootstrap_servers,
        topic=settings.source,
        max_offsets_per_trigger=settings.max_offsets,
        options=settings.options,
    )
    if settings.trap:
        records = trapped(
            records, settings.trap, flag=f"{settings.checkpoint}.trapped", news=settings.news
        )
    query = start(settings, records)
    while query.isActive:
        time.sleep(0.1)
    spark_error, error = query.exception(), ow.error_of(query)
    if error is not None:
        news.tell("stopped", error=type(error).__name__, message=str(error))
        return STOPPED_BY_US
    if spark_error is not None:
        news.tell("failed", message=str(spark_error))
        return FAILED_OTHERWISE
    news.tell("ended")
    return ENDED


if __name__ == "__main__":
    chosen = JobSettings(**json.loads(sys.argv[1]))
    status = run(chosen, StepNews(chosen.news))
    sys.stdout.flush()
    os._exit(
        status
    )  # the JVM follows when our end of its pipe closes; a hanging shutdown must not hide the outcome
