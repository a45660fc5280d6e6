"""Queries that keep state, for a contender to copy a topic through. Loaded by its path, by
:mod:`job`, and so it imports nothing but PySpark and pandas.

Event times are made of the records' numbers, so that each run has the same. What is counted comes
out as two numbers of eight bytes, big-endian: what is counted, and how many so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.shuffle.partitions": "4",
}

_NUMBER = "CAST(conv(hex(substring(value, 1, 8)), 16, 10) AS BIGINT)"
_MIDNIGHT = 1_699_920_000  # at 0 it would be late: a watermark begins there
_VISIT_SECONDS, _VISITS, _PAUSE_SECONDS, _GAP_MS = 10, 5, 60, 30_000


def through(rows: DataFrame, kind: str, keys: int) -> tuple[DataFrame, str]:
    """Return what comes of ``rows``, of Kafka's columns, and the output mode.

    :param kind: ``windows``: a count by key and window of a day; ``sessions``: a count by session
        of a key, five visits and then a pause, by ``transformWithStateInPandas`` with a timer for
        each; ``join``: each record with itself, read a second time.
    :param keys: how many there are.
    """
    if kind == "join":
        joined = rows.alias("one").join(rows.alias("other"), "value")
        return joined.select("one.key", "value"), "append"
    numbered = rows.selectExpr(f"{_NUMBER} AS number").selectExpr(
        "number",
        f"number % {keys} AS id",
        f"timestamp_seconds({_MIDNIGHT} + number div {keys} * {_VISIT_SECONDS} "
        f"+ number div {keys * _VISITS} * {_PAUSE_SECONDS}) AS at",
    )
    if kind == "windows":
        counted = numbered.groupBy("id", functions.window("at", "1 day")).count()
        return _counts(counted, "id"), "update"
    sessions = numbered.withWatermark("at", "10 minutes").groupBy("id")
    counted = sessions.transformWithStateInPandas(
        _Sessions(), "first BIGINT, count BIGINT", "Update", "EventTime"
    )
    return _counts(counted, "first"), "update"


def _counts(counted: DataFrame, what: str) -> DataFrame:
    as_bytes = [f"unhex(lpad(hex({name}), 16, '0'))" for name in (what, "count")]
    return counted.selectExpr(f"{as_bytes[0]} AS key", f"concat({', '.join(as_bytes)}) AS value")


class _Sessions(StatefulProcessor):
    """Counts a key's records until none comes for a while."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare what is kept: the session's first record, its newest time and its records."""
        self._handle = handle
        self._session = handle.getValueState("session", "first BIGINT, at BIGINT, count BIGINT")

    def handleInputRows(  # noqa: N802 — Spark calls it so
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 — and this
    ) -> Iterator[pd.DataFrame]:
        """Count a batch's records of one key; yields each session that they belong to."""
        state = self._session.get() if self._session.exists() else None
        first, newest, count = state or (0, -_GAP_MS - 1, 0)
        counted: dict[int, int] = {}
        records = pd.concat(rows).sort_values("at")
        for number, at in zip(records["number"], records["at"], strict=True):
            now = int(at.timestamp() * 1_000)
            if now - newest > _GAP_MS:
                first, count = int(number), 0
            newest, count = now, count + 1
            counted[first] = count
        self._session.update((first, newest, count))
        self._handle.registerTimer(newest + _GAP_MS)
        yield pd.DataFrame({"first": counted.keys(), "count": counted.values()})

    def handleExpiredTimer(  # noqa: N802 — Spark calls it so
        self,
        key: Any,
        timerValues: Any,  # noqa: N803 — and this
        expiredTimerInfo: Any,  # noqa: N803 — and this
    ) -> Iterator[pd.DataFrame]:
        """Forget a session that nothing has come to since."""
        state = self._session.get() if self._session.exists() else None
        if state and state[1] + _GAP_MS <= expiredTimerInfo.getExpiryTimeInMs():
            self._session.clear()
        return iter(())

    def close(self) -> None:
        """Nothing is open."""
