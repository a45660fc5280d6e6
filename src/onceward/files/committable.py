"""The prepared files of one batch, as the ledger names them. Pure."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from onceward.engine.two_phase import CommitResult
from onceward.files.settings import HIDDEN

log = logging.getLogger(__name__)

PREPARED = f"{HIDDEN}/prepared"
"""Below the sink's path: what an attempt leaves until it is published or dropped, by the attempt's
name.
"""


class Committable(NamedTuple):
    """``folder`` is the attempt's name, ``root`` the sink's path when it was prepared, ``to``
    where the files go below it, or the list of them (layout "manifest"), ``files`` their names
    there with their sizes in bytes. ``at`` is where they are already (layout "manifest").
    """

    folder: str
    root: str
    layout: str
    to: str
    files: Mapping[str, int]
    at: str = ""

    def as_told(self) -> dict[str, Any]:
        """Return it for the ledger record; :func:`Committable` takes it back."""
        return {name: value for name, value in self._asdict().items() if value or name != "at"}


def lost_files(wanted: Mapping[str, int], found: Mapping[str, int]) -> list[str]:
    """Return the files that are not there as they were."""
    return [name for name, size in wanted.items() if found.get(name) != size]


def report_lost(lost: Sequence[str], batch: Committable) -> CommitResult:
    """Log what is lost, and return ``LOST``."""
    log.error(
        "of %s below %s %d files are lost: %s",
        batch.folder,
        batch.root,
        len(lost),
        ", ".join(lost[:10]),
    )
    return CommitResult.LOST
