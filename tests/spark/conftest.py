"""Fixtures of the Spark suite: a pipeline on one or on both broker versions, and faults at the
engine's steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from secured_cluster import SecuredKafka, SecuredPipeline
from streaming_pipeline import Pipeline

from onceward import events
from onceward_testing import LocalKafka


@pytest.fixture
def pipeline_on(
    spark: Any, tmp_path: Path, new_topic: Any, read_committed: Any, read_uncommitted: Any
) -> Iterator[Callable[..., Pipeline]]:
    """`pipeline_on(kafka, **partitions)` makes a pipeline; its queries end with the test."""
    made: list[Pipeline] = []
    readers = {"read_committed": read_committed, "read_uncommitted": read_uncommitted}

    def make(kafka: LocalKafka, **partitions: int) -> Pipeline:
        made.append(Pipeline(spark, kafka, tmp_path, new_topic, readers, **partitions))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


@pytest.fixture
def pipeline(kafka: LocalKafka, pipeline_on: Callable[..., Pipeline]) -> Pipeline:
    """A pipeline on the newest broker."""
    return pipeline_on(kafka)


@pytest.fixture
def any_pipeline(any_kafka: LocalKafka, pipeline_on: Callable[..., Pipeline]) -> Pipeline:
    """The same test with each transaction version."""
    return pipeline_on(any_kafka)


@dataclass
class Fault:
    """An action at the ``nth`` time that ``step`` is in ``phase``."""

    step: str
    phase: str
    nth: int
    action: Callable[[events.Event], None]
    seen: int = 0
    fired: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, event: events.Event) -> None:
        if (event.step, event.phase) != (self.step, self.phase):
            return
        with self._lock:
            self.seen += 1
            due = self.seen == self.nth
        if due:
            self.fired.set()
            self.action(event)


@pytest.fixture
def at_step() -> Iterator[Callable[..., Fault]]:
    """`at_step("commit", "started", action, nth=1)`: `action` is an error to raise, or a function
    of the event.

    A fault that never fired makes the test invalid, whatever else it found.
    """
    faults: list[Fault] = []
    stops: list[Callable[[], None]] = []

    def arm(
        step: str, phase: str, action: BaseException | Callable[[events.Event], None], nth: int = 1
    ) -> Fault:
        def raise_it(_: events.Event) -> None:
            assert isinstance(action, BaseException)
            raise action

        fault = Fault(step, phase, nth, raise_it if isinstance(action, BaseException) else action)
        faults.append(fault)
        stops.append(events.probe(fault))
        return fault

    yield arm
    for stop in stops:
        stop()
    never = [
        f"{fault.step}:{fault.phase}:{fault.nth}" for fault in faults if not fault.fired.is_set()
    ]
    assert not never, f"INVALID: faults that never fired: {never}"


@pytest.fixture
def steps() -> Iterator[list[events.Event]]:
    """Every event of the test, in order."""
    seen: list[events.Event] = []
    stop = events.probe(seen.append)
    yield seen
    stop()


@pytest.fixture(
    scope="session",
    params=["4.3.1", pytest.param("3.9.1", marks=pytest.mark.slow)],
    ids=["4.3.1", "3.9.1"],
)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredKafka]:
    """A broker with TLS, logins and ACLs, of each version."""
    with SecuredKafka(request.param, tmp_path_factory.mktemp("secured")) as cluster:
        yield cluster


@pytest.fixture
def secured_pipeline(
    spark: Any,
    secured: SecuredKafka,
    tmp_path: Path,
    new_topic: Any,
    read_committed: Any,
    read_uncommitted: Any,
) -> Iterator[SecuredPipeline]:
    """A pipeline there that nobody has granted anything."""
    readers = {"read_committed": read_committed, "read_uncommitted": read_uncommitted}
    pipeline = SecuredPipeline(spark, secured, tmp_path, new_topic, readers)
    yield pipeline
    pipeline.close()
