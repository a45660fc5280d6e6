"""A job that carries the changes of MySQL's tables into a topic, until a file says that all is
written.

``python changes_job.py FOLDER '{"url": …, "tables": […], "servers": …, "topic": …, …}'``
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  as everybody writes it
from pyspark.sql.streaming.query import StreamingQuery
from text_file_jobs import session

import onceward as ow


def started(
    spark: SparkSession, folder: Path, said: dict[str, Any], sink: ow.KafkaSink
) -> StreamingQuery:
    changes = ow.mysql_changes(
        spark, url=said["url"], tables=said["tables"], **said.get("source", {})
    )
    table = F.concat_ws(".", "db", "table")
    value = F.to_json(F.struct("op", "db", "table", "before", "after"))
    return (
        changes.select(
            F.concat_ws("/", table, "key").alias("key"), value.alias("value"), "position"
        )
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )


def main(folder: Path, said: dict[str, Any]) -> None:
    spark, ended, queries = session(folder), threading.Event(), list[StreamingQuery]()
    sink = ow.KafkaSink(
        bootstrap_servers=said["servers"],
        topic=said["topic"],
        pipeline_id=said["topic"],
        order_by="position",
    )

    def start() -> StreamingQuery:
        queries.append(started(spark, folder, said, sink))
        return queries[-1]

    def end_when_complete() -> None:
        while not (folder / "complete").exists() or not queries or not queries[-1].isActive:
            time.sleep(0.1)
        queries[-1].processAllAvailable()
        ended.set()

    threading.Thread(target=end_when_complete, daemon=True).start()
    ow.supervise(
        start, ow.restart.FixedDelay(attempts=30, delay_s=2), stop=ended
    )  # the server is killed as well


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
