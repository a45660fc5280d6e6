"""Rows into Parquet files: ``FileSink`` beside Spark's own file sink. Called by :mod:`__main__`.

One streaming query a turn, of one batch, in one Spark; a fresh folder each time. Spark's own sink is exactly once as
well, for whoever reads by Spark: its log beside the files says which of them count. What is timed is the batch's
``addBatch``, as Spark reports it; every output is counted and summed afterwards, by pyarrow.
"""

from __future__ import annotations

import shutil
import statistics
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.compute as pc
import pyarrow.dataset as dataset

import onceward as ow
from benchmarks.cpu import CpuMeter
from benchmarks.orders import Orders, in_turns, java, orders
from onceward.sinks.files.settings import Layout

SOURCE, SPARK, BATCHES, FLAT = "the rows alone", "Spark's file sink", "onceward, batches", "onceward, flat"
CONTENDERS = (SOURCE, SPARK, BATCHES, FLAT)


@dataclass(frozen=True, slots=True)
class FileTurn:
    """One contender's turn: seconds by the clock, and of CPU."""

    contender: str
    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, CPU {self.cpu:.2f} s"


@dataclass(frozen=True, slots=True)
class FileFigures:
    """Medians over the rounds; CPU in µs a row."""

    contender: str
    seconds: float
    cpu_us: float


def run_files(rows: int, rounds: int, say: Callable[[str], None]) -> list[FileFigures]:
    """Measure all contenders, after a round that does not count.

    :raises ResourceError: an output has other rows than it should.
    """
    with orders(rows) as made:
        turns = in_turns(CONTENDERS, rounds, _Bench(made).turn, say)
    return [_median(turns[name], rows) for name in CONTENDERS]


def _median(turns: list[FileTurn], rows: int) -> FileFigures:
    return FileFigures(
        turns[0].contender,
        statistics.median(turn.seconds for turn in turns),
        statistics.median(turn.cpu for turn in turns) * 1e6 / rows,
    )


class _Bench:
    def __init__(self, made: Orders) -> None:
        self._made = made
        self._meter = CpuMeter(psutil.Process().pid, java().pid, psutil.Process().pid)

    def turn(self, contender: str) -> FileTurn:
        name = uuid.uuid4().hex[:10]
        out = self._made.folder / f"out-{name}"
        stream = self._made.stream().parquet(self._made.source)
        writer = self._writing(stream.writeStream, contender, out)
        before = self._meter.read().spark
        query = (
            writer.option("checkpointLocation", str(self._made.folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        cpu = self._meter.read().spark - before
        milliseconds = sum(progress["durationMs"].get("addBatch", 0) for progress in query.recentProgress)
        if contender != SOURCE:
            self._audit(contender, out)
        return FileTurn(contender, milliseconds / 1000, cpu)

    def _writing(self, writer: Any, contender: str, out: Path) -> Any:
        if contender == SOURCE:
            return writer.format("noop")
        if contender == SPARK:
            return writer.format("parquet").option("path", str(out))
        layout: Layout = "batches" if contender == BATCHES else "flat"
        return writer.foreachBatch(ow.FileSink(path=out, pipeline_id="bench", layout=layout))

    def _audit(self, contender: str, out: Path) -> None:
        ids = dataset.dataset(str(out), format="parquet").to_table(columns=["id"]).column("id")
        found = len(ids), pc.count_distinct(ids).as_py(), pc.sum(ids).as_py()
        shutil.rmtree(out)
        self._made.must_be_all(contender, found)
