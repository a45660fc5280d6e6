"""``onceward plan``: what it says before a start is what the start does, and it touches nothing."""

from __future__ import annotations

import hashlib
import runpy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from streaming_pipeline import Pipeline
from topic_operations import add_partitions
from typer.testing import CliRunner

from onceward import error_of, events
from onceward.cli import app
from onceward.errors import BatchNotWritten, SendFailed, UnsupportedQuery
from onceward.kafka.wire.client import KafkaClient
from onceward.kafka.wire.deadline import Deadline
from onceward.kafka.wire.options.settings import settings_from_options
from onceward.kafka.wire.transactions.coordinator import TransactionCoordinator
from onceward.operate.plan import _checkpoint
from onceward.operate.plan_queries import Definition, for_good
from onceward_testing.topic_reader import end_offsets

JOB = """
import sys
import onceward as ow
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
servers, source, output, ledger, name, checkpoint, change = sys.argv[1:]
people = ow.kafka_source(
    spark, bootstrap_servers=servers, topic=source.split(","), starting="earliest",
    max_offsets_per_trigger=40,
)
column = "length(CAST(key AS STRING)) AS key" if change == "key" else "key"
rows = people.selectExpr(column, "value", "length(value) AS count")
if change == "more":
    rows = rows.dropDuplicates(["key"])
if change == "value":
    rows = rows.groupBy("key").agg({"value": "max"}).withColumnRenamed("max(value)", "count")
elif change != "less":
    rows = rows.groupBy("key").count()
rows = rows.selectExpr("CAST(CAST(key AS STRING) AS BINARY) AS key", "CAST(count AS STRING) AS value")
sink = ow.KafkaSink(
    bootstrap_servers=servers, topic=output, pipeline_id=name, ledger_topic=ledger
)

def start():
    writer = rows.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
    if change == "available":
        writer = writer.trigger(availableNow=True)
    return writer.foreachBatch(lambda frame, batch_id: sink(frame, batch_id)).start()

if WAITS:
    ow.wait(start())
else:
    ow.supervise(start)
raise AssertionError("the job went on")
"""


SEVERAL = """
import sys
import onceward as ow
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
servers, source, output, ledger, name, checkpoint, other = sys.argv[1:]

def begin(topic, pipeline_id, folder):
    frame = ow.kafka_source(spark, bootstrap_servers=servers, topic=topic, starting="earliest")
    sink = ow.KafkaSink(
        bootstrap_servers=servers, topic=output, pipeline_id=pipeline_id, ledger_topic=ledger
    )
    writer = frame.select("key", "value").writeStream.foreachBatch(sink)
    return frame, writer.option("checkpointLocation", folder).start()

frame, first = begin(source, name, checkpoint)
table = frame.writeStream.option("checkpointLocation", checkpoint + "-table").toTable("copies")
print(first.name, first.id, first.runId, first.status, first.lastProgress, first.exception())
_, second = begin(other, name + "-other", checkpoint + "-other")
LOOP
raise AssertionError("the job went on")
"""

FILES = """
import sys
import onceward as ow
from pathlib import Path
from pyspark.sql import SparkSession

folder, change = Path(sys.argv[-2]).parent, sys.argv[-1]
cleaning = {"cleanSource": "delete", "maxFilesPerTrigger": "1"}
reader = SparkSession.builder.getOrCreate().readStream
if change == "option":
    frame = reader.option("cleanSource", "delete").option("maxFilesPerTrigger", 1).text(f"{folder}/in")
elif change == "options":
    frame = reader.options(**cleaning).text(f"{folder}/in")
else:
    frame = reader.load(f"{folder}/in", "text", **cleaning)
sink = ow.FileSink(
    path=f"{folder}/out", pipeline_id="p", format="text", ledger=ow.FolderLedger(folder / "ledger")
)
writer = frame.writeStream.option("checkpointLocation", f"{folder}/files")
ow.wait(writer.foreachBatch(sink).trigger(availableNow=True).start())
"""

ASKS = """
while first.isActive and table.isActive and second.isActive:
    pass
"""

SLEEPS = """
import time
while True:
    try:
        time.sleep(3600)
    except Exception as error:
        print(error)
"""
PASSES_OVER_ONE = """
import time
try:
    time.sleep(3600)
except BaseException:
    time.sleep(3600)
"""


def counts(frame: DataFrame) -> DataFrame:
    return (
        frame.groupBy("key").count()
        .selectExpr("CAST(CAST(key AS STRING) AS BINARY) AS key", "CAST(count AS STRING) AS value")
    )  # fmt: skip


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def plan(pipeline: Pipeline, tmp_path: Path) -> Callable[..., Any]:
    job = tmp_path / "job.py"

    def run(
        change: str = "none",
        *,
        sources: str = "",
        waits: bool = True,
        source: str = JOB,
        loop: str = ASKS,
        timeout: float = 120,
    ) -> Any:
        job.write_text(source.replace("WAITS", str(waits)).replace("LOOP", loop))
        places = [pipeline.ledger_topic, pipeline.name, str(pipeline.checkpoint)]
        arguments = [pipeline.bootstrap, sources or pipeline.source, pipeline.output, *places]
        options = ["--timeout", str(timeout)]
        with for_good:
            return CliRunner().invoke(app, ["plan", *options, str(job), *arguments, change])

    return run


