"""What exactly-once adds to queries that keep state: each of :mod:`stateful` through Onceward and
through Spark's own sink, under the same settings. Called by :mod:`__main__`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.contender_process import ContenderProcesses
from benchmarks.contenders import Contender
from benchmarks.local_broker import LocalBroker
from benchmarks.measuring import Measuring
from benchmarks.plan import ONCEWARD, SPARK_TUNED, rotated

_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Stateful:
    """One query, of :mod:`stateful`, over ``records`` records of ``keys`` keys, in ``batches``."""

    kind: str
    records: int
    keys: int
    batches: int = 8

    def __str__(self) -> str:
        return f"{self.kind}, {self.records:,} records, {self.keys:,} keys"


def stateful_queries(keys: int) -> tuple[Stateful, ...]:
    """Return those that are measured: ``keys`` windows, each counted twice, a tenth as many
    records in a join, and a hundredth in sessions, which Python sees one by one.
    """
    return (
        Stateful("windows", 2 * keys, keys),
        Stateful("join", max(keys // 10, 1), max(keys // 10, 1)),
        Stateful("sessions", max(keys // 10, 100), max(keys // 1_000, 1)),
    )


@dataclass(frozen=True, slots=True)
class StateTurn:
    """One query: seconds from its start to its end, and CPU of pipeline and broker."""

    query: Stateful
    wall_s: float
    batch_s: float
    cpu_s: float

    def __str__(self) -> str:
        return f"{self.wall_s:.1f} s, {self.batch_s:.2f} s a batch, {self.cpu_s:.1f} s of CPU"


@dataclass(frozen=True, slots=True)
class StateFigures:
    """One query: medians over rounds, and Onceward's to Spark's."""

    query: Stateful
    spark_s: float
    onceward_s: float
    time_ratio: float
    batch_ratio: float
    cpu_ratio: float


def run_state(
    contenders: Sequence[Contender],
    broker: LocalBroker,
    queries: Sequence[Stateful],
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, list[StateTurn]]:
    """Return the turns of each contender; of each query one before them does not count.

    :raises OutputWrong: a contender's counts are not those of what was read.
    :raises ContenderFailed: a query failed.
    """
    names = [contender.name for contender in contenders]
    turns: dict[str, list[StateTurn]] = {name: [] for name in names}
    with (
        tempfile.TemporaryDirectory(prefix="onceward-bench-") as folder,
        ContenderProcesses(contenders, Path(folder)) as processes,
    ):
        measuring = Measuring(processes, broker, say)
        for query in queries:
            for number in range(rounds + 1):
                for name in rotated(names, number):
                    turn = _turn(measuring, name, query)
                    say(f"{query}, {f'round {number}' if number else 'warm-up'}: {name}: {turn}")
                    turns[name] += [turn] if number else []
    return turns


def summarise_state(turns: Mapping[str, Sequence[StateTurn]]) -> list[StateFigures]:
    """Return medians by query, and ratios round by round before the median. Pure."""
    figures = []
    for query in dict.fromkeys(turn.query for turn in turns[ONCEWARD]):
        ours, sparks = (
            [turn for turn in turns[name] if turn.query == query]
            for name in (ONCEWARD, SPARK_TUNED)
        )
        pairs = list(zip(ours, sparks, strict=True))
        figures.append(
            StateFigures(
                query,
                median(turn.wall_s for turn in sparks),
                median(turn.wall_s for turn in ours),
                median(our.wall_s / spark.wall_s for our, spark in pairs),
                median(our.batch_s / spark.batch_s for our, spark in pairs),
                median(our.cpu_s / spark.cpu_s for our, spark in pairs),
            )
        )
    return figures


def _turn(measuring: Measuring, contender: str, query: Stateful) -> StateTurn:
    source, topics = measuring.source(query.records), measuring.topics
    with measuring.output(_PARTITIONS) as name:
        answer, wall_s, used = measuring.copy(
            contender,
            name=name,
            source=source,
            batch_records=-(-query.records // query.batches),
            through="stateful.py",
            arguments={"kind": query.kind, "keys": query.keys},
        )
        if query.kind == "join":
            topics.audit(name, _PARTITIONS, query.records).require(name)
        else:
            topics.audit_counts(name, _PARTITIONS, query.records)
    return StateTurn(query, wall_s, median(answer["batch_s"]), used.pipeline + used.broker)
