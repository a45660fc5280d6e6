"""Nexmark: six queries from Kafka to Kafka, in Flink's SQL exactly once, in Spark's through its own
sink and through Onceward, over the events of the Rust crate ``nexmark``. Called by
:mod:`__main__` and :mod:`nexmark_kills`.

Each result is read back and compared with what SQLite makes of the same events, row by row. The
last event of each partition is an hour later than the others, so that all windows of these end;
its own windows are not looked at.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.figures import median_ratio
from benchmarks.local_broker import LocalBroker
from benchmarks.measuring import Measuring, measured
from benchmarks.nexmark_queries import (
    QUERIES,
    SOURCE_SCHEMA,
    WATERMARK_SECONDS,
    NexmarkQuery,
    flink_statements,
)
from benchmarks.plan import SOURCE_PARTITIONS, in_turns_each
from benchmarks.topics import OutputWrong
from onceward.errors import ConfigurationError, ResourceError

_CRATE, _VERSION = "nexmark", "0.2.0"
_LATER_MS = 3_600_000
_BATCHES = 4.5  # the last one has the end of every partition
OUTPUT_PARTITIONS = 4
TOPIC = "nexmark"
_COLUMNS = {
    kind: [field.split()[0] for field in fields.split(", ")]
    for kind, fields in SOURCE_SCHEMA.items()
}


@dataclass(frozen=True, slots=True)
class NexmarkTurn:
    """One query of one contender: seconds, and CPU seconds of its processes and of the broker."""

    wall_s: float
    pipeline_s: float
    broker_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s, {self.pipeline_s:.1f} + {self.broker_s:.1f} s of CPU"


@dataclass(frozen=True, slots=True)
class NexmarkFigures:
    """One query: medians of cores times seconds by contender, and what Onceward's are to each
    other's, round by round before the median.
    """

    query: str
    cores_times_s: Mapping[str, float]
    wall_s: Mapping[str, float]
    onceward_to: Mapping[str, float]


class Events:
    """Events that were made, and what the queries make of them.

    :param lines: JSON, one event each.
    """

    def __init__(self, lines: Sequence[bytes]) -> None:
        self.lines = [*lines, *_later(lines)]
        self.end_ms = _time(json.loads(lines[-1])) + _LATER_MS // 2
        self._database = sqlite3.connect(":memory:")
        for kind, columns in _COLUMNS.items():
            self._database.execute(f"CREATE TABLE {kind} ({', '.join(columns)})")
        rows: dict[str, list[list[Any]]] = {kind: [] for kind in _COLUMNS}
        for line in self.lines:
            ((kind, event),) = json.loads(line).items()
            rows[kind].append([event[column] for column in _COLUMNS[kind]])
        for kind, values in rows.items():
            marks = ", ".join("?" * len(_COLUMNS[kind]))
            self._database.executemany(f"INSERT INTO {kind} VALUES ({marks})", values)  # noqa: S608
        self._database.execute("CREATE INDEX sellers ON auction (seller)")

    def must_be_answered(self, query: NexmarkQuery, results: Iterator[bytes], who: str) -> None:
        """Compare ``results``, as JSON, with SQLite's.

        :raises OutputWrong: a row is missing, or there that should not be.
        """
        cursor = self._database.execute(query.sqlite)
        names = [column[0] for column in cursor.description]
        wanted = Counter(row for row in cursor if self._is_looked_at(query, row))
        found = Counter(
            row
            for text in results
            for row in [tuple(json.loads(text)[name] for name in names)]
            if self._is_looked_at(query, row)
        )
        if found != wanted:
            raise OutputWrong(
                f"{who} has {(found - wanted).total()} rows that SQLite has not, such as "
                f"{[*(found - wanted)][:3]}, and lacks {(wanted - found).total()}, such as "
                f"{[*(wanted - found)][:3]}",
                next_step="do not believe this run's figures, and report it",
            )

    def _is_looked_at(self, query: NexmarkQuery, row: Sequence[Any]) -> bool:
        return not query.is_windowed or row[0] < self.end_ms


def made_events(number: int, say: Callable[[str], None]) -> Events:
    """Have the crate make ``number`` events, of which 92 % are bids.

    :raises ConfigurationError: there is no ``cargo``, which compiles it once.
    :raises ResourceError: it does not compile.
    """
    root = Path("build", f"{_CRATE}-{_VERSION}").absolute()
    generator = root / "bin" / _CRATE
    if not generator.is_file():
        cargo = shutil.which("cargo")
        if cargo is None:
            raise ConfigurationError(
                "there is no cargo, which compiles the generator of Nexmark's events",
                next_step="install Rust (Debian: cargo)",
            )
        say(f"compiling {_CRATE} {_VERSION} …")
        command = [cargo, "install", "--quiet", _CRATE, "--version", _VERSION, "--features", "bin"]
        done = subprocess.run(
            [*command, "--root", str(root)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ResourceError(
                f"{_CRATE} {_VERSION} does not compile: {done.stderr[-2000:]}",
                next_step="see whether the registry of crates can be reached",
            )
    say(f"making {number:,} events …")
    made = subprocess.run(
        [str(generator), "--no-wait", "-n", str(number)], stdout=subprocess.PIPE, check=True
    )
    return Events(made.stdout.splitlines())


def run_nexmark(
    contenders: Sequence[Contender],
    broker: LocalBroker,
    events: Events,
    rounds: int,
    say: Callable[[str], None],
    queries: Sequence[str] = tuple(QUERIES),
) -> dict[str, dict[str, list[NexmarkTurn]]]:
    """Return the turns of each contender by query; of each query one before them does not count.

    :raises OutputWrong: an answer is not SQLite's.
    :raises ContenderFailed: a query failed.
    """
    known = {contender.name: contender for contender in contenders}
    with measured(contenders, broker, say) as measuring:
        measuring.topics.create(TOPIC, SOURCE_PARTITIONS)
        measuring.topics.fill_in_turn(TOPIC, events.lines, SOURCE_PARTITIONS)
        turn = partial(_turn, measuring, known, events, broker.bootstrap_servers)
        return in_turns_each(queries, [*known], rounds, turn, say)


def spark_order(query: NexmarkQuery, events: Events, batches: float) -> dict[str, Any]:
    """Return the order for a Spark contender to run ``query`` in so many batches."""
    return {
        "source": TOPIC,
        "batch_records": int(len(events.lines) / batches),
        "through": "nexmark_spark.py",
        "arguments": {
            "query": query.spark,
            "schema": SOURCE_SCHEMA,
            "watermark_seconds": WATERMARK_SECONDS,
        },
    }


def summarise_nexmark(
    turns: Mapping[str, Mapping[str, Sequence[NexmarkTurn]]], ours: str
) -> list[NexmarkFigures]:
    """Return medians by query, and ratios round by round before the median. Pure."""
    return [
        NexmarkFigures(
            query,
            {name: median(turn.pipeline_s for turn in of[name]) for name in of},
            {name: median(turn.wall_s for turn in of[name]) for name in of},
            {
                name: median_ratio(of[ours], of[name], lambda turn: turn.pipeline_s)
                for name in of
                if name != ours
            },
        )
        for query, of in turns.items()
    ]


def _turn(
    measuring: Measuring,
    known: Mapping[str, Contender],
    events: Events,
    servers: str,
    query_name: str,
    name: str,
) -> NexmarkTurn:
    query, contender = QUERIES[query_name], known[name]
    with measuring.output(OUTPUT_PARTITIONS) as output:
        order: dict[str, Any] = {"name": output, "source": TOPIC}
        if contender.is_spark:
            order |= spark_order(query, events, _BATCHES)
        else:
            order["statements"] = flink_statements(query, servers, TOPIC, output)
        _, wall_s, used = measuring.copy(name, **order)
        results = measuring.topics.values(output, OUTPUT_PARTITIONS)
        events.must_be_answered(query, results, f"{query_name} of {name}")
    return NexmarkTurn(wall_s, used.pipeline, used.broker)


def _later(lines: Sequence[bytes]) -> list[bytes]:
    """Return an event of each kind for each partition, an hour after all others."""
    newest = _time(json.loads(lines[-1])) + _LATER_MS
    found: dict[str, Any] = {}
    for line in lines:
        ((kind, event),) = json.loads(line).items()
        found.setdefault(kind, {**event, "date_time": newest})
        if len(found) == len(_COLUMNS):
            break
    return [
        json.dumps({kind: event}).encode()
        for kind, event in found.items()
        for _ in range(SOURCE_PARTITIONS)
    ]


def _time(event: dict[str, dict[str, Any]]) -> int:
    return max(int(one["date_time"]) for one in event.values())
