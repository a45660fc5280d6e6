"""Conversation with a MySQL or MariaDB server, by PyMySQL: ledger, and row counts.

The only module of the checker that imports ``pymysql``. Everything is read in one snapshot (START
TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY), so that a running pipeline changes nothing of it;
nothing is written.

InnoDB notes with every row which transaction wrote it, and shows it to no client: rows can be
counted, and not attributed.
"""

from __future__ import annotations

import os
import re
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from onceward_verify.database import DatabaseSnapshot, StoredRecord, TableRef
from onceward_verify.findings import CannotTell, Unavailable, WrongUsage

try:
    import pymysql
except ImportError as missing:
    raise Unavailable(
        "the checker reads MySQL and MariaDB with PyMySQL, which is not installed",
        next_step='pip install "onceward[mysql]"',
    ) from missing

_SECONDS_TO_CONNECT = 30
_LONGEST_QUERY_S = 3_600
_PORT = 3306
_PART = r"\s*(?:`((?:[^`]|``)+)`|([0-9A-Za-z$_\u0080-\uffff]+))\s*"
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")
_TEXTS = ("ssl_ca", "ssl_cert", "ssl_key")
_FLAGS = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
_SNAPSHOT = (
    # Of metadata: the server's default is a year
    "SET SESSION lock_wait_timeout = 60",
    # A server may be set to return fewer rows than there are.
    "SET SESSION sql_select_limit = 18446744073709551615",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)