@pytest.mark.lengthy("ci")
def test_it_says_what_the_start_will_do_and_touches_nothing(
    pipeline: Pipeline, plan: Callable[..., Any]
) -> None:
    def facts() -> Any:
        client = KafkaClient(settings_from_options(pipeline.bootstrap, {}, client_id="test")[0])
        try:
            owner = TransactionCoordinator(client, pipeline.name).describe(Deadline(20_000))
        finally:
            client.close()
        topics = (pipeline.output, pipeline.ledger_topic)
        ends = [end_offsets(pipeline.bootstrap, topic, "read_uncommitted") for topic in topics]
        return contents(pipeline.checkpoint), owner, ends

    new = plan()
    assert new.exit_code == 0, new.output
    assert "start: a new pipeline: batch 0" in new.output
    pipeline.feed(60)
    new = plan(waits=False)
    assert "start: a new pipeline: batch 0" in new.output
    assert f"{pipeline.source}; the first batch reads 40 offsets" in new.output
    assert not pipeline.checkpoint.exists()

    pipeline.run(counts, mode="update")
    before = facts()
    done = plan()
    assert done.exit_code == 0, done.output
    assert "start: batch 2 is next, once there is something to read" in done.output
    assert "state: stateStoreSave in " in done.output
    assert "Spark finds that it fits" in done.output
    pipeline.feed(20)
    again = plan()
    assert again.exit_code == 0, again.output
    assert "start: batch 2 is next, behind batch 1 of the ledger" in again.output
    assert "the first batch reads 20 offsets" in again.output
    changed = plan("key")
    assert changed.exit_code == 78, changed.output
    assert "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE" in changed.output
    other = pipeline.topic(1, prefix="other")
    more = plan(sources=f"{pipeline.source},{other}")
    assert more.exit_code == 2, more.output
    assert f"new topics: {other}" in more.output
    assert facts() == before

    assert pipeline.forget_commit() == 1
    replay = plan()
    assert replay.exit_code == 0, replay.output
    assert "batch 1 runs again and is committed already: nothing is written" in replay.output
    pipeline.checkpoint.rename(pipeline.checkpoint.with_name("gone"))
    lost = plan()
    assert lost.exit_code == 78, lost.output
    assert "CheckpointReplaced" in lost.output
    assert facts()[1:] == before[1:]

    pipeline.checkpoint.with_name("gone").rename(pipeline.checkpoint)
    admin = AdminClient({"bootstrap.servers": pipeline.bootstrap})
    place = TopicPartition(pipeline.source, 0, 25)
    admin.delete_records([place])[place].result(60)
    expired = plan()
    assert expired.exit_code == 2, expired.output
    assert "5 offsets have expired before they were read" in expired.output


def test_a_start_is_planned_by_the_jobs_own_trigger(
    pipeline: Pipeline, plan: Callable[..., Any], at_step: Any
) -> None:
    """With availableNow, and only so, Spark's source refuses partitions that came in mid-batch."""
    pipeline.feed(20)
    pipeline.run(counts, mode="update")
    pipeline.feed(20)
    at_step(events.PLAN, "started", SendFailed("the driver dies in the second batch"))
    pipeline.failing_run(counts, mode="update", batch_attempts=1)
    add_partitions(pipeline, pipeline.source, 4)
    done = plan()
    assert done.exit_code == 0, done.output
    assert "batch 1 runs again, with the offsets that were logged" in done.output
    if pipeline.spark.version < "4.1":  # whose connector runs it with availableNow, too
        refused = plan("available")
        assert refused.exit_code == 78, refused.output
        assert "PartitionsAdded" in refused.output


