"""What errors of a MySQL or MariaDB server mean for a batch, by number. Driver and executors.

Source: *Server Error Message Reference* of MySQL 8.0, *MariaDB Error Codes*. What the rows or the
table are known to be to blame for stops the query. Anything else may pass by itself (a lost
connection, a deadlock, a server that restarts, has no connection left, or takes no writes), and
lets the batch run again: of a number that is not known here nobody knows that it will never pass.
A trigger may name a number of its own (SIGNAL … SET MYSQL_ERRNO), which is meant for good. Nothing
of the batch is visible: the server has refused a statement, or the COMMIT. A lock that was
waited for in vain (1205) undoes only its statement; who waited rolls the transaction back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

from onceward.errors import (
    AccessDenied,
    ConfigurationError,
    ForeignKeyViolation,
    OncewardError,
    RowRefused,
    SendFailed,
    ServerMisconfigured,
    TableMissing,
)
from onceward.sql.ledger.database import SERVER_STEPS, Overdue
from onceward.sql.ledger.mysql import Ended, Warned
from onceward.sql.sink.columns import OWN_TABLE, columns_error

_DENIED = (1044, 1142, 1143, 1227, 1370)
_NO_TABLE = 1146
_MISSING = (1049, 1054, _NO_TABLE)
_LOCKED = (1205, 3572)
_FOREIGN_KEYS = (1216, 1217, 1451, 1452)
_CONFLICTS = (*_FOREIGN_KEYS, 1062, 1169, 1557, 1586, 1761, 1762)
"""Unique indexes and foreign keys: another row is in the way, or missing."""
_OF_EXPRESSIONS = (
    # regular expressions, spatial and JSON functions
    1139, 1416, 3033, 3034, 3037, 3038, 3039, 3040, 3041, 3048, 3055, 3069, 3070, 3071, 3072,
    *range(3140, 3159), 3516, 3548, 3616, 3617, 3643, *range(3685, 3701), 3731, 3732, 4038,
    # functional and multi-valued indexes
    3751, 3752, *range(3903, 3909),
)  # fmt: skip
"""A value of a generated column, a CHECK or an index that the row has none for."""
_ROWS = (
    *_CONFLICTS, *_OF_EXPRESSIONS, 1048, 1118, 1263, 1264, 1265, 1292, 1364, 1365, 1366, 1367,
    1406, 1411, 1441, 1644, 1690, 1748, 3819, 4025,
)  # fmt: skip
_TABLES = (
    167, 1064, 1136, 1305, 1336, 1362, 1363, 1415, 1418, 1419, 1422, 1424, 1442, 1443, 1449, 1785,
    3008, 3098, 3750,
)  # fmt: skip
"""Of a trigger or the table's definition: the server does not do it until that is put right."""
_SETTINGS = {
    _TABLES: "change the table or its trigger, and start the query again; nothing of the batch "
    "was written",
    (1526,): "make the partition for such rows (ALTER TABLE … ADD PARTITION …); then start the "
    "query again",
    (1148, 3948, 4166): "SET GLOBAL local_infile = ON, and the same in the server's configuration "
    "file (MySQL: SET PERSIST); rows are loaded by LOAD DATA LOCAL",
    # MariaDB
    (4084,): "ALTER SEQUENCE … MAXVALUE …; then start the query again",
    (1665,): "set binlog_format = ROW, which READ COMMITTED wants; then start the query again",
}
"""By numbers: what a table or a setting of the server wants."""
_WORDS = {
    (1105, "pxc_strict_mode"): "let the table have what the server asks for (ALTER TABLE … ADD "
    "PRIMARY KEY …), or SET GLOBAL pxc_strict_mode = PERMISSIVE; then start the query again",
    (1047, "LOAD DATA"): "let the url lead to the server itself: rows are loaded by LOAD DATA "
    "LOCAL, which the proxy there (ProxySQL) does not pass on",
}
"""The same, where a number means many things: words that quote no row."""
_NO_SUCH_DEFAULT = 1978
"""Of MariaDB; MySQL puts a default as it is in every mode."""
_NO_SERVERS = 10_000
"""From here on servers write numbers to their logs only; PyMySQL reads large ones as negative."""
_ROW_SIZE = 1118
_COLUMNS = (1059, 1060, 1117, 1166)
"""Names of columns that are too long, alike, or none; and too many of them."""
_STAGING = ("creating the staging table", "bringing rows from the driver", "loading rows into")
"""How errors begin that a staging table is to blame for, and not the target."""
_TOO_LARGE = (1197, 1705)
_WITH_SIZES = (1105, 1180, 3100)
_SIZES = re.compile(
    r"Transaction of size \d+ exceeds specified limit \d+|Maximum writeset size exceeded"
)
"""Words of Group Replication and of Galera, which quote no row; their numbers mean many things."""
_NEXT = {
    **SERVER_STEPS,
    1467: "see whether the table's AUTO_INCREMENT column has come to the end of its type, and "
    "widen it (ALTER TABLE … MODIFY …)",
}
"""If it repeats."""


