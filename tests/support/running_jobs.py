"""Runs a job as its ``__main__`` would, in this process and on its Spark session, and stops it
when told to.

For jobs that build their session by ``getOrCreate()`` and wait in ``awaitTermination()``: the
examples, the README's. They run in a thread of their own; the test waits for their query, feeds
and reads, and stops it from outside.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

START_SECONDS = 120
END_SECONDS = 60


@contextmanager
def running(spark: Any, job: Callable[[], None]) -> Iterator[Any]:
    """The query that ``job`` starts and waits for; stopped at the end, when ``job`` must
    return.
    """
    before = {query.runId for query in spark.streams.active}
    raised: list[BaseException] = []

    def run() -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 — whatever it is belongs to the test, which raises it
            raised.append(error)

    thread = threading.Thread(target=run, name="job-under-test", daemon=True)
    thread.start()
    query = _started(spark, before, thread, raised)
    try:
        yield query
    finally:
        query.stop()
        thread.join(END_SECONDS)
    assert not thread.is_alive(), "the job goes on after its query was stopped"
    if raised:
        raise raised[0]


def _started(
    spark: Any, before: set[str], thread: threading.Thread, raised: list[BaseException]
) -> Any:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        fresh = [query for query in spark.streams.active if query.runId not in before]
        if fresh:
            return fresh[0]
        if not thread.is_alive():
            raise raised[0] if raised else AssertionError("the job ended without a query")
        time.sleep(0.05)
    raise AssertionError(f"no query within {START_SECONDS} s")
