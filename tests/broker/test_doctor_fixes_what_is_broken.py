"""``onceward doctor`` on servers that are broken in each of its kinds: each is found, and who does
what it says has nothing of it left.
"""

from __future__ import annotations

import json
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
import urllib3
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from onceward.cli.doctor.checks import check_brokers
from onceward.cli.doctor.kinds import CheckResult
from onceward.cli.doctor.targets import check_registry, check_target
from onceward.formats.registry.client import SchemaRegistry
from onceward_testing import (
    LocalKafka,
    LocalMySQL,
    LocalOpenSearch,
    LocalPostgres,
    LocalRedis,
    LocalRegistry,
)
from support.mysql_client import sql_at

pytestmark = pytest.mark.lengthy("ci")

WEAK = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
LEDGER = {**WEAK, "cleanup.policy": "compact,delete", "max.message.bytes": "100000"} | {
    "segment.bytes": str(1 << 30),
    "message.timestamp.before.max.ms": "60000",
    "message.timestamp.after.max.ms": "60000",
}
OUTPUT = {**WEAK, "max.message.bytes": "500000", "message.timestamp.before.max.ms": "86400000"}
SOURCE = {"unclean.leader.election.enable": "true", "retention.ms": "3600000"}
OF_TOPICS = {
    "ledger-compaction",
    "ledger-message-size",
    "ledger-segments",
    "ledger-timestamps-after",
    "ledger-timestamps-before",
    "ledger-unclean-election",
    "output-message-size",
    "output-timestamps",
    "output-unclean-election",
    "source-retention",
    "source-unclean-election",
}
ONE_BROKER = {"ledger-replication", "output-replication", "transaction-log-replication"}


def amiss(found: list[CheckResult]) -> dict[str, str]:
    """The kinds that were found, each with its next step."""
    return {one.kind: one.next_step for one in found if one.kind}


def run_the_line(servers: str, line: str) -> None:
    """Do what a printed ``kafka-configs --alter`` says, by another client."""
    words = shlex.split(line)
    said = dict(pairwise(words))
    assert (words[0], said["--bootstrap-server"]) == ("kafka-configs", servers)
    name, _, value = said["--add-config"].partition("=")
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(
        said["--entity-type"].removesuffix("s"), said["--entity-name"], incremental_configs=[entry]
    )
    admin = AdminClient({"bootstrap.servers": servers})
    admin.incremental_alter_configs([resource])[resource].result(30)


def until_it_says(
    look: Callable[[], dict[str, str]], wanted: Callable[[dict[str, str]], bool]
) -> dict[str, str]:
    """Look until brokers have told each other of a change."""
    for _ in range(100):
        if wanted(found := look()):
            break
        threading.Event().wait(0.1)
    return found


def broken_topics(
    servers: str, new_topic: Callable[..., str]
) -> tuple[dict[str, str], Callable[[], dict[str, str]]]:
    """Topics with all that can be amiss, and a look at them."""

    def make(prefix: str, settings: Mapping[str, str]) -> str:
        named = {name.replace(".", "_"): value for name, value in settings.items()}
        return new_topic(servers, prefix=prefix, **named)

    topics = {
        "ledger": make("ledger", LEDGER),
        "output": make("out", OUTPUT),
        "source": make("in", SOURCE),
    }

    def look() -> dict[str, str]:
        return amiss(
            check_brokers(servers, None, [topics["output"]], [topics["source"]], topics["ledger"])
        )

    return topics, look


def test_topics(kafka: LocalKafka, new_topic: Callable[..., str]) -> None:
    servers = kafka.bootstrap_servers
    _, look = broken_topics(servers, new_topic)
    found = until_it_says(look, lambda found: set(found) >= OF_TOPICS)
    assert set(found) - ONE_BROKER == OF_TOPICS
    for kind in OF_TOPICS:
        run_the_line(servers, found[kind])
    assert until_it_says(look, lambda found: set(found) <= ONE_BROKER).keys() <= ONE_BROKER