_MEND_ROWS = (
    "mend or filter such rows in the query, or change the table or its trigger, and start the "
    "query again; nothing of the batch was written"
)


def refusal(number: int, text: str, what: str, warned: bool = False) -> OncewardError:
    """Translate a server's error into a typed one.

    :param what: was being done, for the message.
    :param warned: the statement succeeded, and that was a warning.
    """
    message = f"{what}: ({number}) {' '.join(text.split())}"
    if number == _NO_SUCH_DEFAULT:
        return _default_error(message)
    if warned:
        return RowRefused(
            f"{message}; the server would have stored something else than it was given",
            next_step=_MEND_ROWS,
        )
    if number in _TOO_LARGE or (number in _WITH_SIZES and _SIZES.search(text)):
        return ServerMisconfigured(
            f"{message}; the batch is one transaction, and larger than the server lets one be",
            next_step="raise that limit on the server (max_binlog_cache_size, "
            "group_replication_transaction_size_limit or wsrep_max_ws_size) and start the query "
            "again; max_offsets_per_trigger keeps the batches after this one smaller",
        )
    if number == _ROW_SIZE and what.startswith(_STAGING):
        return ConfigurationError(
            f"{message}: strings are staged as longtext, of which InnoDB has room for some 196 in "
            "a table of 16 KiB pages",
            next_step="write fewer columns of text at once, or with mode='append' pass xa=True, "
            "which stages nothing; nothing of the batch was written",
        )
    if number in _COLUMNS and what.startswith(_STAGING):
        return columns_error(message)
    if number in _FOREIGN_KEYS:
        return ForeignKeyViolation(message, next_step=_MEND_ROWS)
    # The last ones are a trigger's own (SIGNAL)
    if number in _ROWS or number >= _NO_SERVERS or number < 0:
        return RowRefused(message, next_step=_MEND_ROWS)
    setting = _refused_setting(number, text, message)
    if setting is not None:
        return setting
    if number in _LOCKED:
        message = f"{message}; somebody holds a lock that this waited for"
        return SendFailed(
            message,
            next_step="the batch runs again; see SHOW PROCESSLIST for who holds the lock, and of "
            "a staging table performance_schema.metadata_locks (a backup that blocks DDL has a "
            "BACKUP LOCK)",
        )
    then = _NEXT.get(number, "see that the database answers")
    return SendFailed(message, next_step=f"the batch runs again; if it repeats, {then}")


def _default_error(message: str) -> RowRefused:
    return RowRefused(
        f"{message}; the sink's sessions are strict, and in those the server puts no default that "
        "is a date such as 0000-00-00 (NO_ZERO_DATE, NO_ZERO_IN_DATE)",
        next_step="give the column another default (ALTER TABLE … ALTER COLUMN … SET DEFAULT …), "
        "or add it to the frame, and start the query again; nothing of the batch was written",
    )


def _refused_setting(number: int, text: str, message: str) -> OncewardError | None:
    """Return the error if a grant, a table or a setting of the server is in the way."""
    if number in _DENIED:
        return AccessDenied(
            message,
            next_step="grant it to the login of the sink's url; then start the query again",
        )
    if number in _MISSING:
        # A newer copy has dropped it, or the session that it was in is gone
        if number == _NO_TABLE and OWN_TABLE.search(text):
            return SendFailed(message, next_step="nothing; the batch runs again")
        return TableMissing(
            message,
            next_step="see whether the table was dropped or changed while the query was running",
        )
    steps = (step for numbers, step in _SETTINGS.items() if number in numbers)
    said = (step for (of, words), step in _WORDS.items() if number == of and words in text)
    step = next(chain(steps, said), None)
    return None if step is None else ServerMisconfigured(message, next_step=step)


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Raise the server's errors inside the block as typed ones."""
    import pymysql

    try:
        yield
    except (pymysql.MySQLError, Warned, Ended, Overdue) as error:
        raise typed_error(error, what) from error


def is_conflict(error: BaseException | None) -> bool:
    import pymysql

    return isinstance(error, pymysql.MySQLError) and error.args[:1] in [(n,) for n in _CONFLICTS]


def typed_error(error: Exception, what: str) -> OncewardError:
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    return refusal(number, text, what, isinstance(error, Warned))
