"""One line of the doctor's. Made in ``checks`` and ``worker_python``, shown by the command."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, how it is, and what to do if it is amiss."""

    status: Literal["ok", "warn", "fail"]
    what: str
    next_step: str = ""
