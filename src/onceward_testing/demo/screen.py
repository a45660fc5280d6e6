"""What the demo shows while it works, on stderr: progress bars on a terminal, plain lines
elsewhere.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

_PLAIN_PROGRESS_SECONDS = 10.0


class Screen:
    """A context manager. ``quiet``: show nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)
        self._began = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._latest: dict[str, tuple[int, int]] = {}
        self._last_plain = 0.0

    @property
    def seconds(self) -> float:
        """Since the demo began."""
        return time.monotonic() - self._began

    def say(self, text: str, style: str = "") -> None:
        """One line with the time in front."""
        self.console.print(
            f"[dim]{self.seconds:6.1f} s[/dim]  {f'[{style}]{text}[/{style}]' if style else text}"
        )

    def advance(self, name: str, done: int, total: int) -> None:
        """``done`` of ``total`` records are ``name`` (written, visible …)."""
        self._latest[name] = (done, total)
        if self._bars is not None:
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(name, total=total)
            self._bars.update(self._tasks[name], completed=done, total=total)
        elif self.seconds - self._last_plain >= _PLAIN_PROGRESS_SECONDS:
            self._last_plain = self.seconds
            self.say(
                ", ".join(
                    f"{name} {done:,} of {total:,}" for name, (done, total) in self._latest.items()
                )
            )

    def __enter__(self) -> Screen:
        if self.console.is_terminal and not self.console.quiet:
            self._bars = Progress(
                TextColumn("{task.description:>22}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
