"""Batches whose call failed: remembered in the run, and in one file each beside the checkpoint.
Driver only.

Called by ``engine.calls.foreach_batch`` when a call fails, before the error reaches the user's
function, and by ``engine.micro_batch``. Spark counts a batch as done when the function returns,
also when the function keeps an error to itself; the file is what tells of it then. Nothing is
written of a batch that goes well.

``<batch_id>.<kind>`` is the file's name; it says what was met, and in which run. It stands against
later batches until its batch is committed, or the user has it left out (``resume="keep"``). A run
looks for them once, when it begins.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from enum import Enum
from typing import NamedTuple, Protocol

from onceward import surroundings
from onceward.engine.ledger.record import LedgerRecord
from onceward.errors import CheckpointUnreachable, OncewardError, StateOfFailedAttempt
from onceward.ids import PipelineId
from onceward.spark.batch.query import RunningBatch

log = logging.getLogger(__name__)

_LONGEST_TEXT = 2_000
_WRITE_AGAIN_SECONDS = (0.1, 1.0)
_DAMAGED = "its file cannot be read"


class Kind(Enum):
    """What a failed call leaves behind.

    ``FAILED``: the batch may not be committed. ``REPLAY``: it is, and whether it has all the rows
    that the function hands over now was not found out. ``REFUSED``: it may be committed by another
    call, without the rows of this one.
    """

    FAILED = "failed"
    REPLAY = "replay"
    REFUSED = "refused"


class FailedBatch(NamedTuple):
    """A call for ``batch_id`` failed in the run ``run_id`` (empty: not known) with ``error``."""

    batch_id: int
    kind: Kind
    error: str
    run_id: str

    @property
    def name(self) -> str:
        return f"{self.batch_id}.{self.kind.value}"


class Files(Protocol):
    """Where the files are: :class:`onceward.spark.batch.checkpoint_files.CheckpointFiles`."""

    def read(self) -> dict[str, str]: ...

    def write(self, name: str, text: str) -> None: ...

    def remove(self, name: str) -> None: ...


class FailedBatches:
    """Those of one pipeline in one checkpoint, as one run of the query knows them."""

    def __init__(self, pipeline: PipelineId, run_id: str, files: Files) -> None:
        self._pipeline = pipeline
        self._run_id = run_id
        self._files = files
        self._known: dict[str, FailedBatch] = {}
        self._unwritten: list[FailedBatch] = []
        self._read = False
        # A thread of the function's may be refused while the query's own thread is at work.
        self._lock = surroundings.RLock()

    def add(self, failed: FailedBatch) -> None:
        """Remember that the call failed, for this run and for later ones.

        :raises CheckpointUnreachable: for this run only, so far; it is tried again with the next
            that fails.
        """
        with self._lock:
            self._known[failed.name] = failed
            self._unwritten.append(failed)
            for seconds in _WRITE_AGAIN_SECONDS:
                with suppress(CheckpointUnreachable):  # a file system that fails for a moment
                    return self._write()
                surroundings.sleep(seconds)
            return self._write()

    def write_rest(self) -> None:
        """Write what could not be written.

        :raises CheckpointUnreachable: it still cannot.
        """
        with self._lock:
            self._write()

    def _write(self) -> None:
        while self._unwritten:
            failed = self._unwritten[0]
            text = json.dumps({"error": failed.error[:_LONGEST_TEXT], "run_id": failed.run_id})
            self._files.write(failed.name, text)
            del self._unwritten[0]

    def of(self, batch_id: int, *kinds: Kind) -> list[FailedBatch]:
        """Return those of that batch, of these kinds."""
        return [
            failed
            for failed in self._all()
            if failed.batch_id == batch_id and failed.kind in kinds
        ]

    def in_this_run(self, batch_id: int) -> bool:
        """Has a call for that batch failed in this run?"""
        with self._lock:
            return any(
                each.batch_id == batch_id and each.run_id == self._run_id
                for each in self._known.values()
            )

    def before(
        self, batch_id: int, newest: LedgerRecord | None, newest_id: int
    ) -> tuple[FailedBatch, ...]:
        """Return those that stand against ``batch_id``, the first one first.

        :param newest: the ledger's newest record; ``newest_id``: its batch, -1 where it is of
            another checkpoint.
        """
        run = "" if newest is None else newest.run_id
        standing = [
            each
            for each in self._all()
            if each.batch_id < batch_id and self._stands(each, newest_id, run)
        ]
        return tuple(sorted(standing, key=lambda each: (each.batch_id, each.kind is Kind.FAILED)))

    def _stands(self, failed: FailedBatch, newest_id: int, newest_run: str | None) -> bool:
        if (
            failed.run_id == self._run_id
        ):  # Spark has not seen the error, or this run would be over
            return True
        if failed.kind is Kind.FAILED:
            return newest_id < failed.batch_id
        # Whoever has gone on behind that batch in another run had looked for this file: it is of
        # an older copy, which was overtaken and has failed since.
        return failed.batch_id >= newest_id or failed.run_id in ("", newest_run)

    def settle(self, batch_id: int) -> None:
        """Forget what is over when that batch is committed. What this run refused of it stays.

        :raises CheckpointUnreachable: a file may be there still.
        """
        with self._lock:
            done = [
                failed
                for failed in self._all()
                if failed.batch_id <= batch_id
                and not (failed.kind is Kind.REFUSED and failed.run_id == self._run_id)
            ]
            for failed in done:
                log.info(
                    "%s: batch %d: what failed is over (%s)",
                    self._pipeline,
                    failed.batch_id,
                    failed.error,
                )
                self._files.remove(failed.name)
                del self._known[failed.name]
            self._unwritten = [failed for failed in self._unwritten if failed.name in self._known]

    def _all(self) -> list[FailedBatch]:
        with self._lock:
            if not self._read:
                found = {name: _parsed(name, text) for name, text in self._files.read().items()}
                self._known = {
                    **{name: each for name, each in found.items() if each is not None},
                    **self._known,
                }
                self._read = True
            return list(self._known.values())


def _parsed(name: str, text: str) -> FailedBatch | None:
    """None: the file is none of ours."""
    number, _, kind = name.partition(".")
    if not number.isdecimal() or kind not in {each.value for each in Kind}:
        return None
    try:
        document = json.loads(text)
        return FailedBatch(
            int(number), Kind(kind), str(document["error"]), str(document["run_id"])
        )
    except (
        ValueError,
        KeyError,
        TypeError,
    ):  # cut short by a crash, or damaged on its disk: its name says enough
        return FailedBatch(int(number), Kind(kind), _DAMAGED, "")


def must_compute_once(running: RunningBatch, failed: OncewardError | None) -> None:
    """Before a batch is computed once more in a run that has computed it already.

    :raises StateOfFailedAttempt: Spark would commit the state of the attempt that failed, and not
        the one of the rows.
    """
    if not running.computes_once:
        return
    why = f" ({failed.message})" if failed is not None else ""
    raise StateOfFailedAttempt(
        f"an attempt at {running.batch} failed{why}, and it is not tried again in this run: the "
        f"query keeps state in "
        "checkpoints of format 2 (spark.sql.streaming.stateStore.checkpointFormatVersion), of "
        "which Spark would commit "
        "the one of the failed attempt",
        next_step="start the query again (ow.supervise does), which runs the batch anew from the "
        "last committed state",
    ) from failed
