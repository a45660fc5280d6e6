"""Records of the demo's input topic, and the model of what must come out. Pure, and the same for
the same seed.

A person is registered with an id, a name and an ``identifyNumber``. Nine of ten numbers have the
18 characters that the job keeps; the others are of the old kind with 15, mistyped, empty or
missing. Now and then a registration comes twice in the same instant, and now and then a person is
deleted, which is a tombstone. Values are JSON, or Avro as a schema registry's users write it, by
fastavro (the job reads with another library), some of them invalid.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onceward_testing.demo.settings import INPUT_TOPIC

if TYPE_CHECKING:
    from onceward.formats.registry.client import SchemaRegistry

VALID_LENGTH = 18
SUBJECT = f"{INPUT_TOPIC}-value"
"""Subject of ``TopicNameStrategy``."""

_GIVEN = (
    "Ada",
    "Bo",
    "Chen",
    "Dilnoza",
    "Émile",
    "Fatima",
    "Grace",
    "Hiroshi",
    "Ingrid",
    "João",
    "Kwame",
    "李娜",
)
_FAMILY = (
    "Achebe",
    "Berg",
    "Castillo",
    "Dąbrowska",
    "Eze",
    "Fischer",
    "Gupta",
    "Haddad",
    "Ito",
    "王",
    "O’Neill",
)
_WRONG_LENGTHS = (0, 9, 15, 15, 15, 17, 19, 36)
_SPECIAL_PER_THOUSAND = {"deleted": 10, "repeated": 20, "missing": 10, "wrong": 70}
_SPECIAL = [kind for kind, share in _SPECIAL_PER_THOUSAND.items() for _ in range(share)]


@dataclass(frozen=True, slots=True)
class Person:
    """A record of the input. ``document``: its fields, None for a tombstone. ``repeats_previous``:
    it must get the event time of the record before it. ``defect``: what is wrong with its bytes,
    if it is an invalid record."""

    key: bytes
    document: dict[str, Any] | None
    number: str | None
    repeats_previous: bool = False
    defect: str = ""

    @property
    def valid(self) -> bool:
        """Return whether the job must write the number."""
        return self.number is not None and len(self.number) == VALID_LENGTH


def people(records: int, seed: int) -> Iterator[Person]:
    """Yield ``records`` records. Numbers are unique but for repeated registrations."""
    rng = random.Random(seed)  # noqa: S311  names, not secrets
    previous: Person | None = None
    for identity in range(1, records + 1):
        draw = rng.randrange(1_000)
        kind = _SPECIAL[draw] if draw < len(_SPECIAL) else "usual"
        if kind == "repeated" and previous is not None and previous.document is not None:
            yield replace(previous, repeats_previous=True)
            continue
        previous = _person(kind, identity, rng)
        yield previous


def expected_numbers(everybody: Iterable[Person]) -> set[str]:
    """Return what the output must hold, each exactly once: the distinct numbers of 18
    characters."""
    return {person.number for person in everybody if person.number is not None and person.valid}


def _person(kind: str, identity: int, rng: random.Random) -> Person:
    key = str(identity).encode()
    if kind == "deleted":
        return Person(key, None, None)
    number = _number(kind, identity, rng)
    document = {"id": identity, "name": f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}"}
    return Person(
        key, document if number is None else document | {"identifyNumber": number}, number
    )


def _number(kind: str, identity: int, rng: random.Random) -> str | None:
    """Make a number of region, birth date and a running number that makes it unique; the last
    character may be an X."""
    if kind == "missing":
        return None
    region, year = rng.randrange(11, 66), rng.randrange(1930, 2020)
    number = f"{region}{year}{identity:011d}{rng.choice('0123456789X')}"
    return (number * 2)[: rng.choice(_WRONG_LENGTHS)] if kind == "wrong" else number


# ── values ──

_SCHEMA: dict[str, Any] = {
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
SCHEMAS = (json.dumps(_SCHEMA), json.dumps({**_SCHEMA, "fields": [_EMAIL, *_SCHEMA["fields"]]}))
"""The older and the newer.

The new field comes first: by the older schema a newer record reads as something else.
"""

_UNKNOWN_ID = 2_000_000_000
_NAME_TO_SPOIL = "a name to be spoilt"
_SPOIL: dict[str, Callable[[bytes], bytes]] = {
    "no framing": lambda framed: b"{" + framed[1:],
    "too short": lambda framed: framed[:4],
    "truncated": lambda framed: framed[:-1],
    "over-long": lambda framed: framed + b"\x00",
    "unknown id": lambda framed: framed[:1] + _UNKNOWN_ID.to_bytes(4, "big") + framed[5:],
    "not UTF-8": lambda framed: framed.replace(
        _NAME_TO_SPOIL.encode(), b"\xff" * len(_NAME_TO_SPOIL)
    ),
}
DEFECTS = tuple(_SPOIL)
"""Names of all that can be wrong with a record."""

Encode = Callable[[Person], "bytes | None"]
"""Returns a record's value, None for a tombstone; called in the order in which records are
written."""


def to_json(person: Person) -> bytes | None:
    """Return a JSON object; a number that is missing has no field."""
    return (
        None
        if person.document is None
        else json.dumps(person.document, ensure_ascii=False).encode()
    )


def avro_encoder(registry: SchemaRegistry, evolves_at: int) -> Encode:
    """Return an encoder to framed Avro.

    The registry learns the newer schema when the first record of it is written, and not before, so
    that the job meets an id that it has never seen.

    :param evolves_at: so many records are written by the older schema, tombstones counted; the
        others by the newer.
    """
    import fastavro

    schemas = [fastavro.parse_schema(json.loads(text)) for text in SCHEMAS]
    ids = [registry.register(SUBJECT, SCHEMAS[0])]
    written = 0

    def encode(person: Person) -> bytes | None:
        nonlocal written
        version = int(written >= evolves_at)
        written += 1
        if person.document is None:
            return None
        if version == len(ids):
            ids.append(registry.register(SUBJECT, SCHEMAS[version]))
        document: dict[str, Any] = {"identifyNumber": None, **person.document}
        if version:
            document["email"] = f"{document['id']}@example.org"
        if person.defect == "not UTF-8":
            document["name"] = _NAME_TO_SPOIL
        body = io.BytesIO()
        fastavro.schemaless_writer(body, schemas[version], document)
        framed = b"\x00" + ids[version].to_bytes(4, "big") + body.getvalue()
        return _SPOIL[person.defect](framed) if person.defect else framed

    return encode


def with_defects(
    everybody: list[Person], per_thousand: int, draw: Callable[[], float]
) -> list[Person]:
    """Return ``everybody``, some of them invalid: not tombstones, nor what the next record
    repeats.

    :param draw: returns numbers from 0 up to 1.
    """
    result = []
    for person, following in zip(everybody, [*everybody[1:], None], strict=True):
        usual = person.document is not None and not person.repeats_previous
        if (
            usual
            and not (following and following.repeats_previous)
            and draw() * 1_000 < per_thousand
        ):
            result.append(replace(person, number=None, defect=DEFECTS[int(draw() * len(DEFECTS))]))
        else:
            result.append(person)
    return result
