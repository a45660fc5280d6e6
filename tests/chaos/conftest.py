"""Fixtures of the tests that run whole pipelines as processes of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onceward_testing import LocalKafka

# Their assertions shall show values, too.
pytest.register_assert_rewrite("pipeline_audit", "pipeline_lives", "pipeline_runs")

from pipeline_runs import Pipeline  # noqa: E402


@pytest.fixture
def new_pipeline(tmp_path: Path, new_topic: Callable[..., str]) -> Callable[..., Pipeline]:
    """`new_pipeline(cluster, **job settings)` makes a pipeline with topics, names and a checkpoint
    of its own.
    """

    def make(cluster: LocalKafka, **settings: Any) -> Pipeline:
        return Pipeline(cluster, tmp_path, new_topic, **settings)

    return make
