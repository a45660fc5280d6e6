"""Kinds of misconfiguration that ``onceward doctor`` finds: what is amiss, why, and the fix. Pure.

One row of :data:`KINDS` is one kind. :func:`diagnose` applies the rows to what was read from a
cluster or a server. The page of the kinds is written from them; it has others beside, which are
found by functions where they look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

Facts = Mapping[str, str | None]
Test = Callable[[str, Facts], bool]

DAY_MS = 86_400_000
_LARGEST = (1 << 63) - 1
_TOPIC = (
    "kafka-configs --bootstrap-server {servers} --alter --entity-type topics "
    "--entity-name {name} --add-config "
)
_FILE = " in server.properties of each broker, and restart them one by one"
# What is set in a server that runs is forgotten when it ends
_IN_ITS_FILE = ", and the same in the server's configuration file (MySQL: SET PERSIST)"
_REWRITE = "; then CONFIG REWRITE, or the same in redis.conf"
_REASSIGN = (
    "kafka-reassign-partitions --bootstrap-server {servers} --execute --reassignment-json-file "
    "FILE, with three brokers for each partition of {name}"
)


@dataclass(frozen=True, slots=True)
class Misconfiguration:
    """One kind of misconfiguration."""

    name: str
    subject: str
    """What it is looked for in."""
    setting: str
    """The fact that is compared, by the server's own name."""
    amiss: str
    """The values that are amiss, for people."""
    why: str
    fix: str
    """The next step; ``{name}``, ``{servers}`` and facts with ``_`` for ``.`` are filled in."""
    is_amiss: Test
    status: Literal["warn", "fail"] = "warn"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What was looked at, how it is, and what to do if it is amiss."""

    status: Literal["ok", "warn", "fail"]
    what: str
    next_step: str = ""
    kind: str = ""
    """The name of its :class:`Misconfiguration`, where a row of :data:`KINDS` has found it."""
    exit_status: int = 1
    """Of the command where this has failed; another than 1: of somebody who is away, or refuses
    the login, and is no misconfiguration.
    """


def ok(what: str, next_step: str = "") -> CheckResult:
    """Return the result of something that is as it should be."""
    return CheckResult("ok", what, next_step)


def warn(what: str, next_step: str = "") -> CheckResult:
    """Return the result of something that may be amiss."""
    return CheckResult("warn", what, next_step)


def diagnose(subject: str, what: str, facts: Facts, **names: str) -> list[CheckResult]:
    """Return a finding for each kind of ``subject`` that the facts show; a fact that is missing
    or None (an older broker, a right that is lacking) shows nothing.
    """
    found = []
    filled = {name.replace(".", "_"): value for name, value in facts.items()} | names
    for kind in KINDS:
        value = facts.get(kind.setting)
        if kind.subject == subject and value is not None and kind.is_amiss(value, facts):
            text = f"{what}: {kind.setting}={value}: {kind.why.format(**filled)}"
            found.append(CheckResult(kind.status, text, kind.fix.format(**filled), kind.name))
    return found


def _below(limit: float) -> Test:
    return lambda value, _: float(value) < limit


def _either(*wrong: str) -> Test:
    return lambda value, _: value.lower() in wrong


def _other_than(*right: str) -> Test:
    return lambda value, _: value.lower() not in right


def _less_than_fact(other: str) -> Test:
    return lambda value, facts: float(value) < float(facts.get(other) or 0)


def _loses_with_one_broker(value: str, facts: Facts) -> bool:
    # With fewer replicas a higher minimum would only stop what writes to the topic.
    return int(value) < 2 and int(facts.get("replication.factor") or 0) >= 3


def _is_deleted_early(value: str, facts: Facts) -> bool:
    return "delete" in (facts.get("cleanup.policy") or "") and 0 <= int(value) < DAY_MS


def _topic_kinds(topic: str, subject: str, *, minimum: str) -> list[Misconfiguration]:
    """Return what every topic needs that holds records of ours."""
    return [
        Misconfiguration(
            f"{topic}-replication", subject, "replication.factor", "below 3",
            "the loss of one broker stops the pipeline or loses records",
            _REASSIGN, _below(3),
        ),
        Misconfiguration(
            f"{topic}-min-in-sync", subject, "min.insync.replicas", "below 2, of 3 replicas",
            f"with the loss of one broker {minimum} may be lost",
            _TOPIC + "min.insync.replicas=2", _loses_with_one_broker,
        ),
        Misconfiguration(
            f"{topic}-unclean-election", subject, "unclean.leader.election.enable", "true",
            f"a replica that lacks {minimum} may become the leader, and they are gone",
            _TOPIC + "unclean.leader.election.enable=false", _either("true"), "fail",
        ),
    ]  # fmt: skip


KINDS: tuple[Misconfiguration, ...] = (
    # --- brokers
    Misconfiguration(
        "transaction-timeout", "brokers", "transaction.max.timeout.ms",
        "below the sink's transaction.timeout.ms",
        "brokers refuse the sink's transaction.timeout.ms={transaction_timeout_ms}",
        "set transaction.max.timeout.ms={transaction_timeout_ms}" + _FILE
        + "; or lower transaction.timeout.ms (options= of the sink)",
        _less_than_fact("transaction.timeout.ms"), "fail"),
    Misconfiguration(
        "transactional-id-expiration", "brokers", "transactional.id.expiration.ms",
        "below a day",
        "a pipeline that is away for longer is forgotten by its coordinator, which then fences "
        "no older copy of it",
        "set transactional.id.expiration.ms=604800000" + _FILE, _below(DAY_MS)),
    Misconfiguration(
        "offsets-retention", "brokers", "offsets.retention.minutes", "below 1440",
        "the offsets of a pipeline that is away for longer are gone, and tools show no lag of it",
        "set offsets.retention.minutes=10080" + _FILE, _below(1440)),
    Misconfiguration(
        "auto-create-topics", "brokers", "auto.create.topics.enable", "true",
        "a misspelt topic is made with the brokers' defaults, in the place of an error",
        "set auto.create.topics.enable=false" + _FILE, _either("true")),
    # --- topics
    *_topic_kinds("transaction-log", "transaction log", minimum="decisions"),
    *_topic_kinds("ledger", "ledger topic", minimum="records of decided batches"),
    Misconfiguration(
        "ledger-compaction", "ledger topic", "cleanup.policy", "other than compact",
        "Kafka would delete what exactly-once rests on",
        _TOPIC + "cleanup.policy=compact", _other_than("compact"), "fail"),
    Misconfiguration(
        "ledger-message-size", "ledger topic", "max.message.bytes", "below 1 MiB",
        "the record of a batch into many partitions may not fit",
        _TOPIC + "max.message.bytes=4194304", _below(1 << 20)),
    Misconfiguration(
        "ledger-segments", "ledger topic", "segment.bytes", "above 128 MiB",
        "the newest segment is never compacted, and each start reads all of it",
        _TOPIC + "segment.bytes=52428800", lambda value, _: float(value) > 128 << 20),
    *(
        Misconfiguration(
            f"ledger-timestamps-{side}", "ledger topic", f"message.timestamp.{side}.max.ms",
            "below 10 minutes",
            f"a driver whose clock is {where} by more than that can write no batch",
            _TOPIC + f"message.timestamp.{side}.max.ms=3600000", _below(600_000))
        for side, where in (("before", "behind"), ("after", "ahead"))
    ),
    *_topic_kinds("output", "output topic", minimum="committed records"),
    Misconfiguration(
        "output-message-size", "output topic", "max.message.bytes",
        "below that of a source topic",
        "a record that its source took (max.message.bytes={largest_source_record}) may not fit",
        _TOPIC + "max.message.bytes={largest_source_record}",
        _less_than_fact("largest.source.record")),
    Misconfiguration(
        "output-timestamps", "output topic", "message.timestamp.before.max.ms", "any limit",
        "records with an older timestamp are refused, and a batch with one of them stops",
        _TOPIC + f"message.timestamp.before.max.ms={_LARGEST}", _below(_LARGEST)),
    Misconfiguration(
        "source-retention", "source topic", "retention.ms", "below a day",
        "a pipeline that is away for longer loses records (SourceDataLost)",
        _TOPIC + "retention.ms=604800000", _is_deleted_early),
    Misconfiguration(
        "source-unclean-election", "source topic", "unclean.leader.election.enable", "true",
        "other records may come under offsets that were read: the pipeline skips them, and a "
        "replay finds another batch",
        _TOPIC + "unclean.leader.election.enable=false", _either("true")),
    # --- databases that a sink writes to
    Misconfiguration(
        "pooler", "PostgreSQL", "pooler", "yes",
        "a pooler is before the server; with pool_mode = statement, or more servers behind it, "
        "no transaction is whole",
        "give the sink the server's own address, or see that pool_mode is session or transaction",
        _either("yes")),
    Misconfiguration(
        "fsync", "PostgreSQL", "fsync", "off",
        "what was committed may be gone when the machine fails",
        "ALTER SYSTEM SET fsync = on; SELECT pg_reload_conf()", _either("off"), "fail"),
    Misconfiguration(
        "standby", "PostgreSQL", "transaction_read_only", "on",
        "it is a standby, or only reads by default, and no batch can be written",
        "give the sink the address of the primary", _either("on"), "fail"),
    Misconfiguration(
        "prepared-transactions", "PostgreSQL", "max_prepared_transactions", "0",
        "with xa=True each task prepares a transaction (other sinks need none)",
        "ALTER SYSTEM SET max_prepared_transactions = 100, and restart the server", _below(1)),
    Misconfiguration(
        "row-security", "target table", "row_security", "yes",
        'a row that the login may not see is not changed, and mode="changes" refuses the table',
        "ALTER ROLE {login} BYPASSRLS; or CREATE POLICY onceward ON {table} TO {login} "
        "USING (true)",
        _either("yes"), "fail"),
    Misconfiguration(
        "local-infile", "MySQL", "local_infile", "OFF",
        "rows are loaded by LOAD DATA LOCAL", f"SET GLOBAL local_infile = ON{_IN_ITS_FILE}",
        _either("0", "off"), "fail"),
    Misconfiguration(
        "flush-log", "MySQL", "innodb_flush_log_at_trx_commit", "other than 1",
        "what was committed may be gone when the server fails",
        f"SET GLOBAL innodb_flush_log_at_trx_commit = 1{_IN_ITS_FILE}", _other_than("1"), "fail"),
    Misconfiguration(
        "sync-binlog", "MySQL", "sync_binlog", "other than 1, with a binary log",
        "what was committed may be gone when the machine fails: what the binary log lacks is "
        "rolled back then (MariaDB has 0 by default)",
        f"SET GLOBAL sync_binlog = 1{_IN_ITS_FILE}", _other_than("1"), "fail"),
    Misconfiguration(
        "read-only", "MySQL", "read_only", "ON (Aurora: innodb_read_only)",
        "it is a replica, and no batch can be written",
        "give the sink the address of the primary; of a server that is no replica "
        f"SET GLOBAL read_only = OFF{_IN_ITS_FILE}",
        _either("1", "on"), "fail"),
    # --- targets by key
    Misconfiguration(
        "redis-cluster", "Redis", "cluster_enabled", "1",
        "a row and its tombstone may lie on different nodes of a cluster, and the sink refuses it",
        "give the sink the address of a server that stands alone, or has replicas", _either("1"),
        "fail"),
    Misconfiguration(
        "redis-replica", "Redis", "role", "slave",
        "it is a replica, and no batch can be written",
        "give the sink the address of the primary", _either("slave"), "fail"),
    Misconfiguration(
        "redis-append-only", "Redis", "appendonly", "no",
        "what was delivered is lost when the server ends, and the ledger has counted it",
        f"CONFIG SET appendonly yes{_REWRITE}", _either("no")),
    Misconfiguration(
        "redis-fsync", "Redis", "appendfsync", "other than always",
        "the last second of what was delivered is lost when the machine fails",
        f"CONFIG SET appendfsync always{_REWRITE}", _other_than("always")),
    Misconfiguration(
        "redis-evictions", "Redis", "maxmemory-policy", "other than noeviction",
        "the server drops rows and tombstones when its memory is full",
        f"CONFIG SET maxmemory-policy noeviction{_REWRITE}", _other_than("noeviction")),
    Misconfiguration(
        "opensearch-replicas", "OpenSearch", "index.number_of_replicas", "0",
        "the loss of one node loses rows",
        'PUT /{name}/_settings {{"index.number_of_replicas": 1}}', _below(1)),
    # --- schema registry
    Misconfiguration(
        "registry-subject", "schema registry", "subject", "not registered",
        "records of this subject cannot be written by their schema; a registry with contexts "
        "(:.context:subject) has it, if at all, under another name: {alike}",
        "register it, or pass the name with its context", _either("missing")),
    Misconfiguration(
        "registry-compatibility", "schema registry", "compatibility", "NONE",
        "a schema that readers cannot read is registered without an error",
        'PUT /config/{name} {{"compatibility": "BACKWARD"}}', _either("none")),
)  # fmt: skip
