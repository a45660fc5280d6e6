"""The conversation with a MySQL or MariaDB server, by PyMySQL: the ledger's tables, and how many
rows others have.

The only module of ``onceward_verify`` that imports ``pymysql``. Everything is read in one snapshot
(START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY), so that a pipeline that runs on changes
nothing of what is seen; nothing is written.

A transaction keeps the metadata lock of each table that it has read: an ALTER TABLE would wait for
it, and everybody else for that. Going back to a savepoint gives up what was locked after it, and
keeps the snapshot, as mysqldump does: each question is asked behind one. Where a table was altered
since the snapshot the server says so, and there is no answer.

InnoDB notes with every row which transaction wrote it, and tells no client: rows can be counted,
and not told apart.
"""

from __future__ import annotations

import os
import re
from typing import Any, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from onceward_verify.database import Database, Found, Kept
from onceward_verify.findings import CannotTell, Unavailable, WrongUsage

try:
    import pymysql
except ImportError as missing:
    raise Unavailable(
        "the checker reads MySQL and MariaDB with PyMySQL, which is not installed",
        next_step='pip install "onceward[mysql]"',
    ) from missing

_SECONDS_TO_CONNECT = 30
_PORT = 3306
_PART = r"\s*(?:`((?:[^`]|``)+)`|([0-9A-Za-z$_\u0080-\uffff]+))\s*"
_NAME = re.compile(rf"(?:{_PART}\.)?{_PART}")
_TEXTS = ("ssl_ca", "ssl_cert", "ssl_key")
_FLAGS = ("ssl_verify_cert", "ssl_verify_identity", "ssl_disabled")
_SNAPSHOT = (
    # a server may give fewer rows than there are
    "SET SESSION sql_select_limit = 18446744073709551615",
    "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)


class MySQL(Database):
    """See the module.

    :param url: ``mysql://…`` or ``mariadb://…``, as the sink takes it.
    """

    tells_writers = False

    def __init__(self, url: str) -> None:
        said = _said(url)
        try:
            self._connection: Any = pymysql.connect(**said, charset="utf8mb4")
        except (
            pymysql.MySQLError,
            OSError,
            RuntimeError,
        ) as error:  # OSError: of a certificate's file
            raise Unavailable(
                f"the database does not let us in: {error}",
                next_step="check --database-url, and that the server is up",
            ) from error

    def __enter__(self) -> MySQL:
        for statement in _SNAPSHOT:
            self._carried_out(statement)
        return self

    def table(self, name: str) -> Found | None:
        """:raises CannotTell: it is a view, or kept by an engine that has no snapshots."""
        parts = _NAME.fullmatch(name)
        if parts is None:
            return None
        schema, own_name = _bare(parts[1], parts[2]), _bare(parts[3], parts[4])
        rows = self._asked(
            "SELECT table_schema, table_name, engine, @@lower_case_table_names, DATABASE() "
            "FROM information_schema.tables WHERE table_schema = COALESCE(%s, DATABASE()) AND "
            "table_name = %s",
            schema,
            own_name,
        )
        for its_schema, its_name, engine, any_case, here in rows:
            if not any_case and (its_schema, its_name) != (schema or here, own_name):
                # the catalogue may have compared without case, and on this server it matters
                continue
            if engine != "InnoDB":
                raise CannotTell(
                    f"table {name} is a view, or kept by an engine that has no snapshots "
                    f"({engine})",
                    next_step="look at the table that the pipeline has written to",
                )
            return Found((str(its_schema), str(its_name)), f"{its_schema}.{its_name}")
        return None

    def ledger_ends(self, ledger: Found, pipeline_id: str) -> int | None:
        rows = self._asked(f"SELECT sequence FROM {_sql(ledger)} WHERE pipeline = %s", pipeline_id)  # noqa: S608
        return int(rows[0][0]) if rows and int(rows[0][0]) >= 0 else None

    def batches(self, batches: Found, pipeline_id: str) -> list[Kept]:
        rows = self._asked(
            f"SELECT sequence, record FROM {_sql(batches)} WHERE pipeline = %s ORDER BY sequence, "  # noqa: S608
            f"state",
            pipeline_id,
        )
        return [Kept(int(sequence), record.encode()) for sequence, record in rows]

    def rows(self, table: Found) -> dict[int, int]:
        ((number,),) = self._asked(f"SELECT COUNT(*) FROM {_sql(table)} WHERE %s", True)  # noqa: S608
        return {0: int(number)}

    def staging_tables(self, ledger: Found) -> list[str]:
        schema, _ = _pair(ledger)
        rows = self._asked(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", schema
        )
        return sorted(str(name) for (name,) in rows if name.startswith("onceward_staging_"))

    def _asked(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        self._carried_out("SAVEPOINT asked")
        rows = self._carried_out(query, parameters)
        self._carried_out("ROLLBACK TO SAVEPOINT asked")
        return rows

    def _carried_out(
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
                "pipeline's; if one was "
                "altered meanwhile, ask again",
            ) from error


def _pair(table: Found) -> tuple[str, str]:
    return cast("tuple[str, str]", table.key)  # as table() has made it


def _sql(table: Found) -> str:
    """Inside a statement with parameters."""
    return ".".join(
        "`" + part.replace("`", "``").replace("%", "%%") + "`" for part in _pair(table)
    )


def _bare(quoted: str | None, plain: str | None) -> str | None:
    return quoted.replace("``", "`") if quoted else plain


def _said(url: str) -> dict[str, Any]:
    """What PyMySQL needs to connect."""
    refused = WrongUsage(
        "--database-url is no address of a MySQL or MariaDB database",
        next_step="pass mysql://user@host:port/database, as the sink is told; the password may "
        "stand in MYSQL_PWD; "
        f"behind ? there may be {', '.join((*_TEXTS, *_FLAGS, 'connect_timeout'))}",
    )
    parts = urlsplit(url)
    try:
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
    password = (
        os.environ.get("MYSQL_PWD", "") if parts.password is None else unquote(parts.password)
    )
    login = {"user": unquote(parts.username or ""), "password": password}
    return {"host": host, "port": port, "database": database, **login, **more}
