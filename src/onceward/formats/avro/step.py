"""What happens to a decoded column at each batch: is the registry still the same, which records
are dead letters, and which schema ids have to be learnt before the next start. Driver only; called
by the engine (``engine.decoding``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet

from pyspark.sql import DataFrame

from onceward import patience
from onceward.errors import NewSchemaId, OncewardError, RegistryReplaced, RegistryUnreachable
from onceward.formats.avro.memory import IdFile, Registry, SchemaMemory, who_knows
from onceward.formats.avro.plan import UNKNOWN_SCHEMA_ID, AvroPlan
from onceward.formats.validation import ValidatingStep
from onceward.spark.batch.failures import invalid_record

log = logging.getLogger(__name__)

MOST_IDS = 10_000
"""Ids that one failed batch is searched for. Has it more, the next try finds the rest."""

# Ids whose schemas are compared at one batch; all in turn
_ASKED_AT_ONCE = 50
_PATIENCE_S = 2.0
_LONGEST_PAUSE_S = 600.0
_SHOWN = 10


class AvroDecoding(ValidatingStep[AvroPlan]):
    """One call of :func:`onceward.formats.avro.decode`.

    :param refresh_s: how often, at most, the registry is asked whether it is still the same.
    :param wait_s: how long ids are asked for that it does not have.
    :param id_file: where the next process looks for what this one has learnt.
    """

    def __init__(
        self, tag: str, plan: AvroPlan, registry: Registry, memory: SchemaMemory, *,
        sets_aside: bool, refresh_s: float, wait_s: float, id_file: IdFile | None,
    ) -> None:  # fmt: skip
        super().__init__(tag, plan, sets_aside=sets_aside)
        self._registry = registry
        self._memory = memory
        self._wait_s = wait_s
        self._id_file = id_file
        self._is_noted = False
        self._monitor = RegistryMonitor(
            registry, plan.ids, refresh_s, lambda: memory.ask_again(registry, _ASKED_AT_ONCE)
        )

    def before_batch(self) -> None:
        """Check that the registry is still the same, and has not got an id that was missing."""
        self._monitor.check()
        if self.plan.missing and (
            late := [number for number in self._memory.ids() if number in self.plan.missing]
        ):
            raise _late_error(self._registry, late, who_knows(self._id_file))
        if self._id_file is not None and not self._is_noted:
            # For the next process, by which one that is set up anew meanwhile is noticed
            self._is_noted = True
            try:
                self._id_file.write(self._memory)
            except OncewardError as error:
                log.warning("the schema ids could not be kept beside the checkpoint: %s", error)

    def explain(
        self, error: OncewardError, rows: Callable[[], DataFrame] | None
    ) -> OncewardError | None:
        if not isinstance(error, NewSchemaId) or error.details.get("tag") != self.tag:
            return None
        ids = [int(number) for number in error.details["ids"]]
        if rows is not None:
            try:
                ids = sorted({*ids, *self.plan.unseen(rows(), MOST_IDS)})
            except Exception as also:  # noqa: BLE001
                # The one id that is known of will do; the next try finds others.
                log.warning("the batch could not be searched for other schema ids: %s", also)
        log.debug(
            "asking %r for %d schema ids that the query does not know", self._registry, len(ids)
        )
        try:
            self._memory.ask(self._registry, ids, self._wait_s)
            if self._id_file is not None:
                self._id_file.write(self._memory)
        except OncewardError as refused:
            return refused
        missing = {*self._memory.missing()}
        if not self.sets_aside and (gone := missing & self._memory.fingerprints().keys() & {*ids}):
            return _gone_error(self._registry, sorted(gone))
        if not self.sets_aside and missing.issuperset(ids):
            # A new plan would say no more than that.
            return self._unknown(ids, rows)
        return _unseen_error(self._registry, ids, missing, who_knows(self._id_file))

    def _unknown(self, ids: list[int], rows: Callable[[], DataFrame] | None) -> OncewardError:
        """Return the error for records of ids that the registry does not have."""
        fields: dict[str, object] = {"id": ids[0]}
        if rows is not None:
            try:
                fields = self.plan.first_with_id(rows(), ids) or fields
            except Exception as also:  # noqa: BLE001 — where it is, the record does not say itself
                log.warning("the batch could not be searched for where the record is: %s", also)
        message = f"the registry knows no schema id {fields['id']}"
        return invalid_record(
            {"class": UNKNOWN_SCHEMA_ID, "message": message, "tag": self.tag, **fields}
        )


class RegistryMonitor:
    """Asks a registry, now and then, whether its ids still mean what they meant, and whether it
    has some that it did not have.

    A registry that does not answer stops nothing: what is known needs no registry. It is asked in
    a thread, and waited for as long as a batch may wait; what it says later counts at the next
    batch.
    """

    def __init__(
        self,
        registry: Registry,
        ids: list[int],
        refresh_s: float,
        ask_again: Callable[[], object] = lambda: None,
    ) -> None:
        self._registry = registry
        self._ask_again = ask_again
        self._ids = ids
        self._next = 0
        self._refresh_s = self._pause_s = refresh_s
        # The query has just been defined, with its answers
        self._due = time.monotonic() + refresh_s
        self._answer: Future[None] | None = None

    def check(self) -> None:
        """Ask the registry, and compare.

        :raises RegistryReplaced: an id has another schema now, or is gone.
        """
        if self._answer is None:
            if time.monotonic() < self._due:
                return
            # In a daemon of its own, so that a process can end while a registry does not answer.
            ids = self._next_ids()
            self._answer = patience.in_a_thread(lambda: self._ask(ids), "onceward-registry")
        try:
            self._answer.result(_PATIENCE_S)
        except RegistryReplaced:
            raise
        except NotYet:
            log.debug(
                "%r has not answered yet; the batch goes on with the schemas that are known",
                self._registry,
            )
            return
        except Exception as error:  # noqa: BLE001 — whatever it is: known schemas need no registry
            self._pause_s = min(2 * self._pause_s, max(_LONGEST_PAUSE_S, self._refresh_s))
            log.warning("the batch goes on with the schemas that are known: %s", error)
        else:
            self._pause_s = self._refresh_s
        self._answer, self._due = None, time.monotonic() + self._pause_s

    def _ask(self, ids: list[int]) -> None:
        if ids:
            self._registry.check_unchanged(ids)
        self._ask_again()

    def _next_ids(self) -> list[int]:
        if len(self._ids) <= _ASKED_AT_ONCE:
            return self._ids
        begin, self._next = self._next, (self._next + _ASKED_AT_ONCE) % len(self._ids)
        return (self._ids + self._ids)[begin : begin + _ASKED_AT_ONCE]


_ANEW = (
    "start the query again, defining it anew, so that its plan has them, {}. ow.supervise(start) "
    "does it by itself, at once"
)


def _unseen_error(
    registry: Registry, ids: list[int], missing: set[int], where: str
) -> NewSchemaId:
    there, not_there = [n for n in ids if n not in missing], [n for n in ids if n in missing]
    parts = [f"has {_listed(there)}"] if there else []
    parts += [f"does not have {_listed(not_there)}"] if not_there else []
    return NewSchemaId(
        "records of the batch name schema ids that were not known when the query was defined; "
        f"{registry!r} " + " and ".join(parts),
        next_step=f"{_ANEW.format(where)}; records of ids that the registry does not have are "
        "poison then",
        details={"ids": ids[:MOST_IDS], "news": [f"{registry!r} {number}" for number in ids]},
    )


def _late_error(registry: Registry, ids: list[int], where: str) -> NewSchemaId:
    return NewSchemaId(
        f"{registry!r} has {_listed(ids)} now, which it did not have when the query was defined: "
        "records of them were invalid until here",
        next_step=_ANEW.format(where),
        details={"ids": ids[:MOST_IDS], "news": [f"{registry!r} {number} now" for number in ids]},
    )


def _gone_error(registry: Registry, ids: list[int]) -> RegistryUnreachable:
    return RegistryUnreachable(
        f"{registry!r} does not have {_listed(ids)} now, which it had: a copy that lags, say",
        next_step="start the query again, as ow.supervise(start) does: it asks once more. If the "
        "schema was deleted for good, register it again under its id, or pass on_error="
        '"dead_letter" to decode(…)',
        details={"ids": ids[:MOST_IDS]},
    )


def _listed(ids: list[int]) -> str:
    more = f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else ""
    return ", ".join(map(str, ids[:_SHOWN])) + more
