"""Fixtures of the tests that run whole pipelines as processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onceward.testing import LocalKafka

pytest.register_assert_rewrite("pipeline_audit", "pipeline_runs")  # their assertions shall show values, too

from pipeline_runs import Pipeline  # noqa: E402


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[LocalKafka]:
    """Three nodes of 4.3.1, for tests that kill none of them."""
    with LocalKafka(nodes=3) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three_nodes39() -> Iterator[LocalKafka]:
    """Three nodes of 3.9.1."""
    with LocalKafka(nodes=3, version="3.9.1") as cluster:
        yield cluster


@pytest.fixture
def new_pipeline(tmp_path: Path, new_topic: Callable[..., str]) -> Callable[..., Pipeline]:
    """`new_pipeline(cluster, **job settings)` makes a pipeline with topics, names and a checkpoint of its own."""

    def make(cluster: LocalKafka, **settings: Any) -> Pipeline:
        return Pipeline(cluster, tmp_path, new_topic, **settings)

    return make
