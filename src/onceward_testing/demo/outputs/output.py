"""What the demo asks of a place that its job writes to. Implemented beside this module; runs in
the supervisor.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from onceward_testing.demo.audit import CheckerFacts, OutputFacts

_LOOK_SECONDS = 0.3


class Tail(ABC):
    """Follows the output while the job runs, in a thread of its own. Progress only: the verdict is
    read afterwards, from the beginning.
    """

    visible = 0
    """Rows seen so far."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="output-tail", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no longer."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _follow(self) -> None:
        """Until :attr:`_stop` is set."""


class Output(AbstractContextManager["Output"], ABC):
    """The place itself, for the length of a ``with`` block."""

    reader: str
    """For people: who sees what is visible."""

    address: str = ""
    """What the job needs to find it."""

    @abstractmethod
    def make(self) -> None:
        """The empty topic, table or folder that the job writes to."""

    @abstractmethod
    def tail(self) -> Tail:
        """A new one."""

    @abstractmethod
    def ask_the_checker(self) -> CheckerFacts:
        """The answer of ``onceward verify``."""


class OutputOfNumbers(Output):
    """Where valid numbers go, each once."""

    @abstractmethod
    def read(self, expected: set[str], poison: Sequence[bytes]) -> OutputFacts:
        """All that a reader sees, beside ``expected``; read by a client that shares no code with
        the sink.

        :param poison: records that had to become dead letters, each ``key:value``; all different.
        """


class CountingTail(Tail):
    """Counts anew, again and again."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__()
        self._count = count

    def _follow(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self.visible = self._count()
