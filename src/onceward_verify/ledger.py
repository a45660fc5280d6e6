"""Batches of a pipeline as its ledger records them, and the selection of ``--since``.

A reader of its own; the format is public (each version only ever gains optional fields): see
*ledger record* in the docs. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, NamedTuple

from onceward_verify.findings import CannotTell, WrongUsage, place

_VERSION = 2
_KAFKA, _TABLE, _FILES, _PREPARED = ("kafka", 1), ("table", 1), ("files", 1), ("prepared", 1)
_TRANSACTION = re.compile(r"\.x([0-9]+)$")
Target = Literal["topics", "tables", "files"]
HALF = 0xFFFF_FFFF
"""Of a transaction's number, all that PostgreSQL notes with a row."""
_BRANCH = "@"
_COMMITTABLES = 1


@dataclass(frozen=True, slots=True)
class OutputPart:
    """Records that one batch put into one output partition. Offsets are inclusive."""

    sequence: int
    topic: str
    partition: int
    count: int
    first: int
    last: int
    checksum: str

    @property
    def place(self) -> str:
        """Place in the output's log."""
        return place(self.topic, self.partition, self.first, self.last)


class TablePart(NamedTuple):
    """Rows that one batch put into one table of a database, spelled as the query spells it."""

    table: str
    rows: int
    mode: str
    transactions: tuple[int, ...] | None = ()
    """Writers of the rows, by the lower half of their numbers; empty: the one that wrote the
    record; None: not recorded.
    """
    published: bool = True
    """All of them are committed."""
    is_prepared: bool = False
    """They are of a sink of their own, whose tasks prepare transactions."""
    elsewhere: bool = False
    """The urls of sink and ledger differ in host, port or database."""


class FilesPart(NamedTuple):
    """Files that one batch put below a folder, by their names there, with their sizes in bytes."""

    root: str
    layout: str
    format: str
    rows: int
    files: Mapping[str, int]


class Span(NamedTuple):
    """Begin and end of a batch in one of its sources, as Spark names positions.

    ``ids``: the ids of the topics, as the ledger records them.
    """

    start: Any
    end: Any
    ids: tuple[tuple[str, str], ...] = ()


class FrameWrite(NamedTuple):
    """One frame that was handed over. ``topic`` is None where settings or rows name it."""

    topic: str | None
    records: int


@dataclass(frozen=True)
class LedgerBatch:
    """One ledger record, and its place."""

    sequence: int
    query_id: str
    batch_id: int
    spans: tuple[Span, ...]
    parts: tuple[OutputPart, ...]
    identity: tuple[int, int]
    """Producer id and epoch."""
    ledger_topic: str
    ledger_partition: int
    ledger_offset: int
    run_id: str = ""
    """Of the query's start that wrote it; empty: not recorded."""
    writes: tuple[FrameWrite, ...] | None = None
    """Frames that the user's function handed over (in a supplement all of the batch's); None: not
    recorded."""
    supplement: bool = False
    """It adds to the batch of the record before it; ``parts`` are only what was added."""
    committed_at_ms: int = 0
    tables: tuple[TablePart, ...] = ()
    files: FilesPart | None = None
    finished: bool = True
    """Nothing is left to be published."""
    writer: tuple[int, int] | None = None
    """Identity that wrote the record again; ``identity`` is still that of the decision."""
    has_group: bool = False
    """Its transaction was that of a Kafka sink, which commits the sources' offsets to a group."""

    @property
    def place(self) -> str:
        """Place in the ledger."""
        return place(self.ledger_topic, self.ledger_partition, self.ledger_offset)

    @property
    def records_in(self) -> dict[Target, int]:
        """Number of records and rows in the outputs of each kind that the batch has, be it 0."""
        counts: dict[Target, list[int]] = {
            "topics": [part.count for part in self.parts],
            "tables": [part.rows for part in self.tables],
            "files": [self.files.rows] if self.files else [],
        }
        return {target: sum(numbers) for target, numbers in counts.items() if numbers}

    @property
    def records(self) -> int:
        """Number of records and rows in all outputs."""
        return sum(self.records_in.values())


