"""Write docs/reference/api.md from the code: every public name, what it is, and its page.

Run ``python docs/tables/api.py``.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from types import ModuleType

import onceward
import onceward_testing
from onceward import errors

PAGE = Path(__file__).parents[1] / "reference" / "api.md"

_BEGIN = """\
# Public names

Written by `docs/tables/api.py` from the code; a test says when it is not up to date. These names are public, with their
parameters and public methods: they change with a line in the [changelog](../../CHANGELOG.md). All else may move.
`help(onceward.KafkaSink)` has the parameters of each.

"""

_GROUPS: dict[str, dict[str, str]] = {
    "Sinks": {
        "KafkaSink": "configuration.md#the-sink",
        "DatabaseSink": "../how-to/databases.md",
        "FileSink": "../how-to/files.md",
        "read_files": "../how-to/files.md",
        "DeltaSink": "../how-to/delta-and-iceberg.md",
        "IcebergSink": "../how-to/delta-and-iceberg.md",
        "WriteAheadSink": "../how-to/write-ahead.md",
        "UpsertSink": "../how-to/upsert.md",
        "delivery.Chunk": "../how-to/write-ahead.md",
        "delivery.Upsert": "../how-to/upsert.md",
        "FanOut": "../how-to/fan-out.md",
    },
    "Ledgers": {
        "KafkaLedger": "../how-to/write-your-own-sink.md#the-ledger",
        "DatabaseLedger": "../how-to/write-your-own-sink.md#the-ledger",
        "FolderLedger": "../how-to/write-your-own-sink.md#the-ledger",
    },
    "Sources": {
        "kafka_source": "configuration.md#the-source",
        "lineage": "../how-to/verify.md#compare-with-the-input",
        "mysql_changes": "../how-to/mysql.md",
    },
    "Formats": {
        "avro.decode": "../how-to/avro.md",
        "avro.encode": "../how-to/avro.md",
        "SchemaRegistry": "../how-to/avro.md",
        "json.decode": "../how-to/json.md",
        "debezium.decode": "../how-to/debezium.md",
        "debezium.encode": "../how-to/debezium.md",
        "debezium.envelope": "../how-to/debezium.md",
        "debezium.rows": "../how-to/debezium.md",
        "debezium.structs": "../how-to/debezium.md",
    },
    "Running queries": {
        "spark_conf": "../how-to/deploying.md",
        "wait": "configuration.md#starting-again-after-a-failure",
        "checkpointing": "configuration.md#checkpoint-settings",
        "error_of": "troubleshooting.md",
        "exit_status": "../how-to/run.md#exit-statuses",
        "supervise": "configuration.md#starting-again-after-a-failure",
        "serve_metrics": "../how-to/monitoring.md#metrics",
        "push_metrics": "../how-to/monitoring.md#metrics",
        "register_metrics": "../how-to/monitoring.md#metrics",
        "trace_batches": "../how-to/monitoring.md#traces",
        "JsonFormatter": "../how-to/monitoring.md#logs",
        "restart.ExponentialDelay": "configuration.md#starting-again-after-a-failure",
        "restart.FixedDelay": "configuration.md#starting-again-after-a-failure",
        "restart.FailureRate": "configuration.md#starting-again-after-a-failure",
        "restart.NoRestart": "configuration.md#starting-again-after-a-failure",
        "restart.RestartStrategy": "configuration.md#starting-again-after-a-failure",
        "restart.Failure": "configuration.md#starting-again-after-a-failure",
        "events.watch": "configuration.md#watching-a-pipeline",
        "events.probe": "configuration.md#watching-a-pipeline",
        "events.Event": "configuration.md#watching-a-pipeline",
    },
    "Classes to subclass": {
        "TwoPhaseCommitSink": "../how-to/write-your-own-sink.md",
        "TaskWriter": "../how-to/write-your-own-sink.md",
        "CommitResult": "../how-to/write-your-own-sink.md",
        "custom.Task": "../how-to/write-your-own-sink.md",
        "ResettableSource": "../how-to/resettable-sources.md",
        "PartitionedSource": "../how-to/resettable-sources.md",
    },
    "Errors": {"OncewardError": "troubleshooting.md", "errors": "troubleshooting.md"},
}
_TESTING = {
    "LocalMySQL": "../how-to/mysql.md",
    "LocalRedis": "../how-to/upsert.md",
    "LocalRegistry": "../how-to/avro.md",
    "LocalS3": "../how-to/files.md",
    "LocalKafka": "../explanation/how-it-is-tested.md",
    "LocalPostgres": "../how-to/databases.md",
}


def public_names(package: ModuleType) -> list[str]:
    """Return the names of a package's ``__all__``; of a module among them, those that it has."""
    found = []
    for name in package.__all__:
        value = getattr(package, name)
        inner = isinstance(value, ModuleType) and value is not errors
        found += [f"{name}.{each}" for each in value.__all__] if inner else [name]
    return found


def page() -> str:
    """Return the whole page."""
    text = _BEGIN
    for group, names in _GROUPS.items():
        text += f"## {group}\n\n" + _table(onceward, "ow", names) + "\n"
    testing = {name: _TESTING.get(name, "") for name in public_names(onceward_testing)}
    text += (
        '## For your tests\n\nIn the package `onceward_testing`; `pip install "onceward[demo]"` adds what some need.\n'
        "`onceward_testing.sink_contract` and `onceward_testing.source_contract` are suites of tests for\n"
        "[sinks](../how-to/write-your-own-sink.md) and [sources](../how-to/resettable-sources.md) of your own.\n\n"
    )
    return text + _table(onceward_testing, "", testing)


def _table(package: ModuleType, prefix: str, names: dict[str, str]) -> str:
    rows = ["| name | what it is |", "|---|---|"]
    for name, target in names.items():
        value = package
        for part in name.split("."):
            value = getattr(value, part)
        shown = f"`{prefix}.{name}`" if prefix else f"`{name}`"
        rows.append(f"| {f'[{shown}]({target})' if target else shown} | {_summary(value)} |")
    return "\n".join(rows) + "\n"


def _summary(value: object) -> str:
    """Return the first sentence of a docstring as Markdown."""
    text = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return re.split(r"(?<=[^.]\.) (?=[A-Z])", text)[0].replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
