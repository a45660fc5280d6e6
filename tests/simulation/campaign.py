"""Many seeds in several OS processes: dealt in blocks, counted, and stopped at the first
violation.
"""

from __future__ import annotations

import gc
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from simulation.coverage import Tally
from simulation.run import simulate

BLOCK = 100
_GARBAGE = 50
"""Seeds between two collections: what a story leaves behind goes in circles; to look for it in
mid-story takes time.
"""


class Block:
    """Seeds that one process tells, one after the other."""

    __slots__ = ("aims", "first", "last", "pipeline", "stop")

    def __init__(
        self,
        first: int,
        last: int,
        pipeline: str | None = None,
        aims: tuple[tuple[str, str], ...] = (),
        *,
        stop: bool = True,
    ) -> None:
        self.first = first
        self.last = last
        self.pipeline = pipeline
        self.aims = aims
        """If there are any, each of these is aimed at by each seed."""
        self.stop = stop
        """At the first violation."""


def run_block(block: Block) -> tuple[Tally, float, int]:
    """What became of its seeds, the CPU seconds that it took, and the last seed that was told."""
    tally = Tally()
    began = time.process_time()
    collecting = gc.isenabled()
    gc.disable()
    seed = block.first
    try:
        for number, (seed, aim) in enumerate(_stories(block)):
            tally.add(simulate(seed, pipeline=block.pipeline, aim=aim))
            if tally.violations and block.stop:
                break
            if number % _GARBAGE == _GARBAGE - 1:
                gc.collect()
    finally:
        if collecting:
            gc.enable()
    return tally, time.process_time() - began, seed


def _stories(block: Block) -> Iterator[tuple[int, tuple[str, str] | None]]:
    for seed in range(block.first, block.last + 1):
        if block.aims:
            for aim in block.aims:
                yield seed, aim
        else:
            yield seed, None


class Campaign:
    """A range of seeds.

    :param told: hears after each block how it stands.
    """

    def __init__(
        self,
        first: int,
        last: int,
        *,
        pipeline: str | None = None,
        jobs: int = 2,
        minutes: float | None = None,
        keep_going: bool = False,
        told: Callable[[Campaign], None] = lambda campaign: None,
    ) -> None:
        self.first = first
        self.last = last
        self.pipeline = pipeline
        self.jobs = jobs
        self.keep_going = keep_going
        self.tally = Tally()
        self.cpu_seconds = 0.0
        self.next_seed = first
        """All seeds before this one have been told: where to go on."""
        self._minutes = minutes
        self._told = told
        self._began = time.monotonic()
        self._done: dict[
            int, int
        ] = {}  # blocks that are through: their first seed, and the one behind their last

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def run(self) -> Tally:
        if self.jobs <= 1:
            for block in self._blocks():
                self._count(block, run_block(block))
                if self._over():
                    break
            return self.tally
        with ProcessPoolExecutor(self.jobs, multiprocessing.get_context("spawn"), _begin) as pool:
            blocks = self._blocks()
            running: dict[Future[tuple[Tally, float, int]], Block] = {}
            while True:
                while len(running) < self.jobs * 2 and not self._over():
                    block = next(blocks, None)
                    if block is None:
                        break
                    running[pool.submit(run_block, block)] = block
                if not running:
                    return self.tally
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    self._count(running.pop(future), future.result())

    def _blocks(self) -> Iterator[Block]:
        for first in range(self.first, self.last + 1, BLOCK):
            yield Block(
                first, min(first + BLOCK - 1, self.last), self.pipeline, stop=not self.keep_going
            )

    def _count(self, block: Block, result: tuple[Tally, float, int]) -> None:
        tally, seconds, last = result
        self.tally.merge(tally)
        self.cpu_seconds += seconds
        self._done[block.first] = last + 1
        while self.next_seed in self._done:
            self.next_seed = self._done.pop(self.next_seed)
        self._told(self)

    def _over(self) -> bool:
        late = self._minutes is not None and self.seconds > self._minutes * 60
        return late or (bool(self.tally.violations) and not self.keep_going)


def _begin() -> None:
    """In a new OS process: what was imported stays for good, and is not looked through for
    garbage.
    """
    import simulation.assembled  # noqa: F401 - before it is frozen

    gc.collect()
    gc.freeze()
