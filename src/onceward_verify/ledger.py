"""The batches of a pipeline as its ledger tells of them: JSON to values, by a reader of its own.

The format is public (each version only ever gains optional fields): see *ledger record* in the
docs. Pure.


From which batch on? ``--since`` leaves out what came before it, for a CI gate behind a migration
or an old finding.

Pure functions of the batches as told; called by ``checker`` and by the command line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from onceward_verify.findings import CannotTell, WrongUsage, place

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


@dataclass(frozen=True)
class Since:
    """``batch``: the first record of the newest query with that batch number or a later one.
    ``sequence``: of the ledger's own numbering, over all queries. ``time``: committed then or
    later (milliseconds since the epoch).
    """

    kind: Literal["batch", "sequence", "time"]
    number: int
    text: str


@dataclass(frozen=True)
class Selection:
    """``batches``: those to judge. ``before``: those left out. ``complete``: of what was asked for
    none is missing.
    """

    batches: tuple[Batch, ...]
    before: tuple[Batch, ...]
    complete: bool


def since_of(text: str) -> Since:
    """``12`` or ``batch:12``, ``sequence:40``, or a time as ISO 8601 has it, with its zone.

    :raises WrongUsage: none of these.
    """
    kind, separator, number = text.partition(":")
    if text.isascii() and text.isdecimal():
        return Since("batch", int(text), text)
    if separator and number.isascii() and number.isdecimal():
        if kind == "batch":
            return Since("batch", int(number), text)
        if kind == "sequence":
            return Since("sequence", int(number), text)
    try:
        time = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise WrongUsage(
            f"--since {text} is no batch, no sequence and no time with a zone",
            next_step="pass a batch number such as 12, sequence:40, or a time such as "
            "2030-01-31T06:00Z",
        )
    return Since("time", int(time.timestamp() * 1000), text)


def select(read: Sequence[Batch], since: Since | None) -> Selection:
    """The batches of ``read`` that ``since`` asks for, in the order in which they were read.

    :raises CannotTell: it asks for something, and the ledger has nothing that late.
    """
    if since is None or not read:
        return Selection(tuple(read), (), complete=False)
    ordered = sorted(read, key=lambda batch: batch.sequence)
    newest = ordered[-1]
    wanted = [batch for batch in ordered if _is_wanted(batch, since, newest.query_id)]
    if not wanted:
        raise CannotTell(
            f"the ledger has no batch since {since.text}: it ends with batch {newest.batch_id} of "
            f"query "
            f"{newest.query_id}, sequence {newest.sequence}",
            next_step="name an earlier one with --since, or wait for the next batch",
        )
    first = wanted[0]
    exact = {"batch": first.batch_id, "sequence": first.sequence, "time": first.committed_at_ms}[
        since.kind
    ]
    has_the_one_before = any(batch.sequence == first.sequence - 1 for batch in ordered)
    return Selection(
        tuple(batch for batch in read if batch.sequence >= first.sequence),
        tuple(batch for batch in read if batch.sequence < first.sequence),
        complete=exact == since.number or has_the_one_before,
    )


def _is_wanted(batch: Batch, since: Since, newest_query: str) -> bool:
    if since.kind == "batch":
        return batch.query_id == newest_query and batch.batch_id >= since.number
    return (batch.sequence if since.kind == "sequence" else batch.committed_at_ms) >= since.number
