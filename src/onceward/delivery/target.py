"""After the decision, the driver delivers: chunk by chunk, each noted in the ledger. Driver only.

On top of what every two-phase target does (:mod:`onceward.engine.two_phase`): committables are
files of rows, and a committable is committed by removing its file, which comes last. Before it:

1. Before the decision: the driver sees every file that a task has reported, in its full length.
2. After the decision, or at the next start: the sink's settings are still those that say what the
   rows are to become. All files that are still needed are read and compared with their checksums.
   Where one is lost nothing more is delivered. (They are compared once more as they are read to be
   delivered, block by block: a file may change.)
3. Chunk after chunk: it is delivered, tried again with growing pauses until the target has it;
   then the ledger record is replaced by one that counts it. Nothing is delivered in between, so
   that a crash repeats one chunk at most.
4. The files are removed, and the record says *finished*.

What if an older copy still delivers while a newer one starts? Nothing fences the target. But a
copy delivers nothing unless it was the chain's owner just before: the count after each chunk is an
append by compare-and-set, and where a moment has passed since, it is repeated before the next try.
So what can reach the target of an older copy is the one chunk that it has in its hands, once, at
any later time; the newer copy begins with the same chunk, under the same key.

Files of rows that no record of the chain names are dropped at a start. Seen from another chain,
those that the right one has decided look the same. So the first start notes the chain beside the
folder, and a start with another one is refused before anything is dropped.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from onceward import events, patience, surroundings
from onceward.delivery.chunks import Chunk, Delivery, output_data
from onceward.delivery.row_files import (
    Looked,
    RowFile,
    listed,
    must_be_there,
    not_shared,
    note_path,
    reached,
)
from onceward.durable import make, sync, write_new
from onceward.engine.ledger.chain import Ledger, takeover_error
from onceward.engine.ledger.record import DELIVERED, LedgerRecord
from onceward.engine.policy import SinkPolicy
from onceward.engine.target import Prepared, Write
from onceward.engine.two_phase import Committer, TwoPhaseAttempt, TwoPhaseTarget
from onceward.errors import (
    CommitInDoubt,
    ConfigurationError,
    DeliveryRefused,
    OncewardError,
    PreparedDataLost,
    PublishIncomplete,
    StoreUnreachable,
    summary,
)
from onceward.ids import AttemptId, PipelineId
from onceward.spark.batch.query import RunningBatch

log = logging.getLogger(__name__)


def must_belong(
    folder: Path, pipeline: PipelineId, identity: str, place: str, *, is_known: bool
) -> None:
    """Mark ``folder`` as that of the chain with ``identity``.

    :param place: of the ledger, for readers of the mark or the error.
    :param is_known: the chain says itself that its rows are there.
    :raises ConfigurationError: it is of another one.
    """
    note = note_path(folder)
    with reached(folder.parent):
        try:
            other = _other(note.read_text(), identity)
        except FileNotFoundError:
            if is_known or not listed(folder):
                _write(note, json.dumps({"chain": identity, "ledger": place}))
                return
            other = f"{note.name}, which named it, is gone"
    if other is not None:
        raise ConfigurationError(
            f"the store {folder} is of another ledger ({other}) than pipeline {pipeline} was "
            f"started with ({place}), or of one that was in its place before: that one may have "
            "decided rows in it that are not delivered yet",
            next_step="start the query with the ledger that it has had, or restore that; to begin "
            "anew without what is left in the store, pass another store=, or remove the folder "
            f"and {note}",
            details={"pipeline": pipeline, "store": str(folder)},
        )


def _other(noted: str, identity: str) -> str | None:
    """Return the place of the other ledger; None if it is this one."""
    try:
        found = json.loads(noted)
        return None if found["chain"] == identity else str(found["ledger"])
    except (ValueError, KeyError, TypeError):
        return "which one cannot be read"


def _write(note: Path, text: str) -> None:
    written = note.with_name(f"{note.name}.{surroundings.random_bytes(16).hex()}")
    write_new(written, text.encode())
    try:
        written.replace(note)
    except OSError:
        with suppress(OSError):
            written.unlink()
        raise
    sync(note.parent)


KIND = "write_ahead"
"""Of a ledger record's output: as of ``two_phase``, and what
:func:`onceward.delivery.chunks.output_data` says.
"""

PLACE = "written_to"
"""In a record's output: what told the target from others of its name when last written to."""

