"""The job's process: ``python -m onceward_testing.demo.job '<DemoJobSettings as JSON>'``.

Started, killed and started again by :mod:`onceward_testing.demo.supervisor`. It starts Spark, arms
the fault points that its environment names, starts the query, tells its supervisor what the engine
does, and stops on SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward as ow
from onceward import events
from onceward.spark.session.settings import spark_conf
from onceward_testing import faults
from onceward_testing.demo.changes.query import start_changes
from onceward_testing.demo.settings import DemoJobSettings
from onceward_testing.demo.windows.query import start_windows
from onceward_testing.job_messages import MessageWriter

# A run of the job is short: the big compiler never pays.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_STEPS = frozenset(
    {
        events.OPEN,
        events.REPLAY,
        events.SEND,
        events.LEASE,
        events.LEDGER,
        events.COMMIT,
        events.ABORT,
    }
)


def main(settings: DemoJobSettings) -> int:
    """Run until SIGTERM (status 0) or until the query fails (status 1)."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    messages = MessageWriter(settings.messages)
    spark = _session(settings)
    # Before the faults: the supervisor shall hear of a step before it kills us.
    events.probe(lambda event: tell_step(messages, event))
    faults.arm_from_environment()
    start = start_changes if settings.source == "mysql" else start_windows
    starts = 0

    def start_query() -> StreamingQuery:
        nonlocal starts
        starts += 1
        query = start(spark, settings)
        messages.tell("running" if starts == 1 else "started again")
        return query

    try:
        # Not for failures: a schema that was registered while the query ran is known to its next
        # start.
        ow.supervise(start_query, ow.restart.NoRestart(), stop=stop)
    except Exception:  # noqa: BLE001  whatever it is, the supervisor shows the log
        traceback.print_exc()
        return 1
    spark.stop()
    return 0


def tell_step(messages: MessageWriter, event: events.Event) -> None:
    """Write one step of the engine: its name, its phase, and the ids that JSON can hold."""
    if event.step in _STEPS:
        ids = {name: value for name, value in event.ids.items() if isinstance(value, int | str)}
        messages.tell("step", **{**ids, "step": event.step, "phase": event.phase})


def _session(settings: DemoJobSettings) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
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


if __name__ == "__main__":
    sys.exit(main(DemoJobSettings.from_json(sys.argv[1])))
