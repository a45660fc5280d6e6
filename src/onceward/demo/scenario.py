"""What a demo is about: what goes in, where it comes out, when the job is killed, and what must be there afterwards.

:mod:`onceward.demo.play` and :mod:`onceward.demo.job_lives` know no more of it than this. Implemented by
:mod:`onceward.demo.windows` and :mod:`onceward.demo.changes.scenario`; runs in the supervisor's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from onceward.demo.feed import Feed
from onceward.demo.job_lives import Killed
from onceward.demo.kill_plan import Kill
from onceward.demo.outputs.output import Tail
from onceward.demo.report import DemoResult
from onceward.demo.settings import JobSettings


class Scenario(AbstractContextManager["Scenario"], ABC):
    """Within its ``with`` block the servers that it needs beside the Kafka cluster run, and its input and output are
    there, ready for the first life of the job."""

    feed: Feed
    tail: Tail

    @abstractmethod
    def job(self, folder: Path) -> JobSettings:
        """What the job is told. ``folder`` is for whatever it writes, its checkpoint included."""

    @abstractmethod
    def plan(self) -> tuple[Kill, ...]:
        """When it is killed."""

    @abstractmethod
    def judge(self, killed: Sequence[Killed], batches: int) -> DemoResult:
        """Read everything back with independent clients, and say what it is worth.

        :param batches: in Spark's commit log.
        """
