"""What it costs to be watched: ten pipelines with and without metrics, a scraper and the dashboard,
in turns of one run. Called by :mod:`__main__`.

All pipelines are queries of one Spark, each with a topic, a ledger key and a checkpoint of its own,
and a few records every second. A turn *with* serves metrics, which a process scrapes every second,
and has the dashboard look every two. CPU is of all processes but the brokers'; a batch's seconds
are Spark's ``triggerExecution``.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from confluent_kafka import Producer
from pyspark.sql import SparkSession

import onceward as ow
from benchmarks.local_broker import local_broker
from benchmarks.topics import Topics
from onceward.errors import ResourceError
from onceward_testing.free_ports import free_ports

PIPELINES, TRIGGER_SECONDS, RECORDS = 10, 5, 100
_WARM_BATCHES, _WARM_UP_SECONDS = 3, 240.0
_SCRAPE = (
    "import sys, time, urllib.request\n"
    "while True:\n"
    "    urllib.request.urlopen(sys.argv[1], timeout=5).read()\n"
    "    time.sleep(1)\n"
)


@dataclass(frozen=True, slots=True)
class WatchedTurn:
    """One turn: CPU of one core in percent, of Spark and of those who watch; batches, and their
    milliseconds.
    """

    watched: bool
    spark_percent: float
    watchers_percent: float
    batches: int
    median_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return (
            f"{'with' if self.watched else 'without'}: Spark {self.spark_percent:.1f} % of a core, "
            f"watchers {self.watchers_percent:.1f} %; {self.batches} batches, median "
            f"{self.median_ms:.0f} ms, p99 {self.p99_ms:.0f} ms"
        )


def run_observers(
    broker_version: str, rounds: int, seconds: float, say: Callable[[str], None]
) -> list[WatchedTurn]:
    """Return the turns, without and with in turn, after one that warms up."""
    with (
        local_broker(broker_version) as broker,
        TemporaryDirectory(prefix="onceward-bench-") as at,
    ):
        spark = (
            SparkSession.builder.master("local[2]")
            .config(map=dict[str, Any](ow.spark_conf()))
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        try:
            with _fed(broker.bootstrap_servers) as source:
                queries = [
                    _pipeline(spark, broker.bootstrap_servers, source, Path(at))
                    for _ in range(PIPELINES)
                ]
                say(f"{PIPELINES} pipelines: warming up …")
                _warm_up(queries)
                turns = []
                for _ in range(rounds):
                    for watched in (False, True):
                        turns.append(
                            _turn(queries, broker.bootstrap_servers, seconds, watched=watched)
                        )
                        say(str(turns[-1]))
                for query in queries:
                    query.stop()
        finally:
            spark.stop()
    return turns


def _warm_up(queries: list[Any]) -> None:
    """Wait until each has written some batches."""
    until = time.monotonic() + _WARM_UP_SECONDS
    while any(
        (query.lastProgress or {"batchId": -1})["batchId"] < _WARM_BATCHES for query in queries
    ):
        if time.monotonic() > until:
            raise ResourceError(
                f"ten pipelines have not begun within {_WARM_UP_SECONDS:.0f} s",
                next_step="run it on a machine that does nothing else",
            )
        time.sleep(1)


@contextmanager
def _fed(servers: str) -> Iterator[str]:
    """A topic that is given records every second."""
    source, stopped = f"observed-{uuid.uuid4().hex[:6]}", threading.Event()
    Topics(servers).create(source, 2)
    producer = Producer({"bootstrap.servers": servers})

    def feed() -> None:
        while not stopped.wait(1):
            for number in range(RECORDS):
                producer.produce(source, b"x" * 100, key=str(number))
            producer.flush(30)

    thread = threading.Thread(target=feed, daemon=True)
    thread.start()
    try:
        yield source
    finally:
        stopped.set()
        thread.join(60)


def _pipeline(spark: SparkSession, servers: str, source: str, folder: Path) -> Any:
    name = f"watched-{uuid.uuid4().hex[:6]}"
    Topics(servers).create(name, 2)
    people = ow.kafka_source(spark, bootstrap_servers=servers, topic=source)
    return (
        people.select("key", "value")
        .writeStream.option("checkpointLocation", str(folder / name))
        .trigger(processingTime=f"{TRIGGER_SECONDS} seconds")
        .foreachBatch(ow.KafkaSink(bootstrap_servers=servers, topic=name, pipeline_id=name))
        .start()
    )


def _turn(queries: list[Any], servers: str, seconds: float, *, watched: bool) -> WatchedTurn:
    watchers: list[subprocess.Popen[bytes]] = []
    metrics = ow.serve_metrics(0) if watched else None
    if metrics is not None:
        url = f"http://127.0.0.1:{metrics.port}/metrics"
        (port,) = free_ports(1)
        dashboard = ["-m", "onceward", "dashboard", "--bootstrap-servers", servers]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        watchers = [
            subprocess.Popen(
                [sys.executable, *arguments], env=environment, stderr=subprocess.DEVNULL
            )
            for arguments in (
                ["-c", _SCRAPE, url],
                [*dashboard, "--port", str(port), "--metrics", url],
            )
        ]
        # What it takes to start is not what it takes to watch
        time.sleep(10)
    seen = {query.id: query.lastProgress["batchId"] for query in queries}
    children = {process.pid for process in watchers}
    spark_before, watchers_before, began = _cpu(children), _of(children), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    spark, watching = _cpu(children) - spark_before, _of(children) - watchers_before
    if metrics is not None:
        metrics.stop()
    for process in watchers:
        process.terminate()
        process.wait(30)
    times = [
        progress["durationMs"]["triggerExecution"]
        for query in queries
        for progress in query.recentProgress
        if progress["batchId"] > seen[query.id] and progress["numInputRows"]
    ]
    return WatchedTurn(
        watched, 100 * spark / took, 100 * watching / took, len(times), statistics.median(times),
        statistics.quantiles(times, n=100)[98],
    )  # fmt: skip


def _cpu(watchers: set[int]) -> float:
    """CPU seconds of this process, its JVM and the workers below."""
    return _seconds(
        each
        for each in [psutil.Process(), *psutil.Process().children(recursive=True)]
        if each.pid not in watchers and not _is_broker(each)
    )


def _of(pids: set[int]) -> float:
    return _seconds(psutil.Process(pid) for pid in pids)


def _seconds(processes: Iterator[psutil.Process]) -> float:
    total = 0.0
    for each in processes:
        times = each.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def _is_broker(process: psutil.Process) -> bool:
    return any("kafka.Kafka" in word for word in process.cmdline())
