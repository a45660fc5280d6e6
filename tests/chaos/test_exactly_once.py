"""The same jobs on every kind of cluster, with every kind of executor: each record once, each
batch one transaction.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pipeline_audit import audit
from pipeline_runs import Pipeline

from onceward_testing import LocalKafka

LOCAL, SEPARATE_EXECUTORS = "local[2]", "local-cluster[2,1,1200]"

ORDINARY = [
    ("kafka", SEPARATE_EXECUTORS),
    ("three_nodes39", LOCAL),
]
MORE = [
    ("kafka", LOCAL),
    ("kafka39", LOCAL),
    ("three_nodes", LOCAL),
    ("kafka39", SEPARATE_EXECUTORS),
    ("three_nodes", SEPARATE_EXECUTORS),
    ("three_nodes39", SEPARATE_EXECUTORS),
]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(
    ("cluster", "master"),
    [*ORDINARY, *MORE],
)
def test_the_etl_writes_each_number_once(
    request: pytest.FixtureRequest,
    new_pipeline: Callable[..., Pipeline],
    cluster: str,
    master: str,
):
    pipeline = new_pipeline(
        request.getfixturevalue(cluster), query="etl", master=master, max_offsets=3_000
    )
    pipeline.produce(9_000, close_windows=True)
    life = pipeline.run_to_the_end()
    found = audit(pipeline)
    assert found.batches >= 3
    assert found.aborted_records == 0
    assert len(life.steps("commit")) == found.batches


def test_kafkas_own_tools_show_no_lag_and_one_transactional_id(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """In a session built the plain way, with ``spark.jars.packages`` and nothing of ours."""
    pipeline = new_pipeline(kafka, plain_packages=True, max_offsets=1_000)
    pipeline.produce(2_000)
    life = pipeline.run_to_the_end()
    assert audit(pipeline).batches == 2
    assert len({lease.ids["task"] for lease in life.steps("lease")}) == 8, (
        "INVALID: it did not run in parallel"
    )

    described = table(
        kafka.kafka_tool("kafka-consumer-groups", "--describe", "--group", pipeline.pipeline_id)
    )
    assert {(row["TOPIC"], row["LAG"]) for row in described} == {(pipeline.source, "0")}
    assert len(described) == 4
    listed = table(kafka.kafka_tool("kafka-transactions", "list"))
    ours = [row for row in listed if row["TransactionalId"].startswith(pipeline.pipeline_id)]
    assert [row["TransactionalId"] for row in ours] == [pipeline.pipeline_id]
    assert ours[0]["TransactionState"] == "CompleteCommit"


def table(printed: str) -> list[dict[str, str]]:
    """What a tool of Kafka prints as columns."""
    rows = [line.split() for line in printed.splitlines() if line.strip()]
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]