def test_state_that_does_not_fit_is_found_where_there_is_nothing_to_read(
    pipeline: Pipeline, plan: Callable[..., Any]
) -> None:
    pipeline.feed(20)
    pipeline.run(counts, mode="update")
    same = plan()
    assert same.exit_code == 0, same.output
    assert "Spark finds that it fits" in same.output
    for change, words in (
        ("key", "STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE"),
        ("value", "STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE"),
        ("more", "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
        ("less", "STREAMING_STATEFUL_OPERATOR_NOT_MATCH_IN_STATE_METADATA"),
    ):
        done = plan(change)
        assert done.exit_code == 78, done.output
        assert words in done.output


@pytest.mark.lengthy("chaos")
def test_each_query_of_a_job_has_a_plan_of_its_own(
    pipeline: Pipeline, plan: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that writes by Spark alone, which is not looked at, and one whose topic is gone,
    which is refused and does not keep the others from being looked at.
    """
    other = pipeline.topic(1, prefix="other")
    pipeline.feed(20)
    both = plan(other, source=SEVERAL)
    assert both.exit_code == 0, both.output
    parts = [
        f"{pipeline.name} (",
        f"a query ({pipeline.checkpoint}-table",
        f"{pipeline.name}-other (",
    ]
    places = [both.output.index(part) for part in parts]
    assert places == sorted(places), both.output
    assert "start: a new pipeline: batch 0" in both.output[: places[1]]
    assert "no sink of Onceward" in both.output[places[1] : places[2]]
    assert "the first batch reads 0 offsets" in both.output[places[2] :]
    assert not list(pipeline.checkpoint.parent.glob(f"{pipeline.checkpoint.name}*"))
    for loop in (SLEEPS, PASSES_OVER_ONE):
        sleeps = plan(other, source=SEVERAL, loop=loop, timeout=2)
        assert sleeps.exit_code == 0, sleeps.output
        assert [part in sleeps.output for part in parts] == [True] * 3
        assert "ran on for 2 s without defining a query" in caplog.text
        caplog.clear()
    late = plan(other, source=f"{SLEEPS}{SEVERAL}", timeout=1)
    assert late.exit_code == 64, late.output
    assert "no query within 1 s" in late.output
    ended = plan(other, source=SEVERAL, loop="sys.exit(2)")
    assert ended.exit_code == 64, ended.output
    assert "ended itself before all its queries were defined: 2" in ended.output
    none = plan(other, source="import sys\nsys.exit()")
    assert none.exit_code == 64, none.output
    assert "no streaming query" in none.output
    gone = plan("gone", source=SEVERAL)
    assert gone.exit_code == 78, gone.output
    assert gone.output.count("refused") == 1, gone.output
    assert "start: a new pipeline: batch 0" in gone.output


def test_a_batch_that_lacks_rows_is_named_with_the_files_of_the_jobs_own_checkpoint(
    pipeline: Pipeline, plan: Callable[..., Any]
) -> None:
    sink = pipeline.sink()

    def function(frame: DataFrame, batch_id: int) -> None:
        sink(frame.where("partition = 0"), batch_id)
        with suppress(UnsupportedQuery):
            sink(frame.where("partition > 0"), batch_id)

    pipeline.feed(20)
    query = pipeline.start(lambda rows: rows.select("key", "value", "partition"), sink=function)
    pipeline.ended(query)
    pipeline.feed(20)
    done = plan("less")
    assert done.exit_code == 78, done.output
    assert "BatchNotWritten" in done.output
    assert f"move away from {pipeline.checkpoint} " in done.output
    refused = pipeline.failing_run(lambda rows: rows.select("key", "value"))
    assert isinstance(error_of(refused), BatchNotWritten)


@pytest.mark.parametrize("way", ["session", "context"])
def test_a_checkpoint_without_a_scheme_is_where_spark_looks_for_it(
    spark: SparkSession, way: str
) -> None:
    """On Hadoop's default file system, by the session's settings (spark.conf.set) over the
    context's. No name node has to answer for that.
    """
    definition = Definition(spark.range(1), {"checkpointlocation": "/orders"})
    assert _checkpoint(definition) == "/orders"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    default = hadoop.get("fs.defaultFS")
    (hadoop if way == "context" else spark.conf).set("fs.defaultFS", "hdfs://127.0.0.1:1")
    try:
        assert _checkpoint(definition) == "hdfs://127.0.0.1:1/orders"
        local = replace(definition, options={"checkpointlocation": "file:/orders"})
        assert _checkpoint(local) == "file:/orders"
    finally:
        spark.conf.unset("fs.defaultFS")
        hadoop.set("fs.defaultFS", default)


@pytest.mark.lengthy("ci")
def test_a_look_deletes_no_files_of_a_source(
    pipeline: Pipeline, plan: Callable[..., Any], tmp_path: Path
) -> None:
    """Spark cleans up behind the last batch when it plans the next."""
    folder = pipeline.checkpoint.parent
    (folder / "in").mkdir()
    (folder / "in" / "a.txt").write_text("a\n")
    job = tmp_path / "files.py"
    job.write_text(FILES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["files.py", str(pipeline.checkpoint), "option"])
        runpy.run_path(str(job))
    (folder / "in" / "b.txt").write_text("b\n")
    (tmp_path / "job.py").write_text(FILES)
    before = contents(folder)
    for way in ("option", "options", "load"):
        looked = plan(way, source=FILES)
        assert looked.exit_code == 0, looked.output
        assert contents(folder) == before, way
    # Nor is it "as before" where the start would be refused: other files under the same number
    for name in ("offsets", "commits", "sources/0"):
        for file in (folder / "files" / name).glob("*0*"):
            file.unlink()
    (folder / "in" / "a.txt").unlink()
    refused = plan("option", source=FILES)
    assert refused.exit_code == 78, refused.output
    assert "CheckpointRewound" in refused.output
