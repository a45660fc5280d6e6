"""Kinds of misconfiguration as a table: what each row finds, and what it leaves alone."""

from __future__ import annotations

import runpy
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pymysql
import pytest

from onceward.cli.doctor import targets
from onceward.cli.doctor.kinds import DAY_MS, KINDS, Misconfiguration, diagnose
from onceward.cli.doctor.mysql_changes import _requirement_line, _warnings
from onceward.mysql.source.requirements import _check_replica, check_requirements

PAGE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "tables" / "doctor.py"))
FACTS: Mapping[str, tuple[str, str]] = {
    "transaction-timeout": ("899999", "900000"),
    "transactional-id-expiration": (str(DAY_MS - 1), str(DAY_MS)),
    "offsets-retention": ("1439", "1440"),
    "auto-create-topics": ("true", "false"),
    "ledger-compaction": ("compact,delete", "compact"),
    "ledger-message-size": ("1048575", "1048588"),
    "ledger-segments": ("1073741824", "52428800"),
    "ledger-timestamps-before": ("599999", "600000"),
    "ledger-timestamps-after": ("599999", "600000"),
    "output-message-size": ("1999999", "2000000"),
    "output-timestamps": ("86400000", "9223372036854775807"),
    "source-retention": ("3600000", "604800000"),
    "source-unclean-election": ("true", "false"),
    "pooler": ("yes", "no"),
    "fsync": ("off", "on"),
    "standby": ("on", "off"),
    "prepared-transactions": ("0", "100"),
    "row-security": ("yes", "no"),
    "local-infile": ("0", "1"),
    "flush-log": ("2", "1"),
    "sync-binlog": ("0", "1"),
    "read-only": ("1", "0"),
    "redis-cluster": ("1", "0"),
    "redis-replica": ("slave", "master"),
    "redis-append-only": ("no", "yes"),
    "redis-fsync": ("everysec", "always"),
    "redis-evictions": ("allkeys-lru", "noeviction"),
    "opensearch-replicas": ("0", "1"),
    "registry-subject": ("missing", "there"),
    "registry-compatibility": ("NONE", "BACKWARD"),
} | {
    f"{topic}-{of}": values
    for topic in ("ledger", "output", "transaction-log")
    for of, values in {
        "replication": ("2", "3"),
        "min-in-sync": ("1", "2"),
        "unclean-election": ("true", "false"),
    }.items()
}
"""By kind: a value that is amiss, and the nearest that is not."""
BESIDE = {
    "transaction.timeout.ms": "900000",
    "largest.source.record": "2000000",
    "cleanup.policy": "delete",
    "replication.factor": "3",
}


def found(kind: Misconfiguration, value: str | None) -> list[str]:
    facts = {**BESIDE, kind.setting: value}
    names = {"name": "t", "servers": "b:1", "login": "etl", "table": "t", "alike": "none"}
    return [one.kind for one in diagnose(kind.subject, "it", facts, **names)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_is_found_by_its_value_and_by_no_other(kind: Misconfiguration) -> None:
    amiss, sound = FACTS[kind.name]
    assert kind.name in found(kind, amiss)
    assert kind.name not in found(kind, sound)
    assert kind.name not in found(kind, None), "what may not be read is not amiss"


def test_kinds_have_names_of_their_own_and_enough_of_them() -> None:
    names = [kind.name for kind in KINDS]
    names += [row[0] for rows in PAGE["_FOUND_ELSEWHERE"].values() for row in rows]
    assert len(names) == len(set(names))
    assert len(KINDS) >= 15
    assert set(FACTS) == {kind.name for kind in KINDS}


def test_a_topic_that_is_compacted_keeps_records_whatever_its_retention() -> None:
    facts = {"retention.ms": "1000", "cleanup.policy": "compact"}
    assert diagnose("source topic", "it", facts, name="t", servers="b:1") == []
    facts = {"retention.ms": "-1", "cleanup.policy": "delete"}
    assert diagnose("source topic", "it", facts, name="t", servers="b:1") == []


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.fix.startswith("kafka-configs")],
    ids=lambda kind: kind.name,
)
def test_a_command_sets_what_the_kind_asks_for(kind: Misconfiguration) -> None:
    """Whoever runs the printed ``kafka-configs`` has a value that the kind leaves alone."""
    line = kind.fix.format(name="t", servers="b:1", largest_source_record="2000000")
    setting, _, value = shlex.split(line)[-1].partition("=")
    assert setting == kind.setting
    assert kind.name not in found(kind, value)


