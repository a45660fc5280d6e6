"""What goes in while the job runs, written by a thread of the supervisor: what :mod:`onceward.demo.job_lives` asks of
it. Implemented by :mod:`onceward.demo.input_stream` and :mod:`onceward.demo.changes.feed`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


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
        """Whether everything is written, and the query has finished a batch that reaches to its end."""
