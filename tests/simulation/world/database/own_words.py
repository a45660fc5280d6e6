"""What is peculiar to PostgreSQL or to MySQL and MariaDB: settings of a session, locks by name,
what is prepared.

Sources: *SET*, *LOCK*, *PREPARE TRANSACTION*, *COMMIT PREPARED*, ``pg_prepared_xacts`` in
PostgreSQL's manual; *Locking Functions*, *XA Transactions*, *LOAD DATA Statement* in MySQL's. ``XA
RECOVER`` lists what is prepared from then on, and yet another session that would end it hears
XAER_NOTA as long as the session that prepared it is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from simulation.world.database.locks import EXCLUSIVE, SHARED, Lock
from simulation.world.database.results import DONE, Result, Understood
from simulation.world.database.trouble import Trouble

Make = Callable[[Any, Any], Understood]
_FORMAT = 1_330_528_069


def _says(*row: Any) -> Make:
    """One row, always the same; nothing: it is done."""
    result = [row] if row else []
    return lambda server, found: Understood(lambda s, t, p: Result(result), begins=False)


def _setting(server: Any, found: re.Match[str]) -> Understood:
    """``SET LOCAL`` is for the transaction, ``SET`` for the session."""
    if server.is_mysql:
        return _settings_of_mysql(found.string)
    local, name, value = found["local"], found["name"], found["value"].strip("'")

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        _set(session, transaction if local else session, name, value)
        return DONE

    return Understood(run, begins=bool(local))


def _set(session: Any, where: Any, name: str, value: str) -> None:
    if name == "synchronous_commit":
        where.durable = value == "on"
    elif name == "lock_timeout":
        where.lock_s = (
            float(value[:-2]) / 1000 if value.endswith("ms") else float(value.rstrip("s"))
        )
    elif name == "statement_timeout":
        where.statement_s = float(value) / 1000
    elif name == "idle_in_transaction_session_timeout":
        session.idle_s = float(value) / 1000  # which is asked for within transactions alone


def _settings_of_mysql(text: str) -> Understood:
    told = text.removeprefix("SET ").removeprefix("SESSION ")
    said = dict(part.strip().split(" = ", 1) for part in told.split(","))

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        for name, value in said.items():
            if name == "autocommit":
                session.autocommit = value == "1"
            elif name in ("innodb_lock_wait_timeout", "lock_wait_timeout"):
                session.lock_s = transaction.lock_s = float(value)
            elif name in ("wait_timeout", "idle_write_transaction_timeout"):
                session.idle_s = float(value)
        return DONE

    return Understood(run, begins=False)


def _begin(server: Any, found: re.Match[str]) -> Understood:
    settings = [
        part.removeprefix("SET LOCAL ").split(" = ", 1) for part in found.string.split("; ")[1:]
    ]

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        session.transaction = transaction
        for name, value in settings:
            _set(session, transaction, name, value.strip("'"))
        return DONE

    return Understood(run, opens=True, commits=server.is_mysql)


def _lock_table(server: Any, found: re.Match[str]) -> Understood:
    name = server.name_of(found["table"])

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        session.lock(server.table(name, transaction).lock, transaction, SHARED)
        return DONE

    return Understood(run)


def _number(server: Any, found: re.Match[str]) -> Understood:
    return Understood(lambda session, transaction, parameters: Result([(transaction.number,)]))


def _room(server: Any, found: re.Match[str]) -> Understood:
    return Understood(
        lambda session, transaction, parameters: Result([(server.room,)]), begins=False
    )


def _prepare(server: Any, found: re.Match[str]) -> Understood:
    gid = found["name"] if "name" in found.re.groupindex else name_of(found)

    def act(session: Any) -> Trouble | None:
        transaction = session.transaction
        if transaction is None or transaction.failed:
            return Trouble("failed", "there is no transaction to prepare")
        try:
            server.prepare(transaction, gid)
        except Trouble as trouble:
            if server.is_mysql:
                transaction.failed = True
            else:
                # "PREPARE TRANSACTION … fails for any reason: the current transaction is canceled"
                server.roll_back(transaction)
            return trouble
        session.transaction = None
        if server.is_mysql:
            session.attached.append(transaction)
        else:
            transaction.session = None
        return None

    return Understood(act=act)


def _prepared(server: Any, found: re.Match[str]) -> Understood:
    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        return Result([(gid,) for gid in sorted(server.prepared) if gid.startswith(parameters[0])])

    return Understood(run)


def _end_prepared(server: Any, found: re.Match[str]) -> Understood:
    commits, name = (
        found["how"] == "COMMIT",
        found["name"] if "name" in found.re.groupindex else name_of(found),
    )

    def act(session: Any) -> Trouble | None:
        prepared = server.prepared.get(name)
        if server.is_read_only:
            return Trouble("read only", "cannot execute it during recovery")
        if prepared is None:
            return Trouble(
                "unknown", f'prepared transaction with identifier "{name}" does not exist'
            )
        if (
            prepared.session is not None
        ):  # MySQL: of the session that has prepared it, until that has ended
            return Trouble("unknown", "XAER_NOTA: Unknown XID")
        if commits:
            prepared.durable = True
            server.now_true(prepared)
        else:
            server.roll_back(prepared)
        return None

    return Understood(act=act)


# ── MySQL and MariaDB ──


def _get_lock(server: Any, found: re.Match[str]) -> Understood:
    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        name, seconds = parameters
        lock = server.names.setdefault(name, Lock())
        sim = server.sim
        return Result([(int(lock.take(sim, session, EXCLUSIVE, sim.now + seconds)),)])

    return Understood(run, begins=False)


def _release_lock(server: Any, found: re.Match[str]) -> Understood:
    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        lock = server.names.get(parameters[0])
        if lock is None or session not in lock.holders:
            return Result([(None,)])
        lock.give_back(server.sim, session)
        session.locks.remove(lock)
        return Result([(1,)])

    return Understood(run, begins=False)


def name_of(found: re.Match[str]) -> str:
    """The two parts of an XA name, as one."""
    return "\n".join(bytes.fromhex(found[part]).decode() for part in ("first", "second"))


def _xa_start(server: Any, found: re.Match[str]) -> Understood:
    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        session.transaction = transaction
        return DONE

    return Understood(run, opens=True)


def _xa_recover(server: Any, found: re.Match[str]) -> Understood:
    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        rows = []
        for gid in sorted(server.prepared):
            first, _, second = gid.partition("\n")
            data: Any = (first + second).encode()
            rows.append(
                (_FORMAT, len(first), len(second), f"0x{data.hex()}" if found["hex"] else data)
            )
        return Result(rows)

    return Understood(run, begins=False)


def _load(server: Any, found: re.Match[str]) -> Understood:
    name = server.name_of(found["table"])

    def run(session: Any, transaction: Any, parameters: Sequence[Any]) -> Result:
        table = server.table(name, transaction)
        session.lock(table.lock, transaction, SHARED)
        rows = parameters[0].rows_of(table)
        if table.name in session.own_tables:
            table.rows.extend(rows)
        else:
            transaction.appended.append((table, rows))
        return Result(touched=len(rows))

    return Understood(run, writes=True)


_XID = r"X'(?P<first>[0-9a-f]*)', X'(?P<second>[0-9a-f]*)', \d+$"
SHAPES: tuple[tuple[re.Pattern[str], Make], ...] = (
    (
        re.compile(
            r"SET (?:SESSION )?(?P<local>LOCAL )?(?P<name>(?!sql_mode)\w+) = (?P<value>\S+)(?:, "
            r"\w+ = \d+)*$"
        ),
        _setting,
    ),
    (re.compile(r"SET CONSTRAINTS ALL (?:IMMEDIATE|DEFERRED)$"), _says()),
    (re.compile(r"SELECT set_config\(name, '0', true\) FROM pg_settings"), _says()),
    (re.compile(r"SET (?:LOCAL DateStyle|SESSION TRANSACTION|NAMES) "), _says()),
    (
        re.compile(
            r"(?:BEGIN(?: ISOLATION LEVEL READ COMMITTED(?:; SET LOCAL .+)?)?|START TRANSACTION)$"
        ),
        _begin,
    ),
    (re.compile(r"LOCK TABLE ONLY (?P<table>\S+) IN ROW EXCLUSIVE MODE$"), _lock_table),
    (re.compile(r"SELECT 1 FROM (?P<table>\S+) LIMIT 0$"), _lock_table),
    (re.compile(r"SELECT 1$"), _says(1)),
    (re.compile(r"SELECT txid_current\(\)$"), _number),
    (re.compile(r"SELECT current_setting\('max_prepared_transactions'\)::int$"), _room),
    (
        re.compile(r"SELECT reset_val FROM pg_settings WHERE name = 'quote_all_identifiers'$"),
        _says("off"),
    ),
    (re.compile(r"PREPARE TRANSACTION '(?P<name>[^']+)'$"), _prepare),
    (re.compile(r"SELECT gid FROM pg_prepared_xacts WHERE .* starts_with\(gid, %s\)$"), _prepared),
    (re.compile(r"(?P<how>COMMIT|ROLLBACK) PREPARED '(?P<name>[^']+)'$"), _end_prepared),
    (re.compile(r"SET SESSION sql_mode = "), _says()),
    (re.compile(r"SELECT @@(?:local_infile|max_error_count)$"), _says(1)),
    (re.compile(r"SELECT GET_LOCK\(%s, %s\)$"), _get_lock),
    (re.compile(r"SELECT RELEASE_LOCK\(%s\)$"), _release_lock),
    (re.compile(r"XA START " + _XID), _xa_start),
    (re.compile(r"XA END " + _XID), _says()),
    (re.compile(r"XA PREPARE " + _XID), _prepare),
    (re.compile(r"XA (?P<how>COMMIT|ROLLBACK) " + _XID), _end_prepared),
    (re.compile(r"XA RECOVER(?P<hex> CONVERT XID)?$"), _xa_recover),
    (re.compile(r"SELECT MAX\(OCTET_LENGTH\(WEIGHT_STRING"), _says(8, 8, 8)),
    (
        re.compile(r"LOAD DATA LOCAL INFILE %s INTO TABLE (?P<table>\S+) CHARACTER SET binary "),
        _load,
    ),
)
