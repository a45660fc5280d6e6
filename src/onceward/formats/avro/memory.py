"""Which schema ids this process has asked a registry for, and what it said. Driver only.

A plan is fixed once its query is defined, so what a batch finds out is kept here until the query
is defined again, by :func:`onceward.formats.avro.decode`, a restart later. One memory for each
registry, whatever objects stand for it.

For the next process, which has another memory, the ids are in a file beside the query's
checkpoint, or in the folder of ``onceward run``: ``decode`` reads it, and its step
(:mod:`onceward.formats.avro.step`) writes it when a batch has met new ids. The user says where it
is: Spark knows the checkpoint later.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Collection, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from onceward import patience
from onceward.durable import RUN_FOLDER
from onceward.errors import ConfigurationError, RegistryReplaced, SchemaUnknown, UnsupportedSchema
from onceward.formats.avro.schemas import is_bytes
from onceward.formats.registry.answers import (
    LARGEST_ID,
    READING,
    RegisteredSchema,
    Version,
    subject_context,
)
from onceward.formats.registry.client import SchemaRegistry
from onceward.ids import PipelineId
from onceward.spark.batch.checkpoint_files import CheckpointFiles

log = logging.getLogger(__name__)

MOST_MISSING, MOST_ASKED_AGAIN = 100_000, 1_000
"""Of ids that a registry does not have so many are remembered, the newest, and so many of these
asked for again by each definition of a query, in turn: whoever may write to a topic can make up as
many as he likes. More than a batch has, or its query would never learn all of them.
"""

_TOGETHER = 8  # questions at once
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0


class Registry(Protocol):
    """What is asked of a schema registry: :class:`onceward.SchemaRegistry`, or an object that
    answers alike.

    ``url``, or else the object itself, tells one registry from another. What is not there raises
    :class:`~onceward.errors.SchemaUnknown`.
    """

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id."""

    def resolved_text(self, schema_id: int) -> str:
        """Return a schema, and what it refers to, as self-contained Avro.

        :raises UnsupportedSchema: it is no Avro.
        """

    def versions(self, subject: str) -> list[Version]:
        """Return all versions of a subject."""

    def latest(self, subject: str) -> Version:
        """Return the newest version."""

    def version(self, subject: str, number: int) -> Version:
        """Return one version."""

    def lookup(self, subject: str, schema_text: str) -> int:
        """Return the id of a schema that is registered there."""

    def register(self, subject: str, schema_text: str) -> int:
        """Register a schema unless it is, and return its id."""

    def check_unchanged(self, known: Iterable[int]) -> None:
        """Compare ids with what they meant before.

        :raises RegistryReplaced: one has another schema now.
        """


def as_registry(given: Registry | str) -> Registry:
    """Return the registry that ``registry=`` names: itself, or the one at that address."""
    if isinstance(given, str):
        return SchemaRegistry(given)
    if isinstance(given, type) or not callable(getattr(given, "resolved_text", None)):
        raise ConfigurationError(
            f"registry={given!r} is no schema registry",
            next_step='pass onceward.SchemaRegistry("http://registry:8081", …), or its address as '
            "a text",
        )
    return given


@dataclass(frozen=True, slots=True)
class Schemas:
    """What is known of ids at one moment.

    :param texts: self-contained Avro. :param unreadable: the registry has them, but no record of
        them can be read; and why. :param missing: the registry was asked and does not have them.
    """

    texts: dict[int, str]
    unreadable: dict[int, str]
    missing: frozenset[int]


