"""What Spark's log of offsets says of earlier batches, in both of its formats. Spark 4.0 and 4.1
have one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from onceward.spark.batch.query import History, query_by_id

FORMAT = "spark.sql.streaming.offsetLog.formatVersion"


def logged(checkpoint: Path, batch_id: int) -> list[Any]:
    """The offsets in Spark's file, in the order of the sources."""
    version, _, *lines = (checkpoint / "offsets" / str(batch_id)).read_text().splitlines()
    if version == "v2":
        named = dict(line.split(":", 1) for line in lines)
        lines = [named[str(index)] for index in range(len(named))]
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("version", ["2", "1"])
def test_the_ends_of_a_batch_are_those_that_spark_has_logged(
    spark: SparkSession, tmp_path: Path, version: str
):
    session = spark.newSession()
    session.conf.set(FORMAT, version)
    found: dict[int, tuple[Any, ...] | None] = {}

    def look(frame: DataFrame, batch_id: int) -> None:
        history = History(query_by_id(frame))
        found[batch_id] = history.ends(batch_id - 1) if batch_id else history.ends(batch_id)
        assert history.ends(batch_id + 1) is None

    def rows(number: int) -> DataFrame:
        return session.readStream.format("rate-micro-batch").option("rowsPerBatch", number).load()

    query = (
        rows(5).union(rows(7)).writeStream.option("checkpointLocation",
        str(tmp_path)).foreachBatch(look).start()
    )  # fmt: skip
    try:
        while 2 not in found:
            assert not query.awaitTermination(1), query.exception()
    finally:
        query.stop()
    ends = [tuple(logged(tmp_path, batch_id)) for batch_id in (0, 1)]
    assert [offset["offset"] for offset in ends[1]] == [10, 14]
    assert [found[0], found[1], found[2]] == [ends[0], ends[0], ends[1]]
