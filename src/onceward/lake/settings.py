"""The settings of a sink for a table of a lake, checked when it is built, immutable."""

from __future__ import annotations

from dataclasses import dataclass

from onceward.engine.ledger.chain import Ledger
from onceward.engine.policy import SinkPolicy, must_be_decided
from onceward.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """See :class:`onceward.DeltaSink`.

    :raises ConfigurationError: naming the setting and what it takes.
    """

    policy: SinkPolicy
    ledger: Ledger
    table: str | None
    path: str | None
    commit_timeout_s: float

    def __post_init__(self) -> None:
        must_be_decided(self.ledger, self.commit_timeout_s)
        for name, value in (("table", self.table), ("path", self.path)):
            if value is not None and (not isinstance(value, str) or not value.strip()):
                raise ConfigurationError(
                    f"{name}={value!r} names no table", next_step="pass its name as text"
                )
