"""What a registry says, as values: checked before anybody believes it. JSON values in, our values
out, no I/O.

Called by :mod:`client`, in the driver. The answers are those of Confluent's API (*Schema Registry
API Reference*), which Apicurio, Karapace and Redpanda speak as well. Fields that are not named
here are passed over. Rules of *Data Contracts* alone (``ruleSet``) change what a record holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

from onceward.errors import ConfigurationError
from onceward.formats.registry.http import BeyondLimits, NotFit, parse_json

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]

WRITING, READING = frozenset({"WRITE", "WRITEREAD"}), frozenset({"READ", "WRITEREAD"})
UPWARD, DOWNWARD = frozenset({"UPGRADE", "UPDOWN"}), frozenset({"DOWNGRADE", "UPDOWN"})
MIGRATING = UPWARD | DOWNWARD
"""Modes of rules: carried out when a record is written, when it is read, and when it is read as
another version of the subject."""

LARGEST_ID = 2**31 - 1
"""Ids are Java's ``int``, four bytes in front of each record."""

_TYPE = re.compile(r"\w{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class SchemaReference:
    """A schema that another one uses: the named type ``name``, as it is in version ``version`` of
    ``subject``.
    """

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaRule:
    """What Confluent's serializers carry out beside a schema, as encryption of fields."""

    name: str
    type: str
    mode: str
    changes: bool = True
    """It may give a record other values; a condition does not."""

    def applies_in(self, modes: frozenset[str]) -> bool:
        """Return whether it is of one of ``modes``, or of one that is not known here."""
        if self.mode not in WRITING | READING | MIGRATING:
            return True
        return self.mode in modes and (self.changes or modes != READING)

    def __str__(self) -> str:
        return f"{self.name} ({self.type}, {self.mode})"


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry has it; never another one under the same id of the same
    registry.
    """

    id: int
    schema_type: str
    """A :data:`SchemaType`, or another that the registry has."""
    text: str
    references: tuple[SchemaReference, ...] = ()
    rules: tuple[SchemaRule, ...] = ()
    """Those that are enabled."""
    unfit: str = ""
    """Why it is not read here: it is beyond our limits."""

    def rule_in(self, modes: frozenset[str]) -> SchemaRule | None:
        """Return the first rule of one of ``modes``."""
        return next((rule for rule in self.rules if rule.applies_in(modes)), None)

    @property
    def fingerprint(self) -> str:
        """Of type, text and references: 16 hex digits. Spaces, and the order of a JSON object's
        names, do not count. Nor do rules, which older fingerprints do not have, and limits, which
        may change.
        """
        text = self.text
        with contextlib.suppress(NotFit):
            text = json.dumps(parse_json(text), sort_keys=True, separators=(",", ":"))
        references = sorted([r.name, r.subject, r.version] for r in self.references)
        answer = json.dumps([self.schema_type, text, references])
        return hashlib.sha256(answer.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Version:
    """A schema under the number that it has in a subject, from 1."""

    subject: str
    version: int
    schema: RegisteredSchema

    @property
    def id(self) -> int:
        """The schema's."""
        return self.schema.id

    @property
    def text(self) -> str:
        """The schema's."""
        return self.schema.text


def schema_in(answer: Any, schema_id: int, most_bytes: int) -> RegisteredSchema:
    """Read ``GET /schemas/ids/{id}``."""
    answer = _object(answer)
    # Confluent's newer lines repeat it
    if answer.get("id", schema_id) != schema_id:
        raise NotFit(f"the schema of another id, {answer['id']!r}")
    return _schema(answer, schema_id, most_bytes)


def version_in(
    answer: Any, subject: str, version: int | None, most_bytes: int, context: str = ""
) -> Version:
    """Read ``GET /subjects/{subject}/versions/{version}``.

    :param version: None: the latest.
    :param context: to which the address itself leads; there subjects may be called by it, too.
    :raises ConfigurationError: the answer is of another subject: that of an alias, or one in
        another context, where ids mean other schemas.
    """
    answer = _object(answer)
    found = answer.get("subject")
    if found not in (subject, f":{context}:{subject}" if context else subject):
        if found and _is_text(found):
            name = found.removeprefix(f":{context}:") if context else found
            raise ConfigurationError(
                f"subject {subject} is an alias in the schema registry, or in a context of it: "
                f"its schemas are those of {found}",
                next_step=f'pass subject="{name}", under which they and their ids are asked for',
                details={"subject": subject, "found": found},
            )
        raise NotFit(f"a schema of another subject, {found!r}")
    number = _whole(answer, "version")
    if version not in (None, number):
        raise NotFit(f"version {number} where {version} was asked for")
    return Version(subject, number, _schema(answer, _whole(answer, "id"), most_bytes))


def id_in(answer: Any) -> int:
    """Read the id of a registration or a look-up.

    :raises NotFit: there is none.
    """
    return _whole(_object(answer), "id")


def subject_in(answer: Any, default: str) -> str:
    """Read whose version a look-up has found; ``default``: of a registry that does not say.

    :raises NotFit: it is no text.
    """
    found = _object(answer).get("subject", default)
    if not _is_text(found):
        raise NotFit(f"a schema of another subject, {found!r}")
    return found


def numbers_in(answer: Any) -> list[int]:
    """Read ``GET /subjects/{subject}/versions``, sorted."""
    if not isinstance(answer, list) or not all(
        type(number) is int and 0 < number <= LARGEST_ID for number in answer
    ):
        raise NotFit("no list of versions")
    if len(set(answer)) < len(answer):
        raise NotFit("a list with one version twice")
    return sorted(answer)


def compatibility_in(answer: Any) -> str:
    """Read ``GET /config/{subject}``."""
    level = _object(answer).get("compatibilityLevel")
    if not isinstance(level, str):
        raise NotFit("no compatibilityLevel")
    return level


def is_compatible_in(answer: Any) -> bool:
    """Read ``POST /compatibility/subjects/{subject}/versions/latest``."""
    found = _object(answer).get("is_compatible")
    if not isinstance(found, bool):
        raise NotFit("no is_compatible")
    return found


def names_in(answer: Any) -> list[str]:
    """Read ``GET /subjects``, sorted."""
    if not isinstance(answer, list) or not all(_is_text(name) for name in answer):
        raise NotFit("no list of subjects")
    return sorted(set(answer))


def subject_context(subject: str) -> str:
    """Return the context that a subject names, ``.eu`` of ``:.eu:orders-value``; "" is the default
    one (Confluent, *Schema Contexts*)."""
    if not isinstance(subject, str) or not subject.startswith(":."):
        return ""
    context, colon, _ = subject[1:].partition(":")
    return context if colon and context != "." else ""


def topic_subject(topic: str, side: Literal["key", "value"]) -> str:
    """Return the subject of Confluent's ``TopicNameStrategy``: ``orders-key`` or
    ``orders-value``.
    """
    return f"{topic}-{side}"


def _schema(answer: dict[str, Any], schema_id: int, most_bytes: int) -> RegisteredSchema:
    text = answer.get("schema")
    if not text or not _is_text(text):
        raise NotFit("an answer without the text of a schema")
    # left out for Avro
    kind = answer.get("schemaType") or "AVRO"
    if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
        raise NotFit(f"a schema of type {kind!r}")
    size, unfit = len(text.encode()), ""
    if size > most_bytes:
        unfit = f"of {size:,} bytes, above the limit of {most_bytes:,}"
    if kind in ("AVRO", "JSON"):
        try:
            parse_json(text)
        except BeyondLimits as limit:
            unfit = unfit or str(limit)
        except NotFit as wrong:
            raise NotFit(f"a schema whose text is {wrong}") from None
    references = _references(answer.get("references") or [])
    rules = _rules(answer.get("ruleSet") or {})
    return RegisteredSchema(schema_id, kind, text, references, rules, unfit)


def _references(answer: Any) -> tuple[SchemaReference, ...]:
    if not isinstance(answer, list):
        raise NotFit("references that are no list")
    found = []
    for one in map(_object, answer):
        name, subject = one.get("name"), one.get("subject")
        if not (_is_text(name) and _is_text(subject) and subject):
            raise NotFit("a reference without a name or a subject")
        found.append(SchemaReference(name, subject, _whole(one, "version")))
    return tuple(found)


def _rules(answer: Any) -> tuple[SchemaRule, ...]:
    """Read the rules of all kinds: of the domain, of migrations, of encodings."""
    lists = [one for one in _object(answer).values() if isinstance(one, list)]
    found = []
    for one in (_object(rule) for rules in lists for rule in rules):
        name, kind, mode = (one.get(key) for key in ("name", "type", "mode"))
        if one.get("disabled") is True or mode is None:
            # Of no mode, no serializer carries it out
            continue
        changes = one.get("kind") != "CONDITION"
        found.append(SchemaRule(str(name), str(kind), str(mode), changes))
    return tuple(found)


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise NotFit(f"no JSON object but {answer!r}")
    return answer


def _whole(answer: dict[str, Any], name: str) -> int:
    number = answer.get(name)
    if type(number) is not int or not 0 < number <= LARGEST_ID:
        raise NotFit(f"no {name} from 1 to {LARGEST_ID:,} but {number!r}")
    return number


def _is_text(value: Any) -> TypeGuard[str]:
    """Return whether it is a text, and Unicode: JSON can say half of a surrogate pair, which no
    JVM takes."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
