"""Run by ``test_state_on_two_executors``: a stateful query on two executors of one core. The
first attempt at batch 0 fails on one of them, the second is computed by the other one, and batch
1 comes back to the first. Prints what came out as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

import onceward as ow
from onceward import events
from onceward.errors import BatchFailed

FOLDER = Path(sys.argv[1])
STORE = "org.apache.spark.sql.execution.streaming.state." + sys.argv[2]
PIPELINE = "sessions"


def executor() -> str:
    """Return the process of the executor that a Python worker belongs to: its grandparent."""
    return Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]


def session_of(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Keep for each key what was drawn for it first."""
    for _ in frames:
        pass
    (drawn,) = state.get if state.exists else (str(uuid.uuid4()),)
    state.update((drawn,))
    (FOLDER / "who").write_text(executor())
    yield pd.DataFrame([{"k": key[0], "s": drawn}])


def occupied(who: str, seconds: float) -> Callable[[], None]:
    """Give one executor something else to do; return what waits for its end."""
    ready = FOLDER / f"busy-{time.monotonic_ns()}"

    def task(_: Any) -> list[int]:
        if executor() != who:
            time.sleep(0.3)
            return []
        ready.write_text("")
        time.sleep(seconds)
        return []

    def until_there() -> None:
        while not ready.exists():
            spark.sparkContext.parallelize([0], 1).mapPartitions(task).collect()

    thread = threading.Thread(target=until_there, daemon=True)
    thread.start()
    while not ready.exists():
        time.sleep(0.05)
    return thread.join


def fail_behind_all_tasks(event: events.Event) -> None:
    if event.phase == "finished" and event.step in (events.SEND, events.CHECK, events.MOVE):
        stop_failing[0]()
        computed_by.append((FOLDER / "who").read_text())
        waits.append(occupied(computed_by[0], 10))
        raise BatchFailed("made to fail behind all tasks", next_step="none")


def put(number: int) -> None:
    (FOLDER / "in" / f"{number}.txt").write_text("a\nb\n")


def start() -> Any:
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(FOLDER / "in"))
    sessions = rows.groupBy("value").applyInPandasWithState(
        session_of, "k string, s string", "s string", "update", "NoTimeout"
    )
    sink = ow.FileSink(path=FOLDER / "out", pipeline_id=PIPELINE, format="json")
    writer = sessions.writeStream.outputMode("update").foreachBatch(sink)
    return writer.option("checkpointLocation", str(FOLDER / "checkpoint")).start()


spark = (
    SparkSession.builder.master("local-cluster[2,1,1200]")
    .config("spark.ui.enabled", "false")
    .config("spark.executor.memory", "1g")
    .config("spark.scheduler.mode", "FAIR")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.locality.wait", "0s")
    .config("spark.sql.streaming.stateStore.providerClass", STORE)
    .getOrCreate()
)
computed_by: list[str] = []
waits: list[Callable[[], None]] = []
(FOLDER / "in").mkdir()
stop_failing = [events.probe(fail_behind_all_tasks)]
query = start()
put(0)
query.processAllAvailable()
computed_by.append((FOLDER / "who").read_text())
waits[0]()
wait = occupied(computed_by[1], 10)
put(1)
error: Exception | None = None
try:
    ow.wait(query, timeout_s=120)
except ow.OncewardError as raised:
    error = raised
query = start()
put(2)
query.processAllAvailable()
query.stop()
wait()
found: dict[str, list[str]] = {}
for row in ow.read_files(spark, FOLDER / "out").collect():
    found.setdefault(row.k, []).append(row.s)
sys.stdout.write(
    json.dumps({"by": computed_by, "error": type(error).__name__, "found": found}) + "\n"
)
sys.stdout.flush()
spark.stop()
