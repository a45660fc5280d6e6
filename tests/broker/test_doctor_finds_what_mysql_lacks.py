"""``onceward doctor --mysql`` on real servers: who follows its advice has a server whose changes
can be read.
"""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from onceward.cli import app
from onceward.cli.doctor.mysql_changes import check_mysql
from onceward_testing import LocalMySQL
from onceward_testing.free_ports import free_ports
from support import newest_mysql
from support.mysql_client import sql_at

PASSWORD = "not-for-the-screen"
HOUR = "3600"
AS_IT_COMES: dict[str, Any] = {
    "MariaDB": {
        "kind": "mariadb",
        "settings": {"log-bin": "", "binlog-expire-logs-seconds": HOUR, "binlog-checksum": "NONE"},
    },
    "MySQL": {"settings": {"binlog-expire-logs-seconds": HOUR}},
    "MySQL 8.0.33": {"settings": {"binlog-expire-logs-seconds": HOUR}, "version": "8.0.33"},
    "newest MySQL": {"settings": {"binlog-expire-logs-seconds": HOUR, "gtid-mode": "OFF"}},
}


def doctor(url: str, tables: str = "") -> tuple[int, list[str]]:
    done = CliRunner().invoke(
        app, ["doctor", "--mysql", url, *(["--tables", tables] if tables else [])]
    )
    assert PASSWORD not in done.output
    return done.exit_code, done.output.splitlines()


def amiss(lines: list[str]) -> list[str]:
    """What is not ok, in its first word."""
    found = [line.split(maxsplit=1) for line in lines if line.startswith(("fail", "warn"))]
    return sorted(f"{status} {said.split(':')[0]}" for status, said in found)


@pytest.mark.parametrize(
    "name",
    [
        name if name == "MariaDB" else pytest.param(name, marks=pytest.mark.slow)
        for name in AS_IT_COMES
    ],
)
def test_who_follows_the_advice_can_be_read(name: str) -> None:
    """All at once, as an administrator, line by line; the second look finds nothing."""
    given = dict(AS_IT_COMES[name])
    if name == "newest MySQL":
        given["home"] = newest_mysql.home() or pytest.skip("no MySQL of Debian's for this machine")
    with LocalMySQL(**given) as server:
        prepare(server)
        url = f"{server.kind}://cdc:{PASSWORD}@127.0.0.1:{server.port}?ssl_disabled=true"
        status, said = doctor(url, "shop.orders, shop.we`ird")
        wanted = [
            "fail REPLICATION CLIENT",
            "fail binlog_row_metadata",
            "fail shop.orders",
            "fail shop.we`ird",
        ]
        wanted += (
            ["fail binlog_format", "warn binlog_checksum", "warn gtid_strict_mode"]
            if name == "MariaDB"
            else ["warn gtid_mode"]
        )
        assert (status, amiss(said)) == (
            1,
            sorted([*wanted, "warn binlogs are kept for 3600 seconds"]),
        )
        for line in said:
            if line.endswith(";"):  # also the steps to GTIDs: nobody replicates with this one
                sql_at(server.url, line.removeprefix("--   "))
        status, said = doctor(url, "shop.orders,shop.we`ird")
        assert (status, amiss(said)) == (0, [])
        assert "ok   2 tables, all of InnoDB and with a primary key" in said
        assert not [line for line in said if line.startswith("--") or line.endswith(";")]
        foreign_keys_and_the_like(server, url)
        if server.kind == "mysql":
            server.kill()
            server.start()
            assert doctor(url, "shop.orders,shop.we`ird")[0] == 0, "SET PERSIST outlasts a restart"


def prepare(server: LocalMySQL) -> None:
    sql_at(server.url, "CREATE DATABASE shop")
    for table in ("orders", "`we``ird`"):
        sql_at(server.url, f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, n INT)")
    sql_at(server.url, f"CREATE USER 'cdc'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")


def foreign_keys_and_the_like(server: LocalMySQL, url: str) -> None:
    """What no line of SQL sets right, as a login sees it that may do nothing but what was granted
    above.
    """
    sql_at(server.url, "CREATE TABLE shop.items (id INT, o INT) ENGINE = MyISAM")
    sql_at(
        server.url,
        "CREATE TABLE shop.parts (id INT PRIMARY KEY, o INT COMMENT 'ON DELETE CASCADE', "
        "CONSTRAINT `k``1` FOREIGN KEY "
        "(o) REFERENCES shop.orders (id) ON DELETE SET NULL, FOREIGN KEY (o) REFERENCES "
        "shop.orders (id))",
    )
    sql_at(server.url, "GRANT SELECT ON shop.* TO 'cdc'@'127.0.0.1'")
    logged = sql_at(server.url, "SELECT VERSION() LIKE '9.%'") == [
        (1,)
    ]  # from 9.6 on a cascade is in the binlog
    status, said = doctor(url)
    keys = [] if logged else ["fail shop.parts"]
    others = [
        "warn shop.items has no primary key",
        "warn shop.items is of the engine MyISAM, which has no consistent view and no rollback",
    ]
    assert (status, amiss(said)) == (0 if logged else 1, [*keys, *others])
    assert logged or any(
        "changed by the foreign key k`1 (ON DELETE SET NULL)" in line for line in said
    )


@pytest.mark.slow
def test_a_server_without_a_binlog_is_told_what_its_file_has_to_say() -> None:
    with LocalMySQL("mariadb") as server:
        prepare(server)
        found, lines = check_mysql(server.url, [])
        assert [finding.what.split(";")[0] for finding in found if finding.status == "fail"] == [
            "log_bin: OFF"
        ]
        assert not [line for line in lines if not line.startswith("--")]
        file = dict(line[2:].strip().split(" = ") for line in lines if " = " in line)
        assert "[mariadb]" in lines[0]
    with LocalMySQL(
        "mariadb", {name.replace("_", "-"): value for name, value in file.items()}
    ) as server:
        prepare(server)
        found, lines = check_mysql(server.url, [])
        assert {finding.status for finding in found} == {"ok"}, found
        assert lines == []


def test_a_server_that_is_not_there_and_a_login_that_it_does_not_know() -> None:
    (port,) = free_ports(1)
    status, said = doctor(f"mysql://cdc:{PASSWORD}@127.0.0.1:{port}")
    assert (status, len(said)) == (69, 1)
    assert f"127.0.0.1:{port}" in said[0]
    done = CliRunner().invoke(app, ["doctor", "--mysql", f"postgres//{PASSWORD}"])
    assert done.exit_code != 0
    assert PASSWORD not in f"{done.output} {done.exception}"
