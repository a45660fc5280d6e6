"""One job, started in the ways that users start it, in an empty folder and outside of an activated
environment.

Each is a process of its own: what is tested is what a Spark session is started with.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest

from onceward.spark.session.connector import connector_to_name
from onceward_testing import LocalKafka, read_topic

JOB = """
import sys, threading
import onceward as ow
from pyspark.sql import SparkSession, functions as F

servers, source, output, how = sys.argv[1:]
if how == "plain":
    spark = SparkSession.builder.getOrCreate()
else:
    spark = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
people = ow.kafka_source(spark, bootstrap_servers=servers, topic=source, starting="earliest")


@F.udf("string")
def upper(value):
    import time
    time.sleep(60 if how == "stop" and value == b"c" else 0)
    return bytes(value).decode().upper()


query = (
    people.select("key", upper("value").alias("value"))
    .writeStream.option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True)
    .foreachBatch(
        ow.KafkaSink(
            bootstrap_servers=servers, topic=output, pipeline_id="p-" + output,
            driver_records=0 if how == "stop" else 10_000,
        )
    )
    .start()
)
if how == "stop":
    tracker = spark.sparkContext.statusTracker()
    stages = lambda: [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    while query.isActive and not any(stage and stage.numActiveTasks for stage in stages()):
        threading.Event().wait(0.1)
    query.stop()
query.awaitTermination()
print("ended with", query.exception(), ow.error_of(query))
"""
JAVA_SETTINGS = {"SPARK_LOCAL_IP": "127.0.0.1"}

Start = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def records(kafka: LocalKafka, topic: Callable[..., str]) -> tuple[str, str, str]:
    """Servers, a source topic with three records, and an output topic."""
    from confluent_kafka import Producer

    source, output = topic(), topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in "abc":
        producer.produce(source, key=value, value=value)
    assert producer.flush(60) == 0
    return kafka.bootstrap_servers, source, output


@pytest.fixture
def run(tmp_path: Path, records: tuple[str, str, str]) -> Start:
    """`run(how, "words of a shell command", …)`: the job's file and arguments come last."""
    (tmp_path / "job.py").write_text(JOB)
    bin_folder = Path(sys.executable).parent
    variables = (
        "HOME",
        "JAVA_HOME",
        "LANG",
        "TMPDIR",
        "ONCEWARD_CACHE",
        "ONCEWARD_IVY_SETTINGS",
        "PYTHONPATH",
    )
    environment = {
        name: os.environ[name] for name in variables if name in os.environ
    } | JAVA_SETTINGS
    # Not the environment's folder: its python3 would be found, as if it were activated.
    environment["PATH"] = os.pathsep.join(
        part
        for part in os.environ["PATH"].split(os.pathsep)
        if Path(part).resolve() != bin_folder.resolve()
    )
    environment["PYSPARK_SUBMIT_ARGS"] = (
        "--driver-memory 512m --conf spark.ui.enabled=false pyspark-shell"
    )

    def start(how: str, command: str) -> subprocess.CompletedProcess[str]:
        words = " ".join(shlex.quote(word) for word in ("job.py", *records, how))
        line = command.format(
            bin=bin_folder, submit=Path(pyspark.__file__).parent / "bin" / "spark-submit"
        )
        return subprocess.run(
            ["bash", "-c", f"{line} {words}"],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200,
            check=False,
        )  # fmt: skip

    return start


def written(records: tuple[str, str, str]) -> list[bytes | None]:
    servers, _, output = records
    return sorted(record.value or b"" for record in read_topic(servers, output))


@pytest.mark.slow  # half a minute
def test_python_outside_its_environment(run: Start, records: tuple[str, str, str]):
    ran = run("conf", "{bin}/python")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "ended with None None" in ran.stdout
    assert written(records) == [b"A", b"B", b"C"]


@pytest.mark.parametrize(
    "line",
    [
        "{submit} $({bin}/onceward jars --submit)",
        'eval "{submit} $({bin}/onceward jars --submit --quoted)"',
    ],
)
def test_spark_submit_with_the_printed_options(
    run: Start, records: tuple[str, str, str], line: str
):
    ran = run("conf", line)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "ended with None None" in ran.stdout
    assert written(records) == [b"A", b"B", b"C"]


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("how", ["conf", "plain"])
def test_spark_submit_without_jars_says_how(run: Start, how: str):
    ran = run(how, "{submit} --conf spark.pyspark.driver.python={bin}/python")
    assert ran.returncode != 0
    said = ran.stdout + ran.stderr  # spark-submit prints on stdout what Python said on stderr
    assert "ConnectorMissing" in said
    assert f"--packages {connector_to_name(pyspark.__version__)}" in said
    assert "spark-submit $(onceward jars --submit) job.py" in said


@pytest.mark.lengthy("chaos")
def test_a_query_stopped_within_a_batch(run: Start, records: tuple[str, str, str]):
    ran = run("stop", "{bin}/python")
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "ended with None None" in ran.stdout
    assert "StackOverflowError" not in ran.stdout + ran.stderr
    assert written(records) == []


LOOP = """
import sys, time
from pathlib import Path
import onceward as ow
from pyspark.sql import SparkSession

servers, source, output, how = sys.argv[1:]
spark = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
people = ow.kafka_source(spark, bootstrap_servers=servers, topic=source, starting="earliest")
sink = ow.KafkaSink(bootstrap_servers=servers, topic=output, pipeline_id="p-" + output)


def each(frame, batch_id):
    sink(frame, batch_id)
    if not Path("failed").exists():
        Path("failed").touch()
        if how == "jvm":
            spark.sparkContext._gateway.proc.kill()
        raise RuntimeError("the disk is full for a moment")


rows = people.select("key", "value").writeStream.option("checkpointLocation", "checkpoint")
query = rows.trigger(availableNow=True).foreachBatch(each).start()
try:
    while query.isActive:
        time.sleep(0.2)
except Exception as error:
    print("who asks is not told:", type(error).__name__)
"""


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("how", ["function", "jvm"])
def test_a_job_whose_query_has_failed_behind_its_back_has_not_finished(
    run: Start, records: tuple[str, str, str], tmp_path: Path, how: str
) -> None:
    (tmp_path / "job.py").write_text(LOOP)
    done = run(how, "{bin}/onceward run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "It is started again" in done.stderr
    assert ("the disk is full" if how == "function" else "JVM is gone") in done.stderr
    assert written(records) == [b"a", b"b", b"c"]


ENDLESS = """
import sys, time
import onceward as ow
from pyspark.sql import SparkSession

servers, source, output, how = sys.argv[1:]
spark = SparkSession.builder.config(map=ow.spark_conf()).getOrCreate()
people = ow.kafka_source(spark, bootstrap_servers=servers, topic=source, starting="earliest")
sink = ow.KafkaSink(bootstrap_servers=servers, topic=output, pipeline_id="p-" + output)
while True:
    rows = people.select("key", "value").writeStream.option("checkpointLocation", "checkpoint")
    ow.wait(rows.trigger(availableNow=True).foreachBatch(sink).start())
    print("a round")
    time.sleep(0.5)
"""


@pytest.mark.lengthy("chaos")
def test_a_loop_of_queries_ends_when_it_is_told_to(
    run: Start, records: tuple[str, str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text(ENDLESS)
    done = run("", "timeout --preserve-status --kill-after 60 45 {bin}/onceward run")
    assert "a round" in done.stdout
    assert done.returncode == 0, done.stderr[-3000:]
    assert written(records) == [b"a", b"b", b"c"]
