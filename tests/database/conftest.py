"""A database sink without Spark: tasks run in this process, against real servers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from database_place import MySQLPlace, Place

from onceward.engine import driver_rows, spark_jobs
from onceward.sql.mysql import staging as mysql_staging
from onceward.sql.postgresql import staging
from onceward.sql.sink import attempt
from onceward_testing import LocalMySQL, LocalPostgres
from support.tasks_here import TasksHere, forget_all

MARIADB = pytest.param("mariadb_place", marks=pytest.mark.once_more)


@pytest.fixture
def place(postgres: LocalPostgres, without_spark: Callable[[Place], Place]) -> Place:
    return without_spark(Place(postgres))


@pytest.fixture
def mysql_place(mysql: LocalMySQL, without_spark: Callable[[Place], Place]) -> Place:
    return without_spark(MySQLPlace(mysql))


@pytest.fixture
def newer_mysql_place(newer_mysql: LocalMySQL, without_spark: Callable[[Place], Place]) -> Place:
    return without_spark(MySQLPlace(newer_mysql))


@pytest.fixture
def mariadb_place(mariadb: LocalMySQL, without_spark: Callable[[Place], Place]) -> Place:
    return without_spark(MySQLPlace(mariadb))


@pytest.fixture(params=["place", "mysql_place", MARIADB], ids=["PostgreSQL", "MySQL", "MariaDB"])
def anywhere(request: pytest.FixtureRequest) -> Place:
    """For what means the same on every server."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["mysql_place", MARIADB], ids=["MySQL", "MariaDB"])
def my_place(request: pytest.FixtureRequest) -> Place:
    """For what only these two have."""
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Place], Place]]:
    """Let the batches of a place, one a test, be written without Spark."""

    def fetch(frame: Any, *_: Any) -> pa.Table:
        rows: pa.Table = frame.rows
        return rows

    with contextlib.ExitStack() as places:

        def prepared(made: Place) -> Place:
            monkeypatch.setattr(spark_jobs, "run", TasksHere().run)
            monkeypatch.setattr(driver_rows, "fetch", fetch)
            monkeypatch.setattr(driver_rows.DriverTurn, "takes", lambda turn, running: made.small)
            places.callback(made.close)
            return made

        yield prepared
    for each in (staging, mysql_staging):
        forget_all(each.sessions)


@pytest.fixture(params=["by tasks", "by the driver"])
def either(place: Place, request: pytest.FixtureRequest) -> Place:
    place.small = request.param == "by the driver"
    return place


@pytest.fixture(params=["by tasks", "by the driver"])
def either_anywhere(anywhere: Place, request: pytest.FixtureRequest) -> Place:
    anywhere.small = request.param == "by the driver"
    return anywhere


@pytest.fixture(params=["by tasks", "by the driver"])
def my_either(my_place: Place, request: pytest.FixtureRequest) -> Place:
    my_place.small = request.param == "by the driver"
    return my_place


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