def parse_batch(value: bytes, topic: str, partition: int, offset: int) -> LedgerBatch:
    """Parse the ledger record ``value``.

    :raises CannotTell: it is not one, or of a newer version.
    """
    where = place(topic, partition, offset)
    try:
        record = json.loads(value)
        version = record["version"]
        if version != _VERSION:
            raise CannotTell(
                f"the ledger record at {where} has version {version}; this checker reads version "
                f"{_VERSION}",
                next_step="check with the Onceward release that wrote it",
            )
        sequence = int(record["sequence"])
        finished = record.get("state", "finished") == "finished"
        return LedgerBatch(
            sequence=sequence,
            query_id=str(record["query_id"]),
            batch_id=int(record["batch_id"]),
            spans=tuple(
                Span(source["start"], source["end"], _ids(source.get("witness")))
                for source in record["sources"]
            ),
            parts=_parts(sequence, record["outputs"], where),
            identity=_identity(record.get("decided") or record["attempt"]),
            ledger_topic=topic,
            ledger_partition=partition,
            ledger_offset=offset,
            run_id=str(record.get("run_id") or ""),
            writes=_writes(record.get("writes")),
            supplement=bool(record.get("supplement", False)),
            committed_at_ms=int(record.get("committed_at_ms", 0)),
            tables=_tables(record["outputs"], finished=finished),
            files=_files(record["outputs"]),
            finished=finished,
            writer=_identity(record["attempt"]) if "decided" in record else None,
            has_group=any(one["kind"] == _KAFKA[0] for one in record["outputs"].values()),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CannotTell(
            f"the ledger record at {where} cannot be read ({type(error).__name__}: {error})",
            next_step="find out who else writes to the ledger topic",
        ) from error


def _ids(witness: Any) -> tuple[tuple[str, str], ...]:
    """Return the ids of a Kafka source, ``{topic: id}``; other sources may record anything."""
    if not isinstance(witness, Mapping):
        return ()
    return tuple((str(topic), str(topic_id)) for topic, topic_id in witness.items())


def _parts(
    sequence: int, outputs: Mapping[str, Mapping[str, Any]], where: str
) -> tuple[OutputPart, ...]:
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
        OutputPart(
            sequence, topic, int(partition), int(count), int(first), int(last), str(checksum)
        )
        for output in outputs.values()
        if output["kind"] == _KAFKA[0]
        for topic, partitions in output["data"].items()
        for partition, (count, first, last, checksum) in partitions.items()
    )


def _tables(outputs: Mapping[str, Mapping[str, Any]], *, finished: bool) -> tuple[TablePart, ...]:
    parts = [
        TablePart(name, int(output["records"]), str(output["data"]["mode"]))
        for name, output in outputs.items()
        if output["kind"] == _TABLE[0]
    ]
    prepared = [output for output in outputs.values() if output["kind"] == _PREPARED[0]]
    return (*parts, *(_prepared_rows(output, finished) for output in prepared))


def _prepared_rows(output: Mapping[str, Any], finished: bool) -> TablePart:
    """Return the rows of prepared transactions, whose names may end with their numbers."""
    data = output["data"]
    if "table" not in data:
        raise CannotTell(
            "a record of the ledger, written by an earlier release, does not say which table its "
            "rows are in",
            next_step="look at that table with a reader of its own: the ledger record lists "
            "what was committed",
        )
    numbers = [_TRANSACTION.search(str(name)) for name in data["committables"]]
    rows = int(output["records"])
    transactions = tuple(int(number[1]) & HALF for number in numbers if number)
    complete = transactions if len(transactions) == len(numbers) else None
    return TablePart(
        str(data["table"]),
        rows,
        "append",
        complete,
        finished,
        is_prepared=True,
        elsewhere=bool(data.get("elsewhere")),
    )


