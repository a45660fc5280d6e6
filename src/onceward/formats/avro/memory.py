"""Which schema ids this process has asked a registry for, and what it said. Driver only.

A plan is fixed once its query is defined, so what a batch finds out is kept here until the query
is defined again, by :func:`onceward.formats.avro.decode`, a restart later. One memory for each
registry and subject, whatever objects stand for the registry. Not by login: a token is another one
at each start. And what queries of other subjects have met is asked for by nobody else: where
rights are by subject, a registry refuses it (Confluent's, 403) or denies that it has it
(Karapace's, 404).

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
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import SparkSession

from onceward import patience
from onceward.durable import RUN_FOLDER
from onceward.errors import (
    ConfigurationError,
    RegistryRefused,
    RegistryReplaced,
    SchemaUnknown,
    UnsupportedSchema,
)
from onceward.formats.avro.schemas import why_not_plain_avro
from onceward.formats.registry.answers import (
    LARGEST_ID,
    READING,
    RegisteredSchema,
    Version,
    subject_context,
)
from onceward.formats.registry.client import SchemaRegistry, must_be_subject
from onceward.formats.registry.conversation import NO_RIGHT
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
    """The memory of one registry and subject. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fingerprints: dict[int, str] = {}
        # In the order in which they were met
        self._missing: dict[int, None] = {}

    def schemas(
        self,
        registry: Registry,
        ids: Collection[int],
        wait_s: float = 0,
        others: Collection[int] = (),
    ) -> Schemas:
        """Return the schemas of ``ids``, of ``others`` and of all ids met before; ask again for
        those that were missing. One that is not of ``ids``, and that the login may not read, is
        left out: no record may have it any more, and one that has it says so.

        :param wait_s: as for :meth:`ask`, of ids that something says the registry has.
        :raises OncewardError: the registry cannot be asked, or is another one.
        """
        refused = self.ask_again(registry, MOST_ASKED_AGAIN)
        with self._lock:
            known_ids = {*ids, *others, *self._fingerprints} - refused.keys()
            gone_ids = known_ids & self._missing.keys()
        self.ask(registry, gone_ids, 0, refused)
        self.ask(registry, known_ids - gone_ids, wait_s, refused)
        with self._lock:
            missing = frozenset(self._missing.keys() - refused.keys())
            found = sorted(self._fingerprints.keys() - self._missing.keys() - refused.keys())
        texts, unreadable = {}, {}
        for schema_id in found:
            with _noting(refused, schema_id):
                text, why = _resolve(registry, schema_id)
                if why is None:
                    texts[schema_id] = text
                else:
                    unreadable[schema_id] = why
        if own := next((refused[number] for number in ids if number in refused), None):
            raise own
        for schema_id, error in refused.items():
            log.info("records of schema id %d would end a batch: %s", schema_id, error.message)
        return Schemas(texts, unreadable, missing)

    def ask(
        self,
        registry: Registry,
        ids: Collection[int],
        wait_s: float,
        refused: dict[int, RegistryRefused] | None = None,
    ) -> None:
        """Ask for each of ``ids``, and again for those that are not there, until ``wait_s`` is up:
        a registry that is copied from another one may be behind it.

        :param refused: takes those that the login may not read.
        :raises OncewardError: the registry cannot be asked, or is another one. What it said until
            then is kept.
        """
        deadline, pause = time.monotonic() + wait_s, _FIRST_PAUSE_S
        open_ids = self._find_missing(registry, ids, refused)
        while open_ids and time.monotonic() + pause < deadline:
            patience.pause(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)
            open_ids = self._find_missing(registry, open_ids, refused)
        self._must_have_some(registry)

    def ask_again(self, registry: Registry, most: int) -> dict[int, RegistryRefused]:
        """Ask once more for ``most`` of the ids that are missing, in turn, and return those that
        the login may not read: somebody else's by now.

        :raises OncewardError: as :meth:`ask`.
        """
        refused: dict[int, RegistryRefused] = {}
        with self._lock:
            ids = list(itertools.islice(self._missing, most))
            # To the end, whatever comes of it
            for number in ids:
                self._missing[number] = self._missing.pop(number)
        self.ask(registry, ids, 0, refused)
        return refused

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

    def _find_missing(
        self,
        registry: Registry,
        ids: Collection[int],
        refused: dict[int, RegistryRefused] | None,
    ) -> list[int]:
        """Ask for ``ids``, and return those that the registry does not have."""
        has_failed = threading.Event()

        def is_there(schema_id: int) -> bool:
            # All of them are waited for: another round would take as long as the first
            if has_failed.is_set():
                return False
            found = True
            try:
                with _noting(refused, schema_id):
                    found = self._is_there(registry, schema_id)
            except BaseException:
                has_failed.set()
                raise
            return found

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


@contextmanager
def _noting(refused: dict[int, RegistryRefused] | None, schema_id: int) -> Iterator[None]:
    """Put into ``refused``, if there is such, that the login may not read ``schema_id``."""
    try:
        yield
    except RegistryRefused as error:
        if refused is None or error.details.get("status") != NO_RIGHT:
            raise
        refused[schema_id] = error


