"""Brokers are killed with SIGKILL while batches run, and come back: the pipeline goes on, each
record once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest
from pipeline_audit import audit
from pipeline_lives import JobLife
from pipeline_runs import Pipeline

from onceward_testing import KafkaNode, LocalKafka

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.fault("broker-restart")
def test_the_coordinator_is_killed_while_batches_run_and_comes_back(
    new_pipeline: Callable[..., Pipeline],
):
    with LocalKafka(nodes=3) as kafka:
        pipeline = new_pipeline(kafka, seconds=0.2)
        with running(pipeline) as life:
            life.until_committed(2)
            bounce(coordinator_of(pipeline), life)
        audit(pipeline)


@pytest.mark.fault("broker-restart")
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_every_node_is_killed_in_turn_while_batches_run(
    version: str, new_pipeline: Callable[..., Pipeline]
):
    with LocalKafka(nodes=3, version=version) as kafka:
        pipeline = new_pipeline(kafka, seconds=0.2)
        with running(pipeline) as life:
            life.until_committed(2)
            for node in kafka.nodes:
                bounce(node, life)
        audit(pipeline)


@contextmanager
def running(pipeline: Pipeline) -> Iterator[JobLife]:
    """The job, with records coming in all the while; after the block it catches up and is
    killed.
    """
    enough = Event()

    def produce() -> None:
        while not enough.wait(0.2):
            pipeline.produce(200)

    producer = Thread(target=produce, name="people")
    producer.start()
    try:
        with pipeline.job() as life:
            yield life
            enough.set()
            producer.join()
            life.until(lambda: pipeline.lag() == 0, "lag 0")
    finally:
        enough.set()
        producer.join()


def bounce(node: KafkaNode, life: JobLife) -> None:
    """Kill ``node``; the job must get on without it, and with it again."""
    node.kill()
    life.until_committed(len(life.steps("commit")) + 2)
    node.start()
    life.until_committed(len(life.steps("commit")) + 2)


def coordinator_of(pipeline: Pipeline) -> KafkaNode:
    listed = pipeline.kafka.kafka_tool("kafka-transactions", "list").splitlines()
    (row,) = [line.split() for line in listed if line.startswith(pipeline.pipeline_id)]
    return next(node for node in pipeline.kafka.nodes if node.node_id == int(row[1]))
