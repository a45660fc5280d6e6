"""Which input record does an output record name? Read off its headers, or off fields of its JSON
value. Pure.

The headers that ``KafkaSink(lineage=True)`` adds are the default; options name others. Called by
``conserves``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from onceward_verify.findings import WrongUsage

_PARTS = ("topic", "partition", "offset")


class Named(NamedTuple):
    """One record of a source. ``topic`` is None where the output leaves it out, since there is one
    source topic.
    """

    topic: str | None
    partition: int
    offset: int


@dataclass(frozen=True)
class Lineage:
    """Where the three parts of the name stand: header names, or paths of fields (``meta.offset``).

    ``topic`` is None when the output does not say it, because the pipeline reads one topic only.
    """

    kind: Literal["headers", "json"] = "headers"
    topic: str | None = "onceward.topic"
    partition: str = "onceward.partition"
    offset: str = "onceward.offset"

    def of(self, message: Any) -> Named | None:
        """What ``message`` names; None if it names nothing, or nothing that could be a record's
        place.
        """
        found = _last_headers(message) if self.kind == "headers" else _Fields(message.value())
        topic = None if self.topic is None else _text(found.get(self.topic))
        partition, offset = _whole(found.get(self.partition)), _whole(found.get(self.offset))
        if partition is None or offset is None or (topic is None and self.topic is not None):
            return None
        return Named(topic, partition, offset)

    def __str__(self) -> str:
        names = ", ".join(name for name in (self.topic, self.partition, self.offset) if name)
        return f"{'headers' if self.kind == 'headers' else 'JSON fields'} {names}"


def lineage_of(kind: Literal["headers", "json"], text: str) -> Lineage:
    """``topic=NAME,partition=NAME,offset=NAME`` as an option has it; ``topic`` may be left out.

    :raises WrongUsage: a part is missing, unknown or given twice.
    """
    names: dict[str, str] = {}
    for pair in text.split(","):
        part, _, name = (piece.strip() for piece in pair.partition("="))
        if part not in _PARTS or not name or part in names:
            raise WrongUsage(
                f"--lineage-{kind} {text}: {pair.strip()!r} {_WANTED}",
                next_step=_NEXT.format(kind=kind),
            )
        names[part] = name
    if not {"partition", "offset"} <= names.keys():
        raise WrongUsage(
            f"--lineage-{kind} {text} lacks partition= or offset=",
            next_step=_NEXT.format(kind=kind),
        )
    return Lineage(kind, names.get("topic"), names["partition"], names["offset"])


_WANTED = "is not topic=…, partition=… or offset=…, each once"
_NEXT = "write --lineage-{kind} topic=NAME,partition=NAME,offset=NAME"


def _last_headers(message: Any) -> Mapping[str, bytes | None]:
    """Of headers of one name the last counts: who adds to a record's headers adds at the end."""
    return dict(message.headers() or ())


class _Fields:
    """Fields of a JSON object by path. A field whose own name has dots is found, too."""

    def __init__(self, value: bytes | None) -> None:
        try:
            self._root: Any = json.loads(value or b"null")
        except ValueError:  # not JSON, or not UTF-8
            self._root = None

    def get(self, path: str) -> Any:
        if isinstance(self._root, dict) and path in self._root:
            return self._root[path]
        found = self._root
        for name in path.split("."):
            found = found.get(name) if isinstance(found, dict) else None
        return found


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    """A number that is not negative and fits 64 bits, or its decimal digits."""
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        text = _text(value)
        if text is None or not (text.isascii() and text.isdecimal()) or len(text) > 19:
            return None
        number = int(text)
    return number if 0 <= number < 2**63 else None
