"""One Spark job that can be stopped from outside while it runs. Driver only; called by targets.

A task that hangs (its executor is stopped, say) keeps a job waiting for minutes. When the attempt
is lost anyway, waiting only keeps the transaction open: a watcher cancels the job by its tag.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from onceward import patience
from onceward.errors import OncewardError
from onceward.spark.batch.causes import has_condition, thrown_by, thrown_from
from onceward.spark.batch.failures import known_failure
from onceward.spark.batch.query import (
    QUERY_ID,
    is_being_stopped,
    jvm_is_gone,
    query_by_id,
)

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_POLL_SECONDS = 0.1
# Asks the JVM
_STOPPED_POLLS = 5
# Of TaskSetManager.canFetchMoreResults: it begins so, and no row is in it
_TOO_LARGE = re.compile(
    r"Job aborted due to stage failure: Total size of serialized results of \d+ tasks \("
)
# Most tasks stop by themselves, and then the job's own error tells more
_GRACE_SECONDS = 2.0
_ABORTED = "the query is being stopped; the batch was aborted, and the next start runs it."


class JobInterrupted(Exception):
    """The query is being stopped, or its job was cancelled: the batch is aborted, nothing failed.

    Its text goes to Spark (``StreamExecution.isInterruptionException``), which takes a Python
    exception for the end of a stopped query only if it finds in it the words of the second
    sentence. Spark looks for them with a regular expression whose stack grows with the text: a
    Java stack trace, as in py4j's own exception, overflows it, and then a thousand lines of
    ``StackOverflowError`` are printed. Hence this short text, and no cause.
    """

    def __init__(self, what: str = _ABORTED) -> None:
        super().__init__(
            f"{what} py4j.protocol.Py4JJavaError: An error occurred while calling collect: "
            "java.lang.InterruptedException"
        )


Lost = Callable[[], OncewardError | None]
"""Asked all the while; what it returns is the reason to cancel the job, soon after."""


def collect(frame: DataFrame, lost: Lost) -> tuple[list[Row], int]:
    """Collect ``frame`` by one Spark job; return its rows and the number of last-stage tasks.

    :raises SourceDataLost, WorkerPythonMismatch: what is known of Spark's failures
        (:mod:`onceward.spark.batch.failures`).
    :raises JobInterrupted: the query is being stopped.
    :raises Exception: Spark's own, when the job fails for another reason or is cancelled.
    """
    with naming_failures(), _watched(frame, lost):
        # Inside: under adaptive execution asking for the partitions runs every stage but the last.
        tasks = _task_count(frame)
        return frame.collect(), tasks


def to_arrow(frame: DataFrame, lost: Lost) -> tuple[pa.Table | None, int]:
    """Collect ``frame`` as Arrow, in the order of its partitions, like :func:`collect`, without a
    Python worker; None: it is more than ``spark.driver.maxResultSize``.

    :raises OncewardError: what ``lost`` returned, and as :func:`collect` does.
    """
    with watched(frame, lost):
        tasks = _task_count(frame)
        try:
            return frame.toArrow(), tasks
        except Exception as error:
            if not any(_TOO_LARGE.match(each.message) for each in thrown_by(error)):
                raise
            return None, tasks


def selected_where(frame: DataFrame, condition: str, columns: tuple[str, ...]) -> DataFrame:
    """Return ``frame.where(condition).selectExpr(*columns)``, for texts that are the same in every
    batch: they are parsed once, and the plan is analyzed once and not for each of the two."""
    session: Any = frame.sparkSession
    gateway = session.sparkContext._gateway
    project, filtered, of_rows = _plans(gateway)
    chosen, holds = _parsed(gateway, condition, columns)
    plan = project(chosen, filtered(holds, frame._jdf.logicalPlan()))
    return DataFrame(of_rows(session._jsparkSession, plan), session)


@lru_cache(maxsize=8)
def _plans(gateway: Any) -> tuple[Any, Any, Any]:
    """Return Spark's ``Project``, ``Filter``, and what makes a frame of a plan."""
    sql = gateway.jvm.org.apache.spark.sql
    logical = sql.catalyst.plans.logical
    return logical.Project, logical.Filter, sql.classic.Dataset.ofRows


@lru_cache(maxsize=64)
def _parsed(gateway: Any, condition: str, columns: tuple[str, ...]) -> tuple[Any, Any]:
    """Return ``columns`` and ``condition`` as expressions, not yet of a frame's columns."""
    parser = SparkSession.active()._jsparkSession.sessionState().sqlParser()
    expressions = gateway.jvm.java.util.ArrayList()
    for column in columns:
        expressions.add(parser.parseExpression(column))
    to_seq = gateway.jvm.org.apache.spark.api.python.PythonUtils.toSeq
    return to_seq(expressions), parser.parseExpression(condition)


@contextmanager
def watched(frame: DataFrame, lost: Lost) -> Iterator[None]:
    """Watch jobs of ``frame`` inside that Spark itself runs, a write say; see :func:`to_arrow`."""
    with naming_the_loss(lost), naming_failures(), _watched(frame, lost):
        yield


@contextmanager
def naming_the_loss(lost: Lost) -> Iterator[None]:
    """Raise the reason of ``lost`` for a job inside that failed because it was cancelled."""
    try:
        yield
    except JobInterrupted:
        raise
    except Exception as error:
        if (reason := lost()) is not None:
            raise reason from error
        raise


def _task_count(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().toRdd().getNumPartitions())


