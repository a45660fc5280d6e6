"""A database sink without Spark: tasks run in this process, against a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from database_place import Place

from onceward.engine import driver_rows, task_job
from onceward.sinks.database import attempt, staging
from onceward.testing import LocalPostgres
from tasks_here import TasksHere


@pytest.fixture
def place(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    made = Place(postgres)

    def fetch(frame: Any, *_: Any) -> pa.Table:
        rows: pa.Table = frame.rows
        return rows

    monkeypatch.setattr(task_job, "run", TasksHere().run)
    monkeypatch.setattr(driver_rows, "fetch", fetch)
    monkeypatch.setattr(driver_rows.DriverTurn, "takes", lambda turn, running: made.small)
    yield made
    made.close()
    for said in list(staging._kept):
        staging._forget(said)


@pytest.fixture(params=["by tasks", "by the driver"])
def either(place: Place, request: pytest.FixtureRequest) -> Place:
    place.small = request.param == "by the driver"
    return place


@pytest.fixture
def before_the_move(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Something happens once all rows are staged, and nothing is decided."""

    def arm(happening: Callable[[], object]) -> None:
        waiting = [happening]
        prepared = attempt.DatabaseAttempt.prepared

        def and_then(self: attempt.DatabaseAttempt) -> Any:
            found = prepared(self)
            if waiting:
                waiting.pop()()
            return found

        monkeypatch.setattr(attempt.DatabaseAttempt, "prepared", and_then)

    return arm
