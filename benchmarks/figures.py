"""What the sink part reports, computed from its runs. Pure.

Medians over rounds, and ratios round by round before the median: two contenders of one round met
the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.plan import ONCEWARD, SOURCE, SPARK_TUNED, Shape, SinkPlan

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """One query over the whole input. Times in seconds; CPU of the pipeline in three parts and of
    the broker. ``batch_s``: NaN of one that has no batches.
    """

    contender: str
    shape: Shape
    round: int
    wall_s: float
    driver_cpu_s: float
    jvm_cpu_s: float
    workers_cpu_s: float
    broker_cpu_s: float
    batch_s: float

    @property
    def records(self) -> int:
        """How many it copied."""
        return self.shape.records

    @property
    def pipeline_cpu_s(self) -> float:
        """Driver, JVM and Python workers."""
        return self.driver_cpu_s + self.jvm_cpu_s + self.workers_cpu_s

    @property
    def cpu_s(self) -> float:
        """Spark and broker together."""
        return self.pipeline_cpu_s + self.broker_cpu_s


@dataclass(frozen=True, slots=True)
class Figures:
    """One contender in one shape: medians over rounds.

    CPU in microseconds per record; ``batch_ms`` is a batch from end to end.
    """

    records_per_s: float
    driver_us: float
    jvm_us: float
    workers_us: float
    pipeline_us: float
    broker_us: float
    total_us: float
    batch_ms: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Onceward to another contender in one shape: medians of each round's ratio; below 1 is less.

    ``beyond_source_cpu_ratio`` compares what the sinks cost on top of reading. It is there only
    for the contender that reads as Onceward does: the source alone is then the same for both, and
    is taken off both.
    """

    throughput_ratio: float
    cpu_ratio: float
    pipeline_cpu_ratio: float
    broker_cpu_ratio: float
    beyond_source_cpu_ratio: float | None


@dataclass(frozen=True, slots=True)
class ShapeFigures:
    """Every contender in one shape, and Onceward to each other that has a sink."""

    shape: Shape
    contenders: Mapping[str, Figures]
    onceward_to: Mapping[str, Comparison]


def summarise(plan: SinkPlan, runs: Sequence[Run]) -> list[ShapeFigures]:
    """The figures of ``runs``, which are those of ``plan``, shape by shape.

    :raises ValueError: a contender has not run in every round.
    """
    return [_of_shape(plan, shape, runs) for shape in plan.shapes]


def _of_shape(plan: SinkPlan, shape: Shape, runs: Sequence[Run]) -> ShapeFigures:
    by_contender = {
        name: _by_round(
            run
            for run in runs
            if run.contender == name
            and (run.shape == shape or (name == SOURCE and run.shape.reading == shape.reading))
        )
        for name in plan.contenders
    }
    source = by_contender.get(SOURCE)
    ours = by_contender[ONCEWARD]
    return ShapeFigures(
        shape,
        {name: _figures(of_contender) for name, of_contender in by_contender.items()},
        {
            name: _comparison(ours, theirs, source if name == SPARK_TUNED else None)
            for name, theirs in by_contender.items()
            if name not in (SOURCE, ONCEWARD)
        },
    )


def _comparison(
    ours: Sequence[Run], theirs: Sequence[Run], source: Sequence[Run] | None
) -> Comparison:
    def ratio(value: Callable[[Run], float]) -> float:
        return median_ratio(ours, theirs, value)

    beyond = None
    if source is not None:
        beyond = median(
            _ratio(our.cpu_s - read.cpu_s, their.cpu_s - read.cpu_s)
            for read, their, our in zip(source, theirs, ours, strict=True)
        )
    return Comparison(
        throughput_ratio=ratio(lambda run: run.records / run.wall_s),
        cpu_ratio=ratio(lambda run: run.cpu_s),
        pipeline_cpu_ratio=ratio(lambda run: run.pipeline_cpu_s),
        broker_cpu_ratio=ratio(lambda run: run.broker_cpu_s),
        beyond_source_cpu_ratio=beyond,
    )


def median_ratio(ours: Sequence[T], theirs: Sequence[T], value: Callable[[T], float]) -> float:
    """Return the median of each round's ratio of ``value``; below 1: ours is less."""
    return median(
        _ratio(value(our), value(their)) for our, their in zip(ours, theirs, strict=True)
    )


def _ratio(ours: float, theirs: float) -> float:
    """``ours`` to ``theirs``; infinite when the other cost nothing that could be measured."""
    return ours / theirs if theirs > 0 else float("inf")


def _by_round(runs: Iterable[Run]) -> list[Run]:
    return sorted((run for run in runs if run.round), key=lambda run: run.round)


def _figures(runs: Sequence[Run]) -> Figures:
    def per_record_us(seconds: Callable[[Run], float]) -> float:
        return median(seconds(run) / run.records * 1e6 for run in runs)

    return Figures(
        records_per_s=median(run.records / run.wall_s for run in runs),
        driver_us=per_record_us(lambda run: run.driver_cpu_s),
        jvm_us=per_record_us(lambda run: run.jvm_cpu_s),
        workers_us=per_record_us(lambda run: run.workers_cpu_s),
        pipeline_us=per_record_us(lambda run: run.pipeline_cpu_s),
        broker_us=per_record_us(lambda run: run.broker_cpu_s),
        total_us=per_record_us(lambda run: run.cpu_s),
        batch_ms=median(run.batch_s * 1e3 for run in runs),
    )