class SchemaMemory:
    """The memory of one registry. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fingerprints: dict[int, str] = {}
        # In the order in which they were met
        self._missing: dict[int, None] = {}

    def schemas(self, registry: Registry, ids: Collection[int], wait_s: float = 0) -> Schemas:
        """Return the schemas of ``ids`` and of all ids met before; ask again for those that were
        missing.

        :param wait_s: as for :meth:`ask`, of ids that something says the registry has.
        :raises OncewardError: the registry cannot be asked, or is another one.
        """
        self.ask_again(registry, MOST_ASKED_AGAIN)
        with self._lock:
            known_ids = {*ids, *self._fingerprints}
            gone_ids = known_ids & self._missing.keys()
        self.ask(registry, gone_ids, wait_s=0)
        self.ask(registry, known_ids - gone_ids, wait_s)
        with self._lock:
            missing = frozenset(self._missing)
            found = sorted(self._fingerprints.keys() - missing)
        texts, unreadable = {}, {}
        for schema_id in found:
            text, why = _resolve(registry, schema_id)
            if why is None:
                texts[schema_id] = text
            else:
                unreadable[schema_id] = why
        return Schemas(texts, unreadable, missing)

    def ask(self, registry: Registry, ids: Collection[int], wait_s: float) -> None:
        """Ask for each of ``ids``, and again for those that are not there, until ``wait_s`` is up:
        a registry that is copied from another one may be behind it.

        :raises OncewardError: the registry cannot be asked, or is another one. What it said until
            then is kept.
        """
        deadline, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        open_ids = self._find_missing(registry, ids)
        while open_ids and time.monotonic() + pause < deadline:
            patience.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            open_ids = self._find_missing(registry, open_ids)
        self._must_have_some(registry)

    def ask_again(self, registry: Registry, most: int) -> None:
        """Ask once more for ``most`` of the ids that are missing, in turn.

        :raises OncewardError: as :meth:`ask`.
        """
        with self._lock:
            # They go to the end, once they are asked for
            ids = list(itertools.islice(self._missing, most))
        self.ask(registry, ids, wait_s=0)

    def missing(self) -> list[int]:
        """Return the ids that the registry did not have when it was asked last, in the order in
        which they are to be asked for again."""
        with self._lock:
            return list(self._missing)

    def ids(self) -> list[int]:
        """Return the ids that the registry has."""
        with self._lock:
            return [number for number in self._fingerprints if number not in self._missing]

    def fingerprints(self) -> dict[int, str]:
        """Return what the schemas of all ids were that the registry has ever had."""
        with self._lock:
            return dict(sorted(self._fingerprints.items()))

    def recall(self, missing: Iterable[int], fingerprints: Mapping[int, str]) -> None:
        """Take over what another process has found out: ids that the registry did not have, and
        what the others were, by which one that was set up anew is noticed.
        """
        with self._lock:
            for number, fingerprint in fingerprints.items():
                self._fingerprints.setdefault(number, fingerprint)
            for number in missing:
                if number not in self._fingerprints:
                    self._missing.setdefault(number)
            self._forget_the_oldest()

    def _find_missing(self, registry: Registry, ids: Collection[int]) -> list[int]:
        """Ask for ``ids``, and return those that the registry does not have."""
        has_failed = threading.Event()

        def is_there(schema_id: int) -> bool:
            # All of them are waited for: another round would take as long as the first
            if has_failed.is_set():
                return False
            try:
                return self._is_there(registry, schema_id)
            except BaseException:
                has_failed.set()
                raise

        with ThreadPoolExecutor(
            min(_TOGETHER, max(1, len(ids))), thread_name_prefix="onceward-schemas"
        ) as threads:
            there = list(threads.map(patience.carried(is_there), ids))
        # Ids that no registry gives need no patience.
        return [
            number
            for number, found in zip(ids, there, strict=True)
            if not found and 0 < number <= LARGEST_ID
        ]

    def _is_there(self, registry: Registry, schema_id: int) -> bool:
        found: RegisteredSchema | None = None
        if 0 < schema_id <= LARGEST_ID:
            try:
                found = registry.schema(schema_id)
            except SchemaUnknown:
                found = None
        with self._lock:
            before = self._fingerprints.get(schema_id)
            if found is None:
                if before is not None and schema_id not in self._missing:
                    log.warning("%r does not have id %d any more", registry, schema_id)
                self._missing[schema_id] = self._missing.pop(schema_id, None)
                self._forget_the_oldest()
            else:
                self._missing.pop(schema_id, None)
                self._fingerprints.setdefault(schema_id, found.fingerprint)
        if before is not None and found is not None and found.fingerprint != before:
            raise _replaced(registry, schema_id)
        return found is not None

    def _forget_the_oldest(self) -> None:
        while len(self._missing) > MOST_MISSING:
            del self._missing[next(iter(self._missing))]

    def _must_have_some(self, registry: Registry) -> None:
        """Check that the registry has some id still: the missing ones were deleted for good."""
        with self._lock:
            missing_ids = sorted(self._fingerprints.keys() & self._missing.keys())
            has_others = len(missing_ids) < len(self._fingerprints)
        if missing_ids and not has_others:
            raise _replaced(registry, missing_ids[0], is_gone=True)


def _resolve(registry: Registry, schema_id: int) -> tuple[str, str | None]:
    """Return self-contained Avro, or why there is none."""
    try:
        text = registry.resolved_text(schema_id)
    except (UnsupportedSchema, SchemaUnknown, ConfigurationError) as error:
        # Unknown, or in another context, is a schema that it refers to
        return "", error.message
    return text, why_not_plain_avro(registry.schema(schema_id), text, READING)


def why_not_plain_avro(schema: RegisteredSchema, text: str, modes: frozenset[str]) -> str | None:
    """Return why a record of a schema may be another thing than its Avro behind the frame; None:
    it is that.

    :param text: of ``schema``, self-contained. :param modes: of the rules that count.
    """
    if rule := schema.rule_in(modes):
        return f"its rule {rule} is for Confluent's serializers, and is not carried out here"
    if not is_bytes(text):
        return None
    return (
        "it is bytes alone, which Confluent's serializers in Java write without Avro's length, "
        "and others with it: a record does not say which"
    )


def _replaced(registry: Registry, schema_id: int, *, is_gone: bool = False) -> RegistryReplaced:
    what = "there is none any more" if is_gone else "another schema was there before"
    return RegistryReplaced(
        f"{registry!r} is not the one that it was: {what} under id {schema_id}",
        next_step="give it its schemas back under their ids (from a backup, in import mode), or "
        "begin with another topic: records under that id would be read as something else",
        details={"id": schema_id},
    )


_lock = threading.Lock()
_memories: dict[Hashable, SchemaMemory] = {}


def memory_for(registry: Registry) -> SchemaMemory:
    """Return the process's memory of ``registry``, by its ``url`` and context."""
    with _lock:
        return _memories.setdefault(registry_place(registry), SchemaMemory())


