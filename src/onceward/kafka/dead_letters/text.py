"""Letters and counts as text for a terminal. Pure. Keys, values, headers and error messages come
from outside. What a terminal would obey (control characters, marks that turn the direction of
writing) is escaped, and so is the backslash, so that nothing else looks like an escape. A
dead-letter topic is counted for ``list``: by pipeline, kind of error and source partition."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, NamedTuple

from onceward.ids import TopicPartition
from onceward.kafka.dead_letters.topic import DeadLetterTopic, Letter
from onceward.kafka.wire.client import KafkaClient

MOST_GROUPS = 10_000
"""What is counted by itself; the rest is one group. Headers are others' text: they must not fill
our memory."""


class GroupName(NamedTuple):
    """``error_class`` None: no dead letters. ``source`` None: none named, or no partition."""

    pipeline: str
    error_class: str | None
    source: TopicPartition | None


REST = GroupName("(others)", "(others)", None)
NO_LETTERS = GroupName("", None, None)


@dataclass
class Group:
    """``came_back``: had been fed back before. Times of writing, in ms since 1970."""

    records: int = 0
    replayed: int = 0
    came_back: int = 0
    first_ms: int = 0
    last_ms: int = 0

    def add(self, letter: Letter, *, replayed: bool) -> None:
        at_ms = letter.written_at_ms
        self.join(Group(1, int(replayed), int(letter.replayed > 0), at_ms, at_ms))

    def join(self, other: Group) -> None:
        if other.records:
            self.first_ms = min(self.first_ms, other.first_ms) if self.records else other.first_ms
            self.last_ms = max(self.last_ms, other.last_ms)
            self.records += other.records
            self.replayed += other.replayed
            self.came_back += other.came_back


@dataclass
class Counts:
    """All that ``list`` says. ``gone``: partitions whose log begins later than at 0, and where:
    what was there before has been removed by retention, replayed or not."""

    topic: str
    groups: dict[GroupName, Group] = field(default_factory=dict)
    gone: dict[int, int] = field(default_factory=dict)
    fed_back_ever: int = 0

    @property
    def letters(self) -> Group:
        """Return all that are dead letters."""
        total = Group()
        for name, group in self.groups.items():
            if name != NO_LETTERS:
                total.join(group)
        return total

    @property
    def others(self) -> Group:
        """Return the records that are none."""
        return self.groups.get(NO_LETTERS, Group())

    def add(self, letter: Letter, *, replayed: bool) -> None:
        name = NO_LETTERS
        if letter.error_class is not None:
            name = GroupName(letter.pipeline, letter.error_class, letter.source)
            if name not in self.groups and len(self.groups) >= MOST_GROUPS:
                name = REST
        self.groups.setdefault(name, Group()).add(letter, replayed=replayed)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "topic": self.topic,
            "letters": _numbers(self.letters),
            "other_records": _numbers(self.others),
            "fed_back_ever": self.fed_back_ever,
            "log_begins_at": {str(partition): offset for partition, offset in self.gone.items()},
            "groups": [
                {
                    "pipeline": name.pipeline,
                    "error_class": name.error_class,
                    "source_topic": name.source.topic if name.source else None,
                    "source_partition": name.source.partition if name.source else None,
                    **_numbers(group),
                }
                for name, group in sorted_groups(self)
                if name.error_class is not None
            ],
        }


def _numbers(group: Group) -> dict[str, Any]:
    times = {"first_ms": group.first_ms, "last_ms": group.last_ms} if group.records else {}
    return {
        "records": group.records,
        "replayed": group.replayed,
        "came_back": group.came_back,
        **times,
    }


def sorted_groups(counts: Counts) -> list[tuple[GroupName, Group]]:
    """Return the groups by name; those that name no source last."""

    def order(entry: tuple[GroupName, Group]) -> tuple[Any, ...]:
        name = entry[0]
        return (
            name == REST,
            name.pipeline,
            name.error_class or "",
            name.source is None,
            name.source or ("", 0),
        )

    return sorted(counts.groups.items(), key=order)


def count(client: KafkaClient, topic: str, ledger_topic: str) -> Counts:
    """Count everything that was decided in ``topic`` when this was called, against what the ledger
    says of replays. Streams; disturbs nobody. A replay that has a transaction open is waited for,
    as long as that may take.

    :raises TopicMissing, AccessDenied, BrokerUnreachable, LedgerUnreadable: …
    """
    found = DeadLetterTopic(client, topic)
    # After the topic's extent is known: what a replay that runs just now feeds back counts, or
    # does not, but nothing that is counted as replayed can be undone.
    replayed = found.replayed(ledger_topic)
    counts = Counts(topic, fed_back_ever=replayed.count)
    counts.gone = {
        where.partition: extent.begin
        for where, extent in found.extents.items()
        if extent.begin > 0
    }
    for letter in found.all_letters():
        counts.add(letter, replayed=letter.offset in replayed.of(letter.where))
    return counts


_LONGEST_CELL = 60


def printable(text: str) -> str:
    """Return ``text`` in one line, with nothing in it that a terminal would obey."""
    return "".join(
        each
        if each.isprintable() and each != "\\"
        else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
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
