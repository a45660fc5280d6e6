"""How the demo's people become bytes: JSON, or Avro as a schema registry's users write it, a part
of it broken.

Called by :mod:`onceward_testing.demo.input_stream` as the records are written; the Avro is
fastavro's, another one than the job reads with. The registry learns the newer schema when the
first record of it is written, and not before, so that the job meets an id that it has never seen.
"""

from __future__ import annotations

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from onceward_testing.demo.people import Person
from onceward_testing.demo.settings import INPUT_TOPIC

if TYPE_CHECKING:
    from onceward.formats.registry.client import SchemaRegistry

SUBJECT = f"{INPUT_TOPIC}-value"
"""As ``TopicNameStrategy`` names it."""

_PERSON: dict[str, Any] = {
    "type": "record",
    "name": "Person",
    "namespace": "onceward_testing.demo",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": "string"},
        {"name": "identifyNumber", "type": ["null", "string"], "default": None},
    ],
}
_EMAIL = {"name": "email", "type": ["null", "string"], "default": None}
SCHEMAS = (json.dumps(_PERSON), json.dumps({**_PERSON, "fields": [_EMAIL, *_PERSON["fields"]]}))
"""The older and the newer. The new field comes first: by the older schema a newer record reads as
something else.
"""

_NOBODYS_ID = 2_000_000_000


class Encoding(ABC):
    """One person after the other, in the order in which they are written."""

    @abstractmethod
    def value(self, person: Person) -> bytes | None:
        """The record's value; None: a tombstone."""


class AsJson(Encoding):
    """A JSON object; a number that is missing has no field."""

    def value(self, person: Person) -> bytes | None:
        return (
            None
            if person.document is None
            else json.dumps(person.document, ensure_ascii=False).encode()
        )


class AsAvro(Encoding):
    """Framed Avro.

    :param evolves_at: so many records are written by the older schema, tombstones counted; the
        others by the newer.
    """

    def __init__(self, registry: SchemaRegistry, evolves_at: int) -> None:
        import fastavro

        self._write = fastavro.schemaless_writer
        self._registry = registry
        self._schemas = [fastavro.parse_schema(json.loads(text)) for text in SCHEMAS]
        self._ids = [registry.register(SUBJECT, SCHEMAS[0])]
        self._evolves_at = evolves_at
        self._written = 0

    def value(self, person: Person) -> bytes | None:
        version = int(self._written >= self._evolves_at)
        self._written += 1
        if person.document is None:
            return None
        if version == len(self._ids):
            self._ids.append(self._registry.register(SUBJECT, SCHEMAS[version]))
        document: dict[str, Any] = {"identifyNumber": None, **person.document}
        if version:
            document["email"] = f"{document['id']}@example.org"
        if person.poison == "not UTF-8":
            document["name"] = _SPOILT
        body = io.BytesIO()
        self._write(body, self._schemas[version], document)
        framed = b"\x00" + self._ids[version].to_bytes(4, "big") + body.getvalue()
        return _BREAK[person.poison](framed) if person.poison else framed


_SPOILT = "a name to be spoilt"

_BREAK: dict[str, Callable[[bytes], bytes]] = {
    "no framing": lambda framed: b"{" + framed[1:],
    "too short": lambda framed: framed[:4],
    "truncated": lambda framed: framed[:-1],
    "over-long": lambda framed: framed + b"\x00",
    "unknown id": lambda framed: framed[:1] + _NOBODYS_ID.to_bytes(4, "big") + framed[5:],
    "not UTF-8": lambda framed: framed.replace(_SPOILT.encode(), b"\xff" * len(_SPOILT)),
}
POISON = tuple(_BREAK)
"""What can be wrong with a record, by name."""


def poisoned(
    everybody: list[Person], per_thousand: int, draw: Callable[[], float]
) -> list[Person]:
    """``everybody``, some of them spoilt: not tombstones, nor what the next record repeats.

    :param draw: numbers from 0 up to 1.
    """
    spoilt = []
    for person, following in zip(everybody, [*everybody[1:], None], strict=True):
        usual = person.document is not None and not person.repeats_previous
        if (
            usual
            and not (following and following.repeats_previous)
            and draw() * 1_000 < per_thousand
        ):
            spoilt.append(replace(person, number=None, poison=POISON[int(draw() * len(POISON))]))
        else:
            spoilt.append(person)
    return spoilt