OWNED_SECONDS = 1.0
"""How long after an append of ours nobody is asked again whether the chain is still ours."""

Deliver = Callable[[Chunk], object]
"""Returns None; anything else is refused: who knows what it says (an HTTP status 500?)."""


class DeliveringSink(Committer, Protocol):
    """What a target asks of its sink, a :class:`onceward.WriteAheadSink`."""

    deliver: Deliver
    folder: Path
    chunk_rows: int
    _ledger: Ledger
    _commit_timeout_s: float

    def _what_rows_become(self) -> Mapping[str, Any]: ...

    def _written_to(self) -> Mapping[str, Any] | None: ...

    def _check_place(self, then: Mapping[str, Any] | None) -> None: ...


class WriteAheadTarget(TwoPhaseTarget):
    """One run of a query. ``sink`` is its committer, and has the user's ``deliver``: called in the
    query's own thread, for one chunk after the other. Its ``close``, if any, is called when the
    query has ended; ``deliver`` may be called again after that.
    """

    kind = KIND

    def __init__(self, sink: DeliveringSink, policy: SinkPolicy) -> None:
        ledger = sink._ledger
        chain, timeout_s = ledger.chain(policy.pipeline), sink._commit_timeout_s
        super().__init__(sink, chain, policy, commit_timeout_s=timeout_s)
        self.sink = sink
        self.deliver = sink.deliver
        self.folder = sink.folder
        self.settings = sink._what_rows_become()
        self._ledger = f"{type(ledger).__name__} {ledger.where}"
        self._owned_at = 0.0
        # as the store of this chain's newest batch
        self._is_known = False
        # what the place has lost, and a start may leave out
        self._lost: PreparedDataLost | None = None

    def look_at_place(self, newest: LedgerRecord | None) -> None:
        output = None if newest is None else newest.outputs.get(KIND)
        data = {} if output is None else output.data
        self._is_known = data.get("store") == str(self.folder)
        if self._is_known:
            must_be_there(self.folder)
        with reached(self.folder):
            make(self.folder)
        self._lost = None
        self._ask_place(data.get(PLACE))

    def _ask_place(self, then: Mapping[str, Any] | None) -> None:
        try:
            self.sink._check_place(then)
        except PreparedDataLost as lost:
            if self._policy.resume != "skip_missing":
                raise
            self._lost = lost
            self._ask_place(None)
        except OncewardError:
            raise
        except Exception as error:  # noqa: BLE001
            # Rows can be stored all the same, and wait for it.
            text = "%s: the target cannot be looked at now: %s"
            log.warning(text, self._policy.pipeline, summary(error))

    def published_in(self, newest: LedgerRecord) -> list[Any]:
        """Return nothing: a file that a crash has left in the store is delivered all the same."""
        return []

    def must_be_of_this_chain(self) -> None:
        """Mark the store as this chain's; and refuse what the place has lost since this run began:
        nobody has said that it may be left out."""
        must_belong(
            self.folder, self._policy.pipeline, self.chain.identity(), self._ledger,
            is_known=self._is_known,
        )  # fmt: skip
        if self._lost is not None:
            if self._inherited is None:
                raise self._lost
            log.warning("%s: left out: %s", self._policy.pipeline, self._lost.message)

    def _attempt(self, attempt_id: AttemptId, newest: LedgerRecord | None) -> WriteAheadAttempt:
        attempt = WriteAheadAttempt(self, attempt_id)
        attempt.sequence = 0 if newest is None else newest.sequence + 1
        return attempt

    def finish(self, record: LedgerRecord) -> LedgerRecord:
        # The decision, or the start, has just come before; in a fan-out others may have published
        # since.
        """Deliver the chunks that the record does not count yet, then remove the files."""
        self._owned_at = 0.0 if self.branch else surroundings.monotonic()
        names = self._committables(record)
        delivery = Delivery(record, record.outputs[KIND].data, names, self.branch)
        self._must_become_the_same(delivery, record)
        try:
            looked = self._looked_at(delivery, record)
            for chunk in delivery.rest(self.folder, looked):
                patience.ask()
                if chunk.rows.num_rows:
                    record = self._delivered(chunk, record)
                record = self._counted(chunk, record)
        except (PreparedDataLost, StoreUnreachable):
            # A newer copy that has finished the batch has removed its files. Then this append is
            # refused, and the copy is Fenced instead of reporting rows as lost.
            self._progress(record)
            raise
        return super().finish(record)

    def close(self) -> None:
        """Close what delivers, too."""
        super().close()
        closing = getattr(self.deliver, "close", None)
        if callable(closing):
            try:
                closing()
            except Exception as error:  # noqa: BLE001 — it is being given up
                log.debug("closing: %r", error)

    def _must_become_the_same(self, delivery: Delivery, record: LedgerRecord) -> None:
        """Raise ConfigurationError if this sink would make something else of the batch's rows."""
        then, now = delivery.settings, self.settings
        if then == now:
            return
        others = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        before, here = (
            ", ".join(f"{name}={settings.get(name)!r}" for name in others)
            for settings in (then, now)
        )
        raise ConfigurationError(
            f"{record.batch} of pipeline {record.pipeline} is decided and not delivered yet, and "
            f"its rows were stored to be written with {before}; this sink has {here}",
            next_step="start the query once more with the settings of then, until its batch is "
            "delivered; then change them",
            details={
                "pipeline": record.pipeline,
                "batch_id": record.batch.batch_id,
                "settings": dict(then),
            },
        )

    def _looked_at(self, delivery: Delivery, record: LedgerRecord) -> dict[RowFile, Looked]:
        """Read needed files. :raises PreparedDataLost: one is damaged, and may not be left out."""
        looked = {file: file.looked_at(self.folder) for file in delivery.needed}
        if wrong := [found.wrong for found in looked.values() if found.wrong]:
            must_be_there(self.folder)
            self._must_not_be_lost(wrong, record)
        return looked

    def _delivered(self, chunk: Chunk, record: LedgerRecord) -> LedgerRecord:
        """Deliver ``chunk``, as often as it takes.

        :raises PublishIncomplete: the target has not taken it in time.
        :raises DeliveryRefused: it never will.
        """
        pauses = patience.GrowingPauses(self.commit_timeout_s)
        ids = {
            "pipeline": record.pipeline,
            "batch_id": record.batch.batch_id,
            "chunk": chunk.number,
        }
        while True:
            # Nothing fences the target, so each delivery follows an append that only the owner can
            # make:
            # 1. an older copy passes this check and stands still (SIGSTOP) before `deliver`;
            # 2. a newer copy takes the chain and delivers the same chunk, under the same key;
            # 3. the older copy resumes and delivers its one chunk, then its next append is
            #    refused.
            if surroundings.monotonic() - self._owned_at > OWNED_SECONDS:
                # says nothing new, and is refused if the chain is not ours any more
                record = self._progress(record)
            try:
                with events.step(events.DELIVER, **ids) as values:
                    values["records"] = chunk.rows.num_rows
                    answer: object = self.deliver(chunk)
            except DeliveryRefused as refused:
                # of an older copy the target may say so: then it is for Fenced to be said
                self._progress(record)
                raise _refused(refused, chunk, record) from refused
            except Exception as error:
                # the decision stands: whatever it is, it is tried again
                if isinstance(error, OncewardError) and error.recovery.needs_a_change:
                    raise
                text = "%s: delivering %s failed: %s"
                log.warning(text, record.pipeline, chunk.key, summary(error))
                if not pauses.wait():
                    raise self._unfinished(chunk, record, error) from error
                # others may have come while we waited
                self._owned_at = 0.0
                continue
            if answer is not None:
                raise ConfigurationError(
                    f"deliver() has answered {type(answer).__name__} for chunk {chunk.key}, and "
                    "what that means is not known; the chunk counts as not delivered",
                    next_step="let deliver() return None when the target has all rows of the "
                    "chunk, and raise when it has not (an HTTP answer, say: "
                    "response.raise_for_status()); then start the query again",
                )
            return record

    def _unfinished(
        self, chunk: Chunk, record: LedgerRecord, error: Exception
    ) -> PublishIncomplete:
        return PublishIncomplete(
            f"{record.batch} is decided, and the target has not taken chunk {chunk.number} of "
            f"{chunk.of} ({chunk.key}) within {self.commit_timeout_s:g} s: "
            f"{summary(error)}",
            next_step="see that the target answers, and is set to take such rows; start the query "
            "again: it goes on with this chunk before anything else",
            details={"pipeline": record.pipeline, "chunk": chunk.number, "of": chunk.of},
        )

    def _counted(self, chunk: Chunk, record: LedgerRecord) -> LedgerRecord:
        """Append the record that says that ``chunk`` is delivered."""
        output = record.outputs[KIND]
        data = {**output.data, DELIVERED: chunk.number + 1, PLACE: self.sink._written_to()}
        return self._progress(replace(record, outputs={KIND: replace(output, data=data)}))

    def _progress(self, wanted: LedgerRecord) -> LedgerRecord:
        """Ask the chain after a lost answer whether it was carried out: that repeats no chunk."""
        try:
            written = self.chain.progress(wanted)
        except CommitInDoubt as doubt:
            log.warning("%s: progress of %s is in doubt: %s", wanted.pipeline, wanted.batch, doubt)
            newest = self.chain.settle()
            has_this = newest is not None and (newest.sequence, newest.outputs) == (
                wanted.sequence,
                wanted.outputs,
            )
            written = newest if newest is not None and has_this else self.chain.progress(wanted)
        self._owned_at = surroundings.monotonic()
        return written


