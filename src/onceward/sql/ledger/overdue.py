"""How long a session waits for the word of a server that may have none. Driver; executors with
MySQL's sessions.

A server that stands still, and a COMMIT that waits for a standby that is gone, keep their
connection: the kernel answers its keepalives, and no limit of the server's own applies. So whoever
waits for an answer looks every moment whether it has been long enough, says in the log that it
waits, and asks whether anybody waits for it in turn (:mod:`onceward.patience`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from onceward import patience, surroundings

log = logging.getLogger(__name__)

STATEMENT_SECONDS = 90.0
"""Longer than servers are asked to wait themselves: they know why."""
COMMIT_SECONDS = READ_SECONDS = 30.0
LOOKS_EVERY_SECONDS = 0.25
_SAID_EVERY_SECONDS = 30.0
_SECONDS_AT_LEAST = 600.0
_ROWS_PER_SECOND = 100
"""The slowest server, with triggers and indexes, that is not taken for one that stands still."""


class Overdue(Exception):
    """There is no answer, and no more waiting. The session is of no use any more, and whether the
    statement is carried out is not known.
    """


def seconds_for(rows: int) -> float:
    """Return the seconds that a statement over so many rows may take."""
    return _SECONDS_AT_LEAST + rows / _ROWS_PER_SECOND


class Patience:
    """Of one session.

    :param place: for messages, where the server is.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._limit = STATEMENT_SECONDS
        self._what = "a statement"
        self._since = surroundings.monotonic()
        self._warned_at = 0.0

    def begin(self) -> None:
        """Start the clock: a statement is sent."""
        self._since = surroundings.monotonic()
        self._warned_at = 0.0

    def look(self) -> None:
        """Check the deadline: nothing has arrived for a moment.

        :raises Overdue: it has been long enough.
        :raises Exception: what those raise who are asked.
        """
        patience.ask()
        waited = surroundings.monotonic() - self._since
        # The only limit that always applies: the kernel of a stopped server still answers
        # keepalives, and `statement_timeout` does not end a COMMIT that waits for a synchronous
        # standby.
        if waited > self._limit:
            raise Overdue(f"{self._place} has not answered {self._what} for {self._limit:g} s")
        if waited - self._warned_at > _SAID_EVERY_SECONDS:
            self._warned_at = waited
            log.warning("%s has not answered %s for %.0f s", self._place, self._what, waited)

    @contextmanager
    def of(self, seconds: float, what: str) -> Iterator[None]:
        """Limit the statements inside the block to so many seconds."""
        before = self._limit, self._what
        self._limit, self._what = seconds, what
        try:
            yield
        finally:
            self._limit, self._what = before
