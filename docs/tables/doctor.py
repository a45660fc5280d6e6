"""Write docs/reference/doctor.md, from the code where that has the kind: all that ``onceward doctor`` finds.

Run ``python docs/tables/doctor.py``.
"""

from __future__ import annotations

from pathlib import Path

from onceward.cli.doctor.kinds import KINDS, Misconfiguration

PAGE = Path(__file__).parents[1] / "reference" / "doctor.md"

_BEGIN = """\
# What doctor finds

Written by `docs/tables/doctor.py` in part from the code; a test says when that part is not up to date. `onceward
doctor` looks at these kinds of misconfiguration, changes nothing, and prints a line for each that it finds, with the
next step. A setting that may not be read is named as not checked.

Its exit status is 1 where one of them is **fatal**: a pipeline would stop, could lose records, or has a reader that
is proved to see what it should not. Where nothing is, and somebody could not be asked, it is 77 if a login was
refused, and else 69: of a database or a Redis that a sink writes to it is 69 for both.

```text
onceward doctor --bootstrap-servers broker:9092 --topic people-clean --source-topic people --pipeline-id people-etl
onceward doctor --consumers --bootstrap-servers broker:9092 --topic people-clean
onceward doctor --target postgresql://shop:secret@database/shop --tables orders
onceward doctor --target redis://:secret@cache:6379/0
onceward doctor --target https://search:9200 --tables customers
onceward doctor --registry https://registry:8081 --subject people-value --command-config registry.properties
onceward doctor --mysql mysql://cdc:secret@database:3306 --tables shop.orders
```

One command makes each look that its options ask for: with `--bootstrap-servers` that at this machine and the brokers,
unless these are for `--consumers`. `ONCEWARD_BOOTSTRAP_SERVERS` in the shell asks for none beside another. `--tables`,
`--subject` and what is for `--acls` are refused (64) where none of the looks takes them, and `--tables` where two do.

Of the file of `--command-config` a registry's `ssl.…` are those that begin with `schema.registry.`: without it they are
Kafka's.

"""
_HEAD = "| kind | setting | amiss | why | what to do |\n|---|---|---|---|---|\n"

_FATAL = "fatal"

