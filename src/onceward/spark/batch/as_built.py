"""Objects of the user's that go to the tasks: as they were built, whatever they open later in the
driver. Driver only; called by the sinks and sources that hold such objects.
"""

from __future__ import annotations

from typing import Any

from pyspark import cloudpickle

from onceward.errors import ConfigurationError, OncewardError

restore = cloudpickle.loads
"""Makes the object of :func:`pickled` again, in a task."""


def pickled(
    thing: Any, next_step: str, *, refusal: type[OncewardError] = ConfigurationError
) -> bytes:
    """Return ``thing`` as PySpark would send it to the tasks. :raises OncewardError: ``refusal``,
    with ``next_step``: it cannot be sent."""
    try:
        return bytes(cloudpickle.dumps(thing))  # type: ignore[no-untyped-call]
    except Exception as error:
        raise refusal(
            f"{type(thing).__name__} cannot be sent to the tasks: {error}", next_step=next_step
        ) from error


def pickled_again(thing: Any, next_step: str, before: bytes | None) -> bytes:
    """Return ``thing`` as it is now, with renewed settings; or ``before``, where it has opened
    since what cannot be sent. :raises ConfigurationError: there is nothing before."""
    try:
        return pickled(thing, next_step)
    except ConfigurationError:
        if before is None:
            raise
        return before
