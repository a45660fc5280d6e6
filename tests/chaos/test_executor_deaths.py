"""Executors die, freeze or fail in the middle of sending: the whole batch runs again under a new
epoch.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest
from pipeline_audit import audit
from pipeline_lives import JobLife
from pipeline_runs import Pipeline

from fault_table import fired
from onceward_testing import LocalKafka
from onceward_testing.job_process import signal_all, with_children
from onceward_testing.proxy import HeldRequest

INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE = 47, 48

SEPARATE_EXECUTORS = "local-cluster[2,1,1200]"

# The first lease that is given back, of one task and then of the other, is not booked for a while:
# two tasks, on two executors, have sent and are not done.
BOTH_MID_SEND = "lease:finished:1:delay=8;lease:finished:2:delay=8"

# Records so long that a task sends what it has long before it has read all of its partition.
LONG_VALUES = 20_000
HURT_LATE = {
    "spark": {"spark.sql.execution.arrow.maxRecordsPerBatch": "20"},
    "sink": {"held_bytes": 1 << 20},
}

pytestmark = pytest.mark.timeout(1_200)


@pytest.mark.fault("executor-killed")
@pytest.mark.parametrize(
    ("cluster", "query"),
    [("kafka", "fanout"), ("kafka39", "counts")],
)
def test_an_executor_killed_while_it_sends_costs_one_attempt(
    request: pytest.FixtureRequest, new_pipeline: Callable[..., Pipeline], cluster: str, query: str
):
    """With ``counts``, what the executor had kept for the shuffle dies with it."""
    brokers = request.getfixturevalue(cluster)
    pipeline = new_pipeline(brokers, query=query, master=SEPARATE_EXECUTORS, max_offsets=2_000)
    pipeline.produce(4_000)
    with pipeline.job(BOTH_MID_SEND) as life:
        life.until_fired()
        for process in container_of_an_executor(life):
            signal_all([process], signal.SIGKILL)
        assert life.wait() == 0, life.log_tail()
    must_have_run_twice(pipeline, life)


@pytest.mark.fault("executor-out-of-memory")
def test_an_executor_that_runs_out_of_memory_while_it_sends_costs_one_attempt(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Its JVM ends itself when its heap is full (exit status 52), and takes the task's half-sent
    batch with it.
    """
    pipeline = new_pipeline(any_kafka, master=SEPARATE_EXECUTORS, **HURT_LATE, trap="heap:1:150")
    one_task_is_hurt_and_the_others_are_stopped(pipeline, "code 52")


@pytest.mark.fault("task-raises")
def test_a_task_that_raises_once_something_is_sent_costs_one_attempt(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """Spark would try the task again and again by itself: its second attempt must not send, since
    the first one has.
    """
    pipeline = new_pipeline(any_kafka, master="local[2,4]", **HURT_LATE, trap="raise:1:150")
    one_task_is_hurt_and_the_others_are_stopped(pipeline, "this record hurts, once")


@pytest.mark.fault("task-raises")
def test_what_always_fails_a_task_that_has_sent_is_named(
    any_kafka: LocalKafka, new_pipeline: Callable[..., Pipeline]
):
    """The task's second attempt ends the epoch and the job, before Spark has said why."""
    pipeline = new_pipeline(any_kafka, master="local[2,4]", **HURT_LATE, trap="always:1:150")
    pipeline.produce(800, value_bytes=LONG_VALUES)
    life = pipeline.run()
    assert life.status != 0, life.log_tail()
    first, second = (step.error for step in life.steps("send", "failed"))
    assert (first, second) == ("EpochPoisoned", "PythonException"), life.log_tail()
    assert "this record hurts, always" in life.log_tail()


@pytest.mark.fault("executor-frozen")
@pytest.mark.parametrize("version", ["4.3.1", "3.9.1"])
def test_what_an_executor_still_sends_after_it_was_frozen_is_refused(
    version: str, new_pipeline: Callable[..., Pipeline]
):
    """Stopped with a ``Produce`` on its way, which arrives when the batch has long run again
    elsewhere.
    """
    with LocalKafka(version=version, proxied=True) as kafka:
        pipeline = new_pipeline(
            kafka,
            master=SEPARATE_EXECUTORS,
            max_offsets=2_000,
            seconds=0.5,
            options={
                "transaction.timeout.ms": 20_000
            },  # also the longest time that a lease may be out
            spark={
                "spark.network.timeout": "30s",
                "spark.network.timeoutInterval": "5s",
                "spark.executor.heartbeatInterval": "3s",
            },
        )
        pipeline.produce(4_000)
        late = kafka.proxy.on("Produce", nth=2).hold()
        with pipeline.job(bootstrap_servers=kafka.proxied_servers) as life:
            life.until(lambda: late.fired, "the second Produce")
            frozen = container_of_the_sender(life, late.held[0].client_port)
            for process in frozen:
                signal_all([process], signal.SIGSTOP)
            life.until(lambda: pipeline.lag() == 0, "lag 0")
            before = audit(pipeline)

            late.release()
            assert set(produce_codes(late.held[0])) <= {INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE}
            for process in frozen:
                signal_all([process], signal.SIGCONT)
            after = audit(pipeline)
            written = (after.committed, after.aborted_records)
            assert written == (before.committed, before.aborted_records), (
                "not even as an aborted record"
            )

            pipeline.produce(2_000)  # and the next batch is clean
            life.until(lambda: pipeline.lag() == 0, "lag 0")
        must_have_run_twice(pipeline, life)


def one_task_is_hurt_and_the_others_are_stopped(pipeline: Pipeline, trace: str) -> None:
    """``trace``: what the log says when the trap has caught a task."""
    pipeline.produce(800, value_bytes=LONG_VALUES)
    life = pipeline.run()
    assert life.status == 0, life.log_tail()
    fired(trace in life.log_tail(1_000_000), "no task was hurt")
    why = life.steps("send", "failed")[0].error
    assert why == "EpochPoisoned", "the sequencer is to stop the tasks, and no timeout"
    must_have_run_twice(pipeline, life)


def produce_codes(held: HeldRequest) -> list[int]:
    """What the broker says to each partition of a ``Produce``; never that it has taken
    anything.
    """
    answered = [
        part.error_code
        for topic in held.decoded_answer().responses
        for part in topic.partition_responses
    ]
    assert answered
    return answered


def container_of_the_sender(life: JobLife, port: int) -> list[psutil.Process]:
    """The executor, with its Python processes, of which one has a socket with that port."""
    containers = [with_children(executor) for executor in life.executors()]
    senders = [
        members
        for members in containers
        if any(
            socket.laddr.port == port
            for process in members
            for socket in process.net_connections("tcp")
        )
    ]
    fired(len(senders) == 1, f"{len(senders)} executors have sent from port {port}")
    return senders[0]


def container_of_an_executor(life: JobLife) -> list[psutil.Process]:
    """One executor's JVM and its Python processes, all that ends when a container is killed."""
    executors = life.executors()
    fired(len(executors) == 2, "there should be two executors")
    return [executors[0], *executors[0].children(recursive=True)]


def must_have_run_twice(pipeline: Pipeline, life: JobLife) -> None:
    fired(life.steps("abort"), "nothing was aborted")
    first_commit = life.steps("commit")[0]
    epochs = {step.ids["epoch"] for step in life.steps("plan") if step.ids["batch_id"] == 0}
    assert len(epochs) > 1
    assert first_commit.ids["epoch"] == max(epochs), (
        "committed under the epoch of its last attempt"
    )
    found = audit(pipeline)
    fired(found.aborted_records, "nothing had been sent")
