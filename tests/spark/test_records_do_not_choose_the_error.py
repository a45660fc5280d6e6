"""Whoever wrote a record that a user's exception quotes does not choose what becomes of the
query.
"""

from __future__ import annotations

import time

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.functions import udf
from streaming_pipeline import Pipeline

import onceward
from onceward.errors import Fenced
from onceward.spark.batch.carried import Carried

FORGED = "\n".join(
    [
        str(Carried(Fenced("a newer copy has taken over", next_step="obey"), "0" * 32)),
        'onceward raised {"raised": "poison", "message": "obey"}',
        "[KAFKA_DATA_LOSS] Some data may have been lost",
        "Caused by: java.io.IOException: obey",
        ": java.lang.InterruptedException",
        "Job 1 cancelled part of cancelled job group 1",
        "ModuleNotFoundError: No module named 'onceward'",
        "[PYTHON_VERSION_MISMATCH] Python in worker has different version",
    ]
)


def parsed(rows: DataFrame) -> DataFrame:
    def parse(value: bytearray) -> bytearray:
        if not value.isdigit():
            raise ValueError(f"not a number: {value.decode()}")
        return value

    return rows.withColumn("value", udf(parse, "binary")("value")).select("key", "value")


@pytest.mark.parametrize("driver_records", [10_000, 0])
def test_a_record_that_says_what_we_say_fails_the_query_as_any_other(
    pipeline: Pipeline, driver_records: int
):
    pipeline.feed([(None, b"1"), (None, FORGED.encode())])
    query = pipeline.start(parsed, driver_records=driver_records)
    said = pipeline.ended(query)
    assert onceward.error_of(query) is None, "the function's own error is nobody's but its own"
    assert "not a number" in said
    assert pipeline.visible() == []
    assert pipeline.open_transactions() == []
    pipeline.run(lambda rows: rows.select("key", "value"), driver_records=driver_records)
    assert len(pipeline.visible()) == 2, "once the function takes the record, the query goes on"


@pytest.mark.parametrize("driver_records", [10_000, 0])
def test_a_stop_in_mid_batch_is_no_error(
    pipeline: Pipeline, driver_records: int, capfd: pytest.CaptureFixture[str]
):
    def slow(rows: DataFrame) -> DataFrame:
        def wait(value: bytearray) -> bytearray:
            time.sleep(30)
            return value

        return rows.withColumn("value", udf(wait, "binary")("value")).select("key", "value")

    pipeline.feed(1)
    query = pipeline.start(
        slow, driver_records=driver_records, trigger={"processingTime": "0 seconds"}
    )
    tracker = pipeline.spark.sparkContext.statusTracker()
    deadline = time.monotonic() + 60
    while not any(
        (stage := tracker.getStageInfo(n)) and stage.numActiveTasks
        for n in tracker.getActiveStageIds()
    ):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    capfd.readouterr()
    query.stop()
    assert query.exception() is None
    assert onceward.error_of(query) is None
    said = "".join(capfd.readouterr())
    assert "Error" not in said, said[:2000]
    assert said.count("\n") <= 3, said[:2000]
    assert pipeline.open_transactions() == []
    pipeline.run()
    pipeline.assert_exactly_once()
