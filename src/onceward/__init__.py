"""Onceward: end-to-end exactly-once streaming for PySpark.

One micro-batch is one atomic step that holds the batch's output, its source offsets and its ledger
record: with Kafka as the target one transaction, written by all executors in parallel. ``__all__``
are the public names; everything else may move.

Names are imported when first used: Python workers need none of the driver's modules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onceward import custom as custom
    from onceward import delivery as delivery
    from onceward import errors as errors
    from onceward import events as events
    from onceward.custom.fan_out import FanOut as FanOut
    from onceward.custom.resettable.source import PartitionedSource as PartitionedSource
    from onceward.custom.resettable.source import ResettableSource as ResettableSource
    from onceward.custom.two_phase import TwoPhaseCommitSink as TwoPhaseCommitSink
    from onceward.delivery.sink import WriteAheadSink as WriteAheadSink
    from onceward.delivery.upsert_sink import UpsertSink as UpsertSink
    from onceward.engine.calls.foreach_batch import error_of as error_of
    from onceward.engine.policy import checkpointing as checkpointing
    from onceward.engine.task_writer import TaskWriter as TaskWriter
    from onceward.engine.two_phase import CommitResult as CommitResult
    from onceward.errors import OncewardError as OncewardError
    from onceward.files.ledger import FolderLedger as FolderLedger
    from onceward.files.reading import read_files as read_files
    from onceward.files.sink import FileSink as FileSink
    from onceward.formats import avro as avro
    from onceward.formats import debezium as debezium
    from onceward.formats import json as json
    from onceward.formats.registry.client import SchemaRegistry as SchemaRegistry
    from onceward.kafka.ledger.chain import KafkaLedger as KafkaLedger
    from onceward.kafka.sink.sink import KafkaSink as KafkaSink
    from onceward.kafka.source.lineage import lineage as lineage
    from onceward.kafka.source.source import kafka_source as kafka_source
    from onceward.lake.sinks import DeltaSink as DeltaSink
    from onceward.lake.sinks import IcebergSink as IcebergSink
    from onceward.mysql.source.source import mysql_changes as mysql_changes
    from onceward.operate import restart as restart
    from onceward.operate.logs import JsonFormatter as JsonFormatter
    from onceward.operate.metrics import push_metrics as push_metrics
    from onceward.operate.metrics import register_metrics as register_metrics
    from onceward.operate.metrics import serve_metrics as serve_metrics
    from onceward.operate.run_job import exit_status as exit_status
    from onceward.operate.supervise import supervise as supervise
    from onceward.operate.tracing import trace_batches as trace_batches
    from onceward.operate.waiting import wait as wait
    from onceward.spark.session.settings import spark_conf as spark_conf
    from onceward.sql.ledger.database_ledger import DatabaseLedger as DatabaseLedger
    from onceward.sql.sink.sink import DatabaseSink as DatabaseSink

_HOME = {
    "CommitResult": "onceward.engine.two_phase",
    "DatabaseLedger": "onceward.sql.ledger.database_ledger",
    "DatabaseSink": "onceward.sql.sink.sink",
    "DeltaSink": "onceward.lake.sinks",
    "FanOut": "onceward.custom.fan_out",
    "FileSink": "onceward.files.sink",
    "FolderLedger": "onceward.files.ledger",
    "IcebergSink": "onceward.lake.sinks",
    "JsonFormatter": "onceward.operate.logs",
    "KafkaLedger": "onceward.kafka.ledger.chain",
    "KafkaSink": "onceward.kafka.sink.sink",
    "OncewardError": "onceward.errors",
    "PartitionedSource": "onceward.custom.resettable.source",
    "ResettableSource": "onceward.custom.resettable.source",
    "SchemaRegistry": "onceward.formats.registry.client",
    "TaskWriter": "onceward.engine.task_writer",
    "TwoPhaseCommitSink": "onceward.custom.two_phase",
    "UpsertSink": "onceward.delivery.upsert_sink",
    "WriteAheadSink": "onceward.delivery.sink",
    "checkpointing": "onceward.engine.policy",
    "error_of": "onceward.engine.calls.foreach_batch",
    "exit_status": "onceward.operate.run_job",
    "kafka_source": "onceward.kafka.source.source",
    "lineage": "onceward.kafka.source.lineage",
    "mysql_changes": "onceward.mysql.source.source",
    "push_metrics": "onceward.operate.metrics",
    "read_files": "onceward.files.reading",
    "register_metrics": "onceward.operate.metrics",
    "serve_metrics": "onceward.operate.metrics",
    "spark_conf": "onceward.spark.session.settings",
    "supervise": "onceward.operate.supervise",
    "trace_batches": "onceward.operate.tracing",
    "wait": "onceward.operate.waiting",
}

_MODULES = {
    "avro": "onceward.formats.avro",
    "custom": "onceward.custom",
    "debezium": "onceward.formats.debezium",
    "delivery": "onceward.delivery",
    "errors": "onceward.errors",
    "events": "onceward.events",
    "json": "onceward.formats.json",
    "restart": "onceward.operate.restart",
}

__all__ = [
    "CommitResult",
    "DatabaseLedger",
    "DatabaseSink",
    "DeltaSink",
    "FanOut",
    "FileSink",
    "FolderLedger",
    "IcebergSink",
    "JsonFormatter",
    "KafkaLedger",
    "KafkaSink",
    "OncewardError",
    "PartitionedSource",
    "ResettableSource",
    "SchemaRegistry",
    "TaskWriter",
    "TwoPhaseCommitSink",
    "UpsertSink",
    "WriteAheadSink",
    "avro",
    "checkpointing",
    "custom",
    "debezium",
    "delivery",
    "error_of",
    "errors",
    "events",
    "exit_status",
    "json",
    "kafka_source",
    "lineage",
    "mysql_changes",
    "push_metrics",
    "read_files",
    "register_metrics",
    "restart",
    "serve_metrics",
    "spark_conf",
    "supervise",
    "trace_batches",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name not in _HOME:
        raise AttributeError(f"module 'onceward' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