def _resolve(registry: Registry, schema_id: int) -> tuple[str, str | None]:
    """Return self-contained Avro, or why there is none."""
    try:
        text = registry.resolved_text(schema_id)
    except (UnsupportedSchema, SchemaUnknown, ConfigurationError) as error:
        # Unknown, or in another context, is a schema that it refers to
        return "", error.message
    return text, why_not_plain_avro(registry.schema(schema_id), text, READING)


def _replaced(registry: Registry, schema_id: int, *, is_gone: bool = False) -> RegistryReplaced:
    what = "there is none any more" if is_gone else "another schema was there before"
    return RegistryReplaced(
        f"{registry!r} is not the one that it was: {what} under id {schema_id}",
        next_step="give it its schemas back under their ids (from a backup, in import mode), or "
        "begin with another topic: records under that id would be read as something else; or, "
        "where no record with an id of before is left to read, remove the folder "
        f"onceward/{_FOLDER} of the query's checkpoint, if there is one, and start a new process",
        details={"id": schema_id},
    )


_lock = threading.Lock()
_memories: dict[Hashable, SchemaMemory] = {}


def memory_for(registry: Registry, subject: str | None = None) -> SchemaMemory:
    """Return the process's memory of ``registry``, by its ``url`` and context, for queries of
    ``subject``; None: those of no subject."""
    with _lock:
        return _memories.setdefault((*registry_place(registry), subject), SchemaMemory())


def registry_place(registry: Registry) -> tuple[Hashable, str]:
    """Return what tells one registry from another: its ``url``, or itself, and its context."""
    where: Any = getattr(registry, "url", None) or registry
    return where, getattr(registry, "context", "")


def in_context(registry: Registry, subject: str | None) -> Registry:
    """Return ``registry``, asking for ids in the context that ``subject`` names, if it names
    one.

    :raises ConfigurationError: ``subject`` is none.
    """
    if subject is None:
        return registry
    must_be_subject(subject)
    if not subject_context(subject) or not isinstance(registry, SchemaRegistry):
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
    session: SparkSession,
    checkpoint: str | os.PathLike[str] | None,
    registry: Registry,
    subject: str | None,
) -> IdFile | None:
    """Return the file beside ``checkpoint``; without one, that of this ``onceward run``; or None.

    :raises ConfigurationError: ``checkpoint`` names no folder.
    """
    if checkpoint is not None:
        return IdFile(session, checkpoint, registry, subject, _BESIDE)
    folder = os.environ.get(RUN_FOLDER, "")
    return IdFile(session, f"file://{folder}", registry, subject, _IN_RUN) if folder else None


def who_knows(file: IdFile | None) -> str:
    """Return where a query may be started again, to know what was found out."""
    return _NOWHERE if file is None else file.who_knows


class IdFile:
    """The file of one registry and subject; where there is none, those of the subject's registries
    at other addresses are read: what a checkpoint knows of ids holds wherever the registry is.

    :param checkpoint: the query's ``checkpointLocation``, or another folder.
    """

    def __init__(
        self,
        session: SparkSession,
        checkpoint: str | os.PathLike[str],
        registry: Registry,
        subject: str | None,
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
        address = where if isinstance(where, str) else type(where).__qualname__
        self._same_ids = f"ids-{_digest(f'{context} {subject}')}-"
        # A version before had one for all subjects, which is read as long as there is no other
        own = f"{self._same_ids}{_digest(address)}.json"
        self._names = [own, f"ids-{_digest(f'{address} {context}')}.json"]
        _used.add(own)
        # As it is in the file, as far as is known
        self._text: str | None = None

    def recall(self, memory: SchemaMemory) -> list[int]:
        """Tell ``memory`` which ids the registry did not have, and what the others were; return
        those that it had.

        :raises CheckpointUnreachable: it cannot be read.
        """
        files = self._files.read()
        self._text = files.get(self._names[0])
        names = [name for name in self._names if name in files][:1]
        has_moved = not names and self._has_address and self.who_knows == _BESIDE
        if has_moved:
            # Records with ids of the old address are still to be read. What this process has used
            # is of another registry of the query; in a run's folder it may be another query's.
            names = [n for n in files if n.startswith(self._same_ids) and n not in _used]
        ids: list[int] = []
        for text in [files[name] for name in names]:
            try:
                document = json.loads(text)
                had, missing = (list(map(int, document[name])) for name in ("ids", "missing"))
                # A file of a version before has none
                found = document.get("fingerprints", {}).items()
                fingerprints = {int(n): str(each) for n, each in found if self._has_address}
            except (ValueError, KeyError, TypeError, AttributeError):
                # Cut short by a crash: what is lost is learnt again.
                log.warning("the schema ids beside the checkpoint cannot be read: %r", text[:100])
                continue
            # One that is missing there may be here
            memory.recall(() if has_moved else missing, fingerprints)
            ids += had
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
            self._files.write(self._names[0], text)
            self._text = text


_used: set[str] = set()
"""Files of registries that this process has asked."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
