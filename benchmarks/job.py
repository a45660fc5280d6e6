"""A contender: one Spark session that copies topics as it is told. Run by its path, in a process
of its own (:mod:`serving`).

Started by :mod:`contender_process` with the Onceward that is to be measured first on
``PYTHONPATH``, which may be an older one. So this file imports what every version has, the public
names and ``onceward.events``, and nothing beside it.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import onceward
from onceward import events

_PHASES = (
    "triggerExecution",
    "latestOffset",
    "walCommit",
    "queryPlanning",
    "addBatch",
    "commitOffsets",
)


class Steps:
    """How long Onceward's steps took, as its events say; told in the query's thread, asked in the
    main one.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = defaultdict(list)
        self._lock = threading.Lock()

    def __call__(self, event: events.Event) -> None:
        if event.phase == "finished" and event.seconds is not None:
            with self._lock:
                self._seconds[event.step].append(event.seconds)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._seconds.clear()

    def medians_ms(self) -> dict[str, float]:
        """By step."""
        with self._lock:
            return {step: median(seconds) * 1e3 for step, seconds in self._seconds.items()}


class Job:
    """One sink in one session.

    :param sink: ``noop``, ``kafka`` (Spark's own) or ``onceward``.
    :param settings: whose defaults session and source keep, ``spark`` or ``onceward``, or
        ``local-disk``: Onceward's, with ``ow.checkpointing(local_disk=True)``.
    :param folder: for checkpoints and Spark's files.
    """

    def __init__(self, sink: str, settings: str, folder: str) -> None:
        self._sink = sink
        self._settings = settings
        self._folder = Path(folder)
        self._spark = _session(settings, self._folder)
        self._steps = Steps()
        listen = getattr(events, "probe", None) or events.subscribe  # type: ignore[attr-defined]  # before there was one
        listen(self._steps)
        self._open = contextlib.ExitStack()
        self._query: StreamingQuery | None = None
        self._marked = -1

    def hello(self) -> dict[str, Any]:
        """Whom the owner talks to."""
        jvm = self._jvm().java.lang.ProcessHandle.current().pid()
        return {
            "pid": os.getpid(),
            "jvm_pid": int(jvm),
            "package": str(Path(onceward.__file__).resolve().parent),
        }

    def copy(self, *, name: str, others: Sequence[str] = (), **order: Any) -> dict[str, Any]:
        """Copy all of a topic; returns the seconds of each batch, from its trigger to Spark's
        commit log, and the medians of our sink's steps.

        :param others: topics for as many queries more, which run at the same time.
        """
        self._steps.forget()
        with self._open:
            queries = [
                self._started(name=each, **order, trigger={"availableNow": True})
                for each in (name, *others)
            ]
            for query in queries:
                _awaited(query)
            batches = [
                b.durationMs["triggerExecution"] / 1e3
                for query in queries
                for b in query.recentProgress
                if b.numInputRows
            ]
        return {"batch_s": batches, "steps_ms": self._steps.medians_ms()}

    def collect_garbage(self) -> dict[str, Any]:
        """What is left of a query shall cost neither the next one nor, as memory, the other
        processes.
        """
        self._jvm().java.lang.System.gc()
        return {}

    def start(self, **order: Any) -> dict[str, Any]:
        """Copy whatever comes to a topic, a batch as soon as the one before it has ended, until
        :meth:`stop`.
        """
        self._query = self._started(**order, trigger={"processingTime": "0 seconds"})
        return {}

    def mark(self) -> dict[str, Any]:
        """What :meth:`stop` tells begins here."""
        last = self._running().lastProgress
        self._marked = -1 if last is None else int(last.batchId)
        self._steps.forget()
        return {}

    def stop(self) -> dict[str, Any]:
        """End the query; returns medians since :meth:`mark`: Spark's parts of a batch, and the
        steps of our sink.
        """
        query = self._running()
        steps = self._steps.medians_ms()
        with self._open:
            query.stop()
            _awaited(query)
        batches = [b for b in query.recentProgress if b.numInputRows and b.batchId > self._marked]
        phases = {
            phase: [b.durationMs[phase] for b in batches if phase in b.durationMs]
            for phase in _PHASES
        }
        self._query = None
        return {
            "batches": len(batches),
            "phases_ms": {phase: median(all_ms) for phase, all_ms in phases.items() if all_ms},
            "steps_ms": steps,
        }

    def close(self) -> None:
        """End the session."""
        with self._open:
            if self._query is not None:
                self._query.stop()
        self._spark.stop()

    def _started(
        self,
        *,
        name: str,
        bootstrap_servers: str,
        source: str,
        batch_records: int,
        trigger: dict[str, Any],
        compression: str = "none",
        through: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> StreamingQuery:
        """:param through: a file beside this one, whose query the records go through; see
        :mod:`stateful`. Empty: none.
        """
        rows, mode = self._source(bootstrap_servers, source, batch_records), "append"
        if through:
            rows, mode = self._through(through, rows, **arguments or {})
        writer = rows.select("key", "value").writeStream.outputMode(mode).trigger(**trigger)
        writer = writer.option("checkpointLocation", str(self._folder / name))
        if self._sink == "noop":
            return writer.format("noop").start()
        if self._sink == "kafka":
            kafka = writer.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
            return (
                kafka.option("topic", name).option("kafka.compression.type", compression).start()
            )
        sink = onceward.KafkaSink(
            bootstrap_servers=bootstrap_servers,
            topic=name,
            pipeline_id=name,
            options={"compression.type": compression},
        )
        # Or its connections would still be there in the rounds that follow.
        self._open.enter_context(contextlib.closing(sink))
        return writer.foreachBatch(sink).start()

    def _through(self, file: str, rows: DataFrame, **arguments: Any) -> tuple[DataFrame, str]:
        """Return the rows of a query, and its output mode."""
        query = runpy.run_path(str(Path(__file__).with_name(file)))
        for name, value in query["SETTINGS"].items():
            self._spark.conf.set(name, value)
        made: tuple[DataFrame, str] = query["through"](rows, **arguments)
        return made

    def _source(self, bootstrap_servers: str, topic: str, batch_records: int) -> DataFrame:
        if self._settings != "spark":
            return onceward.kafka_source(
                self._spark,
                bootstrap_servers=bootstrap_servers,
                topic=topic,
                max_offsets_per_trigger=batch_records,
            )
        return (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", batch_records)
            .load()
        )

    def _running(self) -> StreamingQuery:
        if self._query is None:
            raise ValueError("no query was started")
        return self._query

    def _jvm(self) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        return gateway.jvm


def _session(settings: str, folder: Path) -> SparkSession:
    """Two cores. Under Spark's own settings nothing of ours is in it but the path of Spark's Kafka
    connector.
    """
    advised = onceward.spark_conf()
    on_a_disk = onceward.checkpointing(local_disk=True).spark_conf
    builder: Any = SparkSession.builder
    session: SparkSession = builder.config(
        map={
            **({"spark.jars": advised["spark.jars"]} if settings == "spark" else advised),
            **(on_a_disk if settings == "local-disk" else {}),
            "spark.master": "local[2]",
            "spark.app.name": "onceward-bench",
            "spark.driver.memory": "2g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            # every batch of a run is wanted
            "spark.sql.streaming.numRecentProgressUpdates": "10000",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
    ).getOrCreate()
    return session


def _awaited(query: StreamingQuery) -> None:
    try:
        query.awaitTermination()
    except StreamingQueryException:
        if (error := onceward.error_of(query)) is not None:
            raise error from None
        raise
