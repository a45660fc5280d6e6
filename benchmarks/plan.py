"""What is to be run: shapes, contenders, and the order of the turns. Pure; called by
:mod:`__main__`.

A *shape* is how the records are cut: output partitions and records a micro-batch. Few output
partitions and small batches are the shapes in which Onceward looks worst: Spark's own producers
fill larger requests then, and what a transaction costs is shared by fewer records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

SOURCE = "source alone"
SPARK_DEFAULTS = "Spark's sink, its defaults"
SPARK_TUNED = "Spark's sink, our settings"
SPARK_LOCAL_DISK = "Spark's sink, local_disk"
BEFORE = "onceward before"
ONCEWARD = "onceward"
LOCAL_DISK = "onceward, local_disk"
FLINK = "Flink, exactly once"
STREAMS = "Kafka Streams, exactly once"
LOOP = "confluent-kafka, a loop"
QUIX = "Quix Streams, exactly once"

SOURCE_PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to cut the work: ``records`` in micro-batches of ``batch_records``, to
    ``output_partitions``.
    """

    output_partitions: int
    batch_records: int
    records: int

    @property
    def reading(self) -> tuple[int, int]:
        """What the source alone notices of a shape."""
        return self.batch_records, self.records


@dataclass(frozen=True, slots=True)
class Turn:
    """One query of one contender; round 0 is the warm-up, which does not count."""

    round: int
    shape: Shape
    contender: str


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Every contender in every shape, ``rounds`` times, after a warm-up.

    :param contenders: their names. The source alone, if there, runs once for all shapes that read
        alike.
    :param warm_up_records: at most as many are copied by each contender in each kind of batch
        before anything counts.
    :param compression: ``compression.type`` of what is written; what is read is not compressed.
    """

    shapes: tuple[Shape, ...]
    contenders: tuple[str, ...]
    rounds: int
    warm_up_records: int
    broker_version: str
    value_bytes: int = 112
    compression: str = "none"

    def turns(self) -> Iterator[Turn]:
        """All of them in order. Each round begins with another contender, so that none always
        follows the same one.
        """
        for shape in self._warm_ups():
            yield from (Turn(0, shape, contender) for contender in self.contenders)
        for number in range(1, self.rounds + 1):
            for shape in self.shapes:
                yield from (
                    Turn(number, shape, contender)
                    for contender in rotated(self.contenders, number - 1)
                    if contender != SOURCE or shape in _first_of_their_reading(self.shapes)
                )

    def _warm_ups(self) -> Sequence[Shape]:
        if not self.warm_up_records:
            return ()
        return _first_of_their_reading(
            [
                Shape(
                    shape.output_partitions,
                    shape.batch_records,
                    min(self.warm_up_records, shape.records),
                )
                for shape in self.shapes
            ]
        )


@dataclass(frozen=True, slots=True)
class LatencyPlan:
    """Every contender at ``rate`` records/s, for ``seconds`` in all, which its ``rounds`` turns
    share.

    :param warm_up_seconds: at full rate before the first turn of each counts; half as long before
        later ones.
    """

    contenders: tuple[str, ...]
    rate: int
    seconds: float
    rounds: int
    warm_up_seconds: float
    output_partitions: int
    broker_version: str

    @property
    def turn_seconds(self) -> float:
        """How long one turn is measured."""
        return self.seconds / self.rounds

    def turns(self) -> Iterator[tuple[int, str, float]]:
        """Round, contender and seconds of warm-up, in order; each round begins with another
        contender.
        """
        for number in range(1, self.rounds + 1):
            warm_up = self.warm_up_seconds if number == 1 else self.warm_up_seconds / 2
            yield from ((number, name, warm_up) for name in rotated(self.contenders, number - 1))


def shapes(
    output_partitions: Sequence[int],
    records: int,
    batch_records: int,
    small_batch_records: int,
    small_batches: int,
) -> tuple[Shape, ...]:
    """Large batches to each number of output partitions, then small ones to the fewest (none if a
    size is 0).
    """
    large = [Shape(partitions, batch_records, records) for partitions in output_partitions]
    if not small_batch_records or not small_batches:
        return tuple(large)
    return (
        *large,
        Shape(min(output_partitions), small_batch_records, small_batch_records * small_batches),
    )


def _first_of_their_reading(of: Sequence[Shape]) -> list[Shape]:
    return list({shape.reading: shape for shape in reversed(of)}.values())[::-1]


def rotated(names: Sequence[str], by: int) -> tuple[str, ...]:
    """``names`` from the ``by``-th on, then those before it."""
    at = by % len(names)
    return (*names[at:], *names[:at])


C = TypeVar("C")
T = TypeVar("T")


def in_turns_each(
    cases: Iterable[C],
    contenders: Sequence[str],
    rounds: int,
    turn: Callable[[C, str], T],
    say: Callable[[str], None],
) -> dict[C, dict[str, list[T]]]:
    """Return of each case the turns of each contender; see :func:`in_turns`."""
    return {
        case: in_turns(contenders, rounds, partial(turn, case), say, str(case)) for case in cases
    }


def in_turns(
    contenders: Sequence[str],
    rounds: int,
    turn: Callable[[str], T],
    say: Callable[[str], None],
    of: str = "",
) -> dict[str, list[T]]:
    """Return of each contender the turns that count; a round before them warms up. Each round
    begins with another contender.

    :param of: what is measured, for ``say``.
    """
    turns: dict[str, list[T]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in rotated(contenders, number):
            found = turn(name)
            which = f"round {number}" if number else "warm-up"
            say(f"{of + ', ' if of else ''}{which}: {name}: {found}")
            turns[name] += [found] if number else []
    return turns
