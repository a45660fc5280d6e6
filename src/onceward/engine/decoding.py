"""Steps of a plan that read a format, and the records they cannot read: dead letters. Driver only.

A format's function (:mod:`onceward.formats`) puts a :class:`DecodingStep` into the user's plan:
the rows that it reads carry a name there, :attr:`DecodingStep.tag`, and only those that it can
read go on. Whatever the user makes of them, windows and joins included, the engine finds the name
in the plan of the running batch, computes the same rows a second time
(:mod:`onceward.spark.batch.below`), asks the step which of them it cannot read, and hands these to
the sink as one more frame of the batch. So nobody can forget them, and they are committed together
with the rest, or not at all.

A step gives the same verdict of the same bytes each time, so that each record is in one of the two
frames, and a source gives the same records of a batch each time it is read, or no batch could be
repeated. Called by ``engine.calls`` for each batch; formats call :func:`register`.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame

from onceward.errors import Fenced, OncewardError
from onceward.spark.batch.below import rows_below, tags_in
from onceward.spark.batch.job import JobInterrupted

log = logging.getLogger(__name__)

TAG = "onceward_decoded_"
"""Begins every tag; in a plan the name of a subquery. After it come 32 hex digits."""

_REMEMBERED = 1_000


class DecodingStep(ABC):
    """One call of a format's function."""

    tag: str
    """:data:`TAG` and 32 hex digits, new for each call."""

    sets_aside: bool
    """Are records that cannot be read dead letters? Else they fail the batch."""

    def before_batch(self) -> None:  # noqa: B027
        """Prepare for a batch, before anything is written. An exception fails the batch."""

    @abstractmethod
    def dead_letters(self, rows: DataFrame) -> DataFrame:
        """Return the rows that cannot be read, with the columns ``key`` and ``value`` (binary, as
        they came), ``headers`` (as Kafka's source has them, or null); ``source_topic``,
        ``source_partition``, ``source_offset`` and ``source_timestamp``, where the record stood
        (string, int, bigint, timestamp; null where the source has no such thing); ``error_class``,
        the name of the error's class, and ``error_message``, what it says."""

    def explain(
        self, error: OncewardError, rows: Callable[[], DataFrame] | None
    ) -> OncewardError | None:
        """Return a better error for a batch that has failed, or None. The step may learn from
        ``error`` what the next start of the query has to know. :param rows: gives the batch's rows
        below the tag; None where the batch is over."""
        return None


_lock = threading.Lock()
_registered: OrderedDict[str, DecodingStep] = OrderedDict()
_in_run: OrderedDict[str, tuple[DecodingStep, ...]] = OrderedDict()


def register(step: DecodingStep) -> None:
    """Make ``step`` known to the engine by its tag."""
    with _lock:
        _registered[step.tag] = step
        while len(_registered) > _REMEMBERED:
            _registered.popitem(last=False)


def find_steps(frame: DataFrame, run_id: str) -> tuple[DecodingStep, ...]:
    """Return the steps in the plan of the query's run that ``frame`` is a batch of. :raises
    OncewardError: one is not known here, and its records would be lost."""
    with _lock:
        if (steps := _in_run.get(run_id)) is not None:
            # A query that runs for months sees many others come and go
            _in_run.move_to_end(run_id)
            return steps
        # No plan of this process has a tag, and a walk over one costs some calls into the JVM
        if not _registered:
            return ()
    found = []
    for tag in tags_in(frame, TAG):
        step = _registered.get(tag)
        if step is None:
            # Nobody has done anything wrong: others were started again and again before its first
            # record, and the next start defines it anew
            raise OncewardError(
                "the query reads a format by a call that this process has forgotten after "
                f"{_REMEMBERED} later ones ({tag}), so that records that it could not read would "
                "be lost",
                next_step="start the query again, calling decode(…) in what starts it, as "
                "ow.supervise(start) does, or in a new process",
            )
        found.append(step)
    with _lock:
        _in_run[run_id] = tuple(found)
        while len(_in_run) > _REMEMBERED:
            _in_run.popitem(last=False)
    return tuple(found)


def take_dead_letters(frame: DataFrame, step: DecodingStep) -> DataFrame:
    """Return the batch's dead letters. :raises UnsupportedQuery: it cannot be computed twice."""
    # A union with valid rows in the user's plan would not pass a window, a join or a filter.
    return step.dead_letters(rows_below(frame, step.tag))


def explain(
    error: OncewardError, steps: tuple[DecodingStep, ...], frame: DataFrame
) -> OncewardError:
    """Return ``error``, or a better one of one of the steps. ``Fenced`` is returned unchanged.
    :raises JobInterrupted: the query is being stopped, and a step waited for an answer."""
    if isinstance(error, Fenced):
        return error
    return _explained(error, [(each, partial(rows_below, frame, each.tag)) for each in steps])


def _explained(
    error: OncewardError, asked: Sequence[tuple[DecodingStep, Callable[[], DataFrame] | None]]
) -> OncewardError:
    for step, rows in asked:
        try:
            if (better := step.explain(error, rows)) is not None:
                return better
        except JobInterrupted:  # noqa: PERF203
            raise
        except Exception as also:  # noqa: BLE001
            # The error itself is what counts: unheard, its batch would pass for skipped.
            log.warning("no more could be found out about %r: %r", error, also)
    return error


def explain_outside(error: OncewardError) -> OncewardError:
    """Return ``error``, met by Spark outside of a batch's function, or a better one of a step."""
    with _lock:
        asked = [(step, None) for step in reversed(_registered.values())]
    return _explained(error, asked)