def test_brokers_and_replicas(tmp_path: Path, new_topic: Callable[..., str]) -> None:
    """What is in ``server.properties``, and what needs three brokers."""
    static = {
        "auto.create.topics.enable": "true",
        "offsets.retention.minutes": "60",
        "transaction.max.timeout.ms": "60000",
        "transactional.id.expiration.ms": "3600000",
        "default.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    config = tmp_path / "client.properties"
    config.write_text("transaction.timeout.ms=300000\n")
    folder = tmp_path / "kafka"
    with LocalKafka(3, properties=static, folder=folder) as kafka:
        topics, _ = broken_topics(kafka.bootstrap_servers, new_topic)
        found = amiss(look_at(kafka, topics, config))
        assert set(found) - OF_TOPICS >= {
            "auto-create-topics",
            "offsets-retention",
            "transaction-timeout",
            "transactional-id-expiration",
            "ledger-replication",
            "output-replication",
        }
        reassign(kafka, list(topics.values()), tmp_path)
        found = until_it_says(
            lambda: amiss(look_at(kafka, topics, config)),
            lambda found: {"ledger-min-in-sync", "output-min-in-sync"} <= set(found),
        )
        assert not {"ledger-replication", "output-replication"} & set(found)
        for line in found.values():
            if line.startswith("kafka-configs"):
                run_the_line(kafka.bootstrap_servers, line)
        for line in found.values():
            if line.startswith("set "):
                name, _, value = line.removeprefix("set ").split()[0].partition("=")
                static[name] = value
    with LocalKafka(3, properties=static, folder=folder) as kafka:
        kafka.wait_until_serving()
        assert amiss(look_at(kafka, topics, config)) == {}


def look_at(kafka: LocalKafka, topics: Mapping[str, str], config: Path) -> list[CheckResult]:
    return check_brokers(
        kafka.bootstrap_servers, config, [topics["output"]], [topics["source"]], topics["ledger"]
    )


def reassign(kafka: LocalKafka, topics: list[str], folder: Path) -> None:
    """Give each topic three replicas, as the advice says."""
    plan = folder / "plan.json"
    parts = [{"topic": topic, "partition": 0, "replicas": [1, 2, 3]} for topic in topics]
    plan.write_text(json.dumps({"version": 1, "partitions": parts}))
    kafka.kafka_tool(
        "kafka-reassign-partitions", "--execute", "--reassignment-json-file", str(plan)
    )


@contextmanager
def pooler(port: int) -> Iterator[int]:
    """Stand before a PostgreSQL as a pooler does: clients are told a process number of its own."""
    listener = socket.create_server(("127.0.0.1", 0))

    def pump(source: socket.socket, target: socket.socket, *, renumber: bool) -> None:
        with closing(target), suppress(OSError):
            while data := source.recv(65536):
                # BackendKeyData: 'K', its length (12), process, secret
                at = data.find(b"K\0\0\0\x0c") if renumber else -1
                if at >= 0:
                    data = data[: at + 5] + b"\0\0\0\x07" + data[at + 9 :]
                target.sendall(data)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", port))
            for source, target, renumber in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=pump, args=(source, target), kwargs={"renumber": renumber}, daemon=True
                ).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with closing(listener):
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def test_a_postgresql() -> None:
    with LocalPostgres() as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET fsync = off")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE TABLE t (id int); ALTER TABLE t ENABLE ROW LEVEL SECURITY")
            admin.execute("CREATE ROLE etl LOGIN PASSWORD 'pw'; GRANT ALL ON t TO etl")
            admin.execute("ALTER ROLE etl SET default_transaction_read_only = on")
            (database,) = admin.execute("SELECT current_database()").fetchone() or ("",)
        with pooler(server.port) as port:
            found = amiss(check_target(f"postgresql://etl:pw@127.0.0.1:{port}/{database}", ["t"]))
        wanted = {"pooler", "fsync", "standby", "prepared-transactions", "row-security"}
        assert set(found) == wanted
        with psycopg.connect(server.url, autocommit=True) as admin:
            by_role, _, by_policy = found["row-security"].partition("; or ")
            admin.execute(by_policy)
            url = f"postgresql://etl:pw@127.0.0.1:{server.port}/{database}"
            assert "row-security" not in amiss(check_target(url, ["t"]))
            (missing,) = [
                each for each in check_target(url, ["nowhere"]) if "nowhere" in each.what
            ]
            assert missing.status == "fail", "a name that is none"
            admin.execute("DROP POLICY onceward ON t")
            admin.execute(by_role)
            # What stands for a standby here
            admin.execute("ALTER ROLE etl RESET default_transaction_read_only")
            for statement in found["fsync"].split("; "):
                admin.execute(statement)
            admin.execute(found["prepared-transactions"].partition(",")[0])
        server.kill()
        server.start()
        (sound,) = check_target(url, ["t"])
        assert sound.status == "ok", sound
        assert "pw" not in sound.what


