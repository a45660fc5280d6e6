"""What the job tells its supervisor: lines of JSON on stdout behind a mark, beside whatever else
is printed there.

Written in the job's process, read in the supervisor's.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

from onceward import events

_MARK = b"onceward-demo "
_TOLD = frozenset(
    {
        events.OPEN,
        events.REPLAY,
        events.SEND,
        events.LEASE,
        events.LEDGER,
        events.COMMIT,
        events.ABORT,
    }
)


@dataclass(frozen=True, slots=True)
class News:
    """``what`` is ``running``, ``started again`` (in the same process), ``failed`` or ``step``;
    the rest is in ``details``.
    """

    what: str
    details: dict[str, Any] = field(default_factory=dict)

    def is_step(self, step: str, phase: str) -> bool:
        """Whether this is the news that ``step`` came to ``phase``."""
        return (
            self.what == "step" and self.details["step"] == step and self.details["phase"] == phase
        )

    @property
    def batch_id(self) -> int | None:
        """The batch that the step belongs to, if it names one."""
        batch = self.details.get("batch_id")
        return batch if isinstance(batch, int) else None


def tell(what: str, **details: Any) -> None:
    """Write one line, whole and at once: threads and a JVM share this stdout."""
    os.write(1, b"\n" + _MARK + json.dumps({"what": what, **details}).encode() + b"\n")


def tell_step(event: events.Event) -> None:
    """A probe of :mod:`onceward.events`."""
    if event.step in _TOLD:
        ids = {name: value for name, value in event.ids.items() if isinstance(value, int | str)}
        tell("step", step=event.step, phase=event.phase, seconds=event.seconds, **ids)


def heard(line: bytes) -> News | None:
    """The news in ``line``, None if it is something else."""
    if not line.startswith(_MARK):
        return None
    document = json.loads(line[len(_MARK) :])
    return News(document.pop("what"), document)
