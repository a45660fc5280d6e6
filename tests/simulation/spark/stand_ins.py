"""The simulated world, put where the product's code leaves its process: once for an OS process,
before the first seed.

A list of names in the product's modules, and what stands there while a simulation runs. What
decides is not among them; what is, asks a broker, Spark, or a disk. Each stand-in finds its world
by ``kernel.current()``.
"""

from __future__ import annotations

import importlib
import marshal
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import crc32c

from onceward.errors import OncewardError
from onceward.ids import TopicPartition
from onceward.kafka.records.batch import Fragment
from onceward.kafka.records.checksum import ContentChecksum, Stretch
from onceward.kafka.records.compression import Codec
from onceward.kafka.sink.columns import RecordFrame
from onceward.spark.batch.query import RunningBatch
from simulation.kernel import current
from simulation.spark.frames import Frame, Rows, key_of
from simulation.world import lines, network
from support.varints import varint

_NO_CHECKSUM = ContentChecksum(*[Stretch(0, 0)] * 4)
_EMPTY = Stretch(0, 0)
_PER_FRAGMENT = 3


class HeldRows:
    """As :class:`onceward.kafka.sink.rows.HeldRows`, of simulated rows. Rows of one key keep their
    order, in one partition; a key is of one source partition.
    """

    def __init__(
        self, topic: str | None, count_records: Callable[[str], int], producer: Any, first: int
    ) -> None:
        self._topic = topic
        self._count_of = count_records
        self._held: dict[TopicPartition, list[Any]] = {}
        self._rows: list[Rows] = []
        self.held_bytes = 0
        self.oldest_ms: dict[str, int] = {}

    def add(self, rows: Rows) -> None:
        self._rows.append(rows)
        self.held_bytes += current().world.setting.row_bytes * len(rows)

    def encode(self) -> dict[TopicPartition, list[Fragment]]:
        held: dict[TopicPartition, list[Any]] = {}
        counts: dict[str, int] = {}
        batch_id = computation = 0
        for rows in self._rows:
            batch_id, computation = rows.batch_id, rows.computation
            for row in rows:
                topic = row[0]
                count = counts.get(topic)
                if count is None:
                    count = counts[topic] = self._count_of(topic)
                key = key_of(row[1], row[2]) if row[1] >= 0 else -1 - row[1]
                where = TopicPartition(topic, key % count)
                held.setdefault(where, []).append(row)
        self._rows, self.held_bytes = [], 0
        fragments = {}
        for where in sorted(held):
            rows_there = held[where]
            made = fragments[where] = []
            for at in range(0, len(rows_there), _PER_FRAGMENT):
                part = rows_there[at : at + _PER_FRAGMENT]
                body = marshal.dumps((batch_id, computation, part))
                made.append(Fragment(body, len(part), Codec.NONE, 1, 1, _checksum(body)))
        return fragments


def _checksum(body: bytes) -> ContentChecksum:
    """In the first of the four the whole record batch: what the driver adds up is in the manifest,
    and judged.
    """
    return ContentChecksum(Stretch(crc32c.crc32c(body), len(body)), _EMPTY, _EMPTY, _EMPTY)


class _OneRecord:
    """Key and value of a record of the ledger, on their way from the columns to the bytes."""

    def __init__(self, value: bytes, key: bytes) -> None:
        self.value = value
        self.key = key


class _Columns:
    """In the place of ``RecordColumns`` for the ledger: one record."""

    @staticmethod
    def of(value: bytes, *, key: bytes) -> _OneRecord:
        return _OneRecord(value, key)


def one_record(
    columns: _OneRecord, *, codec: Codec, batch_bytes: int, now_ms: int
) -> list[Fragment]:
    """As ``encode_fragments`` for one record without headers: the same bytes (a test compares),
    without Arrow.
    """
    key, value = columns.key, columns.value
    body = b"\0\0\0" + varint(len(key)) + key + varint(len(value)) + value + b"\0"
    return [Fragment(varint(len(body)) + body, 1, Codec.NONE, now_ms, now_ms, _NO_CHECKSUM)]