class WriteAheadAttempt(TwoPhaseAttempt):
    """One attempt at a batch: files of its tasks."""

    target: WriteAheadTarget
    sequence: int

    def write(self, write: Write, running: RunningBatch) -> int:
        try:
            return super().write(write, running)
        except StoreUnreachable as error:
            # A task sees nothing of the store. Of a pipeline that has never worked that is a wrong
            # setting, where the driver sees it
            folder = self.target.folder
            if self.sequence == 0 and "store" in error.details and note_path(folder).exists():
                raise not_shared(
                    folder,
                    "the driver has made it, and an executor does not see it",
                    has_worked=False,
                ) from error
            raise

    def prepared(self) -> Prepared:
        prepared = super().prepared()
        output, target = prepared.outputs[KIND], self.target
        for name in output.data["committables"]:
            if not RowFile.of(name).is_seen_in(target.folder):
                must_be_there(target.folder)
                # Found out after the decision, it would be lost. But a newer copy of the pipeline
                # may have dropped it at its start: then it is for Fenced to say so.
                newest = self._chain.settle()
                # where its id was forgotten meanwhile
                if newest is not None and newest.sequence >= self.sequence:
                    raise takeover_error(
                        self._policy.pipeline, f"the ledger, which has {newest.batch}"
                    )
                raise not_shared(
                    target.folder,
                    f"an executor has written {name}, and the driver does not see it",
                    has_worked=self.sequence > 0,
                )
        data = {
            **output.data,
            **output_data(self.id, target.sink.chunk_rows, target.settings),
            "store": str(target.folder),
            PLACE: target.sink._written_to(),
        }
        return prepared._replace(outputs={KIND: replace(output, data=data)})


def _refused(refused: DeliveryRefused, chunk: Chunk, record: LedgerRecord) -> DeliveryRefused:
    return DeliveryRefused(
        f"deliver() refuses chunk {chunk.number} of {chunk.of} ({chunk.key}) of {record.batch} "
        f"for good: {refused.message}",
        next_step=refused.next_step
        or "let deliver() mend such rows, or put them where somebody looks at them; then start "
        "the query again: it begins with this chunk, and has skipped nothing",
        details={
            "pipeline": record.pipeline,
            "chunk": chunk.number,
            "of": chunk.of,
            **refused.details,
        },
    )
