"""Executors die or freeze in the middle of sending: the whole batch runs again under a new epoch."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest
from pipeline_audit import audit
from pipeline_runs import JobLife, Pipeline, send

from onceward.errors import Fenced
from onceward.ids import ProducerIdentity, TopicPartition
from onceward.testing import LocalKafka
from onceward.wire.client import KafkaClient
from onceward.wire.producer import Append, PartitionProducer
from wire_fixtures import fragments, settings

SEPARATE_EXECUTORS = "local-cluster[2,1,1200]"

# The first lease that is given back, of one task and then of the other, is not booked for a while: two tasks, on two
# executors, have sent and are not done.
BOTH_MID_SEND = "lease:finished:1:delay=8;lease:finished:2:delay=8"

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.parametrize("cluster", ["kafka", pytest.param("kafka39", marks=pytest.mark.slow)])
def test_an_executor_killed_while_it_sends_costs_one_attempt(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str
):
    pipeline = new_pipeline(request.getfixturevalue(cluster), master=SEPARATE_EXECUTORS, max_offsets=2_000)
    pipeline.produce(4_000)
    with pipeline.job(BOTH_MID_SEND) as life:
        life.until_fired()
        for process in container_of_an_executor(life):
            send(process, signal.SIGKILL)
        assert life.wait() == 0, life.log_tail()
    must_have_run_twice(pipeline, life)


@pytest.mark.slow
def test_what_an_executor_still_sends_after_it_was_frozen_is_refused(
    kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    pipeline = new_pipeline(
        kafka,
        master=SEPARATE_EXECUTORS,
        max_offsets=2_000,
        seconds=0.5,
        options={"transaction.timeout.ms": 20_000},  # also the longest time that a lease may be out
        spark={
            "spark.network.timeout": "30s",
            "spark.network.timeoutInterval": "5s",
            "spark.executor.heartbeatInterval": "3s",
        },
    )
    pipeline.produce(4_000)
    with pipeline.job(BOTH_MID_SEND) as life:
        life.until_fired()
        frozen = container_of_an_executor(life)
        for process in frozen:
            send(process, signal.SIGSTOP)
        life.until(lambda: pipeline.lag() == 0, "lag 0")
        before = audit(pipeline)
        for process in frozen:
            send(process, signal.SIGCONT)

        late = ProducerIdentity(before.identities[0][0], before.identities[0][1] - 1)
        with pytest.raises(Fenced):
            send_under(pipeline, late)

        pipeline.produce(2_000)  # and the next batch is clean
        life.until(lambda: pipeline.lag() == 0, "lag 0")
    must_have_run_twice(pipeline, life)


def container_of_an_executor(life: JobLife) -> list[psutil.Process]:
    """One executor's JVM and its Python processes, all that ends when a container is killed."""
    executors = life.executors()
    assert len(executors) == 2, "INVALID: there should be two executors"
    return [executors[0], *executors[0].children(recursive=True)]


def must_have_run_twice(pipeline: Pipeline, life: JobLife) -> None:
    assert life.steps("abort"), "INVALID: nothing was aborted"
    first_commit = life.steps("commit")[0]
    epochs = {step.ids["epoch"] for step in life.steps("plan") if step.ids["batch_id"] == 0}
    assert len(epochs) > 1
    assert first_commit.ids["epoch"] == max(epochs), "committed under the epoch of its last attempt"
    found = audit(pipeline)
    assert found.aborted_records > 0, "INVALID: the executor had not sent anything"


def send_under(pipeline: Pipeline, identity: ProducerIdentity) -> None:
    """What a worker of an earlier epoch does that has missed everything since."""
    client_settings, producer_settings = settings(pipeline.kafka.bootstrap_servers)
    client = KafkaClient(client_settings)
    try:
        producer = PartitionProducer(
            client,
            producer_settings,
            identity,
            transactional_id=pipeline.pipeline_id,
            version=client.transaction_version(),
        )
        late = Append(TopicPartition(pipeline.output, 0), fragments([b"from the past"])[0], 0)
        producer.send([late], should_stop=None)
    finally:
        client.close()
