"""What a batch costs as it is cut into more tasks and output partitions, beside Spark's own sink
under the same settings, and the memory of a worker for a large one. Called by :mod:`__main__`.
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
from benchmarks.topics import VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    """``batches`` of ``batch_records`` each, read from ``tasks`` partitions by a task each.

    :param hot_share: of the records, that have one and the same key.
    :param pipelines: queries in one driver at the same time, each of which copies all of it.
    """

    tasks: int
    output_partitions: int
    batch_records: int = 100_000
    batches: int = 3
    value_bytes: int = VALUE_BYTES
    hot_share: float = 0.0
    pipelines: int = 1

    def __str__(self) -> str:
        return (
            f"{self.tasks:,} tasks × {self.output_partitions:,} partitions"
            + (f", {self.value_bytes:,} B" if self.value_bytes != VALUE_BYTES else "")
            + (f", {self.hot_share:.0%} one key" if self.hot_share else "")
            + (f", {self.pipelines} pipelines" if self.pipelines > 1 else "")
        )


CUTS = (
    Cut(4, 1),
    Cut(4, 16),
    Cut(4, 100),
    Cut(4, 1_000),
    Cut(100, 4),
    Cut(100, 100),
    Cut(1_000, 1_000, 100_000, 1),
    Cut(4, 16, 400_000, value_bytes=16),
    Cut(4, 16, 200, value_bytes=900_000),
    Cut(4, 16, hot_share=0.9),
    Cut(4, 4, 10_000, 5, pipelines=20),
)
LARGE = Cut(4, 4, 5_000_000, 1)
"""The batch that a worker's memory is looked at for."""


@dataclass(frozen=True, slots=True)
class ScaleTurn:
    """One query. ``batch_s``: the median of its batches; ``steps_ms``: medians of our sink's
    steps; ``worker_mb``: the most that a Python worker of the contender has had so far.
    """

    batch_s: float
    cpu_s: float
    steps_ms: Mapping[str, float]
    worker_mb: float

    def __str__(self) -> str:
        return f"{self.batch_s:.2f} s a batch, {self.cpu_s:.1f} s of CPU in all"


@dataclass(frozen=True, slots=True)
class ScaleFigures:
    """One cut: medians over rounds, and Onceward's to Spark's."""

    cut: Cut
    spark_batch_s: float
    batch_s: float
    batch_ratio: float
    cpu_ratio: float
    steps_ms: Mapping[str, float]
    worker_mb: float


def run_scale(
    contenders: Sequence[Contender],
    broker: LocalBroker,
    rounds: int,
    say: Callable[[str], None],
    cuts: Sequence[Cut] = (*CUTS, LARGE),
) -> dict[Cut, dict[str, list[ScaleTurn]]]:
    """Return the turns of each contender by cut; of each cut one before them does not count.

    :raises OutputWrong: a contender lost or repeated a record.
    :raises ContenderFailed: a query failed.
    """
    names = [contender.name for contender in contenders]
    with measured(contenders, broker, say) as measuring:
        return in_turns_each(cuts, names, rounds, partial(_turn, measuring), say)


def summarise_scale(
    turns: Mapping[Cut, Mapping[str, Sequence[ScaleTurn]]],
) -> list[ScaleFigures]:
    """Return medians by cut, and ratios round by round before the median. Pure."""
    return [_figures(cut, of[ONCEWARD], of[SPARK_TUNED]) for cut, of in turns.items()]


def _figures(cut: Cut, ours: Sequence[ScaleTurn], sparks: Sequence[ScaleTurn]) -> ScaleFigures:
    return ScaleFigures(
        cut,
        median(turn.batch_s for turn in sparks),
        median(turn.batch_s for turn in ours),
        median_ratio(ours, sparks, lambda turn: turn.batch_s),
        median_ratio(ours, sparks, lambda turn: turn.cpu_s),
        {step: median(turn.steps_ms[step] for turn in ours) for step in ours[0].steps_ms},
        max(turn.worker_mb for turn in ours),
    )


def _turn(measuring: Measuring, cut: Cut, contender: str) -> ScaleTurn:
    records = cut.batch_records * cut.batches
    source = measuring.source(records, cut.value_bytes, cut.tasks, cut.hot_share)
    with measuring.outputs(cut.output_partitions, cut.pipelines) as names:
        answer, _, used = measuring.copy(
            contender,
            name=names[0],
            others=names[1:],
            source=source,
            batch_records=cut.batch_records,
        )
        for name in names:
            measuring.topics.audit(name, cut.output_partitions, records).require(name)
    return ScaleTurn(
        median(answer["batch_s"]),
        used.pipeline + used.broker,
        answer["steps_ms"],
        measuring.worker_peak_mb(contender),
    )
