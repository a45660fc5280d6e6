"""Letters and counts as text for a terminal. Pure.

Keys, values, headers and error messages come from outside. What a terminal would obey (control
characters, marks that turn the direction of writing) is escaped, and so is the backslash, so that
nothing else looks like an escape.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone
from typing import Any

from onceward.kafka.dead_letters.counting import Counts, sorted_groups
from onceward.kafka.dead_letters.letter import Letter

_LONGEST_CELL = 60


def printable(text: str) -> str:
    """Return ``text`` in one line, with nothing in it that a terminal would obey."""
    return "".join(_escaped(character) for character in text)


def _escaped(character: str) -> str:
    if character == "\\":
        return "\\\\"
    return (
        character
        if character.isprintable()
        else character.encode("unicode_escape", "surrogatepass").decode()
    )


def shown(data: bytes | None, most_bytes: int) -> str:
    """Return the first bytes of a key, value or header: as text where they are UTF-8, else hex."""
    if data is None:
        return "null"
    cut = data[:most_bytes]
    more = f" … ({len(data)} bytes)" if len(data) > most_bytes else ""
    text = _as_text(cut, whole=len(cut) == len(data))
    return f"hex {cut.hex()}{more}" if text is None else f'"{printable(text)}"{more}'


def _as_text(cut: bytes, *, whole: bool) -> str | None:
    """Decode bytes, or return None; of those that were cut the last character may be in pieces."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(cut, final=whole)
    except UnicodeDecodeError:
        return None


def when(timestamp_ms: int | None) -> str:
    """Format a time as ISO 8601 in UTC; a number of ms that is no date is given as it is."""
    if timestamp_ms is None:
        return "unknown"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def block(letter: Letter, *, replayed: bool, most_bytes: int) -> str:
    """Return one letter, over several lines."""
    lines = [
        f"{letter.place}   written {when(letter.written_at_ms)}{'   replayed' if replayed else ''}"
    ]
    if letter.error_class is None:
        lines.append("  no dead letter: it has no header onceward.error.class")
    else:
        source = (
            "a source that it does not name"
            if letter.source is None
            else f"{letter.source}@{letter.source_offset}"
        )
        lines += [
            f"  why       {printable(letter.error_class)}: {printable(letter.error_message)}",
            f"  from      {source}, of {when(letter.source_timestamp_ms)}",
            f"  pipeline  {printable(letter.pipeline)}",
        ]
    if letter.replayed:
        lines.append(f"  fed back  {letter.replayed} times before it was set aside again")
    lines += [
        f"  header    {printable(name)} = {shown(value, most_bytes)}"
        for name, value in letter.headers
    ]
    lines += [
        f"  key       {shown(letter.key, most_bytes)}",
        f"  value     {shown(letter.value, most_bytes)}",
    ]
    return "\n".join(lines)


def as_json(letter: Letter, *, replayed: bool, most_bytes: int) -> dict[str, Any]:
    """Return a letter as JSON values: bytes as ``{"text"}`` or ``{"hex"}``, and how many."""
    return {
        "topic": letter.where.topic,
        "partition": letter.where.partition,
        "offset": letter.offset,
        "written_at_ms": letter.written_at_ms,
        "replayed": replayed,
        "error_class": letter.error_class,
        "error_message": letter.error_message,
        "pipeline": letter.pipeline,
        "source_topic": letter.source.topic if letter.source else None,
        "source_partition": letter.source.partition if letter.source else None,
        "source_offset": letter.source_offset,
        "source_timestamp_ms": letter.source_timestamp_ms,
        "fed_back_before": letter.replayed,
        "headers": [
            {"key": name, "value": _data(value, most_bytes)} for name, value in letter.headers
        ],
        "key": _data(letter.key, most_bytes),
        "value": _data(letter.value, most_bytes),
    }


def _data(data: bytes | None, most_bytes: int) -> dict[str, Any] | None:
    if data is None:
        return None
    cut = data[:most_bytes]
    text = _as_text(cut, whole=len(cut) == len(data))
    return {**({"hex": cut.hex()} if text is None else {"text": text}), "bytes": len(data)}


def table(counts: Counts) -> str:
    """Return the text that ``list`` prints."""
    letters, others = counts.letters, counts.others
    lines = [
        f"{counts.topic}: {letters.records} dead letters, of which {letters.replayed} are replayed"
    ]
    if letters.came_back:
        lines.append(
            f"{letters.came_back} of them had been fed back before, and were set aside again"
        )
    if others.records:
        lines.append(
            f"{others.records} records are no dead letters, of which {others.replayed} are "
            "replayed"
        )
    if counts.gone:
        begins = ", ".join(
            f"{partition}: {offset}" for partition, offset in sorted(counts.gone.items())
        )
        lines.append(
            f"what retention has removed is not counted; by partition the log begins at {begins}"
        )
    if letters.records:
        lines += ["", *_columns(_rows(counts))]
    return "\n".join(lines)


def _rows(counts: Counts) -> Iterator[tuple[str, ...]]:
    yield "PIPELINE", "CLASS", "SOURCE", "LETTERS", "REPLAYED", "CAME BACK", "FIRST", "LAST"
    for name, group in sorted_groups(counts):
        if name.error_class is not None:
            yield (
                _cell(name.pipeline),
                _cell(name.error_class),
                "-" if name.source is None else str(name.source),
                *(str(number) for number in (group.records, group.replayed, group.came_back)),
                *(when(moment) for moment in (group.first_ms, group.last_ms)),
            )


def _cell(text: str) -> str:
    cell = printable(text) or "-"
    return cell if len(cell) <= _LONGEST_CELL else f"{cell[:_LONGEST_CELL]}…"


def _columns(rows: Iterable[tuple[str, ...]]) -> list[str]:
    every = list(rows)
    widths = [max(len(row[column]) for row in every) for column in range(len(every[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in every
    ]
