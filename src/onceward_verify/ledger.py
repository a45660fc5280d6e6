"""The batches of a pipeline as its ledger tells of them: JSON to values, by a reader of its own.

The format is public (each version only ever gains optional fields): see *ledger record* in the
docs. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from onceward_verify.findings import CannotTell, place

_VERSION = 2
_KAFKA, _TABLE, _FILES, _PREPARED = ("kafka", 1), ("table", 1), ("files", 1), ("prepared", 1)
_TRANSACTION = re.compile(r"\.x([0-9]+)$")
HALF = 0xFFFF_FFFF
"""Of a transaction's number, all that PostgreSQL notes with a row."""
_BRANCH = "@"
_COMMITTABLES = 1


@dataclass(frozen=True, slots=True)
class Part:
    """What one batch is told to have put into one output partition. Offsets are inclusive."""

    sequence: int
    topic: str
    partition: int
    count: int
    first: int
    last: int
    checksum: str

    @property
    def place(self) -> str:
        return place(self.topic, self.partition, self.first, self.last)


class TablePart(NamedTuple):
    """What one batch is told to have put into one table of a database, spelled as the query spells
    it.
    """

    table: str
    rows: int
    mode: str
    transactions: tuple[int, ...] | None = ()
    """That have written them, by the lower half of their numbers; empty: the one that wrote the
    record; None: that is not told.
    """
    published: bool = True
    """They are committed, all of them."""


class FilesPart(NamedTuple):
    """What one batch is told to have put below a folder: files by their names there, with their
    sizes in bytes.
    """

    root: str
    layout: str
    format: str
    rows: int
    files: Mapping[str, int]


class Span(NamedTuple):
    """Where a batch began and ended in one of its sources, as Spark names positions. ``ids``: what
    the ledger says of the topics' own ids.
    """

    start: Any
    end: Any
    ids: tuple[tuple[str, str], ...] = ()


class Write(NamedTuple):
    """One frame that was handed over. ``topic`` is None where the sink's settings or the rows say
    it.
    """

    topic: str | None
    records: int


@dataclass(frozen=True)
class Batch:
    """One ledger record, and where it lies."""

    sequence: int
    query_id: str
    batch_id: int
    spans: tuple[Span, ...]
    parts: tuple[Part, ...]
    identity: tuple[int, int]
    """Producer id and epoch."""
    ledger_topic: str
    ledger_partition: int
    ledger_offset: int
    run_id: str = ""
    """Of the query's start that wrote it; empty: not told."""
    writes: tuple[Write, ...] | None = None
    """What the user's function handed over, frame by frame (a supplement: all of the batch's);
    None: not told.
    """
    supplement: bool = False
    """It adds to the batch of the record before it; ``parts`` are only what was added."""
    committed_at_ms: int = 0
    tables: tuple[TablePart, ...] = ()
    files: FilesPart | None = None
    finished: bool = True
    """Nothing is left to be done for it."""
    is_published: bool = False
    """Other targets than the one whose commit decided have a part in it, and the record is written
    again when they have published that.
    """
    written_by: tuple[int, int] | None = None
    """Of a record that was written again: the identity that wrote it; ``identity`` is still that
    of the decision.
    """

    @property
    def place(self) -> str:
        return place(self.ledger_topic, self.ledger_partition, self.ledger_offset)

    @property
    def records(self) -> int:
        rows = sum(part.rows for part in self.tables) + (self.files.rows if self.files else 0)
        return rows + sum(part.count for part in self.parts)


