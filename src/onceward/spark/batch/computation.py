"""The jobs of one attempt at a batch: is all that they read of one computation? Driver only;
called by targets.

Joins what is known of shuffles (:mod:`onceward.spark.batch.shuffles`) and of persisted frames
(:mod:`onceward.spark.batch.persisted`), so that every sink keeps the same rule: rows of two
computations never meet in one batch. Staging does not help against that, so that it is no matter
of one sink.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from onceward.spark.batch.persisted import Readers
from onceward.spark.batch.shuffles import Shuffles


class Computation:
    """One for each attempt; ``shuffles`` are kept from batch to batch."""

    def __init__(self, shuffles: Shuffles) -> None:
        self._shuffles = shuffles
        self._readers: Readers | None = None

    @contextmanager
    def read_once(self, frame: DataFrame) -> Iterator[None]:
        """Watch the one job inside that computes ``frame``. :raises ComputationsMixed: it may have
        been two computations (:meth:`Shuffles.read_once`)."""
        if self._readers is None:
            self._readers = Readers(frame.sparkSession.sparkContext)
        with self._shuffles.read_once(frame):
            yield

    def counts(self, frame: DataFrame) -> None:
        """Note, inside :meth:`read_once` and after the job, that the rows are in the batch."""
        assert self._readers is not None  # noqa: S101 — made by read_once
        self._readers.add(frame)

    def must_be_one(self) -> None:
        """Check, after the last job. :raises ComputationsMixed: frames may have read two results
        of a persisted one."""
        if self._readers is not None:
            self._readers.must_have_seen_the_same()