def test_no_fix_is_forgotten_when_the_server_is_started_again() -> None:
    elsewhere = [row[4] for rows in PAGE["_FOUND_ELSEWHERE"].values() for row in rows]
    fixes = [*(kind.fix for kind in KINDS), *elsewhere]
    redis = [fix for fix in fixes if "CONFIG SET" in fix]
    mysql = [fix for fix in fixes if "SET GLOBAL" in fix]
    assert len(redis) >= 3
    assert [fix for fix in redis if "CONFIG REWRITE" not in fix] == []
    assert len(mysql) >= 4
    assert [fix for fix in mysql if "configuration file" not in fix] == []


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE["PAGE"].read_text(encoding="utf-8") == PAGE["page"](), (
        "run python docs/tables/doctor.py"
    )


WITHOUT_CHANGES = {
    "binlog_format": "STATEMENT", "binlog_row_image": "MINIMAL", "binlog_row_metadata": "MINIMAL",
    "binlog_row_value_options": "PARTIAL_JSON", "gtid_mode": "OFF", "server_id": "0",
    "log_replica_updates": "OFF", "binlog_checksum": "NONE", "gtid_strict_mode": "OFF",
    "binlog_expire_logs_seconds": "60", "max_binlog_total_size": "1000", "wsrep_on": "ON",
    "wsrep_gtid_mode": "OFF",
}  # fmt: skip


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
def test_the_page_marks_what_fails_at_a_source(dialect: str) -> None:
    def source(log_bin: str) -> Any:
        variables = {**WITHOUT_CHANGES, "log_bin": log_bin}
        return SimpleNamespace(
            dialect=dialect, is_replica=lambda: True,
            variables=lambda *names: {each: variables[each] for each in names if each in variables},
        )  # fmt: skip

    on, settings = source("ON"), cast(Any, None)
    found = [*check_requirements(source("OFF"), settings), *check_requirements(on, settings)]
    found += _check_replica(on, WITHOUT_CHANGES)
    status = {one.name: _requirement_line(one).status for one in found if one.actual != "ON"}
    status |= {name: one.status for name, one in _warnings(on)}
    # Only the last has no name of a setting that is set in this way
    status["max_binlog_total_size"] = status.pop("")
    marks = {
        name: mark
        for _, names, _, _, _, mark in PAGE["_FOUND_ELSEWHERE"]["MySQL source"]
        for name in names.split(", ")
    }
    assert len(status) > 10
    assert status == {name: "fail" if marks[name] else "warn" for name in status}


class Replica:
    """A connection to a MySQL that is read_only, by a login without SUPER; and its cursor."""

    host, warning_count = "replica", 0

    def __init__(self, **_: Any) -> None:
        self.row: tuple[int, ...] = ()

    def connect(self, sock: socket.socket) -> None:
        self._sock = sock

    def cursor(self) -> Replica:
        return self

    def get_server_info(self) -> str:
        return "8.0.36"

    def execute(self, statement: str, parameters: Any = None) -> None:
        if statement == "START TRANSACTION READ WRITE":
            raise pymysql.OperationalError(1290, "running with the --read-only option")
        self.row = (64,) if "max_error_count" in statement else (1, 1, 1, 1)

    def fetchone(self) -> tuple[int, ...]:
        return self.row

    def close(self) -> None:
        self._sock.close()


class AuroraReader(Replica):
    """Its read_only is OFF."""

    def execute(self, statement: str, parameters: Any = None) -> None:
        super().execute(statement, parameters)
        if "@@read_only" in statement:
            self.row = (1, 1, int("IF(@@innodb_read_only, 1, @@read_only)" in statement), 1)


@pytest.mark.parametrize("kind", [Replica, AuroraReader])
def test_a_replica_is_told_by_its_row(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink's session refuses it when it connects; one that only looks does not."""
    one, other = socket.socketpair()
    monkeypatch.setattr(pymysql, "connect", kind)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ["of the replica"])
    monkeypatch.setattr(socket, "create_connection", lambda *_: one)
    monkeypatch.setattr("onceward.sql.ledger.mysql._notice_silence", lambda _: None)
    with other:
        found = targets.check_target("mysql://etl:x@replica/shop", ())
    assert [result.kind for result in found] == ["read-only"]
    step = found[0].next_step
    assert step.index("the primary") < step.index("SET GLOBAL"), "which lets a replica diverge"
