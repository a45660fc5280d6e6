"""A job with a sink of one's own, the one of the examples: text files in, files out. Killed by its own faults."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

import onceward as ow
from onceward.testing.faults import arm_from_environment

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import folder_sink
from pyspark import cloudpickle

cloudpickle.register_pickle_by_value(folder_sink)  # executors have no examples

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    arm_from_environment()
    spark = (
        SparkSession.builder.master("local[2]")
        .config(map=ow.spark_conf())
        .config("spark.ui.enabled", "false")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    sink = folder_sink.FolderSink(
        folder=folder / "out", pipeline_id="own-sink", ledger=ow.FolderLedger(folder / "ledger")
    )
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in")).repartition(2)
    query = (
        rows.writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
