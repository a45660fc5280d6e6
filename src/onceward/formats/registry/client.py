"""The schema registry, as a user names it. In the driver only: executors are told schemas, never
the login.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NoReturn, TypeVar
from urllib.parse import quote

from onceward.errors import ConfigurationError, RegistryRefused, RegistryReplaced, SchemaUnknown
from onceward.formats.registry.answers import (
    LARGEST_ID,
    RegisteredSchema,
    SchemaType,
    Version,
    compatibility_in,
    id_in,
    is_compatible_in,
    names_in,
    numbers_in,
    schema_in,
    subject_context,
    subject_in,
    version_in,
)
from onceward.formats.registry.conversation import NO_RIGHT, Conversation, NotRegistered
from onceward.formats.registry.http import client_library
from onceward.formats.registry.references import self_contained
from onceward.formats.registry.settings import parse_settings

T = TypeVar("T")

_LISTING_BYTES = 8_388_608
_OTHERS_ASKED = 8
"""Ids that are asked for before a registry that lacks one is called another one."""

log = logging.getLogger(__name__)
_ENVELOPE_BYTES = 65_536
_SUBJECT_CHARACTERS = 1_000


class SchemaRegistry:
    """A registry with Confluent's API: Confluent's own, Apicurio (``…/apis/ccompat/v7``),
    Karapace, Redpanda.

    ::

        schemas = ow.SchemaRegistry(
            "https://registry:8081",
            options={"basic.auth.user.info": "user:password", "ssl.ca.location": "ca.pem"},
        )

    Nothing is connected before the first question. All requests go to this address; redirects are
    not followed, and proxies of the environment are not used. Methods may be called from many
    threads. Each asks until there is an answer that makes sense, for ``timeout_s`` in all, and
    raises

    * :class:`~onceward.errors.RegistryUnreachable`: there is none, or the registry says that it
      cannot now;
    * :class:`~onceward.errors.InvalidRegistryResponse`: what comes is no answer of a registry, or
      one of more than twice ``max_schema_bytes``;
    * :class:`~onceward.errors.RegistryRefused`: the login, or the server's certificate, is not
      accepted;
    * :class:`~onceward.errors.SchemaUnknown`: it says that it knows no such thing.

    :param url: ``http://…`` or ``https://…`` with the whole path, and without a login.
    :param options: by Confluent's names, each also with ``schema.registry.`` before it:
        ``basic.auth.user.info``, ``bearer.auth.token``, and ``ssl.…`` as of a Kafka client
        (``ssl.ca.location``, ``ssl.certificate.location``, ``ssl.key.location``,
        ``ssl.key.password`` …). Unknown ones are refused.
    :param timeout_s: for a question, with all its tries and the pauses between them.
    :param request_timeout_s: for one try of it.
    :param max_schema_bytes: the largest schema by which records are read or written.
    :raises ConfigurationError: the address or an option is wrong, or there is no HTTP client
        installed.
    """

    def __init__(
        self,
        url: str,
        *,
        options: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        request_timeout_s: float = 20.0,
        max_schema_bytes: int = 1_048_576,
    ) -> None:
        settings = parse_settings(url, options)
        limits = {
            "timeout_s": timeout_s, "request_timeout_s": request_timeout_s,
            "max_schema_bytes": max_schema_bytes,
        }  # fmt: skip
        for name, value in limits.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 < value < float("inf")
            ):
                raise ConfigurationError(
                    f"{name}={value!r} is no limit", next_step=f"pass a number above 0 as {name}="
                )
        client_library()
        self.url = str(settings.address)
        """The registry's address, as it is asked."""
        self._most_bytes = int(max_schema_bytes)
        before, _, last = settings.address.path.rpartition("/")
        # .../contexts/.eu: Confluent's way to have a context without its name in each subject
        self._own_context = last.strip(":") if before.endswith("/contexts") else ""
        self._conversation = Conversation(settings, timeout_s, request_timeout_s)
        self._lock = threading.Lock()
        self._gone: frozenset[int] = frozenset()
        self.context = ""
        """In which of the registry's contexts ids are asked for; "" is the default one."""
        self._subjects: tuple[str, ...] = ()
        self._schemas: dict[int, RegisteredSchema] = {}
        self._texts: dict[int, str] = {}
        self._contexts: dict[str, SchemaRegistry] = {"": self}

    def in_context(self, subject: str) -> SchemaRegistry:
        """Return this registry, asking for ids in the context that ``subject`` names:
        ``:.eu:orders-value``.

        In each context of a registry an id means a schema of its own (Confluent, *Schema Registry
        API Reference*, ``GET /schemas/ids/{id}?subject=``; Schema Linking makes such contexts). A
        subject without one is in the default context. All of them share one conversation.
        """
        there = self._in_context(subject_context(subject))
        with self._lock:
            if there.context and subject not in there._subjects:
                there._subjects += (subject,)
        return there

    def _in_context(self, context: str) -> SchemaRegistry:
        with self._lock:
            there = self._contexts.get(context)
            if there is None:
                there = object.__new__(SchemaRegistry)
                there.__dict__.update(self.__dict__)
                there.context, there._subjects = context, ()
                there._schemas, there._texts = {}, {}
                self._contexts[context] = there
            return there

    # schemas by their ids

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return the schema of ``schema_id``, which never changes: asked for once.

        :raises SchemaUnknown: there is none. That is not remembered: it may be registered later.
        :raises RegistryReplaced: two answers differ.
        """
        _must_be_id(schema_id)
        with self._lock:
            in_memory = self._schemas.get(schema_id)
        return in_memory if in_memory is not None else self._remember(self._fetch(schema_id))

    def resolved_text(self, schema_id: int) -> str:
        """Return one self-contained Avro schema as JSON text: named types of other subjects are
        defined where they are first used.

        Without references it is the registered text itself.

        :raises UnsupportedSchema: it is no Avro schema, or too large or too deep, or its
            references go in circles, are too many, too deep or too large.
        """
        with self._lock:
            in_memory = self._texts.get(schema_id)
        if in_memory is not None:
            return in_memory
        text = self_contained(self.schema(schema_id), self._referred, self.context)
        with self._lock:
            return self._texts.setdefault(schema_id, text)

    def check_unchanged(self, known: Iterable[int] | Mapping[int, str]) -> None:
        """Ask for these ids again, and compare the schemas.

        An in-memory registry that was started again counts from 1, so that records which were
        written before would be read by other schemas.

        :param known: ids; of those that were never asked for there is nothing to compare with, and
            they are remembered now. Or ids with the ``fingerprint`` that each schema had, in an
            earlier process, say.
        :raises RegistryReplaced: an id has another schema now, or all that were known are gone.
            One that is gone while others are as they were was deleted there for good: what is
            known of it stays.
        """
        replaced: dict[int, RegistryReplaced] = {}
        is_same = False
        for schema_id in known:
            _must_be_id(schema_id)
            fingerprint = known[schema_id] if isinstance(known, Mapping) else None
            # an id that a subject of another context has named was never one of the default
            # context
            with self._lock:
                elsewhere = [
                    one
                    for one in self._contexts.values()
                    if not self.context and schema_id in one._schemas
                ]
            for registry in elsewhere or [self]:
                error = registry._must_be_the_same(schema_id, fingerprint)
                if error is None:
                    is_same = True
                else:
                    replaced[schema_id] = error
        if replaced and not is_same and not self._has_another(replaced):
            raise next(iter(replaced.values()))
        for schema_id in sorted(replaced.keys() - self._gone):
            log.warning("id %d is not in %r any more; what is known of it stays", schema_id, self)
        self._gone = self._gone | replaced.keys()

    def _has_another(self, gone: Collection[int]) -> bool:
        """Return whether one of the newest other ids that are known is still what it was."""
        with self._lock:
            others = sorted(self._schemas.keys() - gone, reverse=True)[:_OTHERS_ASKED]
        return any(self._must_be_the_same(each, None) is None for each in others)

    def _must_be_the_same(
        self, schema_id: int, fingerprint: str | None
    ) -> RegistryReplaced | None:
        """Return the error if it is gone."""
        with self._lock:
            before = self._schemas.get(schema_id)
        try:
            now = self._fetch(schema_id)
        except SchemaUnknown:
            had = fingerprint or (before.fingerprint if before is not None else None)
            if had is None:
                raise
            return self._replaced_error(schema_id, had, None)
        if fingerprint is not None and fingerprint != now.fingerprint:
            raise self._replaced_error(schema_id, fingerprint, now.fingerprint)
        self._remember(now)
        return None

    # subjects

    def subjects(self) -> list[str]:
        """List all subjects, sorted."""
        return self._ask("GET", "/subjects", names_in, "subjects", most_bytes=_LISTING_BYTES)

    def compatibility(self, subject: str) -> str:
        """Return the level by which new versions of ``subject`` are compared: ``NONE``,
        ``BACKWARD`` and the like."""
        return self._ask(
            "GET", f"/config/{_in_path(subject)}?defaultToGlobal=true", compatibility_in,
            f"compatibility of subject {subject!r}", most_bytes=_LISTING_BYTES,
        )  # fmt: skip

    def versions(self, subject: str) -> list[Version]:
        """Return all versions of ``subject``, the oldest first; one request for each of them."""
        numbers = self._ask(
            "GET", f"/subjects/{_in_path(subject)}/versions", numbers_in, f"subject {subject!r}",
            most_bytes=_LISTING_BYTES,
        )  # fmt: skip
        return [self.version(subject, number) for number in numbers]

    def latest(self, subject: str) -> Version:
        """Return the newest version of ``subject`` at this moment."""
        return self._version(subject, None)

    def version(self, subject: str, number: int) -> Version:
        """Return version ``number`` of ``subject``, from 1."""
        _must_be_id(number, "version")
        return self._version(subject, number)

    def lookup(
        self,
        subject: str,
        schema_text: str,
        *,
        schema_type: SchemaType = "AVRO",
        normalize: bool = True,
    ) -> int:
        """Return the id that ``schema_text`` has under ``subject``.

        :param normalize: other spellings of the same schema are the same.
        :raises SchemaUnknown: it is not registered there.
        :raises UnsupportedSchema: it is no schema.
        """
        try:
            return self._find(subject, schema_text, schema_type, normalize=False)
        except SchemaUnknown:
            if not normalize:
                raise
        return self._find(subject, schema_text, schema_type, normalize=True)

    def register(
        self,
        subject: str,
        schema_text: str,
        *,
        schema_type: SchemaType = "AVRO",
        normalize: bool = True,
    ) -> int:
        """Register ``schema_text`` under ``subject``, and return its id. Done twice it is done
        once: the same schema has the same id, so a registration whose answer was lost is asked for
        again.

        :param normalize: as for :meth:`lookup`; of one that is not registered the normalized form
            is.
        :raises UnsupportedSchema: it is no schema, or not compatible with the subject's older
            ones.
        """
        if normalize:
            # Rights to register need not be such to look up
            with contextlib.suppress(SchemaUnknown, RegistryRefused):
                return self._find(subject, schema_text, schema_type, normalize=False)
        path = "/subjects/{}/versions"
        return self._post(path, subject, schema_text, schema_type, normalize, id_in)

    def is_compatible(
        self, subject: str, schema_text: str, *, schema_type: SchemaType = "AVRO"
    ) -> bool:
        """Return whether the newest version of ``subject`` lets ``schema_text`` follow it, by the
        subject's level; any schema may be the first. Nothing is registered.

        :raises UnsupportedSchema: it is no schema.
        """
        path = "/compatibility/subjects/{}/versions/latest"
        try:
            return self._post(path, subject, schema_text, schema_type, False, is_compatible_in)
        except SchemaUnknown:
            return True

    # below

    def _find(
        self, subject: str, schema_text: str, schema_type: SchemaType, *, normalize: bool
    ) -> int:
        """Look a schema up.

        One that was registered as it is need not be found by its normalized form: Confluent's
        lookUpSchemaUnderSubject normalizes what is asked for, and not what is there. And where the
        default context does not have it, the subject of that name in any other context is looked
        in (lookUpSchemaUnderSubjectUsingContexts), whose ids are other schemas here.
        """
        number, found = self._post(
            "/subjects/{}", subject, schema_text, schema_type, normalize,
            lambda answer: (id_in(answer), subject_in(answer, subject)),
        )  # fmt: skip
        if self._effective_context(found) != self._effective_context(subject):
            raise SchemaUnknown(
                f"the schema registry at {self.url} has such a schema under {found!r} alone, "
                f"which is in another context than {subject!r}",
                next_step=f'pass subject="{found}", or register it under {subject}',
                details={"url": self.url, "subject": subject, "found": found},
            )
        return number

    def _effective_context(self, subject: str) -> str:
        return subject_context(subject) or self._own_context

    def _referred(self, subject: str, number: int) -> Version:
        """Return a version that a schema refers to: one that was deleted softly still is there for
        records, as the schema's own id is."""
        _must_be_id(number, "version")
        return self._version(subject, number, "?deleted=true")

    def _version(self, subject: str, number: int | None, query: str = "") -> Version:
        what = f"subject {subject!r}"
        if number is not None:
            what = f"version {number} of {what}"
        found = self._ask(
            "GET", f"/subjects/{_in_path(subject)}/versions/{number or 'latest'}{query}",
            lambda answer: version_in(
                answer, subject, number, self._most_bytes, self._own_context
            ), what, most_bytes=self._answer_bytes,
        )  # fmt: skip
        return Version(
            found.subject,
            found.version,
            self._in_context(subject_context(subject))._remember(found.schema),
        )

    def _post(
        self,
        path: str,
        subject: str,
        text: str,
        schema_type: SchemaType,
        normalize: bool,
        read: Callable[[Any], T],
    ) -> T:
        body = {"schema": text} | ({} if schema_type == "AVRO" else {"schemaType": schema_type})
        where = path.format(_in_path(subject)) + ("?normalize=true" if normalize else "")
        what = f"schema like that under {subject!r}"
        return self._ask("POST", where, read, what, most_bytes=self._answer_bytes, body=body)

    def _fetch(self, schema_id: int) -> RegisteredSchema:
        if not self.context:
            return self._fetch_under(schema_id, "")
        # One by one, as rights may be, then in all of it (Confluent's InMemoryCache.schemaKeyById)
        for subject in self._subjects:
            with contextlib.suppress(SchemaUnknown):
                return self._fetch_under(schema_id, subject)
        try:
            return self._fetch_under(schema_id, f":{self.context}:")
        except RegistryRefused as refused:
            # Any record may bring a foreign id; one that was known is not lost for that
            is_known = schema_id in self._schemas or not self._subjects
            if is_known or refused.details.get("status") != NO_RIGHT:
                raise
            text = f"id {schema_id} is of no subject that was named, and {refused.message}"
            raise SchemaUnknown(text, next_step=refused.next_step) from refused

    def _fetch_under(self, schema_id: int, subject: str) -> RegisteredSchema:
        where = f"?subject={quote(subject, safe='')}" if subject else ""
        return self._ask(
            "GET", f"/schemas/ids/{schema_id}{where}",
            lambda answer: schema_in(answer, schema_id, self._most_bytes),
            f"schema id {schema_id}", most_bytes=self._answer_bytes, details={"id": schema_id},
        )  # fmt: skip

    def _ask(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        what: str,
        *,
        most_bytes: int,
        body: dict[str, Any] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> T:
        try:
            return self._conversation.ask(method, path, read, most_bytes=most_bytes, body=body)
        except NotRegistered as none:
            raise SchemaUnknown(
                f"the schema registry at {self.url} knows no {what}: {none}",
                next_step="register it there, or check that url= leads to the registry whose ids "
                "the topic has",
                details={"url": self.url, "path": path, **(details or {})},
            ) from None

    @property
    def _answer_bytes(self) -> int:
        """Of an answer with one schema: as JSON says it, a quote has two bytes."""
        return 2 * self._most_bytes + _ENVELOPE_BYTES

    def _remember(self, now: RegisteredSchema) -> RegisteredSchema:
        with self._lock:
            before = self._schemas.setdefault(now.id, now)
        if before != now and before.fingerprint != now.fingerprint:
            raise self._replaced_error(now.id, before.fingerprint, now.fingerprint)
        return before

    def _replaced_error(self, schema_id: int, before: str, now: str | None) -> RegistryReplaced:
        has = f"has another schema now ({now})" if now else "is not known there any more"
        return RegistryReplaced(
            f"the schema registry at {self.url} is not the one that it was: id {schema_id}, whose "
            f"schema was {before}, {has}",
            next_step="give it its schemas back under their ids (from a backup, in import mode), "
            "or begin with another topic: records under that id would be read as something else",
            details={"url": self.url, "id": schema_id, "before": before, "now": now},
        )

    def __repr__(self) -> str:
        context = f", context {self.context}" if self.context else ""
        return f"SchemaRegistry({self.url!r}{context})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SchemaRegistry stays in the driver: it has the login; executors are told schemas "
            "instead"
        )


def _must_be_id(number: Any, what: str = "id") -> None:
    if type(number) is not int or not 0 < number <= LARGEST_ID:
        raise SchemaUnknown(
            f"{number!r} is no {what} of a schema registry",
            next_step=f"ids and versions are whole numbers from 1 to {LARGEST_ID:,}",
            details={what: number if type(number) is int else str(number)},
        )


def must_be_subject(subject: Any) -> None:
    """Raise ConfigurationError where ``subject`` is none that a registry can have."""
    if (
        # In a path . and .. would be taken for steps
        not isinstance(subject, str)
        or subject in ("", ".", "..")
        or len(subject) > _SUBJECT_CHARACTERS
    ):
        raise ConfigurationError(
            f"{subject!r:.200} is no subject",
            next_step="pass its name, such as orders-value for the topic orders",
        )


def _in_path(subject: Any) -> str:
    must_be_subject(subject)
    return quote(subject, safe="")
