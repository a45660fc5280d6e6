"""``query.stop()`` while no broker answers: it returns, and the next start settles what was left
open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from streaming_pipeline import Pipeline

from fault_table import fired
from onceward import events
from onceward_testing import LocalKafka

FIRE_SECONDS = 120
STOP_SECONDS = 60
"""Against hanging: each of the waits that add up has one or two minutes."""


@pytest.fixture
def pipeline(kafka: LocalKafka, pipeline_on: Callable[..., Pipeline]) -> Iterator[Pipeline]:
    pipeline = pipeline_on(kafka)
    pipeline.job_servers = kafka.proxied_servers
    pipeline.feed(40)
    yield pipeline
    kafka.proxy.heal()


@pytest.mark.parametrize(
    "step",
    [
        events.SEND,
        pytest.param(
            events.LEDGER, marks=pytest.mark.slow
        ),  # then it is the commit that has no answer
        pytest.param(events.ADMIT, marks=pytest.mark.slow),
    ],
)
def test_a_query_can_be_stopped_and_the_next_start_writes_the_batch_once(
    kafka: LocalKafka, pipeline: Pipeline, step: str
) -> None:
    silent = threading.Event()

    def fall_silent(event: events.Event) -> None:
        if (event.step, event.phase) == (step, "finished") and not silent.is_set():
            kafka.proxy.cut(1)
            silent.set()

    undo = events.probe(fall_silent)
    try:
        query = pipeline.start()
        fired(silent.wait(FIRE_SECONDS), f"never: {step}")
        stopping = threading.Thread(target=query.stop, daemon=True)
        stopping.start()
        stopping.join(STOP_SECONDS)
        assert not stopping.is_alive(), "query.stop() waits for brokers that do not answer"
        assert query.exception() is None, "a query that is stopped has not failed"
    finally:
        undo()
        kafka.proxy.heal()
    pipeline.run()
    pipeline.assert_exactly_once()