class MySQLSnapshot(DatabaseSnapshot):
    """Snapshot of a MySQL or MariaDB database.

    :param url: ``mysql://…`` or ``mariadb://…``, as the sink takes it.
    """

    names_writers = False

    def __init__(self, url: str) -> None:
        arguments = _connection_arguments(url)
        try:
            self._connection: Any = pymysql.connect(
                **arguments, charset="utf8mb4", read_timeout=_SECONDS_TO_CONNECT
            )
            # Its own word on a login comes soon; a count of a large table takes its time
            self._connection._read_timeout = _LONGEST_QUERY_S
        # OSError comes of a certificate's file.
        except (pymysql.MySQLError, OSError, RuntimeError) as error:
            raise Unavailable(
                f"the database does not let us in: {error}",
                next_step="check --database-url, and that the server is up",
            ) from error

    def __enter__(self) -> MySQLSnapshot:
        for statement in _SNAPSHOT:
            self._execute(statement)
        return self

    def is_replica(self) -> bool:
        # Any login may ask for these, but not for SHOW REPLICA STATUS. Aurora's has the second
        names = "@@GLOBAL.read_only, ' ', @@GLOBAL.innodb_read_only"
        ((words,),) = self._query(f"SELECT CONCAT({names})")
        return bool(set(str(words).split()) - {"0", "OFF"})

    def find_table(self, name: str) -> TableRef | None:
        """Return the table of that name.

        :raises CannotTell: it is a view, or in an engine that has no snapshots.
        """
        parts = _NAME.fullmatch(name)
        if parts is None:
            return None
        schema, own_name = _unquote(parts[1], parts[2]), _unquote(parts[3], parts[4])
        rows = self._query(
            "SELECT table_schema, table_name, engine, @@lower_case_table_names, DATABASE() "
            "FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) AND "
            "table_name = %s",
            schema,
            own_name,
        )
        for its_schema, its_name, engine, any_case, here in rows:
            if not any_case and (its_schema, its_name) != (schema or here, own_name):
                # The catalogue may have compared without case, and on this server it matters.
                continue
            if engine != "InnoDB":
                raise CannotTell(
                    f"table {name} is a view, or kept by an engine that has no snapshots "
                    f"({engine})",
                    next_step="look at the table that the pipeline has written to",
                )
            key = (str(its_schema), str(its_name))
            return TableRef(key, ".".join(key), follows=self._follows(*key))
        return None

    def _follows(self, schema: str, name: str) -> bool:
        rules = self._query(
            "SELECT 1 FROM information_schema.referential_constraints WHERE constraint_schema = "
            "%s AND table_name = %s AND delete_rule = 'CASCADE'",
            schema,
            name,
        )
        return bool(rules)

    def ledger_end(self, ledger: TableRef, pipeline_id: str) -> int | None:
        query = _compose("SELECT sequence FROM {} WHERE pipeline = %s", ledger)
        rows = self._query(query, pipeline_id)
        return int(rows[0][0]) if rows and int(rows[0][0]) >= 0 else None

    def batches(self, batches: TableRef, pipeline_id: str) -> list[StoredRecord]:
        query = "SELECT sequence, record FROM {} WHERE pipeline = %s ORDER BY sequence, state"
        rows = self._query(_compose(query, batches), pipeline_id)
        return [StoredRecord(int(sequence), record.encode()) for sequence, record in rows]

    def row_counts(self, table: TableRef) -> dict[int, int]:
        ((number,),) = self._query(_compose("SELECT COUNT(*) FROM {} WHERE %s", table), True)
        return {0: int(number)}

    def staging_tables(self, ledger: TableRef) -> list[str]:
        schema, _ = _pair(ledger)
        rows = self._query(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", schema
        )
        return sorted(str(name) for (name,) in rows if name.startswith("onceward_staging_"))

    def _query(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        # A transaction keeps the metadata lock of each table that it has read: an ALTER TABLE
        # would wait for it, and everybody else for that. ROLLBACK TO SAVEPOINT releases locks
        # taken after the savepoint and keeps the snapshot, as in mysqldump. Where a table was
        # altered since the snapshot, the server says so (ER_TABLE_DEF_CHANGED), and there is no
        # answer.
        self._execute("SAVEPOINT asked")
        rows = self._execute(query, parameters)
        self._execute("ROLLBACK TO SAVEPOINT asked")
        return rows

    def _execute(
        self, statement: str, parameters: tuple[object, ...] | None = None
    ) -> list[tuple[Any, ...]]:
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return list(cursor.fetchall())
        except pymysql.MySQLError as error:
            raise CannotTell(
                f"the database does not answer: {error}",
                next_step="see that this login may SELECT from the ledger's tables and the "
                "pipeline's; if one was altered meanwhile, ask again",
            ) from error


def _pair(table: TableRef) -> tuple[str, str]:
    return cast("tuple[str, str]", table.key)  # from find_table


def _compose(query: str, table: TableRef) -> str:
    """Insert the quoted name of ``table`` into ``query``, a statement with parameters."""
    names = (part.replace("`", "``").replace("%", "%%") for part in _pair(table))
    return query.format(".".join(f"`{name}`" for name in names))


def _unquote(quoted: str | None, plain: str | None) -> str | None:
    return quoted.replace("``", "`") if quoted else plain


def _connection_arguments(url: str) -> dict[str, Any]:
    """Parse ``url`` to what PyMySQL needs to connect.

    :raises WrongUsage: it is no such address.
    """
    refused = WrongUsage(
        "--database-url is no address of a MySQL or MariaDB database",
        next_step="pass mysql://user@host:port/database, as the sink is told; the password may "
        "stand in MYSQL_PWD; behind ? there may be "
        f"{', '.join((*_TEXTS, *_FLAGS, 'connect_timeout'))}",
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        raise refused from None
    database = unquote(parts.path[1:])
    if not host or not database or "/" in database or "@" in parts.path + parts.query:
        raise refused
    more: dict[str, Any] = {"connect_timeout": _SECONDS_TO_CONNECT}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _TEXTS:
            more[name] = value
        elif name in _FLAGS and value.lower() in ("true", "1", "false", "0"):
            more[name] = value.lower() in ("true", "1")
        elif name == "connect_timeout" and value.isdecimal():
            more[name] = int(value)
        else:
            raise refused
    password = os.environ.get("MYSQL_PWD", "")
    if parts.password is not None:
        password = unquote(parts.password, errors="surrogateescape")
    # Of text PyMySQL makes Latin-1; servers have what clients send, which is UTF-8 as a rule
    sent = password.encode(errors="surrogateescape")
    login = {"user": unquote(parts.username or ""), "password": sent}
    return {"host": host, "port": port, "database": database, **login, **more}
