"""What a PostgreSQL server's errors mean for a batch, by their SQLSTATE. Driver and executors.

Source: *PostgreSQL Error Codes*, appendix A of its documentation. What the rows or the table are
known to be to blame for stops the query. Anything else may pass by itself (a lost connection, a
deadlock, a lock that somebody held, a server that restarts, has no connection left, or takes no
writes), and lets the batch run again: of a code that is not known here nobody knows that it will
never pass. A class that is none of the server's is a trigger's own (RAISE … USING ERRCODE), and
meant for good. Nothing of the batch is visible: the server has refused a statement, or the COMMIT.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceward.errors import (
    AccessDenied,
    ForeignKeyViolation,
    OncewardError,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    TableMissing,
)
from onceward.sql.sink.columns import OWN_TABLE, columns_error

_NO_TABLE = "42P01"
_MISSING = (_NO_TABLE, "3F000", "42703")
_NO_NAME = ("0A000", "42601", "42602")
"""Of a table: three parts, more of them, and what is none in another way."""
_DENIED = "42501"
_LOCKED = "55P03"
_SEQUENCE_ENDS = "2200H"
_OWN_TABLES = ("creating the staging table", "dropping the staging table", "numbering the rows")
"""How errors begin of which no row is to blame: a table of the sink's own is made or dropped."""
_CHECK, _NOT_IN_STATE = "23514", "55000"
_POLICY, _NO_PARTITION = "ExecWithCheckOptions", "ExecFindPartition"
_BY_FUNCTION: dict[tuple[str, str | None], tuple[type[OncewardError], str]] = {
    (_DENIED, _POLICY): (
        RowRefused,
        "mend or filter rows in the query that the login of the sink's url may not write, or "
        "change the policy of the table (pg_policies), and start the query again; nothing of the "
        "batch was written",
    ),
    (_CHECK, _NO_PARTITION): (
        ServerMisconfigured,
        "make the partition for such rows (CREATE TABLE … PARTITION OF …), or a DEFAULT one; then "
        "start the query again",
    ),
    (_NOT_IN_STATE, "ExecCheckIndexConstraints"): (
        ServerMisconfigured,
        "ALTER TABLE … DROP CONSTRAINT … that is DEFERRABLE, or make it anew as NOT DEFERRABLE: "
        "rows of a key replace others by no such one; then start the query again",
    ),
    (_NOT_IN_STATE, "CheckCmdReplicaIdentity"): (
        ServerMisconfigured,
        "ALTER TABLE … REPLICA IDENTITY USING INDEX … (or FULL), which a published table without "
        "a primary key needs for deletes; then start the query again",
    ),
}
"""Of a code that is of several things, by the server's function that has raised it."""
_COLUMNS = ("42701", "54011")
"""Two of them alike in what the server keeps of their names, and too many of them."""
_CLIENTS_DATA = "22000"
_ROWS = ("09", "20", "21", "22", "23", "27", "2D", "38000", "44", "54", "P0")
"""Cardinality, data, integrity constraints, WITH CHECK OPTION, limits, and what a trigger refuses
or does with such rows.
"""
_FOREIGN_KEYS = ("23001", "23503")
CONFLICTS = ("23001", "23503", "23505", "23P01")
"""Foreign keys, unique indexes, exclusion constraints: another row is in the way, or missing."""
_TABLES = ("0A", "2F", "38", "39", "42")
"""Not supported, functions, syntax, access: of a trigger or a table that may be put right."""
_OTHERS = (
    "00", "01", "02", "03", "08", "0B", "0F", "0L", "0P", "0Z", "10", "24", "25", "26", "28", "2B",
    "34", "3B", "3D", "3F", "40", "53", "55", "57", "58", "72", "F0", "HV", "XX",
)  # fmt: skip
"""All other classes that a server has."""
_NEXT = {
    # Of a connection that fails a task hears words only: its login may have been refused
    "": "see that the database answers, that the login and the password of the sink's url are "
    "still right, and pg_hba.conf",
    "25006": "see that the url leads to a server that takes writes (SELECT pg_is_in_recovery())",
    "28": "see that the login and the password of the sink's url are still right, and pg_hba.conf",
    "53100": "make room on the server's disk",
    "53200": "see in the server's log what it has no room for: shared memory for locks "
    "(max_locks_per_transaction), memory, or with xa=True prepared transactions "
    "(max_prepared_transactions must be at least the tasks of a batch, for all pipelines "
    "together; see pg_prepared_xacts for who has them)",
    "53400": "raise the limit that the server names, for the login of the sink's url (ALTER ROLE "
    "… SET …)",
    "53300": "raise max_connections, or the CONNECTION LIMIT of the role or the database that the "
    "server names, or close what holds them (pg_stat_activity)",
}
"""If it repeats; by the longest beginning of the code."""