@contextmanager
def _watched(frame: DataFrame, lost: Lost) -> Iterator[None]:
    """Cancel this thread's jobs inside soon after ``lost`` has a reason. :raises JobInterrupted:
    the query is being stopped, or somebody else has cancelled the job."""
    context = frame.sparkSession.sparkContext
    tag = f"onceward-{uuid.uuid4()}"
    done = threading.Event()
    query_id = context.getLocalProperty(QUERY_ID)

    def watch() -> None:
        if _is_lost(partial(is_being_stopped, frame, query_id), lost, done):
            context.cancelJobsWithTag(tag)

    # A property of the query's own JVM thread, on which this runs
    context.addJobTag(tag)
    watcher = threading.Thread(target=watch, name="onceward-job-watcher", daemon=True)
    watcher.start()
    try:
        yield
    except Exception as error:
        # Whatever came of it: Spark cancels the job and interrupts the thread, in any order.
        if is_being_stopped(frame):
            raise JobInterrupted from None
        cancelled = has_condition(thrown_by(error), "SPARK_JOB_CANCELLED")
        # Not by us: Ctrl-C (PySpark cancels all jobs), or Spark's page
        if cancelled is not None and lost() is None:
            raise JobInterrupted(
                f"the job of this batch was cancelled ({cancelled.message})."
            ) from None
        raise
    finally:
        done.set()
        context.removeJobTag(tag)
        watcher.join()


def _is_lost(is_stopping: Callable[[], bool], lost: Lost, done: threading.Event) -> bool:
    """Wait for the end of a job; return whether it is to be cancelled before."""
    since: float | None = None
    looked = True
    for poll in itertools.count(1):
        if done.wait(_POLL_SECONDS):
            return False
        # Spark cancels by its own job group, in place of which the user's function may have set
        # another; and nothing interrupts a thread that reads what Arrow serves
        if poll % _STOPPED_POLLS == 0 and is_stopping():
            return True
        try:
            reason = lost()
        except Exception as error:  # noqa: BLE001 — it looks again
            # Once: it looks many times a second
            level = logging.WARNING if looked else logging.DEBUG
            looked = False
            log.log(level, "whether the job's attempt is lost is not known: %r", error)
            continue
        if reason is None:
            continue
        since = since or time.monotonic()
        if time.monotonic() - since >= _GRACE_SECONDS:
            log.warning("cancelling the Spark job of a lost attempt: %s", reason)
            return True
    return False


def asked_apart(jvm: Any, ask: Callable[[], _T], seconds: float, late: OncewardError) -> _T:
    """Return what a catalog, or the storage of a table, answers in the JVM, asked in a thread of
    its own with this one's session and properties (pool, job group): a batch waits no longer than
    ``seconds``, whatever is waited for there, and a query that is stopped no more.

    :param ask: may go on behind that, and must change nothing that a later look does not find.
    :raises OncewardError: ``late``.
    """
    sessions = _sessions(jvm)
    active = sessions.getActiveSession()
    if active.isDefined():
        context = (session := active.get()).sparkContext()
        properties = context.getLocalProperties().clone()

    def in_this_session() -> _T:
        if active.isDefined():
            sessions.setActiveSession(session)
            context.setLocalProperties(properties)
        return ask()

    return patience.in_time(
        in_this_session, seconds, "onceward-catalog", late=late, abandon=lambda: None
    )


@lru_cache(maxsize=8)
def _sessions(jvm: Any) -> Any:
    """Return the class of Spark's sessions; py4j asks for each part of the name at each use."""
    return jvm.org.apache.spark.sql.classic.SparkSession


@contextmanager
def naming_failures() -> Iterator[None]:
    """Raise Spark's failures inside the block as typed errors where they are known."""
    try:
        yield
    except (OncewardError, JobInterrupted):
        raise
    except Exception as error:
        failure = known_failure(thrown_by(error))
        if failure is None:
            raise
        raise failure from error


_SHUT_DOWN = re.compile(
    r"Job \S+ cancelled because SparkContext was shut down|Cannot call methods on a stopped Spark"
)
_GONE_SECONDS = 2.0


def context_has_stopped(query: object, *, own: bool = False) -> bool:
    """Return whether the query's context has stopped: an idle query of it is active for ever.

    :param own: also where there is another by now; else no start of this process works.
    """
    if not isinstance(query, StreamingQuery):
        return False
    try:
        context = None if own else SparkContext._active_spark_context
        java = query._jsq.sparkSession().sparkContext() if context is None else context._jsc.sc()
        return bool(java.isStopped())
    except Exception as error:  # noqa: BLE001 — whatever py4j raises of a JVM that is gone
        log.debug("whether a context has stopped is not known: %r", error)
        return False


def ending_of(frame: DataFrame) -> Callable[[], str]:
    """Return what tells how the running query of ``frame`` has ended: in Spark's words, empty
    where it goes on, ended well, or was ended by the end of its session."""
    execution: Any = None
    # What is asked at the end of a job may not end a batch
    with suppress(Exception):
        execution = query_by_id(frame)

    def failure() -> str:
        try:
            error = None if execution is None else execution.exception()
            if error is None or not error.isDefined():
                return ""
            causes = thrown_from(error.get())
            # One that Spark stops by itself, as when its cluster manager is gone, is still active
            active = SparkContext._active_spark_context
            by_itself = active is not None and active._jsc.sc().equals(
                execution.sparkSession().sparkContext()
            )
            by_its_end = not by_itself and any(_SHUT_DOWN.match(each.message) for each in causes)
            return "" if by_its_end else str(error.get().getMessage())
        except Exception as error:  # noqa: BLE001 — whatever py4j raises of a JVM that is gone
            log.debug("how a query has ended is not known: %r", error)
            until = time.monotonic() + _GONE_SECONDS
            while not (gone := jvm_is_gone()) and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
            return "Spark's JVM is gone, and its queries with it" if gone else ""

    return failure
