"""Can the changes of a MySQL or MariaDB server be read without loss, and what has an administrator
to run for that? Called by ``onceward doctor --mysql``.

What a query would refuse to start with (:mod:`onceward.mysql.source.requirements`) fails here;
what it would not, and may regret later, is a warning. It changes nothing on the server; whether
the login may read the binlog is tried by reading its first bytes.

:func:`lines` may be passed to a client as they are: what is for people, or for the server's
configuration file, is a comment. No line has a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from onceward.cli.doctor.checks import failure
from onceward.cli.doctor.kinds import CheckResult, ok, warn
from onceward.errors import OncewardError
from onceward.mysql.binlog.sql_tables import quote
from onceward.mysql.snapshot.catalogue import list_selected_tables
from onceward.mysql.source import requirements
from onceward.mysql.source.connection import Server
from onceward.mysql.source.grants import SelectGrant
from onceward.mysql.source.requirements import GRANTS
from onceward.mysql.source.settings import ChangesSettings, make_settings

SETTINGS: Mapping[str, str] = {
    "binlog_format": "'ROW'",
    "binlog_row_image": "'FULL'",
    "binlog_row_metadata": "'FULL'",
    "binlog_row_value_options": "''",
    "binlog_checksum": "'CRC32'",
    "binlog_expire_logs_seconds": "604800",
    "server_id": "1",
    "gtid_strict_mode": "ON",
}
"""The value that each is to have."""

_GTIDS = (
    "enforce_gtid_consistency = WARN",
    "enforce_gtid_consistency = ON",
    "gtid_mode = OFF_PERMISSIVE",
    "gtid_mode = ON_PERMISSIVE",
    "gtid_mode = ON",
)
# A replica that is a step behind stops, and applications get errors that WARN would have shown
_GTID_STEPS = (
    "-- GTIDs, on this server and all that replicate with it, each step on all of them before the "
    "next, once the error log has no warnings of the first, and before the last once "
    "Ongoing_anonymous_transaction_count was 0 on each (MySQL's manual, Enabling GTID "
    "Transactions Online):"
)
_FILE = "-- In the server's configuration file, below [{section}]; then start the server again:"
_LATER = (
    "-- SET GLOBAL is forgotten when the server ends. In its configuration file, below [mariadb]:"
)
_OPEN = "-- Sessions that are open keep what they had: let applications connect anew."


@dataclass(frozen=True, slots=True)
class Missing:
    """What was found to be other than it has to be."""

    settings: tuple[str, ...] = ()
    """Of :data:`SETTINGS`, or ``gtid_mode``."""
    no_binlog: bool = False
    replication: bool = False
    """The login may not read the binlog, or may not ask where it ends."""
    grants: tuple[SelectGrant, ...] = ()


def lines(missing: Missing, dialect: Literal["mysql", "mariadb"], account: str) -> list[str]:
    """Return the statements to run, in their order; nothing if nothing is missing.

    :param account: as ``CURRENT_USER()`` says it: ``user@host``.
    """
    if missing.no_binlog:
        return _file(dialect)
    return [*_set(missing.settings, dialect), *_granted(missing, dialect, account)]


def _file(dialect: str) -> list[str]:
    """Return lines of ``my.cnf``: a binlog needs a restart, so all settings go there at once."""
    needs = {
        "log_bin": "binlog",
        **{name: value.strip("'") for name, value in SETTINGS.items() if value != "''"},
    }
    if dialect == "mysql":
        needs |= {"gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
    section = "mysqld" if dialect == "mysql" else "mariadb"
    return [
        _FILE.format(section=section),
        *(f"--   {name} = {value}" for name, value in needs.items()),
    ]


def _set(names: Iterable[str], dialect: str) -> Iterator[str]:
    some = list(dict.fromkeys(names))
    plain = [name for name in some if name in SETTINGS]
    where = "PERSIST" if dialect == "mysql" else "GLOBAL"
    for name in plain:
        yield f"SET {where} {name} = {SETTINGS[name]};"
    if "gtid_mode" in some:
        yield _GTID_STEPS
        yield from (f"--   SET PERSIST {step};" for step in _GTIDS)
    if plain and dialect == "mariadb":
        yield _LATER
        yield from (f"--   {name} = {SETTINGS[name].strip(chr(39))}" for name in plain)
    if some:
        yield _OPEN


def _granted(missing: Missing, dialect: str, account: str) -> Iterator[str]:
    user, _, host = account.rpartition("@")
    login = f"{_text(user)}@{_text(host)}"
    if missing.replication:
        yield f"{GRANTS[dialect]} {login};"
    yield from (f"{one.to(login)};" for one in missing.grants)


def _text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


_DAY = 86_400
_COMPRESSED = ("binlog_transaction_compression", "log_bin_compress")


def check_mysql(url: str, tables: Sequence[str]) -> tuple[list[CheckResult], list[str]]:
    """Return the findings, and what an administrator should run (:func:`lines`).

    :param tables: as for ``mysql_changes``; none: all that the login can see.

    :raises ConfigurationError: the address or a table's name cannot be.
    """
    settings = make_settings(
        url=url, tables=list(tables) or "*.*", starting="latest", max_bytes_per_batch=1 << 20,
        heartbeat_seconds=60, pass_over=(), values="text",
    )  # fmt: skip
    try:
        with closing(Server(settings)) as server:
            return _looked_at(
                server, settings.for_server(server.lower_case_table_names), whole=bool(tables)
            )
    except OncewardError as error:
        return [failure(error)], []


def _looked_at(
    server: Server, settings: ChangesSettings, *, whole: bool
) -> tuple[list[CheckResult], list[str]]:
    needed = requirements.check_requirements(server, settings, whole=whole)
    warned = list(_warnings(server))
    ((account,),) = server.query("SELECT CURRENT_USER()")
    product = "MySQL" if server.dialect == "mysql" else "MariaDB"
    version = ".".join(map(str, server.version))
    found = [ok(f"{product} {version} at {server.where}, server {server.identity}, as {account}")]
    found += [_requirement_line(one) for one in needed]
    found += [finding for _, finding in warned]
    found += _tables(server, settings, needed)
    missing = _missing(needed, [name for name, finding in warned if finding.status != "ok"])
    return found, lines(missing, server.dialect, str(account))


def _is_amiss(one: requirements.Requirement) -> bool:
    """Return whether it is wrong; without GTIDs a query reads, only not on after a failover."""
    return not one.is_met or (one.name == "gtid_mode" and one.actual != "ON")


def _requirement_line(one: requirements.Requirement) -> CheckResult:
    if not _is_amiss(one):
        return ok(f"{one.name}: {one.actual}")
    return CheckResult(
        "warn" if one.is_met else "fail", f"{one.name}: {one.actual}; {one.why}", one.fix
    )


def _missing(needed: Iterable[requirements.Requirement], warned: Iterable[str]) -> Missing:
    unfit = [one for one in needed if _is_amiss(one)]
    names = [one.name for one in unfit]
    return Missing(
        settings=tuple(
            name for name in (*names, *warned) if name in SETTINGS or name == "gtid_mode"
        ),
        no_binlog="log_bin" in names,
        replication=any(
            name in names for name in ("REPLICATION CLIENT", "REPLICATION SLAVE", "SLAVE MONITOR")
        ),
        grants=tuple(dict.fromkeys(missing for one in unfit for missing in one.grants)),
    )


def _warnings(server: Server) -> Iterator[tuple[str, CheckResult]]:
    """Yield what a query would start with all the same, each with the setting that it is about."""
    variables = server.variables(
        "binlog_checksum", "binlog_expire_logs_seconds", "expire_logs_days",
        "max_binlog_total_size", "gtid_strict_mode", "wsrep_on", "wsrep_gtid_mode",
        "binlog_expire_logs_auto_purge", *_COMPRESSED,
    )  # fmt: skip
    yield "binlog_expire_logs_seconds", _retention(variables)
    if variables.get("binlog_checksum") == "NONE":
        what = (
            "binlog_checksum: NONE; damage to a binlog is noticed only where it can no longer be "
            "read"
        )
        yield "binlog_checksum", warn(what, "set it to CRC32")
    if variables.get("gtid_strict_mode") == "OFF":
        what = (
            "gtid_strict_mode: OFF; numbers may come out of order, and a query that meets such "
            "behind a failover is refused"
        )
        yield "gtid_strict_mode", warn(what, "set it to ON")
    is_galera = server.dialect == "mariadb" and variables.get("wsrep_on") == "ON"
    if is_galera and variables.get("wsrep_gtid_mode") != "ON":
        what = (
            "wsrep_gtid_mode: OFF; each node of Galera numbers transactions by itself, and a "
            "query that is led to another node may lose changes, or repeat some"
        )
        fix = (
            "set it to ON on all nodes, with one wsrep_gtid_domain_id and log_slave_updates=ON; "
            "or let the address lead to one node"
        )
        yield "wsrep_gtid_mode", warn(what, fix)
    for name in _COMPRESSED:
        if variables.get(name) == "ON":
            yield name, ok(f"{name}: ON; compressed binlogs are read, too")
    if variables.get("max_binlog_total_size", "0") != "0":
        what = (
            f"max_binlog_total_size: {variables['max_binlog_total_size']}; binlogs go by their "
            "size, read or not"
        )
        yield ("", warn(what, "see that it is room for what is written in several days"))


def _retention(variables: dict[str, str]) -> CheckResult:
    """Report how long a query may be away; where there are two settings both hold."""
    days = float(variables.get("expire_logs_days", "0"))
    seconds = float(variables.get("binlog_expire_logs_seconds", "0")) or days * _DAY
    if not seconds or variables.get("binlog_expire_logs_auto_purge") == "OFF":
        return ok("binlogs are kept until somebody removes them")
    if seconds < _DAY:
        return warn(
            f"binlogs are kept for {seconds:.0f} seconds: a query that is away for longer has to "
            "begin anew",
            "let binlog_expire_logs_seconds be several days, more than a query will ever be away",
        )
    return ok(f"binlogs are kept for {seconds / _DAY:.3g} days")


def _tables(
    server: Server, settings: ChangesSettings, needed: Iterable[requirements.Requirement]
) -> Iterator[CheckResult]:
    """Check the engines and primary keys of the tables."""
    seen = list_selected_tables(server, settings)
    engines = {
        (str(database), str(table)): str(engine)
        for database, table, engine in server.query(
            "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES"
        )
    }
    with_key = {
        (str(database), str(table))
        for database, table in server.query(
            # Not TABLE_CONSTRAINTS: MariaDB shows that to nobody who may only SELECT.
            "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.STATISTICS WHERE "
            "INDEX_NAME = 'PRIMARY'"
        )
    }
    amiss = 0
    for one in seen:
        name = ".".join(one)
        if engines.get(one, "").lower() != "innodb":
            amiss += 1
            yield warn(
                f"{name} is of the engine {engines.get(one)}, which has no consistent view and no "
                'rollback: starting="initial" refuses it, and a statement that fails halfway has '
                "changed rows all the same",
                f"ALTER TABLE {quote(one[0])}.{quote(one[1])} ENGINE = InnoDB",
            )
        if one not in with_key:
            amiss += 1
            yield warn(
                f'{name} has no primary key: its changes have no key, and starting="initial" '
                "refuses it",
                "give it one",
            )
    refused = any(not one.is_met for one in needed if one.name.startswith("SELECT on "))
    if seen and not amiss and not refused:
        yield ok(f"{len(seen)} tables, all of InnoDB and with a primary key")
