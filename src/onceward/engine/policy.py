"""Settings that all sinks share: who it is, what it promises, how often it tries. Immutable.
Checkpoint settings have the names of Flink, where a checkpoint is what a micro-batch boundary is
here. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

from onceward.engine.ledger.admission import RESUME_CHOICES, Resume, SkippedBatches
from onceward.engine.ledger.chain import Ledger
from onceward.errors import ConfigurationError, ContradictoryOptions, OncewardError
from onceward.ids import PipelineId
from onceward.spark.batch.refused_modes import BY_FILE_SYSTEM, FILE_MANAGER

if TYPE_CHECKING:
    import pyarrow as pa

_COMMIT_MS = 60_000
"""By how much a transaction outlives the time limit of its batch: for the ledger record and
``EndTxn``, so that it is ours to abort a batch and never the coordinator's."""
_STREAMING = "org.apache.spark.sql.execution.streaming"
_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "sec": 1.0, "second": 1.0, "m": 60.0, "min": 60.0}
_UNITS |= {"minute": 60.0, "h": 3600.0, "hour": 3600.0, "d": 86400.0, "day": 86400.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")

Duration = float | str | timedelta
"""Seconds, or a text with a unit, such as ``"10 s"``, ``"500 ms"`` or ``"2 min"``."""


def seconds(name: str, value: object) -> float:
    """Return a duration in seconds. :raises ConfigurationError: naming the setting ``name``."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    found = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).lower())
    unit = "?" if found is None else found[2]
    # "2 hours" is as good as "2 hour"; "s" and "ms" are no plurals
    factor = _UNITS.get(unit, _UNITS.get(unit.removesuffix("s") or "?"))
    if found is None or factor is None:
        raise ConfigurationError(
            f"{name}={value!r} is no duration",
            next_step=f'set {name} to seconds, or to a text such as "10 s", "500 ms" or "2 min"',
        )
    return float(found[1]) * factor


@dataclass(frozen=True, slots=True)
class Checkpointing:
    """Settings of micro-batches; made by :func:`checkpointing`, times in seconds."""

    interval_s: float
    min_pause_s: float
    timeout_s: float
    attempts: int
    retain: int
    local_disk: bool = False

    @property
    def trigger(self) -> dict[str, str]:
        """Arguments for ``DataStreamWriter.trigger``."""
        return {"processingTime": f"{round(self.interval_s * 1000)} milliseconds"}

    @property
    def spark_conf(self) -> dict[str, str]:
        """Settings of the Spark session, read when a query starts."""
        settings = {"spark.sql.streaming.minBatchesToRetain": str(self.retain)}
        if self.local_disk:
            import pyspark

            # Spark 4.1 has moved it
            package = "" if pyspark.__version__.startswith("4.0.") else ".checkpointing"
            settings[FILE_MANAGER] = f"{_STREAMING}{package}.{BY_FILE_SYSTEM}"
        return settings

    @property
    def transaction_timeout_ms(self) -> int:
        """Kafka's ``transaction.timeout.ms``: the timeout, and a minute to commit in."""
        return round(self.timeout_s * 1000) + _COMMIT_MS


def checkpointing(
    *,
    interval: Duration = 0,
    min_pause: Duration = 0,
    timeout: Duration = "10 min",
    attempts: int = 3,
    retain: int = 100,
    max_concurrent: int = 1,
    local_disk: bool = False,
) -> Checkpointing:
    """Return the checkpoint settings of a query, for its trigger, its sink and its session.

    ::

        checkpoints = ow.checkpointing(interval="10 s", min_pause="1 s", timeout="5 min")
        spark = SparkSession.builder.config(map=ow.spark_conf() | checkpoints.spark_conf)…
        sink = ow.KafkaSink(…, checkpointing=checkpoints)
        frame.writeStream.trigger(**checkpoints.trigger).foreachBatch(sink)…

    :param interval: from the start of one batch to the start of the next, while there is input
        (Flink's ``execution.checkpointing.interval``); 0: one after the other.
    :param min_pause: from the end of one batch to the start of the next, at least
        (``execution.checkpointing.min-pause``). Spark has no such setting: the sink waits.
    :param timeout: an attempt of a batch that takes longer is aborted
        (``execution.checkpointing.timeout``): the sink's ``batch_timeout_s``. A ``KafkaSink``
        derives ``transaction.timeout.ms`` from it, a minute more, which must be within the
        brokers' ``transaction.max.timeout.ms`` (15 minutes by default).
    :param attempts: how often a batch is tried before its query fails: the sink's
        ``batch_attempts``, which is ``execution.checkpointing.tolerable-failed-checkpoints`` and
        one more.
    :param retain: how many batches the logs of the checkpoint keep at least
        (``execution.checkpointing.num-retained``): Spark's
        ``spark.sql.streaming.minBatchesToRetain``.
    :param max_concurrent: 1, by design: a batch is decided before the next one begins.
    :param local_disk: the checkpoints of the session's queries are on a disk of the driver's (in
        local mode, or a volume that all executors mount): Spark writes their files through
        Hadoop's ``FileSystem`` (``spark.sql.streaming.checkpointFileManagerClass``) and not
        through its ``FileContext``, which starts a ``chmod`` process for each. That saves 25 ms a
        file, 50 ms a batch. With state, as much for each of its partitions.
    :raises ConfigurationError: naming the setting and what it takes.
    """
    if max_concurrent != 1 or isinstance(max_concurrent, bool):
        raise ContradictoryOptions(
            f"max_concurrent={max_concurrent!r} of ow.checkpointing: the micro-batches of a query "
            "run one after the other, because each names the ledger record before it",
            next_step="leave max_concurrent out; for more throughput let a batch have more tasks, "
            "or split the input into several pipelines",
        )
    for name, number in (("attempts", attempts), ("retain", retain)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ConfigurationError(
                f"{name}={number!r} of ow.checkpointing is not a whole number of at least 1",
                next_step=f"set {name} to a whole number of at least 1",
            )
    timeout_s = seconds("timeout", timeout)
    if timeout_s <= 0:
        raise ConfigurationError(
            "timeout=0 of ow.checkpointing would abort every batch",
            next_step="set timeout to more than a batch takes",
        )
    interval_s, min_pause_s = seconds("interval", interval), seconds("min_pause", min_pause)
    check_choice("local_disk", local_disk, (True, False))
    return Checkpointing(interval_s, min_pause_s, timeout_s, attempts, retain, local_disk)


Delivery = Literal["exactly_once", "at_least_once", "none"]

DELETES = ("d", "delete")
WRITES = ("c", "r", "u", "insert", "update", "upsert")
"""The column ``op`` of a change stream, for every sink: Debezium's letters, or words."""


def bare_deletes(
    rows: pa.Table | pa.RecordBatch, op: str | None, read: Container[object]
) -> pa.Table | pa.RecordBatch:
    """Return ``rows`` with nulls in what nobody reads of those that delete: a value of a row that
    goes need be none that the target takes.

    :param op: the column that says what a row is. None: none deletes.
    :param read: the columns that are read of deletes, too.
    """
    # Whoever only looks at a policy need not wait for it
    import pyarrow as pa
    import pyarrow.compute as pc

    said = rows.column(op) if op in rows.schema.names else None
    # Whether it is there, and what is in it, the sink looks at
    if said is None or said.type not in (pa.string(), pa.large_string()):
        return rows
    deletes, columns = pc.is_in(said, pa.array(DELETES, said.type)), rows.columns
    if pc.any(deletes, min_count=0).as_py():
        columns = [
            column if name in read else pc.if_else(deletes, pa.scalar(None, column.type), column)
            for name, column in zip(rows.schema.names, columns, strict=True)
        ]
    # Also where none deletes: a task writes all that it gets with one schema
    return type(rows).from_arrays(columns, rows.schema.names)


@dataclass(frozen=True, slots=True)
class SinkPolicy:
    """The settings that are the same for every sink; :class:`onceward.KafkaSink` has the words on
    each.

    :param batch_attempts: how often one batch may run in all (1: never again) before its error
        reaches Spark and the query fails; each attempt has an epoch of its own.
    :param checkpointing: sets ``batch_attempts`` and ``batch_timeout_s``, and the pause between
        batches.
    :raises ConfigurationError: naming the setting and what it takes.
    """

    pipeline: PipelineId
    delivery: Delivery = "exactly_once"
    resume: Resume = "checkpoint"
    batch_attempts: int = 3
    batch_timeout_s: float | None = None
    skipped_batches: SkippedBatches = "refuse"
    checkpointing: Checkpointing | None = None

    def __post_init__(self) -> None:
        if self.checkpointing is not None:
            self._take(self.checkpointing)
        check_choice("delivery", self.delivery, get_args(Delivery))
        check_choice("resume", self.resume, RESUME_CHOICES)
        check_choice("skipped_batches", self.skipped_batches, get_args(SkippedBatches))
        whole_number("batch_attempts", self.batch_attempts, 1)
        if self.batch_timeout_s is not None and not (
            _is_a_number(self.batch_timeout_s) and self.batch_timeout_s > 0
        ):
            raise ConfigurationError(
                f"batch_timeout_s={self.batch_timeout_s!r} is not a positive number of seconds",
                next_step="pass seconds, or None for no limit",
            )
        if not self.has_ledger and self.resume != "checkpoint":
            raise ContradictoryOptions(
                f"resume={self.resume!r} with delivery={self.delivery!r}: without exactly-once "
                "there is no ledger to resume from",
                next_step='use delivery="exactly_once", or leave resume out',
            )

    def _take(self, checkpointing: object) -> None:
        """Take over the checkpoint settings; refuse what is set twice."""
        if not isinstance(checkpointing, Checkpointing):
            raise ConfigurationError(
                f"checkpointing={checkpointing!r} is not what ow.checkpointing(…) returns",
                next_step="pass ow.checkpointing(…), or leave checkpointing= out",
            )
        settings = (
            ("batch_attempts", self.batch_attempts, 3, checkpointing.attempts, "attempts"),
            ("batch_timeout_s", self.batch_timeout_s, None, checkpointing.timeout_s, "timeout"),
        )
        for name, value, default, theirs, word in settings:
            if value not in (default, theirs):
                raise ContradictoryOptions(
                    f"{name}={value} and checkpointing= with {word}={theirs:g}",
                    next_step=f"leave {name}= out, and set {word}= of ow.checkpointing",
                )
            object.__setattr__(self, name, theirs)

    @property
    def min_pause_s(self) -> float:
        """Return the least pause between two batches."""
        return 0.0 if self.checkpointing is None else self.checkpointing.min_pause_s

    @property
    def has_ledger(self) -> bool:
        """Is there a chain of batches that a lost one would be missing from?"""
        return self.delivery == "exactly_once"


_START_AGAIN = "start the query again"
_NOTHING_TO_DO = ("nothing; ", "nothing, ", "nothing: ", "none: ")


def with_the_next_start(error: OncewardError) -> None:
    """Make the next step one for the next start: this run has tried often enough."""
    step = error.next_step
    for nothing in _NOTHING_TO_DO:
        step = step.removeprefix(nothing)
    if not step.startswith(_START_AGAIN):
        error.next_step = f"{_START_AGAIN}, as ow.supervise does" + (
            f"; then {step}" if step else ""
        )


def must_be_a_ledger(ledger: object) -> None:
    """Raise ConfigurationError for what is no ledger's settings."""
    if not isinstance(ledger, Ledger):
        raise ConfigurationError(
            f"ledger={ledger!r} is no ledger",
            next_step="pass ow.FolderLedger(…), ow.DatabaseLedger(…) or ow.KafkaLedger(…)",
        )


def must_be_decided(ledger: object, commit_timeout_s: float) -> None:
    """Raise ConfigurationError for a wrong setting of a sink whose decision is a ledger record."""
    must_be_a_ledger(ledger)
    if not (_is_a_number(commit_timeout_s) and commit_timeout_s >= 0):
        raise ConfigurationError(
            f"commit_timeout_s={commit_timeout_s!r} is not a number of seconds",
            next_step="pass 0 or more",
        )


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    """Raise ConfigurationError unless the setting ``name`` has one of its ``choices``."""
    # 1 is True, for Python
    if value not in choices or type(value) not in map(type, choices):
        raise ConfigurationError(
            f"{name}={value!r} is unknown", next_step=f"use one of {', '.join(map(str, choices))}"
        )


def _is_a_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def whole_number(name: str, value: object, least: int, most: int | None = None) -> None:
    """Raise ConfigurationError unless the setting ``name`` is a whole number in its range."""
    bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < least or (most and value > most):  # type: ignore[operator]
        bounds = f"a whole number {bounds}"
        raise ConfigurationError(
            f"{name}={value!r} is not {bounds}", next_step=f"set {name} to {bounds}"
        )


def names(setting: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return columns as a tuple. :raises ConfigurationError: there is none, or one twice."""
    if value is None:
        return ()
    found = (
        (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else ()
    )
    if (
        not found
        or any(not isinstance(name, str) or not name for name in found)
        or len(set(found)) < len(found)
    ):
        raise ConfigurationError(
            f"{setting}={value!r} does not name columns",
            next_step="pass a column's name, or a list of different ones",
        )
    return found
