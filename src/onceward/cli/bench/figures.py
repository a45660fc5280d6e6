"""What the sink part is to run, and what it reports, computed from its runs. Pure.

Medians over rounds, and ratios round by round before the median: two contenders of one round met the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

SOURCE = "source alone"
SPARK_SINK = "Spark's Kafka sink"
ONCEWARD = "onceward"
CONTENDERS = (SOURCE, SPARK_SINK, ONCEWARD)
"""In the order in which they run in each round."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What is run: every contender ``rounds`` times over ``records`` records, after ``warm_up_records`` each."""

    records: int
    rounds: int
    warm_up_records: int
    batch_records: int
    partitions: int
    broker_version: str


@dataclass(frozen=True, slots=True)
class Run:
    """One query over the whole input. Times in seconds; CPU of Spark in three parts and of the broker."""

    contender: str
    round: int
    records: int
    wall_s: float
    driver_cpu_s: float
    jvm_cpu_s: float
    workers_cpu_s: float
    broker_cpu_s: float
    batch_s: float

    @property
    def spark_cpu_s(self) -> float:
        """Driver, JVM and Python workers."""
        return self.driver_cpu_s + self.jvm_cpu_s + self.workers_cpu_s

    @property
    def cpu_s(self) -> float:
        """Spark and broker together."""
        return self.spark_cpu_s + self.broker_cpu_s


@dataclass(frozen=True, slots=True)
class Figures:
    """One contender: medians over rounds. CPU in microseconds per record; ``batch_ms`` is a batch from end to end."""

    records_per_s: float
    driver_us: float
    jvm_us: float
    workers_us: float
    spark_us: float
    broker_us: float
    total_us: float
    batch_ms: float


@dataclass(frozen=True, slots=True)
class SinkFigures:
    """All contenders, and Onceward against Spark's own sink: medians of each round's ratio.

    ``beyond_source_cpu_ratio`` compares what the sinks cost on top of reading: the source alone taken off both.
    """

    contenders: Mapping[str, Figures]
    throughput_ratio: float
    cpu_ratio: float
    spark_cpu_ratio: float
    broker_cpu_ratio: float
    beyond_source_cpu_ratio: float


def summarise(runs: Sequence[Run]) -> SinkFigures:
    """The figures of ``runs``, which hold every contender once in every round."""
    by_contender = {name: _by_round(runs, name) for name in CONTENDERS}

    def ratio(value: Callable[[Run], float]) -> float:
        return median(
            _ratio(value(ours), value(theirs))
            for ours, theirs in zip(by_contender[ONCEWARD], by_contender[SPARK_SINK], strict=True)
        )

    return SinkFigures(
        contenders={name: _figures(of_contender) for name, of_contender in by_contender.items()},
        throughput_ratio=ratio(lambda run: run.records / run.wall_s),
        cpu_ratio=ratio(lambda run: run.cpu_s),
        spark_cpu_ratio=ratio(lambda run: run.spark_cpu_s),
        broker_cpu_ratio=ratio(lambda run: run.broker_cpu_s),
        beyond_source_cpu_ratio=median(
            _ratio(ours.cpu_s - source.cpu_s, theirs.cpu_s - source.cpu_s)
            for source, theirs, ours in zip(*(by_contender[name] for name in CONTENDERS), strict=True)
        ),
    )


def _ratio(ours: float, theirs: float) -> float:
    """``ours`` to ``theirs``; infinite when the other cost nothing that could be measured."""
    return ours / theirs if theirs > 0 else float("inf")


def _by_round(runs: Sequence[Run], contender: str) -> list[Run]:
    return sorted((run for run in runs if run.contender == contender), key=lambda run: run.round)


def _figures(runs: Sequence[Run]) -> Figures:
    def per_record_us(seconds: Callable[[Run], float]) -> float:
        return median(seconds(run) / run.records * 1e6 for run in runs)

    return Figures(
        records_per_s=median(run.records / run.wall_s for run in runs),
        driver_us=per_record_us(lambda run: run.driver_cpu_s),
        jvm_us=per_record_us(lambda run: run.jvm_cpu_s),
        workers_us=per_record_us(lambda run: run.workers_cpu_s),
        spark_us=per_record_us(lambda run: run.spark_cpu_s),
        broker_us=per_record_us(lambda run: run.broker_cpu_s),
        total_us=per_record_us(lambda run: run.cpu_s),
        batch_ms=median(run.batch_s * 1e3 for run in runs),
    )
