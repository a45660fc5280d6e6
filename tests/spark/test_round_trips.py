"""What a settled batch asks of the JVM and of the brokers: each round trip is part of its latency,
and none may be added unseen.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest
from py4j.clientserver import JavaClient
from pyspark.sql import DataFrame, SparkSession
from streaming_pipeline import Pipeline, copy

from onceward.engine.ending import Ending
from onceward.kafka.wire.client import KafkaClient
from onceward.spark.batch import job

MOST_CALLS_INTO_THE_JVM = 67  # of PySpark 4.0: 60 to 66
REQUESTS = {
    "DescribeTransactionsRequest": 1,  # is the last transaction complete?
    # leader epochs of what was written last, ids of the source's topics, partitions of the output's
    "MetadataRequest": 3,
    "ProduceFrame": 2,  # the rows, the ledger's record
    "TxnOffsetCommitRequest": 1,
    "EndTxnRequest": 1,
}
"""One broker leads all partitions, and adds them to a transaction by itself (KIP-890)."""


def test_a_settled_batch_asks_no_more_than_it_did(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    # While anything is persisted in the session, each batch looks whether it reads that
    for rdd in pipeline.spark.sparkContext._jsc.getPersistentRDDs().values():  # type: ignore[attr-defined]
        rdd.unpersist()
    counted: list[tuple[int, Counter[str]]] = []
    inside = threading.local()
    send_command, send, look = JavaClient.send_command, KafkaClient.send, Ending.__call__
    calls, requests = [0], Counter[str]()

    def counting_command(self: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += getattr(inside, "sink", False)
        return send_command(self, *arguments, **named)

    def counting_request(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        requests[type(request).__name__] += 1
        return send(self, request, *arguments, **named)

    def uncounted_look(self: Ending) -> None:
        """How often a wait asks whether the query is to end is a matter of time."""
        counts, inside.sink = getattr(inside, "sink", False), False
        try:
            look(self)
        finally:
            inside.sink = counts

    monkeypatch.setattr(JavaClient, "send_command", counting_command)
    monkeypatch.setattr(Ending, "__call__", uncounted_look)
    monkeypatch.setattr(KafkaClient, "send", counting_request)
    sink = pipeline.sink(driver_records=1_000)

    def each(frame: DataFrame, batch_id: int) -> None:
        calls[0], inside.sink = 0, True
        requests.clear()
        sink(frame, batch_id)
        inside.sink = False
        counted.append((calls[0], Counter(requests)))

    pipeline.feed(240)
    pipeline.run(copy, sink=each)
    pipeline.assert_exactly_once()
    settled = counted[2:]
    assert len(settled) >= 3
    # A leader that moved is looked up: what no batch can do without is in the least of them
    assert min(number for number, _ in settled) <= MOST_CALLS_INTO_THE_JVM, settled
    assert REQUESTS in [dict(found) for _, found in settled], settled


def test_texts_that_are_known_are_not_parsed_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    condition, columns = "id > 1", ("id % 2 AS odd", "id + 10 AS `more of it`")
    wanted = spark.range(5).where(condition).selectExpr(*columns).collect()
    first, second = spark.range(5), spark.range(5)
    assert job.selected_where(first, condition, columns).collect() == wanted
    sent, calls = JavaClient.send_command, [0]

    def counting(self: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        return sent(self, *arguments, **named)

    with monkeypatch.context() as counted:
        counted.setattr(JavaClient, "send_command", counting)
        again = job.selected_where(second, condition, columns)
    # the frame's plan, Filter, Project, and a frame of them
    assert calls == [4]
    assert again.collect() == wanted
