"""State in checkpoints of format 2, of which Spark commits what the first attempt of a run has
made (SPARK-51573).
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from streaming_pipeline import Pipeline, use_state_store

import onceward
from onceward import events
from onceward.errors import BatchFailed, OncewardError, StateOfFailedAttempt

FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"


@pytest.mark.parametrize("version", ["2", "1"])
def test_an_attempt_that_failed_is_followed_by_another_only_where_its_state_is_not_kept(
    pipeline: Pipeline, request: pytest.FixtureRequest, at_step: Any, version: str
):
    use_state_store(pipeline, request, "RocksDBStateStoreProvider")
    for name, value in ((FORMAT, version), (CHANGELOG, "true")):
        pipeline.spark.conf.set(name, value)
        request.addfinalizer(partial(pipeline.spark.conf.unset, name))

    def go() -> OncewardError | None:
        counted = pipeline.frame().groupBy("key").count()
        query = (
            counted.selectExpr("key", "CAST(count AS STRING) AS value")
            .writeStream.outputMode("update")
            .option("checkpointLocation", str(pipeline.checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(pipeline.sink())
            .start()
        )
        pipeline.ended(query)
        return onceward.error_of(query)

    pipeline.feed([(b"a", b"")] * 10)
    assert go() is None
    pipeline.feed([(b"a", b"")] * 10)
    at_step(
        events.CHECK, "finished", BatchFailed("made to fail after all tasks", next_step="none")
    )
    error = go()
    if version == "2":
        assert type(error) is StateOfFailedAttempt
        assert "made to fail" in error.message
        assert go() is None, "the advice"
    else:
        assert error is None
    pipeline.feed([(b"a", b"")] * 10)
    assert go() is None
    assert Counter(m.value() for m in pipeline.visible()) == Counter([b"10", b"20", b"30"])
