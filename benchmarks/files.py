"""Rows into Parquet files: ``FileSink`` beside Spark's own file sink. Called by :mod:`__main__`.

One streaming query a turn, of a few batches of all rows, in one Spark; a fresh folder each time.
Spark's own sink is exactly once as well, for whoever reads by Spark: its log beside the files says
which of them count. Its writer in ``foreachBatch``, which promises nothing, shows what handing a
batch over costs by itself. What is timed is each batch's ``addBatch``, as Spark reports it, the
first one by itself: it begins the query. Every output is counted and summed afterwards, by
pyarrow.
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
from benchmarks.orders import Orders, java, orders
from benchmarks.plan import in_turns
from onceward.errors import ResourceError
from onceward.files.settings import Layout

SOURCE, SPARK, HANDED_OVER = (
    "the rows alone",
    "Spark's file sink",
    "Spark's writer in foreachBatch",
)
LAYOUTS: dict[str, Layout] = {
    f"onceward, {layout}": layout for layout in ("batches", "flat", "manifest")
}
CONTENDERS = (SOURCE, SPARK, HANDED_OVER, *LAYOUTS)
BATCHES = 5


@dataclass(frozen=True, slots=True)
class FileTurn:
    """One contender's turn: seconds of the first batch, and of a later one; CPU seconds of a batch
    on the average.
    """

    contender: str
    first: float
    seconds: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.first:.2f} s, then {self.seconds:.2f} s; CPU {self.cpu:.2f} s"


@dataclass(frozen=True, slots=True)
class FileFigures:
    """Medians over the rounds; CPU in µs a row."""

    contender: str
    first: float
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
        statistics.median(turn.first for turn in turns),
        statistics.median(turn.seconds for turn in turns),
        statistics.median(turn.cpu for turn in turns) * 1e6 / rows,
    )


class _Bench:
    def __init__(self, made: Orders) -> None:
        self._made = made
        self._source = _repeated(Path(made.source), made.folder / "batches")
        self._meter = CpuMeter(psutil.Process().pid, java().pid, psutil.Process().pid)

    def turn(self, contender: str) -> FileTurn:
        name = uuid.uuid4().hex[:10]
        out = self._made.folder / f"out-{name}"
        a_batch = len(list(Path(self._made.source).glob("*.parquet")))
        stream = (
            self._made.stream().option("maxFilesPerTrigger", a_batch).parquet(str(self._source))
        )
        writer = self._writing(stream.writeStream, contender, out)
        before = self._meter.read().pipeline
        query = (
            writer.option("checkpointLocation", str(self._made.folder / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        cpu = self._meter.read().pipeline - before
        first, *later = [
            p["durationMs"]["addBatch"] / 1000 for p in query.recentProgress if p["numInputRows"]
        ]
        if contender != SOURCE:
            self._audit(contender, out)
        return FileTurn(contender, first, statistics.median(later), cpu / BATCHES)

    def _writing(self, writer: Any, contender: str, out: Path) -> Any:
        if contender == SOURCE:
            return writer.format("noop")
        if contender == SPARK:
            return writer.format("parquet").option("path", str(out))
        if contender == HANDED_OVER:
            return writer.foreachBatch(
                lambda frame, batch_id: frame.write.mode("append").parquet(str(out))
            )
        return writer.foreachBatch(
            ow.FileSink(path=out, pipeline_id="bench", layout=LAYOUTS[contender])
        )

    def _audit(self, contender: str, out: Path) -> None:
        files: Any = out
        if contender in LAYOUTS and LAYOUTS[contender] == "manifest":
            lists = (out / "_symlink_format_manifest").glob("[!.]*")
            files = [
                line.removeprefix("file://")
                for path in lists
                for line in path.read_text().splitlines()
            ]
        ids = dataset.dataset(files, format="parquet").to_table(columns=["id"]).column("id")
        counts = ids.value_counts().field("counts")
        found = len(ids) // BATCHES, len(counts), pc.sum(ids).as_py() // BATCHES
        shutil.rmtree(out)
        self._made.must_be_all(contender, found)
        if pc.min_max(counts).as_py() != {"min": BATCHES, "max": BATCHES}:
            raise ResourceError(
                f"{contender} wrote some rows more often than others", next_step="do not trust it"
            )


def _repeated(rows: Path, folder: Path) -> Path:
    """A folder with the files of ``rows`` once for each batch."""
    folder.mkdir()
    for number in range(BATCHES):
        for file in rows.glob("*.parquet"):
            (folder / f"{number}-{file.name}").hardlink_to(file)
    return folder