def registry_place(registry: Registry) -> tuple[Hashable, str]:
    """Return what tells one registry from another: its ``url``, or itself, and its context."""
    where: Any = getattr(registry, "url", None) or registry
    return where, getattr(registry, "context", "")


def in_context(registry: Registry, subject: str | None) -> Registry:
    """Return ``registry``, asking for ids in the context that ``subject`` names, if it names
    one.
    """
    if subject is None or not subject_context(subject) or not isinstance(registry, SchemaRegistry):
        return registry
    return registry.in_context(subject)


_FOLDER = PipelineId("@schema-ids")
"""Beside those of pipelines, whose ids have no @."""


_BESIDE = "in this process or in another one: what was found out is beside the checkpoint"
_IN_RUN = (
    "in this process or in the next one of this `onceward run`; for others to know what was found "
    "out, pass the query's checkpointLocation as checkpoint= of decode(…)"
)
_NOWHERE = (
    "in this process, which alone knows what was found out; for another process to know it, pass "
    "the query's checkpointLocation as checkpoint= of decode(…)"
)


def id_file(
    session: SparkSession, checkpoint: str | os.PathLike[str] | None, registry: Registry
) -> IdFile | None:
    """Return the file beside ``checkpoint``; without one, that of this ``onceward run``; or None.

    :raises ConfigurationError: ``checkpoint`` names no folder.
    """
    if checkpoint is not None:
        return IdFile(session, checkpoint, registry, _BESIDE)
    folder = os.environ.get(RUN_FOLDER, "")
    return IdFile(session, f"file://{folder}", registry, _IN_RUN) if folder else None


def who_knows(file: IdFile | None) -> str:
    """Return where a query may be started again, to know what was found out."""
    return _NOWHERE if file is None else file.who_knows


class IdFile:
    """The file of one registry.

    :param checkpoint: the query's ``checkpointLocation``, or another folder.
    """

    def __init__(
        self,
        session: SparkSession,
        checkpoint: str | os.PathLike[str],
        registry: Registry,
        who_knows: str,
    ) -> None:
        self.who_knows = who_knows
        path = os.fspath(checkpoint) if isinstance(checkpoint, (str, os.PathLike)) else ""
        if not isinstance(path, str) or not path.strip():
            raise ConfigurationError(
                f"checkpoint={checkpoint!r} names no folder",
                next_step="pass the query's checkpointLocation as checkpoint= of decode(…)",
            )
        self._files = CheckpointFiles(session, f"{path.rstrip('/')}/onceward/{_FOLDER}")
        where, context = registry_place(registry)
        # Two objects of the user's without an address are not told apart, and have one file: ids
        # that the other has are but asked for once more, and of a schema it would be a mistake.
        self._has_address = isinstance(where, str)
        place = f"{where if isinstance(where, str) else type(where).__qualname__} {context}"
        # As it is in the file, as far as is known
        self._text: str | None = None
        self._name = f"ids-{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"

    def recall(self, memory: SchemaMemory) -> list[int]:
        """Tell ``memory`` which ids the registry did not have, and what the others were; return
        those that it had.

        :raises CheckpointUnreachable: it cannot be read.
        """
        text = self._text = self._files.read().get(self._name)
        if text is None:
            return []
        try:
            document = json.loads(text)
            ids, missing = (list(map(int, document[name])) for name in ("ids", "missing"))
            # A file of a version before has none
            fingerprints = {
                int(number): str(found)
                for number, found in document.get("fingerprints", {}).items()
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            # Cut short by a crash: what is lost is learnt again.
            log.warning("the schema ids beside the checkpoint cannot be read: %r", text[:100])
            return []
        memory.recall(missing, fingerprints if self._has_address else {})
        return ids

    def write(self, memory: SchemaMemory) -> None:
        """Write what ``memory`` knows.

        :raises CheckpointUnreachable: it may not be there.
        """
        known = {
            "ids": sorted(memory.ids()),
            "missing": memory.missing(),
            "fingerprints": memory.fingerprints() if self._has_address else {},
        }
        text = json.dumps(known)
        if text != self._text:
            self._files.write(self._name, text)
            self._text = text
