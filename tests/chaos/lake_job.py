"""A job from text files into a table of a lake. Killed by its own faults, or right after the
table's commit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from text_file_jobs import to_the_end

import onceward as ow
from onceward.spark.tables.delta_table import DeltaTransaction
from onceward.spark.tables.iceberg_table import IcebergTable
from onceward_testing.faults import arm_from_environment
from support.lake_packages import LAKE_PACKAGES

DIE_BEHIND = "die-behind-commit"
"""A file in the job's folder that says behind which commit of the table, from 0, the job kills
itself.
"""

SEEN = "seen.json"
"""What a life of the job that only reads has found."""

ICEBERG = "lake.db.lines"


def main(folder: Path, form: str, task: str) -> None:
    spark = session(folder)
    path = str(folder / "table")
    if task == "read":
        seen = spark.read.format("delta").load(path) if form == "delta" else spark.table(ICEBERG)
        (folder / SEEN).write_text(json.dumps([row["value"] for row in seen.collect()]))
        return
    if form == "delta":
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS delta.`{path}` (value string, length int) USING delta"
        )
    else:
        spark.sql(
            f"CREATE TABLE IF NOT EXISTS {ICEBERG} (value string, length int) USING iceberg "
            "PARTITIONED BY (length) TBLPROPERTIES ('write.wap.enabled'='true')"
        )
    if (folder / DIE_BEHIND).exists():
        die_behind(int((folder / DIE_BEHIND).read_text()))
        (folder / DIE_BEHIND).unlink()
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "in")).repartition(2)
    to_the_end(rows.selectExpr("value", "length(value) AS length"), folder, sink_of(form, folder))


def sink_of(form: str, folder: Path) -> Any:
    ledger = ow.FolderLedger(folder / "ledger")
    if form == "delta":
        return ow.DeltaSink(path=folder / "table", pipeline_id="lines", ledger=ledger)
    return ow.IcebergSink(table=ICEBERG, pipeline_id="lines", ledger=ledger)


def session(folder: Path) -> SparkSession:
    """As users of these formats have it."""
    arm_from_environment()
    return (
        SparkSession.builder.master("local[2]")
        .config(map=ow.spark_conf(*LAKE_PACKAGES))
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.databricks.delta.snapshotPartitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        )
        .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.lake.type", "hadoop")
        .config("spark.sql.catalog.lake.warehouse", str(folder / "lake"))
        .getOrCreate()
    )


def die_behind(number: int) -> None:
    """Whatever commits to the table, behind commit ``number``."""
    committed = [0]

    def dying(method: Any) -> Any:
        def one(*arguments: Any) -> Any:
            answer = method(*arguments)
            if committed[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
            committed[0] += 1
            return answer

        return one

    DeltaTransaction.commit = dying(DeltaTransaction.commit)  # type: ignore[method-assign]
    IcebergTable.publish = dying(IcebergTable.publish)  # type: ignore[method-assign]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