def refusal(state: str | None, text: str, what: str, *, by: str | None = None) -> OncewardError:
    """Translate a server's error into a typed one.

    :param state: its SQLSTATE; None where there was no answer.
    :param what: was being done, for the message.
    :param by: the server's function that has raised it, as far as that is known.
    """
    message = f"{what}: {f'({state}) ' if state else ''}{' '.join(text.split())}"
    code = state or ""
    if (code, by) in _BY_FUNCTION:
        kind, next_step = _BY_FUNCTION[code, by]
        return kind(message, next_step=next_step)
    if code in _COLUMNS and what.startswith(_OWN_TABLES):
        return columns_error(message)
    if code == _DENIED:
        return AccessDenied(
            message,
            next_step="grant it to the login of the sink's url; then start the query again",
        )
    if code in _NO_NAME and what.startswith("looking at table"):
        return TableMissing(
            message,
            next_step="let table=, or the column table, name it as in SQL: table, schema.table, "
            'and odd names as "Name", such as "a.b.c"',
        )
    if code in _MISSING:
        # A newer copy has dropped it, or a crash has taken it that nobody waited for
        if code == _NO_TABLE and OWN_TABLE.search(text):
            return SendFailed(message, next_step="nothing; the batch runs again")
        return TableMissing(
            message,
            next_step="see whether the table was dropped or changed while the query was running",
        )
    if code.startswith(_ROWS) or (code and not code.startswith((*_TABLES, *_OTHERS))):
        return _refused(code, message, what)
    if code.startswith(_TABLES):
        return ServerMisconfigured(
            message,
            next_step="change the table or its trigger, and start the query again; nothing of the "
            "batch was written",
        )
    if code == _LOCKED:
        message = f"{message}; somebody holds a lock that this waited for"
        return SendFailed(
            message, next_step="the batch runs again; see pg_stat_activity for who holds the lock"
        )
    then = _NEXT.get(code) or _NEXT.get(code[:2]) or "see that the database answers"
    return SendFailed(message, next_step=f"the batch runs again; if it repeats, {then}")


def _refused(code: str, message: str, what: str) -> OncewardError:
    """Return the error for what would be refused again: the rows, as a rule."""
    if code == _SEQUENCE_ENDS:
        return ServerMisconfigured(
            message,
            next_step="ALTER SEQUENCE … AS bigint NO MAXVALUE, and where it numbers a "
            "column that is too narrow, ALTER TABLE … ALTER COLUMN … TYPE bigint; then start the "
            "query again",
        )
    if what.startswith(_OWN_TABLES):
        return ServerMisconfigured(
            message,
            next_step="let the login of the sink's url make and drop tables in the ledger's "
            "schema, and temporary ones, which an event trigger of the database refuses "
            "(pg_event_trigger); then start the query again",
        )
    return (ForeignKeyViolation if code in _FOREIGN_KEYS else RowRefused)(
        message,
        next_step="mend or filter such rows in the query, or change the table or its trigger, "
        "and start the query again; nothing of the batch was written",
    )


@contextmanager
def translate_errors(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise the server's errors inside the block as typed ones.

    :param kinds: of the client library's errors; with a ``sqlstate``.
    """
    try:
        yield
    except kinds as error:
        raise typed_error(error, what) from error


def typed_error(error: Exception, what: str) -> OncewardError:
    # What the client itself refuses, a NUL in a text, never gets to the server.
    by_the_client = _CLIENTS_DATA if type(error).__name__ == "DataError" else None
    state = getattr(error, "sqlstate", None) or by_the_client
    return refusal(state, str(error), what, by=_raised_by(error))


def _raised_by(error: Exception) -> str | None:
    """Return the server's function, which is the same in all languages."""
    if hasattr(error, "diag"):
        function: str | None = error.diag.source_function
        return function
    # ADBC does not tell it. What a trigger raises has no table by default.
    if "violates row-level security policy" in str(error):
        return _POLICY
    details = dict(getattr(error, "details", None) or ())
    has_no_name = "PG_DIAG_CONSTRAINT_NAME" not in details
    return _NO_PARTITION if has_no_name and "PG_DIAG_TABLE_NAME" in details else None