class _Execution:
    """As much of a ``StreamExecution`` as :mod:`onceward.spark.batch.query` asks for a call that
    failed.
    """

    def __init__(self, query: Any) -> None:
        self._query = query

    def runId(self) -> _Execution:  # noqa: N802 — Spark's name
        return self

    def toString(self) -> str:  # noqa: N802 — Spark's name
        return str(self._query.run_id)

    def isActive(self) -> bool:  # noqa: N802 — Spark's name
        return True

    def resolvedCheckpointRoot(self) -> str:  # noqa: N802 — Spark's name
        return str(self._query.checkpoint.root)


def _running_batch(frame: Frame, batch_id: int) -> RunningBatch:
    return frame.computed.query.running_batch(batch_id)  # type: ignore[no-any-return]


def _run_is_active(session: Any, query_id: str, run_id: str) -> bool:
    return any(query.run_id == run_id for query in current().world.queries)


def _is_running(frame: Frame, query_id: str) -> bool:
    here = current().here
    return any(
        query.checkpoint.query_id == query_id and query.process is here
        for query in current().world.queries
    )


def _within(rows: Rows, bound: Any) -> Rows | None:
    return rows if rows.num_rows <= bound.rows else None


def _persisted_behind(frame: Frame) -> Any:

    computed = frame.computed
    return Counter({computed.number: 1}) if computed.persisted else Counter()


def _dropped(context: Any, rdds: Any) -> None:
    computed = context.query.computed
    if computed is not None and computed.number in rdds:
        computed.blocks.clear()


class _NoThread:
    """The thread that closes sinks of queries that have ended; the model's query sees to that by
    itself.
    """

    def start(self) -> None:
        """Not here."""

    def is_alive(self) -> bool:
        return True


def _sharing_key(settings: Any) -> int:
    """Settings are not sent here and there in the simulation: those that are the same object are
    equal, and the others are of another sink.
    """
    known: dict[int, Any] = current().world.settings_known
    known[id(settings)] = settings  # as long as the world stands no other gets its number
    return id(settings)


def _container(self: Any, version: int | None = None, **fields: Any) -> None:
    """As kafka-python makes a request that says its fields by name, without looking which of them
    have tags: nobody encodes it.
    """
    self._version = version
    self.tags = self.unknown_tags = None
    for name, value in fields.items():
        setattr(self, name, value)


def _message(
    self: Any,
    version: int | None = None,
    min_version: int | None = None,
    max_version: int | None = None,
    **fields: Any,
) -> None:
    self._header = None
    self._min_version = min_version
    self._max_version = max_version
    self._version = version
    self.tags = self.unknown_tags = None
    for name, value in fields.items():
        setattr(self, name, value)


class _NoSnapshots:
    """The state of this model has none."""

    def clear(self, batch_id: int) -> None:
        pass

    note = settle = clear


