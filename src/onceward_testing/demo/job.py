"""The job's process: ``python -m onceward_testing.demo.job '<JobSettings as JSON>'``. Started,
killed and started again by :mod:`onceward_testing.demo.job_lives`.

It starts Spark, arms the fault points that its environment names, starts the ETL, tells its
supervisor on stdout what the engine does, and stops on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward import events
from onceward.spark.session.settings import spark_conf
from onceward_testing import faults
from onceward_testing.demo import etl
from onceward_testing.demo.changes import etl as changes_etl
from onceward_testing.demo.job_news import tell, tell_step
from onceward_testing.demo.lifeline import die_with_the_demo
from onceward_testing.demo.settings import JobSettings

# a life of the job is short: the big compiler never pays
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def main(settings: JobSettings) -> int:
    """Run until SIGTERM (status 0) or until the query fails (status 1)."""
    die_with_the_demo()
    stop = threading.Event()

    def on_term(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_term)
    spark = _session(settings)
    events.probe(
        tell_step
    )  # before the faults: the supervisor shall hear of a step before it kills us
    faults.arm_from_environment()
    start = _start_of(settings)
    starts = 0

    def started() -> StreamingQuery:
        nonlocal starts
        starts += 1
        query = start(spark, settings)
        tell("running" if starts == 1 else "started again")
        return query

    try:
        # Not for failures: a schema that was registered while the query ran is known to its next
        # start.
        ow.supervise(started, ow.NoRestart(), stop=stop)
    except Exception as failure:  # noqa: BLE001  whatever it is, the supervisor shows it
        traceback.print_exc()
        tell("failed", error=str(failure)[:2_000])
        return 1
    spark.stop()
    return 0


def _start_of(settings: JobSettings) -> Callable[[SparkSession, JobSettings], StreamingQuery]:
    if settings.source == "mysql":
        return changes_etl.start
    return (
        etl.start_exactly_once if settings.delivery == "exactly_once" else etl.start_at_least_once
    )


def _session(settings: JobSettings) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(_spark_home(Path(settings.folder)))
    spark = (
        SparkSession.builder.master(settings.master)
        .appName("onceward-demo")
        .config(map={**spark_conf()})
        .config("spark.local.dir", str(Path(settings.folder) / "spark"))
        .config("spark.sql.warehouse.dir", str(Path(settings.folder) / "warehouse"))
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", _QUICK_START)
        .config("spark.executor.extraJavaOptions", _QUICK_START)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    return spark


def _spark_home(folder: Path) -> Path:
    """PySpark's own folder under another name: ``local-cluster`` writes its executors' files below
    ``SPARK_HOME``.
    """
    home = folder / "spark-home"
    if not home.exists():  # the first life makes it for all
        home.mkdir()
        for name in ("bin", "jars", "python", "sbin"):
            (home / name).symlink_to(Path(pyspark.__file__).parent / name)
    return home


if __name__ == "__main__":
    sys.exit(main(JobSettings.from_json(sys.argv[1])))
