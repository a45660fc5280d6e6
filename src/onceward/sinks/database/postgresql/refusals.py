"""What a PostgreSQL server's errors mean for a batch, by their SQLSTATE. Driver and executors.

Source: *PostgreSQL Error Codes*, appendix A of its documentation. What may pass by itself (a lost connection, a
deadlock, a lock that somebody held, a server that restarts) lets the batch run again; what the rows or the table are to
blame for stops the query. All of it is of statements before the COMMIT: nothing of the batch is visible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceward.errors import AccessDenied, OncewardError, RowRefused, SendFailed, TableMissing

_MISSING = ("42P01", "3F000", "42703")
_DENIED = "42501"
_LOCKED = "55P03"
_CLIENTS_DATA = "22000"


def refusal(state: str | None, text: str, what: str) -> OncewardError:
    """The error of ours for one of the server's.

    :param state: its SQLSTATE; None where there was no answer.
    :param what: was being done, for the message.
    """
    said = f"{what}: {' '.join(text.split())}"
    if state == _DENIED:
        return AccessDenied(said, next_step="grant it to the login of the sink's url; then start the query again")
    if state in _MISSING:
        if "onceward_" in text:  # a newer copy has dropped it, or a crash has taken it that nobody waited for
            return SendFailed(said, next_step="the batch runs again")
        return TableMissing(said, next_step="see whether the table was dropped or changed while the query was running")
    if state == _LOCKED:
        return SendFailed(
            f"{said}; somebody has held a lock on it for a minute",
            next_step="the batch runs again; see pg_stat_activity for who holds the lock",
        )
    if state is not None and state[:2] in ("21", "22", "23", "44"):
        return RowRefused(
            said,
            next_step="mend or filter such rows in the query, or change the table, and start the query again; nothing "
            "of the batch was written",
        )
    if state is not None and state[:2] in ("0A", "42", "P0", "54"):
        return RowRefused(said, next_step="see what the server says above; nothing of the batch was written")
    return SendFailed(said, next_step="the batch runs again; if it repeats, see that the database answers")


@contextmanager
def named(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Inside, an error of the server's is raised as ours.

    :param kinds: of the client library's errors; with a ``sqlstate``.
    """
    try:
        yield
    except kinds as error:
        # What the client itself refuses, a NUL in a text, never gets to the server.
        by_the_client = _CLIENTS_DATA if type(error).__name__ == "DataError" else None
        raise refusal(getattr(error, "sqlstate", None) or by_the_client, str(error), what) from error
