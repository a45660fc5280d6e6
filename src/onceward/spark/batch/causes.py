"""An exception of the JVM and its causes as values: class, condition, message. Driver only.

What a failure *is* is told by these, never by words found somewhere in a text: a message may quote
a record, and then whoever wrote the record would choose the error. Called by
:mod:`onceward.spark.batch.job`, :mod:`.write_errors` and
:mod:`.kafka_reader`; judged by :mod:`onceward.spark.batch.failures`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException

_DEPTH = 20
# Each asks the JVM
_FRAMES = 60
_HELPERS = "org.apache.spark.util.Utils"


@dataclass(frozen=True, slots=True)
class Thrown:
    """One exception of a chain.

    :param kind: the name of its class, with the package.
    :param condition: Spark's name (``KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE``), or empty.
    :param thrown_in: the class of the innermost frame of its stack, or empty.
    :param called_by: Spark's innermost class there, its helpers left out, or empty.
    """

    kind: str
    message: str = ""
    condition: str = ""
    thrown_in: str = ""
    called_by: str = ""

    def is_a(self, *names: str) -> bool:
        """Return whether its class has such a name in any package: a vendor may have moved it."""
        return self.kind.rpartition(".")[2] in names

    def __str__(self) -> str:
        return f"{self.kind.rpartition('.')[2]}: {self.message}"


def thrown_by(error: BaseException) -> tuple[Thrown, ...]:
    """Return what the JVM threw behind PySpark's ``error``, outermost first; empty: nothing.

    A task's exception is among the causes if it could be serialised; else the job's own is last.
    """
    return thrown_from(_java_exception(error))


def thrown_from(throwable: Any) -> tuple[Thrown, ...]:
    """Return a Java ``Throwable`` and its causes, as :func:`thrown_by` does."""
    found: list[Thrown] = []
    # The JVM is gone, or lacks a class that py4j asks for: what is known will do
    with suppress(Exception):
        while throwable is not None and len(found) < _DEPTH:
            found.append(_read_throwable(throwable))
            throwable = throwable.getCause()
    return tuple(found)


def has_kind(causes: Sequence[Thrown], *names: str) -> Thrown | None:
    """Return the first whose class has one of these names."""
    return next((one for one in causes if one.is_a(*names)), None)


def has_condition(causes: Sequence[Thrown], condition: str) -> Thrown | None:
    """Return the first with this error condition of Spark's, or one below it."""
    return next((one for one in causes if one.condition.partition(".")[0] == condition), None)


_JVM_FAILED = (
    "OutOfMemoryError",
    "InternalError",
    "ExceptionInInitializerError",
    "NoClassDefFoundError",
    "NoSuchMethodError",
)
"""Of the JVM, or of what it was put together from; after the first, another may last as long as
the JVM."""


def is_verdict(error: BaseException) -> bool:
    """Return whether ``error`` is what a library of the JVM says of what it was asked: the line to
    the JVM did not break, and the JVM has not failed itself, for want of memory say."""
    causes = thrown_by(error)
    return bool(causes) and has_kind(causes, *_JVM_FAILED) is None


def catalog_is_away(causes: Sequence[Thrown]) -> bool:
    """Return whether an ``AnalysisException`` tells of a catalog that does not answer, and not of
    what was asked: there is an error of somebody else than Spark behind it
    (``HiveExternalCatalog.withClient``)."""
    return any(not one.kind.startswith("org.apache.spark.") for one in causes[1:])


def _java_exception(error: BaseException) -> Any:
    """Return the Java exception that py4j's, or PySpark's own, has; PySpark may keep text only."""
    if isinstance(error, CapturedException):
        return error._origin or getattr(error.__context__, "java_exception", None)
    return getattr(error, "java_exception", None)


def _read_throwable(throwable: Any) -> Thrown:
    kind, frames = str(throwable.getClass().getName()), throwable.getStackTrace()
    condition = ""
    if kind.startswith("org.apache.spark."):
        # Most of them are SparkThrowable, and have one; not all
        with suppress(Exception):
            condition = str(throwable.getCondition() or "")
    thrown_in = str(frames[0].getClassName()) if len(frames) else ""
    callers = (str(frame.getClassName()) for frame in islice(frames, _FRAMES))
    sparks = (name for name in callers if name.startswith("org.apache.spark."))
    called_by = next((name for name in sparks if not name.startswith(_HELPERS)), "")
    return Thrown(kind, str(throwable.getMessage() or ""), condition, thrown_in, called_by)
