"""What an Iceberg table's metadata say of its snapshots, as JSON (*Table Metadata* in Iceberg's
specification). Driver only; asked by :mod:`iceberg_table`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

_STAGED_AS = "wap.id"
_PUBLISHED_AS = "published-wap-id"
_PUBLISHED_FROM = "source-snapshot-id"


class Metadata:
    """One state of a table.

    :param text: its metadata, as ``TableMetadataParser`` writes them.
    """

    def __init__(self, text: str) -> None:
        self._document: dict[str, Any] = json.loads(text)
        self._snapshots: dict[int, dict[str, Any]] = {
            int(snapshot["snapshot-id"]): snapshot
            for snapshot in self._document.get("snapshots") or []
        }

    def staged(self, prefix: str) -> dict[str, int]:
        """Return the staged snapshots, which were never part of the table, by the name they were
        written under.

        What somebody has rolled back is none of them: it was current once, and can be current
        again. Nor is what a branch or a tag has.
        """
        ever_current = {
            int(entry["snapshot-id"]) for entry in self._document.get("snapshot-log") or []
        }
        on_refs = {int(ref["snapshot-id"]) for ref in (self._document.get("refs") or {}).values()}
        # The log is cut off when somebody expires snapshots. What others were built on was
        # current, or on a branch.
        built_on = {snapshot.get("parent-snapshot-id") for snapshot in self._snapshots.values()}
        published_as = {self._summary(one).get(_PUBLISHED_AS) for one in self._snapshots}
        published_from = {self._summary(one).get(_PUBLISHED_FROM) for one in self._snapshots}
        return {
            written_as: one
            for one in self._snapshots.keys() - ever_current - on_refs - built_on
            if (written_as := self._summary(one).get(_STAGED_AS, "")).startswith(prefix)
            and written_as
            and written_as not in published_as
            and str(one) not in published_from
        }

    def lack(self, snapshots: Sequence[int]) -> list[int]:
        """Return those of ``snapshots`` that the table has neither itself nor published."""
        main = list(self._ancestors(self._document.get("current-snapshot-id")))
        published_as = {self._summary(one).get(_PUBLISHED_AS) for one in main}
        published_from = {self._summary(one).get(_PUBLISHED_FROM) for one in main}
        return [
            one
            for one in snapshots
            if one not in main
            and str(one) not in published_from
            and (
                one not in self._snapshots
                or self._summary(one).get(_STAGED_AS, "") not in published_as
            )
        ]

    def _ancestors(self, snapshot: int | None) -> Iterator[int]:
        """Yield a snapshot and its ancestors, as far back as they are known."""
        while snapshot in self._snapshots:
            yield snapshot
            snapshot = self._snapshots[snapshot].get("parent-snapshot-id")

    def _summary(self, snapshot: int) -> dict[str, str]:
        summary: dict[str, str] = self._snapshots[snapshot].get("summary") or {}
        return summary
