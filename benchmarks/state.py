"""What exactly-once adds to queries that keep state: each of :mod:`stateful` through Onceward and
through Spark's own sink, under the same settings. Called by :mod:`__main__`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from benchmarks.contenders import Contender
from benchmarks.figures import median_ratio
from benchmarks.local_broker import LocalBroker
from benchmarks.measuring import Measuring, measured
from benchmarks.plan import ONCEWARD, SPARK_TUNED, in_turns_each

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
    """Return those that are measured: ``keys`` windows, each counted twice; and a tenth as many
    records in a join, and in sessions of few keys, which Python sees one by one.

    :param keys: at least 1,000.
    """
    return (
        Stateful("windows", 2 * keys, keys),
        Stateful("join", keys // 10, keys // 10),
        Stateful("sessions", keys // 10, keys // 1_000),
    )


@dataclass(frozen=True, slots=True)
class StateTurn:
    """One query: seconds from its start to its end, and CPU of pipeline and broker."""

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
) -> dict[Stateful, dict[str, list[StateTurn]]]:
    """Return the turns of each contender by query; of each query one before them does not count.

    :raises OutputWrong: a contender's counts are not those of what was read.
    :raises ContenderFailed: a query failed.
    """
    names = [contender.name for contender in contenders]
    with measured(contenders, broker, say) as measuring:
        return in_turns_each(queries, names, rounds, partial(_turn, measuring), say)


def summarise_state(
    turns: Mapping[Stateful, Mapping[str, Sequence[StateTurn]]],
) -> list[StateFigures]:
    """Return medians by query, and ratios round by round before the median. Pure."""
    return [_figures(query, of[ONCEWARD], of[SPARK_TUNED]) for query, of in turns.items()]


def _figures(
    query: Stateful, ours: Sequence[StateTurn], sparks: Sequence[StateTurn]
) -> StateFigures:
    return StateFigures(
        query,
        median(turn.wall_s for turn in sparks),
        median(turn.wall_s for turn in ours),
        median_ratio(ours, sparks, lambda turn: turn.wall_s),
        median_ratio(ours, sparks, lambda turn: turn.batch_s),
        median_ratio(ours, sparks, lambda turn: turn.cpu_s),
    )


def _turn(measuring: Measuring, query: Stateful, contender: str) -> StateTurn:
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
    return StateTurn(wall_s, median(answer["batch_s"]), used.pipeline + used.broker)
