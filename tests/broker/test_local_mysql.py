"""MySQL and MariaDB for tests: they start, crash and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from mysql_client import sql_at
from onceward.errors import ConfigurationError, ResourceError
from onceward.testing import LocalMySQL, native_libraries

KINDS = ["mysql", "mariadb"]


@pytest.mark.parametrize("kind", KINDS)
def test_it_recovers_from_a_crash_and_is_gone_with_the_block(kind: Any):
    with LocalMySQL(kind, {"max-connections": "17"}) as server:
        assert sql_at(server.url, "SELECT @@max_connections, @@local_infile") == [(17, 1)]
        ((version,),) = sql_at(server.url, "SELECT version()")
        assert ("MariaDB" in version) is (kind == "mariadb")
        sql_at(server.url, "CREATE TABLE kept (n int)")
        sql_at(server.url, "INSERT INTO kept VALUES (1)")
        first = server.pid
        server.kill()
        server.start()
        assert sql_at(server.url, "SELECT n FROM kept") == [(1,)]
        second, folder = server.pid, server.folder
    assert second is not None
    assert first != second
    assert not psutil.pid_exists(second)
    assert not folder.exists()


def test_a_kind_that_nobody_knows_is_refused():
    with pytest.raises(ConfigurationError, match="mysql, mariadb"):
        LocalMySQL("oracle")  # type: ignore[arg-type]


def test_a_library_that_cannot_be_had_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A slim image that is not Debian's."""
    monkeypatch.setenv("ONCEWARD_CACHE", str(tmp_path))
    monkeypatch.setattr(native_libraries.shutil, "which", lambda name: None)
    with pytest.raises(ResourceError, match=r"libaio\.so\.1.*dnf install libaio"):
        native_libraries._fetched("libaio.so.1")


@pytest.mark.parametrize("kind", KINDS)
def test_with_binlogs_each_is_a_server_of_its_own_whose_binlogs_tell_all(kind: Any):
    gtids = "@@gtid_mode = 'ON' AND @@enforce_gtid_consistency = 'ON'" if kind == "mysql" else "@@gtid_strict_mode"
    all_told = (
        "@@log_bin AND @@log_slave_updates AND @@binlog_format = 'ROW' AND @@binlog_checksum = 'CRC32' "
        f"AND @@binlog_row_image = 'FULL' AND @@binlog_row_metadata = 'FULL' AND {gtids}"
    )
    uuid = "@@server_uuid" if kind == "mysql" else "@@server_uid"
    with LocalMySQL(kind, binlog=True) as server:
        ((told, *who),) = sql_at(server.url, f"SELECT {all_told}, @@server_id, {uuid}")
        assert told == 1
        assert who[0] > 1
        # Its own first statements are no changes of anybody's.
        assert not [row for row in sql_at(server.url, "SHOW BINLOG EVENTS") if row[2] in ("Gtid", "Query")]
        sql_at(server.url, "CREATE TABLE kept (n int PRIMARY KEY)")
        sql_at(server.url, "INSERT INTO kept VALUES (1)")
        server.kill()
        server.start()
        assert sql_at(server.url, "SELECT n FROM kept") == [(1,)]
        ((*again,),) = sql_at(server.url, f"SELECT @@server_id, {uuid}")
        assert again == who
        kinds = [row[2] for row in sql_at(server.url, "SHOW BINLOG EVENTS IN 'binlog.000001'")]
        assert [kind for kind in kinds if kind.startswith("Write_rows")]
        assert {"binlog.000001", "binlog.000002"} <= {file.name for file in server.binlogs.iterdir()}
        assert LocalMySQL(kind, binlog=True)._settings["server-id"] != str(who[0])
