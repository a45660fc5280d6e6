"""The demo's input: written by a thread of the supervisor while the job runs, at a steady pace.

Implemented by :mod:`onceward_testing.demo.windows.input` and
:mod:`onceward_testing.demo.changes.input`.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

_STOP_SECONDS = 60
_HELD_BACK = 0.2
# After that long on hold about a third of what is held back is still there; with many kills, so
# long for each ten.
_TRICKLE_SECONDS = 120.0


class DemoInput(ABC):
    """Input that begins when the query of the job's first run is there.

    Subclasses write in :meth:`_write_all`.
    """

    begins: str
    """Words for people: what happens then."""
    unit_written: str
    unit_visible: str
    """Names of what is counted on either side."""
    planned: int
    """Total to be written."""

    def __init__(self) -> None:
        self._written = 0
        self._stop = threading.Event()
        self._hold = True
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="demo-input", daemon=True)

    @property
    def written(self) -> int:
        """Return how much is written so far.

        :raises Exception: what ended the thread.
        """
        if self._error is not None:
            raise self._error
        return self._written

    @property
    @abstractmethod
    def to_be_visible(self) -> int:
        """Return how much is expected to become visible, as far as it is known."""

    @abstractmethod
    def is_through(self, checkpoint: Path) -> bool:
        """Return whether all is written, and the query has finished a batch that reaches to its
        end."""

    @abstractmethod
    def _write_all(self) -> None:
        """Write what is due, in the thread, until all is written, or :attr:`_stop` is set.

        As long as :attr:`_hold` is True, only as much as leaves something for the kills.
        """

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def release(self) -> None:
        """Write the rest: all planned kills are done."""
        self._hold = False

    def stop(self) -> None:
        """Stop writing, finished or not."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=_STOP_SECONDS)

    def _run(self) -> None:
        try:
            self._write_all()
        except BaseException as error:  # noqa: BLE001  `written` raises it
            self._error = error


@dataclass(frozen=True, slots=True)
class Pace:
    """A schedule for ``records`` over ``seconds``, in which there shall be so many ``kills``.

    Even; but as long as kills are outstanding a last fifth is held back and only trickles, ever
    more slowly, so that event time goes on, windows keep closing, and there is a job left to kill
    on however slow a machine.
    """

    records: int
    seconds: float
    kills: int = 0

    def due(self, elapsed: float, *, hold: bool) -> int:
        """Return how many records shall be written ``elapsed`` seconds after the start.

        :param hold: kills are outstanding. Then the last record is never due: it would end the
            stream.
        """
        if not hold:
            return min(self.records, round(self.records * elapsed / self.seconds))
        free = self.records * (1 - _HELD_BACK)
        planned = self.records * elapsed / self.seconds
        if planned > free:
            waited = elapsed - self.seconds * (1 - _HELD_BACK)
            trickle_s = _TRICKLE_SECONDS * max(1.0, self.kills / 10)
            planned = min(
                planned, free + (self.records - free) * (1 - math.exp(-waited / trickle_s))
            )
        return min(round(planned), self.records - 1)
