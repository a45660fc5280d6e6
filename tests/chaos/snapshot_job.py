"""Run by ``test_state_on_two_executors``: an attempt at batch 2 of a stateful query fails behind its
tasks, and Spark writes the state that it has made into a snapshot before the next attempt, of this
run (``again``) or of the next start (``anew``). Prints, as JSON, how many drawings the keys have.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import SparkSession

import onceward as ow
from onceward import events
from onceward.errors import BatchFailed

FOLDER = Path(sys.argv[1])
ATTEMPTS = {"again": 3, "anew": 1}[sys.argv[2]]
SNAPSHOT = FOLDER / "checkpoint" / "state" / "0" / "0" / "3.snapshot"


def first_drawn(key: Any, frames: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Keep for each key what was drawn for it first."""
    for _ in frames:
        pass
    (drawn,) = state.get if state.exists else (str(uuid.uuid4()),)
    state.update((drawn,))
    yield pd.DataFrame([{"k": key[0], "s": drawn}])


def fail_once_state_is_full(event: events.Event) -> None:
    if event.phase == "finished" and event.step in (events.SEND, events.CHECK, events.MOVE):
        stop_failing[0]()
        ends = time.monotonic() + 60
        while not SNAPSHOT.exists() and time.monotonic() < ends:
            time.sleep(0.05)
        kept.append(SNAPSHOT.exists())
        raise BatchFailed("made to fail behind all tasks", next_step="none")


def run(number: int) -> None:
    """Give the query one file, and run it until that is written."""
    (FOLDER / "in" / f"{number}.txt").write_text("aabab"[number] + "\n")
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(FOLDER / "in"))
    drawn = rows.groupBy("value").applyInPandasWithState(
        first_drawn, "k string, s string", "s string", "update", "NoTimeout"
    )
    sink = ow.FileSink(
        path=FOLDER / "out", pipeline_id="drawn", format="json", batch_attempts=ATTEMPTS
    )
    writer = drawn.writeStream.outputMode("update").foreachBatch(sink).trigger(availableNow=True)
    ow.wait(writer.option("checkpointLocation", str(FOLDER / "checkpoint")).start(), timeout_s=120)


state = "spark.sql.streaming.stateStore"
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1")
    .config(f"{state}.maintenanceInterval", "200ms")
    .config(f"{state}.minDeltasForSnapshot", "2")
    .getOrCreate()
)
kept: list[bool] = []
(FOLDER / "in").mkdir()
run(0)
run(1)
stop_failing = [events.probe(fail_once_state_is_full)]
with suppress(BatchFailed):
    run(2)
run(3)
run(4)
found: dict[str, set[str]] = {}
for row in ow.read_files(spark, FOLDER / "out").collect():
    found.setdefault(row.k, set()).add(row.s)
drawn = {key: len(values) for key, values in found.items()}
sys.stdout.write(json.dumps({"kept": kept, "drawn": drawn}) + "\n")
sys.stdout.flush()
spark.stop()
