"""Settings of a MySQL or MariaDB whose binlogs tell all changes, and one as the replica of another.

Called by :mod:`local_mysql`. What is set here is what :func:`onceward.mysql_changes` asks of a server.
"""

from __future__ import annotations

import secrets
from typing import Literal

Dialect = Literal["mysql", "mariadb"]

NAME = "binlog"
"""How the names of the binlogs begin: ``binlog.000001``."""

_BOTH = {
    "log-bin": NAME,
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "binlog-checksum": "CRC32",  # MariaDB's default is NONE
    "log-slave-updates": "1",  # a replica's binlogs tell the same transactions
    "relay-log": "relay",  # without the machine's name, which may change
    "relay-log-recovery": "1",  # sync-binlog is off: a crash may cut the relay log short
}
_OF = {
    "mysql": {"gtid-mode": "ON", "enforce-gtid-consistency": "ON"},
    "mariadb": {"gtid-strict-mode": "1"},
}


def binlog_settings(dialect: Dialect) -> dict[str, str]:
    """Options of a server, under a number that no other server has. MySQL gives itself a UUID, too, in its data."""
    return {**_BOTH, **_OF[dialect], "server-id": str(secrets.randbelow(2**31 - 2) + 2)}
