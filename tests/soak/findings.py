"""What the soak's checks have found: a list that ought to stay empty, and facts. See ``contents``
and ``chains``.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SHOWN = 20

Ledger = list[dict[str, Any]]
"""A pipeline's ledger records, oldest first, as plain JSON."""

Visible = dict[int, np.ndarray]
"""By partition: which offsets a reader of committed records was given."""


@dataclass
class Findings:
    """Violations, at most a few of each kind in words and all of them in number; and the facts
    beside.
    """

    violations: list[str] = field(default_factory=list)
    how_many: Counter[str] = field(default_factory=Counter)
    facts: dict[str, Any] = field(default_factory=dict)

    def violated(self, promise: str, what: str, times: int = 1) -> None:
        if self.how_many[promise] < _SHOWN:
            self.violations.append(f"{promise}: {what}")
        self.how_many[promise] += times

    @property
    def holds(self) -> bool:
        return not self.violations