@pytest.mark.lengthy("chaos")
def test_a_table_of_a_mariadb_that_is_written_to(mariadb: LocalMySQL) -> None:
    """It is looked at as the sink does."""
    url = mariadb.url
    sql_at(url, "CREATE TABLE doctor_t (a bigint) ENGINE = MyISAM")
    try:
        found = {
            name: each.next_step
            for each in check_target(url, ["doctor_t", "nowhere"])
            for name in ("MyISAM", "nowhere")
            if name in each.what and each.status == "fail"
        }
        assert "create it" in found["nowhere"]
        sql_at(url, found["MyISAM"].partition(";")[0].replace("…", "doctor_t"))
        assert not [each for each in check_target(url, ["doctor_t"]) if "doctor_t" in each.what]
    finally:
        sql_at(url, "DROP TABLE doctor_t")


def test_a_mariadb_that_is_written_to(mariadb: LocalMySQL) -> None:
    url, before = mariadb.url, sql_at(mariadb.url, "SELECT @@innodb_flush_log_at_trx_commit")
    names = {"local_infile": 0, "innodb_flush_log_at_trx_commit": 2, "read_only": 1}
    for name, value in names.items():
        sql_at(url, f"SET GLOBAL {name} = {value}")
    found = amiss(check_target(url, []))
    for fix in found.values():
        sql_at(url, fix[fix.index("SET GLOBAL") :].partition(",")[0])
    left = amiss(check_target(url, []))
    sql_at(url, f"SET GLOBAL innodb_flush_log_at_trx_commit = {before[0][0]}")
    assert set(found) == {"local-infile", "flush-log", "read-only"}
    assert left == {}


def test_a_redis() -> None:
    broken = {"appendonly": "no", "appendfsync": "everysec", "maxmemory-policy": "allkeys-lru"}
    with LocalRedis(broken) as server:
        found = amiss(check_target(server.url, []))
        assert set(found) == {"redis-append-only", "redis-fsync", "redis-evictions"}
        with closing(redis.Redis.from_url(server.url)) as client:
            for line in found.values():
                # CONFIG REWRITE wants a server with a file
                client.execute_command(*line.partition(";")[0].split())
            # A server that writes its first log does not end
            while client.info("persistence")["aof_rewrite_in_progress"]:
                threading.Event().wait(0.02)
        assert amiss(check_target(server.url, [])) == {}


@pytest.mark.lengthy("chaos")
def test_an_opensearch(opensearch: LocalOpenSearch) -> None:
    pool = urllib3.PoolManager()

    def put(path: str, body: Any) -> None:
        answer = pool.request("PUT", opensearch.url + path, json=body)
        assert answer.status == 200, answer.data

    alone = {"settings": {"index.number_of_replicas": 0}}
    put("/doctor-1", {**alone, "aliases": {"doctor-rolled": {"is_write_index": True}}})
    put("/doctor-2", alone)
    found = check_target(opensearch.url, ["doctor-rolled", "doctor-2"])
    kinds = amiss(found)
    assert set(kinds) == {"opensearch-rollover", "opensearch-replicas"}
    assert "doctor-1" in kinds["opensearch-rollover"]
    _, path, body = kinds["opensearch-replicas"].split(maxsplit=2)
    put(path, json.loads(body))
    assert amiss(check_target(opensearch.url, ["doctor-2"])) == {}


@pytest.mark.lengthy("chaos")
def test_a_schema_registry(registry: LocalRegistry) -> None:
    def put(line: str) -> None:
        _, path, body = line.split(maxsplit=2)
        answer = urllib3.PoolManager().request(
            "PUT", registry.url + path, body=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status == 200, answer.data

    found = amiss(check_registry(registry.url, ["doctor-value"]))
    assert set(found) == {"registry-subject"}
    SchemaRegistry(registry.url).register("doctor-value", '"string"')
    put('PUT /config/doctor-value {"compatibility": "NONE"}')
    found = amiss(check_registry(registry.url, ["doctor-value"]))
    assert set(found) == {"registry-compatibility"}
    put(found["registry-compatibility"])
    assert amiss(check_registry(registry.url, ["doctor-value"])) == {}