# fmt: off
_FOUND_ELSEWHERE: dict[str, tuple[tuple[str, str, str, str, str, str], ...]] = {
    "this machine": (
        ("java", "java", "missing, too old, too new, without a module",
         "Spark does not start", "install a Java that Spark's release takes, or set JAVA_HOME",
         _FATAL),
        ("pyspark", "pyspark", "missing, or a release that was never run",
         "what Spark does with a batch is known of tried releases only",
         "install a release that Onceward takes, as doctor names it", _FATAL),
        ("jars", "spark.jars", "not found",
         "a session without Spark's Kafka connector reads no topic", "onceward jars fetches them",
         _FATAL),
        ("worker-python", "PYSPARK_PYTHON",
         "missing, without Onceward, or of another version",
         "each task fails", "point it to a Python with Onceward, of the driver's version", _FATAL),
    ),
    "brokers": (
        ("unreachable", "bootstrap.servers", "no answer",
         "nothing else can be looked at", "correct the address, listeners or login", "69, 77"),
        ("acl-missing", "ACLs", "a look is denied",
         "what may not be read is not checked, and a pipeline needs more than doctor",
         "onceward doctor --acls prints the least set", ""),
    ),
    "pipeline": (
        ("slow-batches", "open_ms", "half of the timeout or more",
         "a batch twice as large, or brokers half as fast, would not get through",
         "raise transaction.timeout.ms, or make batches smaller with max_offsets_per_trigger", ""),
    ),
    "topics": (
        ("topic-missing", "topic", "not there", "no batch can be written or read",
         "create it", _FATAL),
    ),
    "consumers": (
        ("uncommitted-readers", "isolation.level", "read_uncommitted, by its offsets",
         "they see records of batches that were aborted",
         "set isolation.level=read_committed in its consumers", _FATAL),
    ),
    "OpenSearch": (
        ("opensearch-rollover", "index", "an alias of several, or that moves",
         "a key would be there once in each index", "pass an index of its own, or a fixed alias",
         _FATAL),
    ),
    "MySQL source": (
        ("binlog-format", "log_bin, binlog_format", "OFF; other than ROW",
         "without ROW the binlog has statements in the place of rows",
         "SET PERSIST binlog_format = 'ROW'", _FATAL),
        ("binlog-row-image", "binlog_row_image, binlog_row_value_options",
         "other than FULL; PARTIAL_JSON", "a change has only some of its columns",
         "SET PERSIST binlog_row_image = 'FULL'", _FATAL),
        ("binlog-row-metadata", "binlog_row_metadata", "other than FULL",
         "events have no names of columns", "SET PERSIST binlog_row_metadata = 'FULL'", _FATAL),
        ("server-id", "server_id", "0", "the server sends its binlog to nobody",
         "SET PERSIST server_id = 1", _FATAL),
        ("binlog-filter", "binlog_do_db, binlog_ignore_db", "leave a wanted database out",
         "its changes are in no binlog", "start the server without them", _FATAL),
        ("binlog-retention", "binlog_expire_logs_seconds", "below a day",
         "a query that is away for longer begins anew",
         "SET PERSIST binlog_expire_logs_seconds = 604800", ""),
        ("binlog-size", "max_binlog_total_size", "any limit",
         "binlogs go by their size, read or not",
         "see that it is room for what is written in several days", ""),
        ("binlog-checksum", "binlog_checksum", "NONE",
         "damage to a binlog is noticed only where it can no longer be read",
         "SET PERSIST binlog_checksum = 'CRC32'", ""),
        ("gtid-mode", "gtid_mode", "other than ON",
         "a query does not go on after a failover",
         "the steps that doctor prints, on all servers that replicate with it", ""),
        ("gtid-strict-mode", "gtid_strict_mode", "OFF, MariaDB's default",
         "numbers may come out of order, and a query that meets such behind a failover is refused",
         "SET GLOBAL gtid_strict_mode = ON, and the same in its configuration file", ""),
        ("galera-gtids", "wsrep_gtid_mode", "OFF, on a node of Galera",
         "each node numbers by itself, and a query that is led to another may lose changes",
         "set it to ON on all nodes, or let the address lead to one node", ""),
        ("log-replica-updates", "log_replica_updates", "OFF on a replica",
         "what it applies is in no binlog of its own", "start it with log_replica_updates=ON",
         _FATAL),
        ("source-tables", "engine, primary key", "not InnoDB; none",
         "changes have no key, and a snapshot refuses the table",
         "the ALTER TABLE that doctor prints", ""),
        ("source-definitions", "foreign keys, versioning, DB_ROW_HASH_…",
         "ON DELETE CASCADE and the like; WITH SYSTEM VERSIONING; a column of that name",
         "changes would be in no binlog, or not as they were made",
         "let the key RESTRICT; the ALTER TABLE that doctor prints", _FATAL),
        ("source-grants", "REPLICATION CLIENT, REPLICATION SLAVE, SLAVE MONITOR, SELECT",
         "not granted; a table is not there",
         "the binlog, or a table, cannot be read", "the GRANT that doctor prints", _FATAL),
    ),
}
# fmt: on
"""By subject: kinds that functions find, each with name, setting, what is amiss, why, what to do, and its mark."""
_SUBJECTS = ("this machine", "brokers", "pipeline")
"""These first; the others as the code has them."""


def page() -> str:
    """Return the whole page."""
    text = _BEGIN
    subjects = (*_SUBJECTS, *(kind.subject for kind in KINDS), *_FOUND_ELSEWHERE)
    for subject in dict.fromkeys(subjects):
        rows = [_row(kind) for kind in KINDS if kind.subject == subject]
        rows += [_line(*kind) for kind in _FOUND_ELSEWHERE.get(subject, ())]
        text += f"## {subject[0].upper()}{subject[1:]}\n\n{_HEAD}{''.join(rows)}\n"
    return text.rstrip() + "\n"


def _row(kind: Misconfiguration) -> str:
    names = {"name": "TOPIC", "servers": "BROKERS", "login": "LOGIN", "table": "TABLE",
             "alike": "(those alike)"}  # fmt: skip
    if kind.subject in ("OpenSearch", "schema registry"):
        names["name"] = "NAME"
    names |= {"transaction_timeout_ms": "…", "largest_source_record": "…"}
    why, fix = kind.why.format(**names), kind.fix.format(**names)
    mark = _FATAL if kind.status == "fail" else ""
    return _line(kind.name, kind.setting, kind.amiss, why, fix, mark)


def _line(name: str, setting: str, amiss: str, why: str, fix: str, mark: str) -> str:
    name = f"`{name}`" + (f", **{mark}**" if mark else "")
    texts = " | ".join(part.replace("|", "\\|") for part in (why, fix))
    return f"| {name} | `{setting}` | {amiss} | {texts} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
