"""What the two formats have in common: prepared in the table, a batch is published by one commit.

That commit says which batch it brings, by the ledger's identity and the batch's number there. So
it is known of every batch whether the table has it, however old that is and whatever became of the
ledger record's state since; and if two copies of a pipeline publish the same batch at once, the
format itself lets one of them through.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from pyspark.sql import DataFrame

from onceward.engine.two_phase import CommitResult
from onceward.errors import (
    ConfigurationError,
    LedgerBehind,
    LedgerUnreadable,
    PreparedDataLost,
    ReportMismatch,
)
from onceward.ids import PipelineId

log = logging.getLogger(__name__)


class Staged(NamedTuple):
    """What one job has written: how many rows, and where, as JSON has it; into which table (its
    name or path under ``table``), and what tells whether it is still the same.
    """

    rows: int
    what: Sequence[Any]
    table: Mapping[str, Any]


class Latest(NamedTuple):
    """The newest batch with rows that went into a table, as ledger records have it from then on:
    its number in the ledger, and the table, by what the sink calls it and by its id.
    """

    place: str
    table_id: str
    sequence: int


def concatenated(staged: Sequence[Staged]) -> list[Any]:
    """Return what several jobs have staged."""
    return [what for one in staged for what in one.what]


class LakeTable(ABC):
    """One table, to one pipeline; the committer of its :class:`~onceward.lake.target.LakeTarget`.

    A committable is ``{"table": …, "attempt": its name, "chain": the ledger's identity, "branch":
    the sink's name in a fan-out, "sequence": in the ledger, "staged": [of all jobs]}``, and what a
    format needs besides. Of one that was never decided less is known.
    """

    kind: ClassVar[str]
    """Of a ledger record's output."""
    committable_version: ClassVar[int] = 1

    def __init__(self, pipeline: PipelineId, place: str) -> None:
        self._pipeline = pipeline
        self.place = place
        """Its name or path, as the sink has it."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Which no other table has, also none that is made in its place."""

    @abstractmethod
    def check(self) -> None:
        """Check session and table, before another owner is fenced.

        :raises ConfigurationError: the session, or the table, is not fit.
        :raises TableMissing: there is none.
        """

    def look_anew(self) -> None:  # noqa: B027
        """Look at the start of a batch what the name of the table means by now."""

    @abstractmethod
    def newest(self) -> dict[str, int]:
        """Return the newest batch's number of each ledger (its identity) whose batches of this
        pipeline the table has.

        Whichever of a fan-out's sinks has brought it.
        """

    @abstractmethod
    def newest_batch(self, chain: str, branch: str) -> int:
        """Return the number of the newest batch that the table has of one sink; -1: of none."""

    def _warn_of_lost_commits(self, why: str, instead: str) -> None:
        """Say in the log that one commit may replace another, whose rows are then lost."""
        log.warning(
            "%s: %s. Of two commits at once, the sink's and another Spark driver's (maintenance, "
            "say), one may replace the other, without an error: a batch is lost, or what the "
            "other has done. Let nobody else commit while the query runs, or %s",
            self,
            why,
            instead,
        )

    def must_belong_to(self, chain: str, ledger: str) -> None:
        """Check whose batches the table has."""
        others = [one for one in self.newest() if one != chain]
        if others:
            raise ConfigurationError(
                f"{self} has batches of pipeline {self._pipeline} that another ledger (with the "
                f"identity {others[0]}) has decided than {ledger} ({chain}); numbers of the one "
                "mean nothing in the other",
                next_step="use the ledger that the pipeline has had: of an ow.FolderLedger the "
                "file `identity` in the pipeline's folder says which it is; or, if it shall begin "
                "anew, another pipeline_id",
            )

    def must_not_be_ahead(self, chain: str, newest: int, ledger: str) -> None:
        """Check that the ledger knows the table's batches.

        :param newest: the number of the last batch that the ledger has decided; -1: none.
        :raises LedgerBehind: the table has one that this ledger knows nothing of. Batches that are
            decided again under its number would be taken for it.
        """
        found = self.newest().get(chain, -1)
        if found > newest:
            raise LedgerBehind(
                f"{self} has batch number {found} of pipeline {self._pipeline}, and {ledger} ends "
                f"with {newest if newest >= 0 else 'none'}: it has lost records, or was put back "
                "from an older copy",
                next_step="put the ledger back as it was; if that is gone, go on under another "
                "pipeline_id, from where the table ends",
            )

    def must_not_be_behind(self, latest: Latest, chain: str, branch: str) -> None:
        """Check that the table still has what was published into it.

        :param latest: what the ledger has of the batches before.
        :raises PreparedDataLost: the table was put back from an older copy, or made anew: batches
            are gone, and the next one would be appended over the hole.
        """
        found = self.newest_batch(chain, branch)
        if found >= latest.sequence:
            return
        # one that forgets its writers says so
        self.check()
        table_id = self.id
        if table_id != latest.table_id and self.place != latest.place:
            # the sink was pointed at another table
            return
        ends, first, last = f"batch number {found}", found + 1, latest.sequence
        anew = f", or another one has its name (its id was {latest.table_id}, and is {table_id})"
        raise PreparedDataLost(
            f"{self} ends with {ends if found >= 0 else 'no batch'} of pipeline {self._pipeline}, "
            f"and the ledger has published number {last} into it: "
            f"{f'numbers {first} to {last} are' if first < last else f'number {last} is'} gone, "
            "as far as they had rows; it was put back from an older copy, or made anew"
            f"{anew if table_id != latest.table_id else ''}",
            next_step="put the table back as it was; to go on without these batches, start once "
            'with resume="skip_missing"',
            details={"pipeline": self._pipeline, "first_missing": first, "last_missing": last},
        )

    @abstractmethod
    def fitting(self, frame: DataFrame) -> DataFrame:
        """Return ``frame`` as it can be staged.

        :raises InvalidColumn: it cannot.
        """

    @abstractmethod
    def stage(self, frame: DataFrame, name: str, number: int) -> Staged:
        """Write ``frame`` by one job, the ``number``-th of the attempt ``name``."""

    def committable(
        self, name: str, chain: str, branch: str, sequence: int, staged: Sequence[Staged]
    ) -> dict[str, Any]:
        """Return what the ledger record is to name."""
        if any(one.table != staged[0].table for one in staged):
            raise ReportMismatch(
                f"{self} was changed while a batch was written",
                next_step="nothing, the batch runs again",
            )
        # 1. A task closes its file, or a job stages its snapshot; 2. somebody's VACUUM,
        # remove_orphan_files or expire_snapshots takes it for left over, while others still
        # write; 3. the batch is decided, and readers miss it, for good.
        if missing := self.missing(concatenated(staged)):
            raise ReportMismatch(
                f"parts of a batch into {self} are gone before it was decided ({len(missing)}): "
                f"{', '.join(missing[:10])}",
                next_step="nothing, the batch runs again; if it repeats, let whoever cleans up "
                "the table (VACUUM, remove_orphan_files, expire_snapshots) leave alone what is "
                "not older than a batch takes",
            )
        batch = {
            "attempt": name,
            "chain": chain,
            "branch": branch,
            "sequence": sequence,
            "staged": concatenated(staged),
        }
        return {**staged[0].table, **batch}

    @abstractmethod
    def missing(self, staged: Sequence[Any]) -> list[str]:
        """List what is gone of what was staged: files, snapshots."""

    @abstractmethod
    def commit(self, committable: Mapping[str, Any]) -> CommitResult:
        """Publish, if it is not published already."""

    @abstractmethod
    def abort(self, committable: Mapping[str, Any]) -> None:
        """Drop what was staged and not decided."""

    @abstractmethod
    def recover(self) -> list[dict[str, Any]]:
        """List the pipeline's attempts of which something is staged, where the format can tell."""

    def begin(self, task: Any) -> Any:
        """Raise: Spark's own tasks write."""
        raise NotImplementedError

    def upgrade(self, committable: Any, version: int) -> Any:
        """Raise: there is no older form."""
        raise LedgerUnreadable(f"version {version} of staged tables is unknown")
