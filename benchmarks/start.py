"""How long a pipeline takes to its first commit, and back to one after ``kill -9``: each contender
in turn, in processes of its own. Called by :mod:`__main__`.

A turn: a new process starts Spark and the query on an empty checkpoint, and there are records; once
some of them are visible, the driver and its JVM are killed, other records are written, and a new
process starts the query on the same checkpoint. Seconds are those from the start of a process until
a reader with ``read_committed`` could see more than before it. In the end each record has to be
there: of Onceward once, of Spark's own sink at least once.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.contender_process import ContenderProcess
from benchmarks.contenders import Contender
from benchmarks.plan import ONCEWARD, SOURCE_PARTITIONS, in_turns
from benchmarks.topics import Topics

_RECORDS = 1_000
_PARTITIONS = 4
_NOT_ALL = "not all came through"


@dataclass(frozen=True, slots=True)
class StartTurn:
    """Seconds of one turn. ``session_s``: until the process said that its Spark is up."""

    first_s: float
    session_s: float
    again_s: float

    def __str__(self) -> str:
        return (
            f"first commit after {self.first_s:.1f} s (Spark was up after {self.session_s:.1f} s), "
            f"after kill -9 {self.again_s:.1f} s"
        )


@dataclass(frozen=True, slots=True)
class StartFigures:
    """Medians of a contender, and their ratios to those of the first one."""

    contender: str
    first_s: float
    again_s: float
    first_ratio: float
    again_ratio: float


def run_start(
    contenders: Sequence[Contender],
    bootstrap_servers: str,
    rounds: int,
    say: Callable[[str], None],
) -> dict[str, list[StartTurn]]:
    """Return the turns of each contender. A round before them, which does not count, makes the
    ledger's topic and compiles every module.

    :raises ContenderFailed: a query failed, or nothing came through it.
    :raises OutputWrong: records are missing, or are there twice that should not.
    """
    known, topics = {each.name: each for each in contenders}, Topics(bootstrap_servers)
    return in_turns(
        list(known), rounds, lambda name: _turn(known[name], topics, bootstrap_servers), say
    )


def summarise_start(turns: Mapping[str, Sequence[StartTurn]]) -> list[StartFigures]:
    """Return medians by contender, and their ratios to those of the first. Pure."""
    medians = {
        name: (median(turn.first_s for turn in of), median(turn.again_s for turn in of))
        for name, of in turns.items()
    }
    first, again = next(iter(medians.values()))
    return [
        StartFigures(name, *seconds, seconds[0] / first, seconds[1] / again)
        for name, seconds in medians.items()
    ]


def _turn(contender: Contender, topics: Topics, servers: str) -> StartTurn:
    output = f"start-{uuid.uuid4().hex[:8]}"  # checkpoint and pipeline are called so, too
    source = f"{output}-input"
    topics.create(source, SOURCE_PARTITIONS)
    topics.create(output, _PARTITIONS)
    topics.fill(source, _RECORDS)
    with TemporaryDirectory(prefix="onceward-bench-", ignore_cleanup_errors=True) as folder:
        first_s, session_s = _started(contender, Path(folder), output, source, topics, servers)
        seen = topics.visible(output, _PARTITIONS)
        topics.fill(source, _RECORDS, first=_RECORDS)
        again_s, _ = _started(
            contender, Path(folder), output, source, topics, servers, seen, 2 * _RECORDS
        )
    audit = topics.audit(output, _PARTITIONS, 2 * _RECORDS)
    if contender.name != ONCEWARD:
        # It promises no more
        audit = audit.at_least_once()
    audit.require(f"of {contender.name}")
    topics.delete(source)
    topics.delete(output)
    return StartTurn(first_s, session_s, again_s)


def _started(
    contender: Contender,
    folder: Path,
    output: str,
    source: str,
    topics: Topics,
    servers: str,
    seen: int = 0,
    records: int = _RECORDS,
) -> tuple[float, float]:
    """Return the seconds until something is visible, and those until Spark was up; kill it once
    all is.
    """
    began = time.monotonic()
    process = ContenderProcess(contender, folder)
    try:
        process.wait_until_ready()
        session_s = time.monotonic() - began
        process.tell(
            "start",
            name=output,
            bootstrap_servers=servers,
            source=source,
            batch_records=_RECORDS,
        )
        process.wait_until(lambda: topics.visible(output, _PARTITIONS) > seen, _NOT_ALL)
        took = time.monotonic() - began
        # Spark's own sink may repeat a batch before it writes the next one
        process.wait_until(lambda: not topics.audit(output, _PARTITIONS, records).lost, _NOT_ALL)
        return took, session_s
    finally:
        process.close(at_once=True)