def _files(outputs: Mapping[str, Mapping[str, Any]]) -> FilesPart | None:
    """Return the files of a batch; none if it has no rows."""
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
    (output,) = every
    data = output["data"]
    if data["version"] != _COMMITTABLES:
        raise ValueError(f"files in form {data['version']}")
    rows, form = int(output["records"]), str(data["format"])
    committable = next(iter(data["committables"]), None)  # one at most
    if committable is None:
        return FilesPart(str(data.get("root") or ""), "", form, rows, {})
    # With lists, files stay where they were written ("at"), and "to" is the list.
    folder = committable.get("at") or committable["to"]
    prefix = f"{folder}/" if folder else ""
    files = {f"{prefix}{name}": int(size) for name, size in committable["files"].items()}
    return FilesPart(str(committable["root"]), str(committable["layout"]), form, rows, files)


def _identity(pair: Any) -> tuple[int, int]:
    return int(pair[0]), int(pair[1])


def _writes(pairs: Any) -> tuple[FrameWrite, ...] | None:
    if pairs is None:
        return None
    # A frame to a part of a fan-out is recorded under the part's name, which is no topic.
    return tuple(
        FrameWrite(
            None if topic is None or topic.startswith(_BRANCH) else str(topic), int(records)
        )
        for topic, records in pairs
    )


def kafka_position(position: Any) -> dict[tuple[str, int], int] | None:
    """Parse a position of Spark's Kafka source, ``{topic: {"partition": offset}}``.

    None for any other source's.
    """
    if not isinstance(position, dict):
        return None
    if not all(isinstance(parts, dict) for parts in position.values()):
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
    """Begin of the selection.

    ``batch``: the first record of the newest query with that batch number or a later one.
    ``sequence``: of the ledger's own numbering, over all queries. ``time``: committed then or
    later (milliseconds since the epoch).
    """

    kind: Literal["batch", "sequence", "time"]
    number: int
    text: str


@dataclass(frozen=True)
class Selection:
    """Batches to judge and those ``before``.

    ``complete``: no batch of the selection is missing at its begin.
    """

    batches: tuple[LedgerBatch, ...]
    before: tuple[LedgerBatch, ...]
    complete: bool


def parse_since(text: str) -> Since:
    """Parse ``12`` or ``batch:12``, ``sequence:40``, or a time in ISO 8601 with its zone.

    :raises WrongUsage: it is none of these.
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
    # Rounded up, and exactly: a batch of the millisecond that it falls into may be older
    since = datetime(1970, 1, 1, tzinfo=timezone.utc) - time
    return Since("time", -(since // timedelta(milliseconds=1)), text)


def select(read: Sequence[LedgerBatch], since: Since | None) -> Selection:
    """Select the batches that ``since`` asks for, in the order of ``read``.

    :raises CannotTell: the ledger has nothing that late.
    """
    if since is None or not read:
        return Selection(tuple(read), (), complete=False)
    ordered = sorted(read, key=lambda batch: batch.sequence)
    newest = ordered[-1]
    matches = [batch for batch in ordered if _is_wanted(batch, since, newest.query_id)]
    if not matches:
        raise CannotTell(
            f"the ledger has no batch since {since.text}: it ends with batch {newest.batch_id} of "
            f"query "
            f"{newest.query_id}, sequence {newest.sequence}",
            next_step="name an earlier one with --since, or wait for the next batch",
        )
    first = matches[0]
    numbers = {"batch": first.batch_id, "sequence": first.sequence, "time": first.committed_at_ms}
    has_the_one_before = any(batch.sequence == first.sequence - 1 for batch in ordered)
    return Selection(
        tuple(batch for batch in read if batch.sequence >= first.sequence),
        tuple(batch for batch in read if batch.sequence < first.sequence),
        complete=numbers[since.kind] == since.number or has_the_one_before,
    )


def _is_wanted(batch: LedgerBatch, since: Since, newest_query: str) -> bool:
    if since.kind == "batch":
        return batch.query_id == newest_query and batch.batch_id >= since.number
    return (batch.sequence if since.kind == "sequence" else batch.committed_at_ms) >= since.number