def batch_of(value: bytes, topic: str, partition: int, offset: int) -> Batch:
    """The ledger record ``value``. :raises CannotTell: it is not one, or of a newer version."""
    where = place(topic, partition, offset)
    try:
        told = json.loads(value)
        version = told["version"]
        if version != _VERSION:
            raise CannotTell(
                f"the ledger record at {where} has version {version}; this checker reads version "
                f"{_VERSION}",
                next_step="check with the Onceward release that wrote it",
            )
        sequence = int(told["sequence"])
        return Batch(
            sequence=sequence,
            query_id=str(told["query_id"]),
            batch_id=int(told["batch_id"]),
            spans=tuple(
                Span(source["start"], source["end"], _ids(source.get("witness")))
                for source in told["sources"]
            ),
            parts=_parts(sequence, told["outputs"], where),
            identity=_identity(told.get("decided") or told["attempt"]),
            ledger_topic=topic,
            ledger_partition=partition,
            ledger_offset=offset,
            run_id=str(told.get("run_id") or ""),
            writes=_writes(told.get("writes")),
            supplement=bool(told.get("supplement", False)),
            committed_at_ms=int(told.get("committed_at_ms", 0)),
            tables=_tables(told["outputs"], finished=told.get("state", "finished") == "finished"),
            files=_files(told["outputs"]),
            finished=told.get("state", "finished") == "finished",
            is_published=_is_published(told["outputs"]),
            written_by=_identity(told["attempt"]) if "decided" in told else None,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotTell(
            f"the ledger record at {where} cannot be read ({type(error).__name__}: {error})",
            next_step="find out who else writes to the ledger topic",
        ) from error


def _ids(witness: Any) -> tuple[tuple[str, str], ...]:
    """Of a Kafka source ``{topic: id}``; of others it may be anything."""
    return (
        tuple((str(topic), str(its)) for topic, its in witness.items())
        if isinstance(witness, Mapping)
        else ()
    )


def _parts(
    sequence: int, outputs: Mapping[str, Mapping[str, Any]], where: str
) -> tuple[Part, ...]:
    for name, output in outputs.items():
        if (output["kind"], output["version"]) not in (_KAFKA, _TABLE, _FILES, _PREPARED):
            raise CannotTell(
                f"the ledger record at {where} tells of output {name!r}, of kind "
                f"{output['kind']!r} (version "
                f"{output['version']}), and this checker can read those of topics, tables and "
                f"files",
                next_step="look at that target with a reader of its own: the ledger record lists "
                "what was committed",
            )
    return tuple(
        Part(sequence, topic, int(partition), int(count), int(first), int(last), str(checksum))
        for output in outputs.values()
        if output["kind"] == _KAFKA[0]
        for topic, partitions in output["data"].items()
        for partition, (count, first, last, checksum) in partitions.items()
    )


def _tables(outputs: Mapping[str, Mapping[str, Any]], *, finished: bool) -> tuple[TablePart, ...]:
    told = [(name, output) for name, output in outputs.items() if output["kind"] == _TABLE[0]]
    parts = [
        TablePart(name, int(output["records"]), str(output["data"]["mode"]))
        for name, output in told
    ]
    return (
        *parts,
        *(
            _prepared(output, finished)
            for output in outputs.values()
            if output["kind"] == _PREPARED[0]
        ),
    )


def _prepared(output: Mapping[str, Any], finished: bool) -> TablePart:
    """Rows of transactions that tasks have prepared, whose names may end with their numbers."""
    data = output["data"]
    if "table" not in data:
        raise CannotTell(
            "a record of the ledger, written by an earlier release, does not say which table its "
            "rows are in",
            next_step="begin behind it, with --since",
        )
    numbers = [_TRANSACTION.search(str(name)) for name in data["committables"]]
    told = tuple(int(number[1]) & HALF for number in numbers if number)
    transactions = told if len(told) == len(numbers) else None
    return TablePart(
        str(data["table"]), int(output["records"]), "append", transactions, published=finished
    )


def _files(outputs: Mapping[str, Mapping[str, Any]]) -> FilesPart | None:
    """Of a batch without rows: no files."""
    every = [output for output in outputs.values() if output["kind"] == _FILES[0]]
    if len(every) > 1:
        raise CannotTell(
            f"the ledger tells of {len(every)} sinks for files in one batch, and this checker "
            f"reads those of one",
            next_step="look at these files with a reader of their own: the ledger record lists "
            "what was committed",
        )
    if not every:
        return None
    (told,) = every
    data = told["data"]
    if data["version"] != _COMMITTABLES:
        raise ValueError(f"files in form {data['version']}")
    rows, form = int(told["records"]), str(data["format"])
    for one in data["committables"]:  # one at most
        below = (
            one.get("at") or one["to"]
        )  # with lists, files are where they were written, and ``to`` is the list
        to = f"{below}/" if below else ""
        files = {f"{to}{name}": int(size) for name, size in one["files"].items()}
        return FilesPart(str(one["root"]), str(one["layout"]), form, rows, files)
    return FilesPart("", "", form, rows, {})


def _identity(told: Any) -> tuple[int, int]:
    return int(told[0]), int(told[1])


def _is_published(outputs: Mapping[str, Mapping[str, Any]]) -> bool:
    """Is there anything to publish? Where nothing was prepared, nothing is, and the record is
    finished at once.
    """
    return any(
        name.startswith(_BRANCH) and output["data"]["committables"]
        for name, output in outputs.items()
    )


def _writes(told: Any) -> tuple[Write, ...] | None:
    if told is None:
        return None
    # What goes to a part of a fan-out has that one's name, which is no topic.
    return tuple(
        Write(None if topic is None or topic.startswith(_BRANCH) else str(topic), int(records))
        for topic, records in told
    )


def kafka_position(position: Any) -> dict[tuple[str, int], int] | None:
    """A position of Spark's Kafka source, ``{topic: {"partition": offset}}``; None for any other
    source's.
    """
    if not isinstance(position, dict) or not all(
        isinstance(parts, dict) for parts in position.values()
    ):
        return None
    try:
        return {
            (topic, int(p)): int(offset)
            for topic, parts in position.items()
            for p, offset in parts.items()
        }
    except (TypeError, ValueError):
        return None
