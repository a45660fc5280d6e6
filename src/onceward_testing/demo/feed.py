"""What goes in while the job runs, written by a thread of the supervisor: what
:mod:`onceward_testing.demo.job_lives` asks of it. Implemented by
:mod:`onceward_testing.demo.input_stream` and :mod:`onceward_testing.demo.changes.feed`.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from pathlib import Path

_STOP_SECONDS = 60


class Feed(ABC):
    """It begins when the query of the job's first life runs."""

    begins: str
    """For people: what happens then."""

    written_words: str
    visible_words: str
    """For people: what is counted on either side."""

    planned: int
    """How much will be written."""

    @property
    @abstractmethod
    def sent(self) -> int:
        """How much is written so far.

        :raises Exception: what ended the thread.
        """

    @property
    @abstractmethod
    def to_be_seen(self) -> int:
        """How much is expected to become visible, as far as it is known."""

    @abstractmethod
    def start(self) -> None:
        """Begin to write."""

    @abstractmethod
    def release(self) -> None:
        """All planned kills are done: write the rest."""

    @abstractmethod
    def stop(self) -> None:
        """Stop writing, finished or not."""

    @abstractmethod
    def is_through(self, checkpoint: Path) -> bool:
        """Whether everything is written, and the query has finished a batch that reaches to its
        end.
        """


class WrittenByAThread(Feed):
    """The thread, and what it is told."""

    def __init__(self) -> None:
        self._written = 0
        self._stop = threading.Event()
        self._hold = True
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="demo-feed", daemon=True)

    @property
    def sent(self) -> int:
        if self._error is not None:
            raise self._error
        return self._written

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        self._hold = False

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._write_all()
        except BaseException as error:  # noqa: BLE001  raised again in the supervisor's thread by `sent`
            self._error = error

    @abstractmethod
    def _write_all(self) -> None:
        """In the thread: what is due, until all is written, or :attr:`_stop` is set. As long as
        :attr:`_hold` is True, only as much as leaves something for the kills.
        """
