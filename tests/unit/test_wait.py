"""``ow.wait``: it blocks until a query ends, and raises the typed error."""

from __future__ import annotations

import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import onceward as ow
from onceward.engine.calls import gate
from onceward.errors import ConfigurationError, SendFailed
from onceward.operate import waiting
from onceward.spark.batch import job
from support.errors import raises


class Query:
    """A query as far as a waiter knows it: it ends with ``error``, or well, once it is told to."""

    id = name = "query"
    over_for_good = False

    def __init__(self, error: Exception | None = None, *, over: bool = True) -> None:
        self.error = error
        self.over = threading.Event()
        self.asked_by: set[threading.Thread] = set()
        if over:
            self.over.set()

    @property
    def isActive(self) -> bool:  # noqa: N802 — Spark's name
        return not self.over.is_set()

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 — Spark's name
        self.asked_by.add(threading.current_thread())
        ended = self.over.wait(timeout)
        if ended and self.error is not None:
            raise StreamingQueryException("text only")
        return ended

    def stop(self) -> None:
        self.over.set()


@pytest.fixture(autouse=True)
def _errors_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.05)
    ours = ow.OncewardError
    monkeypatch.setattr(
        waiting, "error_of", lambda query: query.error if isinstance(query.error, ours) else None
    )


def wait(*queries: Any, **options: Any) -> bool:
    return ow.wait(*queries, **options)


def test_it_returns_when_all_have_ended():
    queries = [Query(), Query(over=False)]
    threading.Timer(0.2, queries[1].over.set).start()
    assert wait(*queries) is True


def test_it_raises_the_typed_error():
    with pytest.raises(SendFailed) as raised:
        wait(Query(SendFailed("the broker is away")))
    assert raised.value.__suppress_context__


def test_it_raises_sparks_error_where_there_is_no_other():
    with pytest.raises(StreamingQueryException, match="text only"):
        wait(Query(ZeroDivisionError()))


def test_a_query_whose_context_has_stopped_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    """Spark calls it active for ever: without new records it runs no job that would fail."""
    monkeypatch.setattr(waiting, "context_has_stopped", lambda query, own: query.over_for_good)
    query = Query(over=False)
    threading.Timer(0.2, setattr, (query, "over_for_good", True)).start()
    with raises(ow.OncewardError, "onceward run"):
        wait(query, timeout_s=30)


@pytest.mark.parametrize("stopped_by_spark", [True, False])
def test_a_query_that_ended_with_its_context_has_failed_unless_the_job_stopped_it(
    monkeypatch: pytest.MonkeyPatch, stopped_by_spark: bool
):
    """``spark.stop()`` leaves no active context in Python, or that of a session made since; a
    cluster manager that is gone leaves the query's own.
    """
    said = "Cannot call methods on a stopped SparkContext."
    error = SimpleNamespace(getMessage=lambda: said, message=said)
    told = SimpleNamespace(isDefined=lambda: True, get=lambda: error)
    context = SimpleNamespace(equals=lambda other: other is context)
    session = SimpleNamespace(sparkContext=lambda: context)
    query = SimpleNamespace(exception=lambda: told, sparkSession=lambda: session)
    monkeypatch.setattr(job, "query_by_id", lambda frame: query)
    monkeypatch.setattr(job, "thrown_from", lambda error: [error])
    another = SimpleNamespace(equals=lambda other: False)
    java = SimpleNamespace(sc=lambda: context if stopped_by_spark else another)
    monkeypatch.setattr(job.SparkContext, "_active_spark_context", SimpleNamespace(_jsc=java))
    assert job.ending_of(None)() == (said if stopped_by_spark else "")  # type: ignore[arg-type]


def test_the_first_of_several_that_fails_ends_the_wait_and_the_others_go_on():
    going_on, failing = Query(over=False), Query(SendFailed("away"), over=False)
    threading.Timer(0.2, failing.over.set).start()
    with pytest.raises(SendFailed):
        wait(going_on, failing)
    assert going_on.isActive


@pytest.mark.parametrize("seconds", [0, 0.2])
def test_it_blocks_no_longer_than_its_timeout(seconds: float):
    query = Query(over=False)
    began = time.monotonic()
    assert wait(query, timeout_s=seconds) is False
    assert seconds <= time.monotonic() - began < 30
    assert query.isActive


def test_an_interrupt_stops_the_queries_and_meets_no_question_to_the_jvm():
    """PySpark answers Ctrl-C in the main thread with a question to the JVM, which must not be in
    the middle of one.
    """
    queries = [Query(over=False), Query(over=False)]
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        wait(*queries)
    assert not any(query.isActive for query in queries)
    assert all(query.asked_by for query in queries)
    assert threading.main_thread() not in queries[0].asked_by | queries[1].asked_by


@pytest.mark.parametrize("committed", [None, 7])
def test_a_checkpoint_of_an_earlier_process_is_the_querys(
    committed: int | None, monkeypatch: pytest.MonkeyPatch
):
    """It may fail before it commits, and come back when the disk of its checkpoint is away."""
    monkeypatch.setattr(waiting, "newest_committed", lambda query: committed)
    monkeypatch.setattr(waiting, "checkpoint_of", lambda query: "place")
    with gate.starting_again():
        wait(Query())
        assert gate.home("place") == (None if committed is None else "query")
        gate.note_home("place", "its sink's")
        wait(Query())
        assert gate.home("place") == "its sink's"
    wait(Query())
    assert gate.home("place") is None


def test_a_checkpoint_that_does_not_answer_holds_up_no_end(monkeypatch: pytest.MonkeyPatch):
    answers = threading.Event()
    monkeypatch.setattr(waiting, "newest_committed", lambda query: answers.wait(60))
    monkeypatch.setattr(waiting, "_ASK_SECONDS", 0.05)
    with gate.starting_again():
        assert wait(Query(), timeout_s=30) is True
    answers.set()


class StandingStill(Query):
    """One whose JVM answers nothing after its start, until it is told to."""

    def __init__(self) -> None:
        super().__init__(over=False)
        self.stands, self.goes_on = threading.Event(), threading.Event()

    def __getattribute__(self, what: str) -> Any:
        if what in ("id", "name", "runId", "isActive", "stop") and self.stands.is_set():
            self.goes_on.wait()
        return object.__getattribute__(self, what)


def test_a_jvm_that_stands_still_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(waiting, "_STOP_SECONDS", 0.05)
    query = StandingStill()
    end = waiting.QueryEnd(query)  # type: ignore[arg-type]
    query.stands.set()
    stopped = threading.Thread(target=lambda: [end.stop() for _ in range(2)])
    stopped.start()
    stopped.join(30)
    stands = stopped.is_alive()
    query.goes_on.set()
    stopped.join(30)
    assert not stands
    assert end.name == end.query_id == "query"
    assert end.stop() is False


def test_a_wait_for_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="nothing"):
        wait()
