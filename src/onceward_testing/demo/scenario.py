"""The interface of a scenario: what goes in, where it comes out, and what must be there
afterwards.

:mod:`onceward_testing.demo.run` and :mod:`onceward_testing.demo.supervisor` know no more of it
than this. Implemented by :mod:`onceward_testing.demo.windows.scenario` and
:mod:`onceward_testing.demo.changes.scenario`; runs in the supervisor's process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from onceward_testing.demo.input import DemoInput
from onceward_testing.demo.kill_plan import Kill
from onceward_testing.demo.outputs import DemoOutput
from onceward_testing.demo.report import DemoResult, OutputFacts, Screen
from onceward_testing.demo.settings import DemoJobSettings, DemoSettings
from onceward_testing.local_kafka import LocalKafka


class Scenario(AbstractContextManager["Scenario"], ABC):
    """Within its ``with`` block the servers that it needs beside the Kafka cluster run, and its
    input and output are there, ready for the first start of the job.

    :param kafka: its caller's.
    """

    input: DemoInput
    output: DemoOutput
    _job_options: dict[str, Any]
    """Settings of the job that only this scenario knows."""

    def __init__(self, settings: DemoSettings, screen: Screen, kafka: LocalKafka) -> None:
        self._settings, self._screen, self._kafka = settings, screen, kafka
        self._stack = ExitStack()

    def __enter__(self) -> Scenario:
        with self._stack:
            self._prepare()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Start servers (in ``_stack``), create input and output, and set the attributes above."""

    @abstractmethod
    def _read(self) -> OutputFacts:
        """Read the output, by a client that shares no code with the sink, and compare it with what
        went in."""

    def job(self, folder: Path) -> DemoJobSettings:
        """Return the job's settings.

        ``folder`` is for whatever it writes, its checkpoint included.
        """
        return DemoJobSettings(
            bootstrap_servers=self._kafka.bootstrap_servers,
            folder=str(folder),
            delivery=self._settings.delivery,
            master=self._settings.master,
            source=self._settings.source,
            sink=self._settings.sink,
            address=self.output.address,
            **self._job_options,
        )

    def judge(self, kills: Sequence[Kill], batches: int) -> DemoResult:
        """Read everything back with independent clients, and return the verdict.

        :param batches: in Spark's commit log.
        """
        self._screen.say(
            f"reading everything back with {self.output.reader} of an independent client"
        )
        facts = self._read()
        checked = None
        if self._settings.exactly_once:
            self._screen.say("asking `onceward verify` about every batch")
            checked = self.output.check()
        seconds, written = self._screen.seconds, self.input.written
        return DemoResult(self._settings, facts, checked, kills, batches, seconds, written)
