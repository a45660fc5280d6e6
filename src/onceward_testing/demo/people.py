"""The demo's input, and the model of what must come out of it. Pure, and the same for the same
seed.

A person is registered with an id, a name and an ``identifyNumber``. Nine of ten numbers have the
18 characters that the job keeps; the others are of the old kind with 15, mistyped, empty or
missing. Now and then a registration comes twice in the same instant, and now and then a person is
deleted, which is a tombstone.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

VALID_LENGTH = 18

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
    """One record of the input topic. ``document``: its fields, None for a tombstone.
    ``repeats_previous``: it must get the event time of the record before it. ``poison``: what is
    wrong with its bytes, if they are spoilt.
    """

    key: bytes
    document: dict[str, Any] | None
    number: str | None
    repeats_previous: bool = False
    poison: str = ""

    @property
    def valid(self) -> bool:
        """True when the job must write the number."""
        return self.number is not None and len(self.number) == VALID_LENGTH


def people(records: int, seed: int) -> Iterator[Person]:
    """``records`` records. Numbers are unique but for repeated registrations."""
    rng = random.Random(seed)  # noqa: S311  names, not secrets
    previous: Person | None = None
    for identity in range(1, records + 1):
        draw = rng.randrange(1_000)
        kind = _SPECIAL[draw] if draw < len(_SPECIAL) else "usual"
        if kind == "repeated" and previous is not None and previous.document is not None:
            yield Person(previous.key, previous.document, previous.number, repeats_previous=True)
            continue
        previous = (
            _tombstone(identity)
            if kind == "deleted"
            else _registration(identity, _number(kind, identity, rng), rng)
        )
        yield previous


def expected_numbers(sent: Iterable[Person]) -> set[str]:
    """What the output topic must hold, each exactly once: the distinct numbers of 18
    characters.
    """
    return {person.number for person in sent if person.number is not None and person.valid}


def _registration(identity: int, number: str | None, rng: random.Random) -> Person:
    name = f"{rng.choice(_GIVEN)} {rng.choice(_FAMILY)}"
    document = {"id": identity, "name": name} | (
        {} if number is None else {"identifyNumber": number}
    )
    return Person(_key(identity), document, number)


def _tombstone(identity: int) -> Person:
    return Person(_key(identity), None, None)


def _key(identity: int) -> bytes:
    return str(identity).encode()


def _number(kind: str, identity: int, rng: random.Random) -> str | None:
    """Region, birth date and a running number that makes it unique; the last character may be an
    X.
    """
    if kind == "missing":
        return None
    number = f"{rng.randrange(11, 66)}{rng.randrange(1930, 2020)}{identity:011d}{rng.choice('0123456789X')}"
    if kind == "wrong":
        return (number * 2)[: rng.choice(_WRONG_LENGTHS)]
    return number
