"""What an administrator has to run so that a server's changes can be read. Called by
:mod:`mysql_changes`; pure.

SQL lines that may be passed to a client as they are; what is for people, or for the server's
configuration file, is a comment. No line has a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from onceward.mysql.source.grants import SelectGrant
from onceward.mysql.source.requirements import GRANTS

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
    "enforce_gtid_consistency = ON",
    "gtid_mode = OFF_PERMISSIVE",
    "gtid_mode = ON_PERMISSIVE",
    "gtid_mode = ON",
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
        yield from (f"SET PERSIST {step};" for step in _GTIDS)
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
