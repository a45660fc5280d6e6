"""What errors of a MySQL or MariaDB server mean for a batch, by their numbers. Driver and executors.

Source: *Server Error Message Reference* of MySQL 8.0, *MariaDB Error Codes*. What may pass by itself (a lost
connection, a deadlock, a lock that somebody held, a server that restarts) lets the batch run again; what the rows or
the table are to blame for stops the query. All of it is of statements before the COMMIT: nothing of the batch is
visible. A lock that was waited for in vain (1205) undoes only its statement; who waited rolls the transaction back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onceward.errors import AccessDenied, ConfigurationError, OncewardError, RowRefused, SendFailed, TableMissing
from onceward.ledger.mysql import Ended, Warned

_DENIED = (1044, 1045, 1142, 1143, 1227, 1370)
_MISSING = (1049, 1054, 1146)
_LOCKED = (1205, 3572)
_PASSING = (1213, 1020, 1053, 1159, 1160, 1161, 1317, 1927, 3024, 4031)
_IN_NO_STATE = (1021, 1114, 1290, 1836)
"""The server is: its disk is full, or it takes no writes (read_only), as one that is promoted only now."""
_NO_LOADING = (1148, 3948, 4166)
_BY_STATEMENT = 1665
_ROWS = (
    1048, 1062, 1169, 1216, 1217, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367, 1406, 1411, 1441, 1451, 1452, 1526,
    1557, 1586, 1644, 1690, 1748, 3140, 3141, 3144, 3156, 3157, 3158, 3819, 3903, 4025, 4038,
)  # fmt: skip


def refusal(number: int, text: str, what: str, warned: bool = False) -> OncewardError:
    """The error of ours for one of the server's.

    :param what: was being done, for the message.
    :param warned: the statement succeeded, and that was a warning.
    """
    said = f"{what}: ({number}) {' '.join(text.split())}"
    if warned:
        return RowRefused(
            f"{said}; the server would have stored something else than it was given",
            next_step="mend or filter such rows in the query, or change the table, and start the query again; nothing "
            "of the batch was written",
        )
    if number in _DENIED:
        return AccessDenied(said, next_step="grant it to the login of the sink's url; then start the query again")
    if number in _MISSING:
        if "onceward_" in text:  # a newer copy has dropped it, or the session that it was in is gone
            return SendFailed(said, next_step="the batch runs again")
        return TableMissing(said, next_step="see whether the table was dropped or changed while the query was running")
    if number in _NO_LOADING:
        return ConfigurationError(said, next_step="SET GLOBAL local_infile = ON; rows are loaded by LOAD DATA LOCAL")
    if number == _BY_STATEMENT:
        return ConfigurationError(
            said, next_step="set binlog_format = ROW, which READ COMMITTED wants; then start the query again"
        )
    if number in _LOCKED:
        return SendFailed(
            f"{said}; somebody has held a lock on it for a minute",
            next_step="the batch runs again; see SHOW PROCESSLIST for who holds the lock",
        )
    if number in _ROWS:
        return RowRefused(
            said,
            next_step="mend or filter such rows in the query, or change the table, and start the query again; nothing "
            "of the batch was written",
        )
    if 1000 <= number < 2000 and number not in (*_PASSING, *_IN_NO_STATE):
        return RowRefused(said, next_step="see what the server says above; nothing of the batch was written")
    return SendFailed(said, next_step="the batch runs again; if it repeats, see that the database answers")


@contextmanager
def named(what: str) -> Iterator[None]:
    """Inside, an error of the server's is raised as ours."""
    import pymysql

    try:
        yield
    except (pymysql.MySQLError, Warned, Ended) as error:
        number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        raise refusal(number, text, what, isinstance(error, Warned)) from error
