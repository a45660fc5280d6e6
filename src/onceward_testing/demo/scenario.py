"""What a demo is about: what goes in, where it comes out, when the job is killed, and what must be
there afterwards.

:mod:`onceward_testing.demo.play` and :mod:`onceward_testing.demo.job_lives` know no more of it
than this. Implemented by :mod:`onceward_testing.demo.windows` and
:mod:`onceward_testing.demo.changes.scenario`; runs in the supervisor's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from onceward_testing.demo.audit import OutputFacts
from onceward_testing.demo.feed import Feed
from onceward_testing.demo.job_lives import Killed
from onceward_testing.demo.kill_plan import Kill, kill_plan
from onceward_testing.demo.outputs.output import Output, Tail
from onceward_testing.demo.report import DemoResult, judge
from onceward_testing.demo.screen import Screen
from onceward_testing.demo.settings import DemoSettings, JobSettings
from onceward_testing.local_kafka import LocalKafka


class Scenario(AbstractContextManager["Scenario"], ABC):
    """Within its ``with`` block the servers that it needs beside the Kafka cluster run, and its
    input and output are there, ready for the first life of the job.
    """

    feed: Feed
    tail: Tail
    _output: Output

    def __init__(self, settings: DemoSettings, screen: Screen, kafka: LocalKafka) -> None:
        """:param kafka: its caller's."""
        self._settings = settings
        self._screen = screen
        self._kafka = kafka
        self._open = ExitStack()

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @abstractmethod
    def job(self, folder: Path) -> JobSettings:
        """What the job is told. ``folder`` is for whatever it writes, its checkpoint included."""

    @abstractmethod
    def _read(self) -> OutputFacts:
        """The output, by a client that shares no code with the sink, beside what went in."""

    def plan(self) -> tuple[Kill, ...]:
        """When it is killed."""
        return kill_plan(self._settings)

    def judge(self, killed: Sequence[Killed], batches: int) -> DemoResult:
        """Read everything back with independent clients, and say what it is worth.

        :param batches: in Spark's commit log.
        """
        self._screen.say(
            f"reading everything back with {self._output.reader} of an independent client"
        )
        read = self._read()
        checked = None
        if self._settings.exactly_once:
            self._screen.say("asking `onceward verify` about every batch")
            checked = self._output.ask_the_checker()
        return judge(
            self._settings, read, checked, killed, batches, self._screen.seconds, self.feed.sent
        )
