"""What a query has learnt of schema ids goes on to the next process by its checkpoint."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.avro_codec import write

JOB = """
import json, sys
import onceward as ow
from pyspark.sql import SparkSession
from support.memory_registry import MemoryRegistry

first, second = json.loads(sys.argv[1])
registry = MemoryRegistry()
registry.add("people-value", first, 1)
registry.add("com.example.Person", second, 5)
conf = {**ow.spark_conf(), "spark.master": "local[1]", "spark.ui.enabled": "false"}
spark = SparkSession.builder.config(map=conf).getOrCreate()
rows = ow.avro.decode(
    spark.readStream.text("in").selectExpr("unhex(value) AS value"),
    registry=registry, subject="people-value", **CHECKPOINT,
)
query = (
    rows.select("value.name").writeStream.option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True).foreachBatch(ow.FileSink(path="out", pipeline_id="p")).start()
)
try:
    ow.wait(query)
    print("names", sorted(row.name for row in ow.read_files(spark, "out").collect()))
except ow.OncewardError as error:
    print(error)
    sys.exit(ow.exit_status(error))
"""
TESTS = Path(__file__).parents[1]
NAME = {"name": "name", "type": "string"}
AGE = {"name": "age", "type": "int"}


def person(*fields: dict[str, str]) -> dict[str, Any]:
    return {"type": "record", "name": "Person", "fields": list(fields)}


def start(folder: Path, *schemas: Any, runner: bool = False) -> subprocess.CompletedProcess[str]:
    job = folder / "job.py"
    job.write_text(JOB.replace("CHECKPOINT", str({} if runner else {"checkpoint": "checkpoint"})))
    run = ["-m", "onceward", "run", "--restart", "fixed-delay", "--attempts", "1"]
    return subprocess.run(
        [sys.executable, *(run if runner else []), str(job), json.dumps(schemas)],
        cwd=folder,
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(TESTS)}, timeout=300,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def feed(folder: Path) -> tuple[Any, Any]:
    """Put a record of each of two schemas into the job's folder; return the schemas."""
    schemas = person(NAME), person(NAME, AGE)
    records = [
        b"\0" + struct.pack(">I", number) + write(schema, {"name": name, "age": 7})
        for number, schema, name in zip((1, 5), schemas, ("Ada", "Bo"), strict=True)
    ]
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("".join(f"{record.hex()}\n" for record in records))
    return schemas


@pytest.mark.lengthy("chaos")
def test_a_job_that_is_started_anew_by_something_else_goes_on(tmp_path: Path):
    """As by systemd, cron or Kubernetes: each start is a new process, with a memory of its
    own."""
    first, second = feed(tmp_path)
    failed = start(tmp_path, first, second)
    assert failed.returncode == 75, failed.stderr[-2000:]
    assert "schema ids that were not known" in failed.stdout
    assert "in another one: what was found out is beside the checkpoint" in failed.stdout
    again = start(tmp_path, first, second)
    assert again.returncode == 0, again.stdout + again.stderr[-2000:]
    assert "names ['Ada', 'Bo']" in again.stdout


@pytest.mark.lengthy("chaos")
def test_the_next_process_of_a_runner_knows_what_the_one_before_has_met(tmp_path: Path):
    done = start(tmp_path, *feed(tmp_path), runner=True)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "in the next one of this `onceward run`" in done.stdout
    assert "names ['Ada', 'Bo']" in done.stdout
