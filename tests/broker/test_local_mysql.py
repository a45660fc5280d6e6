"""MySQL and MariaDB for tests: they start, crash and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from onceward.errors import ConfigurationError, ResourceError
from onceward.spark.session.jars import cache_folder
from onceward_testing import LocalMySQL, server_files
from support import newest_mysql
from support.mysql_client import sql_at

KINDS = ["mysql", "mariadb"]
SERVERS = [("mysql", None), ("mariadb", None), ("mysql", "8.0.33"), ("mysql", "newest")]


@pytest.mark.lengthy("chaos")
@pytest.mark.parametrize("kind", KINDS)
def test_it_recovers_from_a_crash_and_is_gone_with_the_block(kind: Any):
    gtids = (
        "@@gtid_mode = 'ON' AND @@enforce_gtid_consistency = 'ON'"
        if kind == "mysql"
        else "NOT @@gtid_strict_mode"
    )
    all_is_told = (
        "@@log_bin AND @@log_slave_updates AND @@binlog_format = 'ROW' AND @@binlog_checksum = "
        "'CRC32' "
        f"AND @@binlog_row_image = 'FULL' AND @@binlog_row_metadata = 'FULL' AND {gtids}"
    )
    who = f"SELECT @@server_id, {'@@server_uuid' if kind == 'mysql' else '@@server_uid'}"
    with LocalMySQL(kind, {"max-connections": "17"}, binlog=True) as server:
        assert sql_at(server.url, f"SELECT @@max_connections, @@local_infile, {all_is_told}") == [
            (17, 1, 1)
        ]
        ((version,),) = sql_at(server.url, "SELECT version()")
        assert ("MariaDB" in version) is (kind == "mariadb")
        # Its own first statements are no changes of anybody's.
        assert not [
            event
            for event in sql_at(server.url, "SHOW BINLOG EVENTS")
            if event[2] in ("Gtid", "Query")
        ]
        sql_at(server.url, "CREATE TABLE kept (n int PRIMARY KEY)")
        sql_at(server.url, "INSERT INTO kept VALUES (1)")
        first, ((number, uuid),) = server.pid, sql_at(server.url, who)
        server.kill()
        server.start()
        assert sql_at(server.url, "SELECT n FROM kept") == [(1,)]
        assert sql_at(server.url, who) == [(number, uuid)]
        kinds = [event[2] for event in sql_at(server.url, "SHOW BINLOG EVENTS IN 'binlog.000001'")]
        assert [kind for kind in kinds if kind.startswith("Write_rows")]
        assert {"binlog.000001", "binlog.000002"} <= {
            file.name for file in server.binlogs.iterdir()
        }
        second, folder = server.pid, server.folder
    assert second is not None
    assert first != second
    assert not psutil.pid_exists(second)
    assert not folder.exists()


def test_a_kind_or_a_version_that_nobody_has_is_refused():
    with pytest.raises(ConfigurationError, match="mysql, mariadb"):
        LocalMySQL("oracle")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"8\.0\.12, 8\.0\.33, or as home="):
        LocalMySQL(version="5.7")


def test_a_library_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A slim image that is not Debian's."""
    monkeypatch.setenv("ONCEWARD_CACHE", str(tmp_path))
    monkeypatch.setattr(server_files.shutil, "which", lambda name: None)
    with pytest.raises(ResourceError, match=r"libaio\.so\.1.*dnf install libaio"):
        server_files.fetch_library("libaio.so.1")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "version"), SERVERS)
def test_a_replica_takes_over_from_a_killed_primary(kind: Any, version: str | None):
    server: dict[str, Any] = {"version": version}
    if version == "newest":
        server = {"home": newest_mysql.home()}
        if server["home"] is None:
            pytest.skip("this machine has no apt, or Debian no MySQL for it")
    with (
        LocalMySQL(kind, binlog=True, **server) as primary,
        LocalMySQL(kind, replica_of=primary, **server) as replica,
    ):
        assert replica.url == primary.url.replace(str(primary.port), str(replica.port))
        sql_at(primary.url, "CREATE TABLE kept (n int PRIMARY KEY)")
        sql_at(primary.url, "INSERT INTO kept VALUES (1)")
        replica.wait_for(primary)
        replica.kill()
        sql_at(primary.url, "INSERT INTO kept VALUES (2)")
        replica.start()
        replica.wait_for(primary)
        primary.kill()
        replica.promote()
        sql_at(replica.url, "INSERT INTO kept VALUES (3)")
        told = _transactions(replica, kind)
        # Its binlogs name the primary's transactions by the primary's names.
        assert (
            len({transaction.split(":")[0] for transaction in told}) == 2
            if kind == "mysql"
            else len(told) == 4
        )
        primary.start()
        primary.follow(replica)
        primary.wait_for(replica)
        for server in (primary, replica):
            assert sql_at(server.url, "SELECT n FROM kept ORDER BY n") == [(1,), (2,), (3,)]
        assert set(_transactions(primary, kind)) == set(told)


def _transactions(server: LocalMySQL, kind: str) -> list[str]:
    """Their names, as its binlogs have them."""
    files = [name for name, *_ in sql_at(server.url, "SHOW BINARY LOGS")]
    events = [
        event for file in files for event in sql_at(server.url, f"SHOW BINLOG EVENTS IN '{file}'")
    ]
    said = [event[5] for event in events if event[2] == "Gtid"]
    return [
        text.split("'")[1] if kind == "mysql" else text.split("GTID ")[1].split()[0]
        for text in said
    ]


def test_two_kinds_do_not_replicate():
    with pytest.raises(ConfigurationError, match="two servers of one kind"):
        LocalMySQL("mariadb", binlog=True).follow(LocalMySQL(binlog=True))


@pytest.mark.slow
def test_a_server_that_stays_unpacked_starts_from_there():
    """Unpacking 8.0.33 takes as long as all else together."""
    for _ in range(2):
        with LocalMySQL(version="8.0.33", binlog=True) as server:
            assert sql_at(server.url, "SELECT version()") == [("8.0.33",)]
            (home,) = cache_folder().glob("servers/mysql-8.0.33")
            mine = server.folder / "server" / "bin" / "mysqld"
            assert (
                mine.read_bytes()[:4] == (home / "bin" / "mysqld").read_bytes()[:4] == b"\x7fELF"
            )