STAND_INS: Mapping[str, Any] = {
    # brokers and lines
    "onceward.kafka.wire.client.Connections": lambda settings: network.Connections(
        current(), settings
    ),
    "onceward.kafka.sink.sequencer.client.ClientSocket": lambda host, port, s: lines.ClientSocket(
        current(), host, port, s
    ),
    "onceward.kafka.sink.sequencer.listener.Listener": lambda host, port, **more: lines.Listener(
        current(), host, port, **more
    ),
    "onceward.kafka.wire.client._sharing_key": _sharing_key,
    "kafka.protocol.data_container.DataContainer.__init__": _container,
    "kafka.protocol.api_message.ApiMessage.__init__": _message,
    # Spark
    "onceward.engine.calls.foreach_batch.running_batch": _running_batch,
    "onceward.engine.calls.journal.fingerprint": lambda frame: hash(
        (frame.computed.number, frame.only, frame.half)
    ),
    "onceward.engine.calls.runs.is_running": _is_running,
    "onceward.engine.calls.runs.run_is_active": _run_is_active,
    "onceward.engine.decoding.find_steps": lambda frame, run_id: (),
    "onceward.engine.calls.runs._closer": _NoThread(),
    "onceward.engine.calls.replay.is_repeatable": lambda frame: not frame.computed.plan.by_chance,
    "onceward.engine.spark_jobs.plan_write": lambda frame, open_writer, returned_errors=(OncewardError,): (
        frame.written(open_writer, returned_errors)
    ),
    "onceward.spark.batch.query.query_by_id": lambda frame: _Execution(frame.computed.query),
    "onceward.spark.batch.query._in_another_thread": lambda context, execution: False,
    "onceward.spark.batch.job.collect": lambda frame, lost: current().world.jobs.collect(
        frame, lost
    ),
    "onceward.spark.batch.job.to_arrow": lambda frame, lost: current().world.jobs.rows(
        frame, lost
    ),
    "onceward.spark.batch.shuffles._shuffle_ids": lambda rdd, scheduler: {
        shuffle.id for shuffle in rdd.shuffles
    },
    "onceward.spark.batch.shuffles._taken_back": lambda context, tracker, shuffle: frozenset(
        *(one.taken_back for one in context.query.computed.shuffles if one.id == shuffle)
    ),
    "onceward.spark.batch.shuffles._executors": lambda context: frozenset(
        executor.name for executor in context.query.executors.alive
    ),
    "onceward.spark.batch.shuffles._persisted_behind": _persisted_behind,
    "onceward.spark.batch.shuffles._drop": _dropped,
    # The state of this model is in the checkpoint alone
    "onceward.spark.batch.shuffles._state_places": lambda running: {},
    "onceward.engine.calls.gate.SnapshotsOfFailures": lambda checkpoint: _NoSnapshots(),
    "onceward.spark.batch.shuffles._counted": lambda frame: (frame.count(), frame),
    "onceward.engine.driver_rows.bounded": lambda frame, bound, size: frame,
    "onceward.engine.driver_rows.within": _within,
    # rows
    "onceward.kafka.sink.sink.must_be_a_frame": lambda frame, more="": None,
    "onceward.kafka.sink.columns.check": lambda frame, topic, **more: None,
    "onceward.kafka.sink.attempt.prepare": lambda frame, topic, *, oversized=None, **more: (
        RecordFrame(frame, topic, topic if oversized is None else None)
    ),
    "onceward.kafka.sink.driver_path.row_bytes": lambda columns: "",
    "onceward.kafka.sink.driver_path.sort": lambda rows: rows,
    "onceward.kafka.sink.driver_path.HeldRows": HeldRows,
    "onceward.kafka.sink.tasks_path.gather_and_sort": lambda rows, within: rows,
    "onceward.kafka.sink.tasks.HeldRows": HeldRows,
    "onceward.kafka.sink.tasks.pieces": lambda rows: (rows,),
    # the ledger's records, one at a time, without Arrow
    "onceward.kafka.ledger.topic.RecordColumns": _Columns,
    "onceward.kafka.ledger.topic._one": lambda value: value,
    "onceward.kafka.ledger.topic.encode_fragments": one_record,
    "onceward.kafka.ledger.topic.key_partition": lambda key, partitions: (
        crc32c.crc32c(key) % partitions
    ),
}
_put: dict[str, Any] = {}


def put() -> None:
    """Put every stand-in where it belongs; once is enough."""
    if _put:
        return
    for name, value in STAND_INS.items():
        owner, attribute = _owner(name)
        _put[name] = getattr(owner, attribute)
        setattr(owner, attribute, value)


def take_away() -> None:
    """The product's own again."""
    for name, value in _put.items():
        owner, attribute = _owner(name)
        setattr(owner, attribute, value)
    _put.clear()


def _owner(name: str) -> tuple[Any, str]:
    path, _, attribute = name.rpartition(".")
    try:
        return importlib.import_module(path), attribute
    except ModuleNotFoundError:  # of a class
        module, _, kind = path.rpartition(".")
        return getattr(importlib.import_module(module), kind), attribute
